"""Cost of messages and collectives between the devices of a machine.

A transfer has one of three models:

    joint link   every two devices have one of a kind for themselves (`Machine.joint`): formulas
    measured     devices of this host: the table's curves
    link graph   devices of the catalog: their links (`machine_transfers`)

Where transfers are measured, devices of one node talk over its loopback: one link, shared by all of them. Where their
links are rate-limited, each device has one line out and one in, so that messages in opposite directions do not
share. Between nodes they share the links of these, and take at least the time that was measured within one.
"""

from dataclasses import replace

from trimaran.base.errors import InputError
from trimaran.machine.types import Allocation, Link, Machine
from trimaran.pricing.collectives.formulas import OPERATION_OF, path
from trimaran.pricing.curves import at_size, fixed_part, latency
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.machine_transfers import MESSAGE, machine_transfer
from trimaran.pricing.tables import CostTable, Curve, CurveKey
from trimaran.pricing.types import Cost, Transfer
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind


def _pairs(members: tuple[int, ...], *, is_message: bool) -> tuple[tuple[int, int], ...]:
    """The pairs of devices that a transfer goes between: of a collective the neighbours in a ring."""
    ring = zip(members, (*members[1:], members[0]), strict=True)
    pairs = list(dict.fromkeys((min(pair), max(pair)) for pair in ring))
    return tuple(pairs[:1] if is_message else pairs)


def _find_route(members: tuple[int, ...], machine: Machine, *, is_message: bool) -> tuple[tuple[str, ...], Link | None]:
    """Names of the measured links that a transfer goes over, and the uplink of hosts that it leaves by, if it does.

    Args:
        members: numbers of its devices; of a message the source and the target
        machine: that has them
        is_message: from one device to another; else a collective of all

    Raises:
        InputError: two devices that no link joins
    """
    names: dict[str, None] = {}
    uplink: Link | None = None
    for a, b in _pairs(members, is_message=is_message):
        if machine.host(a) == machine.host(b):
            names.update(dict.fromkeys(_local(machine, members, machine.host(a), is_message=is_message)))
        elif machine.fabric is not None:
            names.update(dict.fromkeys(_up_and_down(machine, members if is_message else (a, b), is_message=is_message)))
            uplink = machine.fabric[1]
        else:
            raise InputError(
                f'cluster "{machine.node.name}" has no link between devices {a} and {b}, which are on different hosts',
                code="cluster.no-link",
                ranks=(a, b),
            )
    return tuple(names), uplink


def _up_and_down(machine: Machine, ends: tuple[int, ...], *, is_message: bool) -> tuple[str, ...]:
    """The uplinks between the hosts of two devices: of a message one each, of a collective both in both directions."""
    first, second = (f"host {machine.host(number)}" for number in ends)
    up = (f"out of {first}", f"into {second}")
    return up if is_message else (*up, f"out of {second}", f"into {first}")


def _local(machine: Machine, members: tuple[int, ...], host: int, *, is_message: bool) -> tuple[str, ...]:
    """The links within one host: its loopback, or the lines out of those that send and into those that receive."""
    if machine.node.rate_limit is None:
        return ("loopback" if machine.nodes == 1 else f"loopback{host}",)
    if is_message:
        return (f"out of {members[0]}", f"into {members[1]}")
    return tuple(f"{end} {number}" for end in ("out of", "into") for number in members)


SEND = "SEND"
HOST = " host"
HOST_SEND = f"SEND{HOST}"
HOST_RECEIVE = f"RECV{HOST}"
HOST_COLLECTIVE = f"AR{HOST}"
"""Kinds of curves: time that a rank's own thread spends on a transfer."""

QUEUED = " queued"
"""Behind the kind of a collective: one of many that wait for each other, as those from and to owners do. Their starts
overlap, so each takes less than it does alone."""


