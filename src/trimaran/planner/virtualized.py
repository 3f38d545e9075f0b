"""Whole networks that memory alone stands against, made to fit by offloading and recomputing (`virtual.py`)."""

import dataclasses

from trimaran.errors import InfeasibleError
from trimaran.planner.candidates import Candidate
from trimaran.planner.problem import Problem, assess_cut
from trimaran.planner.space import Rejection


def may_be_virtualized(rejection: Rejection) -> bool:
    """Whether only memory stands against a strategy that a memory budget can be put on.

    Args:
        rejection: of the strategy
    """
    strategy = rejection.strategy
    whole = strategy.pp == 1 and strategy.tp == 1 and strategy.zero == 0 and not strategy.shards
    plain = strategy.execution == "eager" and strategy.memory_bytes is None and strategy.sync == "all-reduce"
    return whole and plain and rejection.cause == "memory"


def virtualized(problem: Problem, rejected: list[Rejection]) -> list[Candidate]:
    """What fits with a memory plan, of what does not fit without.

    Args:
        problem: with the traces of steps
        rejected: what does not fit; what cannot be made to is added
    """
    found: list[Candidate] = []
    if "memory" in problem.pins.forbid:
        return []
    for plain in [rejection.strategy for rejection in rejected if may_be_virtualized(rejection)]:
        if problem.batch // (plain.dp * plain.microbatches) not in problem.traces:
            continue
        memory_bytes = min(device.memory_bytes for device in problem.cluster.devices[: plain.devices])
        strategy = dataclasses.replace(plain, memory_bytes=memory_bytes)
        try:
            found.append(assess_cut(strategy, problem))
        except InfeasibleError as error:
            rejected.append(Rejection(strategy=strategy, cause="memory", reason=error.message))
    return found
