"""What the ranks found, and one cost table of it all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trimaran.costs.tables import (
    CostTable,
    Curve,
    CurveKey,
    Fingerprint,
    OperationKey,
    StepCosts,
    WholeCost,
    WholeKey,
)
from trimaran.costs.types import Cost, Interference, OpCost
from trimaran.graph.types import Graph
from trimaran.measure.fits import ListKey, fit_rounds
from trimaran.measure.sampled import Sampled, sample_costs
from trimaran.measure.samples import Rounds, pool, summarize
from trimaran.measure.wanted import WholeRun


class Timed(NamedTuple):
    """What a duration is of.

    Attributes:
        what: content of an operation, a run of the whole model, or a list of parameters
        batch: samples; 0 for a list of parameters
        phase: "forward", "backward", "evaluation", "load", "update" or "clip"
    """

    what: str | WholeRun | ListKey
    batch: int
    phase: str


@dataclass(slots=True, kw_only=True)
class Findings:
    """What one rank found.

    Attributes:
        rounds: durations [s]
        state_bytes_per_byte: bytes of optimizer state for a byte of parameter; None where no update was wanted
        curves: transfers by size, the same on every rank
        interference: by kind of transfer, the same on every rank
        sampled: what samples of the data set took; None where that was not wanted
        failed: runs that raised, with what and where; "" where they raised on other ranks only
    """

    rounds: dict[Timed, Rounds] = field(default_factory=dict)
    state_bytes_per_byte: float | None = None
    curves: dict[CurveKey, Curve] = field(default_factory=dict)
    interference: dict[str, Interference] = field(default_factory=dict)
    sampled: Sampled | None = None
    failed: dict[WholeRun, str] = field(default_factory=dict)


def assemble(
    findings: Sequence[Findings], known: StepCosts | None, graph: Graph, *, job: str, fingerprint: Fingerprint
) -> CostTable:
    """One table of what all ranks found.

    Args:
        findings: of each rank
        known: what was known of the job's update and load before
        graph: the job's
        job: digest of the job
        fingerprint: of this machine
    """
    how = f"{fingerprint.ranks} {'rank' if fingerprint.ranks == 1 else 'ranks'} busy"
    rounds = pool(finding.rounds for finding in findings)
    rounds.update(_of_slowest(findings))
    step = _with_samples(_step(rounds, findings[0].state_bytes_per_byte, known, how), known, findings, how)
    return CostTable(
        fingerprint=fingerprint,
        operations=_operations(rounds, graph, how),
        wholes=_wholes(rounds, graph, how),
        steps={} if step is None else {job: step},
        curves=findings[0].curves,
        interference=findings[0].interference,
    )


def _with_samples(
    step: StepCosts | None, known: StepCosts | None, findings: Sequence[Findings], how: str
) -> StepCosts | None:
    """The costs of a step with those of samples: what was measured now counts before what was known."""
    found = [finding.sampled for finding in findings if finding.sampled is not None]
    samples = sample_costs(found, how=how) if found else None if known is None else known.samples
    whole = step or (known if found else None)
    return whole if whole is None or samples is None else replace(whole, samples=samples)


def _of_slowest(findings: Sequence[Findings]) -> dict[Timed, Rounds]:
    """Backwards of replicas, each with the time that the rank waits for the slowest one.

    Replicas meet in every step, and no two take equally long. So the forward and the backward of all together take
    what those of the slowest take; the difference to a rank's own is added to its backward, where replicas meet.
    """
    found: dict[Timed, Rounds] = {}
    for timed in findings[0].rounds:
        if not (isinstance(timed.what, WholeRun) and timed.what.form == "replicated" and timed.phase == "backward"):
            continue
        pairs = [(finding.rounds[timed._replace(phase="forward")], finding.rounds[timed]) for finding in findings]
        for number in range(len(findings[0].rounds[timed])):
            steps = [list(zip(forwards[number], backwards[number], strict=True)) for forwards, backwards in pairs]
            slowest = [max(map(sum, together)) for together in zip(*steps, strict=True)]
            for own in steps:
                found.setdefault(timed, []).append(
                    [total - forward for total, (forward, _) in zip(slowest, own, strict=True)]
                )
    return found


def _operations(rounds: Mapping[Timed, Rounds], graph: Graph, how: str) -> dict[OperationKey, dict[int, OpCost]]:
    sizes = sorted({timed.batch for timed in rounds if isinstance(timed.what, str)})
    operations: dict[OperationKey, dict[int, OpCost]] = {}
    for content in {op.content: None for op in graph.ops}:
        for size in sizes:
            operations.setdefault(OperationKey(content, "eager"), {})[size] = OpCost(
                forward=_duration(rounds, Timed(content, size, "forward"), how),
                backward=_duration(rounds, Timed(content, size, "backward"), how),
            )
    if sizes:
        return operations
    # No pass went through: the whole model's time is shared out by the work that the operations do.
    for run in {timed.what: None for timed in rounds if isinstance(timed.what, WholeRun)}:
        whole = _whole(rounds, run, how)
        weights = {op.content: op.flops.at(run.batch) + op.bytes_moved.at(run.batch) for op in graph.ops}
        total = sum(weights[op.content] for op in graph.ops) or 1.0
        for content, weight in weights.items():
            operations.setdefault(OperationKey(content, "eager"), {})[run.batch] = OpCost(
                forward=replace(whole.forward.scaled(weight / total), source="analytic: share of FLOP and bytes"),
                backward=replace(whole.backward.scaled(weight / total), source="analytic: share of FLOP and bytes"),
            )
    return operations


def _duration(rounds: Mapping[Timed, Rounds], timed: Timed, how: str) -> Cost:
    if timed in rounds:
        return summarize(rounds[timed], how=how)
    # Nothing by itself: the time of the whole model falls to the other operations.
    return Cost(0.0, 0.0, 0.0, "assumed: not run by itself")


def _wholes(rounds: Mapping[Timed, Rounds], graph: Graph, how: str) -> dict[WholeKey, dict[int, WholeCost]]:
    wholes: dict[WholeKey, dict[int, WholeCost]] = {}
    for run in {timed.what: None for timed in rounds if isinstance(timed.what, WholeRun)}:
        wholes.setdefault(WholeKey(graph.digest, run.form, run.execution), {})[run.batch] = _whole(rounds, run, how)
    return wholes


def _whole(rounds: Mapping[Timed, Rounds], run: WholeRun, how: str) -> WholeCost:
    return WholeCost(
        forward=summarize(rounds[Timed(run, run.batch, "forward")], how=how),
        backward=summarize(rounds[Timed(run, run.batch, "backward")], how=how),
        evaluation=summarize(rounds[Timed(run, run.batch, "evaluation")], how=how),
    )


def _step(
    rounds: Mapping[Timed, Rounds], state_bytes_per_byte: float | None, known: StepCosts | None, how: str
) -> StepCosts | None:
    loads: dict[int, Rounds] = {}
    for timed, times in rounds.items():
        if timed.phase == "load":
            loads.setdefault(timed.batch, []).extend(times)
    load = {size: summarize(times, how=how, waits=True) for size, times in loads.items()}
    if state_bytes_per_byte is not None:
        return StepCosts(
            update=fit_rounds(_lists(rounds, "update"), how=how),
            clip=fit_rounds(_lists(rounds, "clip"), how=how),
            load=load,
            state_bytes_per_byte=state_bytes_per_byte,
        )
    return None if known is None or not load else replace(known, load={**known.load, **load})


def _lists(rounds: Mapping[Timed, Rounds], phase: str) -> dict[ListKey, Rounds]:
    return {
        timed.what: times for timed, times in rounds.items() if isinstance(timed.what, ListKey) and timed.phase == phase
    }
