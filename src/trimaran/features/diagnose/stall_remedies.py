"""What would help a job that was split by its stalls: known remedies, ranked by what they are sure to save of its step.

A gain is as sure as the steps that it was computed from are alike: advice is what saves something at the low end of the
gain's interval too. What may as well cost is no advice, however large its gain is in the middle.

The step under another way to load its batches.

Reading and preparing of samples take what they took in the steps; a hand-over from a worker or a cache was measured
after them. The bounds are those of `pricing.input_pipeline`, by which plans are made too.

Remedies for a step that waits for its data.

T is the mean step and D what it spends on its data. The step becomes, with `pricing.input_pipeline` for the terms:

    pre-load in w workers     T' = max(T − D + taking batches over, what workers and cores take at least) = P(w)
                              from v workers on it saves min(T, P(v)) − P(w): what is beyond P(v) is nobody's to take
    keep samples in memory    T' = T − D + getting them out of the cache
    copy ahead                T' = T − min(copy, compute)

Remedies for a step that waits for its exchanges, or for other ranks.

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
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

from trimaran.base.remedies import Remedy, rank_remedies
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.features.diagnose.script_remedies import (
    COMPUTE,
    LEAST_GAIN,
    LIMIT_GAIN,
    MOST_GAIN,
    Gain,
    gain_between,
)
from trimaran.graph.types import Graph
from trimaran.measure.findings import sample_costs
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.findings import ReadyBucket, StallFindings, WayFindings
from trimaran.measure.stalls.rank import COMPRESSIONS, ExchangeTime, RankRun
from trimaran.measure.stalls.steps import CLASSES, Split, Way
from trimaran.planner.input_pipeline import MEMORY_SHARE, WORKER_BYTES
from trimaran.planner.pins import Pins
from trimaran.planner.space import samples_factor
from trimaran.pricing.curves import at_size
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.input_pipeline import WORKERS_PER_CORE, load, period
from trimaran.pricing.tables import SampleCosts
from trimaran.pricing.types import Cost
from trimaran.program.gradients import Compression, gradient_buckets
from trimaran.program.strategy import Feeding, Strategy

# ---------------------------------------------------------------------------------------------------------------------
# What advice on stalls is computed from, and how a gain comes by its interval


_Step = TypeVar("_Step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The inputs of the advice.

    Attributes:
        findings: what was measured
        way: the way that counts
        strategy: what was run
        graph: of the job
        samples: of a global batch
        cores: that all ranks share
        memory_bytes: of the host that is free [bytes]
        on_device: batches are copied to devices other than the host
    """

    findings: StallFindings
    way: Way
    strategy: Strategy
    graph: Graph
    samples: int
    cores: int
    memory_bytes: int
    on_device: bool

    @property
    def own(self) -> WayFindings:
        """The steps that count."""
        return self.findings.ways[self.way]

    @property
    def reader(self) -> RankRun:
        """The first rank that reads data."""
        return next((run for run in self.findings.runs if run.reads), self.findings.runs[0])


def gain(evidence: Evidence, saved: Callable[[Split], float]) -> Gain:
    """The share of the step that a remedy saves, with its 90 % interval.

    Args:
        evidence: what was measured
        saved: time that it saves of a step [s]
    """
    own = evidence.own
    return sure_gain(lambda split: saved(split) / split.step_s, own.mean, own.blocks)


def sure_gain(share: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step]) -> Gain:
    """The share of the step that a remedy saves, with its 90 % interval.

    One block of steps says nothing of how far blocks are apart: a gain may then as well be none, or all, and a loss
    may be larger by as much.

    Args:
        share: that it saves of a step, or of what else sums up steps
        mean: of all blocks
        blocks: of consecutive steps
    """
    found = gain_between(share, mean, blocks)
    middle = found["predicted_gain"]
    if middle and len(blocks) < 2:
        found["gain_interval"] = (0.0 if middle > 0 else middle - MOST_GAIN), MOST_GAIN
    return found


