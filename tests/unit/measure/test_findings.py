import dataclasses

import pytest
from tests import builders
from tests.builders import HERE, exact, network

from trimaran.graph.types import Affine
from trimaran.measure.findings import Findings, ListKey, Rounds, Timed, assemble
from trimaran.measure.wanted import WholeRun

GRAPH = network(2)
RUN = WholeRun(form="graph", execution="eager", batch=8)


def _rounds(seconds: float) -> dict[Timed, Rounds]:
    found: dict[Timed, Rounds] = {}
    for op in GRAPH.ops:
        found[Timed(op.content, 8, "forward")] = [[seconds], [seconds]]
        found[Timed(op.content, 8, "backward")] = [[2 * seconds], [2 * seconds]]
    for phase, times in (("forward", 3.0), ("backward", 6.0), ("evaluation", 2.0)):
        found[Timed(RUN, 8, phase)] = [[times * seconds]]
    return found


def _step(seconds: float) -> dict[Timed, Rounds]:
    return {
        Timed(ListKey(4, 400), 0, "update"): [[seconds]],
        Timed(ListKey(4, 400), 0, "clip"): [[seconds / 2]],
        Timed(RUN, 8, "load"): [[seconds]],
        **_rounds(seconds),
    }


def test_the_ranks_are_measured_together() -> None:
    """One rank took 1 s, the other 3 s an operation: 2 s, between 1 and 3."""
    table = assemble(
        [Findings(rounds=_rounds(1.0)), Findings(rounds=_rounds(3.0))], None, GRAPH, job="job", fingerprint=HERE
    )
    cost = table.operations[builders.operation_key("content of op0")][8]
    assert (cost.forward.seconds, cost.forward.low, cost.forward.high) == (2.0, 1.0, 3.0)
    assert cost.backward.seconds == 4.0
    assert table.wholes[builders.whole_key(GRAPH.digest, "graph")][8].evaluation.seconds == 4.0
    assert cost.forward.source == "measured: 2 ranks busy"


def test_a_replica_waits_for_the_slowest() -> None:
    """Forwards of 3 s and 4 s, backwards of 6 s and 2 s: together 9 s. That is 6 s and 5 s after the forwards."""
    run = WholeRun(form="replicated", execution="eager", batch=8)

    def findings(forward: float, backward: float) -> Findings:
        times = {"forward": forward, "backward": backward, "evaluation": 1.0}
        return Findings(rounds={Timed(run, 8, phase): [[seconds]] for phase, seconds in times.items()})

    table = assemble([findings(3.0, 6.0), findings(4.0, 2.0)], None, GRAPH, job="job", fingerprint=HERE)
    whole = table.wholes[builders.whole_key(GRAPH.digest, "replicated")][8]
    assert (whole.forward.seconds, whole.backward.seconds) == (3.5, 5.5)


def test_an_operation_that_no_pass_met_costs_nothing_and_says_so() -> None:
    rounds = _rounds(1.0)
    for phase in ("forward", "backward"):
        del rounds[Timed("content of op1", 8, phase)]
    table = assemble([Findings(rounds=rounds)], None, GRAPH, job="job", fingerprint=HERE)
    cost = table.operations[builders.operation_key("content of op1")][8].forward
    assert (cost.seconds, cost.source) == (0.0, "assumed: not run by itself")


def test_where_no_pass_went_through_the_whole_is_shared_out_by_work() -> None:
    """op1 does three times the work of op0, the loss none: a forward of 3 s becomes 0.75 s and 2.25 s."""
    works = {"op0": 1.0, "op1": 3.0, "loss": 0.0}
    ops = tuple(dataclasses.replace(op, flops=Affine(0.0, works[op.id])) for op in GRAPH.ops)
    graph = dataclasses.replace(GRAPH, ops=ops)
    wholes = {timed: times for timed, times in _rounds(1.0).items() if timed.what == RUN}
    found = Findings(rounds=wholes, passes=(8,))
    operations = assemble([found], None, graph, job="job", fingerprint=HERE).operations
    forward = {key.content: points[8].forward for key, points in operations.items()}
    assert [forward[op.content].seconds for op in graph.ops] == pytest.approx([0.75, 2.25, 0.0])
    assert forward["content of op1"].source.startswith("analytic")


def test_operations_that_are_known_are_not_shared_out_again() -> None:
    """Another form of a network is run as a whole; its operations were measured before."""
    wholes = {timed: times for timed, times in _rounds(1.0).items() if timed.what == RUN}
    table = assemble([Findings(rounds=wholes)], None, GRAPH, job="job", fingerprint=HERE)
    assert (table.operations, len(table.wholes)) == ({}, 1)


def test_update_clipping_and_loading_are_kept_under_the_job() -> None:
    findings = [Findings(rounds=_step(seconds), state_bytes_per_byte=1.0) for seconds in (1.0, 3.0)]
    step = assemble(findings, None, GRAPH, job="job", fingerprint=HERE).steps["job"]
    assert step.update.at(tensors=4, nbytes=400).seconds == pytest.approx(2.0)
    assert step.clip.at(tensors=4, nbytes=400).seconds == pytest.approx(1.0)
    assert (step.load[8].seconds, step.state_bytes_per_byte) == (2.0, 1.0)


def test_new_loads_join_a_step_that_is_known() -> None:
    fit = builders.tensor_fit(fixed_s=1.0, source="measured")
    known = builders.step_costs(update=fit, clip=fit, load={4: exact(0.5)}, state_bytes_per_byte=2.0)
    step = assemble([Findings(rounds=_step(1.0))], known, GRAPH, job="job", fingerprint=HERE).steps["job"]
    assert (sorted(step.load), step.update, step.state_bytes_per_byte) == ([4, 8], fit, 2.0)


def test_links_alone_make_a_table_without_a_job() -> None:
    key = builders.curve_key("AR", 2)
    found = Findings(curves={key: ((16, exact(1.0)),)}, interference={"AR": builders.interference(compute=1.5)})
    table = assemble([found, found], None, GRAPH, job="job", fingerprint=HERE)
    assert (list(table.curves), table.steps, table.wholes) == ([key], {}, {})
    assert table.interference["AR"].compute == 1.5
    assert not any(table.operations.values())
