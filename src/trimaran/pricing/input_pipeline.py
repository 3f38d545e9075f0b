"""Cost of the input pipeline in a step: the load on the training's thread, and a lower bound on the step time.

A microbatch has b samples. A sample takes r of waiting (storage, network), p of a core, and s of what all ranks of its
host use in turn (a disk, a loader that is one for all); a microbatch, besides its samples β of a core. A step has m
microbatches on each of R ranks of a host that read; each rank's thread spends C on everything except loading, the host
has K cores for loading.

    in line   load = b (r + R s + p max(1, R / K)) + β                         the training's thread does it all
    cached    load = b c + β                                                   c: out of the memory of the host
    w workers load = t, the time to take a microbatch over
              S = b (r + s),  W = b (p + q) + β + g     a worker waits for S and computes for W; q: it wakes up,
                                                        g: it hands over
              step >= C + m t                                                  the thread's own time
              step >= m (S + W) / w                                            workers in turn, each one microbatch
              step >= (Σ over ranks of (C + m t) + R m W) / K                  no core does two things at once
              step >= R m b s                                                  nor does what all share

The largest of the four bounds is reached where batches are made ahead of their step: then each worker always has
work, and a quick microbatch compensates for a slow one. All but the first are the *period*: a lower bound on the
step time. Where the rest of a step is shorter, `simulator.engine.with_waits` adds the difference to the first load
of the step as waiting. Ranks that load in line read at the same time, because they wait for each other once a step:
each has to wait until all of them have had what they share.

On a GPU the copy to the device comes on top of each load. Copied ahead, it overlaps compute, and is another bound:
step >= m × the copy. There the thread only issues work, but keeps its core: K - ranks are left for W.

`InputPipeline` is the same for each node of a machine of the catalog, where nothing is measured: with the costs of a
sample as a person gives them, as a published row shows them, or as they were measured here. A step never waits for data
that are synthetic, or small and ready in memory; then there is none.

Left out: workers that share a core slow the training's thread down in bursts; the order of a first epoch's page
cache; workers that start; shuffling; disks that several nodes share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.machine.topology import host_bandwidth
from trimaran.machine.types import Node
from trimaran.pricing.tables import SampleCosts
from trimaran.pricing.types import Cost, IntervalEnd, add
from trimaran.program.strategy import Feeding

Resource = Literal["thread", "workers", "cores", "shared", "copies"]
"""What bounds a fed step.

Loading in line, the workers of a rank, the cores of the host, what all its ranks use in turn, the copies to a device.
"""

RESOURCES: Mapping[Resource, str] = {
    "thread": "loading in line",
    "workers": "the number of workers",
    "cores": "the cores of the host",
    "shared": "the disk or loader that the devices of a node share",
    "copies": "copies to the devices",
}
"""The same in words."""

WORKERS_PER_CORE = 16
"""Most workers that wait for storage on a core of the host."""

FILLED = 0.85
"""Workers are enough when a microbatch is made in this share of the time that the rest of a step takes: what is left is
for samples that take longer than others."""

_FREE = Cost(0.0, 0.0, 0.0, "nothing")

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


def load(
    samples: SampleCosts, feeding: Feeding, *, microbatch: int, readers: int = 1, cores: int | None = None
) -> Cost:
    """Time that the training's thread spends on a microbatch if data arrive in time.

    Args:
        samples: their costs
        feeding: says who loads
        microbatch: its samples
        readers: ranks of the host that read, at the same time where they load in line
        cores: that they share; None: one for each

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
        crowding = 1.0 if cores is None else max(1.0, readers / cores)
        work = working(samples, feeding, microbatch=microbatch)
        parts = [
            waiting(samples, feeding, microbatch=microbatch),
            work if crowding == 1.0 else work.scaled(crowding),
        ]
        if samples.shared.seconds and not feeding.cached:
            parts.append(samples.shared.scaled(microbatch * readers))
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
    found = bounds(
        samples,
        feeding,
        microbatch=microbatch,
        microbatches=microbatches,
        readers=readers,
        busy_s=busy_s,
        cores=cores,
    )
    if not found:
        return Cost(0.0, 0.0, 0.0, samples.read.source)
    longest = max(found.values(), key=lambda cost: cost.seconds)
    return Cost(
        longest.seconds,
        max(cost.low for cost in found.values()),
        max(cost.high for cost in found.values()),
        longest.source,
    )


