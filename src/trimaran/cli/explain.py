"""`trimaran explain`: why this plan, why not another one, and what a change would give."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trimaran.cli.options import CurveName, Json, LoadingOptions, PinOptions, SearchOptions, Subject, grouped, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

if TYPE_CHECKING:
    from trimaran.planning.answer.results import Planned


@grouped
def explain(
    subject: Subject,
    asked: SearchOptions,
    pins: PinOptions,
    loading: LoadingOptions,
    why_not: Annotated[
        list[str] | None,
        option(
            'Compare with the best of a kind: "pp", "dp2", "tp2", "fsdp", "placement", "compiled", "one device", '
            '"pp2-gpipe-m4"; for a transformer on many devices also "ddp", "tp8-pp4-zero1". Repeatable.'
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        option(
            'Try a change: "link=10Gb/s", "link=x2", "link=pcie3x16", "network=x2", "latency=0", "wire=x0.5", '
            '"interference=0", "compute=x2", "load=0", "memory=8GiB", "devices=4"; several at once with commas between '
            "them. Repeatable.  "
            "[default: a list of them]"
        ),
    ] = None,
    curve: CurveName = None,
    as_json: Json = False,
) -> None:
    """Say why a plan is what it is, what it was chosen over, and what would help."""
    with errors_reported(as_json=as_json):
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.answer.explained import explanation_document, print_explanation
        from trimaran.planning.estimated import asked_of_file
        from trimaran.planning.explanation import explain_plan
        from trimaran.planning.requests import parse_target
        from trimaran.program.plan_file import plan_path, read_plan

        path = plan_path(subject)
        plan = None if path is None else read_plan(path)
        reference = subject if plan is None else plan.job
        there = asked_of_file(plan, cluster=asked.cluster, loading=loading.read())
        request = asked.read(pins, target=parse_target(curve=curve), **there)
        with progress_shown() as progress:
            explained = explain_plan(
                JobSource(reference=reference),
                request,
                path=path,
                why_not=why_not or (),
                what_if=what_if or (),
                progress=progress,
            )
        if as_json:
            print_json(explanation_document(explained))
        else:
            from trimaran.report.tables import print_next

            out = console()
            print_explanation(out, explained)
            print_next(out, *_next(subject, explained.planned, path))


def _next(subject: str, planned: "Planned", path: Path | None) -> tuple[list[str], str]:
    """What one does with a plan that is understood, and where: train it, or take it to another runtime."""
    from trimaran.cli.following import DECIDED, following
    from trimaran.planning.loaded_plans import use_of_plan

    if path is None:
        return following("plan", subject, output="plan.json"), ""
    if planned.request.is_here:
        return following("train", planned.evidence.plan.job, plan=subject, without=DECIDED), ""
    return use_of_plan(planned.evidence.plan, subject)
