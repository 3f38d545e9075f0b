"""Result of a search: the choice, the alternatives, and the lower bound on any strategy.

Baselines that people run without a plan, listed with every plan: each by its role, or the reason why there is none.

one device               the network as it is
data parallelism         plain replicas on all devices (DDP)
compiled                 the same through torch.compile; on a CPU it is tried only where the training is long
sharded (FSDP2)          the same with parameters, gradients and state sharded
smaller local batch      replicas that add up the gradients of two microbatches, or of the fewest that fit
rule of thumb            on all devices, the least model parallelism that fits, by its best order
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from trimaran.base.units import format_bytes, format_seconds
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import (
    Option,
    is_plain,
    is_reference,
    may_be_as_fast,
    pareto_front,
    rule_of_choice,
    simplicity,
)
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.problem import Problem, assess_split, effect_of_memory
from trimaran.planner.space import Rejection, enumerate_strategies
from trimaran.planner.trials import Trials
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.memory import EXACTNESS
from trimaran.program.strategy import Strategy

One = TypeVar("One", bound=Option)
"""Candidates of a search: simulated strategies, or strategies that the analytical model priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(Generic[One]):
    """A baseline that people run without a plan.

    Attributes:
        role: its kind
        candidate: with its costs; None: it cannot be run
        reason: why not
    """

    role: str
    candidate: One | None
    reason: str = ""


def baselines_of(
    problem: Problem, candidates: Sequence[Candidate], rejected: Sequence[Rejection]
) -> tuple[Baseline[Candidate], ...]:
    """The baselines of a problem, from the simulated strategies.

    Args:
        problem: says how many devices there are
        candidates: all that were simulated and fit
        rejected: the others
    """
    devices = problem.devices
    roles: list[tuple[str, Callable[[Strategy], bool]]] = [
        ("one device", lambda one: one == Strategy()),
        ("data parallelism", lambda one: is_plain(one) and one.dp == devices and one.execution == "eager"),
        ("compiled data parallelism", lambda one: is_plain(one) and one.dp == devices and one.execution == "compiled"),
        ("sharded (FSDP2)", lambda one: one.zero == 3 and is_reference(one, devices=devices)),
        (
            "smaller local batch",
            lambda one: one.microbatches > 1 and one.dp == devices and is_plain(replace(one, microbatches=1)),
        ),
    ]
    if devices == 1:
        roles = roles[:1]
    found = [_baseline(role, holds, problem, candidates, rejected) for role, holds in roles]
    thumb = rule_of_thumb(candidates, devices=devices)
    if devices > 1:
        reason = "" if thumb else f"nothing that is spread evenly over all {devices} devices fits"
        found.append(Baseline(role="rule of thumb", candidate=thumb, reason=reason))
    return tuple(found)


def baseline_of(candidates: Sequence[Candidate]) -> Candidate:
    """Plain data parallelism on as many devices as fit; else replicas in any way; else whatever there is.

    Args:
        candidates: that fit, at least one
    """
    plain = [candidate for candidate in candidates if is_plain(candidate.strategy)]
    replicas = [candidate for candidate in candidates if candidate.strategy.pp == candidate.strategy.tp == 1]
    return min(
        plain or replicas or candidates,
        key=lambda candidate: (-candidate.strategy.dp, simplicity(candidate.strategy)),
    )


def unpinned_references(problem: Problem, trials: Trials) -> tuple[list[Candidate], list[Rejection]]:
    """Baselines that violate a pin, and the objections to the others.

    Args:
        problem: with its pins
        trials: by which it is simulated
    """
    if problem.pins == NO_PINS:
        return [], []
    free = replace(problem, pins=NO_PINS)
    strategies, lacking = enumerate_strategies(
        problem.graph, devices=problem.devices, batch=problem.batch, executions=problem.executions
    )
    found: list[Candidate] = []
    for strategy in strategies:
        if problem.pins.objection(strategy) and is_reference(strategy, devices=problem.devices):
            result = trials.try_out(strategy, free)
            if isinstance(result, Rejection):
                lacking.append(result)
            else:
                found.append(result)
    return found, lacking


