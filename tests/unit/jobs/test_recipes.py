"""The learning rate of a job at another batch, update by update."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import zoo
from tests.raising import raises
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.jobs.learning_rate import Recipe, check_rule, default_rule, follow_recipe, rate_factor, rates_of

BASE = 8


def job(batch: int, schedule: Callable[[Optimizer], Any] | None = None) -> Job:
    return dataclasses.replace(zoo.cnn_fp64(), global_batch_size=batch, lr_schedule=schedule)


def rates(made: Job, updates: int, rate: float = 1.0) -> list[float]:
    """The rate of each update."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = made.lr_schedule(optimizer) if made.lr_schedule is not None else None
    found = []
    for _ in range(updates):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return found


def down(optimizer: Optimizer) -> LambdaLR:
    """1, 0.9, 0.8, …"""
    return LambdaLR(optimizer, lambda update: 1 - update / 10)


def up_and_down(optimizer: Optimizer) -> LambdaLR:
    """0.25, 0.5, 0.75, 1, 0.75, 0.5, …"""
    return LambdaLR(optimizer, lambda update: 1 - abs(update - 3) / 4)


def recipe(rule: str = "linear", **fields: Any) -> Recipe:
    return Recipe(rule=rule, base_batch=BASE, **{"schedule": "job"} | fields)


def test_at_its_own_batch_the_job_stays_as_it_is() -> None:
    own = job(BASE, down)
    assert follow_recipe(own, recipe()) is own


def test_four_times_the_batch_takes_the_middle_of_four_updates() -> None:
    """Updates 2, 6, … of the job, 0.8 and 0.4, twice as large by the square root."""
    assert rates(follow_recipe(job(4 * BASE, down), recipe("sqrt")), 2) == pytest.approx([1.6, 0.8])