def transfer_cost(instruction: Instruction, table: CostTable, cluster: Allocation) -> Transfer:
    """Cost of a send, a receive or a collective when no other transfer runs.

    Args:
        instruction: the instruction; a group of one rank costs nothing
        table: measured curves
        cluster: who sits where

    Returns:
        The same for all members of the transfer.

    Raises:
        InputError: ranks that no link joins, or a transfer that was not measured
    """
    if instruction.kind in SENDS or instruction.kind in RECEIVES:
        ends = (instruction.rank, _peer(instruction))
        ranks = tuple(dict.fromkeys(ends if instruction.kind in SENDS else reversed(ends)))
        kind = SEND
    else:
        ranks, kind = instruction.group, str(instruction.kind)
        queued = CurveKey(f"{kind}{QUEUED}", len(ranks))
        if instruction.root is not None and queued in table.curves:
            kind = queued.kind
    if len(ranks) < 2:
        return Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="analytic: one rank")
    machine, members, is_message = cluster.machine, tuple(map(cluster.number, ranks)), kind == SEND
    if machine.joint is not None:
        names = tuple(f"{a}-{b}" for a, b in _pairs(members, is_message=is_message))
        return _analytic(kind.removesuffix(QUEUED), len(ranks), instruction.nbytes, machine.joint, names)
    if not machine.node.measured:
        year = (table.software or Software()).year
        return machine_transfer(MESSAGE if is_message else kind, instruction.nbytes, members, machine, year=year)
    names, uplink = _find_route(members, machine, is_message=is_message)
    within = _measured(kind, len(ranks), instruction.nbytes, table, names)
    if uplink is None:
        return within
    beyond = _analytic(kind.removesuffix(QUEUED), len(ranks), instruction.nbytes, uplink, names)
    return _over_uplink(within, beyond, uplink)


def collectives_at_once(table: CostTable, cluster: Allocation) -> int:
    """How many collectives of one group are under way at once.

    Two by gloo, whose process groups have two workers. Where every core has a rank the second gains nothing.

    Args:
        table: measured curves
        cluster: who sits where; a machine of the catalog has one stream a group

    Source:
        torch.distributed.ProcessGroupGloo: `Options.threads` is 2.
    """
    return 2 if table.fingerprint.kind == "cpu" and cluster.machine.node.measured and not _no_spare_core(table) else 1


def has_queues(table: CostTable, ranks: int) -> bool:
    """Whether reductions to owners and broadcasts from them were measured, many at once, between this number of ranks.

    Args:
        table: measured curves
        ranks: in the group
    """
    return all(CurveKey(f"{kind}{QUEUED}", ranks) in table.curves for kind in (Kind.BROADCAST, Kind.REDUCE))


def handling_seconds(instruction: Instruction, table: CostTable) -> float:
    """Time that the rank's own thread spends on a transfer, and so does not compute [s].

    It counts where the host computes: on a GPU, and where not measured, it is 0.

    Args:
        instruction: a send, a receive or a collective
        table: measured curves
    """
    if table.fingerprint.kind != "cpu":
        return 0.0
    if instruction.kind == Kind.BROADCAST and instruction.root is not None:
        queued = CurveKey(f"{instruction.kind}{QUEUED}", len(instruction.group))
        if queued in table.curves:
            return 0.0  # these follow one another with no compute between them, and were measured so
    kind = HOST_COLLECTIVE
    if instruction.kind in SENDS or instruction.kind in RECEIVES:
        kind = HOST_SEND if instruction.kind in SENDS else HOST_RECEIVE
    curve = table.curves.get(CurveKey(kind, 2))
    return at_size(curve, instruction.nbytes).seconds if curve else 0.0


def _peer(instruction: Instruction) -> int:
    if instruction.peer is None:
        raise InputError(f'{instruction.id}: "{instruction.kind}" needs a peer')
    return instruction.peer


def _measured(kind: str, num_ranks: int, nbytes: int, table: CostTable, links: tuple[str, ...]) -> Transfer:
    curve = _curve(kind, num_ranks, table)
    cost = at_size(curve, nbytes)
    latency_s = fixed_part(curve, nbytes)
    return Transfer(
        latency_s=latency_s,
        flow_s=cost.seconds - latency_s,
        links=links,
        low=cost.low,
        high=cost.high,
        source=cost.source,
    )


def _no_spare_core(table: CostTable) -> bool:
    return table.fingerprint.kind == "cpu" and table.fingerprint.ranks >= table.fingerprint.cores


