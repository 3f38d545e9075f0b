"""`trimaran rehearse` and `trimaran verify`: a script for many GPUs, run without one."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Json, Measured, Trace, option, respelled
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

SETTINGS = {"allow_interspersed_args": False}
"""Of the command: what follows the script is the script's."""


def rehearse(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGUMENTS]...", help="A Python script written for torchrun, and its arguments."
        ),
    ] = None,
    world: Annotated[int | None, option("Ranks in all.", usual="devices of the cluster", min=1)] = None,
    cluster: Annotated[
        str | None,
        option(
            'Target cluster, such as "dgx-h100:128" (`trimaran catalog machines`); without ":N" those that are needed.',
            usual="dgx-h100",
        ),
    ] = None,
    module: Annotated[bool, option("SCRIPT is a module's name, as of `python -m`.", "-m", "--module")] = False,
    ranks: Annotated[
        str,
        option(
            'Ranks to rehearse: "kinds" (rank 0, the last, every pipeline stage, ends of groups), "all", "0,8,16-23".'
        ),
    ] = "kinds",
    steps: Annotated[int, option("Steps of an optimizer, after which a rank stops.", min=1)] = 3,
    limit: Annotated[str, option("Time after which a rank stops.")] = "10min",
    memory: Annotated[str | None, option('Memory of a device, such as "80GiB".', usual="the device's")] = None,
    per_node: Annotated[int | None, option("Ranks of a node.", usual="the node's devices", min=1)] = None,
    alloc_conf: Annotated[
        str | None, option("Settings of the allocator, as in PYTORCH_CUDA_ALLOC_CONF.", usual="that variable")
    ] = None,
    hint: Annotated[
        list[str] | None,
        option(
            'Value that no data can tell, such as "loss=2.0"; also norm, finite, routing_load, count. May be repeated.',
            metavar="NAME=VALUE",
        ),
    ] = None,
    measured: Measured = None,
    calibration: Annotated[Path | None, option("Old spelling of --measured.", hidden=True)] = None,
    kineto: Annotated[Path | None, option("Old spelling of --measured.", hidden=True)] = None,
    logs: Annotated[Path | None, option("Folder for rank<k>.log: what each rank prints.", metavar="FOLDER")] = None,
    trace: Trace = None,
    output: Annotated[Path | None, option("Write the result to a JSON file, too.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Run a training script for many GPUs as any of its ranks, without a GPU: memory, agreement, step time.

    The script is one for torchrun, unchanged. Exit codes: 0 it fits and calls of its ranks agree, 3 it runs out of
    memory or is not sure to fit, 5 ranks disagree, hang or train a model each, or the script fails, 2 it trains nothing
    or the input is wrong, 4 this torch cannot stand in for a GPU.
    """
    with errors_reported(as_json=as_json):
        from trimaran.rehearsal.build import look_at_build

        look_at_build()  # ahead of all that takes longer to import
        import json

        from trimaran.base.errors import InputError
        from trimaran.base.files import check_writable, given, write_whole
        from trimaran.features.rehearse.ask import answer, ask, parse_hints
        from trimaran.program.json_files import to_plain
        from trimaran.report.rehearsal import EXIT_CODES, rehearsal_view

        if not command:
            raise InputError(
                "nothing to rehearse: trimaran rehearse --world 8 --cluster dgx-h100 -- train.py",
                code="rehearse.nothing",
            )
        for path in (trace, output):
            if path is not None:
                check_writable(given(path))
        # Of "-m package.module -- --lr 1e-3" the two dashes end our own options; a script's name ends them by itself.
        arguments = command[2:] if module and command[1:2] == ["--"] else command[1:]
        question = ask(
            command[0],
            arguments,
            world=world,
            cluster=cluster,
            is_module=module,
            per_node=per_node,
            memory=memory,
            ranks=ranks,
            steps=steps,
            limit=limit,
            hints=parse_hints(hint or ()),
            alloc_conf=alloc_conf,
            measured=respelled(measured, calibration=calibration, kineto=kineto),
        )
        with progress_shown() as progress:
            found = answer(question, logs=logs, progress=progress)
        document = to_plain(found.rehearsal)
        if output is not None:
            write_whole(given(output), (json.dumps({"schema_version": 1} | document, indent=1) + "\n").encode())
        if trace is not None and found.step is not None:
            found.write_trace(given(trace))
        if as_json:
            print_json(document)
        else:
            console().print(rehearsal_view(found.rehearsal))
        if trace is not None and found.step is None:
            typer.echo(f"trimaran: {trace} was not written: no step could be timed", err=True)
        code = EXIT_CODES[found.rehearsal.verdict]
        if code:
            raise SystemExit(code)


def verify(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGUMENTS]...", help="A Python script written for torchrun, and its arguments."
        ),
    ] = None,
    world: Annotated[int, option("Ranks.", min=2)] = 2,
    module: Annotated[bool, option("SCRIPT is a module's name, as of `python -m`.", "-m", "--module")] = False,
    alone: Annotated[
        str | None,
        option(
            "Arguments with which one process runs SCRIPT, as of another mesh.", metavar="ARGUMENTS", usual="the same"
        ),
    ] = None,
    steps: Annotated[int, option("Steps of an optimizer that are compared.", min=1)] = 3,
    limit: Annotated[str, option("Time after which a process stops.")] = "5min",
    per_node: Annotated[int | None, option("Ranks of a node.", usual="half of them", min=1)] = None,
    logs: Annotated[Path | None, option("Folder for rank<k>.log: what each rank prints.", metavar="FOLDER")] = None,
    output: Annotated[Path | None, option("Write the result to a JSON file, too.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Run a small training script as several ranks and as one process, and compare their gradients and weights.

    The script is one for torchrun, unchanged, with arguments that make it small. It runs on the CPU. Exit codes: 0 its
    ranks train the model of one process, 3 that is not known, 5 they train another one or the script fails, 2 the input
    is wrong.
    """
    with errors_reported(as_json=as_json):
        import json
        import shlex

        from trimaran.base.errors import InputError
        from trimaran.base.files import check_writable, given, write_whole
        from trimaran.features.rehearse.verify import verify as verify_script
        from trimaran.report.verification import VERIFY_EXIT_CODES, verification_document, verification_view

        if not command:
            raise InputError("nothing to verify: trimaran verify --world 2 -- train.py", code="verify.nothing")
        if output is not None:
            check_writable(given(output))
        arguments = command[2:] if module and command[1:2] == ["--"] else command[1:]
        with progress_shown() as progress:
            found = verify_script(
                command[0],
                arguments,
                world=world,
                is_module=module,
                alone=None if alone is None else shlex.split(alone),
                per_node=per_node,
                steps=steps,
                limit=limit,
                logs=logs,
                progress=progress,
            )
        document = verification_document(found)
        if output is not None:
            write_whole(given(output), (json.dumps({"schema_version": 1} | document, indent=1) + "\n").encode())
        if as_json:
            print_json(document)
        else:
            console().print(verification_view(found))
        code = VERIFY_EXIT_CODES[found.verdict]
        if code:
            raise SystemExit(code)
