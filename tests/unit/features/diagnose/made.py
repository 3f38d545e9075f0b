"""What was measured, made by hand: two replicas of a chain, in milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests import builders

from trimaran.measure.findings import Sampled
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.findings import StallFindings, WayFindings
from trimaran.measure.stalls.page_cache import Forgotten
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.steps import CLASSES, StepSplit, TimedStep
from trimaran.pricing.types import Cost

MS = 1e-3


def split(**milliseconds: float) -> StepSplit:
    return StepSplit(**{name: MS * milliseconds.get(name, 0.0) for name in CLASSES})


def way(*ranks: StepSplit, read: float = 0.0, prepared: float = 0.0, steps: int = 20, each: int = 5) -> WayFindings:
    """Two ranks, or one of which both are copies; two blocks that are alike, and steps of so many `each` block."""
    both = ranks if len(ranks) == 2 else ranks * 2
    mean = mean_step(both)
    return WayFindings(
        mean=mean,
        blocks=(mean, mean),
        ranks=tuple(both),
        steps=steps,
        calm=tuple(tuple(range(first, first + each)) for first in range(0, steps, each)),
        read_s=MS * read,
        prepared_s=MS * prepared,
    )


def uneven(cached: WayFindings, *blocks: StepSplit) -> WayFindings:
    """The same with blocks that differ, on both ranks alike."""
    return replace(cached, blocks=blocks)


def run(**fields: Any) -> RankRun:
    plain = RankRun(
        steps=(),
        timelines=(),
        reads=True,
        reads_files=False,
        forgotten=Forgotten(),
        samples=1000,
        exchange=(),
        sampled=sampled(),
    )
    return replace(plain, **fields)


def sampled(**fields: Any) -> Sampled:
    """A thousand samples of 1000 bytes: one is got out of a cache in 0.25 ms."""
    plain = Sampled(
        reads=[[0.0]],
        again=[[0.0]],
        makes=[(1, 0.0), (4, 0.0)],
        recalls=[(1, 0.25 * MS), (4, MS)],
        sample_bytes=1000,
        stored_bytes=1000,
        samples=1000,
        repeats=True,
    )
    return replace(plain, **fields)


def findings(cached: WayFindings, **fields: Any) -> StallFindings:
    """Each step of a rank as its mean, or by what is given of it in turns."""
    turns: Sequence[Sequence[StepSplit]] = fields.pop("turns", [[one] for one in cached.ranks])
    busy_s = MS * fields.pop("busy", 0.0) / 2
    runs = fields.pop("runs", (run(), run()))
    steps = tuple(
        TimedStep(number=number, way="cached", block=0, asked_s=0.0, step_s=1.0, busy_s=busy_s)
        for number in range(cached.steps)
    )
    plain = StallFindings(
        ways={"cached": cached},
        runs=tuple(replace(one, steps=steps) for one in runs),
        splits=[{number: own[number % len(own)] for number in range(cached.steps)} for own in turns],
        update_s=4 * MS,
    )
    return replace(plain, **fields)


def task(**strategy: Any) -> Any:
    """Two replicas of 4 samples a step."""
    return SimpleNamespace(
        strategy=builders.strategy(**{"dp": 2} | strategy),
        job=SimpleNamespace(global_batch_size=8),
        program=None,
        cluster=SimpleNamespace(devices=[SimpleNamespace(kind="cpu")]),
    )


def exchanging(cached: WayFindings, *, latency: float, bytes_per_ms: float) -> StallFindings:
    """With an exchange that takes so long alone, of gradients of any type."""
    exchange = tuple(
        (nbytes, Cost(seconds, seconds, seconds, "example"))
        for nbytes in (48, 96)
        for seconds in [MS * (latency + nbytes / bytes_per_ms)]
    )
    return findings(cached, runs=(run(exchange=exchange, halves=exchange),) * 2)
