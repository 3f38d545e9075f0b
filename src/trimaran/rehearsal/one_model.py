"""Do the ranks of a script train one model? Rules on what they exchange; the first: that they exchange anything."""

import math
from collections.abc import Sequence

from trimaran.rehearsal.record import Frame, Issue, Record, Run, Step


def apart(records: Sequence[Record]) -> tuple[Frame, ...] | None:
    """Where ranks update models of which they exchange nothing; None: they exchange, or take no step.

    Neither numbers, as of a loss that is logged, nor objects nor barriers make one model of several, nor do broadcasts
    before the first step and in a forward, as DDP's of its buffers.

    Args:
        records: of ranks that were rehearsed

    Returns:
        The line that updates, innermost first; empty where it is not known.
    """
    if not records or records[0].world < 2 or not all(any(type(one) is Step for one in it.events) for it in records):
        return None
    if any(map(_exchanges, records)):
        return None
    first = records[0]
    runs = (one for one in first.events if type(one) is Run and one.part == "update")
    return next((first.lines[one.lines] for one in runs if one.lines > 0), ())


def _exchanges(record: Record) -> bool:
    """Whether a rank gives others more than a number once its training has begun."""
    for event in record.events:
        if type(event) is not Issue:
            continue
        one = record.collectives[event.collective]
        group = record.groups.get(one.group)
        if one.part == "setup" or one.operation.endswith("_object") or (group is not None and len(group.ranks) < 2):
            continue
        in_a_forward = one.part == "forward" and bool(one.module)
        if one.operation == "barrier" or (one.operation == "broadcast" and in_a_forward):
            continue
        if any(math.prod(form.shape) > 1 for form in (*one.inputs, *one.outputs)):
            return True
    return False
