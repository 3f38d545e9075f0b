"""Links of a node, a line each: two ends, a kind, how many.

    "gpu0 gpu3 nvlink2 x2"            two links between two devices
    "plx0 gpu0-3 pcie4x16"            one from the switch to each of four
    "gpu0-7 nvsw0-5 nvlink3 x2"       two from every device to every switch
    "plx0-3 gpu0-7 pcie4x16 in turn"  the first switch has the first two devices, the second the next two
    "gpu0 gpu2,5 nvlink1"             to two that do not follow one another

"slot" stands for the slot of the device, "bridge" for all its links to others.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trimaran.cluster.machines import Edge, LinkType
from trimaran.errors import InputError

KINDS = ("gpu", "cpu", "plx", "nvsw", "nic")
"""Devices, sockets of the host, PCIe switches, NVLink switches, cards for the network."""

_END = re.compile(r"([a-z]+)([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)")
_COUNT = re.compile(r"x([1-9][0-9]*)")
_FORM = 'expected a line such as "gpu0 gpu3 nvlink2 x2"'


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """A line, read.

    Attributes:
        pairs: of vertices that it joins
        link: name of a kind of link, or "slot", or "bridge"
        count: of parallel links of each pair
    """

    pairs: tuple[tuple[str, str], ...]
    link: str
    count: int


def read_line(text: str) -> LinkLine:
    """A line of the form above.

    Raises:
        InputError: it is of another form

    Example:
        >>> read_line("plx0 gpu0-1 pcie3x16").pairs
        (('plx0', 'gpu0'), ('plx0', 'gpu1'))
    """
    words = text.split()
    in_turn = words[-2:] == ["in", "turn"]
    words = words[:-2] if in_turn else words
    count = _COUNT.fullmatch(words[-1]) if len(words) == 4 else None
    if len(words) != 3 and count is None:
        raise InputError(f'{_FORM}, got "{text}"', code="link-line.malformed", line=text)
    left, right = tuple(_vertices(words[0], text)), tuple(_vertices(words[1], text))
    if in_turn:
        if len(right) % len(left):
            raise InputError(
                f'{len(right)} vertices cannot be dealt to {len(left)} in turn, in "{text}"',
                code="link-line.uneven-turns",
                line=text,
            )
        share = len(right) // len(left)
        pairs = tuple((left[index // share], vertex) for index, vertex in enumerate(right))
    else:
        pairs = tuple((a, b) for a in left for b in right)
    loops = [a for a, b in pairs if a == b]
    if loops:
        raise InputError(f'"{text}" joins {loops[0]} to itself', code="link-line.joins-itself", line=text)
    return LinkLine(pairs=pairs, link=words[2], count=int(count[1]) if count else 1)


def edges_of(line: LinkLine, find: Callable[[str], LinkType]) -> Iterator[Edge]:
    """The edges of a line.

    Args:
        line: read
        find: kind of link by name
    """
    link = find(line.link)
    for a, b in line.pairs:
        yield Edge(a=a, b=b, link=link, count=line.count)


def vertex_number(vertex: str) -> tuple[str, int]:
    """Kind and number of a vertex.

    Example:
        >>> vertex_number("gpu12")
        ('gpu', 12)
    """
    kind = vertex.rstrip("0123456789")
    return kind, int(vertex[len(kind) :])


def _vertices(text: str, line: str) -> Iterator[str]:
    found = _END.fullmatch(text)
    if found is None or found[1] not in KINDS:
        expected = f'expected a vertex such as "gpu0" or "plx0-3" (one of {", ".join(KINDS)})'
        raise InputError(f'{expected}, got "{text}" in "{line}"', code="link-line.bad-vertex", line=line)
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise InputError(
                f'the range "{part}" runs backwards, in "{line}"', code="link-line.range-backwards", line=line
            )
        for number in range(int(first), int(last or first) + 1):
            yield f"{found[1]}{number}"
