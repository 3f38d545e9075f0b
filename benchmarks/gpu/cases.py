"""One case: a job at one batch size, eager or compiled, predicted, run by the runtime and by a loop written by hand.

memory       one executor, from nothing: the peak of its first steps
comparison   recorded steps in a row, whose parts are set beside the simulated ones
blocks       recorded, not recorded, by hand, by hand without waiting: in turns, so that a drift meets all alike
"""

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from benchmarks.gpu.loops import PlainLoop

from trimaran.base.job import Job
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.planner.candidates import Candidate
from trimaran.program.lowering.lower import lower_evaluation
from trimaran.report.comparison import Comparison, Figure, compare
from trimaran.runtime.data.batch_shares import Share
from trimaran.runtime.executor import Executor

RESAMPLES = 500
VARIANTS = ("recorded", "runtime", "by hand", "by hand, not waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is run for one case.

    Attributes:
        warm_up: steps before anything counts
        recorded: steps of the comparison
        rounds: of blocks
        block_s: least length of a block [s]
        issues: steps by which the share of issuing is measured
    """

    warm_up: int
    recorded: int
    rounds: int
    block_s: float
    issues: int


FULL = Effort(warm_up=12, recorded=60, rounds=8, block_s=0.15, issues=9)
QUICK = Effort(warm_up=2, recorded=4, rounds=2, block_s=0.0, issues=1)


def run_case(job: Job, graph: Graph, candidate: Candidate, *, device: str, effort: Effort) -> dict[str, Any]:
    """Run a case and set it beside its prediction.

    Args:
        job: its global batch is that of the case
        graph: the job's
        candidate: the simulated step
        device: "cpu" or "cuda:<n>"
        effort: how much is run

    Returns:
        The figures, as they are kept.
    """
    execution = candidate.strategy.execution
    fresh = _clear(device)
    # The last, smaller batch of an epoch is another step than the one that was predicted.
    job = replace(job, drop_last=True)
    evaluation = lower_evaluation(graph, candidate.strategy, batch=job.global_batch_size)
    executor = Executor(job, candidate.strategy, candidate.program, evaluation, World(device=device), record=False)
    try:
        shares = _endless(executor)
        for share in itertools.islice(shares, effort.warm_up):
            executor.step(share)
        peak_bytes = _peak(device, fresh)
        comparison = _compare(executor, candidate, shares, effort.recorded)
        loop = PlainLoop(job, device, compiled=execution == "compiled")
        for _ in range(effort.warm_up):
            loop.step(wait=True)
        blocks = _take_turns(executor, loop, shares, effort)
        issue_share = statistics.median(loop.issue_share() for _ in range(effort.issues))
    finally:
        executor.close()
    return {
        "execution": execution,
        "batch": job.global_batch_size,
        "parts": _parts(comparison),
        "interval_s": list(candidate.interval_s),
        "step_s": {variant: statistics.median(times) for variant, times in blocks.items()},
        "overhead": _ratio(blocks, "runtime", "by hand"),
        "recording": _ratio(blocks, "recorded", "runtime"),
        "waiting": _ratio(blocks, "by hand", "by hand, not waiting"),
        "spread": _spread(blocks["by hand"]),
        "issue_share": issue_share,
        "peak_bytes": {"predicted": candidate.peak_bytes[0], "measured": peak_bytes},
    }


def steps_fit(job: Job, batch: int) -> bool:
    """Whether a job has the data for a global batch of that size."""
    return len(job.dataset()) >= batch  # type: ignore[arg-type]


def _compare(executor: Executor, candidate: Candidate, shares: Iterator[Share], steps: int) -> Comparison:
    executor.recording = True
    for share in itertools.islice(shares, steps):
        executor.step(share)
    timeline = executor.timeline()
    executor.recording = False
    return compare(candidate.program, candidate.timeline, timeline, warmup=1)


def _parts(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    rank = comparison.ranks[0]
    names = ("step", "forward", "backward", "update", "load", "unattributed")
    return {name: _figure(rank.figure(name)) for name in names}


def _figure(figure: Figure) -> dict[str, float | None]:
    return {"predicted_s": figure.predicted_s, "measured_s": figure.measured_s, "error": figure.error}


def _take_turns(executor: Executor, loop: PlainLoop, shares: Iterator[Share], effort: Effort) -> dict[str, list[float]]:
    """Mean step time of each block of each variant [s]."""

    def by_runtime(recording: bool) -> Callable[[], object]:
        def step() -> None:
            executor.recording = recording
            executor.step(next(shares))

        return step

    steps: dict[str, Callable[[], object]] = dict(
        zip(
            VARIANTS,
            (
                by_runtime(True),
                by_runtime(False),
                lambda: loop.step(wait=True),
                lambda: loop.step(wait=False),
            ),
            strict=True,
        )
    )
    counts = {name: max(2, round(effort.block_s / _block(step, 2, loop))) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(effort.rounds):
        # Another order in every round, so that none always follows the same one.
        for name in VARIANTS[number % len(VARIANTS) :] + VARIANTS[: number % len(VARIANTS)]:
            times[name].append(_block(steps[name], counts[name], loop))
    return times


def _block(step: Callable[[], object], count: int, loop: PlainLoop) -> float:
    loop.synchronize()
    start_s = time.perf_counter()
    for _ in range(count):
        step()
    loop.synchronize()
    return (time.perf_counter() - start_s) / count


def _ratio(blocks: Mapping[str, Sequence[float]], name: str, base: str) -> dict[str, float]:
    """Time of one variant over that of another, minus 1, with the 90 % interval that drawing rounds again gives."""
    count = len(blocks[name])

    def ratio(rounds: Sequence[int]) -> float:
        one, other = (statistics.median(blocks[which][number] for number in rounds) for which in (name, base))
        return one / other - 1

    generator = random.Random(0)
    drawn = sorted(ratio([generator.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    return {"share": ratio(range(count)), "low": drawn[RESAMPLES // 20], "high": drawn[-RESAMPLES // 20 - 1]}


def _spread(times: Sequence[float]) -> float:
    """How much equal blocks differ: half the distance of the quartiles, as a share of the median [1]."""
    if len(times) < 4:
        return (max(times) - min(times)) / 2 / statistics.median(times)
    low, median, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / median


def _endless(executor: Executor) -> Iterator[Share]:
    feed = executor.feed()
    return (share for _ in itertools.count() for share in feed.shares())


def _clear(device: str) -> int:
    """Forget what earlier cases compiled and allocated; the bytes that stay allocated on a GPU."""
    gc.collect()
    torch._dynamo.reset()
    if device == "cpu":
        return 0
    # The libraries' own workspaces are allocated at first use, and stay.
    square = torch.ones(64, 64, device=device)
    (square @ square).sum().item()
    del square
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: str, fresh: int) -> int | None:
    return None if device == "cpu" else torch.cuda.max_memory_allocated(device) - fresh