def bounds(
    samples: SampleCosts,
    feeding: Feeding,
    *,
    microbatch: int,
    microbatches: int,
    readers: int = 1,
    busy_s: float = 0.0,
    cores: int,
) -> Mapping[Resource, Cost]:
    """Lower bounds on the step time, by what sets them; arguments as of `period`, which is the largest of them.

    Returns:
        Nothing where nothing overlaps the training [s].
    """
    found: dict[Resource, Cost] = {}
    if feeding.workers:
        work = working(samples, feeding, microbatch=microbatch)
        still = waiting(samples, feeding, microbatch=microbatch)
        in_turn = _FREE if feeding.cached else samples.shared.scaled(microbatch)
        alone = [still, work] if not in_turn.seconds else [still, work, in_turn]
        found["workers"] = add(alone).scaled(microbatches / feeding.workers)
        shared = add([work.scaled(readers * microbatches), _exact(busy_s, work)])
        found["cores"] = shared.scaled(1.0 / max(1, cores))
        if in_turn.seconds:
            found["shared"] = in_turn.scaled(readers * microbatches)
    if feeding.copies_ahead:
        found["copies"] = _copy(samples, microbatch * samples.sample_bytes).scaled(microbatches)
    return found


def enough_workers(
    samples: SampleCosts, feeding: Feeding, *, microbatch: int, microbatches: int, limit_s: float
) -> int:
    """The least number of workers of a rank with which a step hardly waits for them.

    Args:
        samples: their costs
        feeding: says how they would load
        microbatch: samples of one
        microbatches: of a step
        limit_s: the step with any number of workers [s]
    """
    one = replace(feeding, workers=1)
    made_s = microbatches * (
        waiting(samples, one, microbatch=microbatch).seconds
        + working(samples, one, microbatch=microbatch).seconds
        + samples.shared.seconds * microbatch
    )
    return max(1, math.ceil(made_s / (FILLED * limit_s))) if limit_s > 0 else 1


def _copy(samples: SampleCosts, nbytes: int) -> Cost:
    return add([samples.copy, _exact(samples.copy_per_byte * nbytes, samples.copy)])


def _exact(seconds: float, like: Cost) -> Cost:
    """A rate is as uncertain as the fixed part."""
    if like.seconds < _SHORTEST_S:
        return Cost(seconds, seconds, seconds, like.source)
    return Cost(seconds, seconds * like.low / like.seconds, seconds * like.high / like.seconds, like.source)


# ---------------------------------------------------------------------------------------------------------------------
# The input pipeline of a node of a machine that is not at hand


# A number of workers such that only cores, what ranks share and copies limit a step.
ANY_NUMBER = 2**20

