"""The three remedies tried on this machine: two ranks, links that are free or held to a rate, two jobs.

job × links ─▶ what operations, samples, messages take ─▶ predicted
            └▶ each case run for a few seconds         ─▶ measured
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.cluster.detect import detect_cluster, detect_processor
from trimaran.cluster.types import Link
from trimaran.costs.replicate import ABLATION, ALL, NONE, Baseline, Remedies
from trimaran.errors import EnvironmentProblem, InputError
from trimaran.graph.types import Graph
from trimaran.program import Program, Strategy, lower, lower_evaluation
from trimaran.program.feeding import IN_LINE, Feeding
from trimaran.report.reproduction.feeding_real import TriedFeeding, TriedRemedy
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.request import parse_link

RANKS = 2
LINKS = ("free", "1Gb/s", "200Mb/s")
STEPS = 18
"""Timed steps of each case, where they do not take long."""

AHEAD = Feeding(workers=2)
"""What "pre-load" stands for here."""

JOBS = ("reads", "wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job and what it lowers to.

    Attributes:
        name: of it
        graph: captured
        batch: samples of all ranks
        plans: strategy and programs of each case of "ddp"
    """

    name: str
    graph: Graph
    batch: int
    plans: Mapping[Remedies, tuple[Strategy, Program, Program]]


def try_feeding(
    *,
    jobs: str | None = None,
    links: Sequence[str] = LINKS,
    steps: int = STEPS,
    progress: Progress = ignore_progress,
) -> TriedFeeding:
    """Every case of every job on every kind of links.

    Args:
        jobs: some of them, such as "reads"; None: both
        links: rates that the links are held to; "free": none
        steps: timed, where they do not take long
        progress: told what is being done

    Raises:
        InputError: an unknown job, or too few steps
        EnvironmentProblem: links cannot be held to any rate that is asked for
        ExecutionError: a rank failed
    """
    names = JOBS if jobs is None else tuple(dict.fromkeys(part.strip() for part in jobs.split(",")))
    for name in names:
        if name not in JOBS:
            raise InputError(f'"{name}" is not measured here; there are {", ".join(JOBS)}', network=name)
    if steps < 1:
        raise InputError(f"at least one step must be timed, got {steps}", steps=steps)
    prepared = [_prepared(name) for name in names]
    rows: list[TriedRemedy] = []
    notes: list[str] = []
    for text in links:
        try:
            rows += _on_links(prepared, None if text == "free" else parse_link(text), text, steps, progress)
        except EnvironmentProblem as problem:
            if not rows:
                raise
            notes.append(f"links of {text} are left out: {problem.message}")
    return TriedFeeding(ranks=RANKS, rows=tuple(rows), notes=tuple(notes))


def strategy_of(remedies: Remedies) -> Strategy:
    """The plan of two replicas with some of the remedies; they split the batch anyway.

    Args:
        remedies: switched on
    """
    from trimaran.session.reproduce_feeding_prediction import BF16

    return Strategy(
        dp=RANKS,
        feeding=AHEAD if remedies.preload else IN_LINE,
        compression=BF16 if remedies.compress else None,
    )


def _prepared(name: str) -> _Job:
    from trimaran.graph.capture import capture
    from trimaran.session.reproduce_feeding_jobs import fed_job

    job = fed_job(name)
    graph, batch = capture(job).graph, job.global_batch_size
    plans = {}
    for remedies in ABLATION:
        strategy = strategy_of(remedies)
        plans[remedies] = (
            strategy,
            lower(graph, strategy, batch=batch),
            lower_evaluation(graph, strategy, batch=batch),
        )
    return _Job(name=name, graph=graph, batch=batch, plans=plans)


def _on_links(jobs: Sequence[_Job], link: Link | None, text: str, steps: int, progress: Progress) -> list[TriedRemedy]:
    predicted = {job.name: _predicted(job, link, progress) for job in jobs}
    times = _measured(jobs, link, steps, progress)
    machine = f"{RANKS} ranks, " + ("free links" if link is None else f"links of {text}")
    rows = []
    for job in jobs:
        for baseline, remedy, key, base in _cases():
            rows.append(
                TriedRemedy(
                    machine=machine,
                    network=job.name,
                    batch=job.batch // RANKS,
                    baseline=baseline,
                    remedy=remedy,
                    times_s=times[job.name][key],
                    base_times_s=times[job.name][base],
                    predicted_s=predicted[job.name][key],
                )
            )
    return rows


def _key(baseline: Baseline, remedies: Remedies) -> str:
    """Cases that are the same have the same: plans split the batch with the remedy and without."""
    if baseline == "ddp":
        remedies = Remedies(split=True, preload=remedies.preload, compress=remedies.compress)
    return f"{baseline}, {remedies.name}"


def _cases() -> list[tuple[str, str, str, str]]:
    """Baseline and remedy as rows name them, the key of the case, and of what it is held against."""
    star, ddp = _key("replicate-and-scatter", NONE), _key("ddp", NONE)
    return [
        *(("replicate-and-scatter", one.name, _key("replicate-and-scatter", one), star) for one in ABLATION),
        ("replicate-and-scatter", "ddp", ddp, star),
        ("replicate-and-scatter", "ddp, all", _key("ddp", ALL), star),
        *(("ddp", one.name, _key("ddp", one), ddp) for one in ABLATION),
    ]


def _predicted(job: _Job, link: Link | None, progress: Progress) -> dict[str, float | None]:
    from trimaran.measure import measure_costs
    from trimaran.session.reproduce_feeding_jobs import fed_job
    from trimaran.session.reproduce_feeding_prediction import BF16, predict_plan, predict_star

    table = measure_costs(
        functools.partial(fed_job, job.name),
        job.graph,
        ranks=RANKS,
        batches={job.batch // RANKS},
        link=link,
        samples=True,
        compressions=(BF16,),
        progress=progress,
    )
    cluster = replace(detect_cluster(RANKS), link=link)
    cores = detect_processor().cores
    found: dict[str, float | None] = {}
    for remedies in ABLATION:
        found[_key("replicate-and-scatter", remedies)] = predict_star(
            remedies, job.graph, table, batch=job.batch, ranks=RANKS, feeding=AHEAD, cores=cores
        )
        strategy, *_ = job.plans[remedies]
        found[_key("ddp", remedies)] = predict_plan(strategy, job.graph, table, cluster, batch=job.batch)
    return found


def _measured(
    jobs: Sequence[_Job], link: Link | None, steps: int, progress: Progress
) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
    from trimaran.runtime.ranks import launch
    from trimaran.session.reproduce_feeding_rank import TriedCase, try_remedies

    def on_event(rank: int, event: Mapping[str, object]) -> None:
        if "measuring" in event:
            progress(str(event["measuring"]), int(str(event["done"])), int(str(event["total"])))

    wanted: dict[str, list[TriedCase]] = {}
    for job in jobs:
        found = {
            _key("ddp", remedies): TriedCase(
                key=_key("ddp", remedies), strategy=strategy, programs=(program, evaluation)
            )
            for remedies, (strategy, program, evaluation) in job.plans.items()
        }
        stars = [
            TriedCase(key=_key("replicate-and-scatter", one), remedies=one, workers=AHEAD.workers) for one in ABLATION
        ]
        wanted[job.name] = [*stars, *found.values()]
    ranks = launch(try_remedies, (wanted, steps), ranks=RANKS, on_event=on_event, device="cpu", link=link)
    of_first: Mapping[str, Mapping[str, tuple[float, ...]]] = ranks[0]
    return of_first
