"""Where time goes: `trimaran observe` of a script as it is, or of a job."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from trimaran.base.secrets import without_secrets
from trimaran.base.signals import Interrupted
from trimaran.cli.options import Batch, Devices, Json, Link, Oversubscribe, Reference, Seed, check_unused, option
from trimaran.cli.output import console, errors_reported, is_verbose, print_json, progress_shown

if TYPE_CHECKING:
    from trimaran.jobs.resolve import JobSource
    from trimaran.planning.requests import PlanRequest


def observe(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What to run, such as: -- python train.py")
    ] = None,
    again: Annotated[
        bool, option("Time a copy of the model on larger batches after the script.", "--again/--not-again")
    ] = True,
    as_json: Json = False,
) -> None:
    """Run a PyTorch script as it is; say what its steps are spent on, what limits them, and what would help.

    With --json, what the script writes to standard output goes to standard error.
    """
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError

        if not command:
            raise InputError("nothing to run: trimaran observe -- python train.py")
        from trimaran.base.errors import ExecutionError, TrimaranError
        from trimaran.features.diagnose.observe import conclude, describe_exit, observe_command
        from trimaran.program.json_files import to_plain
        from trimaran.report.observation import observation_view

        observed = observe_command(command, again=again, output_to=2 if as_json else None)
        ended = describe_exit(observed.exit_code)
        try:
            observation = conclude(observed.records, others=observed.others)
        except TrimaranError as error:
            if observed.stopped is not None:
                interrupted = Interrupted(observed.stopped)
                interrupted.add_note(error.message)
                raise interrupted from None
            if ended is None:
                raise
            raise ExecutionError(f"{ended}; {error.message}", exit_code_of_command=observed.exit_code) from None
        words = ["trimaran", "observe", *(() if again else ("--not-again",)), "--", *without_secrets(command)]
        if as_json:
            document = to_plain(observation) | {"command": shlex.join(words)}
            print_json({"exit_code_of_command": observed.exit_code} | document)
        else:
            from trimaran.report.tables import print_next

            out = console()
            out.print(observation_view(observation))
            print_next(out, words, "after a change" if observation.remedies else "")
        if observed.stopped is not None:
            raise Interrupted(observed.stopped)
        if ended is not None:
            raise SystemExit(_say(ended))


def _say(ended: str) -> int:
    from trimaran.base.errors import ExecutionError

    typer.echo(f"trimaran: {ended}; the report is of what was seen until then", err=True)
    return ExecutionError.exit_code


# ---------------------------------------------------------------------------------------------------------------------
# Options of `trimaran observe --stalls`


_TOP = 10


class Line(StrEnum):
    """The unit of one line of the compute."""

    MODULE = "module"
    OPERATION = "operation"
    KIND = "kind"


def profile(
    job: Reference,
    devices: Devices = None,
    batch: Batch = None,
    seed: Seed = None,
    by: Annotated[
        Line | None, option("Without --stalls: what one line of the compute stands for.", usual=Line.MODULE.value)
    ] = None,
    top: Annotated[
        int | None, option("Without --stalls: lines of the compute that are shown.", usual=str(_TOP), min=1)
    ] = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    calibration: Annotated[
        Path | None, option("Without --stalls: use the figures of this file of `trimaran doctor --measure`.")
    ] = None,
    stalls: Annotated[
        bool, option("Run the job cold, cached and on synthetic data, and say what its steps wait for.", "--stalls")
    ] = False,
    steps: Annotated[
        int | None, option("With --stalls: steps of each way.", usual="a few seconds of them", min=1)
    ] = None,
    workers: Annotated[
        int | None, option("With --stalls: processes of each rank that load.", usual="as in the plan, or 0", min=0)
    ] = None,
    plan: Annotated[Path | None, option("With --stalls: run this plan instead of making one.")] = None,
    as_json: Json = False,
) -> None:
    """Show forward, backward, update and loading of a job, its memory, and its most expensive parts.

    With --stalls: run it, and split its steps by what they wait for.
    """
    with errors_reported(as_json=as_json):
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.requests import parse_request

        if stalls:
            given: dict[str, object] = {"--by": by, "--top": top, "--calibration": calibration}
            check_unused("has no use with --stalls, which runs the job", given)
        else:
            given = {"--steps": steps, "--workers": workers, "--plan": plan}
            check_unused("is for --stalls, which runs the job", given)
        source = JobSource(reference=job, global_batch_size=batch, seed=seed)
        request = parse_request(devices=devices, oversubscribe=oversubscribe, link=link, calibration=calibration)
        if stalls:
            _print_stalls(source, request, plan=plan, steps=steps, workers=workers, as_json=as_json)
            return
        from trimaran.cli.following import following
        from trimaran.features.diagnose.profile import profile_job
        from trimaran.report.profile import (
            memory_table,
            overhead_lines,
            profile_document,
            spot_table,
            step_table,
            verdict_line,
        )
        from trimaran.report.tables import print_next

        by = by or Line.MODULE
        with progress_shown() as progress:
            found = profile_job(source, request, by=by.value, progress=progress)
        if as_json:
            print_json(profile_document(found, top=top or _TOP))
            return
        out, top = console(), top or (len(found.spots) if is_verbose() else _TOP)
        ranks = f"{found.ranks} {'rank' if found.ranks == 1 else 'ranks'} busy"
        out.print(
            f"[bold]{escape(verdict_line(found))}[/]\n"
            f"Global batch {found.global_batch_size}, on {escape(found.device)} with {ranks}.\n"
        )
        for step in found.steps:
            out.print(step_table(step), "")
        out.print(memory_table(found.steps), "")
        out.print(spot_table(found, top=top))
        if len(found.spots) > top:
            out.print(f"[dim]and {len(found.spots) - top} more: --top lists them[/]")
        out.print("", *overhead_lines(found.overhead), sep="\n")
        out.print("[dim]Not seen: " + "; ".join(found.unseen) + ".[/]")
        words = following("profile", without=("--by", "--top", "--calibration"), stalls=True)
        print_next(out, words)


def _print_stalls(
    source: "JobSource",
    request: "PlanRequest",
    *,
    plan: Path | None,
    steps: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    from trimaran.features.diagnose.stalls import profile_stalls
    from trimaran.report.stalls import stalls_document, stalls_view

    with progress_shown() as progress:
        found = profile_stalls(source, request, plan=plan, steps=steps, workers=workers, progress=progress)
    if as_json:
        print_json(stalls_document(found))
    else:
        from trimaran.cli.following import following
        from trimaran.report.tables import print_next

        out = console()
        out.print(stalls_view(found))
        print_next(out, following("plan"))
