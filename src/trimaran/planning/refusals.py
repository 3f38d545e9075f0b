"""What fits in place of a request for which nothing does: the request changed, and planned by the same backend.

Each kind of change is tried from the smallest on, until one fits. Of one device with 24 GB, a decoder of a billion
parameters and 16 sequences of 8,192 tokens:

    shorter sequences    --sequence 4096, 2048, …
    8 bits               --optimizer-state adam-8bit
    offload              --allow optimizer-offload, in the memory of the host, or of one with as much as it takes
    recompute            where it was ruled out
    microbatches         of one sequence, where a strategy says nothing of them
    no pins              where degrees or a strategy were decided
    no target            where what a runtime lacks was left out
    more devices         2, 4, 8, …; of a node first
    a larger device      of the same maker, not slower, the smallest memory first

What takes `SLOWEST` times the step of the fastest is no way. Where fewer than two are left, or all are on other
hardware, pairs are tried; then the next larger device.

Each change is planned, never said by rule: some that rules name do not fit. A host's memory is part of the machine's
name (`4xrtx-4090@host_memory=256GiB`), so that every command and plan file has it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trimaran.base.errors import InfeasibleError, TrimaranError
from trimaran.base.remedies import Way
from trimaran.base.units import format_bytes
from trimaran.machine.catalog import catalog, usual_node
from trimaran.machine.find import find_machine, with_host_memory
from trimaran.machine.types import OFFLOAD_SHARE, Device, Machine
from trimaran.networks.names import parse_network
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.analytical.candidates import AnalyticalCandidate, host_memory
from trimaran.planner.choice import Option
from trimaran.planner.pins import Pins, leaves_microbatches, parse_pins, pins_of_strategy
from trimaran.planning.analytical import Analytical
from trimaran.planning.estimated import Estimated
from trimaran.planning.requests import NO_TARGET, PlanRequest
from trimaran.planning.target import Backend, Cell

SLOWEST = 10.0
"""Times the step of the fastest way that another one may take."""

LACKS = frozenset({"analytical.nothing-fits", "plan.nothing-fits", "plan.no-batch-fits"})
"""Codes of refusals that another request may not have."""

_LEAST_SEQUENCE = 256
_DOUBLINGS = 7
_DOUBLINGS_TRACED = 3
"""Whose ranks are simulated, which takes seconds where there are many."""

_BOX = 8
_Options = dict[str, str | int | list[str] | None]

_HOSTS_GIB = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Memory that hosts are built with."""

Find = Callable[[PlanRequest], Backend]
"""The backend of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A changed request.

    Attributes:
        id: as in `Way`
        name: as in `Way`
        options: as in `Way`
        request: changed
    """

    id: str
    name: str
    options: _Options
    request: PlanRequest

    def and_then(self, other: "_Change") -> "_Change":
        """Both, the other one of the request of this one."""
        return replace(other, id=self.id, name=f"{self.name}, {other.name}", options={**self.options, **other.options})


def ways(request: PlanRequest, find: Find) -> tuple[Way, ...]:
    """What fits in place of a request for which nothing does, the shortest step first.

    Args:
        request: for a machine of the catalog, at one batch
        find: gives the backend of a request
    """
    asked = _Asked(find=find)
    found = [way for kind in _KINDS for way in asked.first(kind(request, asked))]
    for first, then in _PAIRS:
        near = _near(found)
        if len(near) >= 2 and not all(_ELSEWHERE & way.options.keys() for way in near):
            break
        if len(near) < 2 or then is _shorter:
            pairs = (one.and_then(two) for one in first(request, asked) for two in then(one.request, asked))
            found += asked.first(pairs)
    if len(_near(found)) < 2:
        names = {way.name for way in found}
        found += asked.first(one for one in _larger(request, asked) if one.name not in names)
    return _near(found)


def _near(found: list[Way]) -> tuple[Way, ...]:
    """Those that are not too slow, the shortest step first."""
    most_s = SLOWEST * min((one.step_time_s for one in found), default=0.0)
    return tuple(
        sorted((one for one in found if one.step_time_s <= most_s), key=lambda one: (one.step_time_s, one.name))
    )


