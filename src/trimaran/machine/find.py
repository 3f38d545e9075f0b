"""Machines by name, as on the command line.

| name | machine |
|---|---|
| `dgx1-v100` | a node of the catalog |
| `dgx1-v100:4` | four of them, joined by their own cards |
| `dgx1-v100:4@ethernet-25g` | the same over another network; `@4x ib-hdr` for four cards a node |
| `dgx-h100:128@nodes_per_leaf=32,oversubscription=2:1` | what its cards are connected to; `rails` card by card |
| `4xrtx-4090@host_memory=256GiB` | with that memory of each host |
| `8xv100`, `4x rtx-3090` | a number of devices: on the board of a module, in a box of cards |
| `h200`, `titan-x` | a device: the usual machine of a module, one card in a box |
| `rack.toml`, `rack.toml:4` | your file |
| `here` | this machine, by `nvidia-smi` |
"""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.units import parse_counted, parse_memory, whole_number
from trimaran.machine.catalog import (
    find_device,
    find_link,
    find_node,
    is_machine,
    match_device,
    nearest_machine,
    plain_node,
    usual_node,
)
from trimaran.machine.detect import detect_processor
from trimaran.machine.machine_files import read_machine_file
from trimaran.machine.nvidia_smi_topology import node_from_matrix
from trimaran.machine.topology import leaves_of
from trimaran.machine.types import MOST_NODES, Link, Machine, Node

# ---------------------------------------------------------------------------------------------------------------------
# This machine as a node, by `nvidia-smi`


_LIMIT_S = 30
"""A driver that has not answered by then does not answer."""


def detect_node() -> Node:
    """The node of this machine: its devices by name, their links by the matrix of `nvidia-smi topo -m`.

    Raises:
        EnvironmentProblem: there is no `nvidia-smi`, it fails, or it names a device that the catalog has not
    """
    names = [
        line.strip() for line in _printed("--query-gpu=name", "--format=csv,noheader").splitlines() if line.strip()
    ]
    found = match_device(names[0]) if names else None
    if found is None:
        raise EnvironmentProblem(
            f'nvidia-smi names "{names[0] if names else "no device"}", which the catalog has not: import its matrix '
            "with `trimaran catalog machines --import FILE --device NAME`",
            code="nvidia-smi.unknown-device",
        )
    processor = detect_processor()
    return node_from_matrix(
        _printed("topo", "-m"),
        found.device,
        file="nvidia-smi topo -m",
        name="here",
        cores=processor.cores,
        host_memory_bytes=processor.memory_bytes,
    )


def _printed(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            f"nvidia-smi {' '.join(arguments)} cannot be run here: {error}", code="nvidia-smi.cannot-run"
        ) from None
    return done.stdout


_NETWORK = "ethernet-10g"
"""Between several nodes, where no network is named and they have no cards."""

_SEVERAL = re.compile(r"([0-9]{1,9})\s*[x×]\s*(\S.*)")


def find_machine(text: str) -> Machine:
    """The machine of a name, in one of the forms above.

    Raises:
        InputError: there is none, or the file of that name is wrong

    Example:
        >>> machine = find_machine("dgx1-v100:4@ethernet-25g")
        >>> machine.node.name, machine.nodes, machine.devices, machine.fabric[1].name
        ('dgx1-v100', 4, 32, 'ethernet-25g')
        >>> str(find_machine("dgx-h100:64@4x ib-ndr, nodes_per_leaf=16, oversubscription=2:1").leaves)
        '16 nodes a leaf, 2:1 above it'
        >>> find_machine("4xrtx-4090@host_memory=256GiB").node.host_memory_bytes // 2**30
        256
    """
    name, joined = (part.strip() for part in text.rsplit("@", 1)) if "@" in text else (text.strip(), "")
    if "@" in text and not joined:
        raise InputError(
            f'{text}: nothing follows "@": say what joins the nodes, such as "{name}@ethernet-25g", or leave it out',
            code="machine.no-fabric-named",
            machine=text,
        )
    fabric_text, said = _joined(joined, text)
    host_memory = said.pop(HOST_MEMORY, None)
    name, nodes = _nodes_of(name)
    if name.endswith(".toml"):
        machine = read_machine_file(Path(name))
        if nodes is not None and machine.kinds:
            raise InputError(
                f"{text}: {name} has nodes of several kinds, and how many of each: leave :{nodes} out, or change the "
                "numbers in the file",
                code="machine.several-kinds",
                machine=text,
            )
        machine = machine if nodes is None else replace(machine, nodes=nodes)
    else:
        machine = Machine(node=_node(name, text), nodes=nodes or 1)
    fabric = _fabric(fabric_text) if fabric_text else machine.fabric or default_fabric(machine.node)
    leaves = leaves_of(said, machine.node) if said else machine.leaves
    several = machine.nodes > 1
    if host_memory is not None:
        machine = replace(machine, node=replace(machine.node, host_memory_bytes=parse_memory(host_memory)))
    return replace(machine, fabric=fabric if several else None, leaves=leaves if several else None)


