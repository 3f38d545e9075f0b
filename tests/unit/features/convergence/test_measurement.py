"""From finished runs to points, targets and warnings, by hand."""

import dataclasses
import math
from pathlib import Path

import pytest
from tests import zoo
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, InfeasibleError
from trimaran.convergence.curve import fit_curve
from trimaran.convergence.noise_scale import StepNorms
from trimaran.convergence.types import CurveTable, Point
from trimaran.features.convergence.measure import compare_noise, gather, order_runs, table_of, warnings_of
from trimaran.features.convergence.request import ConvergeRequest, parse_target_value, parse_time_limit
from trimaran.features.convergence.task import (
    MetricTarget,
    Task,
    noise_of,
    prepare_task,
    read_target,
    rule_of_thumb,
    write_target,
)
from trimaran.graph.capture.capture import capture
from trimaran.jobs.learning_rate import Recipe
from trimaran.jobs.resolve import JobSource
from trimaran.measure.convergence.runs import TrainingOutcome, TrainingRun

TARGET = MetricTarget(value=0.9, source="by hand")


@pytest.fixture(scope="module")
def task() -> Task:
    job = zoo.cnn_fp64()
    return Task(
        source=JobSource(reference="mine.py:make"),
        job=job,
        graph=capture(job).graph,
        samples=1000,
        batches=(32, 64, 128),
        recipe=Recipe(rule="linear", base_batch=32),
        rule_source="by hand",
        max_epochs=20.0,
        microbatch=32,
        devices=2,
        folder=Path("nowhere"),
    )


def run(batch: int, seed: int, *, epochs: float, best: float = 0.95, b_crit: float | None = None) -> TrainingRun:
    """Reaches `best` in a line from nothing at epoch 0: 0.9 at 0.9 / best of the epochs."""
    return TrainingRun(
        batch=batch,
        seed=seed,
        end="reached" if best >= TARGET.value else "epochs",
        epochs=epochs,
        samples=round(epochs * 1000),
        updates=10,
        seconds=2.0,
        evaluations=((0.0, 0.0), (epochs, best)),
        noise=None if b_crit is None else {"scaled": False, "b_crit": b_crit if math.isfinite(b_crit) else None},
    )


def keyed(*runs: TrainingRun) -> dict[tuple[int, int], TrainingRun]:
    return {(one.batch, one.seed): one for one in runs}


def test_a_point_is_the_mean_of_the_runs_that_arrived(task: Task) -> None:
    """3.8 epochs to 0.95 are 3.6 to 0.9; 5.7 are 5.4: mean 4.5, deviation 1.8 / √2."""
    runs = keyed(run(32, 0, epochs=3.8), run(32, 1, epochs=5.7), run(32, 2, epochs=20.0, best=0.8))
    measured = gather(task, TARGET, runs, repeats=3)
    (point,) = table_of(task, TARGET, measured).points
    assert point.amount == pytest.approx(4.5)
    assert point.deviation == pytest.approx(1.8 / math.sqrt(2))
    assert (point.runs, point.failed, point.global_batch) == (2, 1, 32)
    assert [one.missing for one in measured] == [0, 3, 3]


def test_runs_that_failed_or_are_missing_are_told(task: Task) -> None:
    runs = keyed(run(32, 0, epochs=3.8), run(32, 1, epochs=20.0, best=0.8), run(64, 0, epochs=20.0, best=0.7))
    measured = gather(task, TARGET, runs, repeats=2)
    told = warnings_of(task, TARGET, measured, table_of(task, TARGET, measured))
    assert any("batch 32: 1 of 2 runs did not reach 0.9" in text and "too low" in text for text in told)
    assert any("batch 64: 1 of 1" in text and "best 0.7" in text and "not in the curve" in text for text in told)
    assert any("batch 128: 2 of 2 runs were not finished" in text for text in told)


