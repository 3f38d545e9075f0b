"""`scale`, `plan` and `explain` on a target cluster with an input pipeline: one step, one limiter."""

import io
import json
from functools import cache
from typing import Any

import pytest
from rich.console import Console
from tests.raising import raises

import trimaran
from trimaran import InputError, Loading, Pins
from trimaran.planner.explanation.critical_path import TimeClass
from trimaran.planner.pins import parse_pins
from trimaran.planning.answer.explained import print_explanation
from trimaran.planning.answer.results import Planned
from trimaran.planning.explanation import explain_plan
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import IN_LINE
from trimaran.report.scaling import ScalingStudy, feeding_lines

JOB, CLUSTER, BATCH = "lenet", "dgx1-v100", 256
READY = Loading()
CORES = Loading(decode="2ms", host_cores=8)
DISK = Loading(disk="10MB/s", sample_size="1kB")
RATE = Loading(loader="20000 images/s")
COPIED = Loading(copies_ahead=0)


@cache
def _scaled(loading: Loading, workers: int | None = None, devices: tuple[int, ...] = (2,)) -> ScalingStudy:
    return trimaran.predict_scaling(
        JOB, cluster=CLUSTER, devices=devices, local_batch=BATCH, loading=loading, workers=workers
    )


@cache
def _planned(loading: Loading, workers: int | None = None) -> Planned:
    pins = Pins(dp=2, pp=1, tp=1, zero=0, microbatches=1, allow=("dp",), workers=workers)
    return trimaran.plan(JOB, cluster=CLUSTER, devices=2, batch=2 * BATCH, pins=pins, loading=loading)


@pytest.mark.parametrize("workers", [None, 1, 4])
@pytest.mark.parametrize("loading", [CORES, Loading(loader="300 images/s per worker"), DISK], ids=str)
def test_a_plan_takes_the_step_that_scaling_predicts(loading: Loading, workers: int | None) -> None:
    """All of these are limited by their data, so the steps are equal whatever the bucket that a plan takes."""
    (row,) = _scaled(loading, workers).rows
    chosen = _planned(loading, workers).simulated.chosen
    assert row.limiter == "input pipeline"
    assert chosen.step_time_s == pytest.approx(row.step_time_s, rel=1e-6)
    assert chosen.limiter.startswith(row.limiter)
    assert row.feeding is not None
    assert chosen.strategy.feeding.workers == row.feeding.workers


@pytest.mark.parametrize("loading", [RATE, CORES, DISK], ids=str)
def test_a_name_that_a_plan_prints_is_read_with_the_same_options(loading: Loading) -> None:
    """A rate of a node refuses `--workers`, which would change nothing; the word of a name says what was planned."""

    def planned(**asked: str) -> Planned:
        return trimaran.plan(JOB, cluster=CLUSTER, devices=2, batch=2 * BATCH, loading=loading, **asked)

    search = planned().simulated.search
    for row in search.candidates if search else ():
        again = planned(strategy=row.strategy.name).chosen
        assert again.step_time_s == pytest.approx(row.step_time_s, rel=1e-9)
        assert again.strategy.feeding == row.strategy.feeding
    with raises("loading.rate-of-node"):
        _planned(RATE, 2)
    with raises("loading.rate-of-node"):
        trimaran.plan(
            JOB, cluster=CLUSTER, devices=2, batch=2 * BATCH, loading=RATE, pins=parse_pins(strategy="dp2", workers=2)
        )


def test_workers_against_a_strategy_of_others_are_refused() -> None:
    with raises("pin.figure-and-strategy"):
        parse_pins(strategy="dp2 w2", workers=4)
    assert parse_pins(strategy="dp2 w2", workers=2).workers == parse_pins(strategy="dp2", workers=2).workers == 2


def test_in_line_loading_adds_as_much_to_both() -> None:
    (row,), (ready,) = _scaled(CORES, 0).rows, _scaled(READY).rows
    fed, plain = _planned(CORES, 0).simulated.chosen, _planned(READY).simulated.chosen
    added_s = row.step_time_s - ready.step_time_s
    assert added_s == pytest.approx(BATCH * 2e-3, rel=0.01)
    assert fed.step_time_s - plain.step_time_s == pytest.approx(added_s, rel=1e-3)


