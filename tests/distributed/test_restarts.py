"""`trimaran train --max-restarts` and `--on-nan rollback` in real processes; a script that torchrun starts again."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.commands.running import trimaran
from tests.distributed.restarted_jobs import WRONG_STEP
from tests.distributed.signalled_runs import Run, plan_for_two

JOBS = Path(__file__).with_name("restarted_jobs.py")
PLAIN = Path(__file__).with_name("resumed_jobs.py")
EPOCH, STEPS = 5, 15
EVERY = 3

Start = Callable[..., Run]


@pytest.fixture(scope="module")
def planned(spoken: Path) -> Path:
    """A folder with a plan on two ranks for each network."""
    return plan_for_two(spoken, f"{JOBS}:torn", "torn.json")


@pytest.fixture
def start(tmp_path: Path, planned: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(
        job: str,
        *options: str,
        every: int = EVERY,
        plan: str = "plan.json",
        fault: str = "",
        name: str = "work",
        new: bool = False,
    ) -> Run:
        folder = tmp_path / name
        folder.mkdir()
        where = ("--plan", str(planned / plan), "--save-every", str(every))
        runs.append(Run(["trimaran", "train", job, *where, *options], folder, planned, fault, new=new))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def said_losses(run: Path) -> dict[int, set[str]]:
    """Of each step, in bits, as rank 0 of each start said them."""
    found: dict[int, set[str]] = {}
    for log in run.rglob("rank0.log"):
        for line in log.read_text().splitlines():
            if line.startswith("loss "):
                _, step, loss = line.split()
                found.setdefault(int(step), set()).add(loss)
    return found


def committed(run: Run) -> bool:
    return bool(list(run.folder.glob("runs/*/checkpoints/*/COMMITTED")))


def epochs(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in ("epoch", "loss", "accuracy", "samples")} for row in rows]


@pytest.mark.timeout(900)
def test_a_rank_that_dies_is_started_again_in_the_same_run(start: Start) -> None:
    """Bit for bit, no row twice, and no more steps again than since the last commit."""
    undisturbed = start(f"{PLAIN}:spoken", name="undisturbed")
    run = start(f"{PLAIN}:spoken", "--max-restarts", "2")
    run.wait_for_step(EPOCH + 3)
    os.kill(run.ranks()[-1], signal.SIGKILL)
    code, errors = run.end(600)
    assert code == 0, errors
    assert "rank 1 was killed by SIGKILL" in errors
    assert "restart 1 of 2" in errors
    assert undisturbed.end(600)[0] == 0
    first, second = undisturbed.run_dir(), run.run_dir()
    assert said_losses(second) == said_losses(first)
    assert sorted(said_losses(first)) == list(range(1, STEPS + 1))
    assert epochs(second) == epochs(first)
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    note = run.note()
    (restart,) = note["restarts"]
    assert (note["status"], restart["code"], restart["rank"], restart["ranks"]) == ("finished", "rank.died", 1, 2)
    assert EPOCH + 2 <= restart["step"] < STEPS
    assert restart["from_step"] in (EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY)
    assert json.loads((second / "report.json").read_text())["restarts"] == note["restarts"]
    assert "restarts" not in undisturbed.note()
    assert run.left() == []


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_an_error_that_comes_again_is_not_repeated_for_ever(start: Start) -> None:
    run = start(f"{JOBS}:always_wrong", "--max-restarts", "50")
    code, errors = run.end(600)
    assert code == 5, errors
    assert "the training was not started again: the same error came twice at the same step" in errors
    assert "LookupError: as ever" in errors
    assert "--max-restarts 50" in errors
    note = run.note()
    assert (note["status"], note["code"], len(note["restarts"])) == ("failed", "rank.raised", 1)
    assert sorted(said_losses(run.run_dir())) == list(range(1, WRONG_STEP + 1))
    assert run.left() == []


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_without_a_device_the_training_goes_on_by_a_plan_for_the_others(start: Start, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    run = start(f"{JOBS}:without_a_device", "--max-restarts", "5", fault=str(gone))
    run.wait_for(lambda: committed(run), "commit")
    gone.touch()
    os.kill(run.ranks()[-1], signal.SIGKILL)
    code, errors = run.end(600)
    assert code == 0, errors
    assert "planned again for 1, as 1 of the devices was lost" in errors
    note = run.note()
    assert [(one["rank"], one["ranks"]) for one in note["restarts"]] == [(1, 2), (1, 1)]
    assert (note["status"], note["strategy"].startswith("one device")) == ("finished", True)
    assert note["restarts"][1]["from_step"] >= EVERY
    assert json.loads((run.run_dir() / "plan.json").read_text())["strategy"]["dp"] == 1
    assert [row["epoch"] for row in epochs(run.run_dir())] == [1, 2, 3]
    assert sorted(said_losses(run.run_dir())) == list(range(1, STEPS + 1))
    load_file(run.run_dir() / "model.safetensors")
    assert run.left() == []


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_a_signal_while_ranks_are_started_again_ends_the_run(start: Start, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    # The server of forks could not be interrupted while it is asked for ranks.
    run = start(f"{JOBS}:slow_again", "--max-restarts", "5", fault=str(gone), new=True)
    run.wait_for(lambda: committed(run), "commit")
    gone.touch()
    os.kill(run.ranks()[0], signal.SIGKILL)
    run.wait_for(lambda: (run.run_dir() / "logs" / "restart-1" / "rank1.log").exists(), "second start")
    run.signal(signal.SIGTERM)
    code, errors = run.end(100)
    assert code == 143, errors
    assert "to go on from its last checkpoint: trimaran train" in errors
    note = run.note()
    assert (note["status"], note["signal"]) == ("stopped", "SIGTERM")
    assert run.left() == []


@pytest.mark.timeout(900)
def test_a_run_goes_back_for_a_loss_that_is_not_a_number(start: Start) -> None:
    """Also where a rank dies afterwards."""
    run = start(f"{JOBS}:torn", "--on-nan", "rollback", "--max-restarts", "1", every=2, plan="torn.json")
    run.wait_for_step(EPOCH)
    os.kill(run.ranks()[1], signal.SIGKILL)
    code, errors = run.end(600)
    assert code == 0, errors
    assert "the training has gone back to the checkpoint after" in errors
    report = json.loads((run.run_dir() / "report.json").read_text())
    assert len(report["rollbacks"]) >= 3
    assert report["skipped_steps"] == []
    assert len(report["restarts"]) == 1
    assert all(one["batches"] == one["step"] - one["to"] + 1 for one in report["rollbacks"])
    assert run.note()["rollbacks"] == report["rollbacks"]
    assert [row["epoch"] for row in epochs_of_torn(run)] == [1, 2, 3]
    assert all(tensor.isfinite().all() for tensor in load_file(run.run_dir() / "model.safetensors").values())
    assert run.left() == []


def epochs_of_torn(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.run_dir() / "metrics.jsonl").read_text().splitlines()]


def test_what_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        ("--max-restarts", "2"): "restart.nothing-saved",
        ("--on-nan", "rollback"): "on-nan.nothing-saved",
        ("--on-nan", "back"): "on-nan.unknown",
    }
    for options, code in cases.items():
        done = trimaran("train", f"{PLAIN}:spoken", *options, "--json", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert json.loads(done.stdout)["error"]["code"] == code
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = trimaran("train", f"{PLAIN}:spoken", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["error"]["code"] == "train.started-by-launcher"
    assert "missing_ok=True" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_a_script_that_torchrun_starts_again_goes_on_from_its_newest_checkpoint(tmp_path: Path, planned: Path) -> None:
    """Also where a rank dies before the first commit."""
    folders = {name: tmp_path / name for name in ("undisturbed", "killed")}
    for name, folder in folders.items():
        folder.mkdir()
        elastic = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
        script = ["-m", "tests.distributed.elastic_loop", str(folder), "2 9" if name == "killed" else ""]
        run = Run([*elastic, *script], folder, planned, new=True)
        try:
            code, errors = run.end(600)
            assert code == 0, errors
            assert run.left() == []
        finally:
            run.kill()
    told = {name: steps_of(folder) for name, folder in folders.items()}
    assert [steps for _, steps in told["undisturbed"]] == [list(range(1, STEPS + 1))]
    starts = [steps[0] for _, steps in told["killed"]]
    assert starts[:2] == [1, 1]
    assert starts[2] in (EVERY + 1, 2 * EVERY + 1)
    assert told["killed"][-1][1][-1] == STEPS
    losses = told["undisturbed"][0][0]
    assert all(losses[step] == loss for found, _ in told["killed"] for step, loss in found.items())
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders.values()]
    assert weights[0] == weights[1]


def steps_of(folder: Path) -> list[tuple[dict[int, str], list[int]]]:
    """Of each start of rank 0 its losses by step, and its steps."""
    found = []
    for file in sorted(folder.glob("start-*.txt")):
        rows = [line.split() for line in file.read_text().splitlines()]
        found.append(({int(step): loss for step, loss in rows}, [int(step) for step, _ in rows]))
    return found
