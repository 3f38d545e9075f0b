"""`trimaran observe --stalls`: a job is run cold, cached and on synthetic data, and its step split by its waits.

parent                                          each rank
──────                                          ─────────
the job's graph; plain replicas, or a plan
launch                                    ──▶   the same job; alternating blocks of the three ways
timelines, loadings, times                ◀──   rank 0 gathers what was recorded
split, limiter, remedies, report
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.features.diagnose.remedies import COMPUTE, LIMIT_GAIN, advise_job
from trimaran.graph.types import Graph, ParameterUse, parameter_use
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import spare_host_bytes
from trimaran.machine.types import Allocation
from trimaran.measure.findings import sample_costs
from trimaran.measure.observe.analysis import TimeFindings, analyse_steps, measure_handover
from trimaran.measure.observe.records import COUNTS, KINDS, ProcessRecord, figure_interval
from trimaran.measure.stalls.findings import StallFindings, WayFindings, analyse_stalls
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.steps import CLASSES, StepSplit, Way
from trimaran.memory_budget import planned_memory
from trimaran.planner.input_pipeline import MEMORY_SHARE, WORKER_BYTES
from trimaran.planner.pins import MOST_WORKERS
from trimaran.planning.loaded_plans import as_planned
from trimaran.planning.preparation import cluster_environment, prepare
from trimaran.planning.requests import EVERYTHING, PlanRequest
from trimaran.pricing.curves import at_size
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.plan_file import check_has_program, check_plan, plan_program, read_plan
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.strategy import Feeding, Strategy, needs_graph
from trimaran.program.types import Kind, Program
from trimaran.report.stalls import RankSplit, StallReport, WaySplit, Without

if TYPE_CHECKING:
    from trimaran.launch.world import World
    from trimaran.measure.stalls.rank import RankRun


# ---------------------------------------------------------------------------------------------------------------------
# What a stall analysis runs: plain replicas on all devices, or the strategy of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StallTask:
    """The run of a stall analysis.

    Attributes:
        source: where the job comes from
        job: the job
        graph: its dataflow graph
        cluster: the devices, those of the strategy first
        strategy: what is run, its feeding as asked for
        program: of a step
        evaluation: of the evaluation of a batch
    """

    source: JobSource
    job: Job
    graph: Graph
    cluster: Allocation
    strategy: Strategy
    program: Program
    evaluation: Program


def prepare_task(
    source: JobSource,
    request: PlanRequest,
    *,
    plan: Path | None,
    workers: int | None,
    progress: Progress = ignore_progress,
) -> StallTask:
    """The run for a request.

    Args:
        source: where the job comes from
        request: how many devices, with which links
        plan: file of the plan that is run; None: plain replicas on all devices
        workers: of each rank that load; None: as the plan says, without one none
        progress: told what is being done

    Raises:
        InputError: the job, its data or the plan is wrong, or more devices than there are
    """
    found = None if plan is None else read_plan(plan)
    if found is not None:
        check_has_program(found, source=str(plan))
        source, request = as_planned(found, source, request)
    prepared = prepare(source, request, progress)
    job, graph, cluster = prepared.job, prepared.graph, prepared.cluster
    batch = job.global_batch_size
    if found is None:
        if batch < cluster.size:
            raise InputError(
                f"a global batch of {batch} samples is too small for {cluster.size} devices: --devices {batch}, or a "
                "larger --batch",
                batch=batch,
                devices=cluster.size,
            )
        strategy = Strategy(dp=cluster.size)
        program = lower(graph, strategy, batch=_divisible(batch, strategy), clip=job.clip_norm is not None)
    else:
        check_plan(
            found,
            graph_digest=graph.digest,
            world_size=cluster.size,
            memory_bytes=list(cluster.memory_bytes),
            global_batch_size=batch,
        )
        strategy, program = found.strategy, plan_program(found, source=str(plan))
        check_against_graph(program, graph, strategy, batch=batch)
    if workers is not None:
        strategy = replace(strategy, feeding=replace(strategy.feeding, workers=workers))
    return StallTask(
        source=source,
        job=job,
        graph=graph,
        cluster=cluster,
        strategy=strategy,
        program=program,
        evaluation=lower_evaluation(graph, strategy, batch=_divisible(batch, strategy)),
    )


def summed_bytes(strategy: Strategy, program: Program) -> int:
    """Size of the gradients that all ranks add up in buckets [bytes]; 0 where that is not how they are exchanged.

    Args:
        strategy: what is run
        program: of a step
    """
    if strategy.dp < 2 or strategy.dp != strategy.devices or strategy.zero or strategy.sync != "all-reduce":
        return 0
    return sum(
        instruction.nbytes
        for instruction in program.ranks[0]
        if instruction.kind is Kind.ALL_REDUCE and instruction.label.startswith("b")
    )


def _divisible(batch: int, strategy: Strategy) -> int:
    """A batch for which a program is lowered: it must divide evenly, and the runtime takes any."""
    parts = strategy.dp * strategy.microbatches
    return -(-batch // parts) * parts


# ---------------------------------------------------------------------------------------------------------------------
# From the results of ranks to the report on stalls


UNATTRIBUTED = 0.03
"""Share of the step, of either sign, above which what belongs to no class is spoken of."""

_NO_CLASS = "unattributed"

# Share of a cached step that cold ones must wait longer for their data to be called slower.
_NOTABLE = 0.005


def report_stalls(task: StallTask, runs: Sequence[RankRun]) -> StallReport:
    """The report on the results of the ranks.

    Args:
        task: what was run
        runs: of each rank

    Raises:
        ExecutionError: no step was recorded
    """
    device = task.cluster.devices[0]
    findings = analyse_stalls(task.program, runs, host_blocks=device.kind == "cpu")
    memory_bytes = spare_host_bytes()
    way = choose_way(findings, memory_bytes=memory_bytes)
    own = findings.ways[way]
    limiter = name_stall(own.mean)
    worth, not_worth = advise_job(
        as_observed(task, findings, way, memory_bytes=memory_bytes),
        handover=measure_handover,
        whole=task.strategy.pp * task.strategy.tp == 1,
    )
    return StallReport(
        job=task.job.name,
        strategy=task.strategy.name,
        feeding=describe_feeding(task.strategy.feeding),
        ranks=len(runs),
        devices=device.name,
        global_batch_size=task.job.global_batch_size,
        way=way,
        ways={name: _way(found) for name, found in findings.ways.items()},
        by_rank=[
            RankSplit(rank=rank, step_time_s=split.step_s, shares=asdict(split)) for rank, split in enumerate(own.ranks)
        ],
        limiter=limiter,
        without=_without(own.mean),
        advice=worth,
        not_worth=not_worth,
        notes=list(describe_limits(task.strategy, findings, way)),
        environment=cluster_environment(task.cluster),
    )


_STALLS = tuple(name for name in CLASSES if name not in (COMPUTE, _NO_CLASS))


def name_stall(split: StepSplit) -> str:
    """The largest class other than compute, where it takes 5 % of the step; else "compute".

    Args:
        split: of a step

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> name_stall(StepSplit(**parts | {"compute": 1.0, "fetch": 0.5, "communication": 0.1}))
        'fetch'
    """
    largest = max(_STALLS, key=lambda name: float(getattr(split, name)))
    return largest if getattr(split, largest) >= LIMIT_GAIN * split.step_s else COMPUTE


def as_observed(task: StallTask, findings: StallFindings, way: Way, *, memory_bytes: int) -> TimeFindings:
    """Steps of a job, with the parts of those of a script, and read by the same analysis.

    Args:
        task: what was run
        findings: what was measured
        way: the way that counts; its blocks of ordinary length are taken
        memory_bytes: of the host that is free [bytes]
    """
    strategy, own, runs = task.strategy, findings.ways[way], findings.runs
    each = max(1, task.job.global_batch_size // strategy.dp)
    facts = _facts_of(task, findings, own, each=each, memory_bytes=memory_bytes)
    numbers = [number for block in own.calm for number in block]
    names = ["step", "cpu_ns", *(f"{kind}_ns" for kind in KINDS), *COUNTS]
    records = []
    for rank, (run, splits) in enumerate(zip(runs, findings.splits, strict=True)):
        rows, busy_s = [dict.fromkeys(names, 0) | {"step": -1}], 0.0
        for step in run.steps:
            if step.number not in numbers:
                continue
            split = splits[step.number]
            update_s, busy_s = min(findings.update_s, split.compute), busy_s + step.busy_s
            seconds = {
                "load": split.loading_s,
                "load_cpu": split.prepare,
                "forward": split.compute - update_s,
                "exposed": split.communication + split.synchronization,
                "update": update_s,
                "other": split.unattributed,
                "cpu": busy_s,
            }
            counts = {"step": step.number, "backwards": 1, "samples": each, "batches_loaded": strategy.microbatches}
            times = {f"{name}_ns": round(1e9 * seconds) for name, seconds in seconds.items()}
            rows.append(dict.fromkeys(names, 0) | times | counts)
        records.append(
            ProcessRecord(
                rank=rank,
                world=len(runs),
                steps=len(rows) - 1,
                facts=facts,
                columns={name: place for place, name in enumerate(names)},
                rows=np.array([[row[name] for name in names] for row in rows], dtype=np.int64),
                again=None,
            )
        )
    ends = list(itertools.accumulate(map(len, own.calm)))
    return analyse_steps(records, np.array(numbers, dtype=np.int64), ends=ends)


def _facts_of(
    task: StallTask, findings: StallFindings, own: WayFindings, *, each: int, memory_bytes: int
) -> Mapping[str, object]:
    """What `observe` knows of a process, of a rank of a job; `each`: samples of its step."""
    runs, feeding = findings.runs, task.strategy.feeding
    sampled = [run.sampled for run in runs if run.reads and run.sampled is not None]
    samples = sample_costs(sampled, how="samples") if sampled else None
    readers, exchange, halves = len(sampled) or 1, runs[0].exchange, runs[0].halves
    nbytes, ddp = summed_bytes(task.strategy, task.program), None
    if exchange:
        whole_s = at_size(exchange, nbytes).seconds
        spared_s = whole_s - at_size(halves, nbytes // 2).seconds
        coded = "" if task.strategy.compression is None else task.strategy.compression.name
        ddp = {"comm_hook": coded, "exchange_ns": 1e9 * whole_s, "spared_s": max(0.0, spared_s)}
    return {
        "host": "",
        "cores": usable_cores(),
        "compiled": False,
        "other_optimizers": False,
        "batch_nbytes": each * max((one.sample_bytes for one in sampled), default=0),
        "model": {"device": task.cluster.devices[0].kind, "gradient_dtypes": ["float32"], "ddp": ddp},
        "loader": {
            "workers": feeding.workers,
            "batch_s": own.read_s + own.prepared_s,
            "most": int(MEMORY_SHARE * memory_bytes // (WORKER_BYTES * readers)),
        },
        "samples": {
            "kept": feeding.cached or samples is None,
            "count": 0 if samples is None else samples.samples,
            "nbytes": 0 if samples is None else samples.stored_bytes * samples.samples,
            "repeat": samples is not None and samples.repeats,
            "recall_s": 0.0 if samples is None else each * samples.recall.seconds,
            "free": memory_bytes,
        },
    }


def describe_feeding(feeding: Feeding) -> str:
    """How batches are loaded, in words.

    Args:
        feeding: of a strategy

    Example:
        >>> describe_feeding(Feeding(workers=2, cached=True))
        '2 workers a rank, samples kept in memory'
    """
    text = "each rank's own thread loads"
    if feeding.workers:
        text = f"{feeding.workers} {'worker' if feeding.workers == 1 else 'workers'} a rank"
    return f"{text}, samples kept in memory" if feeding.cached else text


def choose_way(findings: StallFindings, *, memory_bytes: int) -> Way:
    """The way that most steps of a training go: cached, unless the host's memory cannot hold what is read of files.

    Args:
        findings: what was measured
        memory_bytes: of the host that is free [bytes]
    """
    if "cached" not in findings.ways:
        return next(iter(findings.ways))
    stored = max(run.forgotten.nbytes for run in findings.runs)
    return "cold" if stored > memory_bytes and "cold" in findings.ways else "cached"


def usable_cores() -> int:
    """Cores that this process may use."""
    from trimaran.machine.detect import detect_processor

    return detect_processor().cores


def _way(found: WayFindings) -> WaySplit:
    step_s, low, high = figure_interval(lambda split: split.step_s, found.mean, found.blocks)
    spreads = len(found.blocks) > 1
    return WaySplit(
        step_time_s=step_s,
        interval_s=(max(0.0, low), high) if spreads else None,
        shares=asdict(found.mean),
        share_intervals_s={name: _interval(name, found) for name in CLASSES} if spreads else None,
        steps=found.steps,
    )


def _interval(name: str, found: WayFindings) -> tuple[float, float]:
    value, low, high = figure_interval(lambda split: float(getattr(split, name)), found.mean, found.blocks)
    # What belongs to no class is a difference, and may be negative; what was measured is not.
    return (low if name == _NO_CLASS else min(value, max(0.0, low))), high


def _without(split: StepSplit) -> Mapping[str, Without]:
    found = {}
    for name in CLASSES:
        gone_s = getattr(split, name)
        left_s = split.step_s - gone_s
        if name != COMPUTE and gone_s >= 0 and left_s > 0:
            found[name] = Without(step_time_s=left_s, speedup=split.step_s / left_s)
    return found


def describe_limits(strategy: Strategy, findings: StallFindings, way: Way) -> Iterator[str]:
    """Limits of the figures, one sentence or two each.

    Args:
        strategy: what was run
        findings: what was measured
        way: the way that counts
    """
    cold, cached = findings.ways.get("cold"), findings.ways.get("cached")
    run = next((run for run in findings.runs if run.reads), findings.runs[0])
    if cold is not None and cached is not None:
        yield _of_cold(run, cold, cached)
        if cold.steps < cached.steps:
            yield (
                f"An epoch has only {format_count(run.samples, 'sample')}: {format_count(cold.steps, 'step')} were "
                f"cold, and {cached.steps} cached."
            )
    if cold is None and run.reads:
        yield "No step was cold: the only batch of an epoch is read before the first one that counts."
    yield from _of_no_class(findings.ways[way])
    if strategy.tp > 1 or strategy.shards or strategy.zero >= 2:
        yield "Communication inside operations (sharded tensors, sharded state) is under compute where it overlaps."
    if strategy.pp > 1:
        yield "Waiting for other stages of the pipeline is under synchronization."
    if strategy.memory_bytes is not None:
        yield "Offloading and recomputing are under compute."


def _of_no_class(own: WayFindings) -> Iterator[str]:
    """A note on time that belongs to no class, where it is surely much; one block makes nothing sure."""
    share, low, high = figure_interval(lambda split: split.unattributed / split.step_s, own.mean, own.blocks)
    if len(own.blocks) < 2 or max(low, -high) <= UNATTRIBUTED:
        return
    why = "it passes outside instructions, or in a load, and was not measured"
    if share < 0:
        why = "what was measured adds up to more than the step, as clocks disagree or spans overlap"
    interval = format_span(f"{100 * low:.1f}", f"{100 * high:.1f}")
    yield f"{100 * share:.1f} % of the step belong to no class (90 %: {interval} %): {why}."


def _of_cold(run: RankRun, cold: WayFindings, cached: WayFindings) -> str:
    costs = _more_of_cold(cold, cached)
    if not run.reads_files:
        return f"No file was seen to be read, so the page cache was not dropped. {costs}"
    forgotten = run.forgotten
    if forgotten.kept is None:
        kept = "does not say how much it kept"
    else:
        kept = f"kept {100 * forgotten.kept:.0f} %"
    return (
        f"The page cache was asked to drop {format_count(forgotten.files, 'file')} ({format_bytes(forgotten.nbytes)}) "
        f"before each cold block, and {kept}. {costs}"
    )


def _more_of_cold(cold: WayFindings, cached: WayFindings) -> str:
    """How much longer cold steps wait for their data, as far as the spread between blocks lets it be told."""
    if min(len(cold.blocks), len(cached.blocks)) < 2:
        return "One block of steps does not tell whether a cold step waits longer for its data than a cached one."
    (cold_s, *cold_ends), (cached_s, *cached_ends) = (
        figure_interval(lambda split: split.loading_s, way.mean, way.blocks) for way in (cold, cached)
    )
    more_s = cold_s - cached_s
    half_s = math.hypot(cold_ends[1] - cold_s, cached_ends[1] - cached_s)
    interval = f" (90 %: {format_span(format_seconds(more_s - half_s), format_seconds(more_s + half_s))})"
    if more_s - half_s > _NOTABLE * cached.mean.step_s:
        return f"A cold step waits {format_seconds(more_s)} longer for its data than a cached one{interval}."
    return f"A cold step waits no longer for its data than a cached one, as far as can be told{interval}."


def profile_stalls(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    plan: Path | None = None,
    steps: int | None = None,
    workers: int | None = None,
    progress: Progress = ignore_progress,
) -> StallReport:
    """Run a job and say what its steps wait for.

    Args:
        source: where the job comes from
        request: how many devices, with which links
        plan: file of the plan that is run; None: plain replicas on all devices
        steps: of each way; None: a few seconds of them
        workers: of each rank that load; None: as the plan says, without one none
        progress: told what is being done

    Raises:
        InputError: the job, its data or the plan is wrong, or more devices than there are
        EnvironmentProblem: links cannot be rate-limited here
        ExecutionError: a rank died, or the loss is not a number
    """
    from trimaran.emulation.links import launch_on

    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}", code="stalls.bad-steps", steps=steps)
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise InputError(
            f"workers must be 0 to {MOST_WORKERS}, got {workers}", code="stalls.bad-workers", workers=workers
        )
    task = prepare_task(source, request, plan=plan, workers=workers, progress=progress)
    gradient_bytes = summed_bytes(task.strategy, task.program)
    runs = launch_on(
        task.cluster.machine.node.rate_limit,
        stalls_rank,
        (
            task.source,
            task.strategy,
            task.program,
            task.evaluation,
            steps,
            gradient_bytes,
            parameter_use(task.graph),
        ),
        ranks=task.strategy.devices,
        on_event=_listener(progress),
    )
    return report_stalls(task, runs)


def stalls_rank(
    world: "World",
    source: JobSource | Job,
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    steps: int | None,
    gradient_bytes: int,
    use: ParameterUse | None = None,
    *,
    samples: bool = True,
) -> "RankRun":
    """One rank's part; started by `profile_stalls`.

    Args:
        world: this rank's
        source: where the job comes from, or the job
        strategy: what is run
        program: of a step
        evaluation: of the evaluation of a batch
        steps: as for `profile_stalls`
        gradient_bytes: as for `run_ways`
        use: which parameters get a gradient; None: as the executor finds
        samples: whether to look at samples one by one
    """
    from trimaran.graph.capture.capture import capture
    from trimaran.measure.stalls.rank import run_ways
    from trimaran.runtime.executor import Executor
    from trimaran.runtime.step.on_nan import on_nan_of_trials

    job = source.make() if isinstance(source, JobSource) else source
    captured = capture(job) if needs_graph(strategy) else None
    answer = on_nan_of_trials(strategy)
    executor = Executor(job, strategy, program, evaluation, world, capture=captured, use=use, on_nan=answer)
    with planned_memory(strategy, local_ranks=world.local_size, device=world.device):
        found = run_ways(
            executor,
            job,
            strategy,
            world,
            feeding=strategy.feeding,
            steps=steps,
            gradient_bytes=gradient_bytes,
            samples=samples,
        )
    executor.close()
    return found


def _listener(progress: Progress) -> Callable[[int, Mapping[str, object]], None]:
    def listen(rank: int, event: Mapping[str, object]) -> None:
        if "way" in event:
            done, total = int(str(event["round"])), int(str(event["rounds"]))
            progress(f"running: {event['way']}", done, total)

    return listen