def test_half_the_batch_takes_each_update_twice() -> None:
    """Half as large by the line."""
    found = rates(follow_recipe(job(BASE // 2, down), recipe()), 4)
    assert found == pytest.approx([0.5, 0.5, 0.45, 0.45])


def test_an_epoch_is_an_epoch_where_the_last_batch_is_smaller() -> None:
    """20 samples: 3 updates of 8, 1 of 32; the job's update 1, 4, 7 are in the middle of the epochs."""
    found = rates(follow_recipe(job(32, down), recipe("constant", samples_per_epoch=20)), 3)
    assert found == pytest.approx([0.9, 0.6, 0.3])


def test_held_rates_rise_as_the_jobs_and_do_not_fall() -> None:
    found = rates(follow_recipe(job(BASE, up_and_down), recipe(schedule="hold")), 6)
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_a_peak_between_two_updates_is_not_missed() -> None:
    """Updates 2 and 6 of the job have 0.75 and 0.25; the largest until then is 1."""
    found = rates(follow_recipe(job(4 * BASE, up_and_down), recipe("constant", schedule="hold")), 2)
    assert found == pytest.approx([0.75, 1])


def test_warm_up_goes_from_the_jobs_rate_to_that_of_the_rule() -> None:
    """Four times the rate after 2 epochs of 2 updates: 1 + 3 · k / 4."""
    found = rates(follow_recipe(job(4 * BASE), recipe(warmup_epochs=2, samples_per_epoch=64)), 5)
    assert found == pytest.approx([1.75, 2.5, 3.25, 4, 4])


def test_a_warm_up_of_nobody_knows_how_many_updates_is_refused() -> None:
    with raises("recipe.needs-samples-per-epoch", match="samples_per_epoch"):
        follow_recipe(job(4 * BASE), recipe(warmup_epochs=2))
    assert follow_recipe(job(BASE // 2), recipe(warmup_epochs=2)).lr_schedule is not None


def test_a_smaller_rate_needs_no_warm_up() -> None:
    found = rates(follow_recipe(job(BASE // 2), recipe(warmup_epochs=2, samples_per_epoch=64)), 2)
    assert found == pytest.approx([0.5, 0.5])


SCHEDULES: list[Callable[[Optimizer], Any]] = [
    lambda optimizer: OneCycleLR(optimizer, max_lr=3.0, total_steps=100),
    lambda optimizer: CosineAnnealingLR(optimizer, T_max=40, eta_min=0.1),
    lambda optimizer: StepLR(optimizer, 3, gamma=0.5),
    down,
]


@given(st.sampled_from(SCHEDULES), st.integers(1, 3), st.sampled_from(["linear", "sqrt", "constant"]))
def test_any_schedule_is_followed_and_multiplied(schedule: Callable[[Optimizer], Any], times: int, rule: str) -> None:
    """Also one that sets rates outright, or works on the rate that it finds."""
    own = rates(job(BASE, schedule), 9)
    found = rates(follow_recipe(job(times * BASE, schedule), recipe(rule)), 9 // times)
    factor = rate_factor(rule, times)
    assert found == pytest.approx([factor * own[int((update + 0.5) * times)] for update in range(9 // times)])


def test_each_group_keeps_its_own_rate() -> None:
    made = follow_recipe(job(4 * BASE, down), recipe("constant"))
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.01)]
    optimizer = SGD(groups, lr=1.0)
    assert made.lr_schedule is not None
    made.lr_schedule(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.8, 0.008])


def test_adam_and_its_kin_have_the_square_root() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]

    class Own(AdamW):
        pass

    assert default_rule(AdamW(parameters)) == default_rule(Own(parameters)) == "sqrt"
    assert default_rule(SGD(parameters, lr=1)) == "linear"


def test_a_rule_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text("def cube(ratio):\n    return ratio ** 3\n")
    assert rate_factor(f"{path}:cube", 2.0) == 8.0


@pytest.mark.parametrize(
    ("body", "code", "figures"),
    [
        ("return -1.0", "recipe.bad-factor", {"match": "positive number"}),
        ("return float('nan')", "recipe.bad-factor", {"match": "positive number"}),
        ("return None", "recipe.rule-fails", {"match": "TypeError"}),
        ("raise KeyError('x')", "recipe.rule-fails", {"match": "KeyError"}),
    ],
)
def test_a_rule_that_gives_nonsense_is_named(tmp_path: Path, body: str, code: str, figures: dict[str, Any]) -> None:
    path = tmp_path / f"rule{abs(hash(body))}.py"
    path.write_text(f"def rule(ratio):\n    {body}\n")
    with raises(code, **figures):
        check_rule(f"{path}:rule")


def test_the_file_of_a_rule_is_not_called_a_job(tmp_path: Path) -> None:
    path = tmp_path / "rates.py"
    with raises("user-function.missing-file", match=r"rates\.py"):
        check_rule(f"{path}:rule")
    path.write_text("1 / 0\n")
    with raises("user-function.file-raises", match=r"(?s)ZeroDivisionError.*rates\.py:1"):
        check_rule(f"{path}:rule")


@pytest.mark.parametrize("rule", ["cubic", "", "nowhere.py:rule", "rules.py"])
def test_an_unknown_rule_is_refused(rule: str) -> None:
    with pytest.raises(InputError):
        check_rule(rule)


def test_the_rates_end_where_the_schedule_does() -> None:
    """Torch's one-cycle of 5 steps allows 5 beyond the first rate."""
    made = job(BASE, lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=5))
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert len(list(rates_of(made, recipe(), optimizer))) == 6


def test_a_schedule_that_fails_is_named() -> None:
    """A schedule with a mistake in it has not come to its end."""

    def mistaken(update: int) -> float:
        return [1.0, 0.5][update]

    def staircase(optimizer: Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, mistaken)

    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with raises("recipe.schedule-fails", match="IndexError"):
        list(rates_of(job(BASE, staircase), recipe(), optimizer))
