"""A node from the topology that NCCL writes (NCCL_TOPO_DUMP_FILE).

    <system>  <cpu numaid=…>  <pci busid=… class=… link_speed=… link_width=…>  <gpu dev=…>  <nvlink target=… count=…/>
                                                                               <nic> <net name=… speed=…/> </nic>

Every CPU becomes a socket, every PCI bridge a switch; devices and cards keep their places. Links lead to the
bus of another device, or to the bus of a switch for them. Values that the file does not say are assumed and written
into the caveat, such as the speed of a slot. The caller names the device, unless its PCI number is known.
"""

import re
import xml.parsers.expat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from trimaran.base.decoding import MOST_DEPTH
from trimaran.base.errors import InputError
from trimaran.base.units import whole_number
from trimaran.machine.catalog import card_of, find_device, find_link, link_types
from trimaran.machine.types import Device, Edge, Link, Node

# ---------------------------------------------------------------------------------------------------------------------
# Elements of an XML text with the lines that they begin in, so that an error can name the place


@dataclass(slots=True, kw_only=True)
class Element:
    """An element of the file, with the line that it begins in."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def walk(self) -> Iterator["Element"]:
        """This one and all inside it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_xml(text: str, *, file: str, root_tag: str) -> Element:
    """The root of an XML text.

    Args:
        text: to read
        file: name of it, for messages
        root_tag: that the root must have

    Raises:
        InputError: it is not XML, or has another root
    """
    root = Element(tag="", attributes={}, line=0)
    open_elements = [root]
    parser = xml.parsers.expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > MOST_DEPTH:
            raise InputError(
                f"{file}: line {parser.CurrentLineNumber}: elements inside of each other, more than {MOST_DEPTH} deep",
                code="xml.too-deep",
                file=file,
            )
        element = Element(tag=tag, attributes=attributes, line=parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(tag: str) -> None:
        open_elements.pop()

    def refuse_doctype(*_: object) -> None:
        # Entities that it declares may stand for very long texts, or for other files.
        raise InputError(
            f"{file}: line {parser.CurrentLineNumber}: a document type, which a topology of NCCL has not: remove it",
            code="xml.document-type",
            file=file,
        )

    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text, True)
    except xml.parsers.expat.ExpatError as error:
        raise InputError(
            f"{file}: line {error.lineno}: not XML: {error}", code="xml.malformed", file=file, line=error.lineno
        ) from None
    found = root.children[0]
    if found.tag != root_tag:
        raise InputError(
            f"{file}: line {found.line}: expected <{root_tag}>, got <{found.tag}>", code="xml.wrong-root", file=file
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of links in a topology of NCCL: slots by speed and lanes, cards by rate, sockets by processor


GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
"""Of PCIe, by its transfers per second [GT/s]."""

_MOST_LANES = 64
_MOST_LINKS = 1000
"""Of PCIe, and between two devices; more than any machine has."""

_SOCKETS = {"GenuineIntel": "upi-10.4", "AuthenticAMD": "xgmi-rome", "ppc64": "x-bus-p9"}
_INTEL = {63: "qpi-9.6", 79: "qpi-9.6", 85: "upi-10.4", 106: "upi-11.2", 143: "upi-16", 207: "upi-20"}
"""Between sockets of Intel processors, by model: Haswell, Broadwell, Skylake, Ice Lake, Sapphire and Emerald Rapids."""


def pcie(generation: int, lanes: int) -> Link:
    """A slot, also of a kind that the catalog does not list: a share of one of 16 lanes."""
    older = {1: 3 * 4, 2: 3 * 2}.get(generation)
    whole = find_link(f"pcie{3 if older else generation}x16")
    share = lanes / 16 * (3 / older if older else 1.0)
    return replace(
        whole,
        name=f"pcie{generation}x{lanes}",
        raw_bytes_per_s=whole.raw_bytes_per_s * share,
        bytes_per_s=whole.bytes_per_s * share,
        ring_bytes_per_s=whole.ring_bytes_per_s * share,
    )


def card_link(name: str, bytes_per_s: float, assumed: list[str]) -> Link:
    """Kind of a card for the network.

    Args:
        name: such as "mlx5_0"
        bytes_per_s: its rate [bytes/s]
        assumed: takes what was assumed, in words
    """
    kind = next((kind for kind, begins in _CARDS.items() if name.startswith(begins)), "")
    if kind == "ib":
        assumed.append("that cards of Mellanox are InfiniBand, not RoCE")
    found = card_of(kind or _NO_LETTER.sub("", name.lower()) or "card", bytes_per_s)
    if not kind:
        assumed.append(f"nothing of {name} but its rate")
    elif found.name not in link_types():
        assumed.append(f"of {name}, {found.source.removeprefix('assumed: ')}")
    return found


_CARDS = {
    "ib": ("mlx", "ib"),
    "efa": ("rdmap", "efa"),
    "slingshot": ("cxi",),
    "omni-path": ("hfi",),
    "roce": ("roce", "bnxt_re", "irdma"),
    "ethernet": ("eth", "en", "em", "bond", "hsn"),
}
"""Kinds of cards by how their devices are called. "hsn" is the Ethernet that Slingshot's cards offer besides."""

_NO_LETTER = re.compile(r"[^a-z]+")


def socket_edges(system: Element) -> Iterator[Edge]:
    """Links between sockets: every two are joined, as NCCL has it."""
    cpus = [child for child in system.children if child.tag == "cpu"]
    for b, cpu in enumerate(cpus):
        attributes: Mapping[str, str] = cpu.attributes
        vendor = "ppc64" if attributes.get("arch", "").startswith("ppc") else attributes.get("vendor", "GenuineIntel")
        model = whole_number(attributes.get("modelid", ""))
        name = _INTEL.get(model or 0, "upi-10.4") if vendor == "GenuineIntel" else _SOCKETS.get(vendor, "upi-10.4")
        for a in range(b):
            yield Edge(a=f"cpu{a}", b=f"cpu{b}", link=find_link(name))


_DEVICES = {
    "0x102d": "k80",
    "0x17c2": "titan-x",
    "0x1b00": "titan-x-pascal",
    "0x1b02": "titan-xp",
    "0x1b06": "gtx-1080-ti",
    "0x15f8": "p100-pcie",
    "0x15f9": "p100",
    "0x1db1": "v100-16gb",
    "0x1db4": "v100-pcie-16gb",
    "0x1db5": "v100-32gb",
    "0x1db6": "v100-pcie-32gb",
    "0x1e04": "rtx-2080-ti",
    "0x1eb8": "t4",
    "0x20b0": "a100-40gb",
    "0x20b2": "a100-80gb",
    "0x20b5": "a100-pcie-80gb",
    "0x20f1": "a100-pcie-40gb",
    "0x2204": "rtx-3090",
    "0x2230": "rtx-a6000",
    "0x2235": "a40",
    "0x2236": "a10",
    "0x2237": "a10g",
    "0x2330": "h100",
    "0x2331": "h100-pcie",
    "0x2335": "h200",
    "0x738c": "mi100",
    "0x740c": "mi250x",
    "0x74a1": "mi300x",
    "0x2684": "rtx-4090",
    "0x26b9": "l40s",
    "0x27b8": "l4",
    "0x2901": "b200",
}
"""Devices by PCI number, from memory."""


def node_from_xml(
    text: str,
    *,
    file: str,
    device: Device | None = None,
    name: str = "imported",
) -> Node:
    """The node whose topology this is.

    Args:
        text: as NCCL writes it
        file: name of the text, for messages
        device: that the node has; None: found by its PCI number
        name: of the node

    Raises:
        InputError: it is not such a file, or a place in it is wrong: the message names line and value
    """
    system = read_xml(text, file=file, root_tag="system")
    found = device or _device(system, file)
    graph = _Graph(file, found, bare=not any(element.tag == "gpu" for element in system.walk()))
    for index, cpu in enumerate(child for child in system.children if child.tag == "cpu"):
        graph.add(cpu, f"cpu{index}")
    if not graph.devices:
        raise InputError(f"{file}: no element <gpu>: expected a topology that NCCL wrote", file=file)
    edges = (*graph.edges, *graph.own_links(), *socket_edges(system))
    caveat = "; ".join(dict.fromkeys(graph.assumed))
    return Node(
        name=name,
        title=f"{len(graph.devices)} {found.title}, from {file}",
        aliases=(),
        device=found,
        devices=len(graph.devices),
        edges=edges,
        peer_access=found.peer_access,
        cpu_cores=1,
        network_cards=(len(graph.cards), graph.cards[0]) if graph.cards else None,
        caveat=f"assumed: {caveat}" if caveat else "",
        source=f"topology of NCCL: {file}",
    )


class _Graph:
    """Edges as the file is walked, and what stands at each bus."""

    def __init__(self, file: str, device: Device, *, bare: bool) -> None:
        self.file = file
        self.device = device
        self.bare = bare
        self.edges: list[Edge] = []
        self.cards: list[Link] = []
        self.devices: dict[str, tuple[int, Element]] = {}
        self.assumed: list[str] = []
        self._switches = 0

    def add(self, element: Element, vertex: str) -> None:
        """Add all that is below an element, which is at a vertex."""
        for child in element.children:
            inside = {below.tag for below in child.children}
            if self.bare and child.tag == "pci" and not child.children:
                self._add_bare(child, vertex)
            elif child.tag == "net":
                self._add_card(child, vertex)
            elif child.tag == "nic":
                self.add(child, vertex)
            elif child.tag == "pci" and "gpu" in inside:
                self._add_device(child, vertex)
            elif child.tag == "pci" and inside & {"nic", "net"}:
                self.add(child, vertex)
            elif child.tag == "pci" and any(self._leaf(below) for below in child.walk()):
                switch = f"plx{self._switches}"
                self._switches += 1
                self.edges.append(Edge(a=vertex, b=switch, link=self._slot(child)))
                self.add(child, switch)

    def own_links(self) -> Iterator[Edge]:
        """Links between devices, each once; to switches for them; to processors."""
        if self.bare and self.device.links and self.device.form == "sxm":
            self.assumed.append("that all links of a device go to switches: the file leaves them to NCCL")
            for number, _ in self.devices.values():
                yield Edge(a=f"gpu{number}", b="nvsw0", link=find_link(self.device.link), count=self.device.links)
        switches: dict[str, str] = {}
        pairs: dict[tuple[int, int], int] = {}
        for number, gpu in self.devices.values():
            for element in (child for child in gpu.children if child.tag in ("nvlink", "xgmi")):
                target, count = self._text(element, "target"), self._count(element)
                link = self._own_link(element)
                if target in self.devices:
                    other = self.devices[target][0]
                    if number < other:
                        pairs[number, other] = pairs.get((number, other), 0) + count
                elif element.attributes.get("tclass", "0x068000").startswith("0x0680"):
                    switch = switches.setdefault(target, f"nvsw{len(switches)}")
                    yield Edge(a=f"gpu{number}", b=switch, link=link, count=count)
                else:
                    raise self._wrong(element, "target", "the bus of a device or of a switch")
        for (a, b), count in pairs.items():
            yield Edge(a=f"gpu{a}", b=f"gpu{b}", link=find_link(self.device.link), count=count)

    def _leaf(self, element: Element) -> bool:
        return element.tag in ("gpu", "net") or (self.bare and element.tag == "pci" and not element.children)

    def _add_bare(self, pci: Element, vertex: str) -> None:
        """A device or card of a file that says no more than its class, as clouds ship them."""
        if pci.attributes.get("class", "").startswith(("0x0300", "0x0302", "0x0380", "0x1200")):
            self.devices[self._text(pci, "busid")] = (len(self.devices), pci)
            self.edges.append(Edge(a=vertex, b=f"gpu{len(self.devices) - 1}", link=self._slot(pci)))
        else:
            self.assumed.append("nothing of cards for the network: the file does not say their rate")

    def _add_device(self, pci: Element, vertex: str) -> None:
        gpu = next(child for child in pci.children if child.tag == "gpu")
        bus = self._text(pci, "busid")
        if bus in self.devices:
            raise self._wrong(pci, "busid", "a bus that no other device has")
        number = len(self.devices)
        self.devices[bus] = (number, gpu)
        link = find_link("nvlink-c2c") if any(child.tag == "c2c" for child in gpu.children) else self._slot(pci)
        self.edges.append(Edge(a=vertex, b=f"gpu{number}", link=link))

    def _add_card(self, net: Element, vertex: str) -> None:
        speed = whole_number(self._text(net, "speed"), least=1)
        if speed is None:
            raise self._wrong(net, "speed", "a rate in Mb/s such as 100000")
        link = card_link(net.attributes.get("name", ""), speed * 1e6 / 8, self.assumed)
        self.edges.append(Edge(a=vertex, b=f"nic{len(self.cards)}", link=link))
        self.cards.append(link)

    def _slot(self, pci: Element) -> Link:
        speed = pci.attributes.get("link_speed", "").split(" ")[0].removesuffix(".0")
        width = pci.attributes.get("link_width", "")
        if speed in ("", "Unknown") or width in ("", "0"):
            self.assumed.append("slots whose speed is not said")
            return find_link(f"pcie{self.device.pcie_generation}x{self.device.pcie_lanes}")
        if speed not in GENERATIONS:
            raise self._wrong(pci, "link_speed", 'a speed such as "16 GT/s"')
        lanes = whole_number(width, least=1, most=_MOST_LANES)
        if lanes is None:
            raise self._wrong(pci, "link_width", "a number of lanes such as 16")
        return pcie(GENERATIONS[speed], lanes)

    def _own_link(self, element: Element) -> Link:
        if not self.device.link:
            raise InputError(
                f"{self.file}: line {element.line}: <{element.tag}>, but {self.device.title} has no links: "
                "name another device",
                line=element.line,
            )
        return find_link(self.device.link)

    def _count(self, element: Element) -> int:
        count = whole_number(self._text(element, "count"), least=1, most=_MOST_LINKS)
        if count is None:
            raise self._wrong(element, "count", "a number of links")
        return count

    def _text(self, element: Element, key: str) -> str:
        if not element.attributes.get(key):
            raise InputError(
                f"{self.file}: line {element.line}: <{element.tag}> has no {key}",
                code="nccl-topology.missing-value",
                key=key,
                line=element.line,
            )
        return element.attributes[key]

    def _wrong(self, element: Element, key: str, expected: str) -> InputError:
        value = element.attributes.get(key, "")
        return InputError(
            f'{self.file}: line {element.line}: {key}: expected {expected}, got "{value}"',
            code="nccl-topology.wrong-value",
            line=element.line,
            key=key,
            value=value,
        )


def _device(system: Element, file: str) -> Device:
    """Which device it is, by the PCI number of the first."""
    for element in system.walk():
        if element.tag == "pci" and any(child.tag == "gpu" for child in element.children):
            number = element.attributes.get("device", "").lower()
            if number in _DEVICES:
                return find_device(_DEVICES[number])
            raise InputError(
                f'{file}: line {element.line}: device "{number}" is not known by its PCI number: name the device',
                code="nccl-topology.unknown-pci-number",
                line=element.line,
            )
    raise InputError(
        f"{file}: no element <gpu>: expected a topology that NCCL wrote", code="nccl-topology.no-gpu", file=file
    )
