"""Machines as documents for programs: one object a machine, with what its link graph says of pairs and rings."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from trimaran.base.units import format_bytes, format_rate
from trimaran.machine.rings import RingSet, ring_bandwidth
from trimaran.machine.topology import Pair, host_bandwidth, pairs, shared_uplinks
from trimaran.machine.types import Device, Edge, Link, Machine, Node
from trimaran.report.tables import add_figures, add_words, frame_table, print_next

FEW = 16
"""Devices of a node whose pairs and rings are all worked out."""


def device_document(device: Device) -> dict[str, Any]:
    """A device of the catalog."""
    return {
        "name": device.name,
        "title": device.title,
        "aliases": list(device.aliases),
        "architecture": device.generation,
        "year": device.year,
        "form": device.form,
        "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory.nbytes,
        "memory_bytes_per_s": device.bandwidth.bytes_per_s,
        "cache_bytes": device.cache_bytes,
        "power_w": device.power_w,
        "flops_per_s": {precision: peak.flops_per_s for precision, peak in device.compute.items()},
        "tensor_precisions": list(device.tensor_precisions),
        "links": device.links,
        "link": device.link,
        "caveat": device.caveat,
        "source": device.source,
    }


def node_line(node: Node) -> dict[str, Any]:
    """A node in short."""
    return {
        "name": node.name,
        "title": node.title,
        "aliases": list(node.aliases),
        "device": node.device.name,
        "devices": node.devices,
        "own_links": _own_links(node),
        "network": network_words(node.network_cards),
        "cpu_cores": node.cpu_cores,
    }


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine in full: links, pairs, rings, copies from the host."""
    node = machine.node
    few = min(node.devices, FEW)
    return node_line(node) | {
        "nodes": machine.nodes,
        "fabric": network_words(machine.fabric),
        "leaves": None if machine.leaves is None else asdict(machine.leaves),
        "kinds": dict(machine.kinds),
        "peer_access": node.peer_access,
        "host_memory_bytes": node.host_memory_bytes,
        "links": [
            {
                "a": edge.a,
                "b": edge.b,
                "link": edge.link.name,
                "count": edge.count,
                "bytes_per_s": edge.bytes_per_s,
            }
            for edge in node.edges
        ],
        "pairs": [pair_document(found) for found in (pairs(node) if node.devices <= FEW else ())],
        "rings": [ring_document(found) for found in ring_sets(node)],
        "from_host_bytes_per_s": list(host_bandwidth(node, range(few)).values()),
        "from_host_alone_bytes_per_s": host_bandwidth(node, (0,))[0],
        "figures": [
            {
                "link": link.name,
                "bytes_per_s": link.bytes_per_s,
                "raw_bytes_per_s": link.raw_bytes_per_s,
                "source": link.source,
            }
            for link in _links(node)
        ],
        "device_source": node.device.source,
        "caveat": node.caveat,
        "source": node.source,
    }


def pair_document(found: Pair) -> dict[str, Any]:
    """Two devices."""
    return {
        "a": found.a,
        "b": found.b,
        "kind": found.kind,
        "links": found.links,
        "peer": found.peer,
        "route": list(found.route.vertices),
        "bytes_per_s": found.bytes_per_s,
    }


def ring_document(found: RingSet) -> dict[str, Any]:
    """Rings of some devices."""
    return {
        "devices": len(found.devices),
        "kind": found.kind,
        "rings": len(found.rings) * found.share,
        "bytes_per_s": found.bytes_per_s,
        "slowest": found.slowest,
    }


def ring_sets(node: Node) -> tuple[RingSet, ...]:
    """Rings of the first two, three, … devices; of powers of two and all of them where there are many."""
    counts: Sequence[int] = range(2, node.devices + 1)
    if node.devices > 8:
        counts = sorted({count for count in (2, 4, 8, 16, 32, 64, node.devices) if count <= node.devices})
    return tuple(ring_bandwidth(node, range(count)) for count in counts)


def network_words(cards: tuple[int, Link] | None) -> str:
    """Cards for the network, such as "4 x ib-edr"; empty where there are none."""
    return f"{cards[0]} x {cards[1].name}" if cards else ""


# ---------------------------------------------------------------------------------------------------------------------
# How machines look to people: a list of them, or one with its matrix of pairs, its tree and its rings


