"""A problem as it would be: what was measured, scaled.

Intervals are scaled with their durations, so that what follows from them is as uncertain as it was, in proportion. What
`changes.py` says of each change is done here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from trimaran.cluster import Link
from trimaran.cluster.links import find_link
from trimaran.costs import Cost, Interference
from trimaran.costs.collectives import volume
from trimaran.costs.curves import at_size, latency
from trimaran.costs.tables import Curve, CurveKey, TensorFit, WholeCost
from trimaran.costs.transfers import HOST, SEND
from trimaran.errors import InputError
from trimaran.planner.altered_machine import joined_by, machine_devices, machine_link, machine_wire
from trimaran.planner.changes import Change
from trimaran.planner.problem import Problem


def changed(problem: Problem, change: Change) -> Problem:
    """The problem as it would be.

    Args:
        problem: as it is
        change: what would be otherwise
    """
    for one in change.each:
        apply = _APPLY if problem.cluster.machine is None else _APPLY_TO_MACHINE
        if one.what not in apply:
            raise InputError(
                f'what-if "{one.text}" is for devices that were measured; a machine of the catalog can be asked for '
                f"{', '.join(apply)}",
                what_if=one.text,
            )
        problem = apply[one.what](problem, one)
    return problem


def _link(problem: Problem, change: Change) -> Problem:
    if change.kind:
        return joined_by(find_link(change.kind), problem)
    if change.value is None:
        factor = 1.0 / change.scale
        problem = _with_links(problem, lambda link: replace(link, bytes_per_s=link.bytes_per_s / factor))
        return _with_transfers(problem, lambda _, curve: _flows(curve, lambda _, flow_s: flow_s * factor))
    rate, held, bare_curves = change.value, problem.cluster.link, problem.bare_curves
    problem = _with_links(problem, lambda link: replace(link, bytes_per_s=rate))
    return _with_transfers(problem, lambda key, curve: _held_to(rate, key, curve, held, bare_curves))


def _held_to(
    rate: float, key: CurveKey, curve: Curve, held: Link | None, bare_curves: Mapping[CurveKey, Curve]
) -> Curve:
    """A curve with its links held to another rate [bytes/s].

    What the ranks themselves do for a transfer comes on top of the wire: between two local ranks, all-reduces of
    128 KiB to 16 MiB over links held to 1 Gb/s take between 15 % more and 13 % less than that sum.
    """
    # Behind the token of a collective stands what is special of this curve.
    volumes = 1.0 if key.kind == SEND else volume(key.kind.partition(" ")[0], key.ranks)

    def flow(nbytes: int, flow_s: float) -> float:
        if held is None:
            return flow_s + volumes * nbytes / rate
        bare = bare_curves.get(key)
        own_s = min(flow_s, at_size(bare, nbytes).seconds - latency(bare)) if bare else 0.0
        return own_s + (flow_s - own_s) * held.bytes_per_s / rate

    return _flows(curve, flow)


def _latency(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    problem = _with_links(problem, lambda link: replace(link, latency_s=link.latency_s * factor))

    def shorten(key: CurveKey, curve: Curve) -> Curve:
        saved_s = latency(curve) * (1.0 - factor)
        return tuple((size, _with_seconds(cost, cost.seconds - saved_s)) for size, cost in curve)

    return _with_transfers(problem, shorten)


def _wire(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    problem = _with_links(problem, lambda link: replace(link, bytes_per_s=link.bytes_per_s / factor))

    def stretch(key: CurveKey, curve: Curve) -> Curve:
        # What so many bytes took, this many would take.
        return tuple(sorted({max(1, round(size / factor)): cost for size, cost in curve}.items(), key=lambda p: p[0]))

    return _with_curves(problem, stretch)


def _interference(problem: Problem, change: Change) -> Problem:
    factor = change.scale
    beside = {
        kind: Interference(
            compute=1.0 + (entry.compute - 1.0) * factor,
            communication=1.0 + (entry.communication - 1.0) * factor,
            source=entry.source,
        )
        for kind, entry in problem.table.interference.items()
    }
    return replace(problem, table=replace(problem.table, interference=beside))


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
        digest: replace(step, update=_scaled_fit(step.update, factor), clip=_scaled_fit(step.clip, factor))
        for digest, step in table.steps.items()
    }
    return replace(problem, table=replace(table, operations=operations, wholes=wholes, steps=steps))


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
    devices = tuple(
        replace(
            device,
            memory_bytes=round(device.memory_bytes * change.scale if change.value is None else change.value),
        )
        for device in problem.cluster.devices
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _devices(problem: Problem, change: Change) -> Problem:
    wanted = round(change.value or problem.devices)
    cluster = problem.cluster
    extra = max(0, wanted - cluster.size)
    grown = replace(
        cluster,
        devices=(*cluster.devices, *cluster.devices[-1:] * extra),
        hosts=(*cluster.hosts, *cluster.hosts[-1:] * extra),
    )
    return replace(_with_cores(problem, extra), cluster=grown, devices=wanted)


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
    "latency": _latency,
    "wire": _wire,
    "interference": _interference,
    "compute": _compute,
    "load": _load,
    "memory": _memory,
    "devices": _devices,
}


_APPLY_TO_MACHINE: Mapping[str, Callable[[Problem, Change], Problem]] = {
    "link": machine_link,
    "wire": machine_wire,
    "compute": _compute,
    "memory": _memory,
    "devices": machine_devices,
}


def _with_links(problem: Problem, change: Callable[[Link], Link]) -> Problem:
    links = {pair: change(link) for pair, link in problem.cluster.links.items()}
    return replace(problem, cluster=replace(problem.cluster, links=links))


def _with_transfers(problem: Problem, change: Callable[[CurveKey, Curve], Curve]) -> Problem:
    """What the links do; what the ranks' own threads do for it stays."""
    return _with_curves(problem, lambda key, curve: curve if key.kind.endswith(HOST) else change(key, curve))


def _with_curves(problem: Problem, change: Callable[[CurveKey, Curve], Curve]) -> Problem:
    curves = {key: change(key, curve) for key, curve in problem.table.curves.items()}
    return replace(problem, table=replace(problem.table, curves=curves))


def _flows(curve: Curve, change: Callable[[int, float], float]) -> Curve:
    """A curve with the part of each point that flows replaced; what no size shortens stays."""
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
