"""One width of workers against data parallelism: rows, the crossover, what it would be otherwise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.costs.hybrid import needed_free_speedup
from trimaran.report.crossover.study import Basis, Crossing, Sensitivity, Worker
from trimaran.session.crossover.comparing import compare, first_ahead
from trimaran.session.crossover.demand import Demand
from trimaran.session.crossover.reasons import lack_of_memory, reason_of
from trimaran.session.crossover.replicas import Replicas
from trimaran.session.crossover.request import counts_of
from trimaran.session.crossover.ways import LINKS, Option, fixed_options, free_options
from trimaran.session.crossover.workers import ALONE, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What all widths share.

    Attributes:
        asked: numbers of devices
        base: local batch of paper mode
        replicas: steps of one device, and exchanges
        workers: of several devices
        demand: what batches need
    """

    asked: tuple[int, ...]
    base: int
    replicas: Replicas
    workers: Workers
    demand: Demand


def cross(case: Case, width: int, basis: Basis) -> Crossing:
    """A width on a basis.

    Args:
        case: what all widths share
        width: devices of a worker
        basis: how it is reckoned
    """
    counts = counts_of(case.asked, width)
    data, hybrid = (_options(case, counts, each, basis) for each in (1, width))
    idle = basis == "ours"
    found = compare(counts, data, hybrid, case.demand, idle=idle)
    worker = case.workers.at(width, case.base)
    needed = _needed_speedup(case, width)
    is_known = case.demand.curve is not None
    return Crossing(
        width=width,
        basis=basis,
        worker=worker,
        needed_speedup=needed,
        devices=found.devices if is_known else None,
        interval=found.interval if is_known else (None, None),
        never=found.never,
        rows=found.rows,
        sensitivities=_sensitivities(case, counts, data, hybrid, worker, idle=idle) if is_known else (),
        reason=lack_of_memory(width, data, hybrid)
        or reason_of(
            found.rows,
            worker,
            basis,
            case.demand,
            devices=found.devices if is_known else None,
            needed=needed,
            idle=all(one.worker is not None and one.worker.strategy == ALONE for one in hybrid),
        ),
    )


def _needed_speedup(case: Case, width: int) -> float | None:
    share = case.base // width
    if share < 1:
        return None
    return needed_free_speedup(case.replicas.alone_s(case.base), case.replicas.alone_s(share))


def _options(case: Case, counts: Sequence[int], width: int, basis: Basis) -> tuple[Option, ...]:
    if basis == "paper":
        return fixed_options(counts, width, base=case.base, replicas=case.replicas, workers=case.workers)
    return free_options(
        counts,
        width,
        base=case.base,
        replicas=case.replicas,
        workers=case.workers,
        links=LINKS if case.demand.curve is not None else (1.0,),
    )


def _sensitivities(
    case: Case,
    counts: Sequence[int],
    data: Sequence[Option],
    hybrid: Sequence[Option],
    worker: Worker,
    *,
    idle: bool,
) -> tuple[Sensitivity, ...]:
    """The crossover with one thing otherwise."""
    demand = case.demand
    batches = sorted({one.global_batch for one in (*data, *hybrid)})
    usual = {batch: demand.at(batch).amount for batch in batches}
    flatter, steeper = demand.steeper(batches, -1.0), demand.steeper(batches, 1.0)
    found: list[Sensitivity] = []

    def note(change: str, cost: Callable[[Option], float]) -> None:
        found.append(Sensitivity(change=change, devices=first_ahead(counts, data, hybrid, cost, idle=idle)))

    low, high = (end / worker.speedup for end in worker.interval)
    for factor, end in ((low, worker.interval[0]), (high, worker.interval[1])):
        note(f"workers of {worker.width} {end:.2f} times as fast", _with_workers(usual, factor))
    for change, needs in (("curve as flat as its interval allows", flatter), ("curve as steep", steeper)):
        note(change, _with_workers(needs, 1.0))
    for change, links in (("links half as fast", 0.5), ("links twice as fast", 2.0)):
        note(change, _on_links(usual, links))
    return tuple(found)


def _with_workers(needs: Mapping[int, float], factor: float) -> Callable[[Option], float]:
    """Time to the target by what batches need, with workers of several devices so many times as fast."""

    def cost(one: Option) -> float:
        changed_s = 0.0
        if one.worker is not None:
            speedup = max(1.0, one.speedup * factor)
            changed_s = one.alone_s / speedup - one.alone_s / one.speedup
        return (one.step_s() + changed_s) * needs[one.global_batch] / one.global_batch

    return cost


def _on_links(needs: Mapping[int, float], links: float) -> Callable[[Option], float]:
    return lambda one: one.step_s(links) * needs[one.global_batch] / one.global_batch
