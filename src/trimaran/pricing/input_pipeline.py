"""Cost of the input pipeline in a step: the load on the training's thread, and a lower bound on the step time.

A microbatch has b samples. A sample takes r of waiting (storage, network) and p of a core; a microbatch, besides its
samples β of a core. A step has m microbatches on each of R ranks that read; each rank's thread spends C on everything
except loading, the host has K cores.

    in line   load = b (r + p) + β                                             the training's thread does it all
    cached    load = b c + β                                                   c: out of the memory of the host
    w workers load = t, the time to take a microbatch over
              S = b r,  W = b (p + q) + β + g     a worker waits for S and computes for W; q: it wakes up,
                                                  g: it hands over
              step >= C + m t                                                  the thread's own time
              step >= m (S + W) / w                                            workers in turn, each one microbatch
              step >= (Σ over ranks of (C + m t) + R m W) / K                  no core does two things at once

The largest of the three bounds is reached where batches are made ahead of their step: then each worker always has
work, and a quick microbatch compensates for a slow one. The second and the third are the *period*: a lower bound on the
step time. Where the rest of a step is shorter, `simulator.waits` adds the difference to the first load of the step as
waiting.

On a GPU the copy to the device comes on top of each load. Copied ahead, it overlaps compute, and is a fourth bound:
step >= m × the copy. There the thread only issues work, but keeps its core: K - ranks are left for W.

Left out: workers that share a core slow the training's thread down in bursts; the order of a first epoch's page
cache; workers that start.

How fast the host of a node hands data to its devices: reading, decoding, copying.

Images are decoded and augmented by cores, or by the devices themselves (DALI). A node's devices share its cores, so a
loader that keeps one device busy starves eight. A step never waits for data that are synthetic, or small
and ready in memory. Left out: shuffling, and disks that share a network.
"""

from dataclasses import dataclass

from trimaran.pricing.tables import SampleCosts
from trimaran.pricing.types import Cost, add
from trimaran.program.strategy import Feeding

# A shorter duration says nothing about an uncertainty [s].
_SHORTEST_S = 1e-9


def waiting(samples: SampleCosts, feeding: Feeding, *, microbatch: int) -> Cost:
    """Time that the loader of a microbatch waits for storage and network.

    Args:
        samples: their costs
        feeding: a cache is not waited for
        microbatch: its samples

    Returns:
        The time of first reads; the interval reaches down to that of second ones [s].
    """
    if feeding.cached:
        return Cost(0.0, 0.0, 0.0, samples.read.source)
    read, again = samples.read, samples.read_again
    return Cost(read.seconds, min(read.low, again.low), read.high, read.source).scaled(microbatch)


def working(samples: SampleCosts, feeding: Feeding, *, microbatch: int) -> Cost:
    """Work of a core for a microbatch until the training's thread has it, or a worker has handed it over.

    Args:
        samples: their costs
        feeding: says who loads
        microbatch: its samples

    Returns:
        Work of a core [s].
    """
    each = samples.recall if feeding.cached else samples.prepare
    parts = [each.scaled(microbatch), samples.batch]
    if feeding.workers:
        parts += [samples.give, samples.give_each.scaled(0 if feeding.cached else microbatch)]
    return add(parts)


def load(samples: SampleCosts, feeding: Feeding, *, microbatch: int) -> Cost:
    """Time that the training's thread spends on a microbatch if data arrive in time.

    Args:
        samples: their costs
        feeding: says who loads
        microbatch: its samples

    Returns:
        Its load, without waiting for workers [s].

    Example:
        Two milliseconds a sample of waiting and one of a core, 4 samples, 3 ms a microbatch.

        >>> def exact(seconds):
        ...     return Cost(seconds, seconds, seconds, "example")
        >>> samples = SampleCosts(
        ...     read=exact(2e-3), read_again=exact(2e-3), prepare=exact(1e-3), batch=exact(3e-3), take=exact(5e-4),
        ...     take_per_byte=0.0, start_s=0.1, sample_bytes=8, stored_bytes=8, samples=10, repeats=True)
        >>> load(samples, Feeding(), microbatch=4).seconds, load(samples, Feeding(workers=2), microbatch=4).seconds
        (0.015, 0.0005)
    """
    nbytes = microbatch * samples.sample_bytes
    if feeding.workers:
        parts = [samples.take, _exact(samples.take_per_byte * nbytes, samples.take)]
    else:
        parts = [
            waiting(samples, feeding, microbatch=microbatch),
            working(samples, feeding, microbatch=microbatch),
        ]
    if not feeding.copies_ahead:
        parts.append(_copy(samples, nbytes))
    return add(parts)


