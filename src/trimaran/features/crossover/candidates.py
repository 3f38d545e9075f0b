"""Data parallelism and hybrids on each number of devices: the best set-up of each, and how sure their order is.

Everything that is unsure is drawn `COUNT` times: the curve, the workers' speedup by its interval, what exchanges add by
the ends that `scale` gives them, and how much less efficient small local batches are. In every draw both
sides choose their best set-up again. The compute of one device, the least certain of all, is in both and cancels.

How many samples each global batch needs, in figures that compare batches, and how unsure they are together.

A curve says how unsure a batch is by itself. Errors of two batches that are close go together (the same runs, the same
form), those of distant ones less: correlation exp(−(ln B₁ − ln B₂)² / 2ℓ²) with ℓ = ln 4, assumed.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trimaran.features.crossover.steps import ALONE, Exchanged, Replicas, Workers
from trimaran.report.crossover import Row, TrainingWay, Worker

if TYPE_CHECKING:
    from trimaran.convergence.curve import Curve


Draws = NDArray[np.float64]
"""One value for each draw."""

COUNT = 400
"""Draws of everything that is unsure."""

NINETY = 1.645
"""Half-width of a 90 % interval by its standard deviation, of a normal law."""

_REACH = math.log(4.0)


@dataclass(frozen=True, slots=True)
class SamplesToTarget:
    """Samples to the target, or a figure in proportion to them, with a 90 % interval."""

    amount: float
    low: float
    high: float

    def drawn(self, normal: Draws) -> Draws:
        """The amount where standard normal draws say how far off it is."""
        return self.amount * np.exp(spread(self.amount, self.low, self.high, normal))

    def leaning(self, share: float) -> float:
        """The amount so far towards the high end (1) or the low end (−1)."""
        end = self.high if share > 0 else self.low
        return self.amount * math.exp(abs(share) * math.log(end / self.amount))


@dataclass(slots=True)
class Demand:
    """Samples that batches need by a curve; without a curve all need the same, which says nothing of convergence.

    Attributes:
        curve: None where there is none
    """

    curve: "Curve | None"
    _known: dict[int, SamplesToTarget] = field(default_factory=dict)

    @property
    def is_absolute(self) -> bool:
        """Whether samples themselves are known, so that a time is."""
        if self.curve is None:
            return False
        table = self.curve.table
        per_unit = {"epochs": table.samples_per_epoch, "tokens": table.tokens_per_sample}
        return per_unit.get(table.unit, 1) is not None

    def at(self, batch: int) -> SamplesToTarget:
        """Samples to the target of a global batch."""
        if batch not in self._known:
            self._known[batch] = self._need(batch)
        return self._known[batch]

    def draws(self, batches: Sequence[int], random: np.random.Generator) -> Mapping[int, Draws]:
        """Samples to the target of each batch in each draw."""
        kept = sorted(set(batches))
        logs = np.log(np.array(kept, dtype=float))
        likeness = np.exp(-((logs[:, None] - logs[None, :]) ** 2) / (2 * _REACH**2))
        values, vectors = np.linalg.eigh(likeness)
        roots = vectors * np.sqrt(np.clip(values, 0.0, None))
        normals = roots @ random.standard_normal((len(kept), COUNT))
        return {batch: self.at(batch).drawn(normals[place]) for place, batch in enumerate(kept)}

    def steeper(self, batches: Sequence[int], share: float) -> Mapping[int, float]:
        """Samples that batches need under the steepest (1) or the flattest (−1) curve within the intervals.

        The smallest batch is at one end of its interval, the largest at the other, those between them in between.
        """
        logs = {batch: math.log(batch) for batch in batches}
        low, high = min(logs.values()), max(logs.values())
        width = (high - low) or 1.0
        return {batch: self.at(batch).leaning(share * (2 * (at - low) / width - 1)) for batch, at in logs.items()}

    def _need(self, batch: int) -> SamplesToTarget:
        if self.curve is None:
            return SamplesToTarget(1.0, 1.0, 1.0)
        need, table = self.curve.need(batch), self.curve.table
        # What a study projects is what it says; a measured mean is not the last word.
        stated = [point.amount for point in table.points if table.projection and point.global_batch == batch]
        amount = stated[0] if stated else need.amount
        factor = {"epochs": table.samples_per_epoch or 1.0, "tokens": 1.0 / (table.tokens_per_sample or 1.0)}
        scale = factor.get(need.unit, 1.0)
        return SamplesToTarget(amount * scale, min(need.low, amount) * scale, max(need.high, amount) * scale)


def spread(amount: float, low: float, high: float, normal: Draws) -> Draws:
    """Logarithms of draws by an amount, whose interval need not be symmetric.

    Args:
        amount: the median
        low: lower end of the 90 % interval
        high: upper end
        normal: standard normal draws
    """
    below = math.log(amount / low) / NINETY if low > 0 else 0.0
    above = math.log(high / amount) / NINETY
    return np.where(normal < 0, normal * below, normal * above)


# ---------------------------------------------------------------------------------------------------------------------
# All set-ups on a number of devices: replicas of one device, or workers of several, at each local batch


LINKS = (0.5, 1.0, 2.0)
"""Factors on the rate of links that are tried, for the sensitivities of a crossover."""

LARGEST = 4
"""Local batches are tried up to this multiple of that of paper mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set-up whose step is kept in parts, so that each of them can be changed.

    Attributes:
        devices: that it uses
        width: devices of a worker
        local_batch: samples of a worker
        alone_s: a step of one device with that batch [s]
        worker: of several devices; None: of one
        exchanges: what the exchange adds, by the factor on the rate of links
        small: how often the local batch of paper mode is halved in it
        simulated_s: the step of all workers, simulated; None: its parts are the step [s]
    """

    devices: int
    width: int
    local_batch: int
    alone_s: float
    worker: Worker | None
    exchanges: Mapping[float, Exchanged]
    small: float
    simulated_s: float | None = None

    @property
    def global_batch(self) -> int:
        """Samples of an update."""
        return self.devices // self.width * self.local_batch

    @property
    def speedup(self) -> float:
        """Of a worker over one device."""
        return 1.0 if self.worker is None else self.worker.speedup

    def speedup_on(self, links: float) -> float:
        """The same where the rate of links is multiplied by a factor."""
        if self.worker is None or links == 1.0:
            return self.speedup
        return self.worker.speedup_links_double if links > 1 else self.worker.speedup_links_half

    @property
    def whole(self) -> float:
        """The simulated step by the sum of its parts; 1 where it is not simulated."""
        return 1.0 if self.simulated_s is None else self.simulated_s / self._parts_s(1.0)

    def step_s(self, links: float = 1.0) -> float:
        """Time of a step [s]."""
        return self.whole * self._parts_s(links)

    def _parts_s(self, links: float) -> float:
        speedup = self.speedup_on(links)
        return self.alone_s / speedup + self.exchanges[links].added_s(speedup)

    def way(self, demand: Demand) -> TrainingWay:
        """The way with its time."""
        step_s, need = self.step_s(), demand.at(self.global_batch).amount
        return TrainingWay(
            devices=self.devices,
            model_parallel_width=self.width,
            local_batch_size=self.local_batch,
            step_time_s=step_s,
            worker_alone_s=self.alone_s / self.speedup,
            need=need,
            time_to_accuracy_s=step_s * need / self.global_batch if demand.is_absolute else None,
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
    known: tuple[int, int] | None = None,
) -> tuple[Option, ...]:
    """Every local batch on every number of devices, with predicted exchanges.

    Args:
        asked: numbers of devices
        width: devices of a worker; 1: data parallelism
        base: local batch of paper mode
        replicas: steps of one device, and exchanges
        workers: of several devices
        links: factors on their rate that are tried; 1 among them
        known: smallest and largest global batch that is tried, such as those of a curve; None: any
    """
    least, most = known or (1, math.inf)
    found: list[Option] = []
    for batch in local_batches(base):
        worker = None if width == 1 else workers.at(width, batch)
        is_alone = worker is None or worker.strategy == ALONE
        if is_alone and not replicas.fits(batch):
            continue
        # Of a worker in which one device works alone, the others exchange nothing.
        across = width if is_alone else 1
        found += [
            Option(
                devices=devices,
                width=width,
                local_batch=batch,
                alone_s=replicas.alone_s(batch),
                worker=worker,
                exchanges={
                    each: replicas.exchange(
                        batch, devices // across if devices > width else 1, each, width=width // across
                    )
                    for each in links
                },
                small=_halvings(batch, base),
                simulated_s=None if width == 1 else workers.step_s(width, batch, devices),
            )
            for devices in tried_counts(asked, width)
            if (devices in asked or replicas.is_even(devices)) and least <= devices // width * batch <= most
        ]
    return tuple(found)


def as_planned(counts: Sequence[int], hybrid: Iterable[Option], demand: Demand, workers: Workers) -> tuple[Option, ...]:
    """The ways of hybrids, of which the best on each number of devices has the step that the planner answers there.

    Args:
        counts: numbers of devices
        hybrid: ways with workers of several devices
        demand: what batches need
        workers: that asks the planner
    """
    found, planned = list(hybrid), set[int]()
    for count in counts:
        while usable := [place for place, one in enumerate(found) if one.devices <= count]:
            best = min(usable, key=lambda place: _cost(found[place], demand))
            if best in planned:
                break
            planned.add(best)
            found[best] = _planned(found[best], workers)
    return tuple(found)


def _planned(one: Option, workers: Workers) -> Option:
    """An option as the planner answers it, also where one device of each worker alone would do its work."""
    answer = workers.planned(one.width, one.local_batch, one.devices)
    if answer is None or one.worker is None:
        return one
    if one.simulated_s is not None:
        return dataclasses.replace(one, simulated_s=answer.step_time_s)
    if answer.step_time_s >= one.step_s():
        return one
    spread_over = dataclasses.replace(answer.strategy, dp=1).name
    return dataclasses.replace(
        one, simulated_s=answer.step_time_s, worker=dataclasses.replace(one.worker, strategy=spread_over)
    )


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


SMALL_UNSURE = 1.03
"""The 90 % interval of a step for each halving of the local batch, as a factor and its inverse: assumed."""

_SEED = 7
_NEVER = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRows:
    """Rows, and the first of them in which the hybrid is ahead.

    Attributes:
        rows: by devices
        devices: the first count at which it is ahead; None: at none
        interval: 90 % of that
        never: share of the draws in which it is at none
    """

    rows: tuple[Row, ...]
    devices: int | None
    interval: tuple[int | None, int | None]
    never: float


def compare(
    counts: Sequence[int], data: Sequence[Option], hybrid: Sequence[Option], demand: Demand, *, idle: bool
) -> ComparedRows:
    """The best of data parallelism and of hybrids on each number of devices.

    Args:
        counts: numbers of devices
        data: ways of data parallelism
        hybrid: ways with workers of several devices
        demand: what batches need
        idle: devices may be left idle; without it each set-up uses all
    """
    random = np.random.default_rng(_SEED)
    batches = [option.global_batch for option in (*data, *hybrid)]
    needs = demand.draws(batches, random)
    normals = {name: random.standard_normal(COUNT) for name in ("worker", "exchange", "small")}
    drawn = {id(one): _drawn(one, needs, normals) for one in (*data, *hybrid)}
    rows, ahead = [], []
    for count in counts:
        usable = [_usable(options, count, idle=idle) for options in (data, hybrid)]
        if not all(usable):
            continue
        best = [min(options, key=lambda one: _cost(one, demand)) for options in usable]
        ratio = _least(drawn, usable[0]) / _least(drawn, usable[1])
        ahead.append((count, ratio > 1.0))
        low, high = np.quantile(ratio, (0.05, 0.95))
        speedup = _cost(best[0], demand) / _cost(best[1], demand)
        limit = equal_batch_limit(usable[0], usable[1])
        rows.append(
            Row(
                devices=count,
                data_parallel=best[0].way(demand),
                hybrid=best[1].way(demand),
                speedup_over_dp=speedup,
                speedup_interval=(min(float(low), speedup), max(float(high), speedup)),
                likely=float(np.mean(ratio > 1.0)),
                equal_batch_limit=limit,
                needed_epoch_ratio=None if idle and limit is None else _needed_ratio(usable[0], usable[1], limit),
            )
        )
    firsts = _firsts(ahead)
    return ComparedRows(
        rows=tuple(rows),
        devices=next((row.devices for row in rows if row.ahead_by > 1.0), None),
        interval=(
            _count(np.quantile(firsts, 0.05, method="lower")),
            _count(np.quantile(firsts, 0.95, method="higher")),
        ),
        never=float(np.mean(firsts == _NEVER)),
    )


def first_ahead(
    counts: Sequence[int],
    data: Sequence[Option],
    hybrid: Sequence[Option],
    cost: Callable[[Option], float],
    *,
    idle: bool,
) -> int | None:
    """The first number of devices at which the hybrid is ahead; None: at none.

    Args:
        counts: numbers of devices, rising
        data: ways of data parallelism
        hybrid: ways with workers of several devices
        cost: of a way, such as its time to the target
        idle: devices may be left idle
    """
    for count in counts:
        usable = [_usable(options, count, idle=idle) for options in (data, hybrid)]
        if all(usable) and min(map(cost, usable[1])) < min(map(cost, usable[0])):
            return count
    return None


def equal_batch_limit(data: Iterable[Option], hybrid: Iterable[Option]) -> int | None:
    """The largest global batch at which a hybrid's step is shorter than any of data parallelism with that batch.

    Args:
        data: ways of data parallelism
        hybrid: ways with workers of several devices
    """
    steps = [_steps(options) for options in (data, hybrid)]
    ahead = [batch for batch, step_s in steps[1].items() if step_s < steps[0].get(batch, float("inf"))]
    shared = [batch for batch in ahead if batch in steps[0]]
    return max(shared, default=None)


def _steps(options: Iterable[Option]) -> dict[int, float]:
    """The shortest step of each global batch [s]."""
    found: dict[int, float] = {}
    for option in options:
        found[option.global_batch] = min(option.step_s(), found.get(option.global_batch, float("inf")))
    return found


def _needed_ratio(data: Sequence[Option], hybrid: Sequence[Option], limit: int | None) -> float:
    """Epochs of the batch with the most samples a second, by those of the hybrid's, above which the latter is ahead."""
    dense = [one for one in hybrid if limit is None or one.global_batch == limit]
    return min(one.step_s() / one.global_batch for one in dense) / min(one.step_s() / one.global_batch for one in data)


