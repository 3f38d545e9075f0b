"""Runs the three remedies on this machine: two ranks, free or rate-limited links, two jobs.

job × links ─▶ costs of operations, samples, messages ─▶ predicted
            └▶ each case runs for a few seconds       ─▶ measured

The prediction uses costs that are measured before. Plans are simulated. The star is priced by the formulas of
`torch_data_parallel`, whose links are the links between the ranks. Its transfers are collectives through sockets, also
where messages of plans go through memory: with n = 2 each takes the time of a broadcast. In addition there are copies
in the host's memory, each of which takes the time of packing a message:

    weights     packed on rank 0, broadcast, unpacked on the others
    gradients   packed, gathered, added, unpacked on rank 0

There is no copy from a host to a device, and no interpreter that threads share. Where workers load ahead, their time
and the time of the cores are lower bounds on step time.
"""

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_span
from trimaran.graph.types import Graph
from trimaran.machine.detect import detect_machine, detect_processor
from trimaran.machine.types import Link
from trimaran.planner.candidates import PricedJob, evaluate
from trimaran.planning.requests import parse_link
from trimaran.pricing.curves import at_batch, at_size
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.input_pipeline import load, period
from trimaran.pricing.tables import CostTable, CurveKey, SampleCosts, StepCosts, WholeKey
from trimaran.pricing.transfers import HOST_SEND
from trimaran.program.gradients import Compression
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import IN_LINE, Feeding, Strategy
from trimaran.program.types import Kind, Program
from trimaran.report.tables import add_figures, add_words, frame_table
from trimaran_studies.reproduce.torch_data_parallel import (
    ABLATION,
    ALL,
    HALF,
    NONE,
    Baseline,
    BatchCopies,
    Remedies,
    ReplicaWork,
    Transfers,
    chunks,
    replicated_step,
)

# ---------------------------------------------------------------------------------------------------------------------
# Tables and JSON of the remedies on this machine: predicted and measured


_DRAWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """One job on one kind of links with some remedies.

    Attributes:
        machine: with the rate limit of its links, such as "2 ranks, 200 Mb/s"
        network: the job
        batch: samples of a rank
        baseline: that the saving is relative to
        remedy: as in `FeedingRow`
        times_s: of its steps [s]
        base_times_s: of the steps of the baseline [s]
        predicted_s: of a step [s]; None where there is no measured cost for it
    """

    machine: str
    network: str
    batch: int
    baseline: str
    remedy: str
    times_s: tuple[float, ...]
    base_times_s: tuple[float, ...]
    predicted_s: float | None

    @property
    def step_s(self) -> float:
        """Mean of the steps [s]; workers deliver batches in bursts, so a median would show only one kind of step."""
        return fmean(self.times_s)

    @property
    def saved(self) -> float:
        """Share of the baseline's mean step that is saved."""
        return 1.0 - self.step_s / fmean(self.base_times_s)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the saving, by bootstrap."""
        if self.times_s == self.base_times_s:
            return 0.0, 0.0
        draw = random.Random(0)
        found = sorted(
            1.0
            - fmean(draw.choices(self.times_s, k=len(self.times_s)))
            / fmean(draw.choices(self.base_times_s, k=len(self.base_times_s)))
            for _ in range(_DRAWS)
        )
        return found[_DRAWS // 20], found[-_DRAWS // 20 - 1]

    @property
    def error(self) -> float | None:
        """Predicted by measured step, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFeeding:
    """All cases that ran.

    Attributes:
        ranks: processes
        rows: by links, job, baseline and remedy
        notes: for the reader
    """

    ranks: int
    rows: tuple[TriedRemedy, ...]
    notes: tuple[str, ...] = ()


def tried_document(found: TriedFeeding) -> dict[str, Any]:
    """All figures as plain data; savings are shares, `error` is predicted / measured - 1."""
    return {
        "ranks": found.ranks,
        "rows": [
            {
                "machine": row.machine,
                "network": row.network,
                "local_batch_size": row.batch,
                "baseline": row.baseline,
                "remedy": row.remedy,
                "step_time_s": row.step_s,
                "steps": len(row.times_s),
                "saved": row.saved,
                "interval": list(row.interval),
                "predicted_step_time_s": row.predicted_s,
                "error": row.error,
                "basis": "measured",
            }
            for row in found.rows
        ],
        "notes": list(found.notes),
    }


def tried_tables(found: TriedFeeding) -> list[Table]:
    """One table for each job on each kind of links.

    Args:
        found: all cases
    """
    groups: dict[tuple[str, str], list[TriedRemedy]] = {}
    for row in found.rows:
        groups.setdefault((row.network, row.machine), []).append(row)
    return [_tried_table(rows) for rows in groups.values()]