def period(
    samples: SampleCosts,
    feeding: Feeding,
    *,
    microbatch: int,
    microbatches: int,
    readers: int = 1,
    busy_s: float = 0.0,
    cores: int,
) -> Cost:
    """Lower bound on the step time by the input pipeline.

    Args:
        samples: their costs
        feeding: says who loads
        microbatch: samples of one
        microbatches: of a step, on each rank that reads
        readers: ranks that read
        busy_s: compute time of the threads of all ranks in a step, their loads included [s]
        cores: that workers and these threads share

    Returns:
        The largest of the time of a rank's workers, of all cores, and of copies; 0 where nothing overlaps the training
        [s].

    Example:
        As for `load`, with 2 workers: 4 samples are 8 ms of waiting and 7 ms of a core. One core has 7 ms of that
        and 4 ms of the training.

        >>> def exact(seconds):
        ...     return Cost(seconds, seconds, seconds, "example")
        >>> samples = SampleCosts(
        ...     read=exact(2e-3), read_again=exact(2e-3), prepare=exact(1e-3), batch=exact(3e-3), take=exact(5e-4),
        ...     take_per_byte=0.0, start_s=0.1, sample_bytes=8, stored_bytes=8, samples=10, repeats=True)
        >>> period(samples, Feeding(workers=2), microbatch=4, microbatches=1, cores=2).seconds  # 15 ms by two
        0.0075
        >>> round(period(samples, Feeding(workers=2), microbatch=4, microbatches=1, busy_s=4e-3, cores=1).seconds, 6)
        0.011
    """
    bounds = []
    if feeding.workers:
        work = working(samples, feeding, microbatch=microbatch)
        still = waiting(samples, feeding, microbatch=microbatch)
        bounds.append(add([still, work]).scaled(microbatches / feeding.workers))
        shared = add([work.scaled(readers * microbatches), _exact(busy_s, work)])
        bounds.append(shared.scaled(1.0 / max(1, cores)))
    if feeding.copies_ahead:
        bounds.append(_copy(samples, microbatch * samples.sample_bytes).scaled(microbatches))
    if not bounds:
        return Cost(0.0, 0.0, 0.0, samples.read.source)
    longest = max(bounds, key=lambda cost: cost.seconds)
    return Cost(
        longest.seconds,
        max(cost.low for cost in bounds),
        max(cost.high for cost in bounds),
        longest.source,
    )


def _copy(samples: SampleCosts, nbytes: int) -> Cost:
    return add([samples.copy, _exact(samples.copy_per_byte * nbytes, samples.copy)])


def _exact(seconds: float, like: Cost) -> Cost:
    """A rate is as uncertain as the fixed part."""
    if like.seconds < _SHORTEST_S:
        return Cost(seconds, seconds, seconds, like.source)
    return Cost(seconds, seconds * like.low / like.seconds, seconds * like.high / like.seconds, like.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderThroughput:
    """Rate at which the host of a node delivers samples.

    Attributes:
        samples_per_s: to all devices of a node together [samples/s]
        device_samples_per_s: to one device, whatever the others do; its loader has `workers` workers [samples/s]
        source: where this comes from
    """

    samples_per_s: float
    device_samples_per_s: float = float("inf")
    source: str

    def wait_s(self, batch: int, *, devices: int, step_s: float) -> float:
        """How long a step waits for its data [s].

        Args:
            batch: samples of a device in a step
            devices: of the node that take part
            step_s: the step, if data were there [s]

        Example:
            >>> LoaderThroughput(samples_per_s=1000.0, source="example").wait_s(100, devices=8, step_s=0.5)
            0.30000000000000004
        """
        needed_s = max(batch * devices / self.samples_per_s, batch / self.device_samples_per_s)
        return max(0.0, needed_s - step_s)
