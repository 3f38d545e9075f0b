"""A worker of several devices: the best model parallelism for it, and how much faster than one device it is.

The planner searches stages, placements and sharded operations once for each width, at one batch. Its candidates are
simulated again at other batches and on other links, so a search is not repeated for each of them. Several such workers
are one strategy with one replica a worker: their step is simulated as that of any plan. The fastest worker alone need
not be that of the fastest hybrid, so the best of each number of devices has the step of the planner's own answer there.

The speedup's interval: compute and links err apart, so the lower end is that on links slower against compute, by as
much as exchanges are unsure, the upper end on links as much faster, and both are widened by `_UNSURE` for what is in no
estimate.

Steps of data-parallel replicas, of one device each or of several, at any local batch.

    step = what a worker takes alone + what the exchange adds: exposed communication, calls, waits for the slowest

From these parts follows what a step would take with other links or faster workers; what it takes is simulated.

The exchange of workers of M devices: each device sums its part of the gradients with its peers, and the M groups share
the links of a node, so it takes as long as that of all gradients over all M·N devices. Their backward is shorter by
SU^M, so less of it is overlapped; waits for the slowest are in proportion to compute, and each device copies its part
of the gradients alone, so these are shorter by SU^M too.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.jobs.resolve import JobSource
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import choose
from trimaran.planner.explanation.explain import best_of_kind
from trimaran.planner.explanation.what_if import Change, changed
from trimaran.planner.pins import Pins
from trimaran.planner.problem import Problem, assess, lack_of_memory, reassess
from trimaran.planning.analytical import decoder_shape, is_traceable
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.estimated import Estimated, longest_chain_s, one_device
from trimaran.planning.estimated_problem import machine_problem
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.compute import operation_phases
from trimaran.pricing.exchange.costs import straggling
from trimaran.pricing.exchange.unknowns import EXCHANGE_UNSURE
from trimaran.program.strategy import Strategy
from trimaran.report.crossover import Worker
from trimaran.simulator.data_parallel import at_ends, step_seconds

ALONE = "one device"
"""A worker whose other devices have nothing to do."""

_UNSURE = 0.08
"""Half-width of the interval of a speedup, as a share: the three of the study (docs/planning.md) lie within it."""

_STAGES = Pins(dp=1, allow=("pp", "tp", "gpipe", "1f1b", "interleaved", "zero-bubble"))
_PLACED = Pins(dp=1, allow=("placement",))
_KINDS: Mapping[str, Callable[[Strategy], bool]] = {
    "placement": lambda one: bool(one.parts),
    "stages": lambda one: one.pp > 1 and not one.parts,
    "tensor": lambda one: one.tp > 1,
    "few microbatches": lambda one: one.pp > 1 and one.microbatches <= 2,
}
_KEPT = 2
_GAP = 0.02


@dataclass(slots=True)
class Workers:
    """Workers of one job on one machine, each searched once.

    Attributes:
        reference: of the job
        request: what is asked of the planner; its devices and batch are set here
        base_batch: at which plans are searched [samples]
    """

    reference: str
    request: PlanRequest
    base_batch: int
    notes: dict[int, str] = field(default_factory=dict)
    _plans: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _found: dict[tuple[int, int], Worker] = field(default_factory=dict)
    _best: dict[tuple[int, int], Candidate] = field(default_factory=dict)
    _steps: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def at(self, width: int, batch: int) -> Worker:
        """The best worker of a width for a batch.

        Args:
            width: devices
            batch: samples
        """
        key = width, batch
        if key not in self._found:
            self._found[key] = self._worker(width, batch)
        return self._found[key]

    def step_s(self, width: int, batch: int, devices: int) -> float | None:
        """The step of as many of the best workers as there are, simulated; None where one device works alone [s].

        Args:
            width: devices of a worker
            batch: samples of a worker
            devices: of all workers
        """
        if self.at(width, batch).strategy == ALONE:
            return None
        key = width, batch, devices
        if key not in self._steps:
            workers = devices // width
            strategy = dataclasses.replace(self._best[width, batch].strategy, dp=workers)
            asked = self._asked(devices, workers * batch, _STAGES)
            problem = machine_problem(self.reference, asked, {batch // strategy.microbatches})
            self._steps[key] = assess(strategy, problem).step_time_s
        return self._steps[key]

    def planned(self, width: int, batch: int, devices: int) -> Candidate | None:
        """All workers, by the plan with a replica for each of them.

        Args:
            width: devices of a worker, at most
            batch: samples of a worker
            devices: of all workers

        Returns:
            None where no such plan can be run.
        """
        workers = devices // width
        pins = dataclasses.replace(_STAGES, dp=workers, allow=("dp", *_STAGES.allow))
        if any(one.strategy.parts for one in self._searched(width)):
            pins = dataclasses.replace(pins, allow=(*pins.allow, *_PLACED.allow))
        asked = dataclasses.replace(self._asked(devices, workers * batch, pins), gap=0.0)
        # A decoder on more devices than `plan` simulates is simulated here, as all else of a crossover is.
        source = JobSource(reference=self.reference)
        found = make_plan(source, asked, backend=Estimated(source, asked)).simulated
        if found.search is None:
            return None

        def holds(one: Strategy) -> bool:
            return one.dp == workers and one.devices > workers

        best, obstacle = best_of_kind(found.search, found.problem, holds)
        hybrids = {one.strategy: one for one in found.search.candidates if holds(one.strategy)}
        if best is not None and not obstacle:
            hybrids |= {best.strategy: best}
        return choose(tuple(hybrids.values())) if hybrids else None

    def speedups(self, width: int) -> Mapping[str, float]:
        """The best speedup of each kind of model parallelism at the base batch, by the names of `_KINDS`."""
        problem = self._problem(width, self.base_batch)
        alone_s = one_device(problem).step_time_s
        found: dict[str, float] = {}
        for one in self._searched(width):
            for kind, holds in _KINDS.items():
                if holds(one.strategy):
                    found[kind] = max(found.get(kind, 0.0), alone_s / one.step_time_s)
        return found

    def _worker(self, width: int, batch: int) -> Worker:
        problem = self._problem(width, batch)
        alone_s = one_device(problem).step_time_s
        tried = [found for one in self._searched(width) if (found := _again(one, problem)) is not None]
        best = min(tried, key=lambda found: found.step_time_s, default=None)
        if best is None or best.step_time_s >= alone_s:
            return _idle(width, batch)
        self._best[width, batch] = best
        speedup = alone_s / best.step_time_s
        base = None if batch == self.base_batch else self.at(width, self.base_batch)
        if base is not None and base.strategy != ALONE:
            return _like(base, batch, best.strategy.name, speedup)
        return _unsure(problem, best, alone_s)

    def _searched(self, width: int) -> tuple[Candidate, ...]:
        """The best of each kind at the base batch; none where nothing fits."""
        if width not in self._plans:
            self._plans[width] = self._search(width)
        return self._plans[width]

    def _search(self, width: int) -> tuple[Candidate, ...]:
        """Stages and sharded operations; then a placement, whose solver takes long, where its bound is below them."""
        found = self._candidates(width, _STAGES)
        least_s = min((one.step_time_s for one in found), default=float("inf"))
        asked = self._asked(width, self.base_batch, _PLACED)
        problem = machine_problem(self.reference, asked, {self.base_batch})
        if _chain_s(problem) < least_s:
            found += self._candidates(width, _PLACED)
        return _best_of_kinds(found)

    def _candidates(self, width: int, pins: Pins) -> list[Candidate]:
        try:
            found = make_plan(self.reference, self._asked(width, self.base_batch, pins)).simulated
        except InfeasibleError as error:
            self.notes[width] = f"no model parallelism over {width} devices: {error.message}"
            return []
        if found.search is None:
            return []
        best = (best_of_kind(found.search, found.problem, holds) for holds in _KINDS.values())
        shown = {one.strategy: one for one, obstacle in best if one is not None and not obstacle}
        return [
            one
            for one in (shown | {one.strategy: one for one in found.search.candidates}).values()
            if one.strategy.devices > 1
        ]

    def _problem(self, width: int, batch: int) -> Problem:
        """A worker with what was found for it, and one device."""
        sizes = {batch, *(batch // one.strategy.microbatches for one in self._searched(width))} - {0}
        return machine_problem(self.reference, self._asked(width, batch, _STAGES), sizes)

    def _asked(self, width: int, batch: int, pins: Pins) -> PlanRequest:
        return dataclasses.replace(self.request, devices=width, batch=batch, pins=pins, gap=_GAP)


def _unsure(problem: Problem, best: Candidate, alone_s: float) -> Worker:
    """A worker with its interval, and on other links."""

    def on_links(factor: float) -> float:
        other = changed(problem, Change(what="link", factor=factor))
        return max(1.0, alone_s / reassess(best, other).step_time_s)

    speedup = alone_s / best.step_time_s
    return Worker(
        devices=problem.devices,
        local_batch_size=problem.batch,
        strategy=best.strategy.name,
        speedup=speedup,
        speedup_interval=(
            max(1.0, min(speedup, on_links(1 / (1 + EXCHANGE_UNSURE))) * (1 - _UNSURE)),
            max(speedup, on_links(1 + EXCHANGE_UNSURE)) * (1 + _UNSURE),
        ),
        speedup_links_half=on_links(0.5),
        speedup_links_double=on_links(2.0),
    )


def _like(base: Worker, batch: int, strategy: str, speedup: float) -> Worker:
    """A worker at another batch, as unsure and as sensitive to links as at the base batch, in proportion."""
    factor = speedup / base.speedup
    low, high = base.speedup_interval
    return Worker(
        devices=base.devices,
        local_batch_size=batch,
        strategy=strategy,
        speedup=speedup,
        speedup_interval=(max(1.0, low * factor), max(speedup, high * factor)),
        speedup_links_half=max(1.0, base.speedup_links_half * factor),
        speedup_links_double=max(1.0, base.speedup_links_double * factor),
    )


def check_size(reference: str, request: PlanRequest, width: int) -> None:
    """Refuse a decoder that is too large to be traced: a crossover is simulated.

    Args:
        reference: of the job
        request: names the machine
        width: devices of a worker

    Raises:
        InputError: the decoder is that large
    """
    shape = decoder_shape(reference, request)
    if shape is not None and not is_traceable(shape, dataclasses.replace(request, devices=width)):
        raise InputError(
            f'"{reference}" is planned by the analytical model there, not operation by operation, so its crossover is '
            "not known: ask for a smaller size of it",
            reference=reference,
        )


def _chain_s(problem: Problem) -> float:
    """The longest chain of operations, which any placement takes at least [s]."""
    forward, backward = operation_phases(
        problem.graph, problem.table, batch=problem.batch, execution=problem.executions[0]
    )
    return longest_chain_s(problem.graph, forward) + longest_chain_s(problem.graph, backward)


def _best_of_kinds(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The fastest few, and the fastest of each kind, such as those that small batches can have too."""
    rising = sorted(candidates, key=lambda one: one.step_time_s)
    kept = list(rising[:_KEPT])
    for holds in _KINDS.values():
        kept += [one for one in rising if holds(one.strategy)][:1]
    return tuple({one.strategy.name: one for one in kept}.values())


