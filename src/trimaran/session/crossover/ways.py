"""All ways to train on so many devices: replicas of one device, or workers of several, at each local batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.report.crossover.study import Way, Worker
from trimaran.session.crossover.demand import Demand
from trimaran.session.crossover.replicas import Exchanged, Replicas
from trimaran.session.crossover.workers import ALONE, Workers

LINKS = (0.5, 1.0, 2.0)
"""How many times as fast links are tried, for what a crossover rests on."""

LARGEST = 4
"""Local batches are tried up to so many times that of paper mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way whose step is not put together yet, so that parts of it can be otherwise.

    Attributes:
        devices: that it uses
        width: devices of a worker
        local_batch: samples of a worker
        alone_s: a step of one device with that batch [s]
        worker: of several devices; None: of one
        exchanges: what the exchange adds, by how many times as fast links are
        small: how often the local batch of paper mode is halved in it
    """

    devices: int
    width: int
    local_batch: int
    alone_s: float
    worker: Worker | None
    exchanges: Mapping[float, Exchanged]
    small: float

    @property
    def global_batch(self) -> int:
        """Samples of an update."""
        return self.devices // self.width * self.local_batch

    @property
    def speedup(self) -> float:
        """Of a worker over one device."""
        return 1.0 if self.worker is None else self.worker.speedup

    def speedup_on(self, links: float) -> float:
        """The same where links are so many times as fast."""
        if self.worker is None or links == 1.0:
            return self.speedup
        return self.worker.fast_links if links > 1 else self.worker.slow_links

    def step_s(self, links: float = 1.0) -> float:
        """Time of a step [s]."""
        speedup = self.speedup_on(links)
        return self.alone_s / speedup + self.exchanges[links].beside(speedup)

    def way(self, demand: Demand) -> Way:
        """The way with its time."""
        step_s, need = self.step_s(), demand.at(self.global_batch).amount
        return Way(
            devices=self.devices,
            width=self.width,
            local_batch=self.local_batch,
            step_s=step_s,
            alone_s=self.alone_s / self.speedup,
            need=need,
            time_s=step_s * need / self.global_batch if demand.is_absolute else None,
        )


def local_batches(base: int) -> tuple[int, ...]:
    """Local batches that are tried, rising.

    Example:
        >>> local_batches(8), local_batches(6)
        ((1, 2, 4, 8, 16, 32), (1, 3, 6, 12, 24))
    """
    found, batch = [], base * LARGEST
    while batch > 1:
        found.append(batch)
        batch //= 2
    return (1, *reversed(found))


def tried_counts(asked: Sequence[int], width: int) -> tuple[int, ...]:
    """Numbers of devices in use that are tried: those that were asked for, and halves of them.

    Example:
        >>> tried_counts((24,), 1), tried_counts((16,), 4)
        ((3, 6, 12, 24), (4, 8, 16))
    """
    found: set[int] = set()
    for count in asked:
        while count >= width and count % width == 0:
            found.add(count)
            if count % 2:
                break
            count //= 2
    return tuple(sorted(found))


def free_options(
    asked: Sequence[int],
    width: int,
    *,
    base: int,
    replicas: Replicas,
    workers: Workers,
    links: Sequence[float] = LINKS,
) -> tuple[Option, ...]:
    """Every local batch on every number of devices, with predicted exchanges.

    Args:
        asked: numbers of devices
        width: devices of a worker; 1: data parallelism
        base: local batch of paper mode
        replicas: steps of one device, and exchanges
        workers: of several devices
        links: how many times as fast they are tried; 1 among them
    """
    found: list[Option] = []
    for batch in local_batches(base):
        worker = None if width == 1 else workers.at(width, batch)
        if (worker is None or worker.strategy == ALONE) and not replicas.fits(batch):
            continue
        found += [
            Option(
                devices=devices,
                width=width,
                local_batch=batch,
                alone_s=replicas.alone_s(batch),
                worker=worker,
                exchanges={each: replicas.exchange(batch, devices if devices > width else 1, each) for each in links},
                small=_halvings(batch, base),
            )
            for devices in tried_counts(asked, width)
            if devices in asked or replicas.is_even(devices)
        ]
    return tuple(found)


def fixed_options(
    asked: Sequence[int], width: int, *, base: int, replicas: Replicas, workers: Workers
) -> tuple[Option, ...]:
    """The local batch of paper mode on the numbers of devices that were asked for, without exchanges (SE = 1)."""
    nothing = Exchanged(0.0, 0.0, 1.0, 0.0)
    return tuple(
        Option(
            devices=devices,
            width=width,
            local_batch=base,
            alone_s=replicas.alone_s(base),
            worker=None if width == 1 else workers.at(width, base),
            exchanges=dict.fromkeys(LINKS, nothing),
            small=0.0,
        )
        for devices in asked
    )


def _halvings(batch: int, base: int) -> float:
    return max(0.0, math.log2(base / batch))
