"""Remedies for a step that waits for its exchanges, or for other ranks.

T is the mean step and E its communication, as they were seen. e(b) is what would be exposed of gradient buckets b, by
replay: each leaves when it is complete and the one before has left, and takes what adding up was measured to take. What
a step becomes:

    compress to buckets b'        T' = f (T − E (1 − e(b') / e(b)) + encoding + decoding), f times the samples
    buckets b' of another size    T' = T − E (1 − e(b') / e(b))
    accumulate k batches          T' = T − (E + update) (1 − 1/k), for each batch of now
    even out the ranks            T' = T − (work of the slowest − mean work)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from trimaran.costs.curves import at_size
from trimaran.costs.wire import coding_keys
from trimaran.graph import Graph
from trimaran.measure.stalls.exchange_time import ExchangeTime
from trimaran.measure.stalls.findings import ReadyBucket
from trimaran.measure.stalls.rank import COMPRESSIONS, RankRun
from trimaran.measure.stalls.splits import Split, mean_split
from trimaran.planner import Pins
from trimaran.planner.compressing import samples_factor
from trimaran.program.buckets import gradient_buckets
from trimaran.program.compression import Compression
from trimaran.report.remedies import Remedy
from trimaran.session.advice import LEAST_GAIN
from trimaran.session.stalls.evidence import Evidence, gain, gain_between
from trimaran.units import format_bytes, format_count, format_seconds

_ACCUMULATE = 4
_BUCKETS = (2**20, 4 * 2**20, 25 * 2**20, 100 * 2**20)


def exchange_remedies(evidence: Evidence) -> list[Remedy]:
    """Remedies for waiting for exchanges and for other ranks, whatever they save.

    Args:
        evidence: what was measured
    """
    return [remedy for make in (_compress, _other_buckets, _accumulate, _even) for remedy in make(evidence)]


def replay(buckets: Sequence[tuple[float, float]], exchange: ExchangeTime, *, rounds: int = 1) -> float:
    """What buckets leave exposed after the backward [s].

    Args:
        buckets: of each, how long before the backward's end it is complete [s], and its size [bytes]; in order
        exchange: what adding up takes
        rounds: in which a bucket goes, each with a part of its bytes

    Example:
        >>> replay([(3.0, 100.0), (0.0, 100.0)], ExchangeTime(latency_s=1.0, bytes_per_s=50.0))
        3.0
    """
    end_s = float("-inf")
    for before_end_s, nbytes in buckets:
        end_s = max(end_s, -before_end_s) + exchange.seconds(nbytes) + (rounds - 1) * exchange.latency_s
    return max(0.0, end_s) if buckets else 0.0


def _compress(evidence: Evidence) -> Iterator[Remedy]:
    run, buckets = evidence.reader, evidence.findings.buckets
    if run.exchange is None or not buckets or evidence.strategy.compression is not None:
        return
    now_s = replay([(bucket.before_end_s, bucket.nbytes) for bucket in buckets], run.exchange)
    communication_s = evidence.own.mean.communication
    for compression in COMPRESSIONS:
        coded = [code(evidence.graph, evidence.strategy.bucket_bytes, bucket, compression, run) for bucket in buckets]
        rate = run.halves if compression.method != "powersgd" and run.halves is not None else run.exchange
        # Encoding puts the end of the backward off, for the first buckets most.
        later_s = [sum(one.encode_s for one in coded[number + 1 :]) for number in range(len(coded))]
        sent = [
            (bucket.before_end_s + late_s, one.nbytes)
            for bucket, one, late_s in zip(buckets, coded, later_s, strict=True)
        ]
        then_s = replay(sent, rate, rounds=1 + (compression.method == "powersgd"))
        coding_s = sum(one.encode_s + one.decode_s for one in coded)
        share = 1.0 - then_s / now_s if now_s > 0 else 0.0
        samples = samples_factor(compression, Pins())
        # Where the exchange is so short that coding was not measured, what is waited for is contention, which stays.
        most_s = math.inf if run.coding else max(0.0, now_s - then_s)
        yield Remedy(
            limiter="communication",
            name=f"compress gradients, {compression.name}",
            action=f'Send gradients as {compression.name} (lossy: with consent, "--allow compress").',
            basis=(
                f"{format_seconds(communication_s)} of a step are exchange that nothing hides; by replay "
                f"{format_seconds(now_s)} of {sum(bucket.nbytes for bucket in buckets) / 1e6:.3g} MB now, "
                f"{format_seconds(then_s)} of {sum(one.nbytes for one in coded) / 1e6:.3g} MB then, and "
                f"{format_seconds(coding_s)} of coding."
            ),
            assumption="the training bears it, with error feedback"
            + (f", and needs {samples:g} times the samples, which is counted." if samples > 1 else ".")
            + ("" if run.coding else " What coding takes was not measured, the exchange being short."),
            setting={"bits": 16} if compression.method != "powersgd" else {"rank": compression.rank},
            **gain(evidence, partial(_saved, share=share, most_s=most_s, coding_s=coding_s, samples=samples)),
        )


def _saved(split: Split, *, share: float, most_s: float, coding_s: float, samples: float) -> float:
    saved_s = min(share * split.communication, most_s) - coding_s
    return split.step_s - samples * (split.step_s - saved_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A bucket in another form.

    Attributes:
        nbytes: on the wire [bytes]
        encode_s: until its first byte is there [s]
        decode_s: from then on, the wire left out [s]
    """

    nbytes: float
    encode_s: float
    decode_s: float


