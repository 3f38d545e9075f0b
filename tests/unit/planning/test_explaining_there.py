"""Explaining, on a machine that is not here, the plan of a file."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, InfeasibleError, TrimaranError
from trimaran.planner.explanation.what_if import changed, parse_change
from trimaran.planner.pins import pins_of_strategy
from trimaran.planner.problem import assess
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.explained import Explained
from trimaran.planning.answer.results import Planned
from trimaran.planning.explanation import explain_plan
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import PlanRequest
from trimaran.program.plan_file import read_plan, write_plan

HERE = builders.cluster_request(cluster="dgx1-v100")
"""Neither devices nor a batch are said: they are the plan's."""


@pytest.fixture(scope="module")
def stages() -> Planned:
    """Two stages, which are not the best plan: replicas are."""
    asked = builders.cluster_request(
        cluster="dgx1-v100", devices=2, batch=4096, pins=builders.pins(pp=2, schedule="gpipe")
    )
    found = make_plan("lenet", asked)
    assert isinstance(found.evidence, Simulated)
    return found


@pytest.fixture
def path(stages: Planned, tmp_path: Path) -> Path:
    write_plan(tmp_path / "plan.json", stages.evidence.whole_plan)
    return tmp_path / "plan.json"


def by_hand(path: Path) -> None:
    """Make a plan one that nobody decided anything about."""
    plan = read_plan(path)
    write_plan(path, dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, decided=())))


def of_file(path: Path, request: PlanRequest) -> Explained:
    return explain_plan("lenet", request, path=path, why_not=["dp2"], what_if=["link=x2"])


def test_the_plan_of_the_file_is_explained_and_not_a_new_one(stages: Planned, path: Path) -> None:
    by_hand(path)
    found = of_file(path, HERE)
    chosen = found.explanation.chosen.candidate
    assert chosen.strategy == stages.chosen.strategy == found.planned.simulated.plan.strategy
    assert chosen.step_time_s == pytest.approx(stages.chosen.step_time_s)
    assert sum(found.explanation.chosen.parts.values()) == pytest.approx(chosen.step_time_s)
    assert found.found.chosen.strategy.dp == 2
    assert found.notes[-1].endswith(f"{found.found.chosen.strategy.name} would be chosen")
    contrast = found.explanation.contrasts[0]
    assert contrast.other is not None
    assert contrast.other.candidate.step_time_s < chosen.step_time_s
    kept = found.explanation.outcomes[0].kept
    assert kept is not None
    assert kept.strategy.pp == 2


def test_links_between_each_two_devices_have_a_latency_that_may_change(stages: Planned) -> None:
    """Devices of the catalog have not: what joins them says what a transfer takes."""
    times = [
        assess(
            stages.chosen.strategy, changed(stages.simulated.problem, parse_change(f"link=pcie3x16{more}"))
        ).step_time_s
        for more in ("", ",latency=x0.5")
    ]
    assert times[0] > times[1]
    with raises("what-if.measured-only", what_if="latency=x0.5"):
        changed(stages.simulated.problem, parse_change("latency=x0.5"))


def test_by_other_costs_than_those_it_was_made_by_it_is_said_so(stages: Planned, path: Path) -> None:
    assert not any("other costs" in note for note in of_file(path, HERE).notes)
    notes = of_file(path, dataclasses.replace(HERE, cluster="dgx-a100")).notes
    assert any("other costs than those of dgx-a100 in fp32" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "code", "figures"),
    [
        ({"batch": 2048}, "plan.outdated", {"match": r"\b4096\b.*\b2048\b"}),
        ({"devices": 4}, "plan.outdated", {"match": r"\b2\b.*\b4\b"}),
        ({"cluster": "dgx9"}, "machine.unknown", {}),
        ({"target": builders.target_request(curve="resnet50")}, "explain.curve-and-plan", {}),
    ],
)
def test_what_is_not_as_the_plan_has_it_is_refused(
    change: dict[str, object], code: str, figures: dict[str, Any], path: Path
) -> None:
    with raises(code, **figures):
        of_file(path, dataclasses.replace(HERE, **change))  # type: ignore[arg-type]


def test_a_plan_that_does_not_fit_the_machine_is_refused(path: Path) -> None:
    with raises("explain.plan-does-not-fit", InfeasibleError, match=r"dgx1-v100.*\b0\b"):
        of_file(path, dataclasses.replace(HERE, memory_bytes=2**20))


def test_a_plan_of_another_job_is_refused(path: Path) -> None:
    plan = read_plan(path)
    write_plan(path, dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, graph_digest="0123")))
    with raises("plan.outdated"):
        of_file(path, HERE)


def test_a_damaged_plan_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace("4096", "4095"))
    with pytest.raises(CorruptDataError):
        of_file(path, HERE)


