"""When a training that has failed is started again, and on which devices."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, ExecutionError, InputError, TrimaranError
from trimaran.features.training.rank import TrainOptions, parse_saving
from trimaran.features.training.restarts import MOST_KINDS, VISIBLE, Restarts, devices_left, gpus_left, other_kind
from trimaran.features.training.run_record import RunDirectory, RunRecord
from trimaran.features.training.train import _Launching
from trimaran.planner.pins import parse_pins
from trimaran.program.strategy import Strategy
from trimaran.trial.compare import DIFFERS
from trimaran.trial.trial import TRIED


def died(rank: int = 1, code: int = -signal.SIGKILL, step: int | None = 5) -> ExecutionError:
    return ExecutionError("it died", code="rank.died", rank=rank, exit_code=code, step=step)


def raised(text: str, step: int, rank: int = 0) -> ExecutionError:
    return ExecutionError(text, code="rank.raised", rank=rank, raised=text, step=step)


def hangs(state: str, step: int, rank: int = 1) -> ExecutionError:
    return ExecutionError("it hangs", code="rank.hangs", rank=rank, state=state, step=step, instruction="0F0")


def refusals(errors: list[TrimaranError], *, progressed: bool = True) -> list[str]:
    restarts = Restarts(100)
    return [restarts.judge(error, progressed=progressed).refused for error in errors]


def test_what_may_go_away_is_started_again() -> None:
    full = EnvironmentProblem("full", code="checkpoint.no-space")
    errors = [
        died(), died(), died(code=7), died(code=8), raised("OSError: no answer", 3), raised("OSError: no answer", 4),
        hangs("T", 9), hangs("T", 9), hangs("S", 9), hangs("S", 10),
        full, full, ExecutionError("a peer is gone", code="rank.lost-peer", rank=0),
        ExecutionError("too much", code="memory.exhausted"),
    ]  # fmt: skip
    assert refusals(errors) == [""] * len(errors)


@pytest.mark.parametrize(
    "error",
    [raised("ValueError: wrong", 7), died(code=3), died(code=-signal.SIGSEGV), hangs("R", 7)],
    ids=lambda error: error.code,
)
def test_the_same_error_at_the_same_step_is_not_repeated_for_ever(error: ExecutionError) -> None:
    assert refusals([error, error]) == ["", "the same error came twice at the same step"]
    # On whichever rank it comes first.
    assert refusals([raised("x", 7, rank=0), raised("x", 7, rank=1)])[1]
    assert refusals([raised("x", 7), died(), raised("x", 7)]) == [""] * 3


@pytest.mark.parametrize(
    "error",
    [
        InputError("wrong"),
        CorruptDataError("damaged"),
        ExecutionError("nan", code="loss.not-finite", step=3),
        ExecutionError("nan", code="loss.rolled-back-too-often", step=3),
        died(code=-signal.SIGTERM),
        died(code=-signal.SIGUSR1),
        TrimaranError("not expected"),
    ],
    ids=lambda error: error.code,
)
def test_what_would_come_again_or_was_asked_for_is_not_started_again(error: TrimaranError) -> None:
    assert refusals([error])[0]


def test_a_signal_to_the_run_ends_it() -> None:
    assert Restarts(3).judge(died(), progressed=True, asked=True).refused == "a signal has asked for its end"


def test_what_the_machine_lacks_from_the_start_ends_the_run() -> None:
    full = EnvironmentProblem("full", code="checkpoint.no-space")
    assert refusals([full], progressed=False) == ["no step had been done"]


def test_starts_that_come_to_nothing_wait_longer_and_longer() -> None:
    restarts = Restarts(100)
    waits = [restarts.judge(died(rank=n % 2), progressed=n in (0, 9)).wait_s for n in range(12)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 0.0, 1.0, 2.0]


def test_a_rank_that_dies_twice_without_a_step_between_has_lost_its_device() -> None:
    restarts = Restarts(100)
    assert restarts.judge(died(rank=2), progressed=True).lost is None
    assert restarts.judge(hangs("T", 0, rank=2), progressed=False).lost == 2
    assert restarts.judge(died(rank=1), progressed=False).lost is None
    assert restarts.judge(died(rank=1), progressed=True).lost is None
    # An error of the code says nothing of the device.
    assert restarts.judge(raised("x", 1, rank=1), progressed=False).lost is None
    assert restarts.judge(died(rank=1), progressed=False).lost is None


def planned(ranks: int, form: str) -> Any:
    strategy = SimpleNamespace(devices=ranks)
    cluster = SimpleNamespace(machine=SimpleNamespace(node=SimpleNamespace(device=SimpleNamespace(form=form))))
    return SimpleNamespace(simulated=SimpleNamespace(plan=SimpleNamespace(strategy=strategy), cluster=cluster))


def test_gpus_that_are_lost_are_hidden_from_the_ranks_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert devices_left(planned(3, "cpu"), None) == 3
    assert devices_left(planned(3, "cpu"), 1) == 2
    assert devices_left(planned(4, "sxm"), None, lambda: ["0", "1", "2", "3"]) == 4
    assert VISIBLE not in os.environ
    assert devices_left(planned(4, "sxm"), None, lambda: ["0", "2", "3"]) == 3
    assert os.environ[VISIBLE] == "0,2,3"
    # Rank 1 has the second one that is shown.
    assert devices_left(planned(3, "sxm"), 1, lambda: ["0", "2", "3"]) == 2
    assert os.environ[VISIBLE] == "0,3"
    assert devices_left(planned(2, "sxm"), None, list) == 0


def differing(strategy: Strategy, *, search: Any = "alternatives", **pinned: Any) -> Any:
    simulated = SimpleNamespace(plan=SimpleNamespace(strategy=strategy), search=search)
    return SimpleNamespace(request=SimpleNamespace(pins=parse_pins(**pinned)), simulated=simulated)


@pytest.mark.parametrize(
    ("planned", "asked"),
    [
        (differing(Strategy(dp=2)), {"forbid": ("dp",), "microbatches": None}),
        (differing(Strategy(dp=2, zero=3), forbid=["pp"]), {"forbid": ("pp", "zero"), "microbatches": None}),
        (differing(Strategy(microbatches=4)), {"forbid": (), "microbatches": 1}),
        (differing(Strategy(dp=2), microbatches=1), {"forbid": ("dp",), "microbatches": 1}),
        # The user has given it, or a part of it, or a file.
        (differing(Strategy(dp=2), dp=2), None),
        (differing(Strategy(dp=2), allow=["dp"]), None),
        (differing(Strategy(dp=2), search=None), None),
    ],
)
def test_another_kind_is_asked_for_where_the_user_gave_none(planned: Any, asked: dict[str, Any] | None) -> None:
    assert other_kind(planned) == asked


@pytest.mark.parametrize("differ", [0, 2, MOST_KINDS + 1])
def test_a_plan_that_a_trial_finds_to_differ_is_replaced_three_times_at_most(
    differ: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []

    def launch(_: Any, planned: Any, restarted: int, folder: str) -> tuple[str, None]:
        folders.append(folder)
        if len(folders) <= differ:
            raise ExecutionError("it differs", code=DIFFERS, **{TRIED: True})
        return "done", None

    plan = differing(Strategy(dp=2))
    monkeypatch.setattr(_Launching, "_launch", launch)
    monkeypatch.setattr(_Launching, "_plan_again", lambda _, planned, note, **asked: planned)
    nothing: Any = SimpleNamespace(training=False)
    launching = _Launching(run=nothing, notes=nothing, stopping=nothing, options=nothing, progress=nothing)
    if differ > MOST_KINDS:
        with pytest.raises(ExecutionError, match="it differs"):
            launching.train(plan, Restarts(0))
    else:
        assert launching.train(plan, Restarts(0))[1:] == ("done", None)  # type: ignore[comparison-overlap]
    assert folders == ["", *(f"plan-{number}" for number in range(1, min(differ, MOST_KINDS) + 1))]


def test_without_a_gpu_none_is_left() -> None:
    assert gpus_left({**os.environ, VISIBLE: "", "CUDA_VISIBLE_DEVICES": ""}) == []


def test_restarts_and_rollbacks_need_checkpoints() -> None:
    saving = parse_saving("10min")
    TrainOptions(max_restarts=3, saving=saving).check()
    with raises("restart.nothing-saved", match="--save-every"):
        TrainOptions(max_restarts=1).check()
    TrainOptions(on_nan="skip").check()
    with raises("on-nan.nothing-saved", match="--save-every"):
        TrainOptions(on_nan="rollback").check()


# ---------------------------------------------------------------------------------------------------------------------
# What the run notes


def record(folder: Path) -> tuple[RunRecord, RunDirectory]:
    run = RunDirectory(path=folder)
    notes = RunRecord(run)
    notes.begin(job="j", strategy="dp2")
    return notes, run


def rows(run: RunDirectory) -> list[tuple[int, float]]:
    return [(row["epoch"], row["loss"]) for row in map(json.loads, run.metrics.read_text().splitlines())]


def test_an_epoch_that_is_done_again_has_one_row(tmp_path: Path) -> None:
    notes, run = record(tmp_path)
    for epoch in (1, 2, 3):
        notes.add_metrics({"epoch": epoch, "loss": epoch / 10})
    # As after a start from the end of the first epoch.
    notes.add_metrics({"epoch": 1, "loss": 0.1})
    assert rows(run) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    notes.add_metrics({"epoch": 2, "loss": 0.25})
    assert rows(run) == [(1, 0.1), (2, 0.25)]
    notes.add_metrics({"epoch": 3, "loss": 0.35})
    assert rows(run) == [(1, 0.1), (2, 0.25), (3, 0.35)]
    assert not notes.problems


def test_rows_that_could_not_be_written_anew_are_written_later(tmp_path: Path) -> None:
    notes, run = record(tmp_path)
    for epoch in (1, 2):
        notes.add_metrics({"epoch": epoch, "loss": epoch / 10})
    run.metrics.unlink()
    run.metrics.mkdir()
    notes.add_metrics({"epoch": 2, "loss": 0.25})
    assert "metrics.jsonl" in notes.problems
    run.metrics.rmdir()
    notes.add_metrics({"epoch": 3, "loss": 0.35})
    assert rows(run) == [(1, 0.1), (2, 0.25), (3, 0.35)]
    assert not notes.problems


def test_the_run_says_why_and_from_where_it_was_started_again(tmp_path: Path) -> None:
    notes, run = record(tmp_path)
    error = ExecutionError("rank 1 was killed by SIGKILL\nand more", code="rank.died", rank=1)
    notes.restart(why=error, step=9, strategy="dp2", ranks=2)
    taken = {"path": "step-00000006", "step": 6, "passed_over": [], "changed": []}
    notes.recover(taken)
    notes.roll_back({"step": 11, "to": 9, "batches": 3})
    found = json.loads((run.path / "run.json").read_text())
    (restart,) = found["restarts"]
    assert restart.pop("at")
    assert restart == {
        "reason": "rank 1 was killed by SIGKILL", "code": "rank.died", "rank": 1, "step": 9, "from_step": 6,
        "strategy": "dp2", "ranks": 2,
    }  # fmt: skip
    assert (found["rollbacks"], found["recovered"]) == ([{"step": 11, "to": 9, "batches": 3}], taken)
    notes.recover(taken | {"step": 9}, [{"step": 3, "to": 2, "batches": 2}])
    assert json.loads((run.path / "run.json").read_text())["rollbacks"] == [{"step": 3, "to": 2, "batches": 2}]
    notes.recover(None)
    found = json.loads((run.path / "run.json").read_text())
    assert not {"rollbacks", "recovered"} & found.keys()
    assert found["restarts"][0]["from_step"] == 0
    notes.leave(signal.SIGTERM, 9, 2, starting=True)
    found = json.loads((run.path / "run.json").read_text())
    assert (found["status"], found["signal"], found["step"]) == ("stopped", "SIGTERM", 9)
