"""Checkpoints and weights: `trimaran catalog checkpoint` shows and compares them, `trimaran export` writes them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trimaran.cli.help import HelpedCommand, HelpedGroup, with_verbosity
from trimaran.cli.options import Json, option
from trimaran.cli.output import console, errors_reported, print_json

before = typer.Typer(
    name="checkpoint",
    help="Show, verify and export checkpoints and weights; no model is made, and no GPU is needed.",
    no_args_is_help=True,
    cls=HelpedGroup,
)

Source = Annotated[
    Path,
    typer.Argument(
        help="A run, a folder of checkpoints (the newest counts) or one checkpoint; or weights: a .safetensors or .pt "
        "file, a Hugging Face folder, a directory of torch.distributed.checkpoint.",
        metavar="PATH",
    ),
]
TrustPickle = Annotated[
    bool,
    option("Read files that are pickles (.pt, .bin, DCP); as tensors and plain values alone.", "--trust-pickle"),
]


def show(path: Source, trust_pickle: TrustPickle = False, as_json: Json = False) -> None:
    """Say what is in a checkpoint or in weights; tensors are not read."""
    with errors_reported(as_json=as_json):
        from trimaran.features.checkpoints import show_checkpoint

        found = show_checkpoint(path, trust_pickle=trust_pickle)
        if as_json:
            print_json(found)
            return
        for line in _shown(found):
            console().print(line, markup=False, highlight=False, soft_wrap=True)


def verify(path: Source, trust_pickle: TrustPickle = False, as_json: Json = False) -> None:
    """Compare files with their checksums; of a run or a folder, all checkpoints. Exit code 6 where one is damaged."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import CorruptDataError
        from trimaran.features.checkpoints import verify_checkpoint

        found = verify_checkpoint(path, trust_pickle=trust_pickle)
        if as_json:
            print_json(found)
        else:
            for line in _compared(found):
                console().print(line, markup=False, highlight=False, soft_wrap=True)
        if not found["whole"]:
            raise SystemExit(CorruptDataError.exit_code)


def export(
    path: Source,
    output: Annotated[Path, option("File or folder to write; it may not be there.", "--output", "-o")],
    to: Annotated[
        str | None,
        option(
            "safetensors, pt (torch.save), dcp (torch.distributed.checkpoint) or huggingface (a folder). Not "
            "needed where the name of the output ends in .safetensors or .pt."
        ),
    ] = None,
    with_optimizer: Annotated[bool, option("The state of the optimizer too (pt, dcp).", "--with-optimizer")] = False,
    shard_size: Annotated[
        str | None, option("Largest file of a Hugging Face folder.", usual="5GB", metavar="SIZE")
    ] = None,
    config: Annotated[
        Path | None,
        option("File or folder with the config.json of a Hugging Face folder.", usual="the model's, where it has one"),
    ] = None,
    trust_pickle: TrustPickle = False,
    as_json: Json = False,
) -> None:
    """Write weights in a format of others; whole, or nothing of it remains."""
    with errors_reported(as_json=as_json):
        from trimaran.base.units import format_bytes, format_count, parse_bytes
        from trimaran.features.checkpoints import export_checkpoint

        written = export_checkpoint(
            path,
            output,
            to=to,
            optimizer=with_optimizer,
            shard_bytes=None if shard_size is None else parse_bytes(shard_size),
            config=config,
            trust_pickle=trust_pickle,
        )
        if as_json:
            print_json(
                {
                    "path": str(written.path),
                    "format": written.format,
                    "source": written.source,
                    "files": list(written.files),
                    "tensors": written.tensors,
                    "bytes": written.nbytes,
                    "optimizer": written.optimizer,
                    "notes": list(written.notes),
                }
            )
            return
        what = " and the state of the optimizer" if written.optimizer else ""
        lines = [
            f"{written.path}: {format_count(written.tensors, 'tensor')}{what}, {format_bytes(written.nbytes)}, "
            f"{written.format}, of {written.source}"
        ]
        for line in (*lines, *(f"note: {one}" for one in written.notes)):
            console().print(line, markup=False, highlight=False, soft_wrap=True)


for _command in (show, verify, export):
    before.command(cls=HelpedCommand)(with_verbosity(_command))


def checkpoint(
    path: Source,
    checksums: Annotated[
        bool,
        option("Compare files with their checksums, of all checkpoints; exit code 6 where one is damaged.", "--verify"),
    ] = False,
    trust_pickle: TrustPickle = False,
    as_json: Json = False,
) -> None:
    """Say what is in a checkpoint or in weights; tensors are not read, unless their checksums are compared."""
    (verify if checksums else show)(path=path, trust_pickle=trust_pickle, as_json=as_json)


def _shown(found: dict[str, Any]) -> list[str]:
    from trimaran.base.units import format_bytes, format_count

    lines = [f"{found['source']}: {found['kind']}"]
    about = found.get("checkpoint")
    if about is not None:
        lines += [
            f"  step        {about['step']}, after {format_count(about['epoch'], 'epoch')}",
            f"  job         {about['job']}, global batch {about['global_batch']}, seed {about['seed']}, "
            f"{about['precision']}",
            f"  strategy    {about['strategy']}, on {format_count(about['ranks'], 'rank')}",
            f"  size        {format_bytes(about['bytes'])}",
        ]
    weights, kept = found["weights"], found["optimizer"]
    tied = f", {weights['tied']} tied" if weights["tied"] else ""
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in weights["dtypes"].items())
    lines.append(
        f"  weights     {format_count(weights['tensors'], 'tensor')}{tied}, {weights['elements']:,} elements, "
        f"{format_bytes(weights['bytes'])} ({dtypes})"
    )
    if kept is None:
        lines.append("  optimizer   no state")
    else:
        name = f"{about['optimizer']}, " if about is not None else ""
        lines.append(
            f"  optimizer   {name}{', '.join(kept['keys']) or 'nothing'} of "
            f"{format_count(kept['parameters'], 'parameter')} in {format_count(kept['groups'], 'group')}, "
            f"{format_bytes(kept['bytes'])}"
        )
    for other in found.get("others", ()):
        lines.append(f"  before it   {other['name']}, {format_bytes(other['bytes'])}")
    lines += [f"  damaged     {one['name']}: {'; '.join(one['faults'])}" for one in found.get("damaged", ())]
    return lines


def _compared(found: dict[str, Any]) -> list[str]:
    if not found["checkpoints"]:
        end = "every checksum is right" if found["checksums"] else "whole, as far as sizes say: it has no checksums"
        return [f"{found['source']}: {found['kind']}, {end}"]
    return [
        f"{found['source']}/{one['name']}: {'; '.join(one['faults']) or 'as it was written'}"
        if not str(found["source"]).endswith(one["name"])
        else f"{found['source']}: {'; '.join(one['faults']) or 'as it was written'}"
        for one in found["checkpoints"]
    ]
