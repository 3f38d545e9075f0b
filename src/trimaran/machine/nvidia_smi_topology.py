"""A node from what `nvidia-smi topo -m` prints.

The matrix says how two devices, or a device and a card for the network, are joined: NV# by that many NVLinks, PIX and
PXB over switches, PHB and NODE over the root of one socket, SYS over two sockets. What it does not say is taken for
granted, and written into the caveat: which device it is (the caller says so), the slots, the kind of link between
sockets, and which socket a device belongs to where all pairs are NV# and no affinity is printed. The host has the cores
of all affinities.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.machine.catalog import find_link
from trimaran.machine.types import Device, Edge, Link, Node

_CELLS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
_NVLINKS = re.compile(r"NV([1-9][0-9]{0,2})")
_DEVICE = re.compile(r"GPU([0-9]{1,4})")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_NEAR = ("PIX", "PXB")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,999}")
_MOST_LINKS = 18
"""Links that any device has had."""

_SOCKETS = {3: "qpi-9.6", 4: "xgmi-rome", 5: "upi-16", 6: "upi-20"}
"""Between sockets of hosts of each generation of PCIe; assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The printed matrix.

    Attributes:
        columns: names, devices and cards for the network
        cells: by row and column
        sockets: by row, what the line says of its socket; "" where it says nothing
        lines: by row, the number of its line
    """

    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    sockets: Mapping[str, str]
    lines: Mapping[str, int]

    @property
    def devices(self) -> tuple[str, ...]:
        """Columns that are devices."""
        return tuple(name for name in self.columns if _DEVICE.fullmatch(name))

    @property
    def cards(self) -> tuple[str, ...]:
        """Columns that are cards for the network."""
        return tuple(name for name in self.columns if not _DEVICE.fullmatch(name))


def node_from_matrix(
    text: str,
    device: Device,
    *,
    file: str,
    name: str = "imported",
    network: Link | None = None,
    cores: int | None = None,
    host_memory_bytes: int = 0,
) -> Node:
    """The node whose matrix this is.

    Args:
        text: as `nvidia-smi topo -m` prints it, what comes before and after it included
        device: that the node has
        file: name of the text, for messages
        name: of the node
        network: kind of its cards for the network; None: they are left out
        cores: of the host; None: those near its devices, 1 where nothing is printed of them
        host_memory_bytes: of the host [bytes]

    Raises:
        InputError: there is no matrix, or a place in it is wrong: the message names line and value
    """
    matrix = read_matrix(text, file=file)
    joined = _own_links(matrix, device, file)
    tree, sockets = _tree(matrix, device, network)
    cards = len(matrix.cards)
    left_out = "" if network or not cards else f"; {cards} cards for the network are left out, their rate is not said"
    return Node(
        name=name,
        title=f"{len(matrix.devices)} {device.title}, from {file}",
        aliases=(),
        device=device,
        devices=len(matrix.devices),
        edges=(*joined, *tree),
        peer_access=device.peer_access,
        cpu_cores=_cores(matrix) if cores is None else cores,
        host_memory_bytes=host_memory_bytes,
        network_cards=(cards, network) if network and cards else None,
        caveat=f"assumed: slots of the device, and what joins {sockets} sockets{left_out}"
        if sockets > 1
        else f"assumed: slots of the device{left_out}",
        source=f"nvidia-smi topo -m: {file}",
    )


def read_matrix(text: str, *, file: str) -> Matrix:
    """The matrix of a text.

    Raises:
        InputError: there is none, or a row is missing, too short, or has an unknown value
    """
    lines = [_COLORS.sub("", line) for line in text.splitlines()]
    start = next((index for index, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and _is_header(line)), None)
    if start is None:
        raise InputError(
            f"{file}: no line that begins with the column GPU0, as nvidia-smi topo -m prints it",
            code="smi-matrix.no-header",
            file=file,
        )
    columns = tuple(_columns(lines[start]))
    cells: dict[tuple[str, str], str] = {}
    sockets, numbers = {}, {}
    for index, line in enumerate(lines[start + 1 :], start=start + 2):
        words = line.split()
        if not words or words[0] not in columns:
            if cells:
                break
            continue
        values = words[1 : len(columns) + 1]
        if len(values) < len(columns):
            raise InputError(
                f"{file}: line {index}: {len(values)} values for {len(columns)} columns",
                code="smi-matrix.wrong-column-count",
                line=index,
            )
        for column, value in zip(columns, values, strict=True):
            cells[words[0], column] = _checked(value, words[0], column, f"{file}: line {index}")
        sockets[words[0]], numbers[words[0]] = " ".join(words[len(columns) + 1 :][:2]), index
    matrix = Matrix(columns=columns, cells=cells, sockets=sockets, lines=numbers)
    _check_whole(matrix, file)
    return matrix


def _is_header(line: str) -> bool:
    return "X" not in line.split()


def _columns(line: str) -> list[str]:
    words = line.split()
    return words[: words.index("CPU")] if "CPU" in words else words


def _checked(value: str, row: str, column: str, place: str) -> str:
    if value not in _CELLS and _NVLINKS.fullmatch(value) is None:
        raise InputError(
            f'{place}, column {column}: expected NV#, {", ".join(_CELLS)}, got "{value}"',
            code="smi-matrix.unknown-connection",
            row=row,
            column=column,
        )
    if (value == "X") != (row == column):
        raise InputError(
            f'{place}, column {column}: "{value}" between {row} and {column}',
            code="smi-matrix.device-to-itself",
            row=row,
            column=column,
        )
    return value


def _check_whole(matrix: Matrix, file: str) -> None:
    for name in matrix.devices:
        if name not in matrix.lines:
            raise InputError(f"{file}: the row of {name} is missing", code="smi-matrix.missing-row", row=name)
    for a in matrix.devices:
        for b in matrix.devices:
            if matrix.cells[a, b] != matrix.cells[b, a]:
                raise InputError(
                    f'{file}: line {matrix.lines[b]}, column {a}: "{matrix.cells[b, a]}", but line {matrix.lines[a]} '
                    f'has "{matrix.cells[a, b]}" for the same pair',
                    code="smi-matrix.not-symmetric",
                    row=b,
                    column=a,
                )


def _own_links(matrix: Matrix, device: Device, file: str) -> list[Edge]:
    """NVLinks: to each other, or to one switch where there are more of them than devices have."""
    names = matrix.devices
    counts = {(a, b): _nvlinks(matrix.cells[a, b]) for a in names for b in names if a != b}
    most = max((sum(counts[a, b] for b in names if b != a) for a in names), default=0)
    if not most:
        return []
    if not device.link:
        first = next(key for key, count in counts.items() if count)
        raise InputError(
            f'{file}: line {matrix.lines[first[0]]}, column {first[1]}: "{matrix.cells[first]}", but {device.title} '
            "has no NVLink: name another device",
            code="smi-matrix.device-without-nvlink",
            device=device.name,
        )
    link, number = find_link(device.link), {name: index for index, name in enumerate(names)}
    if most <= max(device.links, 1) or (most <= _MOST_LINKS and len(set(counts.values())) > 1):
        return [
            Edge(a=f"gpu{number[a]}", b=f"gpu{number[b]}", link=link, count=count)
            for (a, b), count in counts.items()
            if count and number[a] < number[b]
        ]
    return [
        Edge(a=f"gpu{number[a]}", b="nvsw0", link=link, count=max(counts[a, b] for b in names if b != a)) for a in names
    ]


def _nvlinks(cell: str) -> int:
    found = _NVLINKS.fullmatch(cell)
    return int(found[1]) if found else 0


def _tree(matrix: Matrix, device: Device, network: Link | None) -> tuple[list[Edge], int]:
    """Sockets, switches, devices and cards, and how many sockets there are."""
    slot = find_link(f"pcie{device.pcie_generation}x{device.pcie_lanes}")
    vertices = {name: f"gpu{index}" for index, name in enumerate(matrix.devices)}
    if network is not None:
        vertices |= {name: f"nic{index}" for index, name in enumerate(matrix.cards)}
    sockets = _groups(list(vertices), lambda a, b: _same_socket(matrix, a, b))
    edges: list[Edge] = []
    switches = 0
    for cpu, members in enumerate(sockets):
        for near in _groups(members, lambda a, b: _cell(matrix, a, b) in _NEAR):
            parent = f"cpu{cpu}"
            if len(near) > 1:
                parent = f"plx{switches}"
                edges.append(Edge(a=f"cpu{cpu}", b=parent, link=slot))
                switches += 1
            for name in near:
                link = slot if name in matrix.devices or network is None else network
                edges.append(Edge(a=parent, b=vertices[name], link=link))
    between = find_link(_SOCKETS[device.pcie_generation])
    edges += [Edge(a=f"cpu{a}", b=f"cpu{b}", link=between) for b in range(len(sockets)) for a in range(b)]
    return edges, len(sockets)


def _cell(matrix: Matrix, a: str, b: str) -> str:
    return matrix.cells.get((a, b)) or matrix.cells.get((b, a), "")


def _same_socket(matrix: Matrix, a: str, b: str) -> bool:
    cell = _cell(matrix, a, b)
    if _nvlinks(cell):  # says nothing of sockets; the line's affinity does, or a card that is near both
        mine, others = matrix.sockets.get(a, ""), matrix.sockets.get(b, "")
        near = any(_cell(matrix, a, card) in _NEAR and _cell(matrix, b, card) in _NEAR for card in matrix.cards)
        return near or mine == others
    return cell not in ("SYS", "SOC")


def _cores(matrix: Matrix) -> int:
    """Cores that are near some device. Linux numbers the second threads of a socket's cores as a second, equal run."""
    found: set[int] = set()
    for near in {words.partition(" ")[0] for words in matrix.sockets.values()}:
        ends = [part.split("-") for part in near.split(",")] if _CPUS.fullmatch(near) else []
        runs = [range(int(each[0]), int(each[-1]) + 1) for each in ends]
        half, sizes = len(runs) // 2, [len(run) for run in runs]
        for run in runs[:half] if sizes[:half] == sizes[half:] else runs:
            found.update(run)
    return max(1, len(found))


def _groups(names: Sequence[str], together: Callable[[str, str], bool]) -> list[list[str]]:
    """Names in groups: each is together with some other of its group."""
    groups: list[list[str]] = []
    for name in names:
        joined = [group for group in groups if any(together(name, other) for other in group)]
        merged = [other for group in joined for other in group] + [name]
        groups = [group for group in groups if group not in joined] + [merged]
    return sorted((sorted(group, key=names.index) for group in groups), key=lambda group: names.index(group[0]))
