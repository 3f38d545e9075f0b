"""What a plan was made for, beside what there is: its kind of device, and their memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises
from typer.testing import CliRunner

from trimaran.base.errors import InfeasibleError
from trimaran.cli import app
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import find_device
from trimaran.planning.answer.results import Planned
from trimaran.planning.estimated import on_its_machine
from trimaran.planning.loaded_plans import _check_kind, _memory_to_use
from trimaran.planning.plan import make_plan, obtain_plan
from trimaran.program.plan_file import Plan, read_plan, write_plan

HERE = builders.cluster(memory_bytes=1000)


def plan_for(devices: tuple[str, ...], memory_bytes: tuple[int, ...] = ()) -> Plan:
    return builders.plan(
        job="digits",
        strategy=builders.strategy(dp=2),
        premises=builders.premises(graph_digest="", global_batch_size=24, devices=devices, memory_bytes=memory_bytes),
        prediction=builders.prediction(step_time_s=0.0),
    )


@pytest.mark.parametrize(
    ("then", "usable"),
    [((600, 1400), [600, 1000]), ((), [1000, 1000]), ((2000, 2000), [1000, 1000])],
)
def test_no_more_memory_is_used_than_was_planned_with(then: tuple[int, ...], usable: list[int]) -> None:
    """1,000 bytes are here: the smaller of then and now counts; a plan that says nothing takes what is here."""
    assert _memory_to_use(plan_for(("core", "core"), then), HERE, builders.plan_request()) == usable


def test_memory_that_the_user_names_counts_before_that_of_the_plan() -> None:
    """The cluster has it already (`local_cluster`): the plan's 600 bytes are not looked at."""
    plan = plan_for(("core", "core"), (600, 600))
    assert _memory_to_use(plan, HERE, builders.plan_request(memory_bytes=1000)) == [1000, 1000]


def test_memory_of_another_number_of_devices_is_refused() -> None:
    with raises("plan.wrong-budget-count", match=r"memory_bytes.*'digits'.*\b1\b.*\b2\b"):
        _memory_to_use(plan_for(("core", "core"), (600,)), HERE, builders.plan_request())


def test_a_plan_for_gpus_of_the_catalog_is_refused_where_there_are_none() -> None:
    title = find_device("v100").title
    with raises("plan.other-device", match=r"\b2\b", device=title):
        _check_kind(plan_for((title, title)), HERE)


def test_a_plan_for_gpus_is_used_where_there_are_some() -> None:
    title = find_device("v100").title
    _check_kind(plan_for((title, title)), builders.cluster(kind="cuda", memory_bytes=1000))


def test_a_plan_for_cores_is_used_on_cores() -> None:
    _check_kind(plan_for(("another core", "another core")), HERE)


def made_there(path: Path, **more: Any) -> Planned:
    planned = make_plan("lenet", builders.cluster_request(cluster="dgx1-v100", devices=2, batch=4096, **more))
    write_plan(path, planned.evidence.whole_plan)
    return planned


def test_a_plan_for_a_target_cluster_is_simulated_there(tmp_path: Path) -> None:
    """The file says its machine, so nobody needs to."""
    path = tmp_path / "plan.json"
    planned = made_there(path, pins=builders.pins(dp=2))
    plan = read_plan(path)
    assert plan.premises.cluster == "dgx1-v100"
    request = on_its_machine(plan, builders.plan_request())
    assert request.cluster == "dgx1-v100"
    again = obtain_plan(JobSource(reference=plan.job), request, path=path)
    assert again.chosen.step_time_s == pytest.approx(planned.chosen.step_time_s, rel=1e-9)
    assert again.simulated.chosen.timeline.makespan_s > 0.0
    assert len(again.simulated.chosen.program.ranks) == 2


def test_a_plan_is_simulated_on_another_machine_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned = made_there(path, pins=builders.pins(dp=2))
    request = builders.cluster_request(cluster="dgx-a100", devices=2)
    again = obtain_plan(JobSource(reference="lenet"), request, path=path)
    assert again.chosen.step_time_s < planned.chosen.step_time_s
    assert any("other costs" in note and "dgx-a100" in note for note in again.notes)


def test_a_plan_that_does_not_fit_the_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made_there(path, pins=builders.pins(dp=2))
    request = builders.cluster_request(cluster="dgx1-v100", devices=2, memory_bytes=2**20)
    with raises("explain.plan-does-not-fit", InfeasibleError):
        obtain_plan(JobSource(reference="lenet"), request, path=path)


def test_simulate_takes_a_plan_for_a_target_cluster(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned = made_there(path, pins=builders.pins(dp=2))
    result = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["step_time_s"] == pytest.approx(planned.chosen.step_time_s, rel=1e-9)
    assert document["rank"] == [0, 1]


def test_a_strategy_of_many_replicas_is_simulated_as_its_plan_file_is(tmp_path: Path) -> None:
    """One replica is simulated and stands for all sixteen; a file has all of them."""
    path, words = tmp_path / "plan.json", ["lenet", "--cluster", "dgx1-v100:2", "--batch", "4096"]
    planned = make_plan("lenet", builders.cluster_request(cluster="dgx1-v100:2", batch=4096, pins=builders.pins(dp=16)))
    write_plan(path, planned.evidence.whole_plan)
    assert len(planned.simulated.chosen.program.ranks) == 1
    answers = []
    for asked in ([str(path)], [*words, "--strategy", planned.chosen.name]):
        result = CliRunner().invoke(app, ["simulate", *asked, "--json"])
        assert result.exit_code == 0, result.output
        answers.append(json.loads(result.stdout))
    for key in ("rank", "busy_s", "wait_s", "bubble_s", "peak_bytes_by_rank"):
        assert len(answers[0][key]) == 16
        assert answers[0][key] == pytest.approx(answers[1][key], rel=1e-6), key


def test_a_strategy_with_workers_is_simulated_with_its_loader() -> None:
    words = [
        "lenet",
        "--cluster",
        "dgx1-v100",
        "--devices",
        "2",
        "--batch",
        "4096",
        "--loader",
        "20000 images/s per worker",
        "--json",
    ]
    planned = json.loads(CliRunner().invoke(app, ["plan", *words]).stdout)["chosen"]
    again = CliRunner().invoke(app, ["simulate", *words, "--strategy", planned["strategy"]])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["step_time_s"] == pytest.approx(planned["step_time_s"], rel=1e-9)


def test_what_the_refusal_of_a_plan_names_is_there() -> None:
    """Both commands that it names take --cluster."""
    title = find_device("v100").title
    with raises("plan.other-device", match="trimaran plan.*trimaran explain.*--cluster"):
        _check_kind(plan_for((title, title)), HERE)
    for command in ("simulate", "explain"):
        assert "--cluster" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