def _again(candidate: Candidate, problem: Problem) -> Candidate | None:
    """The same strategy at another batch; None where it has no program there, or does not fit."""
    if problem.batch % candidate.strategy.microbatches:
        return None
    try:
        found = assess(candidate.strategy, problem)
    except (InfeasibleError, InputError):
        return None
    return None if lack_of_memory(found.peak_bytes, problem) else found


def _idle(width: int, batch: int) -> Worker:
    return Worker(
        devices=width,
        local_batch_size=batch,
        strategy=ALONE,
        speedup=1.0,
        speedup_interval=(1.0, 1.0),
        speedup_links_half=1.0,
        speedup_links_double=1.0,
    )


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Time that an exchange adds to a step.

    Attributes:
        exposed_s: communication that does not overlap with compute [s]
        overlapped_s: communication that overlaps with the backward [s]
        backward_s: the backward of one device, as long as it takes with the exchange in progress [s]
        other_s: calls, copies into buffers, waits [s]
        ends: factors on what it adds, with collectives and what nobody has measured at their fast and slow ends
    """

    exposed_s: float
    overlapped_s: float
    backward_s: float
    other_s: float
    ends: tuple[float, float] = (1.0, 1.0)

    def added_s(self, speedup: float) -> float:
        """Time that it adds to a step whose compute is faster by a factor [s].

        Example:
            >>> Exchanged(exposed_s=1.0, overlapped_s=3.0, backward_s=4.0, other_s=0.5).added_s(2.0)
            2.25
        """
        exposed_s = max(self.exposed_s, self.exposed_s + self.overlapped_s - self.backward_s / speedup)
        return exposed_s + self.other_s / speedup


@dataclass(slots=True)
class Replicas:
    """Exchanges of workers on one machine, of one device each or of several.

    Attributes:
        job: its steps, of one device each
    """

    job: DataParallelJob
    _fits: dict[int, bool] = field(default_factory=dict)

    def is_even(self, devices: int) -> bool:
        """Whether each node that the devices take has the same number of them."""
        return devices % self.job.nodes(devices) == 0

    def alone_s(self, batch: int) -> float:
        """A step of one device [s]."""
        return self.job.step(batch, 1).step.seconds

    def needed_speedup(self, batch: int, width: int) -> float | None:
        """The SU^M above which a hybrid is ahead of data parallelism with the same global batch, T(b) / T(b / M).

        Data parallelism keeps the global batch with shares that are M times as small, so that both need the same
        epochs.

        Args:
            batch: b, samples of a worker
            width: M, devices of a worker

        Returns:
            Factor; None where a device would have less than a sample.
        """
        share = batch // width
        return self.alone_s(batch) / self.alone_s(share) if share >= 1 else None

    def exchange(self, batch: int, devices: int, links: float = 1.0, *, width: int = 1) -> Exchanged:
        """Time that an exchange over a number of devices adds.

        Args:
            batch: samples of a device, or of a worker of several
            devices: in all
            links: factor on their rate
            width: devices of a worker, whose own step has the wait for its slowest device
        """
        if devices == 1:
            return Exchanged(0.0, 0.0, 1.0, 0.0)
        step = self.job.step(batch, devices, links=links)
        added_s = step.step.seconds - self.alone_s(batch)
        exposed_s = step.exposed_communication_s
        waited_s = straggling(width, self.job.nodes(width)) * step.fp_bp_s
        return Exchanged(
            exposed_s=exposed_s,
            overlapped_s=step.communication_s - exposed_s,
            backward_s=step.backward_s,
            other_s=max(0.0, added_s - exposed_s - waited_s),
            ends=self._ends(batch, devices, added_s) if links == 1.0 else (1.0, 1.0),
        )

    def _ends(self, batch: int, devices: int, added_s: float) -> tuple[float, float]:
        """As the interval of the exchange in `scale` has them."""
        setup, alone_s = self.job.setup(batch, devices), self.alone_s(batch)
        factors = [
            (step_seconds(at_ends(setup, compute="seconds", exchange=end)) - alone_s) / added_s
            for end in ("fast", "slow")
            if added_s > 0.0
        ]
        return max(0.0, min((1.0, *factors))), max((1.0, *factors))

    def fits(self, batch: int) -> bool:
        """Whether a device holds a step of this batch."""
        if batch not in self._fits:
            self._fits[batch] = self.job.memory(self.job.step(batch, min(2, self.job.machine.devices))).fits
        return self._fits[batch]
