"""Why a placement is not faster, in sentences."""

from trimaran.planner.placement.bounds import critical_s
from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout

_CHAIN = 0.97
"""Share of the work on the longest way from which a network is as good as a chain."""


def reasons(flat: Flat, layout: Layout) -> tuple[str, ...]:
    """What keeps a schedule from being shorter.

    Args:
        flat: the problem
        layout: the schedule
    """
    serial_s, longest_s = flat.serial_s, critical_s(flat)
    if serial_s <= 0.0 or flat.devices < 2:
        return ()
    speedup = serial_s / layout.makespan_s if layout.makespan_s > 0 else 1.0
    if longest_s >= _CHAIN * serial_s:
        return (
            f"nearly every operation waits for the one before it (the longest way takes {longest_s / serial_s:.1%} of "
            "the work): no placement of one step gains much; a pipeline, which has several microbatches under way, is "
            "the right answer",
        )
    most = f"no number of devices can do better than {serial_s / longest_s:.2f} (the longest way)"
    if speedup < 1.03:
        return (
            f"there are branches ({most}), but their tensors take longer to cross than it takes to run them where "
            "they are: a faster wire, or more work for each tensor, would help; so may a pipeline",
        )
    alone_s = _alone(flat, layout)
    found = [
        f"in {alone_s / layout.makespan_s:.0%} of the step at most one device computes: where the network narrows to "
        f"one operation, and while tensors cross; {most}"
    ]
    used = len(set(layout.on))
    if used < flat.devices:
        found.append(f"{flat.devices - used} of {flat.devices} devices have nothing to do that would pay for its way")
    return tuple(found)


def _alone(flat: Flat, layout: Layout) -> float:
    """Time in which at most one device computes [s]."""
    events = []
    for task in range(2 * flat.n):
        if layout.end[task] > layout.start[task]:
            events += [(layout.start[task], 1), (layout.end[task], -1)]
    shared_s, busy, since = 0.0, 0, 0.0
    for moment, change in sorted(events):
        if busy > 1:
            shared_s += moment - since
        busy, since = busy + change, moment
    return layout.makespan_s - shared_s
