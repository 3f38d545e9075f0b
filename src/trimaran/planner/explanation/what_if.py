"""A changed problem: measured costs, scaled.

Intervals are scaled with their durations, so results keep their relative uncertainty. A user may ask for faster links,
free loading, less memory, more devices: each change is read, named and applied here. Measured costs are scaled, never
measured again:

    link=x2        links move bytes twice as fast; latencies stay
    link=pcie3x16  every pair of devices is joined by a link of that kind (`machine/links.toml`)
    link=10Gb/s    links are limited to that rate, in addition to the measured time of a transfer; a link that is
                   limited already is released in proportion, as far as it is limited
    network=x2     the cards and links between nodes alone; of a rate, such as 100Gb/s, each of them
    latency=x0.5   half the latency of every transfer (0: none)
    wire=x0.5      half the bytes of messages, as 16 bits for 32 (without the time to convert them)
    interference=0 communication and compute at the same time do not slow each other down
    compute=x2     forward, backward and update twice as fast
    load=0         loading takes no time (x0.5: half of it)
    memory=8GiB    each device has that much (x2: twice as much)
    devices=4      this number of devices, each like the present ones and with their links

With rates (`link`, `compute`) a factor multiplies the rate, with amounts it multiplies the amount. Several changes at
once are separated by commas.

A problem with other links of a catalog machine.

Its transfers are priced by the links of its devices, so the change applies to the machine: every link faster, those
between nodes alone, or a link of one kind between each two devices. The analytical model prices all of a step by the
machine, so all changes apply to that: a device that computes twice as fast has twice the FLOP/s, bandwidth and power.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.units import format_bit_rate, format_bytes, parse_memory, parse_rate, whole_number
from trimaran.machine.catalog import find_link, link_types
from trimaran.machine.find import default_fabric
from trimaran.machine.types import Device, Link, Machine
from trimaran.planner.analytical.candidates import AnalyticalProblem
from trimaran.planner.problem import Problem
from trimaran.pricing.curves import at_size, latency
from trimaran.pricing.tables import Curve, CurveKey, TensorFit, WholeCost
from trimaran.pricing.transfers import HOST, curve_path
from trimaran.pricing.types import Cost, Interference

MOST_DEVICES = 64
"""Largest number of devices like measured ones: costs of a few ranks do not extrapolate further."""

_MOST_OF_A_CLUSTER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that would be otherwise.

    Attributes:
        what: "link", "network", "latency", "wire", "interference", "compute", "load", "memory" or "devices"
        factor: on the rate or amount; None where `value` is given
        value: rate [bytes/s], memory [bytes] or devices, in place of the present one
        kind: of link, by its name in the catalog; `value` is then its rate
        also: other changes at the same time
    """

    what: str
    factor: float | None = None
    value: float | None = None
    kind: str = ""
    also: tuple["Change", ...] = ()

    @property
    def scale(self) -> float:
        """The factor; 1 where there is none."""
        return 1.0 if self.factor is None else self.factor

    @property
    def text(self) -> str:
        """As a person writes it.

        Example:
            >>> Change(what="link", value=1.25e8).text, Change(what="load", factor=0.0).text
            ('link=1Gb/s', 'load=0')
        """
        if self.also:
            return ",".join(change.text for change in self.each)
        if self.factor is not None:
            return f"{self.what}=0" if self.factor == 0 else f"{self.what}=x{self.factor:g}"
        return f"{self.what}={self._value().replace(' ', '')}"

    @property
    def name(self) -> str:
        """For people.

        Example:
            >>> Change(what="link", factor=2.0).name, Change(what="wire", factor=0.5).name
            ('links × 2', 'bytes of messages × 0.5')
            >>> Change(what="load", factor=0.0).name, Change(what="devices", value=3).name
            ('no loading', 'devices: 3')
        """
        if self.also:
            return "; ".join(change.name for change in self.each)
        words = _WORDS[self.what]
        if self.factor is None:
            return f"{words}: {self._value()}"
        return f"no {words}" if self.factor == 0 else f"{words} × {self.factor:g}"

    @property
    def each(self) -> tuple["Change", ...]:
        """The changes that are made at once, one by one."""
        return (replace(self, also=()), *self.also)

    def _value(self) -> str:
        value = self.value or 0.0
        if self.kind:
            return self.kind
        if self.what in ("link", "network"):
            return format_bit_rate(value)
        return format_bytes(value) if self.what == "memory" else f"{value:.0f}"


