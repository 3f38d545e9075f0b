"""Plans for a target on machines that are not here."""

import json
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises

from trimaran.planner.choice import MODEL_ERROR
from trimaran.planner.search import search
from trimaran.planner.target_estimates import Stop
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.evidence import Modelled, Outlook, Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.estimated_problem import machine_problem
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import NO_TARGET, parse_target
from trimaran.program.plan_file import read_plan, write_plan
from trimaran.report.plans import outlook_lines, target_verdict

TABLE = """global_batch,epochs,samples_per_epoch
256,3.0,60000
1024,3.3,60000
4096,5.0,60000
16384,12.0,60000
"""


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("curves") / "lenet.csv"
    path.write_text(TABLE)
    return str(path)


def plan_lenet(curve: str | None, *, cluster: str = "dgx1-v100", devices: int = 4, **more: object) -> Planned:
    request = builders.cluster_request(
        cluster=cluster,
        devices=devices,
        objective=more.pop("objective", "time"),  # type: ignore[arg-type]  # what the test says
        target=parse_target(curve=curve, **more),  # type: ignore[arg-type]
    )
    found = make_plan("lenet", request)
    assert isinstance(found.evidence, Simulated)
    return found


def outlook_of(plan: Planned) -> Outlook:
    assert plan.outlook is not None
    return plan.outlook


@pytest.fixture(scope="module")
def planned(curve: str) -> Planned:
    return plan_lenet(curve, batches="1024,4096")


def test_the_choice_is_that_of_whole_searches_at_each_batch(planned: Planned) -> None:
    """Nothing at any batch, on up to 4 devices, reaches the target faster by more than the model's error."""
    outlook = outlook_of(planned)
    best = min(one.time_s or 0.0 for one in outlook.estimates)
    for batch in outlook.batches:
        problem = machine_problem("lenet", builders.cluster_request(cluster="dgx1-v100", devices=4, batch=batch))
        fastest = min(one.step_time_s for one in search(problem).candidates)
        (updates,) = {
            one.training.updates.amount for one in outlook.estimates if one.global_batch == batch and one.training
        }
        assert best <= fastest * updates * (1.0 + MODEL_ERROR)


def test_the_document_has_every_key_and_reads_as_json(planned: Planned) -> None:
    document = json.loads(json.dumps(plan_document(planned), allow_nan=False))
    for name in ("epochs_to_converge", "steps_per_epoch", "time_to_accuracy", "cost"):
        key = f"{name}_s" if name == "time_to_accuracy" else name
        interval = f"{name}_interval_s" if name == "time_to_accuracy" else f"{name}_interval"
        low, high = document[interval]
        assert low <= document[key] <= high
        assert document["chosen"][key] == document[key]
    assert document["objective"] == "time"
    assert document["local_batch_size"] * document["chosen"]["degrees"]["dp"] == document["global_batch_size"]
    assert {(row["global_batch_size"], row["devices"]) for row in document["candidates"]} >= {
        (batch, devices) for batch in (1024, 4096) for devices in (1, 2, 4)
    }
    assert document["front"]
    assert "to the target" in target_verdict(document)


def test_a_plan_file_has_the_batch_and_the_training(planned: Planned, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", planned.evidence.whole_plan)
    plan = read_plan(tmp_path / "plan.json")
    assert plan.objective == "time"
    assert plan.premises.global_batch_size == outlook_of(planned).chosen.global_batch
    assert plan.training is not None
    assert plan.training.time_s == pytest.approx(outlook_of(planned).chosen.time_s)


def test_every_count_that_divides_a_batch_is_compared(planned: Planned) -> None:
    """On three devices replicas have no equal shares of a power of two; what spreads one network may be there."""
    stop = outlook_of(planned).stop
    assert isinstance(stop, Stop)
    assert {1, 2, 4} <= set(stop.counts) <= {1, 2, 3, 4}


def test_without_a_curve_it_is_the_plan_for_throughput() -> None:
    asked = plan_lenet(None)
    plain = make_plan("lenet", builders.cluster_request(cluster="dgx1-v100", devices=4))
    assert isinstance(plain.evidence, Simulated)
    document = plan_document(asked)
    assert (document["objective"], document["asked"]) == ("throughput", "time")
    assert document["time_to_accuracy_s"] is None
    assert document["chosen"]["strategy"] == plan_document(plain)["chosen"]["strategy"]
    assert any("the plan is for throughput" in note for note in document["notes"])
    assert plain.outlook is None
    assert "asked" not in plan_document(plain)


def test_a_curve_of_another_network_is_refused() -> None:
    with raises("curve.other-job", job="lenet"):
        plan_lenet("resnet50")


def test_an_epoch_that_nobody_knows_the_samples_of_is_an_error_that_says_how(tmp_path: Path) -> None:
    """A published network has no data of its own."""
    path = tmp_path / "short.csv"
    path.write_text("global_batch,epochs\n256,3.0\n1024,3.3\n")
    with raises("curve.epoch-length-unknown", match="--samples-per-epoch"):
        plan_lenet(str(path), batches="256")
    found = outlook_of(plan_lenet(str(path), batches="256", samples_per_epoch=2560))
    assert found.chosen.training is not None
    assert found.chosen.training.steps_per_epoch == pytest.approx(10.0)


def test_a_price_of_the_cluster_file_makes_the_cost_money(curve: str, tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text(
        '[[nodes]]\nname = "box"\nlike = "pcie-4"\ndevice = "v100-pcie"\nsource = "ours"\nprice = "7.2 EUR/node-hour"\n'
    )
    found = outlook_of(plan_lenet(curve, cluster=str(path), batches="1024", objective="cost"))
    assert found.chosen.cost_unit == "EUR"
    assert found.chosen.cost == pytest.approx((found.chosen.time_s or 0.0) * 7.2 / 3600)


def test_most_local_batch_holds(curve: str) -> None:
    found = outlook_of(plan_lenet(curve, batches="1024", most_local_batch=300))
    assert all(one.contender.local_batch <= 300 for one in found.estimates)


def test_the_analytical_model_takes_batches_too() -> None:
    request = builders.cluster_request(
        cluster="hgx-h100:16",
        devices=128,
        objective="throughput",
        target=builders.target_request(batches=(128, 256)),
        time_limit_s=1.0,
    )
    found = make_plan("llama2:13b", request)
    assert isinstance(found.evidence, Modelled)
    document = json.loads(json.dumps(plan_document(found), allow_nan=False))
    assert document["batches"] == [128, 256]
    assert {row["global_batch_size"] for row in document["candidates"]} == {128, 256}
    assert document["chosen"]["global_batch_size"] in (128, 256)
    assert document["devices"] in (16, 32, 64, 128)
    assert outlook_lines(document)
    assert request.target != NO_TARGET