def test_copies_that_do_not_go_ahead_come_on_top_of_both() -> None:
    (row,), (ready,) = _scaled(COPIED).rows, _scaled(READY).rows
    fed, plain = _planned(COPIED).simulated.chosen, _planned(READY).simulated.chosen
    added_s = row.step_time_s - ready.step_time_s
    assert added_s > 0.0
    assert fed.step_time_s - plain.step_time_s == pytest.approx(added_s, rel=1e-3)


def test_without_a_loader_data_are_ready() -> None:
    (row,) = _scaled(READY).rows
    assert (row.feeding_s, row.feeding, _scaled(READY).input_pipeline) == (0.0, None, ())
    assert _planned(READY).simulated.chosen.strategy.feeding == IN_LINE


def test_from_how_many_devices_on_the_input_pipeline_limits() -> None:
    """A node that is handed 20,000 images a second keeps only as many devices busy as take no more."""
    study = _scaled(RATE, devices=(1, 2, 4, 8))
    (limit,) = study.input_pipeline
    assert limit.first is not None
    one = limit.tried[0].wanted_samples_per_s
    assert [tried.devices for tried in limit.tried] == list(range(1, 9))
    assert limit.first.limit == "shared"
    for tried in limit.tried:
        assert (tried.limit is not None) == (tried.wanted_samples_per_s > 20_000.0)
        assert tried.samples_per_s <= 20_000.0 * (1 + 1e-9)
    assert limit.first.wanted_samples_per_s > 20_000.0 > limit.first.devices * one * 0.1
    (line,) = feeding_lines(study)
    assert f"from {limit.first.devices} device" in line
    document: dict[str, Any] = json.loads(json.dumps(to_plain(study)))
    assert document["input_pipeline"][0]["limits_from_devices"] == limit.first.devices


def test_explanations_name_the_input_pipeline_with_its_gain_and_remedies() -> None:
    """Decoding on 8 cores takes 64 ms a device: without it the step is that with data ready, and cores halve it."""
    planned = _planned(CORES)
    explained = explain_plan(planned.source, planned.request)
    chosen = planned.simulated.chosen
    remedies = {one.id: one for one in (*explained.explanation.remedies, *explained.explanation.not_worth_it)}
    assert remedies["more-host-cores"].predicted_gain == pytest.approx(0.5, abs=0.02)
    assert remedies["faster-decoding"].predicted_gain == pytest.approx(0.5, abs=0.02)
    assert remedies["more-workers"].predicted_gain == pytest.approx(0.0, abs=0.02)
    outcome = next(one for one in explained.explanation.outcomes if one.change.what == "load")
    ready_s = _planned(READY).simulated.chosen.step_time_s
    assert outcome.gain == pytest.approx(1.0 - ready_s / chosen.step_time_s, abs=0.01)
    assert explained.explanation.chosen.parts[TimeClass.LOAD] > 0.5 * chosen.step_time_s
    assert any("the input pipeline limits the step by the cores of the host" in note for note in planned.notes)


def test_an_explanation_of_a_fed_plan_is_printed() -> None:
    planned = _planned(CORES)
    out = Console(record=True, width=100, file=io.StringIO())
    print_explanation(out, explain_plan(planned.source, planned.request))
    text = out.export_text()
    assert "Limited by the input pipeline: the step waits " in text
    assert "decode in half the time" in text
    assert "copies of gradients and stragglers" in text


def test_scaling_advises_what_explanations_advise() -> None:
    advice = {one.id: one for one in _scaled(CORES).advice}
    assert advice["more-host-cores"].predicted_gain == pytest.approx(0.5, abs=0.02)
    assert "more-workers" not in advice


def test_every_reference_of_a_fed_plan_is_fed_and_may_be_chosen() -> None:
    planned = trimaran.plan("lenet", cluster=CLUSTER, devices=2, batch=512, loading=CORES)
    found = planned.simulated.search
    assert found is not None
    assert "your options" not in found.rule()
    assert all(one.strategy.feeding.workers for one in (*found.candidates, *found.references, found.baseline))
    assert found.bound_s <= min(one.objective_s for one in found.candidates)


def test_many_batches_are_compared_with_their_data_ready() -> None:
    with pytest.raises(InputError) as caught:
        trimaran.plan(JOB, cluster=CLUSTER, devices=2, objective="time", loading=CORES)
    assert caught.value.code == "loading.and-target"


def test_the_analytical_model_has_no_input_pipeline() -> None:
    with pytest.raises(InputError) as caught:
        trimaran.plan("gpt3:175b", cluster="dgx-a100:32", batch=256, loading=CORES)
    assert caught.value.code == "loading.analytical"
