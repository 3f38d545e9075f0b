"""The known remedies for the bottleneck of a plan, each tried on the simulator.

A remedy for a class of time is a change of costs (bytes halved, loading ahead of need) or another strategy
(more microbatches, gradients exchanged every other pass). Each is simulated; its gain is the difference of two
steps. Where it changes the batch, time is compared per sample, and the effect of the larger batch on the
epochs that training needs is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import ExecutionError, InfeasibleError, InputError
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_bytes, format_seconds
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalModel, AnalyticalProblem
from trimaran.planner.analytical.search import fastest
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import Option
from trimaran.planner.explanation.critical_path import INPUT_PIPELINE, TimeClass
from trimaran.planner.explanation.what_if import Change, changed, changed_analytically
from trimaran.planner.input_pipeline import changed_loading, limit_there, loading_changes
from trimaran.planner.problem import Problem, assess, is_compiled_known, lack_of_memory, reassess
from trimaran.planner.search import search
from trimaran.planner.space import METHODS, bucket_sizes, may_be_compressed, samples_factor, unplaced
from trimaran.pricing.gradient_compression import is_priced
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.program.strategy import Strategy

# ---------------------------------------------------------------------------------------------------------------------
# Gain of a change: the same plan by the changed costs, and whether another plan would then be chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A plan after a change.

    Attributes:
        change: of the costs or devices
        kept: the same plan; None: it is not possible then
        best: the choice then; None: nothing fits
        gain: share of its time that the change saves the same plan, negative where it costs; None without `kept`
        gain_interval: of it, where all costs are low, at their median and high: (least, most)
        best_gain: likewise, with the plan that would be chosen; None without `best`
        switches: another strategy would be chosen
        obstacle: why `kept` or `best` is missing
    """

    change: Change
    kept: Option | None
    best: Option | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    best_gain: float | None
    switches: bool
    obstacle: str = ""


def default_changes(problem: Problem) -> tuple[Change, ...]:
    """The usual changes for any plan."""
    if not problem.cluster.machine.node.measured:
        return _of_a_machine(problem)
    changes = [
        Change(what="compute", factor=2.0),
        Change(what="load", factor=0.0),
    ]
    if problem.devices > 1:
        changes += [
            Change(what="link", factor=2.0),
            Change(what="latency", factor=0.0),
            Change(what="wire", factor=0.5),
            Change(what="interference", factor=0.0),
            Change(what="devices", value=problem.devices - 1),
        ]
    return (*changes, Change(what="devices", value=_more_devices(problem)))


