"""The command that `plan` names as the next one."""

import shlex
from pathlib import Path

from trimaran.cli.plan import next_command


def test_train_is_told_what_plan_was_told() -> None:
    command = next_command("digits", None, devices=2, batch=64, seed=None, link="1 Gb/s", oversubscribe=True)
    assert command == "trimaran train digits --devices 2 --batch 64 --link '1 Gb/s' --oversubscribe"


def test_what_the_plan_says_is_not_said_again() -> None:
    asked = {"devices": 2, "batch": 64, "seed": 0, "objective": "epoch", "execution": "eager", "oversubscribe": False}
    command = next_command("digits", Path("p.json"), **asked)
    assert command == "trimaran train digits --plan p.json --batch 64 --seed 0"


def test_a_path_survives_the_shell() -> None:
    command = next_command("my jobs.py:make", Path("a plan.json"), calibration=Path("it's.json"))
    assert shlex.split(command)[2:] == ["my jobs.py:make", "--plan", "a plan.json", "--calibration", "it's.json"]
