"""The schedules of stages as one schedule, and side nodes put back into it."""

from collections.abc import Sequence

from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.heft import Filling
from trimaran.planner.placement.lay import Layout, lay
from trimaran.planner.placement.stages import Stage


def swapped(flat: Flat, layout: Layout, one: int, other: int) -> Layout:
    """The same schedule with two devices exchanged, on a machine where all are alike."""
    if one == other:
        return layout
    new = {one: other, other: one}
    n, devices = flat.n, flat.devices

    def moved(item: int) -> int:
        if item < 2 * n:
            return item
        device = (item - 2 * n) % devices
        return item - device + new.get(device, device)

    return lay(flat, [new.get(device, device) for device in layout.on], [moved(item) for item in layout.order])


def joined(flat: Flat, parts: Sequence[tuple[Stage, Flat, Layout]]) -> Layout:
    """Stages one after another: forwards in order, backwards in reverse.

    Args:
        flat: the whole problem
        parts: each stage with its problem and its schedule, whose entry is where the stage before has its exit
    """
    on = [0] * flat.n
    order: list[int] = []
    backwards: list[list[int]] = []
    if parts[0][0].entry:
        order.append(parts[0][0].first)
    for stage, part, layout in parts:
        for node in range(part.n):
            on[stage.first + node] = layout.on[node]
        items = [_global(flat, part, stage, item) for item in layout.order]
        turn, entry = flat.n + stage.last, stage.first
        at = items.index(turn) if stage.exit else len(items)
        order += [item for item in items[:at] if not (stage.entry and item == entry)]
        backwards.append([item for item in items[at:] if item != turn])
    if parts[-1][0].exit:
        order.append(flat.n + parts[-1][0].last)
    for items in reversed(backwards):
        order += items
    return lay(flat, on, order)


def _global(flat: Flat, part: Flat, stage: Stage, item: int) -> int:
    """An item of a stage by its number in the whole problem."""
    devices = flat.devices
    if item < part.n:
        return stage.first + item
    if item < 2 * part.n:
        return flat.n + stage.first + item - part.n
    kind, rest = divmod(item - 2 * part.n, part.n * devices)
    return 2 * flat.n + kind * flat.n * devices + stage.first * devices + rest


def put_back(flat: Flat, layout: Layout, kept: Sequence[int], part: Flat, dropped: Sequence[int]) -> Layout:
    """The whole problem's schedule from one that leaves out some nodes.

    Each connected group of them goes to the device on which the step ends first; a forward right after its inputs, a
    backward right after the gradients that it needs, both in gaps where there are any.
    """
    n = flat.n
    on = [-1] * n
    for index, node in enumerate(kept):
        on[node] = layout.on[index]
    tasks = [kept[item] if item < part.n else n + kept[item - part.n] for item in layout.order if item < 2 * part.n]
    for group in _groups(flat, dropped):
        tasks = _inserted(flat, tasks, group)
        pinned = next((flat.pins[node] for node in group if node in flat.pins), None)
        ends = []
        for device in range(flat.devices) if pinned is None else (pinned,):
            for node in group:
                on[node] = device
            ends.append((_filled(flat, on, tasks).makespan_s, device))
        for node in group:
            on[node] = min(ends)[1]
    return _filled(flat, on, tasks)


def _groups(flat: Flat, nodes: Sequence[int]) -> list[list[int]]:
    """Nodes that are joined by edges, together."""
    left = set(nodes)
    groups = []
    for node in nodes:
        if node not in left:
            continue
        left.discard(node)
        group, waiting = [], [node]
        while waiting:
            found = waiting.pop()
            group.append(found)
            near = [other for other in (*flat.reads[found], *flat.read_by[found]) if other in left]
            left.difference_update(near)
            waiting.extend(near)
        groups.append(sorted(group))
    return groups


def _inserted(flat: Flat, tasks: Sequence[int], group: Sequence[int]) -> list[int]:
    """The sequence with the forwards and backwards of a group as early as they can be listed."""
    n = flat.n
    found = list(tasks)
    for node in group:
        at = max((found.index(producer) for producer in flat.reads[node] if producer in found), default=-1)
        found.insert(at + 1, node)
    for node in reversed(group):
        needs = [node, *(n + reader for reader in flat.read_by[node])]
        at = max(found.index(task) for task in needs if task in found)
        found.insert(at + 1, n + node)
    return found


def _filled(flat: Flat, on: Sequence[int], tasks: Sequence[int]) -> Layout:
    """The schedule of a sequence in which what is not placed yet is passed over."""
    filling = Filling(flat, [max(device, 0) for device in on])
    for task in _ordered(flat, tasks):
        filling.put(task, filling.on[task % flat.n])
    return filling.done()


def _ordered(flat: Flat, tasks: Sequence[int]) -> list[int]:
    """All tasks in the given order, each moved behind what it needs; missing ones where they first can be."""
    n = flat.n
    place = {task: index for index, task in enumerate(tasks)}
    done: set[int] = set()
    order: list[int] = []

    def needs(task: int) -> list[int]:
        if task < n:
            return flat.reads[task]
        return [task - n, *(n + reader for reader in flat.read_by[task - n])]

    def visit(task: int) -> None:
        stack = [task]
        while stack:
            top = stack[-1]
            missing = [other for other in needs(top) if other not in done]
            if missing:
                stack.extend(sorted(missing, key=lambda other: place.get(other, 2 * n), reverse=True))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                order.append(top)

    for task in (*tasks, *range(2 * n)):
        if task not in done:
            visit(task)
    return order