GIVEN = 0.1
"""Half the width of the 90 % interval of a cost of loading that a person gives, as a share of it: 90 % of published
rows of two loaders are predicted better than half of that from one of them, those measured here about so well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedStep:
    """A step with its wait for data.

    Attributes:
        seconds: of the step [s]
        wait_s: part of it that is spent on data [s]
        limit: what sets the wait; None: data are always ready
        workers: of each rank
    """

    seconds: float
    wait_s: float
    limit: Resource | None
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """Reading, decoding and copying on each node of a machine, whose devices share cores and disk.

    Attributes:
        samples: what a sample costs
        workers: of each rank; 0: its own thread loads; None: the fewest that keep up (`enough_workers`)
        copies_ahead: microbatches that are copied to the device before they are asked for; 0: copied when asked for
        cores: of a node, that load
        node: whose links to the devices copies take; None: copies take what `samples` says
        source: where the figures come from
    """

    samples: SampleCosts
    workers: int | None = None
    copies_ahead: int = 1
    cores: int
    node: Node | None = None
    source: str

    def costs(self, readers: int) -> SampleCosts:
        """Costs of a sample where a number of the node's devices read at the same time: copies share links.

        Args:
            readers: devices of the node that read, the first ones
        """
        return on_links(self.samples, self.node, readers)

    def feeding(self, workers: int) -> Feeding:
        """How a rank is fed by a number of workers."""
        return Feeding(workers=workers, copies_ahead=self.copies_ahead)

    def fed(
        self,
        ready_s: float,
        *,
        batch: int,
        devices: int,
        microbatches: int = 1,
        busy_s: float = 0.0,
        end: IntervalEnd = "seconds",
    ) -> FedStep:
        """A step of equal replicas, each of which reads its samples.

        Args:
            ready_s: the step with data always ready [s]
            batch: samples of a device in a step, over all its microbatches
            devices: of the node that take part
            microbatches: of a step
            busy_s: work of the cores for the steps of all devices, where these compute on them [s]
            end: of the intervals of its costs

        Example:
            Eight devices with 5 workers each on 40 cores; decoding takes 8 ms of a core: 8 × 32 × 8 ms / 40.

            >>> feed = InputPipeline(
            ...     samples=given_samples(decode_s=8e-3, source="example"), workers=5, cores=40, source="example")
            >>> fed = feed.fed(0.04, batch=32, devices=8)
            >>> round(fed.seconds, 6), fed.limit, feed.fed(0.06, batch=32, devices=8).limit
            (0.0512, 'workers', None)
        """
        samples, microbatch = self.costs(devices), batch // microbatches
        workers = self.workers
        if workers is None:
            workers = self.enough_workers(
                samples, ready_s, microbatch=microbatch, microbatches=microbatches, readers=devices
            )
        loaded = load(samples, self.feeding(workers), microbatch=microbatch, readers=devices, cores=self.cores)
        thread_s = ready_s + microbatches * loaded.at(end).seconds
        bounded = self._bounds(samples, workers, microbatch, microbatches, devices, busy_s)
        found = {name: cost.at(end).seconds for name, cost in bounded.items()}
        limit: Resource = max(found, key=lambda name: found[name], default="thread")
        if not found or found[limit] <= thread_s:
            limit = "thread"
        step_s = thread_s if limit == "thread" else found[limit]
        waits = step_s > ready_s
        return FedStep(seconds=step_s, wait_s=step_s - ready_s, limit=limit if waits else None, workers=workers)

    def enough_workers(
        self, samples: SampleCosts, ready_s: float, *, microbatch: int, microbatches: int, readers: int
    ) -> int:
        """The least number of workers of a rank with which a step hardly waits for them, limited by the cores.

        Args:
            samples: what a sample costs
            ready_s: the step with data always ready [s]
            microbatch: samples of one
            microbatches: of a step
            readers: ranks of a node that read
        """
        others = self._bounds(samples, ANY_NUMBER, microbatch, microbatches, readers).values()
        wanted = enough_workers(
            samples,
            self.feeding(1),
            microbatch=microbatch,
            microbatches=microbatches,
            limit_s=max([ready_s, *(cost.seconds for cost in others)]),
        )
        return min(wanted, max(1, WORKERS_PER_CORE * self.cores // max(1, readers)))

    def _bounds(
        self, samples: SampleCosts, workers: int, microbatch: int, microbatches: int, readers: int, busy_s: float = 0.0
    ) -> Mapping[Resource, Cost]:
        return bounds(
            samples,
            self.feeding(workers),
            microbatch=microbatch,
            microbatches=microbatches,
            readers=readers,
            busy_s=busy_s,
            cores=self.cores,
        )


def on_links(samples: SampleCosts, node: Node | None, readers: int) -> SampleCosts:
    """Costs of samples that are copied to the first devices of a node at the same time.

    Args:
        samples: their costs
        node: of a machine of the catalog; None, or one whose transfers are measured: as `samples` says
        readers: devices that are copied to
    """
    if node is None or node.measured or not samples.sample_bytes:
        return samples
    rate = min(host_bandwidth(node, range(min(max(1, readers), node.devices))).values())
    return replace(samples, copy_per_byte=1.0 / rate)


def given_samples(
    *,
    read_s: float = 0.0,
    shared_s: float = 0.0,
    decode_s: float = 0.0,
    sample_bytes: int = 0,
    copy_latency_s: float = 0.0,
    source: str,
) -> SampleCosts:
    """Costs of a sample as they are given, with nothing else.

    Args:
        read_s: waiting of a sample, whatever others wait for [s]
        shared_s: time for which it has what all ranks of the host use in turn [s]
        decode_s: work of a core [s]
        sample_bytes: of a sample that is copied to the device [bytes]
        copy_latency_s: of a copy to the device [s]
        source: of the figures
    """

    def given(seconds: float) -> Cost:
        return Cost(seconds, (1.0 - GIVEN) * seconds, (1.0 + GIVEN) * seconds, source)

    nothing = given(0.0)
    return SampleCosts(
        read=given(read_s),
        read_again=given(read_s),
        prepare=given(decode_s),
        batch=nothing,
        take=nothing,
        take_per_byte=0.0,
        start_s=0.0,
        sample_bytes=sample_bytes,
        stored_bytes=0,
        samples=1,
        repeats=False,
        shared=given(shared_s),
        copy=given(copy_latency_s),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rates at which libraries of published trainings decode and augment photographs. Facts, not fitted.


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingLibrary:
    """A library that decodes and augments photographs of ImageNet's size (about 110 kB, 500 x 375) to 224 x 224.

    Attributes:
        images_per_core_s: of one core [images/s]
        source: where the figures come from
    """

    images_per_core_s: float
    source: str


LOADERS = {
    "torchvision": DecodingLibrary(
        images_per_core_s=110.0, source="Pillow 7 to 9 resized crop of ImageNet: about 100 to 130 images/s a core"
    ),
    "tensorflow": DecodingLibrary(
        images_per_core_s=180.0, source="tf.image decode_and_crop_jpeg, distortions: 150 to 200 images/s a core"
    ),
    "mxnet": DecodingLibrary(
        images_per_core_s=250.0, source="MXNet RecordIO with OpenCV, images resized beforehand to 480 pixels"
    ),
    "dali-cpu": DecodingLibrary(
        images_per_core_s=205.0,
        source="NVIDIA DALI: 7,800 to 8,300 images/s on the 40 cores of a DGX-1, NVIDIA/DeepLearningExamples "
        "PyTorch/Classification/ConvNets (EfficientNet-B0 and ResNet-50 in half precision on 8 GPUs)",
    ),
    "dali": DecodingLibrary(
        images_per_core_s=500.0, source="NVIDIA DALI, entropy decoding on cores, the rest on the device"
    ),
}
"""Libraries by name. Images are decoded and augmented by cores, or by the devices themselves (DALI)."""