def test_no_run_that_arrived_is_no_curve_and_the_best_is_said(task: Task) -> None:
    measured = gather(
        task, TARGET, keyed(run(64, 3, epochs=20.0, best=0.85), run(32, 0, epochs=20.0, best=0.8)), repeats=1
    )
    with raises(
        "converge.target-not-reached", InfeasibleError, match=r"\b3\b", best_metric=0.85, best_batch=64
    ) as raised:
        table_of(task, TARGET, measured)
    assert raised.value.figures["best_metric"] == 0.85


def test_runs_of_one_batch_count_alike_by_their_logarithms(task: Task) -> None:
    """√(32 · 128) = 64."""
    runs = keyed(run(128, 0, epochs=6.0, b_crit=128.0), run(128, 1, epochs=6.0, b_crit=32.0), run(64, 0, epochs=4.0))
    measured = gather(task, TARGET, runs, repeats=2)
    curve = fit_curve(table_of(task, TARGET, measured))
    noise = compare_noise(measured, curve)
    assert noise is not None
    assert noise.b_crit == pytest.approx(64.0)
    assert (noise.runs_interval, noise.runs) == ((32.0, 128.0), 2)
    assert noise.ratio_to_fitted == pytest.approx(64.0 / curve.fit.b_crit)


def test_noise_is_weighed_as_the_fit_weighs_batches(task: Task) -> None:
    """By 128 / (128 + 200) against 32 / (32 + 200), the larger batch has more than half of the weight."""
    runs = keyed(run(128, 0, epochs=6.0, b_crit=200.0), run(32, 0, epochs=3.0, b_crit=50.0))
    measured = gather(task, TARGET, runs, repeats=1)
    noise = compare_noise(measured, fit_curve(table_of(task, TARGET, measured)))
    assert noise is not None
    assert noise.b_crit == 200.0


def test_runs_without_a_signal_count_as_infinite(task: Task) -> None:
    """Of 40, 80, ∞ and 60, 80 at one batch the median is 80; of 40, ∞, ∞ it is infinite."""
    values = (40.0, 80.0, math.inf, 60.0, 80.0)
    for wanted, ends in ((values, (80.0, 1)), ((40.0, math.inf, math.inf), (None, 2))):
        runs = keyed(*(run(64, seed, epochs=4.0, b_crit=value) for seed, value in enumerate(wanted)))
        measured = gather(task, TARGET, runs, repeats=len(wanted))
        noise = compare_noise(measured, fit_curve(table_of(task, TARGET, measured)))
        assert noise is not None
        assert (noise.b_crit, noise.runs_without_signal, noise.runs) == (*ends, len(wanted))


def test_noise_of_a_run_that_found_the_target_ends_where_it_was_reached(task: Task) -> None:
    """0.9 is first reached at epoch 2; the run goes on to epoch 3."""
    until = [[epochs, {"scaled": False, "b_crit": value}] for epochs, value in ((1.0, 10.0), (2.0, 20.0), (3.0, 900.0))]
    found = dataclasses.replace(
        run(64, 0, epochs=3.0),
        evaluations=((1.0, 0.5), (2.0, 0.92), (3.0, 0.97)),
        noise={"scaled": False, "b_crit": 500.0, "until": until},
    )
    measured = gather(task, TARGET, keyed(found), repeats=1)
    assert measured[1].runs[0].noise_b_crit == 20.0
    assert found.noise_until(0.97) == until[2][1]
    assert found.noise_until(0.99) == {"scaled": False, "b_crit": 500.0}
    assert run(64, 0, epochs=3.0).noise_until(0.9) is None


