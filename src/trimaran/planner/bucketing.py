"""More sizes of buckets for the replicas that wait for their gradients.

A bucket that is small leaves early and pays a latency; one that is large pays few of them, and the last one leaves
when the backward has ended. The space of a search has the default, two smaller sizes and the whole. Where a step waits
for its gradients the best size may lie between: then all powers of two are simulated, for the best strategy of each
compression. A strategy could gain what it waits at most, so it is left alone where that is less than its distance to
the fastest.

The order of buckets is that in which their gradients become complete: another one would let a complete bucket wait.
"""

from collections.abc import Iterable
from dataclasses import replace

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import MODEL_ERROR, fastest
from trimaran.planner.compressing import unfaithfulness
from trimaran.planner.hunt import Hunt
from trimaran.planner.space import Rejection, bucket_ladder
from trimaran.program import Kind, Strategy

MOST_REFINED = 3
"""Strategies whose buckets are searched, each with another compression or none."""

_COMPUTED = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
_FOLLOWS = frozenset({Kind.CLIP, Kind.UPDATE})


def refine_buckets(hunt: Hunt, ruled_out: Iterable[Strategy] = ()) -> None:
    """Simulate more sizes of buckets of the best replicas, where that may matter; what fits becomes a candidate.

    Args:
        hunt: whose fastest is known
        ruled_out: what its bounds leave out
    """
    known = [*(one.strategy for one in hunt.candidates), *(one.strategy for one in hunt.rejected), *ruled_out]
    tried = {replace(strategy, device_order=()) for strategy in known}
    for start in _worth_refining(hunt.candidates):
        for size in bucket_ladder(hunt.problem.graph, execution=start.strategy.execution):
            strategy = replace(start.strategy, bucket_bytes=size)
            if replace(strategy, device_order=()) in tried or hunt.is_over:
                continue
            found = hunt.trials.try_out(strategy, hunt.problem)
            if not isinstance(found, Rejection):
                hunt.candidates.append(found)


def exposed_s(candidate: Candidate) -> float:
    """How long the first rank stands still between its last backward and its update [s].

    Args:
        candidate: of replicas
    """
    kinds = {item.id: item.kind for item in candidate.program.ranks[0]}
    backward_s, update_s = 0.0, float("inf")
    for span in candidate.timeline.select(rank=0):
        kind = kinds[span.instruction]
        if kind in _COMPUTED:
            backward_s = max(backward_s, span.end_s)
        elif kind in _FOLLOWS:
            update_s = min(update_s, span.start_s)
    return max(0.0, update_s - backward_s) if update_s < float("inf") else 0.0


def _worth_refining(candidates: list[Candidate]) -> list[Candidate]:
    """The best replicas of each compression whose exposed exchange is more than the distance to the fastest."""
    if not candidates:
        return []
    best_s = fastest(candidates).worth_s
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: one.objective_s):
        if _has_buckets(candidate.strategy):
            best.setdefault(unfaithfulness(candidate.strategy.compression), candidate)
    worth = [
        candidate
        for candidate in best.values()
        if exposed_s(candidate) * candidate.samples_factor
        > max(MODEL_ERROR * candidate.worth_s, candidate.worth_s - best_s)
    ]
    return worth[:MOST_REFINED]


def _has_buckets(strategy: Strategy) -> bool:
    whole = strategy.pp == 1 and strategy.tp == 1 and not strategy.shards
    return strategy.dp > 1 and whole and not strategy.zero and strategy.sync != "p2p"
