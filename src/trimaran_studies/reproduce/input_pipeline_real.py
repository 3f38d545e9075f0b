"""The three remedies tried on this machine: two ranks, links that are free or held to a rate, two jobs.

job × links ─▶ what operations, samples, messages take ─▶ predicted
            └▶ each case run for a few seconds         ─▶ measured

What is expected of the three remedies on the machine at hand, from costs that were measured before.

Plans are simulated. The star is the closed form of `costs.replicate`, whose links are the links between the ranks. Its
passages are collectives, which go through sockets also where messages of plans go through memory: with n = 2 each takes
what a broadcast takes. Beside them stand copies in the host's memory, as long each as packing a message:

    weights     packed on rank 0, broadcast, unpacked on the others
    gradients   packed, gathered, added, unpacked on rank 0

There is no copy from a host, and no interpreter that threads share. Where workers load ahead, no step is shorter than
what they and the cores take (`costs.fed_step`).
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
from trimaran.graph.types import Graph
from trimaran.machine.detect import detect_machine, detect_processor
from trimaran.machine.types import Allocation, Link
from trimaran.planner.candidates import evaluate
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
    Passages,
    Remedies,
    ReplicaWork,
    chunks,
    replicated_step,
)

# ---------------------------------------------------------------------------------------------------------------------
# The three remedies tried on the machine at hand, for people and programs: predicted and measured


_DRAWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """One job on one kind of links with some remedies.

    Attributes:
        machine: with what its links are held to, such as "2 ranks, 200 Mb/s"
        network: the job
        batch: samples of a rank
        baseline: what the saving is held against
        remedy: as in `report.reproduction.feeding`
        times_s: of its steps [s]
        base_times_s: of the steps of the baseline [s]
        predicted_s: of a step [s]; None where nobody measured what it rests on
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
        """Mean of the steps [s]; what workers hand over comes in bursts, of which a median shows one side."""
        return fmean(self.times_s)

    @property
    def saved(self) -> float:
        """Share of the baseline's mean step that is saved."""
        return 1.0 - self.step_s / fmean(self.base_times_s)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % of it, by drawing steps again and again."""
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
        """Predicted by measured step, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFeeding:
    """All that was tried.

    Attributes:
        ranks: processes
        rows: by links, job, baseline and remedy
        notes: what the reader should know
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
        found: all that was tried
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
            "" if row.remedy == "none" else f"{100 * low:.0f} to {100 * high:.0f}",
            "" if row.predicted_s is None else f"{1e3 * row.predicted_s:.1f}",
            "" if row.error is None else f"{100 * row.error:+.0f} %",
        )
        before = row.baseline
    return table


def tried_lines(found: TriedFeeding) -> list[str]:
    """How the figures are meant."""
    return [
        "replicate-and-scatter: rank 0 loads the batch, scatters it, sends the weights out, sums the gradients and "
        "updates, as DataParallel does by its first GPU. ddp: a plan of replicas, each with its own share of the data.",
        "pre-load: workers beside the training. compress: 16-bit weights and gradients on the wire, with error "
        "feedback. error: predicted / measured - 1; means of steps.",
        *found.notes,
    ]


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
    return Strategy(
        dp=RANKS,
        feeding=AHEAD if remedies.preload else IN_LINE,
        compression=BF16 if remedies.compress else None,
    )


def _prepared(name: str) -> _Job:
    from trimaran.graph.capture.capture import capture
    from trimaran_studies.reproduce.input_pipeline_rank import fed_job

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
    from trimaran.measure.costs import measure_costs
    from trimaran_studies.reproduce.input_pipeline_rank import fed_job

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
    cluster = detect_machine(RANKS).rate_limited(link).allocate()
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
    from trimaran.runtime.launch.ranks import launch
    from trimaran_studies.reproduce.input_pipeline_rank import TriedCase, try_remedies

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


BF16 = Compression(method="bf16")
"""What "compress" stands for here."""

_BROADCAST = CurveKey(str(Kind.BROADCAST), 2)


def predict_plan(
    strategy: Strategy, graph: Graph, table: CostTable, cluster: Allocation, *, batch: int
) -> float | None:
    """The step of a plan [s]; None where nobody measured what it needs.

    Args:
        strategy: of replicas
        graph: the job's
        table: what was measured
        cluster: the ranks
        batch: samples of all ranks
    """
    try:
        return evaluate(strategy, graph, table, cluster, batch=batch).step_time_s
    except InputError:
        return None


def predict_star(
    remedies: Remedies, graph: Graph, table: CostTable, *, batch: int, ranks: int, feeding: Feeding, cores: int
) -> float | None:
    """The step of the star [s]; None where nobody measured what it needs.

    Args:
        remedies: switched on
        graph: the job's
        table: what was measured
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
    passages = _passages(graph, table, step.samples, share=share, ranks=ranks)
    alone = replicated_step(work, passages, devices=ranks, remedies=remedies, workers=max(1, feeding.workers))
    if not remedies.preload:
        return alone.step_s
    return _fed(
        alone.step_s - alone.feed_s, work, step.samples, remedies, feeding, share=share, ranks=ranks, cores=cores
    )


def _fed(
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
    """A step whose batches workers make ahead [s]."""
    microbatch, readers = (share, ranks) if remedies.split else (ranks * share, 1)
    taken_s = load(samples, feeding, microbatch=microbatch).seconds
    busy_s = ranks * (work.forward_s + work.backward_s) + work.update_s + readers * taken_s
    least = period(samples, feeding, microbatch=microbatch, microbatches=1, readers=readers, busy_s=busy_s, cores=cores)
    return max(rest_s + taken_s, least.seconds)


def _update_s(graph: Graph, step: StepCosts) -> float:
    trained = [parameter for parameter in graph.parameters if parameter.trainable]
    return step.update.at(tensors=len(trained), nbytes=sum(one.nbytes for one in trained)).seconds


def _passages(graph: Graph, table: CostTable, samples: SampleCosts, *, share: int, ranks: int) -> Passages:
    sockets, packing = table.curves[_BROADCAST], table.curves.get(CurveKey(HOST_SEND, 2))
    trained = [parameter.nbytes for parameter in graph.parameters if parameter.trainable]

    def sent_s(sizes: Iterable[int], factor: float = 1.0) -> float:
        """To every other rank, a chunk after the other [s]."""
        return (ranks - 1) * sum(at_size(sockets, max(1, round(factor * size))).seconds for size in sizes)

    def copied_s(sizes: Iterable[int]) -> float:
        """Packed, unpacked or added once; nothing where a rank's own thread does not do it [s]."""
        return sum(at_size(packing, size).seconds for size in sizes) if packing else 0.0

    parts = chunks(trained)
    coding_s = sum(
        2 * at_size(table.curves[key], sum(trained)).seconds for key in coding_keys(BF16) if key in table.curves
    )
    return Passages(
        copies=BatchCopies(),
        scatter_s=sent_s([share * samples.sample_bytes]),
        weights_s=2 * copied_s(parts) + sent_s(parts),
        gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts),
        compressed_weights_s=2 * copied_s(parts) + sent_s(parts, HALF),
        compressed_gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts, HALF),
        coding_s=coding_s,
    )