def rule_of_thumb(candidates: Sequence[Candidate], *, devices: int) -> Candidate | None:
    """The least model parallelism that fits on all devices; of equal degrees sharded operations before stages.

    Replicas add up the gradients of as few microbatches as fit.

    Args:
        candidates: that fit
        devices: that there are
    """
    usual = [candidate for candidate in candidates if _is_usual(candidate.strategy, devices)]

    def key(candidate: Candidate) -> tuple[float, ...]:
        strategy = candidate.strategy
        parts = strategy.microbatches if strategy.pp == 1 else 1
        return (strategy.pp * strategy.tp, strategy.pp, parts, candidate.objective_s, *simplicity(strategy))

    return min(usual, key=key, default=None)


def _is_usual(strategy: Strategy, devices: int) -> bool:
    """Whether the rule of thumb knows a strategy: replicas, 1F1B and sharded operations on all devices."""
    plain = not strategy.parts and strategy.zero == 0 and strategy.sync == "all-reduce" and strategy.chunks == 1
    ordered = strategy.pp == 1 or strategy.schedule == "1f1b"
    whole = strategy.tp > 1 or not strategy.shards
    default = strategy.bucket_bytes == DEFAULT_BUCKET_BYTES and strategy.memory_bytes is None
    default = default and strategy.compression is None
    return strategy.devices == devices and plain and ordered and whole and default


def _baseline(
    role: str,
    holds: Callable[[Strategy], bool],
    problem: Problem,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
) -> Baseline[Candidate]:
    members = [candidate for candidate in candidates if holds(candidate.strategy)]
    if members:
        fewest = min(members, key=lambda one: (one.strategy.microbatches, one.objective_s))
        return Baseline(role=role, candidate=fewest)
    reasons = [entry.reason for entry in rejected if holds(entry.strategy)]
    return Baseline(role=role, candidate=None, reason=reasons[0] if reasons else _why_missing(role, problem))


