"""As many tours as fit, against all sets of tours."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from trimaran.machine.rings import best_tours


@st.composite
def _links(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[tuple[int, int], int]]:
    devices = tuple(range(draw(st.integers(3, 5))))
    links = {}
    for a in devices:
        for b in range(a):
            count = draw(st.integers(0, 2))
            if count:
                links[a, b] = links[b, a] = count
    return devices, links


def _most(devices: tuple[int, ...], room: dict[tuple[int, int], int], tours: list[tuple[int, ...]]) -> int:
    """By trying every tour in turn, with or without it."""
    if not tours:
        return 0
    without = _most(devices, room, tours[1:])
    steps = list(zip(tours[0], (*tours[0][1:], tours[0][0]), strict=True))
    if not all(room.get(step, 0) for step in steps):
        return without
    less = room | {step: room[step] - 1 for step in steps}
    return max(without, 1 + _most(devices, less, tours))


@given(_links())
def test_no_set_of_tours_is_larger(drawn: tuple[tuple[int, ...], dict[tuple[int, int], int]]) -> None:
    devices, links = drawn
    every = [(devices[0], *rest) for rest in permutations(devices[1:])]
    possible = [tour for tour in every if all(links.get(step) for step in zip(tour, (*tour[1:], tour[0]), strict=True))]
    if len(possible) > 12:  # trying all of them would take minutes
        return
    tours, share, exact = best_tours(devices, links)
    assert exact
    whole = _most(devices, links, possible)
    halves = _most(devices, {step: 2 * count for step, count in links.items()}, possible) if len(devices) <= 4 else 0
    assert len(tours) * share == max(whole, halves / 2)
