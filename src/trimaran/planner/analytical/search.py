"""Search for the strategy of a transformer on many devices with the shortest step, by the analytical model.

    minimise    step time of a strategy                           pricing/analytical
    over        t, p, c, d, b, v, zero, recompute, layers         candidates.py says which can be built
    subject to  memory of every stage <= memory of a device

Bounds come first: strategies with the same degrees, microbatch and recomputation do the same work, which takes at least
the time of evenly loaded stages without bubble and without exchanges between replicas. Groups are priced in the order
of that bound (`best_first.py`), and their strategies are tried in the order of their steps: the first that fits is the
fastest on these devices, and what follows, until it is some times that step, are runners-up. Levels of ZeRO with which
a group needs far too much memory, whatever it recomputes, are not priced. The bound of the whole is the least of the
groups in which something fits, or that were not looked at. Once something fits, the search ends after a number of
strategies, or with a limit of work (`planner/work.py`), and says so where something faster may be left. Left out:
devices that differ, expert placement, offloading.

Devices may stay idle: fewer of them are searched too, most first, as far as the work of the batch, spread perfectly
over them, takes less time than the best step so far.

Baselines: replicas alone, states of all devices sharded (FSDP, ZeRO-3), the field's rule of thumb: the fastest of what
the guides of Megatron-LM and torchtitan say to try (`guides.py`).

Strategies of a group are not priced all at once, as most of what has a low bound does not fit where memory is little:
qwen3:235b-a22b on 64 H100 was then planned at 20.8 s a step, where 11.0 s fits.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.precision import Precision
from trimaran.base.units import format_bytes, format_count
from trimaran.machine.types import Device, Machine
from trimaran.planner.analytical.candidates import (
    HOST_LACKS,
    AnalyticalCandidate,
    AnalyticalModel,
    AnalyticalProblem,
    Box,
    Choice,
    Least,
    RecomputeChoices,
    boxes,
    boxes_below,
    families,
    lightest_layers,
    members,
    offloads,
    only_whole,
    partly_recomputed,
    recomputed_before_layers,
    varied,
    zero_levels,
)
from trimaran.planner.analytical.guides import GUIDES, Guide, Order, recomputes_layers
from trimaran.planner.best_first import best_first
from trimaran.planner.choice import front_of
from trimaran.planner.pins import NO_PINS, Pins, leaves_microbatches
from trimaran.planner.result import Baseline, Search
from trimaran.planner.work import SearchWork, work_within
from trimaran.pricing.analytical.fits_device import WHOLE, Reserve, bookkeeping_of, check_reserve
from trimaran.pricing.analytical.layers import parameter_count
from trimaran.pricing.analytical.lengths import Documents
from trimaran.pricing.analytical.programs import (
    framework_of,
    training_program,
    usual_year,
)
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.pricing.analytical.step_time import TransformerProgram, TransformerStep
from trimaran.pricing.kernels.software import Software
from trimaran.program.strategy import Degrees, Strategy, ZeroStage, read_recompute

_NO_MODEL = ("cp", "pp", "tp")


def transformer_problem(
    shape: TransformerShape,
    machine: Machine,
    *,
    batch: int,
    precision: Precision = "bf16",
    software: Software | None = None,
    devices: int | None = None,
    memory_bytes: int | None = None,
    reserve: Reserve | None = None,
    pins: Pins = NO_PINS,
    time_limit_s: float | None = None,
    gap: float = 0.0,
    documents: Documents | None = None,
    free: float = 0.0,
) -> AnalyticalProblem:
    """The checked problem of a request, with the training program.

    Args:
        shape: the network
        machine: nodes and fabric
        batch: sequences of a step, of all replicas
        precision: of products; all of `ANALYTICAL_PRECISIONS` (planning/precision.py) have a model
        software: Megatron and its year; None: of 2025, on old devices of 2022
        devices: in use; None: all of the machine
        memory_bytes: limit of a rank; None: the part of its device that a job may use [bytes]
        reserve: memory of a device that stays free for what is not counted; None: not said
        pins: decisions of the user
        time_limit_s: work after which a search ends with its best so far [s on the reference]; None: none
        gap: it may also end when the best step is within this share of the least bound
        documents: of which sequences consist; None: of one each
        free: share of a device's memory that stays free where neither `memory_bytes` nor `reserve` says more [0..1]

    Raises:
        InputError: a count that is not positive, a precision that the device has not, software of another framework, or
            more memory than a device has
    """
    device = machine.node.device
    count = machine.devices if devices is None else devices
    machine.allocate(count)
    if batch < 1:
        raise InputError(f"batch {batch}: expected 1 or more", code="analytical.bad-request", batch=batch)
    device.check_computes(precision)
    room = device.usable_bytes if memory_bytes is None else min(device.checked_bytes(memory_bytes), device.usable_bytes)
    if reserve is not None:
        check_reserve(reserve, room)
    elif memory_bytes is None:
        room = int(room * (1.0 - free))
    check_types(pins, precision)
    program = program_of(device, precision, software, node_devices=machine.node.devices)
    program = replace(program, documents=documents)
    framework = "" if software is None else software.framework
    some_layers = pins.recompute is not None and "recompute_layers" in read_recompute(pins.recompute)
    check_framework(framework, zero=pins.zero, some_layers=some_layers)
    return AnalyticalProblem(
        shape=shape,
        machine=machine,
        devices=count,
        batch=batch,
        program=program,
        bookkeeping=bookkeeping_of(
            precision,
            device,
            attention=program.attention,
            keeps_weight_gradients=program.keeps_weight_gradients,
            eager=program.eager,
        ),
        pins=pins,
        memory_bytes=room,
        reserve=reserve,
        time_limit_s=time_limit_s,
        not_said=("software",) if software is None else (),
        gap=gap,
        framework=framework,
    )


def program_of(
    device: Device, precision: Precision, software: Software | None, *, node_devices: int = 0
) -> TransformerProgram:
    """The training program of a transformer on a device.

    Args:
        device: old ones compute attention as two batched products
        precision: of products
        software: the framework and its year; None: Megatron of 2025, on old devices of 2022
        node_devices: devices of a node; 0: not known

    Raises:
        InputError: a framework without figures of sharded transformers
    """
    software = assumed_software(device) if software is None else software
    # A year without its part is meant from its begin to its end, which counts where kernels are still learnt.
    middle = 0.5 if software.year == int(software.year) and not framework_of(software.framework).tuned else 0.0
    return training_program(
        software.framework,
        software.year + middle,
        device=device,
        precision=precision,
        compiled=software.compiled,
        node_devices=node_devices,
    )


def assumed_software(device: Device) -> Software:
    """The software of a transformer's training where none is said: Megatron.

    Args:
        device: on which it trains; old ones have the software of their years
    """
    return Software(framework="megatron", year=usual_year(device), source="assumed: Megatron")


def check_framework(framework: str, *, zero: ZeroStage | None, some_layers: bool) -> None:
    """Refuse what a framework has not.

    Args:
        framework: that trains; "": any
        zero: level that is asked for; None: none is
        some_layers: some layers of a stage are to be recomputed, and others kept

    Raises:
        InputError: with what it has
    """
    known = framework_of(framework).levels
    if zero is not None and zero not in known:
        *others, last = map(str, known)
        raise InputError(
            f"{framework} has no ZeRO-{zero}: take --zero {', '.join(others)} or {last}, or other --software",
            code="software.lacks-level",
            software=framework,
            zero=zero,
        )
    if some_layers and not framework_of(framework).some_layers:
        raise InputError(
            f"{framework} recomputes all layers or none: take --recompute layers, selective or none, or other "
            "--software",
            code="software.lacks-recompute",
            software=framework,
        )


def check_types(pins: Pins, precision: Precision) -> None:
    """Refuse types of gradients and of the optimizer's state that training in 32 bits has not.

    Args:
        pins: of the user
        precision: of products

    Raises:
        InputError: with the option
    """
    for option, value in (("gradients", pins.gradients), ("optimizer-state", pins.optimizer_state)):
        if precision in WHOLE and value in ("bf16", "remainders", "precision-aware"):
            raise InputError(
                f"--{option} {value}: parameters that train in {precision} have no 16-bit form: leave it out, or ask "
                "for --precision bf16",
                code="memory.type-needs-16-bits",
                option=option,
                value=value,
            )


PRICED_S = 0.00008
"""Work of pricing a step [s on the reference, see `planner/work.py`]."""

MEASURED_S = 0.0001
"""Work of adding up the memory of a strategy [s, likewise]."""

BOUNDED_S = 0.00003
"""Work of bounding a group of strategies [s, likewise]."""

WITH_EXPERTS = 1.7
"""How many times as long all of these take for a network with experts: 6.8 s where one without takes 3.9."""

MOST_S = 1.2
"""Work on all devices where the user gives no limit; the best is found whatever it takes, and what is left goes into
runners-up [s]."""

RUNNERS_S = 0.2
"""Work that is left for runners-up, however long the best took to find [s, likewise]."""

FRUITLESS_S = 10.0
"""Work after which a search ends in which nothing fits [s, likewise]."""

IDLE_S = 6.5
"""Work on fewer devices than there are; a search that would need more says that it is not complete [s, likewise]."""

ASIDE_S = 0.4
"""Work on each question that is answered besides: half of the devices, a batch near by [s, likewise]."""

LEAST_FRUITLESS_S = 0.3
"""Work after which memory comes before time as long as nothing fits [s, likewise]."""

GLANCE_S = 1.2
"""Work on each of what may fit in place of a problem in which nothing does, until something fits [s, likewise]."""

WORTH_NAMING = 0.02
"""A neighbouring batch that is faster per sample by a smaller share is not named."""

_NEAR = 0.25
"""Neighbouring batches are at most this share smaller or larger."""

_MOST_ON_A_SIDE = 4
"""Batches that are searched below, and above."""


class _Timed(NamedTuple):
    """A strategy whose step is known, and not yet whether it fits.

    Attributes:
        strategy: on all devices of its node
        step: its time, by part; None: only a bound of it is known yet
        bound_s: of its group [s]
        is_last: nothing else is tried in its place
    """

    strategy: Strategy
    step: TransformerStep | None
    bound_s: float
    is_last: bool


_Levels = tuple[Strategy, frozenset[ZeroStage], float]
"""A strategy of a group, levels with which it needs too much memory, and the work to look at them [s]."""


class _Group(NamedTuple):
    """Strategies with the same degrees, microbatch and recomputation.

    Attributes:
        whole: what the groups of a box have in common
        choice: of the group
        known: of one whose bound counts what must be recomputed for it to fit: what was found of its levels of ZeRO
    """

    whole: Strategy
    choice: Choice
    known: _Levels | None = None


_Node = tuple[float, int, Box | _Group | _Timed]
"""Of the search: a bound [s], a number of devices, and what has that bound: a box, a group of strategies, or one."""


@dataclass(slots=True, kw_only=True)
class _Hunt:
    """A search under way: the space of `best_first`, whose nodes are boxes of ranks, and groups of strategies.

    Attributes:
        problem: to plan
        work: done by it, and its limit
        rejected: how many were not priced or do not fit, by reason
        fitting: candidates that fit
        lowest_s: the least bound of a group in which something fits, or that was not looked at [s]
        least_bytes: the smallest peak of all that were priced [bytes]
        is_complete: neither time nor number ended it
        best_s: the best step so far; less where only faster ones are asked for [s]
        ratio: what has a bound of this multiple of the best step is not looked at
        fruitless_s: work after which the search ends where nothing fits [s on the reference]
    """

    problem: AnalyticalProblem
    work: SearchWork
    rejected: Counter[str] = field(default_factory=Counter)
    fitting: list[AnalyticalCandidate] = field(default_factory=list)
    lowest_s: float = float("inf")
    least_bytes: float = float("inf")
    is_complete: bool = True
    best_s: float = float("inf")
    ratio: float = 1.0
    fruitless_s: float = FRUITLESS_S
    _priced: int = 0
    _beyond: int = 0
    _slower: int = 0
    _hopeless: dict[Strategy, frozenset[ZeroStage]] = field(default_factory=dict)
    _last: _Levels | None = None
    _least: Least | None = None
    _models: dict[int, AnalyticalModel] = field(default_factory=dict)
    _choices: dict[tuple[int, ...], tuple[Choice, ...]] = field(default_factory=dict)
    _alike: dict[tuple[Choice, ...], tuple[Choice, ...]] = field(default_factory=dict)
    _alone: dict[tuple[int | None, ...], list[float | None]] = field(default_factory=dict)

    def model(self, devices: int) -> AnalyticalModel:
        """Prices strategies on a number of devices."""
        if devices not in self._models:
            self._models[devices] = AnalyticalModel(problem=replace(self.problem, devices=devices))
        return self._models[devices]

    def order(self, node: _Node) -> tuple[float, int]:
        """By bounds, more devices first."""
        return node[0], -node[1]

    def tiles(self, problem: AnalyticalProblem, *, least_s: float = 0.0) -> Iterator[_Node]:
        """The boxes of a problem for each microbatch with their bounds, as far as they may matter.

        Args:
            problem: on all devices, or of a box
            least_s: a bound of all of them [s]
        """
        if self._least is None:
            self._least = Least(self.problem)
        for box in boxes(problem, self.rejected if problem is self.problem else Counter()):
            self._spend(BOUNDED_S)
            box = replace(box, bound_s=max(least_s, self._least.of(box)))
            if box.bound_s <= self.ratio * self.best_s:
                yield box.bound_s, problem.devices, box
            else:
                self._beyond += sum(1 for _ in box.choices(problem))

    def groups(self, box: Box) -> Iterator[_Node]:
        """The groups of a box with a microbatch with their bounds, as far as they may matter."""
        model, most_s = self.model(box.devices), self.ratio * self.best_s
        whole, beyond = box.whole(model.problem), None
        ranks = box.tp, box.cp, box.dp
        if ranks not in self._choices:
            choices = tuple(box.choices(model.problem))
            self._choices[ranks] = self._alike.setdefault(choices, choices)
        choices = self._choices[ranks]
        # By their places: to look up a choice takes longer than what is left to do for it.
        known = self._alone.setdefault((id(choices), whole.tp, whole.cp, whole.microbatch), [None] * len(choices))
        times = model.times_alone(whole)
        for place, choice in enumerate(choices):
            self._spend(BOUNDED_S)
            # What is recomputed comes on top of the same without, which comes first.
            bound_s = math.inf
            if choice[:3] != beyond:
                least_s = known[place]
                if least_s is None:
                    least_s = known[place] = model.least_alone(whole, choice)
                bound_s = max(box.bound_s, least_s * times)
            if bound_s <= most_s:
                bound_s = max(bound_s, model.bound(whole, choice))
            if bound_s <= most_s:
                yield bound_s, box.devices, _Group(whole, choice)
            else:
                self._beyond += 1
                beyond = beyond if choice.recomputed else choice[:3]

    def expand(self, node: _Node) -> Iterable[_Node]:
        """The microbatches of a box, their groups, the strategies of a group; one strategy is tried."""
        bound_s, devices, what = node
        if isinstance(what, Box):
            return self.groups(what) if what.microbatch else self.tiles(what.pinned(self.problem), least_s=bound_s)
        if isinstance(what, _Timed):
            return self._tried(what, devices)
        model, group = self.model(devices), what.known[0] if what.known else what.choice.of(what.whole)
        self._last = what.known
        if not what.known and bound_s <= self.best_s and not self._is_hopeless(model, group):
            later_s = self._delayed(model, what, group, bound_s)
            if later_s > bound_s:
                return [(later_s, devices, what._replace(known=self._last))]
        hopeless = self._hopeless_levels(model, group)
        is_late = not self.fitting and self.work.done_s > LEAST_FRUITLESS_S
        those = families(model.problem, group, without=hopeless, rejected=self.rejected)
        if is_late:
            # Where little fits, what does not is found out sooner than how long it would take.
            those = (one for family in those for one in self._fitting_of(family, model))
        found = self._timed(those, bound_s, devices, is_last=is_late)
        if is_late and found and self.work.done_s > self.fruitless_s / 2.0:
            # So long nothing fitted: the first that does bounds the others, which are sought as long as anything was.
            found = sorted((self.settled(node) or node for node in found), key=self.order)
            first = found.pop(0)[2]
            if isinstance(first, _Timed):
                self._tried(first, devices)
            self.work.limit_s = max(self.work.limit_s, self.fruitless_s)
        if not zero_levels(model.problem, group):
            self.rejected[f"--zero {self.problem.pins.zero} is for two replicas or more"] += 1
        elif hopeless and not found:
            self.rejected["does not fit the memory of a device"] += 1
        return found

    def _timed(
        self, families: Iterable[RecomputeChoices], bound_s: float, devices: int, *, is_last: bool = False
    ) -> list[_Node]:
        """Strategies with their steps, as far as they may matter; memory is looked at later, of the fastest first."""
        model, found, most_s = self.model(devices), list[_Node](), self.ratio * self.best_s
        for family in families:
            self._spend(PRICED_S * len(family.states))
            alone = model.alone(family.first)
            if alone.bound_s > most_s:
                self._slower += len(family.states)
                continue
            for strategy in family.members:
                step = None if math.isinf(most_s) else model.step(strategy, alone)
                seconds = alone.bound_s if step is None else step.seconds
                if seconds <= most_s:
                    found.append((seconds, devices, _Timed(strategy, step, bound_s, is_last)))
                else:
                    self._slower += 1
        return found

    def _fitting_of(self, family: RecomputeChoices, model: AnalyticalModel) -> Iterator[RecomputeChoices]:
        """Strategies of a family that fit, or fit with some of it recomputed, each by itself; see `_tried`."""
        for strategy in family.members:
            fitting = model.admitted(strategy)
            self._spend(MEASURED_S)
            self.least_bytes = min(self.least_bytes, fitting[1].peak)
            fits = fitting[1].peak <= self.problem.memory_limit
            if fits:
                yield RecomputeChoices(strategy)
            else:
                self.rejected["does not fit the memory of a device"] += 1
            if not fits or fitting[0] is not strategy:
                self._spend(MEASURED_S)
                yield from map(RecomputeChoices, partly_recomputed(model.problem, strategy))

    def settled(self, node: _Node) -> _Node | None:
        """A strategy with its step, where only a bound of it is known: until something fits, few are tried of many.

        A box with what all of it waits for other stages and replicas.
        """
        _, devices, what = node
        if isinstance(what, Box) and what.microbatch and not what.waits and self._least is not None:
            self._spend(BOUNDED_S)
            box = self._least.with_waits(what, self.model(devices))
            return box.bound_s, devices, box
        if not isinstance(what, _Timed) or what.step is not None:
            return None
        step = self.model(devices).step(what.strategy)
        return step.seconds, devices, what._replace(step=step)

    def _tried(self, one: "_Timed", devices: int) -> Iterable[_Node]:
        """Keep a strategy if it fits; where it does not, the same with as little recomputed as fits."""
        model = self.model(devices)
        fitting = model.admitted(one.strategy)
        memory = fitting[1]
        self._spend(MEASURED_S)
        self.least_bytes = min(self.least_bytes, memory.peak)
        fits = memory.peak <= self.problem.memory_limit
        if fits:
            found = model.price(one.strategy, fitting, one.step)
            self._priced += 1
            if not self.fitting and self.ratio > 1.0 and self.problem.time_limit_s is None:
                self.work.limit_s = max(self.work.limit_s, self.work.done_s + RUNNERS_S)
            self.fitting.append(found)
            self.best_s, self.lowest_s = min(self.best_s, found.step_time_s), min(self.lowest_s, one.bound_s)
        else:
            self.rejected["does not fit the memory of a device"] += 1
        if one.is_last or (fits and fitting[0] is one.strategy):
            return ()
        some = map(RecomputeChoices, partly_recomputed(model.problem, one.strategy))
        return self._timed(some, one.bound_s, devices, is_last=True)

    def _delayed(self, model: AnalyticalModel, what: _Group, group: Strategy, bound_s: float) -> float:
        """The bound of a group with enough layers recomputed that it needs at most a tenth above what there is.

        Memory falls, and time grows, by equal parts with each layer of a stage that is recomputed. Feed-forward
        networks that are recomputed instead may take a little less; to bound these too took a seventh of the search.
        """
        problem, limit = model.problem, 1.1 * self.problem.memory_limit
        levels = {zero for zero, _ in zero_levels(problem, group) if not only_whole(problem, group, zero)}
        whole = {zero for zero, _ in zero_levels(problem, group)} - levels
        if "layers" in group.recomputed or not levels or "optimizer-offload" in problem.pins.special:
            return bound_s
        # The least state is that of the highest level; what is cheap to recompute comes before layers.
        light = varied(group, zero=max(levels), segment_layers=lightest_layers(model.problem, group))
        kinds = max(recomputed_before_layers(problem, group), key=len)
        plain = varied(light, recomputed=kinds - ({"feed_forward"} - group.recomputed))
        again = what.choice._replace(recomputed=frozenset({"layers"}), recompute_layers=None)
        self._spend(2.0 * MEASURED_S)
        most = model.admitted(plain)[1].peak
        if most <= limit or (whole and max(whole) > max(levels)):
            return bound_s
        saved = most - model.admitted(again.of(light))[1].peak
        share = min(1.0, (most - limit) / saved) if saved > 0.0 else 1.0
        return bound_s + share * max(0.0, model.bound(what.whole, again) - bound_s)

    def _is_hopeless(self, model: AnalyticalModel, group: Strategy) -> bool:
        """Whether no level of ZeRO is left of a group."""
        return {zero for zero, _ in zero_levels(model.problem, group)} <= self._hopeless_levels(model, group)

    def _hopeless_levels(self, model: AnalyticalModel, group: Strategy) -> frozenset[ZeroStage]:
        """Levels of ZeRO with which a group needs a tenth more than there is, whatever of it is recomputed.

        Chunks, other schedules and other layers of stages need more than a plain pipeline of the lightest stages, or
        less by no more than that tenth; where the optimizer's state may be on hosts, it is.
        """
        limit = 1.1 * self.problem.memory_limit
        if self.problem.pins.strategy:
            return frozenset()  # the strategy itself tells what it needs
        if self._last is not None and self._last[0] is group:
            self._spend(self._last[2])
            return self._last[1]
        light = varied(group, offload=any(offloads(self.problem)), segment_layers=lightest_layers(model.problem, group))
        again = light
        if self.problem.pins.recompute is None and not self.problem.pins.rules_out("memory"):
            again = varied(light, recomputed=frozenset({"layers"}), recompute_layers=None)
        if again not in self._hopeless:
            tried = {zero for zero, _ in zero_levels(model.problem, group)}
            peaks: dict[ZeroStage, float] = {}
            for zero in sorted(tried, reverse=True):
                # The last two have the least state: where both need too much, the others do.
                if len(peaks) < 2 or min(peaks.values()) <= limit:
                    peaks[zero] = model.admitted(varied(again, zero=zero))[1].peak
            self._spend(MEASURED_S * len(peaks))
            levels = frozenset(zero for zero in tried if peaks.get(zero, math.inf) > limit)
            if levels == tried:  # of another group the strategies that are allowed tell
                self.least_bytes = min([self.least_bytes, *peaks.values()])
            self._hopeless[again] = levels
        levels, spent_s = self._hopeless[again], 0.0
        if "layers" not in group.recomputed:
            levels, spent_s = self._hopeless_alone(model, light, levels, limit)
        self._last = group, levels, spent_s
        return levels

    def _hopeless_alone(
        self, model: AnalyticalModel, group: Strategy, levels: frozenset[ZeroStage], limit: float
    ) -> tuple[frozenset[ZeroStage], float]:
        """The same with those that recompute no layers and need more; and the work that this took [s]."""
        left = {zero for zero, _ in zero_levels(model.problem, group)} - levels
        whole = {zero for zero in left if only_whole(model.problem, group, zero)}
        own = {zero: model.admitted(varied(group, zero=zero))[1].peak for zero in whole}
        self._spend(MEASURED_S * len(whole))
        # Of a level that is left the strategies that are allowed tell.
        self.least_bytes = min([self.least_bytes, *(peak for peak in own.values() if peak > limit)])
        return levels | {zero for zero in whole if own[zero] > limit}, MEASURED_S * len(whole)

    def _spend(self, seconds: float) -> None:
        self.work.spend(seconds if self.problem.shape.experts is None else WITH_EXPERTS * seconds)

    def is_done(self, bound_s: float) -> bool:
        """Whether a bound is some times the best step, or time or number end the search."""
        if bound_s > self.ratio * self.best_s:
            return True
        if not self.fitting and self.work.done_s > self.fruitless_s:
            self.is_complete = False
            return True
        if self.fitting and self.problem.gap and self.best_s <= bound_s * (1.0 + self.problem.gap):
            self.lowest_s = min(self.lowest_s, bound_s)
            return True
        is_over = self._priced >= self.problem.most_priced or self.work.is_over
        if self.fitting and is_over and bound_s != self.best_s:
            # What was not looked at may be a runner-up; what takes as long as the best may need less memory.
            self.is_complete, self.lowest_s = bound_s > self.best_s, min(self.lowest_s, bound_s)
            return True
        return False

    def search_all_devices(self) -> None:
        """Search on all devices, up to some times the best step."""
        self.ratio = self.problem.ratio
        left = best_first(self, list(self.tiles(self.problem)), self.settled)
        if self.is_complete and (not left or left[0][0] > self.ratio * self.best_s):
            beyond = self._beyond + sum(
                sum(1 for _ in what.choices(self.problem)) if isinstance(what, Box) else not isinstance(what, _Timed)
                for *_, what in left
            )
            slower = self._slower + sum(isinstance(what, _Timed) for *_, what in left)
            for count, how in ((beyond, "by its bound"), (slower, "as priced")):
                if count:
                    self.rejected[f"at least {self.ratio:g} times the chosen step, {how}"] += count

    def search_boxes(self, *, most: int) -> None:
        """Search on fewer devices too, as far as something there may be faster than the best so far.

        Args:
            most: devices
        """
        self.ratio, is_complete = 1.0, self.is_complete
        if self.fitting:
            # Or what is left of a limit of the user's.
            self.work = SearchWork(limit_s=IDLE_S if self.problem.time_limit_s is None else self.work.left_s)
        found = boxes_below(self.problem, self.best_s, most=most)
        waiting: dict[int, list[_Node]] = {}
        for box in found:
            waiting.setdefault(box.devices, []).append((box.bound_s, box.devices, box))
        # Over slow links few nodes may be fastest, whose bounds come last: so they come first, for half of the work.
        work, count = self.work, self.problem.machine.node.devices
        self.work = SearchWork(limit_s=work.left_s / 2.0)
        while count <= most and self.fitting:
            waiting[count] = best_first(self, waiting.get(count, []), self.settled)
            count *= 2
        work.spend(self.work.done_s)
        self.work, self.is_complete = work, True
        left = best_first(self, [node for nodes in waiting.values() for node in nodes], self.settled)
        self.is_complete = self.is_complete and is_complete
        if self.is_complete and not self.problem.gap:
            self.lowest_s = min([self.lowest_s, self.best_s, *(node[0] for node in left[:1])])


def search_degrees(problem: AnalyticalProblem) -> Search[AnalyticalCandidate]:
    """The fastest strategy that fits, with the other candidates.

    Args:
        problem: to plan

    Raises:
        InfeasibleError: nothing fits; the message says the least that a strategy needs
    """
    start_s = time.monotonic()
    work = work_within(MOST_S if problem.time_limit_s is None else problem.time_limit_s)
    hunt, whole = _explored(problem, work)
    problem, ordered = hunt.problem, _ordered(hunt)
    chosen, fewer = ordered[0], _with_fewer(problem, ordered[0], work)
    others = baselines(problem)
    # Guides may recommend the same.
    references = tuple({one.candidate.name: one.candidate for one in others if one.candidate is not None}.values())
    free = replace(problem.pins, compress=False, gradients=None, optimizer_state=None) == NO_PINS
    close = Search(candidates=(*ordered, *(references if free else ())), chosen=chosen, baseline=chosen)
    return Search(
        candidates=tuple(dict.fromkeys((chosen, *_others(ordered), close.simplest))),
        chosen=chosen,
        baseline=next(iter(references), chosen),
        references=references,
        pareto=front_of(
            [*ordered, *fewer], order=lambda one: one.rank, costs=lambda one: (one.memory.peak, one.devices)
        ),
        baselines=others,
        counts=dict(hunt.rejected.most_common()),
        priced=len(ordered),
        bound_s=hunt.lowest_s,
        is_complete=hunt.is_complete,
        against=_against(problem, hunt),
        seconds=time.monotonic() - start_s,
        on_all=min(whole, key=lambda found: found.rank, default=None),
    )


def fastest(problem: AnalyticalProblem) -> AnalyticalCandidate:
    """The strategy that `search_degrees` chooses, without alternatives and what they cost.

    Args:
        problem: to plan

    Raises:
        InfeasibleError: nothing fits
    """
    limit_s = MOST_S if problem.time_limit_s is None else problem.time_limit_s
    hunt, _ = _explored(replace(problem, ratio=1.0), work_within(limit_s))
    return _ordered(hunt)[0]


def _explored(problem: AnalyticalProblem, work: SearchWork) -> tuple[_Hunt, list[AnalyticalCandidate]]:
    """The search on all devices and on fewer, and what fits on all of them.

    Where a user decides all degrees and they do not surely fit, what usually fits is taken. Otherwise nothing is: a
    slower plan that surely fits with a little more memory would then be worse than one that does not.
    """
    # The order of strategies is that of their modelled steps, each of which a measured one changes by the same factor.
    hunt = _Hunt(problem=replace(problem, measured=None), work=work)
    whole: list[AnalyticalCandidate] = []
    if least_state(problem) <= problem.memory_limit:
        hunt.search_all_devices()
        whole = list(hunt.fitting)
        hunt.search_boxes(most=problem.devices - 1)
    pins = problem.pins
    decided = bool(pins.strategy) or None not in (pins.dp, pins.pp, pins.tp)
    if not hunt.fitting and decided and not problem.lenient:
        return _explored(replace(problem, lenient=True), work)
    if problem.measured is not None:
        _correct(hunt, problem)
        whole = [found for found in hunt.fitting if found.devices == problem.devices]
    return hunt, whole


def _correct(hunt: _Hunt, problem: AnalyticalProblem) -> None:
    """What a search found, as a measured step corrects it."""
    factor = problem.measured or 1.0
    hunt.problem = replace(hunt.problem, measured=factor)
    hunt.best_s, hunt.lowest_s = factor * hunt.best_s, factor * hunt.lowest_s
    hunt.fitting = [
        AnalyticalModel(problem=replace(hunt.problem, devices=found.devices)).price(
            found.strategy, (found.fits_as, found.memory), found.step
        )
        for found in hunt.fitting
    ]


def _ordered(hunt: _Hunt) -> list[AnalyticalCandidate]:
    """All that fit, best first.

    Raises:
        InfeasibleError: nothing does
    """
    if not hunt.fitting:
        raise InfeasibleError(_nothing_fits(hunt), code="analytical.nothing-fits")
    return sorted(hunt.fitting, key=lambda found: found.rank)


# ---------------------------------------------------------------------------------------------------------------------
# Batches near by


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyBatch:
    """A batch near the one that is asked for, by which a sample takes less time.

    Attributes:
        batch: sequences of a step
        step_time_s: of its best strategy on the same devices, or fewer of them [s]
        strategy: that one, by its name
        faster: how much more samples a second than at the batch that is asked for, as a share
    """

    batch: int
    step_time_s: float
    strategy: str
    faster: float


def nearby_batches(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> tuple[NearbyBatch, ...]:
    """The nearest batches below and above that are faster per sample, one of each at most.

    Tried are the nearest multiples of the devices, of a half, a quarter and so on of them; with experts, whose ranks
    often divide no prime number of nodes, also of the devices of a node fewer. Of those that are worth naming the
    nearest is taken with at least half the gain of the best.

    Args:
        problem: that was searched
        chosen: its best strategy
    """
    found = []
    for side in (-1, 1):
        work = SearchWork(limit_s=ASIDE_S)
        gains = [near for batch in _nearest(problem, side) for near in _at_batch(problem, chosen, batch, work)]
        most = max((near.faster for near in gains), default=0.0)
        found += [near for near in gains if near.faster >= most / 2.0][:1]
    return tuple(found)


def _nearest(problem: AnalyticalProblem, side: int) -> list[int]:
    """Batches on one side that divide, nearest first."""
    batch, devices = problem.batch, problem.devices
    fewer = devices - problem.machine.node.devices if problem.shape.experts is not None else 0
    # Less than a node of ranks with different experts needs no node fewer, and would take the place of what does.
    units = {devices >> halvings for halvings in range(devices.bit_length()) if devices % (1 << halvings) == 0}
    node = problem.machine.node.devices
    units |= {fewer >> times for times in range(fewer.bit_length()) if fewer % (node << times) == 0}
    found: set[int] = set()
    for unit in sorted(units):
        if unit > 1:
            near = (batch + side) // unit * unit if side < 0 else -(-(batch + side) // unit) * unit
            if near >= 1 and abs(near - batch) <= _NEAR * batch:
                found.add(near)
    return sorted(found, key=lambda near: abs(near - batch))[:_MOST_ON_A_SIDE]


def _at_batch(
    problem: AnalyticalProblem, chosen: AnalyticalCandidate, batch: int, work: SearchWork
) -> Iterator[NearbyBatch]:
    """The best strategy at a batch; nothing where a sample takes as long as in the chosen one, or work is over."""
    if work.is_over:
        return
    factor = problem.measured or 1.0
    chosen_s = chosen.step_time_s / factor
    below_s = chosen_s * batch / problem.batch / (1.0 + WORTH_NAMING)
    hunt = _Hunt(
        problem=replace(problem, batch=batch, measured=None),
        work=work,
        best_s=below_s,
        fruitless_s=work.limit_s,
    )
    hunt.search_boxes(most=problem.devices)
    best = min(hunt.fitting, key=lambda one: one.rank, default=None)
    if best is not None and best.step_time_s <= below_s:
        faster = chosen_s * batch / (problem.batch * best.step_time_s) - 1.0
        yield NearbyBatch(batch=batch, step_time_s=factor * best.step_time_s, strategy=best.name, faster=faster)


def _against(problem: AnalyticalProblem, hunt: _Hunt) -> str:
    """The objection to strategies that are faster than the chosen one; empty: none."""
    if not hunt.is_complete:
        return "the end of the search before all was looked at (--time-limit)"
    return "" if replace(problem.pins, compress=False) == NO_PINS else "your options"


def _with_fewer(problem: AnalyticalProblem, chosen: AnalyticalCandidate, work: SearchWork) -> list[AnalyticalCandidate]:
    """The best of half and of a quarter of the devices, with the work that is left."""
    found = []
    for share in (2, 4):
        count = problem.devices // share
        if problem.devices % share or count < 1 or work.is_over:
            continue
        fewer = replace(problem, devices=count, pins=replace(problem.pins, dp=None), ratio=1.0)
        within = SearchWork(limit_s=min(work.left_s, ASIDE_S))
        hunt = _Hunt(problem=replace(fewer, measured=None), work=within, fruitless_s=ASIDE_S)
        hunt.search_all_devices()
        if problem.measured is not None:
            _correct(hunt, problem)
        found += sorted(hunt.fitting, key=lambda one: one.rank)[:1]
    return [one for one in found if one.devices < chosen.devices]


def _others(ordered: Sequence[AnalyticalCandidate]) -> tuple[AnalyticalCandidate, ...]:
    """The next five, one of each (t, p, c, d)."""
    first: dict[tuple[int, ...], AnalyticalCandidate] = {}
    for one in ordered:
        strategy = one.strategy
        first.setdefault((strategy.tp, strategy.pp, strategy.cp, strategy.dp), one)
    return tuple(first.values())[1:6]


def least_state(problem: AnalyticalProblem) -> float:
    """What a rank holds at least of parameters, gradients and the optimizer, each once on all devices [bytes].

    Gradients may have 16 bits where nobody said their type; a sixth of the optimizer's state may be in the parameters,
    half of it rounded away (`fit.admitted`), or all of it on hosts.

    Args:
        problem: to plan

    Example:
        Llama 3 405B with 2 + 2 + 10 bytes a parameter on 32 devices: 165 GiB.

        >>> from trimaran.machine.find import find_machine
        >>> from trimaran.pricing.analytical.shapes import decoder_of
        >>> problem = transformer_problem(decoder_of("llama3:405b", 8192), find_machine("dgx-h100:4"), batch=64)
        >>> round(least_state(problem) / 2**30)
        165
    """
    pins = problem.pins
    keeping = problem.bookkeeping.of(Strategy(gradients=pins.gradients, optimizer_state=pins.optimizer_state))
    gradient = keeping.gradient_bytes if pins.gradients else min(2, keeping.gradient_bytes)
    optimizer = 0.0 if any(offloads(problem)) else keeping.optimizer_bytes * (0.5 if problem.lenient else 5.0 / 6.0)
    return parameter_count(problem.shape) * (keeping.weight_bytes + gradient + optimizer) / problem.devices


def _nothing_fits(hunt: _Hunt) -> str:
    problem, least = hunt.problem, hunt.least_bytes
    what = f"no strategy on {format_count(problem.devices, 'device')}"
    state = least_state(problem)
    if state > problem.memory_limit:
        return (
            f"{what} fits: parameters, gradients and the optimizer's state alone take {format_bytes(state)} on a rank, "
            f"a device leaves {format_bytes(problem.memory_limit)}"
        )
    if problem.memory_limit < least < float("inf"):
        return (
            f"{what} fits: the smallest needs {format_bytes(least)} on a rank, a device leaves "
            f"{format_bytes(problem.memory_limit)}{_one_microbatch(problem)}"
        )
    if hunt.rejected[HOST_LACKS] and problem.pins.offload:
        return f"{what} fits: the optimizer's state {HOST_LACKS}"
    reasons = "; ".join(f"{count} x {reason}" for reason, count in hunt.rejected.most_common(3))
    why = reasons or "pinned degrees do not divide the devices, the batch or the layers"
    return f"{what} can be built ({why}); change a pin or the batch"


def _one_microbatch(problem: AnalyticalProblem) -> str:
    pins = problem.pins
    told = f" ({pins.strategy} is one microbatch of {pins.microbatch} sequences: m or mb says another number)"
    return told if leaves_microbatches(pins) and pins.microbatch != 1 else ""


def glance(problem: AnalyticalProblem) -> AnalyticalCandidate | None:
    """The fastest strategy on all devices that a short search finds; None: none.

    Args:
        problem: that stands in the place of one in which nothing fits
    """
    short = replace(problem, ratio=1.0, lenient=bool(problem.pins.strategy))
    if least_state(short) > short.memory_limit:
        return None
    hunt = _Hunt(problem=short, work=SearchWork(limit_s=ASIDE_S), fruitless_s=GLANCE_S)
    hunt.search_all_devices()
    return min(hunt.fitting, key=lambda one: one.rank, default=None)


# ---------------------------------------------------------------------------------------------------------------------
# Baselines, which people run without a plan


def baselines(problem: AnalyticalProblem) -> tuple[Baseline[AnalyticalCandidate], ...]:
    """Each baseline with its costs, or the reason why it cannot be run.

    Of what a user decided, types of gradients and of the optimizer's state bind them too: they say what the training
    keeps, not how it is spread.
    """
    replicas = _baseline(problem, "ddp", _fitting(problem, Pins(zero=0, forbid=_NO_MODEL)))
    if problem.devices == 1:
        return (replicas,)
    return (
        replicas,
        _baseline(problem, "fsdp", _fitting(problem, Pins(zero=3, forbid=_NO_MODEL))),
        _baseline(problem, "rule of thumb", *(_tried(problem, guide) for guide in GUIDES)),
    )


@dataclass(frozen=True, slots=True)
class _BaselineStrategies:
    """Strategies of a baseline: those that fit, the least peak of all [bytes], and why others cannot be built."""

    fitting: list[AnalyticalCandidate]
    least_bytes: float
    reason: str


def _fitting(problem: AnalyticalProblem, pins: Pins, order: Order = lambda _: ()) -> _BaselineStrategies:
    """Strategies that keep pins and fit; of those that recompute layers, and of the others, the first in an order."""
    pins = replace(pins, gradients=problem.pins.gradients, optimizer_state=problem.pins.optimizer_state)
    free, rejected = replace(problem, pins=pins), Counter[str]()
    model, fitting = AnalyticalModel(problem=free), list[AnalyticalCandidate]()
    least, reached = float("inf"), dict[bool, tuple[int, ...]]()
    placed = sorted(
        ((order(Degrees(tp=box.tp, pp=box.pp, cp=box.cp)), box) for box in boxes(free, rejected)), key=_place
    )
    for place, box in placed:
        if len(reached) == 2 and place > max(reached.values()):
            break
        for group in box.groups(free):
            again = recomputes_layers(group)
            if place > reached.get(again, place):
                continue
            for strategy in members(free, group):
                admitted = model.admitted(strategy)
                least = min(least, admitted[1].peak)
                if admitted[1].peak <= problem.memory_limit:
                    reached[again] = place
                    fitting.append(model.price(strategy, admitted))
    return _BaselineStrategies(fitting, least, next(iter(rejected), "cannot be built"))


def _place(placed: tuple[tuple[int, ...], Box]) -> tuple[int, ...]:
    return placed[0]


def _tried(problem: AnalyticalProblem, guide: Guide) -> _BaselineStrategies:
    """What a guide says to try: with its first level of ZeRO, where there are devices to shard over."""
    return _fitting(problem, Pins(zero=guide.levels[0] if problem.devices > 1 else 0), guide.order)


def _baseline(problem: AnalyticalProblem, role: str, *tried: _BaselineStrategies) -> Baseline[AnalyticalCandidate]:
    """The fastest of what is tried."""
    fitting = [found for priced in tried for found in priced.fitting]
    if fitting:
        return Baseline(role=role, candidate=min(fitting, key=lambda found: found.rank))
    least = min(priced.least_bytes for priced in tried)
    if least == float("inf"):
        return Baseline(role=role, candidate=None, reason=tried[0].reason)
    limit = problem.memory_limit
    reason = f"needs at least {format_bytes(least)} on a rank, of {format_bytes(limit)}"
    return Baseline(role=role, candidate=None, reason=reason)
