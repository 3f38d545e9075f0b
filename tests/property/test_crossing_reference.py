"""Crossings against a scorer that shares nothing with them: all ranks, groups and messages one by one, in plain loops.

card      of each node, in each direction: how many groups or messages use it
leaf      in each direction: cards' worth of hops, parts of exchanges of all with all, messages
"""

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.pricing.analytical.step_time import MachineExchange
from trimaran.pricing.collectives.algorithms import crossing_cost
from trimaran.pricing.collectives.links import LinkUse
from trimaran.program.strategy import Axis, Degrees

FEW_CARDS = ("1 ethernet-25g", "2 ib-hdr", "4 ib-hdr", "8 ib-ndr", "12 ib-ndr", "16 ib-ndr")
AXES: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True)
class Reference:
    """Counts one by one.

    A found layout is `(members, of the fullest node, nodes, cards, sharing, uplinks)`.
    """

    devices: int
    cards: int
    leaf_nodes: int
    ratio: float
    by_rail: bool

    def cards_of(self, device: int) -> list[int]:
        local = device % self.devices
        if self.cards < self.devices:
            return [local * self.cards // self.devices]
        width = self.cards // self.devices
        return list(range(local * width, local * width + width))

    def pod(self, node: int) -> int:
        return node // self.leaf_nodes if self.leaf_nodes else 0

    @property
    def leaf_cards(self) -> float:
        """What the links above a leaf carry, in cards: of all cards of its nodes, or of one card of each."""
        return self.leaf_nodes * (1 if self.by_rail else self.cards) / self.ratio

    def groups(self, groups: list[list[int]], *, all_with_all: bool) -> set[tuple[float, ...]]:
        by_node = [self._by_node(group) for group in groups]
        use: Counter[tuple[object, ...]] = Counter()
        leaf: Counter[tuple[object, ...]] = Counter()
        for number, on in enumerate(by_node):
            use.update(self._card_uses(on))
            leaf.update(self._pairs(groups[number]) if all_with_all else self._hops(on))
        found = set()
        for number, on in enumerate(by_node):
            fullest = max(map(len, on.values()))
            if len(on) == 1:
                found.add((len(groups[number]), fullest, 1, 0, 1, 0.0))
                continue
            least = min(len(self._cards(local)) for local in on.values())
            sharing = max(use[key] for key in self._card_uses(on))
            mine = self._pairs(groups[number]) if all_with_all else self._hops(on)
            up = max((leaf[key] for key in mine), default=0.0)
            if up:
                up /= self.leaf_cards
            if all_with_all:
                up /= fullest * (len(groups[number]) - fullest) / least
            found.add((len(groups[number]), fullest, len(on), least, sharing, round(up, 9)))
        return found

    def messages(self, messages: list[tuple[int, int]]) -> set[tuple[float, ...]]:
        use: Counter[tuple[object, ...]] = Counter()
        leaf: Counter[tuple[object, ...]] = Counter()
        for message in messages:
            use.update(self._message_cards(message))
            leaf.update(self._message_leaves(message))
        found: set[tuple[float, ...]] = set()
        for message in messages:
            source, target = message
            if source // self.devices == target // self.devices:
                found.add((2, 2, 1, 0, 1, 0.0))
                continue
            sharing = max(use[key] for key in self._message_cards(message))
            up = max((leaf[key] for key in self._message_leaves(message)), default=0.0)
            # A message takes one of the receiver's cards, in equal parts of each.
            scale = len(self.cards_of(target)) if self.by_rail else 1
            up = up / scale / self.leaf_cards if up else 0.0
            found.add((2, 1, 2, len(self.cards_of(source)), sharing, round(up, 9)))
        return found

    def _by_node(self, group: list[int]) -> dict[int, list[int]]:
        on: dict[int, list[int]] = {}
        for device in sorted(group):
            on.setdefault(device // self.devices, []).append(device)
        return on

    def _cards(self, local: list[int]) -> list[int]:
        return sorted({card for device in local for card in self.cards_of(device)})

    def _card_uses(self, on: dict[int, list[int]]) -> Counter[tuple[object, ...]]:
        uses: Counter[tuple[object, ...]] = Counter()
        nodes = list(on)
        if len(nodes) == 1:
            return uses
        for node in nodes:
            for card in self._cards(on[node]):
                uses[node, card, "out"] = uses[node, card, "in"] = 1
        return uses

    def _hops(self, on: dict[int, list[int]]) -> Counter[tuple[object, ...]]:
        nodes, flows = list(on), Counter[tuple[object, ...]]()
        least = min(len(self._cards(local)) for local in on.values())
        for node, following in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            a, b = self.pod(node), self.pod(following)
            if a == b:
                continue
            cards = self._cards(on[following])
            for card in cards if self.by_rail else ["all"]:
                share = least / len(cards) if self.by_rail else least
                flows[a, card, "up"] += share  # type: ignore[assignment]
                flows[b, card, "down"] += share  # type: ignore[assignment]
        return flows

    def _pairs(self, group: list[int]) -> Counter[tuple[object, ...]]:
        flows = Counter[tuple[object, ...]]()
        for source, target in itertools.permutations(group, 2):
            a, b = self.pod(source // self.devices), self.pod(target // self.devices)
            if a != b:
                cards = self.cards_of(target)
                for card in cards if self.by_rail else ["all"]:
                    flows[a, card, "up"] += 1 / len(cards) if self.by_rail else 1  # type: ignore[assignment]
                    flows[b, card, "down"] += 1 / len(cards) if self.by_rail else 1  # type: ignore[assignment]
        return flows

    def _message_cards(self, message: tuple[int, int]) -> list[tuple[object, ...]]:
        source, target = message
        a, b = source // self.devices, target // self.devices
        if a == b:
            return []
        out = self.cards_of(target if self.by_rail else source)
        return [(a, card, "out") for card in out] + [(b, card, "in") for card in self.cards_of(target)]

    def _message_leaves(self, message: tuple[int, int]) -> list[tuple[object, ...]]:
        source, target = message
        a, b = self.pod(source // self.devices), self.pod(target // self.devices)
        if a == b:
            return []
        cards: list[object] = [*self.cards_of(target)] if self.by_rail else ["all"]
        return [end for card in cards for end in ((a, card, "up"), (b, card, "down"))]


def told(found: frozenset[LinkUse]) -> set[tuple[float, ...]]:
    return {
        (each.devices, len(each.local), each.nodes, each.cards, each.sharing, round(each.uplinks, 9)) for each in found
    }


def coordinates(degrees: Degrees) -> dict[int, dict[Axis, int]]:
    """For each device, which rank of each kind has it."""
    found: dict[int, dict[Axis, int]] = {}
    sizes = [getattr(degrees, axis) for axis in degrees.rank_order]
    for device, digits in enumerate(itertools.product(*(range(size) for size in reversed(sizes)))):
        found[device] = dict(zip(reversed(degrees.rank_order), digits, strict=True))
    return found


def grouped(degrees: Degrees, free: set[str]) -> list[list[int]]:
    """Devices that differ in these coordinates alone."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in coordinates(degrees).items():
        groups.setdefault(tuple(place[axis] for axis in AXES if axis not in free), []).append(device)
    return list(groups.values())


def expert_groups(degrees: Degrees, *, replicas: bool) -> list[list[int]]:
    """Ranks of a stage, numbered by tensor, context and replica, are dealt to tensors of experts, experts, replicas."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in coordinates(degrees).items():
        number = place["tp"] + degrees.tp * (place["cp"] + degrees.cp * place["dp"])
        shard, rest = number % degrees.expert_ranks, number // degrees.expert_ranks
        expert, replica = rest % degrees.ep, rest // degrees.ep
        groups.setdefault((place["pp"], shard, expert if replicas else replica), []).append(device)
    return list(groups.values())


def stage_messages(degrees: Degrees) -> list[tuple[int, int]]:
    place = coordinates(degrees)
    where = {tuple(one[axis] for axis in AXES): device for device, one in place.items()}
    return [
        (device, where[one["tp"], one["cp"], one["dp"], one["pp"] + 1])
        for device, one in place.items()
        if one["pp"] + 1 < degrees.pp
    ]


@st.composite
def machines(draw: st.DrawFn) -> tuple[str, Reference]:
    name, each = draw(st.sampled_from((("dgx-h100", 8), ("dgx-a100", 8), ("dgx1-v100", 8), ("4xv100", 4))))
    cards = draw(st.sampled_from(FEW_CARDS))
    leaf_nodes = draw(st.sampled_from((0, 1, 2, 3, 5)))
    ratio = draw(st.sampled_from((1.0, 2.0, 4.0, 1.5))) if leaf_nodes else 1.0
    by_rail = draw(st.booleans()) if leaf_nodes else False
    words = f"{name}:{{}}@{cards}"
    words += f",nodes_per_leaf={leaf_nodes},oversubscription={ratio}" if leaf_nodes else ""
    words += ",rails" if by_rail else ""
    count = int(cards.split()[0])
    return words, Reference(devices=each, cards=count, leaf_nodes=leaf_nodes, ratio=ratio, by_rail=by_rail)


@st.composite
def settings_of(draw: st.DrawFn) -> Degrees:
    sizes = {axis: draw(st.sampled_from((1, 1, 2, 3, 4, 5, 6, 8))) for axis in AXES}
    degrees = Degrees(
        **sizes,
        expert_tp=draw(st.sampled_from((1, sizes["tp"]))),
        rank_order=tuple(draw(st.permutations(AXES))),
    )
    assume(2 <= degrees.devices <= 192)
    inside = degrees.devices // degrees.pp // degrees.expert_ranks
    ep = draw(st.sampled_from([each for each in range(1, inside + 1) if inside % each == 0]))
    return Degrees(**sizes, ep=ep, expert_tp=degrees.expert_tp, rank_order=degrees.rank_order)


def exchange_of(words: str, degrees: Degrees, each: int) -> tuple[Machine, MachineExchange]:
    machine = find_machine(words.format(max(2, -(-degrees.devices // each))))
    return machine, MachineExchange(machine, ranks=degrees.devices, year=2024.0).placed(degrees)


@settings(max_examples=400, deadline=None)
@given(machine=machines(), degrees=settings_of())
def test_crossings_are_those_of_all_ranks_counted_one_by_one(machine: tuple[str, Reference], degrees: Degrees) -> None:
    words, reference = machine
    _, exchange = exchange_of(words, degrees, reference.devices)
    replicas, experts = degrees.dp * degrees.cp, degrees.ep * degrees.expert_ranks
    for op, members, near, groups in (
        ("all_reduce", degrees.tp, 1, grouped(degrees, {"tp"})),
        ("all_gather", degrees.cp, degrees.tp, grouped(degrees, {"cp"})),
        ("all_to_all", degrees.cp, degrees.tp, grouped(degrees, {"cp"})),
        ("reduce_scatter", replicas, degrees.tp, grouped(degrees, {"cp", "dp"})),
        ("all_to_all", degrees.ep, degrees.expert_ranks, expert_groups(degrees, replicas=False)),
        ("all_reduce", degrees.expert_data, experts, expert_groups(degrees, replicas=True)),
    ):
        wanted = reference.groups(groups, all_with_all=op == "all_to_all")
        assert told(exchange.crossings(op, members, near)) == wanted, (op, members, near)
    if degrees.pp > 1:
        found = exchange.crossings("send_recv", degrees.pp, degrees.devices // degrees.pp)
        assert told(found) == reference.messages(stage_messages(degrees))


@settings(max_examples=100, deadline=None)
@given(machine=machines(), degrees=settings_of(), op=st.sampled_from(("all_reduce", "all_to_all")))
def test_a_message_is_priced_by_its_slowest_crossing(machine: tuple[str, Reference], degrees: Degrees, op: str) -> None:
    words, reference = machine
    there, exchange = exchange_of(words, degrees, reference.devices)
    groups = grouped(degrees, {"dp", "cp"})
    members = degrees.dp * degrees.cp
    # Devices of other nodes are not joined alike, so that it matters which of them are in a group.
    assume(members > 1 and there.node.name in ("dgx-h100", "dgx-a100"))
    wanted = max(
        crossing_cost(
            op,
            2e8,
            machine=there,
            crossing=LinkUse(
                local=tuple(range(int(fullest))),
                nodes=int(nodes),
                cards=int(cards),
                sharing=int(sharing),
                uplinks=up,
                members=int(count) if count != fullest * nodes else 0,
            ),
            year=2024.0,
        ).seconds
        for count, fullest, nodes, cards, sharing, up in reference.groups(groups, all_with_all=op == "all_to_all")
    )
    assert exchange(op, 2e8, members, degrees.tp) == pytest.approx(wanted, rel=1e-6)
