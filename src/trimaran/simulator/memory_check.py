"""Whether a priced program fits into the memory of its devices; where it does not, what lives there at the peak."""

from collections import defaultdict
from collections.abc import Sequence

from trimaran.base.errors import InfeasibleError
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_bytes
from trimaran.pricing.types import ProgramCosts
from trimaran.program.rules.positions import Spot, draw_grid
from trimaran.program.types import Instruction, Program
from trimaran.simulator.engine import simulate

MOST_LISTED = 6


def check_memory(program: Program, costs: ProgramCosts, memory_bytes: Sequence[int]) -> Timeline:
    """Refuse a program that needs more memory than a device has, and draw the moment.

    Args:
        program: what each rank does
        costs: with its memory
        memory_bytes: what each rank may use [bytes]

    Returns:
        Its simulated step, which fits.

    Raises:
        InfeasibleError: a rank whose live bytes exceed its memory, with the instruction that takes the last of it and
            what else lives
        InputError: the program deadlocks
    """
    timeline = simulate(program, costs)
    for rank, curve in enumerate(timeline.memory):
        limit = memory_bytes[rank] if rank < len(memory_bytes) else None
        peak_s, peak = max(curve, key=lambda entry: entry[1])
        if limit is not None and peak > limit:
            raise _overflow(program, costs, timeline, rank, limit, peak_s, peak)
    return timeline


def _overflow(
    program: Program, costs: ProgramCosts, timeline: Timeline, rank: int, limit: int, peak_s: float, peak: int
) -> InfeasibleError:
    spans = {span.instruction: span for span in timeline if span.rank == rank}
    started = [
        (spans[item.id].start_s, position, item)
        for position, item in enumerate(program.ranks[rank])
        if item.id in spans and costs.memory.get(item.id, (0, 0))[0] and spans[item.id].start_s <= peak_s
    ]
    _, position, last = max(started, key=lambda entry: entry[:2], default=(0.0, 0, program.ranks[rank][0]))
    resident = costs.resident_bytes[rank] if rank < len(costs.resident_bytes) else 0
    lines = [f"  {format_bytes(resident)} parameters, gradients, optimizer state and buffers"]
    living = sorted(_living(program, costs, timeline, rank, peak_s).items(), key=lambda entry: -entry[1])
    lines += [f"  {format_bytes(nbytes)} {what}" for what, nbytes in living[:MOST_LISTED]]
    rest = sum(nbytes for _, nbytes in living[MOST_LISTED:])
    if rest:
        lines.append(f"  {format_bytes(rest)} of {len(living) - MOST_LISTED} others")
    return InfeasibleError(
        f"the program does not fit: {last.id} takes rank {rank} to {format_bytes(peak)}, and its device has "
        f"{format_bytes(limit)}. There are\n" + "\n".join(lines) + f"\n{draw_grid(program, [Spot(rank, position)])}\n"
        "Take fewer microbatches at once, smaller ones, or more devices.",
        code="simulator.out-of-memory",
        rank=rank,
        peak_bytes=peak,
        memory_bytes=limit,
        instruction=last.id,
    )


def _living(program: Program, costs: ProgramCosts, timeline: Timeline, rank: int, peak_s: float) -> dict[str, int]:
    """Bytes that live at a moment on a rank, by the segment and microbatch that they belong to."""
    spans = {span.instruction: span for span in timeline if span.rank == rank}
    living: dict[str, int] = defaultdict(int)
    for item in program.ranks[rank]:
        if item.id not in costs.memory or item.id not in spans:
            continue
        born, died = costs.memory[item.id]
        if spans[item.id].start_s <= peak_s:
            living[_owner(item)] += born
        if spans[item.id].end_s <= peak_s and not spans[item.id].start_s == spans[item.id].end_s == peak_s:
            living[_owner(item)] -= died
    return {what: nbytes for what, nbytes in living.items() if nbytes > 0}


def _owner(item: Instruction) -> str:
    if item.segment is None or item.microbatch is None:
        return f"of {item.token}"
    return f"of microbatch {item.microbatch} of segment {item.segment}"
