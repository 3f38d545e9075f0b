"""A job follows the plan that was made for its target: batch, rates, epochs, target."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.raising import raises
from tests.unit.planning.target.curves import digits_curve

from trimaran.base.job import Job
from trimaran.convergence.files import read_curve, write_curve
from trimaran.jobs.learning_rate import Recipe, digest_of_rule
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.planning.target import find_job_curve, job_as_planned, source_as_planned
from trimaran.program.plan_file import PlannedTraining, read_plan, write_plan

TRAINING = PlannedTraining(
    curve="digits.toml",
    task="digits to 0.9",
    target=0.9,
    updates=100.0,
    epochs=18.0,
    epochs_interval=(16.0, 20.5),
    time_s=1.0,
    time_interval_s=(0.9, 1.1),
    rates=Recipe(rule="sqrt", base_batch=64, samples_per_epoch=1437),
)
PLAN = builders.plan(
    job="digits",
    strategy=builders.strategy(),
    premises=builders.premises(graph_digest="", global_batch_size=256, devices=("core",), memory_bytes=(1000,)),
    prediction=builders.prediction(step_time_s=0.0),
    objective="time",
    program=("rank 0", "  0F0"),
    training=TRAINING,
)


def rates(job: Job, updates: int) -> list[float]:
    """Learning rates of the first updates."""
    model = torch.nn.Linear(1, 1)
    optimizer = job.optimizer(model.parameters())
    schedule = None if job.lr_schedule is None else job.lr_schedule(optimizer)
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return found


def test_the_job_trains_at_the_batch_of_the_plan_with_the_rates_of_its_curve() -> None:
    """Four times the batch by the square root: twice the rate, once the job's own warm-up of 100 updates is over.

    The job reaches its largest rate after 100 updates of 64; here that is 25 of 256.
    """
    followed = source_as_planned(PLAN, JobSource(reference="digits"))
    job = followed.make()
    assert job.global_batch_size == 256
    assert max(rates(job, 40)) == pytest.approx(2 * max(rates(resolve("digits"), 160)), rel=0.02)


def test_there_are_as_many_epochs_as_the_curve_may_need_and_training_ends_at_its_target() -> None:
    """The job has 15 epochs, the curve says up to 20.5 in the mean: half as many again for a run."""
    followed = source_as_planned(PLAN, JobSource(reference="digits"))
    assert (followed.epochs, followed.target) == (31, 0.9)
    assert source_as_planned(PLAN, JobSource(reference="digits", epochs=3)).epochs == 3
    few = dataclasses.replace(PLAN, training=dataclasses.replace(TRAINING, epochs_interval=(3.0, 4.0)))
    assert source_as_planned(few, JobSource(reference="digits")).epochs == 15


def test_a_plan_without_a_curve_changes_the_batch_alone() -> None:
    plain = dataclasses.replace(PLAN, training=None)
    assert source_as_planned(plain, JobSource(reference="digits")) == JobSource(
        reference="digits", global_batch_size=256
    )


def test_a_loop_of_one_s_own_follows_too() -> None:
    job = resolve("digits")
    followed = job_as_planned(PLAN, job)
    assert followed.global_batch_size == 256
    assert max(rates(followed, 40)) == pytest.approx(2 * max(rates(job, 160)), rel=0.02)
    assert job_as_planned(dataclasses.replace(PLAN, training=None), job) is job


def test_a_plan_file_keeps_its_training(tmp_path: Path) -> None:
    from trimaran.graph.capture.capture import capture
    from trimaran.program.lowering.lower import lower
    from trimaran.program.plan_file import program_lines

    job = dataclasses.replace(resolve("digits"), global_batch_size=256)
    graph = capture(job).graph
    plan = dataclasses.replace(PLAN, program=program_lines(lower(graph, PLAN.strategy, batch=256)))
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


def test_a_job_s_own_curve_is_found_beside_its_file(tmp_path: Path) -> None:
    digits_curve(tmp_path / "mine.toml", network="")
    job = dataclasses.replace(resolve("digits"), curve="mine.toml")
    known = find_job_curve(job, f"{tmp_path}/job.py:make", builders.target_request(), samples=1437)
    assert known.name == str(tmp_path / "mine.toml")
    assert known.curve is not None


def test_a_rule_that_is_no_more_what_the_curve_was_measured_with_is_told(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def half(ratio):\n    return ratio / 2\n")
    path = digits_curve(tmp_path / "curve.toml", recipe=False)
    rule = f"{tmp_path}/rules.py:half"
    recipe = Recipe(rule=rule, base_batch=64, samples_per_epoch=1437, rule_digest=digest_of_rule(rule))
    write_curve(path, dataclasses.replace(read_curve(path).table, recipe=recipe))
    told = [
        find_job_curve(resolve("digits"), "digits", builders.target_request(curve=str(path)), samples=1437).warnings
    ]
    (tmp_path / "rules.py").write_text("def half(ratio):\n    return ratio / 3\n")
    told.append(
        find_job_curve(resolve("digits"), "digits", builders.target_request(curve=str(path)), samples=1437).warnings
    )
    assert [any("differs from that of the curve" in text for text in each) for each in told] == [False, True]


def test_a_curve_of_the_user_counts_before_that_of_the_job(tmp_path: Path) -> None:
    path = digits_curve(tmp_path / "asked.toml")
    job = dataclasses.replace(resolve("digits"), curve="no such curve")
    assert find_job_curve(job, "digits", builders.target_request(curve=str(path)), samples=1437).name == str(path)
    with raises("curve.unknown", name="no such curve"):
        find_job_curve(job, "digits", builders.target_request(), samples=1437)


@pytest.mark.parametrize("curve", ["", "  ", 3])
def test_a_job_with_a_curve_that_is_no_name_is_refused(curve: object) -> None:
    with raises("job.bad-curve", match=r"Job\.curve"):
        dataclasses.replace(resolve("digits"), curve=curve)  # type: ignore[arg-type]  # wrong on purpose


def test_a_published_network_has_one_spelling() -> None:
    known = find_job_curve(resolve("gpt3:175b"), "gpt3:175b", builders.target_request(curve="gpt3-175b"), samples=None)
    assert known.curve is not None
    assert known.curve.table.network == "gpt:175b"