def refused(error: InfeasibleError, request: PlanRequest, find: Find) -> InfeasibleError:
    """A refusal of a plan with the ways out, and with what was assumed.

    Args:
        error: as it was raised
        request: for a machine of the catalog
        find: gives the backend of a request
    """
    if request.bound is not None:
        request = replace(request.bound.asked, bound=request.bound)

    def bound_find(other: PlanRequest) -> Backend:
        return find(other if other.bound is None else other.bound.bind(other))

    request = replace(request, target=NO_TARGET, objective=None)
    backend, node = bound_find(request), find_machine(request.cluster).node
    figures = dict(error.figures) | {"ways": ways(request, bound_find), "host_memory_bytes": node.host_memory_bytes}
    assumed = []
    if isinstance(backend, Analytical):
        figures["sequence"] = backend.shape.sequence
        if "sequence" not in request.options and "sequence=" not in backend.source.reference:
            assumed.append(f"sequences of {backend.shape.sequence:,} tokens (--sequence)")
        if request.pins.offload or "optimizer-offload" in request.pins.special:
            assumed.append(_host_words(request))
    said = f". Assumed: {' and '.join(assumed)}" if assumed else ""
    return InfeasibleError(error.message + said, code=error.code, **figures)


def _host_words(request: PlanRequest) -> str:
    """What the hosts of a request are taken to have."""
    node = find_machine(request.cluster).node
    option = f"--cluster {with_host_memory(request.cluster, 2 * node.host_memory_bytes or 2**38)} says another"
    if not node.host_memory_bytes:
        return f"hosts whose memory is not known ({option})"
    return (
        f"hosts with {format_bytes(node.host_memory_bytes)}, of which {100 * OFFLOAD_SHARE:.0f} % may hold the "
        f"optimizer's state ({option})"
    )