def _tried_table(rows: Sequence[TriedRemedy]) -> Table:
    first = rows[0]
    table = frame_table(f"{first.network} on {first.machine}, {first.batch} samples a rank")
    add_words(table, "against", "remedy", no_wrap=True)
    add_figures(table, "step\nms", "saved\n%", "90 %\n", "predicted\nms", "error\n")
    before = ""
    for row in rows:
        low, high = row.interval
        table.add_row(
            "" if row.baseline == before else row.baseline,
            row.remedy,
            f"{1e3 * row.step_s:.1f}",
            "" if row.remedy == "none" else f"{100 * row.saved:.0f}",
            "" if row.remedy == "none" else format_span(f"{100 * low:.0f}", f"{100 * high:.0f}"),
            "" if row.predicted_s is None else f"{1e3 * row.predicted_s:.1f}",
            "" if row.error is None else f"{100 * row.error:+.0f} %",
        )
        before = row.baseline
    return table


def tried_lines(found: TriedFeeding) -> list[str]:
    """How to read the figures."""
    return [
        "replicate-and-scatter: rank 0 loads the batch, scatters it, sends the weights out, sums the gradients and "
        "updates, as DataParallel does with its first GPU. ddp: a plan of replicas, each with its share of the data.",
        "pre-load: workers load during the step. compress: weights and gradients are sent as 16 bits, with error "
        "feedback. error: predicted / measured - 1; means of steps.",
        *found.notes,
    ]


RANKS = 2
LINKS = ("free", "1Gb/s", "200Mb/s")
STEPS = 18
"""Timed steps of each case; fewer where steps are long."""

AHEAD = Feeding(workers=2)
"""The input pipeline of "pre-load"."""

