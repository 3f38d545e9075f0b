"""Remedies for a step that waits for its data.

T is the mean step and D what it spends on its data. What a step becomes, with `costs.fed_step` for the terms:

    pre-load in w workers     T' = max(T − D + taking batches over, what workers and cores take at least) = P(w)
                              from v workers on it saves min(T, P(v)) − P(w): what is beyond P(v) is nobody's to take
    keep samples in memory    T' = T − D + getting them out of the cache
    copy ahead                T' = T − min(copy, compute)
"""

from collections.abc import Iterator
from dataclasses import replace

from trimaran.measure.stalls.splits import Split
from trimaran.planner.feeding_room import MEMORY_SHARE, WORKER_BYTES, WORKERS_PER_CORE
from trimaran.report.remedies import Remedy
from trimaran.session.stalls.evidence import Evidence, gain
from trimaran.session.stalls.fed import Fed, fed_step
from trimaran.units import format_bytes, format_seconds

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
