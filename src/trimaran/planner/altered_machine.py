"""A problem as it would be on other links of a machine of the catalog.

Its transfers are priced by what joins its devices, so what is changed is the machine: every link faster, or a link of
one kind between each two devices.
"""

from dataclasses import replace

from trimaran.cluster import Link
from trimaran.cluster.layout import machine_cluster
from trimaran.cluster.links import find_link
from trimaran.cluster.machines import LinkType, Machine
from trimaran.planner.changes import Change
from trimaran.planner.problem import Problem


def joined_by(link: LinkType, problem: Problem) -> Problem:
    """Every pair of devices with a link of its own of one kind, priced by its closed forms."""
    joint = Link(
        bytes_per_s=link.bytes_per_s, latency_s=link.latency_s, source=f"assumed: what-if, {link.name}, {link.source}"
    )
    size = problem.cluster.size
    pairs = {(one, other): joint for one in range(size) for other in range(one + 1, size)}
    cluster = replace(problem.cluster, links=pairs, link=None, machine=None, numbers=())
    return replace(problem, cluster=cluster)


def machine_link(problem: Problem, change: Change) -> Problem:
    """Links of a machine of the catalog: all of them faster, or one of a kind or rate between each two devices."""
    if change.kind:
        return joined_by(find_link(change.kind), problem)
    if change.value is not None:
        edges = problem.cluster.machine.node.edges if problem.cluster.machine else ()
        latency_s = max((edge.link.latency_s for edge in edges), default=0.0)
        asked = LinkType(
            name=change.text,
            kind="assumed",
            raw_bytes_per_s=change.value,
            bytes_per_s=change.value,
            latency_s=latency_s,
            source="with the longest latency of the machine",
        )
        return joined_by(asked, problem)
    return _with_faster(problem, change.scale)


def _with_faster(problem: Problem, factor: float) -> Problem:
    """All links of a machine, and what joins its nodes, so many times as fast."""

    def faster(link: LinkType) -> LinkType:
        return replace(
            link,
            raw_bytes_per_s=link.raw_bytes_per_s * factor,
            bytes_per_s=link.bytes_per_s * factor,
            ring_bytes_per_s=link.ring_bytes_per_s * factor,
            source=f"assumed: what-if, {link.source}",
        )

    def with_faster(machine: Machine) -> Machine:
        cards, fabric = machine.node.network_cards, machine.fabric
        node = replace(
            machine.node,
            edges=tuple(replace(edge, link=faster(edge.link)) for edge in machine.node.edges),
            network_cards=None if cards is None else (cards[0], faster(cards[1])),
        )
        return replace(machine, node=node, fabric=None if fabric is None else (fabric[0], faster(fabric[1])))

    machine = problem.cluster.machine
    if machine is None:
        return problem
    return replace(problem, cluster=replace(problem.cluster, machine=with_faster(machine)))


def machine_wire(problem: Problem, change: Change) -> Problem:
    """Fewer bytes on the wire: they take as long as all of them on faster links."""
    return _with_faster(problem, 1.0 / change.scale)


def machine_devices(problem: Problem, change: Change) -> Problem:
    """More or fewer devices of the machine, laid out anew."""
    cluster = problem.cluster
    wanted = round(change.value or problem.devices)
    if cluster.machine is None:
        return problem
    memory_bytes = min(device.memory_bytes for device in cluster.devices)
    grown = machine_cluster(cluster.machine, wanted, memory_bytes=memory_bytes)
    return replace(problem, cluster=grown, devices=wanted)
