"""`trimaran plan`: the best way to train a job here or on another machine, and what it was chosen over."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trimaran.cli.options import (
    AcceptInexact,
    Json,
    LoadingOptions,
    PinOptions,
    PlanOptions,
    Reference,
    Seed,
    TargetOptions,
    grouped,
    option,
)
from trimaran.cli.output import console, errors_reported

if TYPE_CHECKING:
    from trimaran.base.progress import Progress
    from trimaran.planning.answer.results import Planned
    from trimaran.planning.rehearsed import PlanRehearsed
    from trimaran.planning.requests import PlanRequest
    from trimaran.program.strategy import Strategy


STEPS = 3
"""Of an optimizer, in a rehearsal: memory is settled in the second, and the third has the time of a usual one."""


@grouped
def plan(
    job: Reference,
    asked: PlanOptions,
    pins: PinOptions,
    target: TargetOptions,
    loading: LoadingOptions,
    seed: Seed = None,
    output: Annotated[Path | None, option("Write the plan to this file.", "--output", "-o")] = None,
    rehearse: Annotated[
        bool, option("Export the plan and rehearse the export before the plan is shown (with --cluster).", "--rehearse")
    ] = False,
    to: Annotated[
        str | None,
        option("Plan what torchtitan, megatron, accelerate or pytorch can run: see `export`.", metavar="TARGET"),
    ] = None,
    accept_inexact: AcceptInexact = False,
    as_json: Json = False,
) -> None:
    """Find the fastest way to train a job that fits; print what was considered."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import show_plan
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.requests import parse_target

        request = asked.read(
            pins,
            target=parse_target(counts=asked.counts, **vars(target)),
            accept_inexact=accept_inexact,
            loading=loading.read(),
        )
        found: list[PlanRehearsed] = []
        check = None
        if rehearse:
            check = rehearsal_by(job, request, to or "pytorch", found)
        if rehearse or to is not None:
            from trimaran.features.export import check_target_name, request_for

            check_target_name(to or "pytorch")
            request = request_for(job, request, to or "pytorch")
        planned = show_plan(JobSource(reference=job, seed=seed), request, output=output, as_json=as_json, check=check)
        if found:
            from trimaran.report.rehearsal import EXIT_CODES

            code = EXIT_CODES[found[0].rehearsal.verdict]
            if code:
                raise SystemExit(code)
        if as_json:
            return
        follows = _next(request, planned, output)
        if to is not None and output is not None:
            from trimaran.report.tables import next_text

            follows = next_text(["trimaran", "export", str(output), "--to", to])
        console().print(follows, soft_wrap=True, markup=False)


def _next(request: "PlanRequest", planned: "Planned", output: Path | None) -> str:
    """What follows a plan: of a target cluster its explanation, here the training."""
    from trimaran.cli.following import DECIDED, following
    from trimaran.report.tables import next_text

    if not request.is_here:
        if output is not None:
            return next_text(["trimaran", "explain", str(output)])
        target = request.target
        if target.tokens is None and (target.price or target.most_local_batch or target.samples_per_epoch):
            # What an explanation has no option for is in the plan file.
            return next_text(following("plan", output="plan.json"), "to have a plan that can be explained")
        words = following("explain", devices=planned.devices)
        if planned.outlook is not None and "--batch" not in words:
            words += ["--batch", str(planned.global_batch_size)]
        return next_text(words)
    if output is not None:
        return next_text(following("train", plan=str(output), without=DECIDED))
    if planned.outlook is not None:
        # What a training to a target takes of the job is in the plan file.
        return next_text(following("plan", output="plan.json"), "to have a plan that can be trained by")
    if request.pins.names:
        return next_text(following("plan", output="plan.json"))
    return next_text(following("train"))


def rehearsal_by(
    job: str, request: "PlanRequest", target: str, found: "list[PlanRehearsed]"
) -> "Callable[[Planned, Progress], PlanRehearsed]":
    """What rehearses the export of a plan; a job whose plans cannot be rehearsed is refused before one is made.

    Args:
        job: reference of it
        request: for what plan
        target: runtime that the plan is exported to
        found: takes the result

    Raises:
        InputError: no cluster, an objective without a plan of one step, no such target, or a network that it lacks
        EnvironmentProblem: this torch cannot stand in for a device
    """
    from trimaran.base.errors import InputError
    from trimaran.features.export import check_network
    from trimaran.features.rehearse.target import find_target
    from trimaran.measure.cache import cache_directory
    from trimaran.planning.analytical import shape_of
    from trimaran.rehearsal.build import check_build

    if request.is_here:
        raise InputError(
            "--rehearse is for a plan of a target cluster: say it, such as --cluster dgx-h100",
            code="plan.rehearse-here",
        )
    find_target(str(request.cluster))
    check_build(cache_directory())
    check_network(job, shape_of(job, request), target)

    def rehearse(planned: "Planned", progress: "Progress") -> "PlanRehearsed":
        from dataclasses import replace

        from trimaran.planning.answer.evidence import Simulated
        from trimaran.planning.rehearsed import neighbours, tried_neighbour

        done = rehearse_plan(planned, target, progress=progress)
        tried = []
        if done.rehearsal.verdict == "out of memory" and not isinstance(planned.evidence, Simulated):
            for words, strategy in neighbours(planned.chosen.strategy):
                try:
                    other = rehearse_plan(planned, target, strategy=strategy, progress=progress)
                except InputError:  # the target has none such
                    continue
                tried.append(tried_neighbour(words, strategy, other))
                if other.rehearsal.fits:
                    break
        found.append(replace(done, tried=tuple(tried)))
        return found[0]

    return rehearse


def rehearse_plan(
    planned: "Planned",
    target: str,
    *,
    strategy: "Strategy | None" = None,
    ranks: str = "kinds",
    limit: str = "10min",
    progress: "Progress | None" = None,
) -> "PlanRehearsed":
    """Export a plan and rehearse the export.

    Args:
        planned: for a target cluster
        target: runtime that the plan is exported to
        strategy: that is exported in place of the chosen one, of a plan of degrees; None: the chosen one
        ranks: that are rehearsed: "kinds", "all", or numbers such as "0,8"
        limit: of time, after which a rank stops
        progress: is told how many ranks have ended

    Raises:
        InputError: the plan cannot be exported to that target, or not be started there
        EnvironmentProblem: a process cannot be started
    """
    from dataclasses import replace

    from trimaran.base.files import put_in_place, temporary_folder
    from trimaran.base.progress import ignore_progress
    from trimaran.features.export import launch_plan
    from trimaran.features.rehearse.ask import answer, ask
    from trimaran.planning.rehearsed import compare_with_plan

    memory = planned.request.memory_bytes
    chosen = planned.evidence.whole_plan
    if strategy is not None:
        chosen = replace(chosen, strategy=strategy)
    launch = launch_plan(chosen, target, steps=STEPS)
    with temporary_folder("trimaran-export-") as folder:
        for name, text in launch.files.items():
            put_in_place(folder / name, text.encode())
        question = ask(
            folder / launch.script,
            launch.arguments,
            world=launch.ranks,
            cluster=str(planned.request.cluster),
            memory=None if memory is None else memory + planned.machine.node.device.memory.context_bytes,
            ranks=ranks,
            steps=STEPS,
            limit=limit,
            alloc_conf=launch.allocator,
        )
        found = answer(question, progress=progress or ignore_progress)
    return compare_with_plan(planned, target, found.rehearsal, found.step)