_HOW = "the steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """A step and its samples.

    Attributes:
        samples: what they take, as the steps that count saw it
        microbatch: samples of one
        microbatches: of a rank's step
        readers: ranks that read
        late_s: what ranks wait for others that wait for data [s]
        work_s: processor time of a step of all ranks, their loading left out [s]; 0 where the host does not compute
        cores: that workers and these ranks share
    """

    samples: SampleCosts
    microbatch: int
    microbatches: int
    readers: int
    late_s: float
    work_s: float
    cores: int

    @property
    def one_s(self) -> float:
        """Reading and preparing of a rank's step [s]."""
        return self.microbatches * self.microbatch * (self.samples.read.seconds + self.samples.prepare.seconds)

    def taken_s(self, feeding: Feeding) -> float:
        """Time that a rank's own thread spends on the batches of a step [s].

        Args:
            feeding: how they are loaded
        """
        return self.microbatches * load(self.samples, feeding, microbatch=self.microbatch).seconds

    def least_s(self, feeding: Feeding) -> float:
        """The step below which none comes, whatever the ranks do [s].

        Args:
            feeding: how batches are loaded
        """
        return period(
            self.samples,
            feeding,
            microbatch=self.microbatch,
            microbatches=self.microbatches,
            readers=self.readers,
            busy_s=self.work_s + (self.readers * self.taken_s(feeding) if self.work_s else 0.0),
            cores=self.cores,
        ).seconds

    def step_s(self, split: Split, feeding: Feeding) -> float:
        """Time of the step under another way to load [s].

        Args:
            split: of the step as it is
            feeding: how batches would be loaded
        """
        rest_s = split.step_s - split.loading_s - min(self.late_s, split.synchronization)
        return max(rest_s + self.taken_s(feeding), self.least_s(feeding))