# ---------------------------------------------------------------------------------------------------------------------
# What a changed request gives


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Answers of changed requests.

    Attributes:
        find: gives the backend of a request
    """

    find: Find

    def first(self, changes: Iterator[_Change]) -> Iterator[Way]:
        """The first change with which something fits, if any."""
        for change in changes:
            found = self.planned(change.request, memory_plans=change.id == "recompute")
            if found is not None:
                yield _way(change, *found)
                return

    def planned(self, request: PlanRequest, *, memory_plans: bool = False) -> tuple[Backend, Option] | None:
        """The choice of a short search with its backend; None: nothing fits, or there is no such request."""
        try:
            backend = self.find(request)
            if isinstance(backend, Estimated) and memory_plans:
                return backend, backend.plan().chosen
            found = backend.glance() if isinstance(backend, Analytical | Estimated) else None
        except TrimaranError:
            return None
        return None if found is None else (backend, found)


def _way(change: _Change, backend: Backend, found: Option) -> Way:
    tokens = None
    if isinstance(backend, Analytical):
        problem = backend.problem(Cell(batch=backend.batch, devices=backend.devices), None)
        tokens = backend.batch * problem.sample_tokens / found.step_time_s
    return Way(
        id=change.id,
        name=change.name,
        options=change.options,
        strategy=found.strategy.name,
        devices=found.strategy.devices,
        global_batch_size=backend.batch,
        step_time_s=found.step_time_s,
        tokens_per_s=tokens,
        peak_bytes=max(found.peak_bytes),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of changes, each from the smallest on


def _shorter(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    sequence = _sequence(request, asked)
    while sequence > _LEAST_SEQUENCE and sequence % 2 == 0:
        sequence //= 2
        yield _Change(
            id="shorter-sequence",
            name=f"sequences of {sequence:,} tokens",
            options={"sequence": sequence},
            request=replace(request, options={**request.options, "sequence": str(sequence)}),
        )


def _sequence(request: PlanRequest, asked: _Asked) -> int:
    """Tokens of a sequence; 0: samples have none."""
    backend = asked.find(request)
    if isinstance(backend, Analytical):
        return backend.shape.sequence
    network = parse_network(backend.source.reference)
    if network is None or network.name not in FAMILIES:
        return 0
    return int(request.options.get("sequence", network.number("sequence", FAMILIES[network.name].sequence)))


def _eight_bits(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    pins = request.pins
    said = pins_of_strategy(pins.strategy).optimizer_state if pins.strategy else None
    if isinstance(asked.find(request), Analytical) and pins.optimizer_state != "adam-8bit" and said is None:
        yield _Change(
            id="8-bit-optimizer",
            name="optimizer's moments in 8 bits",
            options={"optimizer-state": "adam-8bit"},
            request=replace(request, pins=replace(pins, optimizer_state="adam-8bit")),
        )


def _offload(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """With the hosts as they are, then with as much memory as it takes, in the sizes that hosts have."""
    pins = request.pins
    if not isinstance(asked.find(request), Analytical) or "optimizer-offload" in pins.forbid:
        return
    options: _Options = {}
    away = request
    if pins.strategy:
        words = pins.strategy if pins.offload else f"{pins.strategy} offload"
        options = {} if pins.offload else {"strategy": words}
        away = replace(request, pins=_named(pins, words))
    elif "optimizer-offload" not in pins.special:
        options = {"allow": [*_allowed(pins), "optimizer-offload"]}
        away = replace(request, pins=replace(pins, special=(*pins.special, "optimizer-offload")))
    if options:
        yield _Change(
            id="offload",
            name=f"optimizer's state on hosts of {format_bytes(_host_bytes(request))}",
            options=options,
            request=away,
        )
    roomy = replace(away, cluster=with_host_memory(request.cluster, _HOSTS_GIB[-1] << 30))
    found = asked.planned(roomy)
    if found is None or not isinstance(found[1], AnalyticalCandidate) or not isinstance(found[0], Analytical):
        return
    backend, chosen = found[0], found[1]
    problem = backend.problem(Cell(batch=backend.batch, devices=backend.devices), None)
    needed = host_memory(problem, chosen.strategy).needed / OFFLOAD_SHARE
    for size in _HOSTS_GIB:
        if size << 30 >= needed and size << 30 > _host_bytes(request):
            cluster = with_host_memory(request.cluster, size << 30)
            yield _Change(
                id="offload",
                name=f"optimizer's state on hosts of {size} GiB",
                options={**options, "cluster": cluster},
                request=replace(away, cluster=cluster),
            )


def _recompute(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """Where it was ruled out."""
    pins, analytical = request.pins, isinstance(asked.find(request), Analytical)
    if pins.strategy:
        if analytical and pins.recompute != "layers":
            kept = [word for word in pins.strategy.split() if not word.startswith("recompute")]
            words = " ".join((*kept, "recompute"))
            pins = _named(pins, words)
            yield _Change(
                id="recompute",
                name="all layers recomputed",
                options={"strategy": words},
                request=replace(request, pins=pins),
            )
        return
    ruled_out = pins.recompute not in (None, "layers") or "memory" in pins.forbid
    if ruled_out:
        others = tuple(kind for kind in pins.forbid if kind != "memory")
        changed = replace(pins, recompute="layers" if analytical else None, forbid=others)
        yield _Change(
            id="recompute",
            name="layers recomputed" if analytical else "offload and recompute",
            options={"recompute": changed.recompute, "forbid": list(others) or None},
            request=replace(request, pins=changed),
        )


def _smaller_microbatches(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """Of one sequence, where a strategy says nothing of them, so that it has one microbatch."""
    pins = request.pins
    if leaves_microbatches(pins) and isinstance(asked.find(request), Analytical):
        words = f"{pins.strategy} mb1"
        yield _Change(
            id="smaller-microbatches",
            name="microbatches of one sequence",
            options={"strategy": words},
            request=replace(request, pins=_named(pins, words)),
        )


def _without_pins(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """All that was decided about how the job is spread; what is kept for a parameter stays."""
    del asked
    pins = request.pins
    kept = Pins(
        gradients=None if pins.strategy else pins.gradients,
        optimizer_state=None if pins.strategy else pins.optimizer_state,
        compress=pins.compress,
        stale=pins.stale,
        special=() if pins.strategy else pins.special,
    )
    left = [name for name in pins.names if name not in kept.names]
    if left:
        options: _Options = {name.split(" ")[0].removeprefix("--"): None for name in left}
        if "allow" in options:
            options["allow"] = _allowed(kept) or None
        yield _Change(
            id="fewer-pins",
            name=f"without {' '.join(left)}",
            options=options,
            request=replace(request, pins=kept),
        )


def _without_target(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """For no runtime by name, so by the software that a plan assumes."""
    del asked
    if request.bound is not None:
        yield _Change(
            id="fewer-pins",
            name=f"without --to {request.bound.target}",
            options={"to": None},
            request=replace(request, bound=None),
        )


def _more_devices(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """Twice as many, and so on: of the machine, then of a box of cards, then of nodes."""
    pins, machine = request.pins, find_machine(request.cluster)
    if pins.strategy or None not in (pins.dp, pins.pp, pins.tp):
        return
    count = request.devices or machine.devices
    for _ in range(_DOUBLINGS if isinstance(asked.find(request), Analytical) else _DOUBLINGS_TRACED):
        count *= 2
        if count <= machine.devices:
            cluster, devices = request.cluster, count
        else:
            cluster, devices = _cluster_of(request.cluster, machine, count), None
        yield _Change(
            id="more-devices",
            name=f"{count} devices",
            options={"cluster": cluster, "devices": devices},
            request=replace(request, cluster=cluster, devices=devices),
        )


def _cluster_of(name: str, machine: Machine, count: int) -> str:
    """The name of a machine with more devices: a larger box, or more nodes."""
    base, at, joined = name.partition("@")
    base, node = base.strip(), machine.node
    if machine.nodes == 1 and not base.endswith(".toml"):
        box = min(count, _BOX)
        several = re.fullmatch(r"(?:[0-9]+\s*[x×]\s*)?([^:\s]+)", base)
        if several is not None and several[1] in (node.device.name, *node.device.aliases) and box > node.devices:
            nodes = -(-count // box)
            return f"{box}x{node.device.name}{f':{nodes}' if nodes > 1 else ''}{at}{joined}"
    head, _, nodes_text = base.rpartition(":")
    return f"{head if nodes_text.isdigit() and head else base}:{-(-count // node.devices)}{at}{joined}"


def _larger(request: PlanRequest, asked: _Asked) -> Iterator[_Change]:
    """As many devices with more memory; where no device has enough, twice as many, and so on."""
    del asked
    machine = find_machine(request.cluster)
    present, count = machine.node.device, request.devices or machine.devices
    if request.memory_bytes is not None and request.memory_bytes < present.usable_bytes:
        yield _Change(
            id="larger-device",
            name=f"all {format_bytes(present.usable_bytes)} of a device",
            options={"memory": None},
            request=replace(request, memory_bytes=None),
        )
    is_fixed = bool(request.pins.strategy) or None not in (request.pins.dp, request.pins.pp, request.pins.tp)
    for doublings in range(1 if is_fixed else 4):
        devices = count << doublings
        on_node = min(devices, machine.node.devices if doublings == 0 else _BOX)
        for device in _larger_devices(present):
            cluster = device.name if devices == 1 and usual_node(device) is None else f"{on_node}x{device.name}"
            cluster += f":{devices // on_node}" if devices > on_node else ""
            yield _Change(
                id="larger-device",
                name=f"{devices} × {device.name} of {device.memory.nbytes >> 30} GiB",
                options={"cluster": cluster, "devices": None, "memory": None},
                request=replace(request, cluster=cluster, devices=None, memory_bytes=None),
            )


def _larger_devices(present: Device) -> list[Device]:
    """Devices of the same maker with more memory that compute no slower; of those with as much the fastest."""
    best: dict[int, Device] = {}
    for device in catalog().values():
        alike = device.kind == present.kind and device.title.split()[0] == present.title.split()[0]
        more = device.memory.nbytes > present.memory.nbytes and device.form != "mobile"
        if alike and more and _peak(device) >= _peak(present):
            best.setdefault(device.memory.nbytes, device)
            best[device.memory.nbytes] = max(best[device.memory.nbytes], device, key=_peak)
    return [best[nbytes] for nbytes in sorted(best)]


def _peak(device: Device) -> float:
    return max((one.flops_per_s for one in device.compute.values()), default=0.0)


def _host_bytes(request: PlanRequest) -> int:
    return find_machine(request.cluster).node.host_memory_bytes


def _named(pins: Pins, words: str) -> Pins:
    """Pins of another strategy with the same types."""
    said = pins_of_strategy(words)
    return parse_pins(
        strategy=words,
        gradients=pins.gradients if said.gradients is None else None,
        optimizer_state=pins.optimizer_state if said.optimizer_state is None else None,
    )


def _allowed(pins: Pins) -> list[str]:
    """What `--allow` has."""
    return [*pins.allow, *(["compress"] if pins.compress else []), *(["stale"] if pins.stale else []), *pins.special]


_Kind = Callable[[PlanRequest, _Asked], Iterator[_Change]]

_KINDS: tuple[_Kind, ...] = (
    *(_shorter, _eight_bits, _offload, _recompute),
    *(_smaller_microbatches, _without_pins, _without_target, _more_devices, _larger),
)

_ELSEWHERE = frozenset({"cluster", "devices"})
"""Options that say other hardware."""

_PAIRS: tuple[tuple[_Kind, _Kind], ...] = (
    (_eight_bits, _shorter),
    (_offload, _shorter),
    (_eight_bits, _more_devices),
    (_eight_bits, _larger),
    (_offload, _larger),
)
"""Changes that are made together."""
