"""A data-parallel step on several devices: one device's step, the exchange of gradients during it, and waits.

    feeding │ forward │ backward, slower during calls │ exposed │ update │ stragglers, copies into buffers
                         └ calls of the exchange ─────────────┘

Ranks are alike and start together, so one is enough; their unequal speeds are priced by
`straggling`, batches of unequal work by `length_wait`.
Left out: a next step's forward that begins before all weights are back.

Batches of unequal work: devices get sentences of different lengths, and all wait for the longest batch.

A device's work in a step is taken as normally distributed about the mean that one device alone shows. The step takes
as long as the largest of the group's draws. Left out: work that is skewed, and batches that a sampler made alike.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.graph.kernels.workload import Workload
from trimaran.graph.types import Phase
from trimaran.machine.types import Machine
from trimaran.pricing.collectives.parameter_servers import owner_loads
from trimaran.pricing.exchange.costs import ExchangeOptions, call_price, handling_s, straggling
from trimaran.pricing.exchange.frameworks import ExchangeRecipe, recipe_of
from trimaran.pricing.exchange.step import ExposedGradient, Limiter, ScaledStep, Sync
from trimaran.pricing.exchange.unknowns import BOTH_ENDS, EXCHANGE_UNSURE, End
from trimaran.pricing.input_pipeline import FedStep, InputPipeline
from trimaran.pricing.kernels.estimate import StepEstimate
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost, IntervalEnd
from trimaran.simulator.exchange import GradientExchange, ReadyGradient, exchange_calls
from trimaran.simulator.parameter_server import exchange_star, star_of

# ---------------------------------------------------------------------------------------------------------------------
# An exchange of gradients, given a step and a machine: which gradients are complete when, and what becomes of them


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelSetup:
    """Everything that decides a data-parallel step.

    Attributes:
        workload: one rank's step, or one microbatch of it where gradients accumulate
        estimate: what that takes alone
        machine: nodes and fabric
        devices: in the group, over all nodes
        nodes: that they are in
        sync: how gradients are exchanged
        software: framework and year; decides what is joined into a call
        options: what the job does differently from its framework's habit
        feed: what the host of a node hands over; None: data are there
    """

    workload: Workload
    estimate: StepEstimate
    machine: Machine
    devices: int
    nodes: int = 1
    sync: Sync = "nccl"
    software: Software = field(default_factory=Software)
    options: ExchangeOptions = field(default_factory=ExchangeOptions)
    feed: InputPipeline | None = None

    @property
    def recipe(self) -> ExchangeRecipe:
        """How the framework does it."""
        recipe = self.options.recipe or recipe_of(self.software, self.sync)
        return recipe.at(self.options.end).on(self.local_devices)

    @property
    def local_devices(self) -> int:
        """Devices of the group in the node that has the most of them; no more nodes than needed are filled in turn."""
        full = self.machine.node.devices
        each = -(-self.devices // self.nodes)
        return min(self.devices, full) if self.nodes == -(-self.devices // full) else each

    @property
    def is_star(self) -> bool:
        """Whether each gradient is copied to one owner, which updates the weights."""
        return self.devices > 1 and self.sync in ("kvstore", "server")

    @property
    def server_machines(self) -> int:
        """Machines without devices, as servers; BytePS has no use for more of them than there are nodes."""
        if self.nodes == 1 or self.sync == "nccl":
            return 0
        return min(self.options.servers, self.nodes) if self.sync == "byteps" else self.options.servers

    @property
    def devices_update(self) -> bool:
        """Whether every device updates all weights with what the host of the one node has summed."""
        most = self.recipe.host_updates
        large = any(gradient.elements > most for gradient in self.workload.gradients)
        return self.sync == "server" and self.nodes == 1 and bool(most) and large

    @property
    def updated_share(self) -> float:
        """Share of the weights that the rank with the most updates, where each weight has one owner; else 1."""
        nbytes = [gradient.nbytes for gradient in self.workload.gradients]
        if self.devices == 1 or not self.recipe.owners_update or not sum(nbytes):
            return 1.0
        return max(size for size, _ in owner_loads(nbytes, self.local_devices)) / sum(nbytes)

    def run(self, gradients: Sequence[ReadyGradient], *, links: float = 1.0) -> GradientExchange:
        """The exchange during the last microbatch's backward.

        Args:
            gradients: to exchange, in the order in which they are complete
            links: how many times as fast calls and copies are
        """
        backward_s = self.estimate.backward.seconds
        if self.devices == 1 or not gradients:
            return GradientExchange((), (), backward_s)
        if self.is_star:
            star = star_of(
                [gradient.nbytes for gradient in gradients],
                self.machine,
                self.recipe,
                devices=self.local_devices,
                nodes=self.nodes,
                on_host=self.sync == "server",
                update_s=0.0 if self.devices_update else self.estimate.update.seconds,
                links=links,
                servers=self.server_machines,
                end=self.options.end,
            )
            return exchange_star(gradients, star, backward_s=backward_s)
        price = call_price(
            self.recipe,
            self.machine,
            devices=self.devices,
            nodes=self.nodes,
            sync=self.sync,
            year=self.software.year,
            options=replace(self.options, servers=self.server_machines),
        )
        return exchange_calls(
            gradients, self.recipe, lambda nbytes: (0.0, price(nbytes) / links), backward_s=backward_s
        )


def ready_gradients(workload: Workload, estimate: StepEstimate, *, sent_share: float = 1.0) -> list[ReadyGradient]:
    """Gradients with the moments at which they are complete, from the start of the backward.

    Args:
        workload: whose
        estimate: of it
        sent_share: bytes that are sent, as a share of the gradients' size
    """
    backward = (
        seconds if work.phase is Phase.BACKWARD else 0.0
        for work, seconds in zip(workload.works, estimate.work_s, strict=True)
    )
    passed_s = list(accumulate(backward))
    limit_s = estimate.backward.seconds
    stretch = estimate.backward.seconds / passed_s[-1] if passed_s and passed_s[-1] else 0.0
    ready = [
        ReadyGradient(
            place, max(1, round(gradient.nbytes * sent_share)), min(passed_s[gradient.work] * stretch, limit_s)
        )
        for place, gradient in enumerate(workload.gradients)
    ]
    return sorted(ready, key=lambda gradient: gradient.ready_s)


# ---------------------------------------------------------------------------------------------------------------------
# Which layers a step waits for: gradients that are complete too late, or too large, to be exchanged in time


_EXAMINED = 8
_SHORTEST = 0.002


def exposed_gradients(
    setup: DataParallelSetup, gradients: Sequence[ReadyGradient], done: GradientExchange
) -> tuple[ExposedGradient, ...]:
    """Layers that the step waits for, the longest wait first.

    A layer's wait is what goes away if its gradients cost nothing, the others being exchanged as before: the largest
    layers are tried one after another.

    Args:
        setup: how gradients are exchanged
        gradients: all of them
        done: what became of them
    """
    if done.exposed_s <= 0.0:
        return ()
    layers = _by_layer(setup, gradients)
    ends = {place: end_s for call, end_s in zip(done.calls, done.ends_s, strict=True) for place in call.gradients}
    before_s = setup.estimate.forward.seconds * setup.options.accumulation
    before_s += setup.estimate.backward.seconds * (setup.options.accumulation - 1)
    found = []
    for module in sorted(layers, key=lambda module: -_nbytes(layers[module]))[:_EXAMINED]:
        own = {ready.gradient for ready in layers[module]}
        without = [replace(ready, nbytes=1) if ready.gradient in own else ready for ready in gradients]
        saved_s = done.end_s - setup.run(without).end_s
        if saved_s > _SHORTEST * done.end_s:
            found.append(
                ExposedGradient(
                    module=module,
                    nbytes=_nbytes(layers[module]),
                    ready_s=before_s + max(ready.ready_s for ready in layers[module]),
                    done_s=before_s + max(ends[place] for place in own),
                    exposed_s=saved_s,
                )
            )
    return tuple(sorted(found, key=lambda layer: -layer.exposed_s))


def _by_layer(setup: DataParallelSetup, gradients: Sequence[ReadyGradient]) -> dict[str, list[ReadyGradient]]:
    layers: dict[str, list[ReadyGradient]] = {}
    for ready in gradients:
        layers.setdefault(setup.workload.gradients[ready.gradient].module, []).append(ready)
    return layers


def _nbytes(layer: Sequence[ReadyGradient]) -> int:
    return sum(ready.nbytes for ready in layer)


_REACH = 9.0
"""Standard deviations beyond which nothing of a normal distribution is left that counts."""

_PARTS = 3600


@functools.cache
def largest_of(count: int) -> float:
    """Mean of the largest of several standard normal draws.

    Args:
        count: of draws

    Source:
        Harter, "Expected values of normal order statistics", Biometrika 48, 1961: the integral of
        x n phi(x) Phi(x)^(n - 1), here by the trapezoidal rule, and its table: 0.56419 of 2, 1.42360 of 8.

    Example:
        >>> [round(largest_of(count), 3) for count in (1, 2, 4, 8, 16)]
        [0.0, 0.564, 1.029, 1.424, 1.766]
    """
    if count == 1:
        return 0.0
    width = 2 * _REACH / _PARTS
    places = (-_REACH + width * part for part in range(_PARTS + 1))
    return round(width * sum(place * _density(place) * count * _below(place) ** (count - 1) for place in places), 9)


def length_wait(spread: float, devices: int, *, microbatches: int = 1) -> float:
    """How much longer forward and backward are because devices have unequal work, as a share of them.

    Args:
        spread: standard deviation of a microbatch's work by its mean
        devices: in the group
        microbatches: that a device runs before it waits; their work evens out

    Example:
        >>> round(length_wait(0.1, 4), 4), round(length_wait(0.1, 4, microbatches=4), 4), length_wait(0.1, 1)
        (0.1029, 0.0515, 0.0)
    """
    return spread * largest_of(devices) / math.sqrt(microbatches)


def _density(place: float) -> float:
    return math.exp(-place * place / 2) / math.sqrt(2 * math.pi)


def _below(place: float) -> float:
    return math.erfc(-place / math.sqrt(2)) / 2


def data_parallel_step(setup: DataParallelSetup) -> ScaledStep:
    """The step of a rank in a data-parallel group, taken apart.

    The only model of such a step: `scale`, `crossover`, `validate` and the studies call it, and the simulated step of a
    plan with the same set-up takes as long.

    Args:
        setup: the step of one device, the group, and how gradients are exchanged in it

    Raises:
        InputError: more devices than the machine has, or several nodes without a network
    """
    gradients = _checked_gradients(setup)
    return _assembled(setup, gradients, setup.run(gradients))


def step_seconds(setup: DataParallelSetup, *, loading: IntervalEnd = "seconds", links: float = 1.0) -> float:
    """The same step, not taken apart [s].

    Args:
        setup: as of `data_parallel_step`
        loading: where the costs of data are taken
        links: how many times as fast calls and copies are

    Raises:
        InputError: as `data_parallel_step`
    """
    gradients = _checked_gradients(setup)
    ready_s = _parts(setup, gradients, setup.run(gradients, links=links)).ready_s
    fed = _fed(setup, ready_s, loading)
    return ready_s if fed is None else fed.seconds


def at_ends(setup: DataParallelSetup, *, compute: IntervalEnd, exchange: End) -> DataParallelSetup:
    """A set-up with its costs at ends of what is known of them.

    Args:
        setup: with all of them at their values
        compute: of one device alone
        exchange: of collectives, and of all that nobody has measured of calls
    """
    options = replace(setup.options, end=exchange, explain=False)
    return replace(setup, estimate=setup.estimate.at(compute), options=options)


def _checked_gradients(setup: DataParallelSetup) -> list[ReadyGradient]:
    """What a set-up exchanges; an error where its machine is too small."""
    machine, devices, nodes = setup.machine, setup.devices, setup.nodes
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
    return ready_gradients(setup.workload, setup.estimate, sent_share=setup.options.wire_share)


class _Parts(NamedTuple):
    """What a step is made of, where its data are ready [s]."""

    forward_s: float
    backward_s: float
    exposed_s: float
    update_s: float
    overhead_s: float

    @property
    def ready_s(self) -> float:
        """The step [s]."""
        return sum(self)


def _parts(setup: DataParallelSetup, gradients: Sequence[ReadyGradient], done: GradientExchange) -> _Parts:
    estimate, repeats = setup.estimate, setup.options.accumulation
    forward_s = repeats * estimate.forward.seconds
    backward_s = (repeats - 1) * estimate.backward.seconds + done.backward_s
    overhead_s = _overhead_s(setup, gradients, compute_s=forward_s + backward_s)
    return _Parts(forward_s, backward_s, *_exposed_and_update(setup, done), overhead_s)


def _fed(setup: DataParallelSetup, ready_s: float, loading: IntervalEnd = "seconds") -> FedStep | None:
    """The step with its wait for data; None: they are there."""
    if setup.feed is None:
        return None
    repeats = setup.options.accumulation
    batch = setup.workload.batch * repeats
    return setup.feed.fed(ready_s, batch=batch, devices=setup.local_devices, microbatches=repeats, end=loading)


def _assembled(setup: DataParallelSetup, gradients: Sequence[ReadyGradient], done: GradientExchange) -> ScaledStep:
    parts = _parts(setup, gradients, done)
    fed = _fed(setup, parts.ready_s)
    feeding_s = 0.0 if fed is None else fed.wait_s
    return ScaledStep(
        devices=setup.devices,
        local_batch=setup.workload.batch * setup.options.accumulation,
        sync=setup.sync,
        step=_interval(setup, parts.ready_s + feeding_s, fed),
        forward_s=parts.forward_s,
        backward_s=parts.backward_s,
        communication_s=max(done.communication_s, parts.exposed_s),
        exposed_communication_s=parts.exposed_s,
        update_s=parts.update_s,
        overhead_s=parts.overhead_s,
        feeding_s=feeding_s,
        fed=fed,
        limiter=_limiter(setup, parts, fed),
        exposed=exposed_gradients(setup, gradients, done) if setup.options.explain else (),
    )


def _exposed_and_update(setup: DataParallelSetup, done: GradientExchange) -> tuple[float, float]:
    """Waits for communication, and the optimizer [s, s].

    In a star the owners update during the exchange. Work on a device during the backward takes time from it, so a
    device's part of the update counts in full; a host's part counts as far as the step waits for it.
    """
    update_s = setup.estimate.update.seconds
    if not setup.is_star or setup.devices_update:
        return done.exposed_s, update_s * setup.updated_share
    of_owner = setup.sync == "kvstore" and setup.nodes == 1
    update_s = update_s / setup.devices if of_owner else min(done.exposed_s, update_s)
    return max(0.0, done.exposed_s - update_s), update_s


def _overhead_s(setup: DataParallelSetup, gradients: Sequence[ReadyGradient], *, compute_s: float) -> float:
    if setup.devices == 1:
        return 0.0
    nbytes = sum(gradient.nbytes for gradient in gradients)
    handling = handling_s(setup.recipe, setup.machine, tensors=len(gradients), nbytes=nbytes)
    options = setup.options
    waits = straggling(setup.devices, setup.nodes)
    waits += length_wait(options.length_spread, setup.devices, microbatches=options.accumulation)
    return handling + waits * compute_s


_OF_COPIES: tuple[tuple[float, IntervalEnd], ...] = ((-EXCHANGE_UNSURE, "low"), (EXCHANGE_UNSURE, "high"))


def _interval(setup: DataParallelSetup, step_s: float, fed: FedStep | None) -> Cost:
    """The step with all costs, and all that nobody has measured, at their low and at their high ends.

    It is fed by as many workers: the interval is of one way to train. Collectives have an interval each; copies to
    owners and servers have not: of them `EXCHANGE_UNSURE` is taken where it is more than what nobody has measured.
    """
    if setup.feed is not None and fed is not None:
        setup = replace(setup, feed=replace(setup.feed, workers=fed.workers))
    ends_s = [step_seconds(at_ends(setup, compute=end, exchange=unknowns), loading=end) for unknowns, end in BOTH_ENDS]
    if setup.is_star or (setup.sync == "byteps" and setup.nodes > 1):
        ends_s += [
            step_seconds(at_ends(setup, compute=end, exchange="typical"), loading=end, links=1.0 / (1.0 + unsure))
            for unsure, end in _OF_COPIES
        ]
    source = f"{setup.estimate.source}; exchange simulated"
    return Cost(step_s, min(step_s, *ends_s), max(step_s, *ends_s), source)


def _limiter(setup: DataParallelSetup, parts: _Parts, fed: FedStep | None) -> Limiter:
    """The largest part of the step, as a plan finds it on its critical path; data where the whole step waits for them.

    The training's own thread loads in addition to everything else: then loading is a part like the others. Compute is
    named by its larger part, the update or the kernels.
    """
    if fed is not None and fed.limit not in (None, "thread"):
        return "feeding"
    kernels_s = parts.forward_s + setup.options.accumulation * setup.estimate.backward.seconds
    compute_s = kernels_s + parts.update_s
    loading_s = 0.0 if fed is None else fed.wait_s
    if loading_s > max(compute_s, parts.ready_s - compute_s):
        return "loading"
    if parts.ready_s > 2 * compute_s:
        return "communication"
    if parts.update_s > kernels_s:
        return "update"
    return "launches" if setup.estimate.launch_bound else "compute"