def _of_a_machine(problem: Problem) -> tuple[Change, ...]:
    """Changes for devices that were not measured."""
    changes = [Change(what="compute", factor=2.0), Change(what="memory", factor=0.5)]
    if problem.room is not None:
        changes.append(Change(what="load", factor=0.0))
    if problem.devices > 1:
        changes += [Change(what="link", factor=2.0), Change(what="wire", factor=0.5)]
        changes.append(Change(what="devices", value=problem.devices // 2))
    return tuple(changes)


def _more_devices(problem: Problem) -> int:
    """The next number of devices among which the batch divides, up to twice as many; else one more."""
    more = range(problem.devices + 1, 2 * problem.devices + 1)
    return next((number for number in more if problem.batch % number == 0), problem.devices + 1)


def analytical_changes(problem: AnalyticalProblem) -> tuple[Change, ...]:
    """The usual changes for a plan of the analytical model."""
    changes = [Change(what="compute", factor=2.0), Change(what="memory", factor=2.0)]
    if problem.devices > 1:
        changes.append(Change(what="link", factor=2.0))
        changes.append(Change(what="devices", value=problem.devices // 2))
    if problem.machine.fabric is not None:
        changes.append(Change(what="network", factor=2.0))
    return (*changes, Change(what="devices", value=2 * problem.devices))


Replan = Callable[[Problem, Callable[[Problem], Problem]], Candidate]
"""The choice for a problem after a change, given both: a step that is traced for it is changed as well."""


def chosen_after(problem: Problem, change: Callable[[Problem], Problem]) -> Candidate:
    """The choice of a search after a change, by the steps that were traced before."""
    return search(change(problem), choice_only=True).chosen


def outcome_of(change: Change, chosen: Candidate, problem: Problem, replan: Replan = chosen_after) -> Outcome:
    """A plan after a change.

    Args:
        change: of the costs or devices
        chosen: the plan, scored by the problem as it is
        problem: as it is
        replan: finds the choice then
    """
    after = changed(problem, change)
    return _outcome(change, chosen, _keep(chosen, after), lambda: replan(problem, lambda one: changed(one, change)))


def analytical_outcome_of(change: Change, chosen: AnalyticalCandidate, problem: AnalyticalProblem) -> Outcome:
    """A plan of the analytical model after a change.

    Args:
        change: of the machine
        chosen: the plan, priced on the machine as it is
        problem: as it is
    """
    after = changed_analytically(problem, change)
    return _outcome(change, chosen, _keep_analytically(chosen, after), lambda: fastest(after))


def _outcome(change: Change, chosen: Option, keeping: tuple[Option | None, str], find: Callable[[], Option]) -> Outcome:
    """A plan after a change.

    Args:
        change: what is otherwise
        chosen: the plan as it is
        keeping: the same plan then, and why there is none
        find: the choice then
    """
    kept, obstacle = keeping
    best: Option | None = None
    try:
        best = find()
    except (InfeasibleError, InputError, ExecutionError) as error:
        obstacle = f"{obstacle}; {error.message}" if obstacle else error.message
    spread = () if kept is None else gains(chosen, kept)
    return Outcome(
        change=change,
        kept=kept,
        best=best,
        gain=spread[1] if spread else None,
        gain_interval=(min(spread), max(spread)) if spread else None,
        best_gain=None if best is None else gains(chosen, best)[1],
        switches=best is not None and not is_same(best.strategy, chosen.strategy),
        obstacle=obstacle,
    )


def rank_outcomes(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes by gain, largest first."""
    return tuple(sorted(outcomes, key=_rank))


def gains(before: Option, after: Option, *, per: float = 1.0) -> tuple[float, ...]:
    """Share of the time that is saved, of a step or an epoch, where all costs are low, at their median, and high.

    Args:
        before: the plan
        after: its replacement
        per: updates of `before` that one step of `after` stands for
    """
    pairs = zip(before.cases, after.cases, strict=True)
    return tuple(1.0 - new / (per * old) if old else 0.0 for old, new in pairs)


def is_same(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies differ at most in split points, placement and devices."""

    def outline(strategy: Strategy) -> Strategy:
        plain = replace(strategy, boundaries=(), backward_order=(), device_order=())
        return unplaced(plain) if strategy.parts else plain

    return outline(one) == outline(other)


def _keep(chosen: Candidate, after: Problem) -> tuple[Candidate | None, str]:
    needed = chosen.strategy.devices
    if needed > after.devices:
        return None, f"{chosen.strategy.name} needs {needed} devices"
    kept = reassess(chosen, after)
    lack = lack_of_memory(kept.peak_bytes, after)
    return (None, lack) if lack else (kept, "")


def _keep_analytically(chosen: AnalyticalCandidate, after: AnalyticalProblem) -> tuple[AnalyticalCandidate | None, str]:
    strategy, limit = chosen.strategy, after.memory_limit
    if strategy.devices > after.devices:
        return None, f"{strategy.name} needs {strategy.devices} devices"
    model = AnalyticalModel(problem=after).taken(strategy)
    admitted = model.admitted(strategy)
    if admitted[1].peak > limit:
        return None, f"{strategy.name} needs {format_bytes(admitted[1].peak)} on a rank, of {format_bytes(limit)}"
    return model.price(strategy, admitted), ""


def _rank(outcome: Outcome) -> tuple[float, float, str]:
    best = outcome.gain if outcome.best_gain is None else max(outcome.best_gain, outcome.gain or outcome.best_gain)
    return (-(best if best is not None else float("-inf")), -(outcome.gain or 0.0), outcome.change.text)


# A class of time below this share of the step has no remedies: there is nothing to win.
_WORTH_TREATING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A remedy before it is tried: a change of costs, another input pipeline, or another strategy or batch."""

    id: str
    limiter: str
    name: str
    action: str
    assumption: str
    change: Change | None = None
    strategy: Strategy | None = None
    batch_ratio: int = 1
    pipeline: InputPipeline | None = None


def remedies_for(chosen: Candidate, parts: Mapping[str, float], problem: Problem) -> tuple[Remedy, ...]:
    """Gain of each known remedy for a plan.

    Args:
        chosen: the plan
        parts: time of each class on its critical path [s]
        problem: that it was chosen for

    Returns:
        The remedies for the classes of time that its critical path has, most first; those that save nothing too.
    """
    found = []
    for trial in _trials(chosen, parts, problem):
        after = _try(trial, chosen, problem)
        if after is None or (
            trial.change is None
            and trial.pipeline is None
            and after.program == chosen.program
            and trial.batch_ratio == 1
        ):
            continue
        # An epoch of twice the batch has half the steps already.
        spread = gains(chosen, after, per=float(trial.batch_ratio) if problem.epoch is None else 1.0)
        found.append(
            Remedy(
                id=trial.id,
                limiter=trial.limiter,
                name=trial.name,
                action=trial.action,
                predicted_gain=spread[1],
                gain_interval=(min(spread), max(spread)),
                method="re-simulated",
                basis=_basis(trial, chosen, after),
                assumption=trial.assumption,
            )
        )
    found.sort(key=lambda one: (-one.predicted_gain, one.name))
    return tuple(found)


def _trials(chosen: Candidate, parts: Mapping[str, float], problem: Problem) -> Iterator[_Trial]:
    least_s = _WORTH_TREATING * chosen.step_time_s
    bound = {part for part, seconds in parts.items() if seconds > least_s}
    strategy = chosen.strategy
    room = problem.room
    if TimeClass.LOAD in bound and room is not None and room.pipeline is not None:
        for one in loading_changes(room.pipeline, strategy.feeding.workers, limit_there(chosen, problem)):
            yield _Trial(
                id=one.id,
                limiter=INPUT_PIPELINE,
                name=one.name,
                action=one.action,
                assumption=one.assumption,
                pipeline=one.pipeline,
            )
    elif TimeClass.LOAD in bound:
        yield _Trial(
            id="load-ahead",
            limiter=str(TimeClass.LOAD),
            name="load ahead",
            action="Load the next batch in another process while this one computes.",
            assumption="there is a core to spare for it, and it keeps up.",
            change=Change(what="load", factor=0.0),
        )
    if bound & {TimeClass.EXCHANGE, TimeClass.MESSAGES, TimeClass.SLOWED}:
        part = TimeClass.MESSAGES if strategy.dp == 1 else TimeClass.EXCHANGE
        yield from _in_communication(part, strategy, problem)
    if TimeClass.BUBBLE in bound or strategy.pp > 1:
        yield from _in_the_pipeline(strategy, problem)
    yield from _for_any(strategy, problem)


def _in_communication(part: TimeClass, strategy: Strategy, problem: Problem) -> Iterator[_Trial]:
    methods = [method for method in METHODS if is_priced(method, problem.table, problem.cluster)]
    if part is TimeClass.EXCHANGE and may_be_compressed(strategy) and methods:
        for method in methods:
            factor = samples_factor(method, problem.pins)
            yield _Trial(
                id="compress-gradients",
                limiter=str(part),
                name="16-bit communication" if method.method == "bf16" else f"PowerSGD of rank {method.rank}",
                action=f"Send gradients as {method.name}: --compression {method.option}.",
                assumption="training tolerates the loss."
                if factor == 1.0
                else f"training needs {factor:g} times the samples.",
                strategy=replace(strategy, compression=method),
            )
    elif strategy.compression is None:
        yield _Trial(
            id="16-bit-messages",
            limiter=str(part),
            name="16-bit communication",
            action="Send gradients and activations as bf16.",
            assumption="converting takes no time, and training tolerates the rounding.",
            change=Change(what="wire", factor=0.5),
        )
    if strategy.dp == 1:
        return
    yield _Trial(
        id="accumulate",
        limiter=str(part),
        name="exchange every other pass",
        action="Add up the gradients of two passes before they are exchanged: twice the global batch.",
        assumption="twice the batch needs no more epochs.",
        strategy=replace(strategy, microbatches=2 * strategy.microbatches),
        batch_ratio=2,
    )
    for nbytes in bucket_sizes(problem.graph, execution=strategy.execution):
        if nbytes != strategy.bucket_bytes:
            yield _Trial(
                id="bucket-size",
                limiter=str(part),
                name=f"buckets of {format_bytes(nbytes).replace('.0', '')}",
                action=f"Exchange gradients in buckets of {format_bytes(nbytes)}.",
                assumption="nothing more.",
                strategy=replace(strategy, bucket_bytes=nbytes),
            )


def _in_the_pipeline(strategy: Strategy, problem: Problem) -> Iterator[_Trial]:
    share = problem.batch // (strategy.dp * strategy.microbatches)
    if share % 2 == 0:
        yield _Trial(
            id="more-microbatches",
            limiter=str(TimeClass.BUBBLE),
            name=f"{2 * strategy.microbatches} microbatches",
            action="Split the batch into twice as many microbatches, so that the pipeline fills sooner.",
            assumption="nothing more.",
            strategy=replace(strategy, microbatches=2 * strategy.microbatches),
        )
    yield _Trial(
        id="longer-pipeline-step",
        limiter=str(TimeClass.BUBBLE),
        name="a batch of twice the microbatches",
        action="Train with twice the global batch in twice as many microbatches: fill and drain once for both.",
        assumption="twice the batch needs no more epochs.",
        strategy=replace(strategy, microbatches=2 * strategy.microbatches),
        batch_ratio=2,
    )
    if not strategy.parts:
        yield _Trial(
            id="other-schedule",
            limiter=str(TimeClass.BUBBLE),
            name="the other schedule",
            action="Run the other order of forwards and backwards.",
            assumption="nothing more.",
            strategy=replace(strategy, schedule="gpipe" if strategy.schedule == "1f1b" else "1f1b", chunks=1),
        )


def _for_any(strategy: Strategy, problem: Problem) -> Iterator[_Trial]:
    yield _Trial(
        id="larger-batch",
        limiter="compute",
        name="twice the batch",
        action="Train with twice the global batch: costs that do not grow with the batch are paid half as often.",
        assumption="twice the batch needs no more epochs.",
        strategy=strategy,
        batch_ratio=2,
    )
    if strategy.execution == "eager" and is_compiled_known(problem):
        yield _Trial(
            id="compile",
            limiter="compute",
            name="compile",
            action="Run the segments through torch.compile.",
            assumption="compiling itself is paid for by a long run.",
            strategy=replace(strategy, execution="compiled"),
        )


def _try(trial: _Trial, chosen: Candidate, problem: Problem) -> Candidate | None:
    if trial.change is not None:
        return reassess(chosen, changed(problem, trial.change))
    if trial.pipeline is not None:
        return changed_loading(chosen, problem, trial.pipeline)
    larger = replace(problem, batch=problem.batch * trial.batch_ratio)
    try:
        after = assess(trial.strategy or chosen.strategy, larger)
    except (InfeasibleError, InputError):
        return None
    return None if lack_of_memory(after.peak_bytes, larger) else after


def _basis(trial: _Trial, before: Candidate, after: Candidate) -> str:
    what = "a step" if before.epoch_s is None else "an epoch"
    figures = f"{format_seconds(before.time_s)} {what} becomes {format_seconds(after.time_s)}"
    if trial.batch_ratio != 1 and before.epoch_s is None:
        figures += f" for {trial.batch_ratio} times the samples"
    if after.samples_factor != before.samples_factor:
        figures += f", and training needs {after.samples_factor / before.samples_factor:.3g} times the samples"
    return figures + "."