def _curve(kind: str, num_ranks: int, table: CostTable) -> Curve:
    curve = table.curves.get(CurveKey(kind, num_ranks))
    if curve:
        return curve
    if kind == Kind.REDUCE:
        return _like_all_reduce(_curve(str(Kind.ALL_REDUCE), num_ranks, table))
    if kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) and not any(key.kind == kind for key in table.curves):
        whole = table.fingerprint.kind == "cpu" and kind == Kind.REDUCE_SCATTER
        return _like_all_reduce(_curve(str(Kind.ALL_REDUCE), num_ranks, table), share=1.0 if whole else 0.5)
    measured = [key for key in table.curves if key.kind == kind]
    if not measured or kind == SEND:
        raise InputError(
            f'the cost table has no measured time of "{kind}" between {num_ranks} ranks; measure the links of '
            f"{table.fingerprint.device} first",
            code="cost-table.missing-transfer",
            kind=kind,
            ranks=num_ranks,
        )
    nearest = min(measured, key=lambda key: (abs(key.ranks - num_ranks), key.ranks))
    return _rescale(table.curves[nearest], nearest, CurveKey(kind, num_ranks))


def _like_all_reduce(curve: Curve, *, share: float = 1.0) -> Curve:
    """A collective that was not measured, from an all-reduce.

    A reduce moves as much: gloo sums shares in a ring and gathers them at the root. A ring's all-reduce is a
    reduce-scatter and then an all-gather, half of it each. A reduce-scatter of gloo is measured to take a whole
    all-reduce: 55 ms and 55 ms for 4 MB on 4 ranks at 1 Gb/s.
    """
    how = "as an all-reduce" if share == 1.0 else "half an all-reduce"
    return tuple((size, replace(cost.scaled(share), source=f"assumed: {how}, {cost.source}")) for size, cost in curve)


def _rescale(curve: Curve, measured: CurveKey, wanted: CurveKey) -> Curve:
    """The curve of another group size: its latency by the number of messages, the rest by the volume."""
    first_s = latency(curve)
    steps, flow = (now / then for now, then in zip(curve_path(wanted), curve_path(measured), strict=True))

    def scale(cost: Cost) -> Cost:
        seconds = first_s * steps + (cost.seconds - first_s) * flow
        scaled = cost.scaled(seconds / cost.seconds if cost.seconds else 1.0)
        return replace(scaled, source=f"analytic: from {measured.ranks} ranks, {cost.source}")

    return tuple((size, scale(cost)) for size, cost in curve)


def _over_uplink(within: Transfer, beyond: Transfer, uplink: Link) -> Transfer:
    """Over the uplinks of hosts: the measured latency, then the bytes at the rate of the uplink."""
    latency_s = within.latency_s + uplink.latency_s
    total_s = latency_s + max(within.flow_s, beyond.flow_s)
    return Transfer(
        latency_s=latency_s,
        flow_s=total_s - latency_s,
        links=within.links,
        low=total_s - within.latency_s - within.flow_s + within.low,
        high=total_s - within.latency_s - within.flow_s + within.high,
        source=f"analytic: {uplink.source}, start as {within.source}",
    )


def _analytic(kind: str, num_ranks: int, nbytes: int, link: Link, links: tuple[str, ...]) -> Transfer:
    hops, multiple = curve_path(CurveKey(kind, num_ranks))
    latency_s = hops * link.latency_s
    total_s = latency_s + multiple * nbytes / link.bytes_per_s
    source = f"analytic: {link.source}"
    return Transfer(
        latency_s=latency_s, flow_s=total_s - latency_s, links=links, low=total_s, high=total_s, source=source
    )


def curve_path(key: CurveKey) -> tuple[int, float]:
    """Messages that follow one another in a measured transfer, and bytes as a multiple of its buffer (`path`).

    Broadcasts and reduces of gloo go along binomial trees.

    Args:
        key: of a message or a collective, in any variant
    """
    kind = key.kind.partition(" ")[0]
    return path(MESSAGE if kind == SEND else OPERATION_OF[Kind(kind)], key.ranks, binomial=True)