def grown_cluster(name: str, devices: int) -> str:
    """The name of a machine with as many nodes as a number of devices needs, where the name counts none.

    Args:
        name: of a machine; one of a file, of this machine, or with a number of nodes stays as it is
        devices: that it must have

    Raises:
        InputError: no such machine

    Example:
        >>> grown_cluster("dgx-h100", 64), grown_cluster("dgx1-v100@ethernet-25g", 12), grown_cluster("dgx-h100:2", 64)
        ('dgx-h100:8', 'dgx1-v100:2@ethernet-25g', 'dgx-h100:2')
    """
    base, at, fabric = name.partition("@")
    base = base.strip()
    if base == "here" or base.endswith(".toml") or _nodes_of(base)[1] is not None:
        return name
    node = find_machine(base).node
    if devices <= node.devices:
        return name
    return f"{base}:{-(-devices // node.devices)}{at}{fabric}"


HOST_MEMORY = "host_memory"
"""Word behind "@" by which a user says the memory of each host."""


def with_host_memory(name: str, nbytes: int) -> str:
    """The name of a machine whose hosts have that memory, in whole GiB.

    Args:
        name: of a machine
        nbytes: of each host [bytes]

    Example:
        >>> with_host_memory("8xv100:2@ib-edr", 2**38), with_host_memory("a40@host_memory=64GiB", 2**38)
        ('8xv100:2@ib-edr,host_memory=256GiB', 'a40@host_memory=256GiB')
    """
    base, _, joined = name.partition("@")
    kept = [part.strip() for part in joined.split(",") if part.strip() and not part.strip().startswith(HOST_MEMORY)]
    return f"{base}@{','.join((*kept, f'{HOST_MEMORY}={nbytes >> 30}GiB'))}"


def _joined(text: str, whole: str) -> tuple[str, dict[str, str]]:
    """What follows "@": the cards, and what is said of the leaves, by word."""
    parts = [part.strip() for part in text.split(",")] if text else []
    cards = [part for part in parts if part and "=" not in part and part != "rails"]
    if len(cards) > 1 or not all(parts):
        raise InputError(
            f'"{whole}": expected after "@" one kind of cards, and words such as nodes_per_leaf=32, '
            f'oversubscription=2:1 and rails, separated by commas; got "{text}"',
            code="machine.bad-fabric",
            machine=whole,
        )
    words = [part.partition("=") for part in parts if part not in cards]
    said = {word.strip().lower(): value.strip() or "true" for word, _, value in words}
    if len(said) < len(words):
        raise InputError(f'"{whole}": a word is said twice', code="machine.word-twice", machine=whole)
    return (cards[0] if cards else ""), said


def default_fabric(node: Node) -> tuple[int, Link]:
    """The links between several nodes of a kind where none are named: their cards, or else one card of 10 Gb/s."""
    return node.network_cards or (1, find_link(_NETWORK))


def _nodes_of(name: str) -> tuple[str, int | None]:
    head, colon, tail = name.rpartition(":")
    if not colon:
        return name, None
    nodes = whole_number(tail.strip(), least=1, most=MOST_NODES)
    if nodes is None:
        raise InputError(
            f'expected a number of nodes up to {MOST_NODES:,} after ":", as in "{head}:4", got "{tail}"',
            code="machine.bad-node-count",
            machine=name,
        )
    return head.strip(), nodes


def _node(name: str, text: str) -> Node:
    if name == "here":
        return detect_node()
    several = _SEVERAL.fullmatch(name)
    if is_machine(name):
        return find_node(name)
    if several is not None:
        return _several(int(several[1]), several[2])
    try:
        device = find_device(name)
    except InputError:
        raise InputError(
            f'unknown machine "{text}"{nearest_machine(name)}', code="machine.unknown", machine=text
        ) from None
    return usual_node(device) or plain_node(device, 1)


def _several(count: int, name: str) -> Node:
    device = find_device(name)
    if count < 1:
        raise InputError(
            f'a machine has one device or more: ask for "{device.name}", or for several, as in "8x{device.name}"',
            code="machine.no-device",
            device=device.name,
        )
    node = plain_node(device, count)
    if node.devices < count:
        raise InputError(
            f'a node holds {node.devices} {device.title}, not {count}; ask for several nodes, as in "{node.name}:2"',
            code="machine.too-many-devices-on-node",
            devices=count,
            device=device.name,
        )
    return node


def _fabric(text: str) -> tuple[int, Link]:
    count, name = parse_counted(text.lower())
    return count, find_link(name)
