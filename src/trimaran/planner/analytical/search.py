"""Search for the strategy of a transformer on many devices with the shortest step, by the analytical model.

    minimise    step time of a strategy                           pricing/analytical
    over        t, p, c, d, b, v, zero, recompute, layers         candidates.py says which can be built
    subject to  memory of every stage <= memory of a device

Bounds come first: strategies with the same degrees, microbatch and recomputation do the same work, which takes at least
the time of evenly loaded stages without bubble and without exchanges between replicas. Groups are priced in the order
of that bound (`best_first.py`), until it is some times the best step found; the rest can be neither chosen nor
a runner-up. The bound of the whole is the least of the groups in which something fits, or that were not looked at.
After a number of strategies, or with a time limit of the user's, the search ends early and says so. Left out: devices
that differ, expert placement, offloading.

Baselines: replicas alone, states of all devices sharded (FSDP, ZeRO-3), the field's rule of thumb.

The rule of thumb: the least model parallelism that fits, inside a node by layers first, then by stages; states of the
optimizer sharded over replicas, an ordinary 1F1B pipeline of stages as even as can be, the largest microbatch that
fits, and layers recomputed only where nothing fits without.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.precision import Precision
from trimaran.base.units import format_count
from trimaran.machine.types import Device, Machine
from trimaran.planner.analytical.candidates import (
    AnalyticalCandidate,
    AnalyticalModel,
    AnalyticalProblem,
    groups,
    members,
)
from trimaran.planner.best_first import best_first
from trimaran.planner.choice import front_of
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.result import Baseline, Search
from trimaran.pricing.analytical.memory import Bookkeeping
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.pricing.analytical.step_time import Program
from trimaran.pricing.kernels.software import Software
from trimaran.program.strategy import Strategy

_NO_MODEL = ("cp", "pp", "tp")

_EARLY = ("volta", "turing", "pascal", "maxwell", "kepler")
"""Architectures without bfloat16, on which attention is two batched products."""


def transformer_problem(
    shape: TransformerShape,
    machine: Machine,
    *,
    batch: int,
    precision: Precision = "bf16",
    software: Software | None = None,
    devices: int | None = None,
    memory_bytes: int | None = None,
    pins: Pins = NO_PINS,
    time_limit_s: float | None = None,
) -> AnalyticalProblem:
    """The checked problem of a request, with the training program.

    Args:
        shape: the network
        machine: nodes and fabric
        batch: sequences of a step, of all replicas
        precision: of products: "bf16", "fp16" or "fp8"
        software: Megatron and its year; None: of 2025, on old devices of 2022
        devices: in use; None: all of the machine
        memory_bytes: limit of a rank; None: the part of its device that a job may use [bytes]
        pins: decisions of the user
        time_limit_s: after which a search ends with its best so far [s]; None: none

    Raises:
        InputError: a count that is not positive, a precision that the device has not, or software of another framework
    """
    device = machine.node.device
    count = machine.devices if devices is None else devices
    if batch < 1 or not 1 <= count <= machine.devices:
        raise InputError(
            f"batch {batch}, {format_count(count, 'device')}: expected a positive batch and 1 to "
            f"{format_count(machine.devices, 'device')}",
            code="analytical.bad-request",
            batch=batch,
            devices=count,
        )
    device.check_computes(precision)
    program = program_of(device, precision, software)
    return AnalyticalProblem(
        shape=shape,
        machine=machine,
        devices=count,
        batch=batch,
        program=program,
        bookkeeping=Bookkeeping(attention=program.attention),
        pins=pins,
        memory_bytes=memory_bytes,
        time_limit_s=time_limit_s,
    )


def program_of(device: Device, precision: Precision, software: Software | None) -> Program:
    """The training program of a transformer on a device.

    Args:
        device: old ones compute attention as two batched products
        precision: of products
        software: Megatron and its year; None: of 2025, on old devices of 2022

    Raises:
        InputError: another framework
    """
    if software is not None and software.framework != "megatron":
        raise InputError(
            "the analytical model of transformers has figures of Megatron's fused kernels, not of "
            f'"{software.framework}": leave --software out, say --software megatron:YEAR, or ask for up to 64 devices '
            "and 5 billion parameters, where every operation is priced under any software",
            code="software.not-priced",
            software=software.framework,
        )
    early = device.architecture in _EARLY
    year = (2022.0 if early else 2025.0) if software is None else software.year
    return Program(precision=precision, attention="unfused" if early else "fused", tensor_overlaps=not early, year=year)


@dataclass(slots=True, kw_only=True)
class _Hunt:
    """A search under way: the space of `best_first`, whose nodes are groups with their bounds [s].

    Attributes:
        model: prices strategies
        until_s: when its time is over, by `time.monotonic` [s]
        rejected: how many were not priced or do not fit, by reason
        fitting: candidates that fit
        lowest_s: the least bound of a group in which something fits, or that was not looked at [s]
        least_bytes: the smallest peak of all that were priced [bytes]
        is_complete: neither time nor number ended it
    """

    model: AnalyticalModel
    until_s: float
    rejected: Counter[str] = field(default_factory=Counter)
    fitting: list[AnalyticalCandidate] = field(default_factory=list)
    lowest_s: float = float("inf")
    least_bytes: float = float("inf")
    is_complete: bool = True
    _best_s: float = float("inf")
    _priced: int = 0

    def order(self, node: tuple[float, Strategy]) -> tuple[float]:
        """By bounds."""
        return node[:1]

    def expand(self, node: tuple[float, Strategy]) -> Iterable[tuple[float, Strategy]]:
        """Price all strategies of a group."""
        bound_s, group = node
        problem = self.model.problem
        for strategy in members(problem, group):
            self._priced += 1
            peak = self.model.memory(strategy).peak
            self.least_bytes = min(self.least_bytes, peak)
            if peak > problem.memory_limit:
                self.rejected["does not fit the memory of a device"] += 1
                continue
            found = self.model.price(strategy)
            self.fitting.append(found)
            self._best_s, self.lowest_s = min(self._best_s, found.step_time_s), min(self.lowest_s, bound_s)
        return ()

    def is_done(self, bound_s: float) -> bool:
        """Whether a bound is some times the best step, or time or number end the search."""
        if bound_s > self.model.problem.ratio * self._best_s:
            return True
        if self.fitting and (self._priced >= self.model.problem.most_priced or time.monotonic() > self.until_s):
            self.is_complete, self.lowest_s = False, min(self.lowest_s, bound_s)
        return not self.is_complete


def _hunt(problem: AnalyticalProblem, until_s: float) -> _Hunt:
    hunt = _Hunt(model=AnalyticalModel(problem=problem), until_s=until_s)
    left = best_first(hunt, [(hunt.model.bound(group), group) for group in groups(problem, hunt.rejected)])
    if left and hunt.is_complete:
        hunt.rejected[f"at least {problem.ratio:g} times the chosen step, by its bound"] += len(left)
    return hunt


def search_degrees(problem: AnalyticalProblem) -> Search[AnalyticalCandidate]:
    """The fastest strategy that fits, with the other candidates.

    Args:
        problem: to plan

    Raises:
        InfeasibleError: nothing fits; the message says the least that a strategy needs
    """
    start_s = time.monotonic()
    until_s = float("inf") if problem.time_limit_s is None else start_s + problem.time_limit_s
    hunt = _hunt(problem, until_s)
    if not hunt.fitting:
        raise InfeasibleError(_nothing_fits(hunt), code="analytical.nothing-fits")
    ordered = sorted(hunt.fitting, key=lambda found: found.rank)
    chosen, fewer = ordered[0], _with_fewer(problem, ordered[0], until_s)
    others = baselines(problem)
    references = tuple(one.candidate for one in others if one.candidate is not None)
    return Search(
        candidates=(chosen, *_others(ordered, problem.runners_up)),
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
    )


def _against(problem: AnalyticalProblem, hunt: _Hunt) -> str:
    """The objection to strategies that are faster than the chosen one; empty: none."""
    if not hunt.is_complete:
        return "the end of the search before all was looked at (--time-limit)"
    return "" if replace(problem.pins, compress=False) == NO_PINS else "what you decided"


def _with_fewer(problem: AnalyticalProblem, chosen: AnalyticalCandidate, until_s: float) -> list[AnalyticalCandidate]:
    """The best of half and of a quarter of the devices, in the remaining time."""
    found = []
    for share in (2, 4):
        count = problem.devices // share
        if problem.devices % share or count < 1 or until_s <= time.monotonic():
            continue
        fewer = replace(problem, devices=count, pins=replace(problem.pins, dp=None), ratio=1.05)
        found += sorted(_hunt(fewer, until_s).fitting, key=lambda one: one.rank)[:1]
    return [one for one in found if one.devices < chosen.devices]


def _others(ordered: Sequence[AnalyticalCandidate], most: int) -> tuple[AnalyticalCandidate, ...]:
    """The next ones, one of each (t, p, c, d)."""
    first: dict[tuple[int, ...], AnalyticalCandidate] = {}
    for one in ordered:
        strategy = one.strategy
        first.setdefault((strategy.tp, strategy.pp, strategy.cp, strategy.dp), one)
    return tuple(first.values())[1 : most + 1]


def _nothing_fits(hunt: _Hunt) -> str:
    problem, least = hunt.model.problem, hunt.least_bytes
    limit = problem.memory_limit / 1e9
    what = f"no strategy on {format_count(problem.devices, 'device')}"
    if least < float("inf"):
        return (
            f"{what} fits: the smallest needs {least / 1e9:.1f} GB on a rank, a device leaves {limit:.1f} GB; "
            "take more devices, allow recomputation and ZeRO, or a smaller microbatch"
        )
    reasons = "; ".join(f"{count} x {reason}" for reason, count in hunt.rejected.most_common(3))
    return f"{what} can be built ({reasons or 'pinned degrees do not divide the devices'}); change a pin or the batch"


# ---------------------------------------------------------------------------------------------------------------------
# Baselines, which people run without a plan


def baselines(problem: AnalyticalProblem) -> tuple[Baseline[AnalyticalCandidate], ...]:
    """Each baseline with its costs, or the reason why it cannot be run; pins of the problem do not bind them."""
    thumb = Pins(chunks=1, zero=1 if problem.devices > 1 else 0, forbid=("cp",))
    return (
        _baseline(problem, "ddp", Pins(zero=0, forbid=_NO_MODEL)),
        _baseline(problem, "fsdp", Pins(zero=3, forbid=_NO_MODEL)),
        _baseline(problem, "rule of thumb", thumb),
    )


def _baseline(problem: AnalyticalProblem, role: str, pins: Pins) -> Baseline[AnalyticalCandidate]:
    """The fastest that keeps pins; by the rule of thumb that with the least model parallelism."""
    free, rejected = replace(problem, pins=pins), Counter[str]()
    model, limit = AnalyticalModel(problem=free), problem.memory_limit
    every = [model.price(each) for group in groups(free, rejected) for each in members(free, group)]
    fitting = [found for found in every if found.memory.peak <= limit]
    if fitting:
        order = _by_rule_of_thumb if role == "rule of thumb" else lambda found: found.rank
        return Baseline(role=role, candidate=min(fitting, key=order))
    if not every:
        return Baseline(role=role, candidate=None, reason=next(iter(rejected), "cannot be built"))
    least = min(found.memory.peak for found in every)
    reason = f"needs at least {least / 1e9:.1f} GB on a rank, of {limit / 1e9:.1f} GB"
    return Baseline(role=role, candidate=None, reason=reason)


def _by_rule_of_thumb(found: AnalyticalCandidate) -> tuple[int, int, bool, int]:
    strategy = found.strategy
    return (strategy.tp * strategy.pp, strategy.pp, bool(strategy.recomputed), -strategy.microbatch)
