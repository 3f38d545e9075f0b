"""A node as a table of a user's own file, so that what was imported can be kept, corrected and asked for by name."""

import json

from trimaran.cluster.links import link_types
from trimaran.cluster.machines import LinkType, Node


def node_text(node: Node) -> str:
    """The TOML of a node. Its device is named; kinds of links that the catalog does not list are written out.

    Args:
        node: to write

    Returns:
        A text that `read_machine` reads as the same node.
    """
    lines = [
        "[[nodes]]",
        f"name = {_quoted(node.name)}",
        f"title = {_quoted(node.title)}",
        f"device = {_quoted(node.device.name)}",
        f"devices = {node.devices}",
        f"peer_access = {str(node.peer_access).lower()}",
        f"cores = {node.cpu_cores}",
    ]
    if node.host_memory_bytes:
        lines.append(f'host_memory = "{node.host_memory_bytes} B"')
    if node.network_cards is not None:
        lines.append(f'network = "{node.network_cards[0]} {node.network_cards[1].name}"')
    if node.caveat:
        lines.append(f"caveat = {_quoted(node.caveat)}")
    lines.append(f"source = {_quoted(node.source)}")
    lines.append("links = [")
    for edge in node.edges:
        count = f" x{edge.count}" if edge.count > 1 else ""
        lines.append(f'  "{edge.a} {edge.b} {edge.link.name}{count}",')
    lines.append("]")
    own = {edge.link.name: edge.link for edge in node.edges if link_types().get(edge.link.name) != edge.link}
    return "\n".join([*(_link_text(link) for link in own.values()), *lines]) + "\n"


def _link_text(link: LinkType) -> str:
    lines = [
        "[[links]]",
        f"name = {_quoted(link.name)}",
        f"kind = {_quoted(link.kind)}",
        f'raw = "{link.raw_bytes_per_s / 1e9!r} GB/s"',
        f'sustained = "{link.bytes_per_s / 1e9!r} GB/s"',
        f'latency = "{link.latency_s * 1e6!r} us"',
        f"source = {_quoted(link.source)}",
    ]
    if link.ring_bytes_per_s:
        lines.append(f'ring = "{link.ring_bytes_per_s / 1e9!r} GB/s"')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
