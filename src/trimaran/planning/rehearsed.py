"""A plan next to the rehearsal of its export: memory and step by parts.

    part          of the plan                          of the rehearsal
    parameters    and those that are whole for a while parameters and what is gathered or exchanged
    gradients     their buffer                         gradients
    optimizer     copies and moments                   state of the optimizer
    activations   kept, logits, what backward makes    activations, inputs, what comes and goes
    libraries     workspaces, NCCL's buffers,          what has no name, segments that are not allocated, NCCL's
                  fragments                            buffers

Both count without the driver's context. A plan that was simulated from a graph has a total alone.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimaran.base.units import format_bytes, format_seconds
from trimaran.planner.analytical.candidates import AnalyticalCandidate
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.answer.results import Planned
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import Strategy
from trimaran.rehearsal.time import StepTime
from trimaran.report.rehearsal import Rehearsal, RehearsedRank, Verdict

_PURPOSES: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameter", "communication"),
    "gradients": ("gradient",),
    "optimizer": ("optimizer",),
    "activations": ("activation", "input", "temporary"),
    "libraries": ("other",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A neighbour of a plan that was rehearsed, because the plan's export runs out of memory.

    Attributes:
        change: what is other than in the plan, in words
        strategy: its name
        verdict: of its rehearsal
        rehearsed_bytes: of the rank that needs most, without the driver's context [bytes]
        rehearsed_s: step [s]; None: no step could be timed
    """

    change: str
    strategy: str
    verdict: Verdict
    rehearsed_bytes: int
    rehearsed_s: float | None

    @property
    def line(self) -> str:
        """The verdict in a line."""
        step = "" if self.rehearsed_s is None else f", {format_seconds(self.rehearsed_s)} a step"
        memory = f"{format_bytes(self.rehearsed_bytes)} a rank"
        return f"with {self.change} ({self.strategy}), rehearsed: {self.verdict}, {memory}{step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRehearsed:
    """What a rehearsal says of a plan.

    Attributes:
        target: that the plan was exported to
        rehearsal: of the export
        planned_bytes: of the rank that needs most, as the plan shows it [bytes]
        rehearsed_bytes: of the rehearsed rank that needs most, without the driver's context [bytes]
        planned_parts: of the usual need of the plan [bytes]; empty where the plan has a total alone
        rehearsed_parts: of what is rehearsed [bytes]
        planned_s: step of the plan [s]
        planned_interval_s: its 90 % interval [s]
        rehearsed_s: step of the rehearsal [s]; None: no step could be timed
        kernels_s: that take most of it, by name [s]
        tried: neighbours of a plan that runs out of memory, up to the first that fits
    """

    target: str
    rehearsal: Rehearsal
    planned_bytes: int
    rehearsed_bytes: int
    planned_parts: Mapping[str, int]
    rehearsed_parts: Mapping[str, int]
    planned_s: float
    planned_interval_s: tuple[float, float]
    rehearsed_s: float | None
    kernels_s: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[Tried, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in a line."""
        found = self.rehearsal
        if found.verdict in ("failed", "disagree", "hang", "not trained"):
            return f"rehearsed by {self.target}: {found.headline}"
        memory = f"{format_bytes(self.rehearsed_bytes)} a rank against {format_bytes(self.planned_bytes)} planned"
        said = {
            "fits": "fits; calls of ranks agree",
            "not sure": "not sure that it fits",
            "out of memory": "out of memory",
        }
        step = ""
        if self.rehearsed_s is not None:
            step = f"{format_seconds(self.rehearsed_s)} a step against {format_seconds(self.planned_s)}; "
        return f"rehearsed by {self.target}: {memory}; {step}{said[found.verdict]}"

    @property
    def why(self) -> tuple[str, ...]:
        """What keeps it from fitting, and what was tried in its place, one sentence each."""
        told = [trouble.text for trouble in self.rehearsal.troubles if trouble.text not in self.line]
        return (*told, *(one.line for one in self.tried))


def compare_with_plan(
    planned: Planned, target: str, rehearsal: Rehearsal, step: StepTime | None = None
) -> PlanRehearsed:
    """A plan next to the rehearsal of its export.

    Args:
        planned: the plan
        target: that it was exported to
        rehearsal: of the export
        step: that its time is of, where one could be timed
    """
    chosen = planned.chosen
    context = planned.machine.node.device.memory.context_bytes
    # Where a device is short, the allocator gives back what is reserved and free.
    room = rehearsal.memory_bytes - context if rehearsal.verdict != "out of memory" else sys.maxsize
    needs = {one.rank: min(room, one.reserved_bytes + _buffers(one, rehearsal, context)) for one in rehearsal.ranks}
    largest = max(rehearsal.ranks, key=lambda one: needs[one.rank], default=None)
    evidence = planned.evidence
    return PlanRehearsed(
        target=target,
        rehearsal=rehearsal,
        planned_bytes=max(chosen.peak_bytes, default=0),
        rehearsed_bytes=max(needs.values(), default=0),
        planned_parts=planned_parts(evidence.chosen) if isinstance(evidence, Modelled) else {},
        rehearsed_parts={} if largest is None else _rehearsed_parts(largest, needs[largest.rank]),
        planned_s=chosen.step_time_s,
        planned_interval_s=chosen.interval_s,
        rehearsed_s=None if rehearsal.step is None else rehearsal.step.seconds,
        kernels_s={} if step is None else {share.name: share.seconds for share in step.kernels},
    )


def neighbours(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Strategies of the same degrees that need less memory, each with what is other in words, what costs least first.

    Args:
        strategy: that needs too much

    Example:
        >>> from trimaran.program.strategy import Strategy
        >>> for words, one in neighbours(Strategy(dp=8, zero=2, microbatch=2)):
        ...     print(words, "|", one.zero, one.microbatch, sorted(one.recomputed))
        parameters sharded too | 3 2 []
        microbatches half as large | 2 1 []
        whole layers recomputed | 2 2 ['layers']
        all of it | 3 1 ['layers']
    """
    changes: dict[str, dict[str, Any]] = {}
    if strategy.dp > 1 and strategy.pp == 1 and strategy.zero < 3:
        changes["parameters sharded too"] = {"zero": 3}
    elif strategy.dp > 1 and strategy.zero == 0:
        changes["the optimizer's state sharded"] = {"zero": 1}
    if strategy.microbatch % 2 == 0:
        halves = {"microbatch": strategy.microbatch // 2, "microbatches": strategy.microbatches * 2}
        changes["microbatches half as large"] = halves
    if "layers" not in strategy.recomputed or strategy.recompute_layers is not None:
        again = {"recomputed": frozenset({"layers"}), "recompute_layers": None}
        changes["whole layers recomputed"] = again
    for words, change in changes.items():
        yield words, replace(strategy, **change)
    if len(changes) > 1:
        yield "all of it", replace(strategy, **{name: value for one in changes.values() for name, value in one.items()})


def tried_neighbour(change: str, strategy: Strategy, found: PlanRehearsed) -> Tried:
    """What the rehearsal of a neighbour says.

    Args:
        change: what is other than in the plan, in words
        strategy: of the neighbour
        found: its rehearsal
    """
    return Tried(
        change=change,
        strategy=strategy.name,
        verdict=found.rehearsal.verdict,
        rehearsed_bytes=found.rehearsed_bytes,
        rehearsed_s=found.rehearsed_s,
    )


def planned_parts(chosen: AnalyticalCandidate) -> dict[str, int]:
    """Memory of the rank that needs most by parts, with the usual buffers and fragments [bytes].

    Args:
        chosen: a strategy that the analytical model priced
    """
    memory = chosen.memory
    known = memory.peak - memory.buffers - memory.fragments - memory.workspace
    return {
        "parameters": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations + memory.transient,
        "libraries": chosen.need.usual - known,
    }


def _buffers(rank: RehearsedRank, rehearsal: Rehearsal, context_bytes: int) -> int:
    """NCCL's buffers of a rank: what its device has neither for the allocator nor for the driver's context [bytes]."""
    return rehearsal.memory_bytes - context_bytes - rank.room_bytes


def _rehearsed_parts(rank: RehearsedRank, needs: int) -> dict[str, int]:
    """What a rehearsed rank needs, under the names of a plan's parts [bytes]."""
    found = {
        name: sum(rank.parts_bytes.get(purpose, 0) for purpose in purposes) for name, purposes in _PURPOSES.items()
    }
    return found | {"libraries": needs - sum(found.values()) + found["libraries"]}


def rehearsed_document(found: PlanRehearsed) -> dict[str, object]:
    """A plan next to its rehearsal as JSON data: times in seconds, sizes in bytes."""
    plain: dict[str, object] = to_plain(found)
    return {"line": found.line, "verdict": found.rehearsal.verdict} | plain