def test_a_plan_of_degrees_is_explained_where_it_was_planned(tmp_path: Path) -> None:
    asked = builders.cluster_request(cluster="dgx-h100:2", batch=64)
    found = make_plan("llama2:7b", asked)
    write_plan(tmp_path / "plan.json", found.evidence.whole_plan)
    explained = explain_plan("llama2:7b", path=tmp_path / "plan.json", why_not=["fsdp"])
    planned = explained.planned
    assert (planned.request.cluster, planned.devices, planned.global_batch_size) == ("dgx-h100:2", 16, 64)
    assert explained.explanation.is_fresh
    assert explained.explanation.chosen.candidate.strategy == found.chosen.strategy
    assert explained.explanation.chosen.candidate.step_time_s == pytest.approx(found.chosen.step_time_s)
    assert explained.explanation.contrasts[0].other is not None


@pytest.mark.parametrize(
    ("change", "code"),
    [({"batch": 128}, "plan.outdated"), ({"devices": 8}, "plan.outdated"), ({"memory_bytes": 2**34}, "explain.plan-")],
)
def test_a_plan_of_degrees_is_not_explained_for_what_it_is_not_for(
    change: dict[str, Any], code: str, tmp_path: Path
) -> None:
    """At twice the batch it told of the same step and twice the tokens/s, and on 8 devices of a plan for 16."""
    asked = builders.cluster_request(cluster="dgx-h100:2", batch=64)
    write_plan(tmp_path / "plan.json", make_plan("llama2:7b", asked).evidence.whole_plan)
    with pytest.raises(TrimaranError) as refused:
        explain_plan("llama2:7b", builders.cluster_request(cluster="dgx-h100:2", **change), path=tmp_path / "plan.json")
    assert str(refused.value.code).startswith(code)


def test_other_degrees_than_a_search_would_choose_are_explained_too(tmp_path: Path) -> None:
    asked = builders.cluster_request(cluster="dgx-h100:2", batch=64, pins=builders.pins(pp=8))
    write_plan(tmp_path / "plan.json", make_plan("llama2:7b", asked).evidence.whole_plan)
    kept = explain_plan("llama2:7b", path=tmp_path / "plan.json")
    assert kept.explanation.is_fresh
    assert [paid.pin for paid in kept.explanation.prices] == ["--pp 8"]
    by_hand(tmp_path / "plan.json")
    explained = explain_plan("llama2:7b", path=tmp_path / "plan.json")
    assert explained.explanation.chosen.candidate.strategy.pp == 8
    assert not explained.explanation.is_fresh
    assert explained.explanation.alternatives[0].slower < 0.0
    assert any("would be chosen" in note for note in explained.notes)


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ("devices=32", {"cluster": "dgx-h100:4"}),
        ("memory=40GiB", {"memory_bytes": 40 << 30}),
        ("network=x1", {}),
    ],
)
def test_a_changed_machine_has_the_plan_that_is_made_for_it(change: str, other: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"cluster": "dgx-h100:2", "batch": 64}
    outcome = explain_plan("llama2:7b", builders.cluster_request(**asked), what_if=[change]).explanation.outcomes[0]
    there = make_plan("llama2:7b", builders.cluster_request(**asked | other)).chosen
    assert outcome.best is not None
    assert outcome.best.strategy == there.strategy
    assert outcome.best.step_time_s == pytest.approx(there.step_time_s, rel=1e-9)


def test_changes_of_the_machine_shorten_their_parts_of_a_step() -> None:
    """A pipeline across two nodes: its sends alone are faster on a faster network."""
    pins = pins_of_strategy("dp2 pp2 1f1b tp4 zero1 m8 mb4")
    request = builders.cluster_request(cluster="dgx-h100:2", batch=64, pins=pins)
    explained = explain_plan("llama2:7b", request, what_if=["network=x2", "compute=x2", "link=x2", "wire=x0.5"])
    before = explained.planned.modelled.chosen.step
    after = {one.change.text: one.kept.step for one in explained.explanation.outcomes}  # type: ignore[union-attr]
    network, compute = after["network=x2"], after["compute=x2"]
    assert 0.5 * before.send_s < network.send_s < 0.7 * before.send_s
    assert (network.compute_s, network.tensor_s) == (before.compute_s, before.tensor_s)
    assert 0.5 * before.compute_s < compute.compute_s < 0.6 * before.compute_s
    assert (compute.send_s, compute.tensor_s) == (before.send_s, before.tensor_s)
    assert after["link=x2"].tensor_s < 0.6 * before.tensor_s
    assert after["link=x2"] == after["wire=x0.5"]


@pytest.mark.parametrize("change", ["link=10Gb/s", "load=0"])
def test_changes_that_the_analytical_model_does_not_know_are_refused(change: str) -> None:
    with raises("what-if.not-analytical", match="network=x2", what_if=change):
        explain_plan("llama2:7b", builders.cluster_request(cluster="dgx-h100:2"), what_if=[change])


def test_one_node_has_no_network_to_change() -> None:
    with raises("what-if.one-node", what_if="network=x2"):
        explain_plan("llama2:7b", builders.cluster_request(cluster="dgx-h100"), what_if=["network=x2"])