def test_figures_that_are_none_are_left_out_of_the_noise() -> None:
    """Twelve steps of |G|² = 8 and tr Σ / 8 = 6, so that 8 · 6 / 8 is the critical batch, and one that overflowed."""
    steps = [
        StepNorms(step=step, samples=8, share=0.5, pieces=10.0, whole=14.0, scaled=(10.0, 14.0)) for step in range(13)
    ]
    steps[5] = dataclasses.replace(steps[5], scaled=(math.inf, math.nan))
    outcome = TrainingOutcome(end="epochs", epochs=2.0, samples=0, updates=13, seconds=1.0)
    noise = noise_of(steps, outcome, at_records=False)
    assert noise is not None
    assert (noise["scaled"], noise["steps"], noise["b_crit"]) == (True, 12, pytest.approx(6.0))


def test_few_steps_that_are_known_as_scaled_are_no_reason_to_take_plain_ones() -> None:
    steps = [StepNorms(step=step, samples=8, share=0.5, pieces=10.0, whole=14.0) for step in range(12)]
    steps[-3:] = [dataclasses.replace(step, scaled=(10.0, 14.0)) for step in steps[-3:]]
    outcome = TrainingOutcome(end="epochs", epochs=2.0, samples=0, updates=12, seconds=1.0)
    assert noise_of(steps, outcome, at_records=False) is None


def test_where_the_optimizer_scales_the_rates_and_the_noise_say_what_other_batches_need(task: Task) -> None:
    """Rates by √(B / 32), 1000 samples an epoch, b = 96, 4 epochs at batch 32: 128 updates, 4 of them of 8 samples.

    At 64 that is 128 · √((1 + 96 / 64) / (1 + 96 / 32)) / √2 = 71.55 updates of 64 or, the last of an epoch, 40
    samples: four epochs of 16, and 7.55. At 128: 128 · √(1.75 / 4) / 2 = 42.33, five epochs of 8 and 2.33.
    """
    task = dataclasses.replace(task, recipe=Recipe(rule="sqrt", base_batch=32))
    scaled = dataclasses.replace(
        run(32, 0, epochs=4.0, best=0.9), noise={"scaled": True, "b_crit": 7.0, "b_simple": 96.0}
    )
    (found,) = gather(task, TARGET, keyed(scaled), repeats=1)[0].runs
    points = [(32, 4.0), (64, 4 + 7.554 * 0.064), (128, 5 + 2.332 * 0.128)]
    table = CurveTable(
        task="by hand",
        unit="epochs",
        points=tuple(Point(global_batch=batch, amount=epochs) for batch, epochs in points),
        source="by hand",
    )
    assert found.noise_b_crit == pytest.approx(fit_curve(table).fit.b_crit, rel=1e-3)


def test_a_scaled_run_that_never_arrived_says_no_critical_batch(task: Task) -> None:
    failed = run(32, 0, epochs=20.0, best=0.8)
    failed = dataclasses.replace(failed, noise={"scaled": True, "b_crit": 7.0, "b_simple": 96.0})
    (found,) = gather(task, TARGET, keyed(failed), repeats=1)[0].runs
    assert found.noise_b_crit is None


def test_noise_is_noted_up_to_each_best_evaluation() -> None:
    """After 10, 20 and 30 updates; the second is no better than the first."""
    steps = [StepNorms(step=step, samples=8, share=0.5, pieces=10.0, whole=14.0) for step in range(30)]
    outcome = TrainingOutcome(
        end="epochs",
        epochs=3.0,
        samples=240,
        updates=30,
        seconds=1.0,
        evaluations=((1.0, 0.5), (2.0, 0.4), (3.0, 0.6)),
        evaluated_after=(10, 20, 30),
    )
    noise = noise_of(steps, outcome, at_records=True)
    assert noise is not None
    assert [(epochs, document["steps"]) for epochs, document in noise["until"]] == [(1.0, 10), (3.0, 30)]


