"""Chains drawn at random, and recipes for what they make."""

import random
from collections.abc import Collection, Sequence

from tests.memory_chains import KIB, Unit, chain_trace

from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.program.memory import RecomputeRecipe


def random_chain(
    draw: random.Random,
    *,
    least: int = 4,
    most: int = 9,
    skips: bool = False,
    keeps: Sequence[str] = ("input", "output"),
) -> StepTrace:
    """A chain drawn at random: cheap wide operations between expensive ones, as networks have them.

    Args:
        draw: what to draw from
        least: units
        most: units
        skips: whether some units read an earlier output too
        keeps: what units may keep
    """
    units = []
    for number in range(draw.randint(least, most)):
        expensive = draw.random() < 0.5
        forward_s = draw.uniform(2e-3, 8e-3) if expensive else draw.uniform(1e-4, 8e-4)
        skip = draw.randrange(number - 1) if skips and number > 2 and draw.random() < 0.3 else None
        units.append(
            Unit(
                nbytes=draw.randint(1, 64) * 1024 * KIB,
                forward_s=forward_s,
                backward_s=2 * forward_s,
                keeps=draw.choice(list(keeps)),
                skip=skip,
                weight_bytes=draw.randint(1, 64) * KIB if expensive else 0,
            )
        )
    return chain_trace(units, batch_bytes=draw.randint(1, 16) * 1024 * KIB)


def recipe_from(trace: StepTrace, storage: int, present: Collection[int]) -> RecomputeRecipe | None:
    """How to make a storage of a chain again from what is there.

    Args:
        trace: from `chain_trace`
        storage: what to make
        present: storages that are on the device, beside parameters

    Returns:
        The recipe; None where no operation makes it, or one cannot be repeated.
    """
    makers = {number: op for op in trace.ops for number, _ in op.writes}
    ops: set[int] = set()
    sources: set[int] = set()
    wanted = [storage]
    while wanted:
        number = wanted.pop()
        always = trace.storages[number].role == Role.PARAMETER
        if number != storage and (number in present or always):
            sources.add(number)
            continue
        op = makers.get(number)
        if op is None or not op.repeatable:
            return None
        ops.add(op.moment)
        wanted += [read for read, _ in op.reads if read != number]
    moments = tuple(sorted(ops))
    durations_s = [
        op.duration_s or 0.0 for op in (trace.events[moment] for moment in moments) if isinstance(op, TraceOp)
    ]
    return RecomputeRecipe(storage=storage, ops=moments, sources=tuple(sorted(sources)), duration_s=sum(durations_s))