def _why_missing(role: str, problem: Problem) -> str:
    if role.startswith("compiled"):
        if problem.cluster.machine.node.device.kind == "cpu":
            return "on a CPU compiling takes tens of seconds in each run; --execution compiled tries it"
        return "compiled segments were not priced"
    return "there is no such strategy for this job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Generic[One]):
    """Result of a search, by simulation or by the analytical model.

    Attributes:
        candidates: those that were priced, fit and violate no pin, best first; of the analytical model the chosen
            one, the next ones of other degrees, and the simplest that may be as fast
        chosen: the one to run
        baseline: plain data parallelism on all devices, or the nearest strategy to it
        rejected: strategies that were not simulated or do not fit, where they are kept one by one
        references: baselines without a plan, as far as they fit: plain data parallelism, one device, data
            parallelism with a smaller local batch or with sharded state; the baseline is among them. Where a pin is
            against one, it is here and not among the candidates
        pareto: those of the candidates that no other one beats in the time of a step, the largest peak of memory and
            the number of devices
        baselines: by role, with the reason where one cannot be run
        counts: number of rejected strategies that are not kept one by one, by reason
        priced: how many fit, where not all of them are kept
        bound_s: lower bound on all strategies that violate no pin; 0: there is none [s]
        seconds: that the search took [s]
        is_complete: its time did not run out
        feeding: why ranks are fed as they are; empty where it was not asked
        against: objection to all strategies faster than the chosen one, such as the time limit; empty: none
        on_all: the best on all devices, where the chosen one may leave some idle; None: nothing there fits, or it
            was not asked
    """

    candidates: tuple[One, ...]
    chosen: One
    baseline: One
    rejected: tuple[Rejection, ...] = ()
    references: tuple[One, ...] = ()
    pareto: tuple[One, ...] = ()
    baselines: tuple[Baseline[One], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    priced: int = 0
    bound_s: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    is_complete: bool = True
    feeding: tuple[str, ...] = ()
    against: str = ""
    on_all: One | None = None

    @property
    def gap(self) -> float | None:
        """How much longer the fastest takes than anything takes at least, as a share of the latter; None: not known."""
        if self.bound_s <= 0 and not self.is_complete:
            return None
        best_s = min(one.objective_s for one in self.candidates)
        return max(0.0, best_s / self.bound_s - 1.0) if self.bound_s > 0 else 0.0

    def rule(self, *, goal: str = "") -> str:
        """The rule that chose the plan over listed faster ones; empty where there are none.

        Args:
            goal: objective over all batches; empty: the step
        """
        return rule_of_choice(self.chosen, self.candidates, references=self.references, against=self.against, goal=goal)

    @property
    def simplest(self) -> One:
        """The simplest of the candidates that may be as fast as the fastest; it may be the chosen one itself."""
        best = min((self.chosen, *self.candidates), key=lambda one: one.objective_s)

        def order(one: One) -> tuple[tuple[int, ...], float]:
            return simplicity(one.strategy), one.objective_s

        # Ends of what is known of a step take two simulations each.
        simpler = sorted((one for one in self.candidates if order(one) < order(self.chosen)), key=order)
        return next((one for one in simpler if may_be_as_fast(one.cases, best.cases)), self.chosen)

    @property
    def rejected_counts(self) -> dict[str, int]:
        """How many were rejected, by cause or by reason."""
        return dict(Counter(str(entry.cause) for entry in self.rejected)) | dict(self.counts)


def simulated_search(
    problem: Problem,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
    *,
    chosen: Candidate,
    unpinned: tuple[Sequence[Candidate], Sequence[Rejection]] = ((), ()),
    bound_s: float,
    seconds: float,
    is_complete: bool,
) -> Search[Candidate]:
    """Result of a search by simulation.

    Args:
        problem: that was searched
        candidates: that were simulated and fit
        rejected: the others
        chosen: one of the candidates
        unpinned: as `unpinned_references` gives them
        bound_s: lower bound on all strategies that violate no pin [s]
        seconds: that the search took [s]
        is_complete: its time did not run out
    """
    ordered = sorted(candidates, key=lambda one: (one.objective_s, simplicity(one.strategy)))
    known = [*ordered, *unpinned[0]]
    baseline, baselines = baseline_of(known), baselines_of(problem, known, [*rejected, *unpinned[1]])
    shown = {id(baseline), *(id(one.candidate) for one in baselines)}
    return Search(
        candidates=tuple(ordered),
        chosen=chosen,
        baseline=baseline,
        rejected=tuple(sorted(rejected, key=lambda one: simplicity(one.strategy))),
        references=tuple(
            one for one in known if id(one) in shown or is_reference(one.strategy, devices=problem.devices)
        ),
        pareto=pareto_front(ordered),
        baselines=baselines,
        bound_s=bound_s,
        seconds=seconds,
        is_complete=is_complete,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Whether it is worth it to compress gradients, with the figures


WHERE_MEASURED = "accuracy may differ, what it did to built-in jobs is in docs/wire.md"


def said_of_compression(found: Search[Candidate], pins: Pins) -> str:
    """Whether a plan compresses gradients and its gain, or why it does not; empty without opt-in.

    Args:
        found: the search
        pins: of it
    """
    if not pins.allows_compression:
        return ""
    known = list({id(one): one for one in (*found.candidates, *found.references)}.values())
    lossy = [one for one in known if one.strategy.compression is not None]
    lossless = [one for one in known if one.strategy.compression is None]
    chosen = found.chosen
    if chosen.strategy.compression is not None:
        parts = [_gain(chosen, lossless), *_assumed(chosen, pins), *_sooner(lossy, chosen)]
        return ". ".join([*parts, f"Some of each gradient comes late or never: {WHERE_MEASURED}"])
    open_ones = [one for one in found.rejected if one.strategy.compression is not None and one.cause == "time"]
    if not lossy and open_ones:
        return (
            "whether compressing gradients is worth it is not known: the time of the search ended before "
            f"{open_ones[0].strategy.name} was simulated. Give it more time"
        )
    if not lossy:
        ruled_out = [entry.reason for entry in found.rejected if entry.strategy.compression is not None]
        why = f": {ruled_out[0]}" if ruled_out else ""
        return f"compressing gradients is not worth it{why}"
    best = min(lossy, key=lambda one: one.objective_s)
    said = f"compressing gradients is not worth it: {_against(best, chosen)}"
    # Between it and the chosen one there may be a third that both may be as fast as.
    if best.objective_s < chosen.objective_s and may_be_as_fast(chosen.cases, best.cases):
        said += ", within the uncertainty"
    if open_ones:
        said += f"; {len(open_ones)} more that compress were not simulated in time"
    return ". ".join([said, *_assumed(best, pins), *_sooner(lossy, chosen)])


def said_of_codec(problem: Problem, chosen: Candidate) -> str:
    """What the codec that memory plans may use is worth in a plan; empty where there is none.

    Args:
        problem: that the plan was made for, with the traces of its steps
        chosen: the plan
    """
    codec = chosen.strategy.codec or problem.pins.codec_choice
    if codec is None:
        return ""
    effects = effect_of_memory(chosen.strategy, problem) or {}
    if not any(one.offloaded_bytes for one in effects.values()):
        return f"codec {codec.text}: this plan offloads nothing, so nothing is coded"
    coded = sum(one.coded_bytes for one in effects.values())
    if not coded:
        return f"codec {codec.text} codes nothing: plans with plain copies are as fast"
    plain = assess_split(replace(chosen.strategy, codec=None), problem)
    offloaded = sum(one.offloaded_bytes for one in effects.values())
    return (
        f"codec {codec.text} ({EXACTNESS[codec.name]}; taken to leave {1 / codec.ratio:.0%} of the bytes) codes "
        f"{format_bytes(coded)} of {format_bytes(offloaded)} that go to the host: {_against(chosen, plain)}"
    )


def _gain(chosen: Candidate, lossless: list[Candidate]) -> str:
    compression = chosen.strategy.compression
    name = "" if compression is None else compression.name
    if not lossless:
        return f"gradients are sent as {name}"
    best = min(lossless, key=lambda one: one.objective_s)
    return f"gradients are sent as {name}: {_against(chosen, best)}"


def _against(one: Candidate, other: Candidate) -> str:
    """Two plans with their times; where one needs more samples, to the target too."""
    what = "a step" if one.epoch_s is None else "an epoch"
    text = (
        f"{one.strategy.name} takes {format_seconds(one.time_s)} {what}, {other.strategy.name} "
        f"{format_seconds(other.time_s)} ({_change(one.time_s, other.time_s)})"
    )
    if one.samples_factor == other.samples_factor:
        return text
    return (
        f"{text}; {_change(one.objective_s, other.objective_s)} to the target, "
        f"with {one.samples_factor:g} times the samples"
    )


def _change(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s - 1.0 if other_s else 0.0:+.0%}"


def _assumed(candidate: Candidate, pins: Pins) -> list[str]:
    """Where a factor on samples comes from; nothing where there is none."""
    if pins.powersgd_samples is not None or candidate.samples_factor == 1.0:
        return []
    return ["That factor is assumed, as on built-in jobs: give your own as --powersgd-samples"]


def _sooner(lossy: list[Candidate], chosen: Candidate) -> list[str]:
    """How few samples would make a shorter step the better one; nothing where none of those that need more has one."""
    quick = [one for one in lossy if one.samples_factor > chosen.samples_factor and one.time_s < chosen.time_s]
    if not quick:
        return []
    best = min(quick, key=lambda one: one.objective_s)
    return [
        f"With less than {chosen.objective_s / best.time_s:.2f} times the samples {best.strategy.name} would be sooner "
        f"at the target, at {format_seconds(best.time_s)}"
    ]
