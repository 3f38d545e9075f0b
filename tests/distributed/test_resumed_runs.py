"""`trimaran train --save-every` and `--resume`, in real processes that are killed in the middle of an epoch."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.distributed.resumed_jobs import ELSEWHERE
from tests.distributed.signalled_runs import Run

JOBS = Path(__file__).with_name("resumed_jobs.py")
EPOCH = 5
STEPS = 3 * EPOCH


@pytest.fixture(scope="module")
def planned(spoken: Path) -> Path:
    return spoken


@pytest.fixture(scope="module")
def undisturbed(planned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that nothing has disturbed, and that saved nothing."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = begin(folder, planned, "--plan", str(planned / "plan.json"))
    code, errors = run.end(600)
    assert code == 0, errors
    assert not list(folder.glob("runs/*/checkpoints"))
    return folder


def begin(folder: Path, planned: Path, *options: str, job: str = "spoken") -> Run:
    folder.mkdir(exist_ok=True)
    return Run(["trimaran", "train", f"{JOBS}:{job}", *options], folder, planned)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, planned: Path) -> Iterator[Run]:
    """A run that saves after every third step, a rank of which was killed in its second epoch."""
    run = begin(tmp_path_factory.mktemp("killed"), planned, "--plan", str(planned / "plan.json"), "--save-every", "3")
    try:
        run.wait_for_step(EPOCH + 3)
        os.kill(run.ranks()[-1], signal.SIGKILL)
        code, errors = run.end(600)
        assert code == 5, errors
        assert f"--resume {run.run_dir().relative_to(run.folder)}" in errors
        yield run
    finally:
        run.kill()


def losses(folder: Path) -> dict[int, str]:
    """Of each step in bits, as rank 0 said them."""
    (log,) = folder.glob("runs/*/logs/rank0.log")
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("loss ")]
    return {int(step): loss for _, step, loss in lines}


def epochs(folder: Path) -> list[dict[str, float]]:
    (file,) = folder.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: row[key] for key in ("epoch", "loss", "accuracy", "samples")} for row in rows]


@pytest.mark.timeout(900)
def test_a_run_that_was_killed_goes_on_bit_for_bit(
    killed: Run, undisturbed: Path, planned: Path, tmp_path: Path
) -> None:
    first = killed.run_dir()
    made = sorted(path.name for path in (first / "checkpoints").iterdir() if (path / "COMMITTED").exists())
    # Of step 6, or of step 3 where the disk was slow.
    assert made
    second = begin(tmp_path / "second", planned, "--resume", str(first), "--save-every", "10min")
    code, errors = second.end(600)
    assert code == 0, errors
    assert f"{first}: failed, rank" in errors
    found, expected = losses(second.folder), losses(undisturbed)
    assert sorted(found) == list(range(int(made[-1][5:]) + 1, STEPS + 1))
    assert found == {step: loss for step, loss in expected.items() if step in found}
    assert epochs(second.folder) == epochs(undisturbed)
    note = second.note()
    assert (note["status"], note["resumed_from"]) == ("finished", str(first))
    # A run that is complete has nothing to do, and says so; with more epochs it goes on.
    third = begin(tmp_path / "third", planned, "--resume", str(second.run_dir()), "--epochs", "4", "--devices", "1")
    code, errors = third.end(600)
    assert code == 0, errors
    assert sorted(losses(third.folder)) == list(range(STEPS + 1, STEPS + EPOCH + 1))
    assert epochs(third.folder)[:3] == epochs(undisturbed)
    notes = json.loads((third.run_dir() / "report.json").read_text())["notes"]
    assert any("random generators were seeded anew" in note for note in notes)


@pytest.mark.timeout(900)
def test_what_was_recovered_is_said_before_the_first_step(
    killed: Run, undisturbed: Path, planned: Path, tmp_path: Path
) -> None:
    """A damaged newest checkpoint and a changed learning rate were passed over in silence with -q, else said after."""
    first = tmp_path / "first"
    shutil.copytree(killed.run_dir(), first)
    newest = max(one.parent for one in first.glob("checkpoints/*/COMMITTED"))
    damaged = first / "checkpoints" / "step-00000099"
    shutil.copytree(newest, damaged)
    (damaged / "COMMITTED").write_text("nothing")
    second = begin(tmp_path / "second", planned, "--resume", str(first), "-q", job="steeper")
    step = int(newest.name[5:])
    second.wait_for_step(step + 1)
    recovered, said = second.note()["recovered"], second.said()
    assert second.process.poll() is None
    assert (recovered["path"], recovered["step"]) == (str(newest), step)
    assert [one["path"] for one in recovered["passed_over"]] == [str(damaged)]
    assert "COMMITTED" in recovered["passed_over"][0]["reason"]
    changed = {one["what"]: (one["saved"], one["now"], one["counts"]) for one in recovered["changed"]}
    counts = "checkpoint"
    assert changed == {
        "initial_lr": ("0.05", "0.5", counts), "momentum": ("0.9", "0.8", counts),
        "T_max of CosineAnnealingLR": ("12", "24", counts),
    }  # fmt: skip
    for words in (newest.name, damaged.name, *changed):
        assert words in said
    code, errors = second.end(600)
    assert (code, errors.count("goes on from step")) == (0, 1), errors
    found, expected = losses(second.folder), losses(undisturbed)
    assert found == {step: loss for step, loss in expected.items() if step in found}
    assert json.loads((second.run_dir() / "run.json").read_text())["recovered"] == recovered


@pytest.mark.timeout(900)
def test_a_run_that_a_signal_ended_goes_on_bit_for_bit(undisturbed: Path, planned: Path, tmp_path: Path) -> None:
    """It saves its state, asked for or not."""
    first = begin(tmp_path / "first", planned, "--plan", str(planned / "plan.json"))
    first.wait_for_step(EPOCH + 1)
    first.signal(signal.SIGTERM)
    code, errors = first.end(600)
    assert code == 143, errors
    assert f"--resume {first.run_dir().relative_to(first.folder)}" in errors
    second = begin(tmp_path / "second", planned, "--resume", str(first.run_dir()), "--save-every", "1s")
    code, errors = second.end(600)
    assert code == 0, errors
    assert losses(first.folder) | losses(second.folder) == losses(undisturbed)
    assert not losses(first.folder).keys() & losses(second.folder).keys()
    assert epochs(second.folder) == epochs(undisturbed)
    assert second.left() == []


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_a_job_that_goes_to_another_folder_leaves_its_run_where_it_was_started(planned: Path, tmp_path: Path) -> None:
    """Its file, the plan, the run and the checkpoint that it goes on from are named from that folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "here"
    folder.mkdir()
    for file in (JOBS, planned / "plan.json"):
        shutil.copy(file, folder)
    where = {ELSEWHERE: str(elsewhere)}
    command = ["trimaran", "train", f"{JOBS.name}:moving"]
    first = Run(
        [*command, "--plan", "plan.json", "--epochs", "1", "--save-every", "3"], folder, planned, environment=where
    )
    code, errors = first.end(600)
    assert code == 0, errors
    run = first.run_dir()
    assert {"run.json", "plan.json", "model.safetensors", "checkpoints"} <= {path.name for path in run.iterdir()}
    shown = str(run.relative_to(folder))
    assert json.loads((run / "report.json").read_text())["run_dir"] == shown
    second = Run([*command, "--resume", shown, "--epochs", "2"], folder, planned, environment=where, new=True)
    code, errors = second.end(600)
    assert code == 0, errors
    assert len(list(folder.glob("runs/*/run.json"))) == 2
    assert list(elsewhere.iterdir()) == []


@pytest.mark.timeout(900)
def test_what_cannot_go_on_is_refused(killed: Run, planned: Path, tmp_path: Path) -> None:
    source = str(killed.run_dir())
    cases = {
        ("spoken", "--resume", str(tmp_path / "nothing")): "there is no run",
        ("spoken", "--resume", source, "--seed", "5"): "seed 0, and this job has 5",
        ("wider", "--resume", source): "is of another model|the plan",
        ("unplain", "--save-every", "5", "--plan", str(planned / "plan.json")): "StepLR.*cannot hold exactly",
        ("spoken", "--save-every", "5fortnights"): "duration",
        ("spoken", "--save-every", "0"): "give 1 or more",
    }
    for number, ((job, *options), text) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = trimaran("train", f"{JOBS}:{job}", *options, cwd=folder)
        assert done.returncode == 2, done.stderr
        assert re.search(text, " ".join(done.stderr.split())), done.stderr
        assert "Traceback" not in done.stderr
        assert not list(folder.glob("runs/*/checkpoints/*/COMMITTED"))