def _usable(options: Iterable[Option], count: int, *, idle: bool) -> list[Option]:
    return [one for one in options if one.devices == count or (idle and one.devices < count)]


def _cost(option: Option, demand: Demand) -> float:
    return option.step_s() * demand.at(option.global_batch).amount / option.global_batch


def _drawn(option: Option, needs: Mapping[int, Draws], normals: Mapping[str, Draws]) -> Draws:
    factor = np.ones(COUNT)
    if option.worker is not None and option.speedup > 1.0:
        low, high = option.worker.speedup_interval
        factor = np.exp(spread(option.speedup, low, max(high, option.speedup), normals["worker"]))
    low, high = option.exchanges[1.0].ends
    far = normals["exchange"] / NINETY
    exchange = np.maximum(0.0, 1.0 + np.where(far < 0, far * (1.0 - low), far * (high - 1.0)))
    small = np.exp(option.small * spread(1.0, 1 / SMALL_UNSURE, SMALL_UNSURE, normals["small"]))
    step_s = option.alone_s * small / (option.speedup * factor)
    step_s = step_s + option.exchanges[1.0].added_s(option.speedup) * exchange
    return option.whole * step_s * needs[option.global_batch] / option.global_batch


def _least(drawn: Mapping[int, Draws], options: Iterable[Option]) -> Draws:
    least: Draws = np.min([drawn[id(one)] for one in options], axis=0)
    return least


def _firsts(ahead: Sequence[tuple[int, "np.typing.NDArray[np.bool_]"]]) -> Draws:
    firsts = np.full(COUNT, _NEVER)
    for count, is_ahead in reversed(ahead):
        firsts[is_ahead] = count
    return firsts


def _count(value: float) -> int | None:
    return None if value == _NEVER else int(value)
