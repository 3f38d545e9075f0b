"""The profile of a hand-made job; the figures are those of `tests/builders.py`, in milliseconds."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from tests import builders
from tests.builders import UPDATE_MS, problem

from trimaran.features.diagnose.profile import profile_step, unseen
from trimaran.planner.problem import Problem
from trimaran.report.profile import (
    Profile,
    StepProfile,
    find_spots,
    memory_table,
    overhead_lines,
    profile_document,
    spot_table,
    step_table,
)


def milliseconds(step: StepProfile) -> dict[str, float]:
    return {phase.name: 1e3 * phase.seconds for phase in step.phases if phase.seconds}


def whole(given: Problem) -> Profile:
    spots, overhead = find_spots(given.graph, given.table, batch=4, form="replicated", by="operation")
    return Profile(
        job="chain",
        device="a core",
        ranks=2,
        global_batch_size=8,
        steps=(profile_step(builders.strategy(), given), profile_step(builders.strategy(dp=2), given)),
        by="operation",
        samples=4,
        spots=spots,
        overhead=overhead,
        unseen=unseen(given),
    )


def test_the_phases_of_one_device_are_its_costs() -> None:
    step = profile_step(builders.strategy(), problem())
    assert milliseconds(step) == pytest.approx({"load": 1.0, "FP": 32.0, "BP": 64.0, "WU update": UPDATE_MS})
    assert sum(phase.share for phase in step.phases) == pytest.approx(1.0)
    assert {phase.source for phase in step.phases if phase.seconds} == {"measured: by hand"}


def test_an_exchange_is_exposed_or_hidden() -> None:
    """One bucket is complete with the backward. Of one for each parameter, the two of layer 1 leave before its end."""
    step = profile_step(builders.strategy(dp=2), problem())
    assert milliseconds(step) == pytest.approx(
        {"load": 0.5, "FP": 16.0, "BP": 32.0, "WU update": UPDATE_MS, "WU exchange": 10.0}
    )
    assert step.overlapped_s == pytest.approx(0.0, abs=1e-6)
    assert profile_step(builders.strategy(dp=2, bucket_bytes=1), problem()).overlapped_s == pytest.approx(8e-3)


def test_intervals_are_those_of_the_costs() -> None:
    """The update is known to between half and twice itself."""
    update = next(phase for phase in profile_step(builders.strategy(), problem()).phases if phase.name == "WU update")
    assert (update.low, update.high) == pytest.approx((UPDATE_MS * 0.5e-3, UPDATE_MS * 2e-3))


def test_the_classes_of_memory_sum_to_the_peak() -> None:
    """96 bytes of parameters, as many of gradients and of state; 448 at the peak."""
    memory = profile_step(builders.strategy(), problem()).memory
    assert (memory.parameters, memory.gradients, memory.optimizer_state, memory.buffers) == (96, 96, 96, 0)
    assert memory.activations == 448 - 3 * 96
    assert memory.peak_bytes == 448


def test_what_was_not_run_by_itself_is_said() -> None:
    given = problem()
    operations = {
        key: {
            batch: dataclasses.replace(
                cost, forward=dataclasses.replace(cost.forward, source="assumed: not run by itself")
            )
            for batch, cost in points.items()
        }
        for key, points in given.table.operations.items()
    }
    unknown = dataclasses.replace(given, table=dataclasses.replace(given.table, operations=operations))
    assert unseen(unknown)[0].startswith("operations that do not run by themselves")
    assert not unseen(given)[0].startswith("operations")


def test_a_profile_is_readable_at_80_columns() -> None:
    profile = whole(problem())
    text = io.StringIO()
    out = Console(file=text, width=80)
    out.print(*(step_table(step) for step in profile.steps), memory_table(profile.steps), spot_table(profile, top=2))
    out.print(*overhead_lines(profile.overhead))
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in text.getvalue()
    row = next(line for line in lines if line.startswith("op1"))
    # 4 samples: 8 ms forward, 16 ms backward, of 48 ms in all.
    assert row.split()[1:5] == ["8.00", "16.0", "50.0", "%"]


def test_the_document_has_every_figure_and_is_json() -> None:
    document = json.loads(json.dumps(profile_document(whole(problem()), top=1)))
    assert [step["strategy"] for step in document["steps"]] == ["one device", "dp2"]
    assert document["steps"][0]["memory"]["peak_bytes"] == 448
    assert len(document["spots"]) == 1
    assert document["spots"][0]["forward"]["source"] == "measured: by hand"
    assert document["overhead"]["is_bound_by_small_operations"] is False
