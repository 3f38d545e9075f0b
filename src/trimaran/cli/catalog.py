"""What is known by name, and what lies in files: `trimaran catalog` of jobs, machines, curves and checkpoints."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.checkpoint import checkpoint
from trimaran.cli.convergence import curve
from trimaran.cli.following import following
from trimaran.cli.help import HelpedCommand, HelpedGroup, with_verbosity
from trimaran.cli.options import Json, check_unused, option
from trimaran.cli.output import answers, console, errors_reported, print_json


def jobs(as_json: Json = False) -> None:
    """List the built-in jobs, the published networks and decoders."""
    with errors_reported(as_json=as_json):
        from trimaran.jobs.resolve import BUILT_IN, NETWORKS
        from trimaran.networks.names import option_names, sizes_of
        from trimaran.networks.published_decoders import DECODER_FAMILIES
        from trimaran.report.tables import add_words, frame_table, print_next

        listed = {**BUILT_IN, **NETWORKS}
        if as_json:
            entries = [
                {"name": name, "summary": job.summary}
                | ({"sizes": sizes_of(name), "options": option_names(name)} if name in NETWORKS else {})
                for name, job in listed.items()
            ]
            decoders = [
                {"name": name, "title": family.title, "sizes": tuple(family.sizes)}
                for name, family in DECODER_FAMILIES.items()
            ]
            print_json({"jobs": entries, "decoders": decoders})
            return
        out = console()
        out.print(
            f"{len(listed)} jobs and networks, and {len(DECODER_FAMILIES)} families of decoders, are known by name; a "
            "file.py:factory and a Hugging Face config.json are jobs too.\n"
        )
        table = frame_table(
            "",
            "M: million parameters; images, windows and sentences are synthetic, of the size that is said\n"
            "Another size, or options: gpt2:1.5b, bert:large:sequence=512, resnet50:image=160.",
        )
        add_words(table, "job", no_wrap=True)
        add_words(table, "description")
        for name, job in listed.items():
            table.add_row(name, job.summary)
        out.print(table)
        out.print()
        families = frame_table(
            "Decoders, by their published configuration", 'Such as "mixtral:8x7b" or "qwen3:235b-a22b:sequence=8192".'
        )
        add_words(families, "family", no_wrap=True)
        add_words(families, "sizes")
        for name, family in DECODER_FAMILIES.items():
            families.add_row(name, " ".join(family.sizes))
        out.print(families)
        out.print(
            "\nYour own: file.py:factory, where factory() returns a trimaran.Job.\n"
            "A Hugging Face configuration: config.json, or config.json:sequence=2048; its data are synthetic."
        )
        print_next(out, ["trimaran", "plan", "digits"])


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help='Draw one: "dgx1-v100", "dgx1-v100:4@ethernet-25g", "8xv100", "h200", or your TOML file.',
        ),
    ] = None,
    file: Annotated[
        Path | None,
        option(
            "Read a node from what `nvidia-smi topo -m` printed, or from NCCL's topology (NCCL_TOPO_DUMP_FILE).",
            "--import",
        ),
    ] = None,
    device: Annotated[str | None, option("Which device the imported node has.")] = None,
    network: Annotated[str | None, option('Kind of the cards that `nvidia-smi` names, such as "ib-hdr".')] = None,
    as_toml: Annotated[bool, option("Write the node as a TOML file that you can correct.", "--toml")] = False,
    devices: Annotated[bool, option("List devices instead of machines.", "--devices")] = False,
    as_json: Json = False,
) -> None:
    """List machines of the catalog, or draw one: pairs, tree, rings, figures and where they come from."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError
        from trimaran.base.printable import printable
        from trimaran.machine.catalog import catalog, find_node, node_names
        from trimaran.machine.find import find_machine
        from trimaran.machine.machine_files import import_node, node_text
        from trimaran.machine.types import Machine
        from trimaran.report import machines as cluster_views
        from trimaran.report.machines import device_document, machine_document, node_line

        if name is not None and file is not None:
            raise InputError("give either a name or --import FILE, not both", name=name, file=str(file))
        if file is None:
            check_unused("is of a node that is read by --import", {"--device": device, "--network": network})
        if devices:
            check_unused("goes with one machine, and --devices lists devices", {"NAME": name, "--import": file})
        if as_toml:
            why = "has nothing to say with --toml, which writes one machine"
            check_unused(why, {"--devices": devices})
            check_unused("writes one machine, and none is named", {"--toml": name is None and file is None})
            check_unused(why, {"--json": as_json})
        if devices:
            every = tuple(catalog().values())
            if as_json:
                print_json({"devices": [device_document(found) for found in every]})
            else:
                cluster_views.print_devices(console(), every)
            return
        if name is None and file is None:
            nodes = tuple(find_node(known) for known in node_names())
            if as_json:
                print_json({"machines": [node_line(node) for node in nodes]})
            else:
                cluster_views.print_nodes(console(), nodes)
            return
        machine = find_machine(name or "") if file is None else Machine(node=import_node(file, device, network))
        if as_toml:
            answers().write(printable(node_text(machine.node)))
        elif as_json:
            print_json({"machine": machine_document(machine)})
        else:
            from trimaran.report.tables import print_next

            out = console()
            cluster_views.print_machine(out, machine)
            if name is not None:
                words = ["trimaran", "plan", "resnet50", "--cluster", name]
            else:
                words = [*following("clusters"), "--toml"]
            print_next(out, words)


catalog = typer.Typer(
    name="catalog",
    help="Jobs, machines and convergence curves that are known by name; checkpoints and weights in files.",
    no_args_is_help=True,
    cls=HelpedGroup,
)
_COMMANDS: Mapping[str, Callable[..., None]] = {
    "jobs": jobs,
    "machines": clusters,
    "curve": curve,
    "checkpoint": checkpoint,
}
for _name, _command in _COMMANDS.items():
    catalog.command(_name, cls=HelpedCommand)(with_verbosity(_command))