def fed_step(evidence: Evidence) -> Fed | None:
    """The step that was measured; None where its samples were not looked at.

    Args:
        evidence: what was measured
    """
    runs = evidence.findings.runs
    sampled = [run.sampled for run in runs if run.reads and run.sampled is not None]
    if not sampled:
        return None
    strategy, own = evidence.strategy, evidence.own
    microbatch = max(1, evidence.samples // (strategy.dp * strategy.microbatches))
    each = strategy.microbatches * microbatch
    read, prepare = _seen(own.read_s / each), _seen(own.prepared_s / each)
    seen = replace(sample_costs(sampled, how=_HOW), read=read, read_again=read, prepare=prepare, batch=_seen(0.0))
    # Workers' time is none of the ranks' own.
    loading_s = 0.0 if strategy.feeding.workers else own.prepared_s * len(sampled)
    return Fed(
        samples=seen,
        microbatch=microbatch,
        microbatches=strategy.microbatches,
        readers=len(sampled),
        late_s=own.late_s,
        work_s=0.0 if evidence.on_device else max(0.0, own.busy_s - loading_s),
        cores=max(1, evidence.cores - len(runs)) if evidence.on_device else evidence.cores,
    )


def _seen(seconds: float) -> Cost:
    return Cost(seconds, seconds, seconds, f"measured: {_HOW}")


# More workers that bring no more than this are not worth their memory.
_AS_GOOD = 1.02


def data_remedies(evidence: Evidence) -> list[Remedy]:
    """Remedies for waiting for data, whatever they save.

    Args:
        evidence: what was measured
    """
    fed = fed_step(evidence)
    if fed is None:
        return []
    remedies = [*_workers(evidence, fed), *_cache(evidence, fed), *_split(evidence, fed)]
    return [*remedies, *_copy_ahead(evidence)] if evidence.on_device else remedies


def _workers(evidence: Evidence, fed: Fed) -> Iterator[Remedy]:
    own, now = evidence.own, evidence.strategy.feeding
    tried = {
        workers: fed.step_s(own.mean, replace(now, workers=workers))
        for workers in range(now.workers + 1, _most_workers(evidence, fed) + 1)
    }
    if not tried:
        return
    wanted = next(workers for workers, step_s in tried.items() if step_s <= _AS_GOOD * min(tried.values()))
    then = replace(now, workers=wanted)

    def saved(split: Split) -> float:
        now_s = min(split.step_s, fed.step_s(split, now)) if now.workers else split.step_s
        return now_s - fed.step_s(split, then)

    word = "worker" if wanted == 1 else "workers"
    samples = fed.samples
    yield Remedy(
        id="load-ahead",
        method="estimated",
        limiter=_limiter(own.mean),
        name=f"pre-load in {wanted} {word}",
        action=f"Let {wanted} {word} of each rank load ahead of its steps (--workers {wanted}; now {now.workers}).",
        basis=(
            f"A rank's samples of a step take {_seconds(own.read_s)} to read and {_seconds(own.prepared_s)} to "
            f"prepare, a ready batch {_seconds(fed.taken_s(then) / fed.microbatches)} to take over, the rest of a step "
            f"{_seconds(own.mean.step_s - own.mean.loading_s)}. {wanted} {word} and {evidence.cores} cores allow a "
            f"step of {_seconds(fed.least_s(then))}."
        ),
        assumption="reads of several workers do not slow each other down."
        + ("" if samples.knows_workers else " What taking over costs was not measured."),
        setting={"workers": wanted},
        **gain(evidence, saved),
    )


def _most_workers(evidence: Evidence, fed: Fed) -> int:
    """Workers of a rank that the host bears, by its cores and its memory."""
    by_cores = max(1, WORKERS_PER_CORE * evidence.cores // fed.readers)
    return min(by_cores, int(MEMORY_SHARE * evidence.memory_bytes // (WORKER_BYTES * fed.readers)))


def _cache(evidence: Evidence, fed: Fed) -> Iterator[Remedy]:
    own, now, samples = evidence.own, evidence.strategy.feeding, fed.samples
    if now.cached:
        return
    then = replace(now, cached=True)
    needed = samples.stored_bytes * samples.samples
    about = f"All {samples.samples} samples take {format_bytes(needed)}, of {format_bytes(evidence.memory_bytes)} free"
    obstacle = ""
    if not samples.repeats:
        obstacle = "The same sample is another one each time (it draws random numbers), so that it cannot be kept."
    elif not samples.stored_bytes:
        obstacle = "Samples are not alike, so that they cannot be kept."
    elif needed > evidence.memory_bytes // 2:
        obstacle = f"{about}, which is too much."

    def saved(split: Split) -> float:
        return 0.0 if obstacle else split.step_s - fed.step_s(split, then)

    yield Remedy(
        id="keep-samples",
        method="estimated",
        limiter=_limiter(own.mean),
        name="keep samples in memory",
        action="Keep each sample in the host's memory after its first read.",
        basis=obstacle
        or f"{about}. A step's samples take {_seconds(own.read_s + own.prepared_s)} to read and prepare, and "
        f"{_seconds(samples.recall.seconds * fed.microbatch * fed.microbatches)} to get out of it.",
        assumption="the job goes through its data more than once.",
        **gain(evidence, saved),
    )


def _split(evidence: Evidence, fed: Fed) -> Iterator[Remedy]:
    replicas = evidence.strategy.dp
    if replicas < 2:
        return
    yield Remedy(
        id="split-reads",
        method="rule",
        limiter=_limiter(evidence.own.mean),
        name="split on the host",
        action="Each rank reads its own share of the batch only.",
        basis=(
            f"Done already. Were all {replicas} shares read by one rank and scattered, it would read and prepare for "
            f"{_seconds(replicas * fed.one_s)} a step in place of {_seconds(fed.one_s)}."
        ),
        predicted_gain=0.0,
        gain_interval=(0.0, 0.0),
    )


def _copy_ahead(evidence: Evidence) -> Iterator[Remedy]:
    if evidence.strategy.feeding.copies_ahead:
        return
    mean = evidence.own.mean
    yield Remedy(
        id="copy-ahead",
        method="estimated",
        limiter="copy",
        name="copy ahead",
        action="Bring the next microbatch to the device while this one computes, from pinned memory.",
        basis=f"Copying takes {_seconds(mean.copy)} of a step, compute {_seconds(mean.compute)}.",
        assumption="a copy does not slow compute down.",
        **gain(evidence, lambda split: min(split.copy, split.compute)),
    )


def _limiter(split: Split) -> str:
    return "fetch" if split.fetch > split.prepare else "prepare"


def _seconds(seconds: float) -> str:
    """A duration for people; of less than a microsecond, none."""
    return format_seconds(seconds if seconds >= 1e-6 else 0.0)


_ACCUMULATE = 4
_BUCKETS = (2**20, 4 * 2**20, 25 * 2**20, 100 * 2**20)


def exchange_remedies(evidence: Evidence) -> list[Remedy]:
    """Remedies for waiting for exchanges and for other ranks, whatever they save.

    Args:
        evidence: what was measured
    """
    return [remedy for make in (_compress, _other_buckets, _accumulate, _even) for remedy in make(evidence)]


def replay(buckets: Sequence[tuple[float, float]], exchange: ExchangeTime, *, rounds: int = 1) -> float:
    """Exposed communication of buckets after the backward [s].

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
            id="compress-gradients",
            method="estimated",
            limiter="communication",
            name=f"compress gradients, {compression.name}",
            action=f'Send gradients as {compression.name} (lossy, so opt-in: "--allow compress").',
            basis=(
                f"{format_seconds(communication_s)} of a step are exposed exchange; by replay "
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
        nbytes: that are sent [bytes]
        encode_s: until its first byte is there [s]
        decode_s: from then on, the transfer left out [s]
    """

    nbytes: float
    encode_s: float
    decode_s: float


def code(graph: Graph, bucket_bytes: int, bucket: ReadyBucket, compression: Compression, run: RankRun) -> Coded:
    """A bucket in another form.

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
        id="bucket-size",
        method="estimated",
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
        id="accumulate",
        method="estimated",
        limiter="communication",
        name=f"accumulate {_ACCUMULATE} batches",
        action=f"Exchange and update once in {_ACCUMULATE} batches; the global batch grows by {_ACCUMULATE}.",
        basis=(
            f"Of a step, {format_seconds(mean.communication)} are exposed exchange and "
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
        return (work[slowest] - sum(work) / len(work)) / mean_step(ranks).step_s

    yield Remedy(
        id="even-ranks",
        method="estimated",
        limiter="synchronization",
        name="even out the ranks",
        action=f"Give rank {slowest} less to do than the others, or find what else uses its device.",
        basis=(
            f"It works {format_seconds(max(work))} of a step, the mean rank {format_seconds(sum(work) / len(work))}; "
            f"{format_seconds(own.mean.synchronization)} are waits for slower ranks, by chance too."
        ),
        assumption="it stays the slower one.",
        setting={"rank": slowest},
        **sure_gain(share, own.ranks, own.rank_blocks),
    )


def _work(ranks: Sequence[Split]) -> list[float]:
    """Time of a step in which each rank does not wait for exchanges or other ranks [s]."""
    return [rank.step_s - rank.communication - rank.synchronization for rank in ranks]


_STALLS = tuple(name for name in CLASSES if name not in (COMPUTE, "unattributed"))


def name_stall(split: Split) -> str:
    """The largest class other than compute, where it takes 5 % of the step; else "compute".

    Args:
        split: of a step

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> name_stall(Split(**parts | {"compute": 1.0, "fetch": 0.5, "communication": 0.1}))
        'fetch'
    """
    largest = max(_STALLS, key=lambda name: float(getattr(split, name)))
    return largest if getattr(split, largest) >= LIMIT_GAIN * split.step_s else COMPUTE


def advise_on_stalls(evidence: Evidence) -> tuple[list[Remedy], list[Remedy]]:
    """Known remedies: those that are sure to be worth it, the surest gain first, and the others by predicted gain.

    Args:
        evidence: what was measured
    """
    ranked = rank_remedies([*data_remedies(evidence), *exchange_remedies(evidence)])
    worth = [remedy for remedy in ranked if _sure(remedy) >= LEAST_GAIN]
    return sorted(worth, key=_sure, reverse=True), [remedy for remedy in ranked if _sure(remedy) < LEAST_GAIN]


def _sure(remedy: Remedy) -> float:
    """The gain that the interval leaves, whatever happens."""
    return remedy.gain_interval[0]
