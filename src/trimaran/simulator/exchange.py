"""A data-parallel step on several devices: one device's step, the exchange of gradients beside it, waits around it.

    feeding │ forward │ backward, slower beside calls │ exposed │ update │ stragglers, copies into buffers
                         └ calls of the exchange ─────────────┘

Ranks are alike and start together, so one is enough; what their unequal speeds cost is `costs.exchange.straggling`,
what batches of unequal work cost is `costs.exchange_lengths`.
Left out: a next step's forward that begins before all weights are back.
"""

from collections.abc import Sequence

from trimaran.cluster.machines import Machine
from trimaran.costs.exchange import ExchangeOptions, handling_s, straggling
from trimaran.costs.exchange_lengths import length_wait
from trimaran.costs.feeding import Feed
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.scaled import Limiter, ScaledStep, Sync
from trimaran.costs.software import Software
from trimaran.costs.types import Cost
from trimaran.errors import InputError
from trimaran.graph.workload import Workload
from trimaran.simulator.exchange_calls import Ready
from trimaran.simulator.exchange_clock import Exchanged
from trimaran.simulator.exchange_explain import exposed_gradients
from trimaran.simulator.exchange_run import Exchange, ready_gradients
from trimaran.units import format_count

_UNSURE = 0.3
"""Half the width of the 90 % interval of what is neither forward, backward nor update, as a share of it."""


def scale_step(
    workload: Workload,
    estimate: StepEstimate,
    machine: Machine,
    *,
    devices: int,
    nodes: int = 1,
    sync: Sync = "nccl",
    software: Software | None = None,
    feed: Feed | None = None,
    options: ExchangeOptions | None = None,
) -> ScaledStep:
    """The step of a rank in a data-parallel group, taken apart.

    Args:
        workload: one rank's step, or one microbatch of it where gradients accumulate
        estimate: what that takes alone
        machine: nodes and fabric
        devices: in the group, over all nodes
        nodes: that they are in
        sync: how gradients are exchanged
        software: framework and year; decides what is joined into a call. None: PyTorch of today
        feed: what the host of a node hands over; None: data are there
        options: what the job does differently from its framework's habit

    Raises:
        InputError: more devices than the machine has, or a method that does not span nodes
    """
    _check(machine, devices=devices, nodes=nodes, sync=sync)
    options = options or ExchangeOptions()
    exchange = Exchange(
        workload=workload,
        estimate=estimate,
        machine=machine,
        devices=devices,
        nodes=nodes,
        sync=sync,
        software=software or Software(),
        options=options,
    )
    gradients = ready_gradients(workload, estimate, wire_share=options.wire_share)
    return _assembled(exchange, gradients, exchange.run(gradients), feed)


def _check(machine: Machine, *, devices: int, nodes: int, sync: Sync) -> None:
    room = machine.node.devices * nodes
    if not 1 <= devices <= room or nodes > max(1, machine.nodes):
        raise InputError(
            f'{max(1, machine.nodes)} x "{machine.node.name}" have '
            f"{format_count(machine.devices, 'device')}; "
            f"got {format_count(devices, 'device')} in {format_count(nodes, 'node')}",
            code="exchange.wrong-device-count",
            devices=devices,
            nodes=nodes,
            machine=machine.node.name,
        )
    if sync == "p2p" and nodes > 1:
        raise InputError(
            'copies between devices ("p2p") stay within one node; take "nccl" or "server" for several',
            code="exchange.copies-across-nodes",
            nodes=nodes,
        )


def _assembled(exchange: Exchange, gradients: Sequence[Ready], done: Exchanged, feed: Feed | None) -> ScaledStep:
    estimate, options = exchange.estimate, exchange.options
    forward_s = options.accumulation * estimate.forward.seconds
    backward_s = (options.accumulation - 1) * estimate.backward.seconds + done.backward_s
    exposed_s, update_s = _exposed_and_update(exchange, done)
    overhead_s = _overhead_s(exchange, gradients, compute_s=forward_s + backward_s)
    step_s = forward_s + backward_s + exposed_s + update_s + overhead_s
    batch = exchange.workload.batch * options.accumulation
    local = -(-exchange.devices // exchange.nodes)
    feeding_s = feed.wait_s(batch, devices=local, step_s=step_s) if feed is not None else 0.0
    return ScaledStep(
        devices=exchange.devices,
        batch_per_device=batch,
        sync=exchange.sync,
        step=_interval(exchange, step_s + feeding_s, unsure_s=exposed_s + overhead_s + feeding_s),
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=max(done.communication_s, exposed_s),
        exposed_communication_s=exposed_s,
        update_s=update_s,
        overhead_s=overhead_s,
        feeding_s=feeding_s,
        limiter="feeding" if feeding_s > 0.0 else _limiter(exchange, gradients, update_s=update_s),
        exposed=exposed_gradients(exchange, gradients, done) if options.explain else (),
    )


def _exposed_and_update(exchange: Exchange, done: Exchanged) -> tuple[float, float]:
    """Waits for communication, and the optimizer [s, s].

    In a star homes update on the way. What runs on a device beside the backward takes its time from it, so a device's
    part of the update counts in full; a host's part counts as far as the step waits for it.
    """
    update_s = exchange.estimate.update.seconds
    if not exchange.is_star:
        return done.exposed_s, update_s
    update_s = update_s / exchange.devices if exchange.sync == "p2p" else min(done.exposed_s, update_s)
    return max(0.0, done.exposed_s - update_s), update_s


def _overhead_s(exchange: Exchange, gradients: Sequence[Ready], *, compute_s: float) -> float:
    if exchange.devices == 1:
        return 0.0
    nbytes = sum(gradient.nbytes for gradient in gradients)
    handling = handling_s(exchange.recipe, exchange.machine, tensors=len(gradients), nbytes=nbytes)
    options = exchange.options
    waits = straggling(exchange.devices, exchange.nodes)
    waits += length_wait(options.length_spread, exchange.devices, microbatches=options.accumulation)
    return handling + waits * compute_s


def _interval(exchange: Exchange, step_s: float, *, unsure_s: float) -> Cost:
    estimate, repeats = exchange.estimate, exchange.options.accumulation
    parts = (estimate.forward.scaled(repeats), estimate.backward.scaled(repeats), estimate.update)
    less = sum(part.seconds - part.low for part in parts) + _UNSURE * unsure_s
    more = sum(part.high - part.seconds for part in parts) + _UNSURE * unsure_s
    return Cost(step_s, max(0.0, step_s - less), step_s + more, f"{estimate.source}; exchange simulated")


def _limiter(exchange: Exchange, gradients: Sequence[Ready], *, update_s: float) -> Limiter:
    """What saves the most time when it is twice as fast."""
    estimate, options = exchange.estimate, exchange.options
    whole_s = exchange.run(gradients).end_s
    others = (options.accumulation - 1) * estimate.backward.seconds + options.accumulation * estimate.forward.seconds
    saved = {
        "compute": whole_s - exchange.run(gradients, compute=2.0).end_s + others / 2,
        "communication": whole_s - exchange.run(gradients, links=2.0).end_s,
        "update": update_s / 2,
    }
    largest = max(saved, key=lambda name: saved[name])
    if largest == "compute":
        return "launches" if estimate.launch_bound else "compute"
    return "communication" if largest == "communication" else "update"
