"""From contenders and a curve to a choice, and to the document that programs read."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises
from tests.unit.planner.target.estimates import contender
from tests.unit.planning.target.curves import digits_curve

from trimaran.base.errors import InfeasibleError
from trimaran.jobs.resolve import resolve
from trimaran.machine.prices import parse_price
from trimaran.planner.target_estimates import Contender, estimate, find_stop
from trimaran.planning.answer.documents import outlook_document, with_outlook
from trimaran.planning.requests import TargetRequest, parse_request, parse_target
from trimaran.planning.target import (
    Known,
    batches_to_try,
    conclude,
    find_job_curve,
    goal_of,
    planned_training,
    training_at,
)
from trimaran.report.plans import target_verdict

BATCHES = (32, 64, 128, 256, 512)


def known_from(path: Path, **changes: object) -> Known:
    request = builders.target_request(curve=str(digits_curve(path, **changes)))  # type: ignore[arg-type]  # what the test says
    return find_job_curve(resolve("digits"), "digits", request, samples=1437)


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return known_from(tmp_path / "curve.toml")


def contenders() -> list[Contender]:
    """Two devices are 1.8 times one; a step takes 1 ms and 0.1 ms a sample of a device."""
    return [
        contender(devices=devices, batch=batch, step_ms=(1 + 0.1 * batch / devices) * (1.1 if devices > 1 else 1.0))
        for batch in BATCHES
        for devices in (1, 2)
    ]


def test_the_figures_of_the_chosen_one_are_those_of_the_curve_and_the_step(known: Known) -> None:
    """Time = step × steps of an epoch × epochs, whatever is chosen; the cost is that of its devices."""
    outlook = conclude(contenders(), asked="time", known=known, request=builders.target_request(), batches=BATCHES)
    document = json.loads(json.dumps(outlook_document(outlook)))
    batch = document["global_batch_size"]
    assert document["steps_per_epoch"] == pytest.approx(1437 / batch)
    step_s = outlook.chosen.contender.step_time_s
    time_s = step_s * document["steps_per_epoch"] * document["epochs_to_converge"]
    assert document["time_to_accuracy_s"] == pytest.approx(time_s)
    assert document["cost"] == pytest.approx(document["devices"] * time_s / 3600)
    assert document["cost_unit"] == "device-hours"
    low, high = document["time_to_accuracy_interval_s"]
    assert low < document["time_to_accuracy_s"] < high
    assert document["local_batch_size"] == batch // document["devices"]
    assert {(row["global_batch_size"], row["devices"]) for row in document["candidates"]} == {
        (batch, devices) for batch in BATCHES for devices in (1, 2)
    }


def test_time_and_throughput_choose_different_batches(known: Known) -> None:
    some, request = contenders(), builders.target_request()
    time = conclude(some, asked="time", known=known, request=request, batches=BATCHES)
    throughput = conclude(some, asked="throughput", known=known, request=request, batches=BATCHES)
    cost = conclude(some, asked="cost", known=known, request=request, batches=BATCHES)
    assert throughput.chosen.global_batch == 512
    assert time.chosen.global_batch < 512
    assert (time.chosen.devices, cost.chosen.devices) == (2, 1)
    assert time.front[-1].devices == 1


def test_a_price_makes_the_cost_money(known: Known) -> None:
    request = builders.target_request(price=parse_price("36 EUR/node-hour"))
    outlook = conclude(contenders(), asked="cost", known=known, request=request, batches=BATCHES, node_devices=2)
    assert outlook.chosen.cost_unit == "EUR"
    # A node of two is paid whole, so the faster one is also the cheaper one: 36 an hour are 0.01 a second.
    assert outlook.chosen.devices == 2
    assert outlook.chosen.cost == pytest.approx(0.01 * (outlook.chosen.time_s or 0.0))


def test_without_a_curve_throughput_is_made_best_and_said() -> None:
    outlook = conclude(
        contenders(), asked="time", known=Known(curve=None), request=builders.target_request(), batches=BATCHES
    )
    document = outlook_document(outlook)
    assert (document["objective"], document["asked"]) == ("throughput", "time")
    assert document["time_to_accuracy_s"] is document["cost"] is document["epochs_to_converge"] is None
    assert document["curve"] is None
    assert any("the plan is for throughput" in warning for warning in outlook.warnings)


def test_a_curve_of_another_task_is_refused(tmp_path: Path) -> None:
    with raises("curve.other-job", job="digits"):
        known_from(tmp_path / "curve.toml", network="vgg16")


def test_a_curve_that_names_no_network_is_taken_with_a_warning(tmp_path: Path) -> None:
    known = known_from(tmp_path / "curve.toml", network="")
    assert any("names no network" in warning for warning in known.warnings)


def test_a_curve_without_a_rule_is_told_where_the_batch_changes(tmp_path: Path) -> None:
    known = known_from(tmp_path / "curve.toml", recipe=False)
    large = [contender(batch=256)]
    outlook = conclude(large, asked="time", known=known, request=builders.target_request(), batches=(256,))
    assert any("does not say how the learning rate followed" in warning for warning in outlook.warnings)
    own = [contender(batch=64)]
    outlook = conclude(own, asked="time", known=known, request=builders.target_request(), batches=(64,))
    assert not any("learning rate" in warning for warning in outlook.warnings)


def test_a_batch_beyond_the_curve_is_told_and_wider(known: Known) -> None:
    far = conclude(
        [contender(batch=4096, spread=1.01)],
        asked="time",
        known=known,
        request=builders.target_request(),
        batches=(4096,),
    )
    near = conclude(
        [contender(batch=128, spread=1.01)],
        asked="time",
        known=known,
        request=builders.target_request(),
        batches=(128,),
    )
    assert any("8 times the largest measured one" in warning for warning in far.warnings)

    def width(interval: tuple[float, float] | None) -> float:
        return 0.0 if interval is None else interval[1] / interval[0]

    assert width(far.chosen.time_interval_s) > width(near.chosen.time_interval_s)


def test_an_open_interval_is_null_in_every_document(known: Known) -> None:
    """A curve that says no upper end: the time has none either, and neither has the plan file."""
    certain = conclude(contenders(), asked="time", known=known, request=builders.target_request(), batches=BATCHES)
    training = certain.chosen.training
    assert training is not None
    assert training.epochs is not None
    open_end = dataclasses.replace(
        training,
        updates=dataclasses.replace(training.updates, high=math.inf),
        epochs=dataclasses.replace(training.epochs, high=math.inf),
    )
    chosen = estimate(certain.chosen.contender, open_end)
    outlook = dataclasses.replace(
        certain, chosen=chosen, estimates=(chosen,), stop=find_stop([chosen, estimate(contender(devices=4), open_end)])
    )
    document = outlook_document(outlook)
    assert json.loads(json.dumps(document, allow_nan=False))["time_to_accuracy_interval_s"][1] is None
    assert " to ?)" in target_verdict(with_outlook({"chosen": {}}, outlook))
    planned = planned_training(outlook)
    assert planned is not None
    assert planned.epochs_interval is planned.time_interval_s is None


def test_batches_are_those_of_the_user_then_of_the_curve_then_of_the_job(known: Known) -> None:
    def tried(known: Known, request: TargetRequest, *, fixed: bool = False, devices: int = 2) -> tuple[int, ...]:
        return batches_to_try(64, known, request, devices=devices, fixed=fixed)

    assert tried(known, parse_target(batches="64..256")) == (64, 128, 256)
    assert tried(known, builders.target_request()) == (32, 64, 128, 256, 512)
    assert tried(known, builders.target_request(), fixed=True) == (64,)
    assert tried(Known(curve=None), builders.target_request()) == (64,)
    assert tried(known, builders.target_request(), devices=6) == (32, 64, 66, 126, 128, 256, 258, 510, 512)


def test_a_single_point_gives_its_own_batch(tmp_path: Path) -> None:
    known = known_from(tmp_path / "curve.toml", batches=(128,))
    assert batches_to_try(64, known, builders.target_request(), devices=2, fixed=False) == (128,)
    assert any("one point only" in warning for warning in known.warnings)


def test_the_last_small_batch_may_be_left_out(known: Known) -> None:
    """1,437 samples: 11 whole batches of 128 and 29 samples, which count as 0.23 of a step or not at all."""
    whole, cut = training_at(known, 128), training_at(dataclasses.replace(known, drop_last=True), 128)
    assert whole is not None
    assert cut is not None
    assert whole.steps_per_epoch == pytest.approx(11.2266, abs=1e-4)
    assert cut.steps_per_epoch == 11.0


def test_a_limit_that_leaves_nothing_is_an_error(known: Known) -> None:
    with raises("accuracy.nothing-fits", InfeasibleError, match=r"\b8\b"):
        conclude(
            contenders(),
            asked="time",
            known=known,
            request=builders.target_request(most_local_batch=8),
            batches=BATCHES,
        )


def test_the_time_of_an_epoch_compares_no_batches() -> None:
    with raises("accuracy.epoch-objective", match="--objective"):
        goal_of("epoch", builders.target_request())


def test_who_gives_a_curve_wants_the_time_to_the_target() -> None:
    assert goal_of(None, builders.target_request(curve="resnet50")) == "time"
    assert goal_of(None, builders.target_request(batches=(64, 128))) == "throughput"
    assert goal_of("cost", builders.target_request(curve="resnet50")) == "cost"


@pytest.mark.parametrize(
    ("options", "code", "figures"),
    [
        ({"batches": "64..32"}, "scaling.range-backwards", {}),
        ({"batches": "many"}, "scaling.bad-batches", {}),
        ({"price": "cheap"}, "price.malformed", {}),
        ({"least_saved": 1.5}, "accuracy.bad-least-saved", {"match": "--least-saved"}),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        parse_target(**options)  # type: ignore[arg-type]  # some of them wrong


def test_a_batch_that_is_fixed_is_not_chosen() -> None:
    with raises("accuracy.batch-and-batches", match=r"--batch \b64\b"):
        parse_request(batch=64, target=parse_target(batches="64"))


@pytest.mark.parametrize(
    "asked", [{"samples_per_epoch": 1000}, {"least_saved": 0.2}, {"curve": "mine"}, {"batches": "64"}]
)
def test_whatever_is_said_of_a_target_is_asked(asked: dict[str, object]) -> None:
    assert parse_target(**asked).is_asked  # type: ignore[arg-type]  # what a person may say
    assert not parse_target().is_asked