JOBS = ("reads", "wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job and its programs.

    Attributes:
        name: of the job
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
    """Predict and run every case of every job on every kind of links.

    Args:
        jobs: some of them, such as "reads"; None: both
        links: rate limits of the links; "free": none
        steps: timed steps; fewer where steps are long
        progress: called with the current item

    Raises:
        InputError: an unknown job, or too few steps
        EnvironmentProblem: none of the rate limits can be set
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
    """The plan of two replicas with some of the remedies; replicas always split the batch.

    Args:
        remedies: enabled
    """
    return Strategy(
        dp=RANKS,
        feeding=AHEAD if remedies.preload else IN_LINE,
        compression=BF16 if remedies.compress else None,
    )


def _prepared(name: str) -> _Job:
    from trimaran.graph.capture.capture import capture
    from trimaran_studies.reproduce.input_pipeline_rank import tried_job

    job = tried_job(name)
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
    """The key of a case; plans always split the batch, so equal cases have equal keys."""
    if baseline == "ddp":
        remedies = Remedies(split=True, preload=remedies.preload, compress=remedies.compress)
    return f"{baseline}, {remedies.name}"


def _cases() -> list[tuple[str, str, str, str]]:
    """Names of baseline and remedy, the key of the case, and the key of the case that it is compared with."""
    star, ddp = _key("replicate-and-scatter", NONE), _key("ddp", NONE)
    return [
        *(("replicate-and-scatter", one.name, _key("replicate-and-scatter", one), star) for one in ABLATION),
        ("replicate-and-scatter", "ddp", ddp, star),
        ("replicate-and-scatter", "ddp, all", _key("ddp", ALL), star),
        *(("ddp", one.name, _key("ddp", one), ddp) for one in ABLATION),
    ]


def _predicted(job: _Job, link: Link | None, progress: Progress) -> dict[str, float | None]:
    from trimaran.measure.costs import measure_costs
    from trimaran_studies.reproduce.input_pipeline_rank import tried_job

    table = measure_costs(
        functools.partial(tried_job, job.name),
        job.graph,
        ranks=RANKS,
        batches={job.batch // RANKS},
        link=link,
        samples=True,
        compressions=(BF16,),
        progress=progress,
    )
    cluster = detect_machine(RANKS).rate_limited(link).allocate()
    priced = PricedJob(graph=job.graph, table=table, cluster=cluster, batch=job.batch)
    cores = detect_processor().cores
    found: dict[str, float | None] = {}
    for remedies in ABLATION:
        found[_key("replicate-and-scatter", remedies)] = predict_star(
            remedies, job.graph, table, batch=job.batch, ranks=RANKS, feeding=AHEAD, cores=cores
        )
        strategy, *_ = job.plans[remedies]
        found[_key("ddp", remedies)] = predict_plan(strategy, priced)
    return found


def _measured(
    jobs: Sequence[_Job], link: Link | None, steps: int, progress: Progress
) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
    from trimaran.emulation.links import launch_on
    from trimaran.measure.costs import shown_by
    from trimaran_studies.reproduce.input_pipeline_rank import TriedCase, try_remedies

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
    ranks = launch_on(link, try_remedies, (wanted, steps), ranks=RANKS, on_event=shown_by(progress), device="cpu")
    of_first: Mapping[str, Mapping[str, tuple[float, ...]]] = ranks[0]
    return of_first


BF16 = Compression(method="bf16")
"""The compression of "compress"."""

_BROADCAST = CurveKey(str(Kind.BROADCAST), 2)


def predict_plan(strategy: Strategy, job: PricedJob) -> float | None:
    """The step of a plan [s]; None where a cost that it needs is not measured.

    Args:
        strategy: of replicas
        job: with measured costs, on its ranks
    """
    try:
        return evaluate(strategy, job).step_time_s
    except InputError:
        return None


def predict_star(
    remedies: Remedies, graph: Graph, table: CostTable, *, batch: int, ranks: int, feeding: Feeding, cores: int
) -> float | None:
    """The step of the star [s]; None where a cost that it needs is not measured.

    Args:
        remedies: enabled
        graph: the job's
        table: measured costs
        batch: samples of all ranks
        ranks: n
        feeding: how batches are loaded ahead, where they are
        cores: that ranks and workers share
    """
    step = table.steps.get(graph.digest)
    whole = table.wholes.get(WholeKey(graph.digest, "module", "eager"))
    if step is None or step.samples is None or not whole or _BROADCAST not in table.curves:
        return None
    share = batch // ranks
    work = ReplicaWork(
        load_s=load(step.samples, IN_LINE, microbatch=share).seconds,
        forward_s=at_batch({size: cost.forward for size, cost in whole.items()}, share).seconds,
        backward_s=at_batch({size: cost.backward for size, cost in whole.items()}, share).seconds,
        update_s=_update_s(graph, step),
    )
    transfers = _transfers(graph, table, step.samples, share=share, ranks=ranks)
    alone = replicated_step(work, transfers, devices=ranks, remedies=remedies, workers=max(1, feeding.workers))
    if not remedies.preload:
        return alone.step_s
    return _loaded_ahead_s(
        alone.step_s - alone.feed_s, work, step.samples, remedies, feeding, share=share, ranks=ranks, cores=cores
    )


def _loaded_ahead_s(
    rest_s: float,
    work: ReplicaWork,
    samples: SampleCosts,
    remedies: Remedies,
    feeding: Feeding,
    *,
    share: int,
    ranks: int,
    cores: int,
) -> float:
    """A step whose batches workers load ahead [s]."""
    microbatch, readers = (share, ranks) if remedies.split else (ranks * share, 1)
    taken_s = load(samples, feeding, microbatch=microbatch).seconds
    busy_s = ranks * (work.forward_s + work.backward_s) + work.update_s + readers * taken_s
    least = period(samples, feeding, microbatch=microbatch, microbatches=1, readers=readers, busy_s=busy_s, cores=cores)
    return max(rest_s + taken_s, least.seconds)


def _update_s(graph: Graph, step: StepCosts) -> float:
    trained = [parameter for parameter in graph.parameters if parameter.trainable]
    return step.update.at(tensors=len(trained), nbytes=sum(one.nbytes for one in trained)).seconds


def _transfers(graph: Graph, table: CostTable, samples: SampleCosts, *, share: int, ranks: int) -> Transfers:
    sockets, packing = table.curves[_BROADCAST], table.curves.get(CurveKey(HOST_SEND, 2))
    trained = [parameter.nbytes for parameter in graph.parameters if parameter.trainable]

    def sent_s(sizes: Iterable[int], factor: float = 1.0) -> float:
        """Time to send to every other rank, one chunk after the other [s]."""
        return (ranks - 1) * sum(at_size(sockets, max(1, round(factor * size))).seconds for size in sizes)

    def copied_s(sizes: Iterable[int]) -> float:
        """Time of packing, unpacking or adding once; 0 where a rank's main thread does not do it [s]."""
        return sum(at_size(packing, size).seconds for size in sizes) if packing else 0.0

    parts = chunks(trained)
    coding_s = sum(
        2 * at_size(table.curves[key], sum(trained)).seconds for key in coding_keys(BF16) if key in table.curves
    )
    return Transfers(
        copies=BatchCopies(),
        scatter_s=sent_s([share * samples.sample_bytes]),
        weights_s=2 * copied_s(parts) + sent_s(parts),
        gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts),
        compressed_weights_s=2 * copied_s(parts) + sent_s(parts, HALF),
        compressed_gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts, HALF),
        coding_s=coding_s,
    )