_MOST_ROOTS = 4
_WORDS = {"pcie": "PIX", "root": "PHB", "socket": "SYS"}
_LEGEND = "NV#: own links; PIX: PCIe switches; PHB: a socket; SYS: two sockets; *: via the host"


def print_nodes(out: Console, nodes: Sequence[Node]) -> None:
    """List machines."""
    out.print(
        f"{len(nodes)} machines are known, each figure with its source; any of them, and several nodes of it, is a "
        "--cluster.\n"
    )
    table = frame_table(
        "",
        "devices, links: of a node, with links a device; network: cards of a node\n"
        "Several nodes: NAME:4, NAME:4@ethernet-25g. Plain boxes: 8xv100, 4xrtx-3090, or any device of "
        "`trimaran catalog machines --devices`. Yours: a TOML file, or --import of nvidia-smi topo -m or of NCCL's.",
    )
    add_words(table, "name", "devices", "links", "network", no_wrap=True)
    add_figures(table, "cores")
    for node in nodes:
        devices, network = f"{node.devices} {node.device.name}", network_words(node.network_cards).replace(" x ", " ")
        table.add_row(node.name, devices, _own_links(node), network, str(node.cpu_cores))
    out.print(table)
    print_next(out, ["trimaran", "clusters", "dgx-h100:4"], "to draw one, such as")


def print_devices(out: Console, devices: Sequence[Device]) -> None:
    """List devices."""
    out.print(f"{len(devices)} devices are known; --json has the source of each figure.\n")
    table = frame_table("", "GB/s: of its memory; fp32, fp16: peak in TFLOP/s, fp16 with sums in fp32")
    add_words(table, "name", no_wrap=True)
    add_figures(table, "year", "memory", "GB/s", "fp32", "fp16")
    add_words(table, "links", no_wrap=True)
    for device in devices:
        half = device.compute.get("fp16")
        table.add_row(
            device.name,
            str(device.year or ""),
            format_bytes(device.memory.nbytes),
            f"{device.bandwidth.bytes_per_s / 1e9:.0f}",
            f"{device.compute['fp32'].flops_per_s / 1e12:.1f}",
            f"{half.flops_per_s / 1e12:.1f}" if half else "",
            f"{device.links} x {device.link}" if device.links else "",
        )
    out.print(table)
    words = ["trimaran", "memory", "resnet50", "--device", "h100"]
    print_next(out, words, "what fits one, such as")


def print_machine(out: Console, machine: Machine) -> None:
    """Draw a machine."""
    node = machine.node
    each = f"{node.devices} × {node.device.title}"
    out.print(f"[bold]{escape(node.name)}[/]: {escape(node.title)}; {escape(each)} a node")
    if machine.nodes > 1:
        leaves = f"; {machine.leaves}" if machine.leaves is not None else ""
        fabric = network_words(machine.fabric)
        out.print(f"{machine.nodes} nodes, {machine.devices} devices, joined by {fabric} a node{leaves}")
    memory = f", {format_bytes(node.host_memory_bytes)}" if node.host_memory_bytes else ""
    cards = f"; network: {network_words(node.network_cards)}" if node.network_cards else ""
    out.print(f"host: {node.cpu_cores} cores{memory}{cards}")
    if node.caveat:
        out.print(f"[yellow]note:[/] {escape(node.caveat)}")
    if 1 < node.devices <= FEW:
        _print_pairs(out, node)
    _print_tree(out, node)
    _print_rings(out, node)
    _print_figures(out, node)


def _print_pairs(out: Console, node: Node) -> None:
    found = {(pair.a, pair.b): pair for pair in pairs(node)}
    out.print("\n[bold]pairs[/]")
    width = max(4, max(len(_cell(pair)) for pair in found.values()))
    header = " ".join(f"{number:>{width}}" for number in range(node.devices))
    out.print(f"     {header}", highlight=False)
    for a in range(node.devices):
        cells = ("X" if a == b else _cell(found[min(a, b), max(a, b)]) for b in range(node.devices))
        out.print(f"gpu{a:<2}" + " ".join(f"{cell:>{width}}" for cell in cells), highlight=False)
    out.print(f"[dim]{_LEGEND}[/]")
    for words, pair in {_cell(pair): pair for pair in reversed(found.values())}.items():
        way = " - ".join(pair.route.vertices) if pair.kind not in ("links", "switch") else "straight"
        out.print(f"{words:<5} {format_rate(pair.bytes_per_s):>9} a copy, such as gpu{pair.a} to gpu{pair.b}: {way}")


