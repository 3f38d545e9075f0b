"""`trimaran plan --objective time` as people and programs call it, and training by what it wrote."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran
from tests.unit.planning.target.curves import digits_curve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("time")
    digits_curve(path / "digits.toml")
    return path


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    done = trimaran(
        *("plan", "digits", "--devices", "1", "--objective", "time", "--curve", "digits.toml", "--batches", "64..128"),
        *("--execution", "eager", "--json", "-o", "plan.json"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_object_with_the_time_to_the_target(document: dict[str, Any]) -> None:
    assert next(iter(document)) == "schema_version"
    assert document["objective"] == "time"
    assert (document["chosen"]["objective"], document["chosen"]["asked"]) == ("time", "time")
    time_s = document["chosen"]["step_time_s"] * document["steps_per_epoch"] * document["epochs_to_converge"]
    assert document["time_to_accuracy_s"] == pytest.approx(time_s)
    assert {row["global_batch_size"] for row in document["candidates"]} == {64, 128}
    assert document["learning_rate_rule"]["rule"] == "sqrt"


@pytest.mark.sweep
def test_training_by_the_plan_has_its_batch_and_ends_at_its_target(folder: Path, document: dict[str, Any]) -> None:
    done = trimaran("train", "digits", "--plan", "plan.json", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["final"]["accuracy"] >= 0.9
    run = Path(report["run_dir"])
    plan = json.loads((folder / run / "plan.json").read_text(encoding="utf-8"))
    assert plan["premises"]["global_batch_size"] == document["global_batch_size"]
    epochs = (folder / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(epochs) < 15
    assert all(json.loads(line)["accuracy"] < 0.9 for line in epochs[:-1])


def test_another_batch_than_the_plan_s_is_refused(folder: Path, document: dict[str, Any]) -> None:
    other = 64 if document["global_batch_size"] != 64 else 128
    done = trimaran("train", "digits", "--plan", "plan.json", "--batch", str(other), cwd=folder)
    assert done.returncode == 2
    assert "batch size" in done.stderr


def test_a_curve_beside_a_plan_is_refused(folder: Path, document: dict[str, Any]) -> None:
    assert document["global_batch_size"]
    done = trimaran("train", "digits", "--plan", "plan.json", "--curve", "digits.toml", cwd=folder)
    assert done.returncode == 2
    assert "plan.json" in done.stderr


def test_the_same_in_words(folder: Path) -> None:
    """What is chosen is marked in the table; steps are measured anew, so it may be another batch than before."""
    done = trimaran(
        *("plan", "digits", "--devices", "1", "--objective", "time", "--curve", "digits.toml", "--batches", "64..128"),
        *("--execution", "eager"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    least = r"the\s+least\s+time(?:\s+but\s+for\s+uncertainty)?:\s+batch\s+(\d+) "
    told = re.search(rf"to the target \(90 %: [^)]*\), {least}", done.stdout)
    assert told is not None
    assert told[1] in ("64", "128")
    assert re.search(rf"^\*\^? +{told[1]} +1 +\d+ ", done.stdout, re.MULTILINE)
    assert "Learning rate: by the rule of the curve, sqrt from batch 64" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--curve", "nosuch.toml"), "nosuch.toml"),
        (("--curve", "resnet50"), "digits"),
        (("--curve", "digits.toml", "--batches", "0"), "batches"),
        (("--curve", "digits.toml", "--batches", "4096"), "1437 samples"),
        (("--curve", "digits.toml", "--batch", "64", "--batches", "64"), "--batch 64"),
        (("--curve", "digits.toml", "--price", "much"), "price"),
        (("--curve", "digits.toml", "--least-saved", "2"), "--least-saved"),
        (("--objective", "epoch", "--curve", "digits.toml"), "--objective epoch"),
        (("--objective", "speed"), "objective"),
    ],
)
def test_wrong_input_is_told(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = trimaran("plan", "digits", "--devices", "1", *arguments, cwd=folder)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