def code(graph: Graph, bucket_bytes: int, bucket: ReadyBucket, compression: Compression, run: RankRun) -> Coded:
    """What a bucket would be in another form.

    Args:
        graph: of the job
        bucket_bytes: at which buckets are sent [bytes]
        bucket: as it is
        compression: the form
        run: has measured what coding takes
    """
    made = {one.label: one for one in gradient_buckets(graph, graph.ops, bucket_bytes)}.get(bucket.label)
    shapes = {parameter.name: parameter.shape for parameter in graph.parameters}
    own = [shapes[name] for name in made.parameters] if made is not None else []
    numbers = sum(map(math.prod, own))
    if not numbers:
        return Coded(nbytes=float(bucket.nbytes), encode_s=0.0, decode_s=0.0)
    itemsize = bucket.nbytes // numbers
    sizes = [bucket.nbytes]
    if compression.method == "powersgd":
        sizes = [itemsize * math.prod(shape) for shape in own if compression.factors(shape)]
    encode_s, decode_s = (
        sum(at_size(run.coding[key], size).seconds for size in sizes) if key in run.coding else 0.0
        for key in coding_keys(compression)
    )
    nbytes = compression.wire_bytes(own, itemsize=itemsize)
    return Coded(nbytes=float(nbytes), encode_s=encode_s, decode_s=decode_s)


def _other_buckets(evidence: Evidence) -> Iterator[Remedy]:
    exchange, buckets = evidence.reader.exchange, evidence.findings.buckets
    if exchange is None or not buckets:
        return
    now_s = replay([(bucket.before_end_s, bucket.nbytes) for bucket in buckets], exchange)
    ready = _readiness(buckets, evidence.findings.backward_s / evidence.strategy.microbatches)
    tried = {}
    for size in _BUCKETS:
        if size != evidence.strategy.bucket_bytes:
            sizes = [bucket.nbytes for bucket in gradient_buckets(evidence.graph, evidence.graph.ops, size)]
            tried[size] = replay(ready(sizes), exchange)
    best = min(tried, key=lambda size: tried[size])
    share = 1.0 - tried[best] / now_s if now_s > 0 else 0.0
    yield Remedy(
        limiter="communication",
        name=f"buckets of {format_bytes(best)}",
        action=(
            f"Send gradients in buckets of {format_bytes(best)} (now {format_bytes(evidence.strategy.bucket_bytes)})."
        ),
        basis=(
            f"By replay {format_seconds(now_s)} of the exchange are exposed with "
            f"{format_count(len(buckets), 'bucket')} now, {format_seconds(tried[best])} then, the best of {len(tried)} "
            "other sizes."
        ),
        assumption="gradients come evenly between the buckets that were seen.",
        setting={"bucket_bytes": best},
        **gain(evidence, lambda split: share * split.communication),
    )


def _readiness(
    buckets: Sequence[ReadyBucket], backward_s: float
) -> Callable[[Sequence[int]], list[tuple[float, float]]]:
    """When buckets of other sizes would be complete, from those that were seen."""
    points = [(0.0, backward_s)]
    for bucket in buckets:
        points.append((points[-1][0] + bucket.nbytes, min(points[-1][1], bucket.before_end_s)))

    def before_end(sent: float) -> float:
        for (low, early), (high, late) in pairwise(points):
            if sent <= high:
                return early + (late - early) * (sent - low) / (high - low) if high > low else late
        return points[-1][1]

    def ready(sizes: Sequence[int]) -> list[tuple[float, float]]:
        sent, found = 0.0, []
        for size in sizes:
            sent += size
            found.append((before_end(sent), float(size)))
        return found

    return ready


def _accumulate(evidence: Evidence) -> Iterator[Remedy]:
    if len(evidence.findings.runs) < 2 or evidence.strategy.dp < 2:
        return
    share, mean, update_s = 1 - 1 / _ACCUMULATE, evidence.own.mean, evidence.findings.update_s
    # Where there is no exchange to save, accumulation is no remedy for it.
    worth = mean.communication > LEAST_GAIN * mean.step_s
    yield Remedy(
        limiter="communication",
        name=f"accumulate {_ACCUMULATE} batches",
        action=f"Exchange and update once in {_ACCUMULATE} batches; the global batch grows by {_ACCUMULATE}.",
        basis=(
            f"Of a step, {format_seconds(mean.communication)} are exchange that nothing hides and "
            f"{format_seconds(update_s)} update; three quarters of both go, for each batch of now."
        ),
        assumption="the training bears the larger batch; adding to gradients costs what writing them does.",
        setting={"accumulate": _ACCUMULATE},
        **gain(evidence, lambda split: share * (split.communication + update_s) if worth else 0.0),
    )


def _even(evidence: Evidence) -> Iterator[Remedy]:
    if len(evidence.findings.runs) < 2 or evidence.strategy.pp * evidence.strategy.tp > 1:
        return
    own = evidence.own
    work = _work(own.ranks)
    slowest = max(range(len(work)), key=lambda rank: work[rank])

    def share(ranks: Sequence[Split]) -> float:
        work = _work(ranks)
        return (work[slowest] - sum(work) / len(work)) / mean_split(ranks).step_s

    yield Remedy(
        limiter="synchronization",
        name="even out the ranks",
        action=f"Give rank {slowest} less to do than the others, or find what else uses its device.",
        basis=(
            f"It works {format_seconds(max(work))} of a step, the mean rank {format_seconds(sum(work) / len(work))}; "
            f"{format_seconds(own.mean.synchronization)} are waits for slower ranks, by chance too."
        ),
        assumption="it stays the slower one.",
        setting={"rank": slowest},
        **gain_between(share, own.ranks, own.rank_blocks),
    )


def _work(ranks: Sequence[Split]) -> list[float]:
    """What each rank does in a step beside standing still for exchanges and other ranks [s]."""
    return [rank.step_s - rank.communication - rank.synchronization for rank in ranks]
