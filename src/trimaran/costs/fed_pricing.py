"""The loads of a program whose strategy does not load in line, and how often its data come."""

from collections.abc import Iterable, MutableMapping
from dataclasses import replace

from trimaran.costs import fed_step
from trimaran.costs.tables import CostTable, StepCosts
from trimaran.costs.types import Cost, Transfer
from trimaran.program.feeding import Feeding
from trimaran.program.types import Kind, Program, Strategy


def price_feeding(
    program: Program,
    strategy: Strategy,
    table: CostTable,
    step: StepCosts | None,
    compute: MutableMapping[str, Cost],
    transfers: Iterable[Transfer],
    beside: Iterable[float],
    *,
    microbatch: int,
) -> Cost | None:
    """Replace what loads cost in line by what they cost as the strategy feeds, and find how often data come.

    Args:
        program: one step; an evaluation loads in line, whatever its strategy says
        strategy: says how ranks are fed
        table: of this machine
        step: has what samples take; where nobody measured it, loads keep their price in line as the most they take
        compute: price of each instruction that is not communication; those of loads are replaced
        transfers: of all communication; of a collective of two sums both
        beside: what the threads of ranks do for each communication: handling, and decoding of what came [s]
        microbatch: samples of one

    Returns:
        The time below which no step comes [s]; None where the training's own thread does all the loading.
    """
    feeding = strategy.feeding
    loads = [item for item in program if item.kind == Kind.LOAD]
    is_training = any(item.kind == Kind.FORWARD for item in program)
    if not is_training or not loads or _is_in_line(feeding):
        return None
    samples = None if step is None else step.samples
    if samples is None:
        for item in loads:
            compute[item.id] = replace(compute[item.id], low=0.0, source="assumed: at most what it takes in line")
        return None
    cost = fed_step.load(samples, feeding, microbatch=microbatch)
    for item in loads:
        compute[item.id] = cost
    if not feeding.workers and not feeding.copies_ahead:
        return None
    copies = strategy.devices / len(program.ranks)  # one replica may stand for all
    readers = len({item.rank for item in loads})
    on_host = table.fingerprint.kind == "cpu"
    cores = table.fingerprint.cores
    busy_s = 0.0
    if on_host:
        held = bool(table.fingerprint.link)
        busy_s = copies * (
            sum(entry.seconds for entry in compute.values())
            + sum(beside)
            # Unless something holds a local link back, its bytes are moved by cores.
            + sum(0.0 if held else entry.flow_s for entry in transfers)
        )
    return fed_step.period(
        samples,
        feeding,
        microbatch=microbatch,
        microbatches=max(1, len(loads) // max(1, readers)),
        readers=round(readers * copies),
        busy_s=busy_s,
        cores=cores if on_host else max(1, cores - strategy.devices),
    )


def _is_in_line(feeding: Feeding) -> bool:
    return not (feeding.workers or feeding.cached or feeding.copies_ahead)
