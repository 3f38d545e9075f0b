"""Metrics in trackers: what is written, by whom, and how a curve goes on."""

import dataclasses
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.jobs import normed

import trimaran
from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.features.training import trackers
from trimaran.features.training.rank import TrainOptions
from trimaran.features.training.run_record import RunDirectory
from trimaran.features.training.train import how_to_resume
from trimaran.jobs.resolve import JobSource

NEEDED = pytest.mark.parametrize("tool", [*trackers.TRACKERS])


class Memory:
    """A tracker that keeps points, as one whose run can be opened again."""

    runs: dict[str, dict[int, Mapping[str, float]]] = {}  # noqa: RUF012

    def __init__(self, place: str, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        self.place = place or f"run {len(self.runs)}"
        kept = {at: row for at, row in self.runs.get(self.place, {}).items() if at < step}
        self.rows = self.runs[self.place] = kept

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        self.rows[step] = {**self.rows.get(step, {}), **figures}

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Memory]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Memory)  # type: ignore[arg-type]
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    Memory.runs = {}
    return Memory


def missing(tool: str) -> bool:
    return find_spec(tool) is None


@NEEDED
def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    for start in (TrainOptions(log=tool).check, lambda: trimaran.init(normed(), log=tool)):
        with pytest.raises(EnvironmentProblem, match=f"pip install {tool}") as raised:
            start()
        assert raised.value.code == "log.not-installed"


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(InputError, match='did you mean "mlflow"') as raised:
        TrainOptions(log="mlfow").check()
    assert raised.value.code == "log.unknown"


def test_who_goes_on_logs_again() -> None:
    command = how_to_resume(JobSource(reference="digits"), RunDirectory(path=Path("r")), TrainOptions(log="wandb"))
    assert command == "trimaran train digits --resume r --log wandb"


def trained(*, steps: int, folder: Path, resume: bool = False) -> int:
    """How many steps are done in the end."""
    session = trimaran.init(dataclasses.replace(normed(), epochs=2), log="tensorboard")
    if resume:
        session.load_checkpoint(folder)
    for batch in session.batches():
        session.step(batch)
        if session.steps == 3:
            session.save_checkpoint(folder)
        if session.steps == steps:
            break
    done = session.steps
    session.close()
    return done


def test_a_curve_has_each_step_and_epoch(memory: type[Memory], tmp_path: Path) -> None:
    done = trained(steps=99, folder=tmp_path / "kept")
    (rows,) = memory.runs.values()
    a_step = {"train/loss", "train/learning_rate", "train/step_seconds", "train/samples_per_second"}
    assert [step for step, row in rows.items() if a_step <= row.keys()] == [*range(done)]
    assert all(row["train/step_seconds"] > 0 for row in rows.values() if a_step <= row.keys())
    ended = {step: row["epoch/number"] for step, row in rows.items() if "epoch/number" in row}
    assert ended == {done // 2: 1.0, done: 2.0}
    of_the_last = [rows[step]["train/loss"] for step in range(done // 2, done)]
    assert min(of_the_last) < rows[done]["epoch/loss"] < max(of_the_last)


def test_a_training_that_goes_on_from_a_checkpoint_goes_on_with_its_curve(memory: type[Memory], tmp_path: Path) -> None:
    trained(steps=4, folder=tmp_path / "kept")
    ((place, before),) = [(place, dict(rows)) for place, rows in memory.runs.items()]
    done = trained(steps=99, folder=tmp_path / "kept", resume=True)
    assert [*memory.runs] == [place]
    after = memory.runs[place]
    assert [step for step, row in after.items() if "train/loss" in row] == [*range(done)]
    assert {step: after[step]["train/loss"] for step in range(3)} == {n: before[n]["train/loss"] for n in range(3)}


def test_a_tracker_that_fails_is_said_once_and_the_training_goes_on(
    memory: type[Memory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Memory, step: int, figures: Mapping[str, float]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Memory, "add", fail)
    assert trained(steps=99, folder=tmp_path / "kept") > 4
    told = [line for line in capfd.readouterr().err.splitlines() if "metrics are no longer written" in line]
    assert len(told) == 1
    assert "No space left on device" in told[0]


# ---------------------------------------------------------------------------------------------------------------------
# The packages themselves


def written(log: trackers.MetricLog) -> str:
    """Steps 0 to 5, then again from step 3 on in another process's place, up to 7; the place of the curve."""
    for step in range(6):
        log.add(step, {trackers.LOSS: 10.0 - step, "train/learning_rate": None})
    log.add(6, {"epoch/number": 1.0})
    log.close()
    again = trackers.MetricLog(log._tool, Path("elsewhere"), {})
    again.go_on(log.place, 3, None)
    for step in range(3, 8):
        again.add(step, {trackers.LOSS: 10.0 - step})
    again.close()
    assert again.place == log.place
    return log.place


@pytest.mark.skipif(missing("tensorboard"), reason="tensorboard is not installed")
def test_a_curve_in_tensorboard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = written(trackers.MetricLog("tensorboard", tmp_path / "run", {"job": "digits"}))
    assert place == str(tmp_path / "run")
    events = EventAccumulator(place).Reload()
    assert [(point.step, point.value) for point in events.Scalars(trackers.LOSS)] == [(n, 10.0 - n) for n in range(8)]
    assert events.Scalars("epoch/number") == []
    assert "no longer written" not in capfd.readouterr().err


@pytest.mark.skipif(missing("mlflow"), reason="mlflow is not installed")
def test_a_curve_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    place = written(trackers.MetricLog("mlflow", tmp_path / "run", {"job": "digits"}))
    client = mlflow.MlflowClient()
    points = client.get_metric_history(place, trackers.LOSS)
    assert sorted((point.step, point.value) for point in points) == [(n, 10.0 - n) for n in range(8)]
    assert (client.get_run(place).info.run_name, client.get_run(place).data.params) == ("run", {"job": "digits"})
    assert "no longer written" not in capfd.readouterr().err


@pytest.mark.skipif(missing("wandb"), reason="wandb is not installed")
def test_a_run_of_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = written(trackers.MetricLog("wandb", tmp_path / "run", {"job": "digits"}))
    assert len([*tmp_path.glob(f"wandb/offline-run-*-{place}")]) == 2
    assert "no longer written" not in capfd.readouterr().err