def _cell(pair: Pair) -> str:
    if pair.kind in ("links", "switch"):
        return f"NV{pair.links}"
    return _WORDS[pair.kind] + ("" if pair.peer else "*")


def _print_tree(out: Console, node: Node) -> None:
    """The host's side: sockets, switches, devices and cards, runs of equal ones on one line."""
    out.print("\n[bold]host[/]")
    below: dict[str, list[tuple[str, Edge]]] = {}
    for edge in node.edges:
        if edge.link.kind != "socket" and not edge.a.startswith(("gpu", "nvsw")) and not edge.b.startswith("nvsw"):
            below.setdefault(edge.a, []).append((edge.b, edge))
    roots = sorted(vertex for vertex in below if vertex.startswith("cpu"))
    for root in roots[:_MOST_ROOTS]:
        out.print(root)
        _print_below(out, below, root, "  ")
    if len(roots) > _MOST_ROOTS:
        out.print(f"[dim]and {len(roots) - _MOST_ROOTS} more alike[/]")
    sockets = [edge for edge in node.edges if edge.link.kind == "socket"]
    for edge in sockets[:1]:
        out.print(f"{edge.a} - {edge.b}: {edge.count} x {edge.link.name}" + (" and so on" if len(sockets) > 1 else ""))
    switches = sorted({end for edge in node.edges for end in (edge.a, edge.b) if end.startswith("nvsw")})
    if switches:
        out.print(f"links of devices go to {len(switches)} separate switch{'es' if len(switches) > 1 else ''}")


def _print_below(out: Console, below: dict[str, list[tuple[str, Edge]]], vertex: str, indent: str) -> None:
    leaves: dict[str, list[str]] = {}
    for child, edge in below.get(vertex, []):
        if child in below:
            out.print(f"{indent}{child}  [dim]{edge.link.name}[/]")
            _print_below(out, below, child, indent + "  ")
        else:
            leaves.setdefault(edge.link.name, []).append(child)
    for link, children in leaves.items():
        out.print(f"{indent}{', '.join(children)}  [dim]{link}[/]")


def _print_rings(out: Console, node: Node) -> None:
    sets = ring_sets(node)
    if not sets:
        return
    out.print("\n[bold]rings of the first devices[/], large all-reduce")
    table = frame_table("", "rings: of NCCL, at the same time; bus bandwidth: of the all-reduce over all of them")
    add_figures(table, "devices", "rings", "bus bandwidth")
    add_words(table, "limited by")
    for found in sets:
        count = f"{len(found.rings) * found.share:g}"
        table.add_row(str(len(found.devices)), count, format_rate(found.bytes_per_s), escape(found.slowest))
    out.print(table)
    alone = host_bandwidth(node, (0,))[0]
    together = min(host_bandwidth(node, range(min(node.devices, FEW))).values())
    shared = shared_uplinks(node) if node.devices <= FEW else ()
    why = f": {len(shared[0][1])} share {shared[0][0].a} - {shared[0][0].b}" if shared and together < alone else ""
    out.print(f"copies from the host: {format_rate(alone)} alone, {format_rate(together)} all at once{why}")


def _print_figures(out: Console, node: Node) -> None:
    out.print("\n[bold]figures[/], of one link in one direction")
    for link in _links(node):
        out.print(
            f"{link.name}: {format_rate(link.bytes_per_s)} of {format_rate(link.raw_bytes_per_s)} "
            f"[dim]{escape(link.source)}[/]"
        )
    out.print(f"{node.device.name}: [dim]{escape(node.device.source)}[/]")
    out.print(f"{escape(node.name)}: [dim]{escape(node.source)}[/]")


def _links(node: Node) -> list[Link]:
    """Each kind of link of a node, and of its cards, once."""
    links = {edge.link.name: edge.link for edge in node.edges}
    if node.network_cards is not None:
        links[node.network_cards[1].name] = node.network_cards[1]
    return list(links.values())


def _own_links(node: Node) -> str:
    if any(edge.b.startswith("nvsw") for edge in node.edges):
        return f"{node.device.link} x{node.device.links} switch"
    own = {edge.link.name for edge in node.edges if edge.link.kind in ("nvlink", "xgmi") and edge.a.startswith("gpu")}
    return ", ".join(sorted(own))