def test_noise_of_small_batches_hardly_counts(task: Task) -> None:
    """(2 / 130)² against (128 / 256)²."""
    task = dataclasses.replace(task, batches=(2, 64, 128))
    runs = keyed(run(2, 0, epochs=3.0, b_crit=100.0), run(128, 0, epochs=6.0, b_crit=128.0))
    measured = gather(task, TARGET, runs, repeats=1)
    noise = compare_noise(measured, fit_curve(table_of(task, TARGET, measured)))
    assert noise is not None
    assert noise.b_crit == pytest.approx(128.0, rel=0.001)


def test_without_noise_there_is_nothing_to_compare(task: Task) -> None:
    measured = gather(task, TARGET, keyed(run(32, 0, epochs=3.0)), repeats=1)
    assert compare_noise(measured, fit_curve(table_of(task, TARGET, measured))) is None


def test_long_runs_come_first(task: Task) -> None:
    """Nothing known: 8 · 32 = 256 is twice the epochs. Known: what a batch took."""
    keys = [(batch, seed) for batch in (32, 64, 128) for seed in (0, 1)]
    assert [batch for batch, _ in order_runs(keys, [], task)] == [128, 128, 32, 32, 64, 64]
    known = [run(64, 7, epochs=19.0)]
    assert [batch for batch, _ in order_runs(keys, known, task)][:2] == [64, 64]


def test_a_target_from_what_the_job_reaches() -> None:
    """The smaller best of two runs, 0.9: 99 % of it."""
    target = rule_of_thumb([run(32, 0, epochs=5.0, best=0.95), run(32, 1, epochs=5.0, best=0.9)])
    assert target.value == 0.891
    assert "0.9" in target.source


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"value": 0.9}', b'{"value": NaN, "source": "x"}', b"\xff\xfe\x00", b'{"value": []}'],
)
def test_a_target_that_cannot_be_read_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "target.json"
    write_target(path, TARGET)
    assert read_target(path) == TARGET
    path.write_bytes(content)
    with raises("converge.damaged-target", CorruptDataError, match=r"target\.json"):
        read_target(path)


def test_a_run_that_reached_the_target_after_the_limit_ended_by_its_epochs(task: Task) -> None:
    late = dataclasses.replace(run(32, 0, epochs=20.5), evaluations=((20.0, 0.5), (20.5, 0.95)))
    (found,) = gather(task, TARGET, keyed(late), repeats=1)[0].runs
    assert (found.end, found.epochs) == ("epochs", None)


@pytest.mark.parametrize("best", [0.0, -2.5])
def test_no_target_follows_from_a_metric_that_is_not_positive(best: float) -> None:
    with raises("converge.needs-target", match="--target"):
        rule_of_thumb([run(32, 0, epochs=5.0, best=best)])


def test_a_run_that_was_never_evaluated_gives_no_target() -> None:
    with raises("converge.needs-target", match="--target"):
        rule_of_thumb([dataclasses.replace(run(32, 0, epochs=5.0), evaluations=())])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("10min", 600.0), ("0.5 h", 1800.0), (" 2 min ", 120.0)]
)
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "10m", "nan", "inf"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with raises("quantity.malformed"):
        parse_time_limit(text)


def test_a_limit_leaves_some_time() -> None:
    with raises("converge.no-time"):
        parse_time_limit("0")


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("warmup_epochs", math.nan, "converge.bad-epochs"),
        ("max_epochs", math.inf, "converge.bad-epochs"),
        ("max_epochs", -1.0, "converge.bad-epochs"),
    ],
)
def test_figures_that_mean_nothing_are_refused(option: str, value: object, code: str) -> None:
    with raises(code, match="--"):
        ConvergeRequest(**{option: value})  # type: ignore[arg-type]


def test_a_target_is_a_number() -> None:
    with raises("converge.bad-target", match="--"):
        parse_target_value("ninety")


def test_more_devices_than_there_are_are_refused_as_by_other_commands() -> None:
    """Runs of 99 ranks shared the cores of this machine."""
    with raises("machine.lacks-devices", match="this machine has"):
        prepare_task(JobSource(reference="digits"), ConvergeRequest(devices=9999))