_WORDS = {
    "link": "links",
    "network": "network",
    "latency": "latency",
    "wire": "bytes of messages",
    "interference": "interference",
    "compute": "compute",
    "load": "loading",
    "memory": "memory",
    "devices": "devices",
}
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6
_RATES = frozenset({"link", "network", "compute"})
_ONLY_FACTORS = frozenset({"latency", "wire", "interference", "compute", "load"})


def parse_change(text: str) -> Change:
    """A change as it is written on the command line, or several at once.

    Args:
        text: such as "link=10Gb/s", "compute=x2", "load=0", "link=pcie3x16,memory=40GiB"

    Raises:
        InputError: an unknown name, a value that means nothing there, or the same thing twice

    Example:
        >>> parse_change("compute=x2").factor, parse_change("memory=1KiB").value
        (2.0, 1024)
        >>> [change.text for change in parse_change("link=nvlink2,memory=1KiB").each]
        ['link=nvlink2', 'memory=1.0KiB']
    """
    first, *others = (_parse_one(part) for part in text.split(","))
    names = [change.what for change in (first, *others)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'what-if "{text}": {twice} is changed twice; say it once', what_if=text)
    return replace(first, also=tuple(others))


def _parse_one(text: str) -> Change:
    what, equals, value = (part.strip() for part in text.partition("="))
    what = what.lower()
    if what not in _WORDS:
        near = difflib.get_close_matches(what, _WORDS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"choose one of {', '.join(_WORDS)}"
        raise InputError(f'what-if "{text}": unknown name "{what}"; {hint}', code="what-if.unknown-name", what_if=text)
    if not equals or not value:
        raise InputError(
            f'what-if "{text}": expected a value, such as "{what}={_EXAMPLES[what]}"',
            code="what-if.no-value",
            what_if=text,
        )
    if value[0] in "x×" or value == "0":
        return Change(what=what, factor=_factor(what, value.lstrip("x×"), text))
    if what in _ONLY_FACTORS:
        raise InputError(
            f'what-if "{text}": expected a factor for {what}, such as "{what}={_EXAMPLES[what]}"',
            code="what-if.factor-expected",
            what_if=text,
        )
    if what == "link" and not value[0].isdigit():
        return _named_link(value, text)
    return Change(what=what, value=_parse_value(what, value, text))


_EXAMPLES = {
    "link": "10Gb/s",
    "network": "100Gb/s",
    "latency": "0",
    "wire": "x0.5",
    "interference": "0",
    "compute": "x2",
    "load": "0",
    "memory": "8GiB",
    "devices": "4",
}


def _named_link(name: str, text: str) -> Change:
    lower = name.lower()
    if lower not in link_types():
        near = difflib.get_close_matches(lower, link_types(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"links are {', '.join(link_types())}"
        raise InputError(
            f'what-if "{text}": no link is called "{name}"; {hint} Or give a rate, such as "link=10Gb/s"',
            code="what-if.unknown-link",
            what_if=text,
        )
    return Change(what="link", value=find_link(lower).bytes_per_s, kind=lower)


def _factor(what: str, digits: str, text: str) -> float:
    try:
        factor = float(digits)
    except ValueError:
        raise InputError(
            f'what-if "{text}": "{digits}" is not a number', code="what-if.not-a-number", what_if=text
        ) from None
    least_excluded = what in _RATES or what in ("memory", "devices", "wire")
    if not 0 <= factor < float("inf") or (least_excluded and factor == 0):
        raise InputError(
            f'what-if "{text}": a factor of {digits} on {what} means nothing', code="what-if.zero", what_if=text
        )
    if what == "devices":
        raise InputError(
            f'what-if "{text}": expected a number of devices, such as "devices=4"',
            code="what-if.count-expected",
            what_if=text,
        )
    if factor and not _LEAST_FACTOR <= factor <= _MOST_FACTOR:
        raise InputError(
            f'what-if "{text}": expected a factor from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g} on {what}',
            code="what-if.factor-out-of-range",
            what_if=text,
        )
    return factor


def _parse_value(what: str, value: str, text: str) -> float:
    if what in ("link", "network"):
        return parse_rate(value)
    if what == "memory":
        return parse_memory(value)
    return _device_count(value, text, most=_MOST_OF_A_CLUSTER)


def _device_count(value: str, text: str, *, most: int) -> int:
    devices = whole_number(value, least=1, most=most)
    if devices is None:
        raise InputError(
            f'what-if "{text}": expected a number of devices from 1 to {most:,}',
            code="what-if.bad-device-count",
            what_if=text,
        )
    return devices


def joined_by(link: Link, problem: Problem) -> Problem:
    """Every pair of devices with its own link of one kind, priced by the formulas of collectives."""
    joint = Link(
        bytes_per_s=link.bytes_per_s, latency_s=link.latency_s, source=f"assumed: what-if, {link.name}, {link.source}"
    )
    return _on(replace(problem.cluster.machine.rate_limited(None), joint=joint), problem)


def _on(machine: Machine, problem: Problem) -> Problem:
    """The problem on the same devices of a machine that was changed."""
    return replace(problem, cluster=replace(problem.cluster, machine=machine))


def _with_faster(machine: Machine, factor: float, *, inside: bool = True) -> Machine:
    """A catalog machine whose links between nodes, and inside of them, are faster by a factor."""

    def faster(link: Link) -> Link:
        return replace(
            link,
            raw_bytes_per_s=link.raw_bytes_per_s * factor,
            bytes_per_s=link.bytes_per_s * factor,
            ring_bytes_per_s=link.ring_bytes_per_s * factor,
            source=f"assumed: what-if, {link.source}",
        )

    node, fabric = machine.node, machine.fabric
    if node.network_cards is not None:
        node = replace(node, network_cards=(node.network_cards[0], faster(node.network_cards[1])))
    if fabric is not None:
        machine = replace(machine, fabric=(fabric[0], faster(fabric[1])))
    if not inside:
        return replace(machine, node=node)
    node = replace(node, edges=tuple(replace(edge, link=faster(edge.link)) for edge in node.edges))
    joint = None if machine.joint is None else faster(machine.joint)
    return replace(machine, node=node, joint=joint)


def _with_network(machine: Machine, change: Change) -> Machine:
    """A catalog machine of several nodes with faster cards and links between them."""
    if machine.fabric is None:
        raise InputError(
            f'what-if "{change.text}": {machine.node.title} is one node; "link" is for the links inside of it',
            code="what-if.one-node",
            what_if=change.text,
        )
    link = machine.fabric[1]
    present = link.raw_bytes_per_s or link.bytes_per_s
    return _with_faster(machine, change.scale if change.value is None else change.value / present, inside=False)


def changed(problem: Problem, change: Change) -> Problem:
    """The problem as it would be.

    Args:
        problem: as it is
        change: of the costs or devices
    """
    for one in change.each:
        machine = problem.cluster.machine
        if one.what == "network" and machine.node.measured:
            raise InputError(
                f'what-if "{one.text}" is for a machine of the catalog; where devices were measured, "link" changes '
                "what is between them",
                code="what-if.catalog-only",
                what_if=one.text,
            )
        # Links that an earlier change put between each two devices have a latency that is known.
        known = set(_APPLY) if machine.node.measured else _OF_CATALOG | ({"latency"} if machine.joint else set())
        if problem.room is not None:
            known = known | {"load"}
        if one.what not in known:
            raise InputError(
                f'what-if "{one.text}" is for devices that were measured; a machine of the catalog can be asked for '
                f"{', '.join(what for what in _APPLY if what in known)}",
                code="what-if.measured-only",
                what_if=one.text,
            )
        problem = _APPLY[one.what](problem, one)
    return problem


def _link(problem: Problem, change: Change) -> Problem:
    """Links faster by a factor, of one kind between each two devices, or of one rate."""
    machine = problem.cluster.machine
    if change.kind:
        return joined_by(find_link(change.kind), problem)
    if not machine.node.measured:
        return _catalog_link(problem, change)
    if change.value is None:
        factor = 1.0 / change.scale
        problem = _with_joint(problem, lambda link: replace(link, bytes_per_s=link.bytes_per_s / factor))
        return _with_transfers(problem, lambda _, curve: _flows(curve, lambda _, flow_s: flow_s * factor))
    rate, limit, bare_curves = change.value, machine.node.rate_limit, problem.bare_curves
    problem = _with_joint(problem, lambda link: replace(link, bytes_per_s=rate))
    return _with_transfers(problem, lambda key, curve: _rate_limited(rate, key, curve, limit, bare_curves))


def _catalog_link(problem: Problem, change: Change) -> Problem:
    """All links of a catalog machine faster, or one of a rate between each two devices."""
    if change.value is None:
        return _on(_with_faster(problem.cluster.machine, change.scale), problem)
    edges = problem.cluster.machine.node.edges
    asked = Link(
        name=change.text,
        kind="assumed",
        raw_bytes_per_s=change.value,
        bytes_per_s=change.value,
        latency_s=max((edge.link.latency_s for edge in edges), default=0.0),
        source="with the longest latency of the machine",
    )
    return joined_by(asked, problem)


def _rate_limited(
    rate: float, key: CurveKey, curve: Curve, limit: Link | None, bare_curves: Mapping[CurveKey, Curve]
) -> Curve:
    """A curve with its links limited to another rate [bytes/s].

    The ranks' own work for a transfer is added to the link: between two local ranks, all-reduces of
    128 KiB to 16 MiB over links limited to 1 Gb/s take between 15 % more and 13 % less than that sum.
    """
    _, multiple = curve_path(key)

    def flow(nbytes: int, flow_s: float) -> float:
        if limit is None:
            return flow_s + multiple * nbytes / rate
        bare = bare_curves.get(key)
        own_s = min(flow_s, at_size(bare, nbytes).seconds - latency(bare)) if bare else 0.0
        return own_s + (flow_s - own_s) * limit.bytes_per_s / rate

    return _flows(curve, flow)


def _network(problem: Problem, change: Change) -> Problem:
    return _on(_with_network(problem.cluster.machine, change), problem)


def _latency(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    problem = _with_joint(problem, lambda link: replace(link, latency_s=link.latency_s * factor))

    def shorten(key: CurveKey, curve: Curve) -> Curve:
        saved_s = latency(curve) * (1.0 - factor)
        return tuple((size, _with_seconds(cost, cost.seconds - saved_s)) for size, cost in curve)

    return _with_transfers(problem, shorten)


def _wire(problem: Problem, change: Change) -> Problem:
    """Fewer bytes of a message; on a catalog machine they take as long as all of them on faster links."""
    factor = change.scale
    if not problem.cluster.machine.node.measured:
        return _on(_with_faster(problem.cluster.machine, 1.0 / factor), problem)
    problem = _with_joint(problem, lambda link: replace(link, bytes_per_s=link.bytes_per_s / factor))

    def stretch(key: CurveKey, curve: Curve) -> Curve:
        # The time of `size` bytes becomes that of `size / factor`.
        return tuple(sorted({max(1, round(size / factor)): cost for size, cost in curve}.items(), key=lambda p: p[0]))

    return _with_curves(problem, stretch)


def _interference(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    slowed = {
        kind: Interference(
            compute=1.0 + (entry.compute - 1.0) * factor,
            communication=1.0 + (entry.communication - 1.0) * factor,
            latency=1.0 + (entry.latency - 1.0) * factor,
            source=entry.source,
        )
        for kind, entry in problem.table.interference.items()
    }
    return replace(problem, table=replace(problem.table, interference=slowed))


def _compute(problem: Problem, change: Change) -> Problem:
    factor = 1.0 / change.scale
    table = problem.table
    operations = {
        key: {
            batch: replace(cost, forward=cost.forward.scaled(factor), backward=cost.backward.scaled(factor))
            for batch, cost in points.items()
        }
        for key, points in table.operations.items()
    }
    wholes = {
        key: {
            batch: WholeCost(
                forward=cost.forward.scaled(factor),
                backward=cost.backward.scaled(factor),
                evaluation=cost.evaluation.scaled(factor),
            )
            for batch, cost in points.items()
        }
        for key, points in table.wholes.items()
    }
    steps = {
        digest: replace(
            step,
            update=_scaled_fit(step.update, factor),
            clip=_scaled_fit(step.clip, factor),
            updates={samples: _scaled_fit(fit, factor) for samples, fit in step.updates.items()},
        )
        for digest, step in table.steps.items()
    }
    traces = {
        size: replace(traced, costs=replace(traced.costs, durations_s=traced.costs.durations_s * factor))
        for size, traced in problem.traces.items()
    }
    table = replace(table, operations=operations, wholes=wholes, steps=steps)
    return replace(problem, table=table, traces=traces)


def _load(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    steps = {
        digest: replace(
            step,
            load={batch: cost.scaled(factor) for batch, cost in step.load.items()},
            samples=None if step.samples is None else step.samples.scaled(factor),
        )
        for digest, step in problem.table.steps.items()
    }
    return replace(problem, table=replace(problem.table, steps=steps))


def _memory(problem: Problem, change: Change) -> Problem:
    limits = tuple(
        round(nbytes * change.scale if change.value is None else change.value)
        for nbytes in problem.cluster.memory_bytes
    )
    return replace(problem, cluster=replace(problem.cluster, memory_bytes=limits))


def _devices(problem: Problem, change: Change) -> Problem:
    cluster, wanted = problem.cluster, round(change.value or problem.devices)
    if not cluster.machine.node.measured:
        grown = cluster.machine.allocate(wanted, memory_bytes=min(cluster.memory_bytes))
        return replace(problem, cluster=grown, devices=wanted)
    _device_count(str(wanted), change.text, most=MOST_DEVICES)
    extra = max(0, wanted - cluster.size)
    return replace(_with_cores(problem, extra), cluster=cluster.grown(wanted), devices=wanted)


def _with_cores(problem: Problem, extra: int) -> Problem:
    """A core more for each rank more: as many are left for workers, copies and transfers as there are now."""
    here = problem.table.fingerprint
    grown = replace(here, ranks=here.ranks + extra, cores=here.cores + extra)
    traces = {
        size: replace(traced, hooks=replace(traced.hooks, cores=traced.hooks.cores + extra))
        for size, traced in problem.traces.items()
    }
    return replace(problem, table=replace(problem.table, fingerprint=grown), traces=traces)


_APPLY: Mapping[str, Callable[[Problem, Change], Problem]] = {
    "link": _link,
    "network": _network,
    "latency": _latency,
    "wire": _wire,
    "interference": _interference,
    "compute": _compute,
    "load": _load,
    "memory": _memory,
    "devices": _devices,
}


_OF_CATALOG = {"link", "network", "wire", "compute", "memory", "devices"}
"""Changes that a catalog machine allows, and the analytical model."""


def check_analytical(change: Change) -> None:
    """Refuse what the analytical model cannot be asked for.

    Args:
        change: of the machine

    Raises:
        InputError: a change that a machine of the catalog does not allow, or one link between each two devices
    """
    for one in change.each:
        if one.what not in _OF_CATALOG or (one.what == "link" and one.factor is None):
            allowed = "link=x2, network=x2, network=100Gb/s, wire=x0.5, compute=x2, memory=80GiB, devices=64"
            raise InputError(
                f'what-if "{one.text}": the analytical model can be asked for {allowed} and the like; other links are '
                "in another --cluster",
                code="what-if.not-analytical",
                what_if=one.text,
            )


def changed_analytically(problem: AnalyticalProblem, change: Change) -> AnalyticalProblem:
    """The problem of the analytical model as it would be.

    Args:
        problem: as it is
        change: of the machine

    Raises:
        InputError: as of `check_analytical`; or links between nodes, of which there is one
    """
    check_analytical(change)
    for one in change.each:
        problem = _analytically(problem, one)
    return problem


def _analytically(problem: AnalyticalProblem, change: Change) -> AnalyticalProblem:
    machine = problem.machine
    if change.what == "memory":
        limit = problem.device_bytes * change.scale if change.value is None else change.value
        return replace(problem, memory_bytes=round(limit))
    if change.what == "devices":
        wanted = round(change.value or problem.devices)
        nodes = max(machine.nodes, -(-wanted // machine.node.devices))
        fabric = machine.fabric or (default_fabric(machine.node) if nodes > 1 else None)
        return replace(problem, machine=replace(machine, nodes=nodes, fabric=fabric), devices=wanted)
    if change.what == "compute":
        node = machine.node
        unlike = {number: _faster_device(device, change.scale) for number, device in node.unlike.items()}
        node = replace(node, device=_faster_device(node.device, change.scale), unlike=unlike)
        return replace(problem, machine=replace(machine, node=node))
    if change.what == "network":
        return replace(problem, machine=_with_network(machine, change))
    factor = 1.0 / change.scale if change.what == "wire" else change.scale
    return replace(problem, machine=_with_faster(machine, factor))


def _faster_device(device: Device, factor: float) -> Device:
    return replace(
        device,
        compute={name: replace(peak, flops_per_s=peak.flops_per_s * factor) for name, peak in device.compute.items()},
        bandwidth=replace(device.bandwidth, bytes_per_s=device.bandwidth.bytes_per_s * factor),
        # As many watts a FLOP/s: products keep their share of the peak.
        power_w=device.power_w * factor,
    )


def _with_joint(problem: Problem, change: Callable[[Link], Link]) -> Problem:
    machine = problem.cluster.machine
    return problem if machine.joint is None else _on(replace(machine, joint=change(machine.joint)), problem)


def _with_transfers(problem: Problem, change: Callable[[CurveKey, Curve], Curve]) -> Problem:
    """Changes the links; the work of the ranks' own threads stays."""
    return _with_curves(problem, lambda key, curve: curve if key.kind.endswith(HOST) else change(key, curve))


def _with_curves(problem: Problem, change: Callable[[CurveKey, Curve], Curve]) -> Problem:
    curves = {key: change(key, curve) for key, curve in problem.table.curves.items()}
    return replace(problem, table=replace(problem.table, curves=curves))


def _flows(curve: Curve, change: Callable[[int, float], float]) -> Curve:
    """A curve with the part of each point that flows replaced; the latency stays."""
    first_s = latency(curve)
    return tuple((size, _with_seconds(cost, first_s + change(size, cost.seconds - first_s))) for size, cost in curve)


def _with_seconds(cost: Cost, seconds: float) -> Cost:
    """The cost with another duration, as uncertain in proportion."""
    source = f"assumed: what-if, {cost.source}"
    if cost.seconds <= 0:
        return Cost(seconds, seconds, seconds, source)
    return replace(cost.scaled(seconds / cost.seconds), source=source)


def _scaled_fit(fit: TensorFit, factor: float) -> TensorFit:
    return replace(
        fit,
        fixed_s=fit.fixed_s * factor,
        per_tensor_s=fit.per_tensor_s * factor,
        per_byte_s=fit.per_byte_s * factor,
    )
