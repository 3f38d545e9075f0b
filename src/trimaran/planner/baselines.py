"""What people do without a plan, always beside one: each by its role, or why there is none.

one device               the network as it is
data parallelism         plain replicas on all devices (DDP)
compiled                 the same through torch.compile; on a CPU it is tried only where the training is long
sharded (FSDP2)          the same with parameters, gradients and state sharded
smaller local batch      replicas that add up the gradients of two microbatches
rule of thumb            on all devices, the least model parallelism that fits, by its best order
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import is_plain, is_reference, simplicity
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem
from trimaran.planner.space import Rejection, enumerate_strategies
from trimaran.planner.trials import Trials
from trimaran.program import Strategy
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What one would do without a plan.

    Attributes:
        role: what it is
        candidate: its simulation; None: it is not to be had
        reason: why not
    """

    role: str
    candidate: Candidate | None
    reason: str = ""


def baselines_of(
    problem: Problem, candidates: Sequence[Candidate], rejected: Sequence[Rejection]
) -> tuple[Baseline, ...]:
    """The baselines of a problem, from what was simulated.

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
        ("smaller local batch", lambda one: one.microbatches == 2 and is_reference(one, devices=devices)),
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
    """What people do without a plan, where a pin is against it; and what stands against the rest.

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

    Args:
        candidates: that fit
        devices: that there are
    """
    usual = [candidate for candidate in candidates if _is_usual(candidate.strategy, devices)]

    def key(candidate: Candidate) -> tuple[float, ...]:
        strategy = candidate.strategy
        return (strategy.pp * strategy.tp, strategy.pp, candidate.objective_s, *simplicity(strategy))

    return min(usual, key=key, default=None)


def _is_usual(strategy: Strategy, devices: int) -> bool:
    """Whether the rule of thumb knows a strategy: replicas, 1F1B and sharded operations on all devices."""
    plain = not strategy.parts and strategy.zero == 0 and strategy.sync == "all-reduce" and strategy.chunks == 1
    ordered = strategy.pp == 1 or strategy.schedule == "1f1b"
    whole = strategy.tp > 1 or not strategy.shards
    default = strategy.bucket_bytes == DEFAULT_BUCKET_BYTES and strategy.memory_bytes is None
    default = default and strategy.compression is None
    once = strategy.pp > 1 or strategy.microbatches == 1
    return strategy.devices == devices and plain and ordered and whole and default and once


def _baseline(
    role: str,
    holds: Callable[[Strategy], bool],
    problem: Problem,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
) -> Baseline:
    members = [candidate for candidate in candidates if holds(candidate.strategy)]
    if members:
        return Baseline(role=role, candidate=min(members, key=lambda one: one.objective_s))
    reasons = [entry.reason for entry in rejected if holds(entry.strategy)]
    return Baseline(role=role, candidate=None, reason=reasons[0] if reasons else _why_missing(role, problem))


def _why_missing(role: str, problem: Problem) -> str:
    if role.startswith("compiled"):
        kind = problem.cluster.devices[0].kind if problem.cluster.devices else "cpu"
        if kind == "cpu":
            return "on a CPU compiling takes tens of seconds in each run; --execution compiled tries it"
        return "compiled segments were not priced"
    return "there is no such strategy for this job"
