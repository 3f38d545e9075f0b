"""What was measured, made by hand: two replicas of a chain, in milliseconds."""

from dataclasses import replace
from typing import Any

from tests import builders
from tests.builders import problem

from trimaran.features.diagnose.stall_remedies import Evidence
from trimaran.measure.findings import Sampled
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.findings import ReadyBucket, StallFindings, WayFindings
from trimaran.measure.stalls.page_cache import Forgotten
from trimaran.measure.stalls.rank import ExchangeTime, RankRun
from trimaran.measure.stalls.steps import CLASSES, Split

MS = 1e-3


def split(**milliseconds: float) -> Split:
    return Split(**{name: MS * milliseconds.get(name, 0.0) for name in CLASSES})


def way(
    *ranks: Split, read: float = 0.0, prepared: float = 0.0, taken: float = 0.0, busy: float = 0.0, late: float = 0.0
) -> WayFindings:
    """Two ranks, or one of which both are copies; two blocks that are alike."""
    both = ranks if len(ranks) == 2 else ranks * 2
    mean = mean_step(both)
    return WayFindings(
        mean=mean,
        blocks=(mean, mean),
        ranks=tuple(both),
        rank_blocks=(tuple(both),) * 2,
        steps=10,
        read_s=MS * read,
        prepared_s=MS * prepared,
        taken_s=MS * taken,
        busy_s=MS * busy,
        late_s=MS * late,
    )


def uneven(cached: WayFindings, *blocks: Split) -> WayFindings:
    """The same with blocks that differ, on both ranks alike."""
    return replace(cached, blocks=blocks, rank_blocks=tuple((block, block) for block in blocks))


def run(**fields: Any) -> RankRun:
    plain = RankRun(
        steps=(),
        timelines=(),
        reads=True,
        reads_files=False,
        forgotten=Forgotten(),
        samples=1000,
        wanted=10,
        exchange=None,
        sampled=sampled(),
    )
    return replace(plain, **fields)


def sampled(**fields: Any) -> Sampled:
    """A thousand samples of 1000 bytes: a microbatch is taken over in 1 ms, a sample got out of a cache in 0.25 ms."""
    plain = Sampled(
        reads=[[0.0]],
        again=[[0.0]],
        makes=[(1, 0.0), (4, 0.0)],
        takes=[(1, MS), (4000, MS)],
        recalls=[(1, 0.25 * MS), (4, MS)],
        sample_bytes=1000,
        stored_bytes=1000,
        samples=1000,
        repeats=True,
    )
    return replace(plain, **fields)


def findings(cached: WayFindings, **fields: Any) -> StallFindings:
    plain = StallFindings(ways={"cached": cached}, runs=(run(), run()), buckets=(), backward_s=20 * MS, update_s=4 * MS)
    return replace(plain, **fields)


def evidence(found: StallFindings, **fields: Any) -> Evidence:
    plain = Evidence(
        findings=found,
        way="cached",
        strategy=builders.strategy(dp=2),
        graph=problem().graph,
        samples=8,
        cores=8,
        memory_bytes=64 << 30,
        on_device=False,
    )
    return replace(plain, **fields)


def exchanging(cached: WayFindings, *, latency: float, bytes_per_ms: float, **before_end: float) -> StallFindings:
    """With buckets of 1000 bytes, complete so many milliseconds before the end of the backward."""
    exchange = ExchangeTime(latency_s=MS * latency, bytes_per_s=bytes_per_ms / MS)
    buckets = [
        ReadyBucket(label=label, nbytes=1000, before_end_s=MS * milliseconds)
        for label, milliseconds in before_end.items()
    ]
    return findings(cached, buckets=tuple(buckets), runs=(run(exchange=exchange),) * 2)
