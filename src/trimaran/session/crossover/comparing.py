"""Data parallelism and hybrids on each number of devices: the best way of each, and how sure their order is.

Everything that is unsure is drawn `COUNT` times: the curve (`demand.py`), the workers' speedup by its interval, what
exchanges add (± 30 %, as in `simulator/exchange.py`) and how much less efficient small local batches are. In every draw
both sides choose their best way again. The compute of one device, the least certain of all, is in both and cancels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.report.crossover.study import Row
from trimaran.session.crossover.demand import COUNT, Demand, Draws, spread
from trimaran.session.crossover.ways import Option

EXCHANGE_UNSURE = 1.3
"""The 90 % interval of what an exchange adds, as a factor and its inverse."""

SMALL_UNSURE = 1.03
"""The same of a step for each halving of the local batch, assumed."""

_SEED = 7
_NEVER = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
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
) -> Compared:
    """The best of data parallelism and of hybrids on each number of devices.

    Args:
        counts: numbers of devices
        data: ways of data parallelism
        hybrid: ways with workers of several devices
        demand: what batches need
        idle: devices may be left idle; without it each way uses all
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
                data=best[0].way(demand),
                hybrid=best[1].way(demand),
                speedup=speedup,
                interval=(min(float(low), speedup), max(float(high), speedup)),
                likely=float(np.mean(ratio > 1.0)),
                equal_batch_limit=limit,
                needed_epoch_ratio=_needed_ratio(usable[0], usable[1], limit),
            )
        )
    firsts = _firsts(ahead)
    return Compared(
        rows=tuple(rows),
        devices=next((row.devices for row in rows if row.speedup > 1.0), None),
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
        low, high = option.worker.interval
        factor = np.exp(spread(option.speedup, low, max(high, option.speedup), normals["worker"]))
    exchange = np.exp(spread(1.0, 1 / EXCHANGE_UNSURE, EXCHANGE_UNSURE, normals["exchange"]))
    small = np.exp(option.small * spread(1.0, 1 / SMALL_UNSURE, SMALL_UNSURE, normals["small"]))
    step_s = option.alone_s * small / (option.speedup * factor)
    step_s = step_s + option.exchanges[1.0].beside(option.speedup) * exchange
    return step_s * needs[option.global_batch] / option.global_batch


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
