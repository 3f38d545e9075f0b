"""From what ranks brought home to the report on stalls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from trimaran.measure.observe.parts import figure_interval
from trimaran.measure.stalls.findings import StallFindings, WayFindings, analyse_stalls
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.splits import CLASSES, Split
from trimaran.measure.stalls.steps import Way
from trimaran.program.feeding import Feeding
from trimaran.program.types import Strategy
from trimaran.report.stalls import RankSplit, StallReport, WaySplit, Without
from trimaran.session.advice import COMPUTE
from trimaran.session.environment import cluster_environment
from trimaran.session.stalls.advice import advise_on_stalls, name_stall
from trimaran.session.stalls.evidence import Evidence
from trimaran.session.stalls.task import StallTask
from trimaran.session.virtual.device import spare_host_bytes
from trimaran.units import format_bytes, format_count, format_seconds

UNATTRIBUTED = 0.03
"""Share of the step, of either sign, above which what belongs to no class is spoken of."""

_NO_CLASS = "unattributed"

# Share of a cached step that cold ones must wait longer for their data to be called slower.
_NOTABLE = 0.005


def report_stalls(task: StallTask, runs: Sequence[RankRun]) -> StallReport:
    """The report on what the ranks brought home.

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
    worth, not_worth = advise_on_stalls(
        Evidence(
            findings=findings,
            way=way,
            strategy=task.strategy,
            graph=task.graph,
            samples=task.job.global_batch_size,
            memory_bytes=memory_bytes,
            cores=usable_cores(),
            on_device=device.kind != "cpu",
        )
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
    from trimaran.cluster.detect import detect_processor

    return detect_processor().cores


def _way(found: WayFindings) -> WaySplit:
    step_s, low, high = figure_interval(lambda split: split.step_s, found.mean, found.blocks)
    spreads = len(found.blocks) > 1
    return WaySplit(
        step_time_s=step_s,
        step_interval_s=(max(0.0, low), high) if spreads else None,
        shares=asdict(found.mean),
        share_intervals_s={name: _interval(name, found) for name in CLASSES} if spreads else None,
        steps=found.steps,
    )


def _interval(name: str, found: WayFindings) -> tuple[float, float]:
    value, low, high = figure_interval(lambda split: float(getattr(split, name)), found.mean, found.blocks)
    # What belongs to no class is a difference, and may be negative; what was measured is not.
    return (low if name == _NO_CLASS else min(value, max(0.0, low))), high


def _without(split: Split) -> Mapping[str, Without]:
    found = {}
    for name in CLASSES:
        gone_s = getattr(split, name)
        left_s = split.step_s - gone_s
        if name != COMPUTE and gone_s >= 0 and left_s > 0:
            found[name] = Without(step_time_s=left_s, speedup=split.step_s / left_s)
    return found


def describe_limits(strategy: Strategy, findings: StallFindings, way: Way) -> Iterator[str]:
    """What a person should know of how the figures came about, one sentence or two each.

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
        yield "What operations exchange inside (shared tensors, sharded state) is under compute where it is hidden."
    if strategy.pp > 1:
        yield "Waiting for one's turn in the pipeline is under synchronization."
    if strategy.memory_bytes is not None:
        yield "Offloading and recomputing are under compute."


def _of_no_class(own: WayFindings) -> Iterator[str]:
    """What is to be said of time that belongs to no class, where it is surely much; one block makes nothing sure."""
    share, low, high = figure_interval(lambda split: split.unattributed / split.step_s, own.mean, own.blocks)
    if len(own.blocks) < 2 or max(low, -high) <= UNATTRIBUTED:
        return
    why = "it passes outside instructions, or in a load, and nobody measured it"
    if share < 0:
        why = "what was measured adds up to more than the step, as clocks disagree or spans overlap"
    yield f"{100 * share:.1f} % of the step belong to no class (90 %: {100 * low:.1f} to {100 * high:.1f} %): {why}."


def _of_cold(run: RankRun, cold: WayFindings, cached: WayFindings) -> str:
    costs = _more_of_cold(cold, cached)
    if not run.reads_files:
        return f"No file was seen to be read, so the page cache was not dropped. {costs}"
    forgotten = run.forgotten
    if forgotten.kept is None:
        kept = "it does not say how much it kept"
    else:
        kept = f"it kept {100 * forgotten.kept:.0f} %"
    return (
        f"The host was asked to forget {format_count(forgotten.files, 'file')} ({format_bytes(forgotten.nbytes)}) "
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
    interval = f" (90 %: {format_seconds(more_s - half_s)} to {format_seconds(more_s + half_s)})"
    if more_s - half_s > _NOTABLE * cached.mean.step_s:
        return f"A cold step waits {format_seconds(more_s)} longer for its data than a cached one{interval}."
    return f"A cold step waits no longer for its data than a cached one, as far as can be told{interval}."
