"""Sets of time as sorted, disjoint intervals `(start [s], end [s])`."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """The time that lies in any of them; they may overlap and come in any order.

    Example:
        >>> unite([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5), (5.0, 5.0)])
        [(0.0, 2.5), (3.0, 4.0)]
    """
    united: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united


def intersect(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that lies in both; each is sorted and disjoint.

    Example:
        >>> intersect([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)])
        [(1.0, 2.0), (3.0, 4.0)]
    """
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that lies in the first and not in the second; each is sorted and disjoint.

    Example:
        >>> subtract([(0.0, 5.0)], [(1.0, 2.0), (4.0, 6.0)])
        [(0.0, 1.0), (2.0, 4.0)]
    """
    rest: list[Interval] = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        at, k = start, j
        while k < len(second) and second[k][0] < end:
            if at < second[k][0]:
                rest.append((at, second[k][0]))
            at = max(at, second[k][1])
            k += 1
        if at < end:
            rest.append((at, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    """Length of disjoint intervals [s].

    Example:
        >>> length([(0.0, 2.0), (3.0, 4.0)])
        3.0
    """
    return sum(end - start for start, end in intervals)
