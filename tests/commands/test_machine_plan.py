"""`trimaran plan --cluster` as people and programs call it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran

LENET = ("plan", "lenet", "--cluster", "dgx1-v100", "--devices", "2", "--batch", "4096")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine-plan")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    done = trimaran(*LENET, "--json", "-o", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_object_with_the_chosen_strategy(document: dict[str, Any]) -> None:
    assert next(iter(document)) == "schema_version"
    chosen = document["chosen"]
    assert {"strategy", "degrees", "speedup", "gap", "placement", "interval_s", "peak_bytes"} <= set(chosen)
    assert document["references"]


def test_the_same_in_words(folder: Path, document: dict[str, Any]) -> None:
    done = trimaran(*LENET, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f": {document['chosen']['strategy']}, " in done.stdout


def test_a_file_that_other_commands_take(folder: Path, document: dict[str, Any]) -> None:
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert plan["premises"]["global_batch_size"] == 4096
    assert plan["job"] == "lenet"


def test_the_degrees_of_a_large_transformer(folder: Path) -> None:
    done = trimaran(
        "plan", "llama2:70b", "--cluster", "hgx-h100:128", "--devices", "1024", "--batch", "2048", "--json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    degrees = json.loads(done.stdout)["chosen"]["degrees"]
    assert degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"] == 1024


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("plan", "lenet", "--cluster", "dgx9"), 2, "dgx9"),
        (("plan", "lenet", "--cluster", "dgx1-v100:1", "--devices", "9"), 2, "8 devices"),
        (("plan", "lenet", "--cluster", "dgx1-v100", "--link", "1Gb/s"), 2, "--link"),
        (("plan", "lenet", "--cluster", "dgx1-v100", "--devices", "1", "--memory", "1MiB"), 3, "iB"),
    ],
)
def test_what_cannot_be_planned(folder: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = trimaran(*arguments, cwd=folder)
    assert done.returncode == code
    assert message in done.stderr


def test_rows_of_a_plan_for_a_target_are_whole_in_a_file_and_sentences_are_folded(folder: Path) -> None:
    """Each row ends with its cost, however wide it is."""
    (folder / "lenet.csv").write_text("global_batch,epochs,samples_per_epoch\n1024,3.3,60000\n4096,5.0,60000\n")
    target = ("--objective", "time", "--curve", "lenet.csv")
    done = trimaran("plan", "lenet", "--cluster", "dgx1-v100", "--devices", "2", *target, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = lines[next(number for number, line in enumerate(lines) if "batch devices local" in line) :]
    title = rows[0]
    chosen = next(line for line in rows if line.startswith("*") and "chosen" not in line)
    assert title.split()[-1] == "cost"
    assert len(chosen) == len(title)
    assert " to the target (90 %: " in lines[0]
    for begin in (lines[0], "Hybrid or not: ", "Curve lenet.csv: "):
        sentence = next(number for number, line in enumerate(lines) if line.startswith(begin))
        assert max(map(len, lines[sentence : sentence + 2])) <= 80
