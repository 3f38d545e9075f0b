"""Lower bounds on any placement.

- The longest way through forwards and backwards, with no transfer.
- The work, shared by all devices.
- Where everything starts from one node and ends in one: devices wait for each other at both ends. Of k devices that are
  used, k - 1 have nothing to do until a first tensor has crossed, and nothing more once their last has to leave; so

      k * forwards >= work of the forwards + (k - 1) * (first arrival + last departure)       for some k

  and the same for the backwards, which begin when all forwards have ended, with the same k.
"""

from collections.abc import Sequence

from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule


def least_s(flat: Flat) -> float:
    """The best of these bounds [s]."""
    simple = max(critical_s(flat), flat.serial_s / flat.devices)
    sinks = sum(not readers for readers in flat.read_by)
    sources = sum(not producers for producers in flat.reads)
    return max(simple, _ends_s(flat)) if sinks == 1 and sources == 1 and flat.wires else simple


def critical_s(flat: Flat) -> float:
    """Longest way through forwards and backwards with no transfer [s]."""
    ended = _ended(flat.forward, flat.reads)
    done = [0.0] * flat.n
    for node in reversed(range(flat.n)):
        ready = max((done[reader] for reader in flat.read_by[node]), default=0.0)
        done[node] = flat.backward[node] + max(ready, ended[node])
    return max(done, default=0.0)


def _ended(seconds: Sequence[float], needs: Sequence[Sequence[int]]) -> list[float]:
    """Earliest end of each node, those that it needs before it; nodes in order [s]."""
    ended = [0.0] * len(seconds)
    for node, before in enumerate(needs):
        ended[node] = seconds[node] + max((ended[other] for other in before), default=0.0)
    return ended


def _ends_s(flat: Flat) -> float:
    """The bound by the start and the end of the forwards and of the backwards [s]."""
    back = list(reversed(range(flat.n)))
    turned = [[flat.n - 1 - other for other in flat.read_by[node]] for node in back]
    # To and from each node, its own time included: forwards from front to back, backwards from back to front.
    forward_to = _ended(flat.forward, flat.reads)
    forward_from = _ended([flat.forward[node] for node in back], turned)[::-1]
    backward_to = _ended([flat.backward[node] for node in back], turned)[::-1]
    backward_from = _ended(flat.backward, flat.reads)
    pairs = list(flat.wires)
    inner = [node for node in range(flat.n) if flat.read_by[node]]
    go = {node: min(flat.crossing_s(node, *pair) for pair in pairs) for node in inner}
    returns = {node: min(flat.returning_s(node, *pair) for pair in pairs) for node in inner}
    first = min((forward_to[node] + go[node] for node in inner), default=0.0)
    last = min((go[node] + min(forward_from[r] for r in flat.read_by[node]) for node in inner), default=0.0)
    first_back = min((min(backward_to[r] for r in flat.read_by[node]) + returns[node] for node in inner), default=0.0)
    last_back = min((returns[node] + backward_from[node] for node in inner), default=0.0)
    forward, backward = sum(flat.forward), sum(flat.backward)
    return min(
        max((forward + (k - 1) * (first + last)) / k, max(forward_to))
        + max((backward + (k - 1) * (first_back + last_back)) / k, max(backward_to))
        for k in range(1, flat.devices + 1)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Why a placement is not faster, in sentences


_CHAIN = 0.97
"""Share of the work on the longest way from which a network is as good as a chain."""


def reasons(flat: Flat, layout: NodeSchedule) -> tuple[str, ...]:
    """The limits of a schedule.

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


def _alone(flat: Flat, layout: NodeSchedule) -> float:
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
