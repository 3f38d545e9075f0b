"""`trimaran export`: a plan as the configuration of another runtime."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Json, option
from trimaran.cli.output import console, errors_reported, print_json


def export(
    plan: Annotated[Path, typer.Argument(help="A plan, as `trimaran plan -o` writes it.", metavar="PLAN")],
    to: Annotated[str, option("torchtitan, megatron, accelerate, or pytorch: a script.")],
    output: Annotated[Path | None, option("Write the configuration to this file.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Write a plan for another runtime, and list the settings that cannot be exported."""
    with errors_reported(as_json=as_json):
        from trimaran.features.export import export_plan, write_export

        exported = export_plan(plan, to)
        if output is not None:
            exported = write_export(exported, output)
        if as_json:
            print_json(
                {
                    "schema_version": 1,
                    "target": exported.target,
                    "release": exported.release,
                    "sections": exported.sections,
                    "file": exported.text,
                    "lost": list(exported.lost),
                }
            )
            return
        from trimaran.report.tables import print_next

        out = console()
        if output is None:
            out.print(exported.text, end="", markup=False, highlight=False, soft_wrap=True)
            return
        out.print(f"Wrote {output} for {exported.target} {exported.release}.", markup=False, soft_wrap=True)
        for line in exported.lost:
            out.print(f"not exported: {line}", markup=False)
        if " --" in exported.next and "$(" not in exported.next:
            print_next(out, shlex.split(exported.next))
        else:
            out.print(f"Next: {exported.next}", markup=False)
