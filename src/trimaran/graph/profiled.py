"""Dataflow graphs with measured times, read from a JSON file.

    {"nodes": [{"id": "conv1", "op": "Conv2d(3, 64, ...)", "forward_ms": 1.5, "backward_ms": 2.9,
                "activation_bytes": 51380224, "parameter_bytes": 37632}, ...],
     "edges": [["conv1", "relu1"], ...]}

An edge goes from the operation that makes a tensor to one that reads it. Operations named "Input..." that read nothing
stand for the loading of data: their time counts as none. Only a graph of one operation may leave "edges" out. Every
mistake is told with its path in the file.
"""

import difflib
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.base.decoding import decode_object, from_plain
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledNode:
    """One operation with its measured times.

    Attributes:
        name: its id in the file
        op: what it computes
        forward_s: time of its forward [s]
        backward_s: time of its backward [s]
        activation_bytes: size of its output [bytes]
        parameter_bytes: size of its parameters [bytes]
    """

    name: str
    op: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledGraph:
    """A network with measured times.

    Attributes:
        name: of the file, without its ending
        nodes: in an order in which they can run; as in the file as far as that goes
        edges: positions of producer and consumer in `nodes`
    """

    name: str
    nodes: tuple[ProfiledNode, ...]
    edges: tuple[tuple[int, int], ...]


class _Node(msgspec.Struct, frozen=True):
    id: str
    forward_ms: float
    backward_ms: float
    op: str = ""
    activation_bytes: float = 0.0
    parameter_bytes: float = 0.0


class _GraphFile(msgspec.Struct, frozen=True):
    nodes: list[_Node]
    edges: list[tuple[str, str]] | msgspec.UnsetType = msgspec.UNSET


def read_profiled(path: Path) -> ProfiledGraph:
    """Read a graph from a file.

    Args:
        path: a JSON file

    Raises:
        InputError: it cannot be read, is no such graph, says nothing of edges, names a node twice or one that is not
            there, has a time or size that is negative or no number, or a cycle
    """
    plain = decode_object(read_bytes(path), source=str(path))
    found = from_plain(plain, _GraphFile, source=f"{path} is no profiled graph")
    _check_nodes(path, found.nodes)
    if isinstance(found.edges, msgspec.UnsetType) and len(found.nodes) > 1:
        raise _without_edges(path, plain, len(found.nodes))
    position = {node.id: index for index, node in enumerate(found.nodes)}
    edges = _positions(path, found.edges or [], position)
    order = _order(path, found.nodes, edges)
    place = {old: new for new, old in enumerate(order)}
    readers = {consumer for _, consumer in edges}
    nodes = tuple(_profiled(found.nodes[index], loads=index not in readers) for index in order)
    return ProfiledGraph(name=path.stem, nodes=nodes, edges=tuple((place[a], place[b]) for a, b in edges))


def _profiled(node: _Node, *, loads: bool) -> ProfiledNode:
    free = loads and node.op.startswith("Input")
    return ProfiledNode(
        name=node.id,
        op=node.op,
        forward_s=0.0 if free else node.forward_ms / 1e3,
        backward_s=0.0 if free else node.backward_ms / 1e3,
        activation_bytes=node.activation_bytes,
        parameter_bytes=node.parameter_bytes,
    )


def _without_edges(path: Path, plain: Mapping[str, object], count: int) -> InputError:
    """What to say of several operations and no word on what they read: that none reads any is rarely meant."""
    near = difflib.get_close_matches("edges", sorted(plain.keys() - {"nodes"}), n=1, cutoff=0.7)
    advice = (
        f'rename "{near[0]}"'
        if near
        else 'add pairs of ids, ["producer", "consumer"], or an empty list if no operation reads what another makes'
    )
    return InputError(
        f'{path}: edges: the graph has {count} nodes and no key "edges": {advice}',
        code="profiled-graph.no-edges",
        file=str(path),
        key="edges",
    )


def _check_nodes(path: Path, nodes: Sequence[_Node]) -> None:
    if not nodes:
        raise InputError(f"{path}: nodes: the graph has no nodes", file=str(path))
    first: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.id in first:
            raise InputError(
                f'{path}: nodes[{index}].id: "{node.id}" is the id of nodes[{first[node.id]}] too', node=node.id
            )
        first[node.id] = index
        for name in ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes"):
            value = getattr(node, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    f'{path}: nodes[{index}].{name} ("{node.id}"): expected a number that is not negative, got {value}',
                    node=node.id,
                    value=value,
                )


def _positions(path: Path, edges: Sequence[tuple[str, str]], position: dict[str, int]) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    for index, edge in enumerate(edges):
        for end, name in enumerate(edge):
            if name not in position:
                raise InputError(
                    f'{path}: edges[{index}][{end}]: there is no node "{name}"; the graph has {len(position)} nodes',
                    node=name,
                )
        found[position[edge[0]], position[edge[1]]] = None
    return list(found)


def _order(path: Path, nodes: Sequence[_Node], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes in an order in which they can run: of those that can, the first in the file."""
    missing = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for producer, consumer in edges:
        missing[consumer] += 1
        readers[producer].append(consumer)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for reader in readers[node]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        cycle = [nodes[index].id for index in _cycle(edges, {i for i, count in enumerate(missing) if count})]
        shown = " -> ".join(cycle if len(cycle) <= 8 else [*cycle[:7], "...", cycle[-1]])
        raise InputError(f"{path}: edges: operations that wait for each other: {shown}", cycle=tuple(cycle))
    return order


def _cycle(edges: Sequence[tuple[int, int]], left: set[int]) -> list[int]:
    """A cycle among the nodes that could not be ordered, its first node again at the end."""
    before: dict[int, int] = {}
    for producer, consumer in edges:
        if producer in left and consumer in left:
            before.setdefault(consumer, producer)
    node = min(left)
    seen: list[int] = []
    while node not in seen:
        seen.append(node)
        node = before[node]
    return [*seen[seen.index(node) :], node][::-1]
