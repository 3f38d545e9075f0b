"""A signal that asks for the end: after a step of all ranks, with all that is there; a second one at once."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.distributed.signalled_jobs import BATCHES, make_model
from tests.distributed.signalled_runs import Run, train
from tests.ports import free_ports

from trimaran.features.training.run_record import describe_status, read_status

AGAIN_S = 0.7
SOON_S = 100.0
CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 138, signal.SIGINT: 130}

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, planned_pair: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(job: str, fault: str = "", *, new: bool = False) -> Run:
        runs.append(Run(train(job, planned_pair), tmp_path, planned_pair, fault, new=new))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def assert_ended_cleanly(run: Run, number: signal.Signals) -> None:
    """At one step of all ranks, with everything that was there; `number` is said."""
    code, errors = run.end()
    assert code == CODES[number], errors
    note = run.note()
    assert (note["status"], note["signal"]) == ("stopped", number.name)
    assert run.steps() == [note["step"]] * 2
    assert f"{number.name} ended the training after step {note['step']}, in epoch {note['epoch']}" in errors
    assert str(run.run_dir().relative_to(run.folder)) in errors
    assert "Traceback" not in errors
    # After the last step of an epoch, which is over with its evaluation.
    assert note["epoch"] == (note["step"] - 1) // BATCHES + 1 or note["step"] % BATCHES == 0
    assert run.epochs() == list(range(1, note["epoch"]))
    make_model().load_state_dict(load_file(run.run_dir() / "model.safetensors"))
    assert json.loads((run.run_dir() / "report.json").read_text())["plan"]["strategy"].startswith("dp2")
    assert run.left() == []
    assert no_part_of_a_file(run.folder)


def no_part_of_a_file(folder: Path) -> bool:
    return not [path for path in folder.rglob(".*") if path.is_file()]


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_ends_a_training_after_a_step_of_all_ranks(start: Start, number: signal.Signals) -> None:
    run = start("plain", new=number == signal.SIGTERM)
    run.wait_for_step(BATCHES + 1)
    run.signal(number)
    assert_ended_cleanly(run, number)


def test_a_signal_to_one_rank_ends_all(start: Start) -> None:
    run = start("plain")
    run.wait_for_step()
    os.kill(run.ranks()[-1], signal.SIGTERM)
    assert_ended_cleanly(run, signal.SIGTERM)


def test_a_signal_to_every_process_is_one_signal(start: Start) -> None:
    """As of Slurm, which tells all processes of a job."""
    run = start("plain")
    run.wait_for_step()
    for pid in run.processes():
        os.kill(pid, signal.SIGUSR1)
    assert_ended_cleanly(run, signal.SIGUSR1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_leaves_at_once(start: Start, number: signal.Signals) -> None:
    run = start("slow_step", "3")
    run.wait_for_step(3)
    run.signal(number)
    time.sleep(AGAIN_S)
    assert run.process.poll() is None
    run.signal(number)
    code, errors = run.end(SOON_S)
    assert code == CODES[number], errors
    assert f"{number.name} again: it ends at once" in errors
    note = run.note()
    assert (note["status"], note["signal"], note["step"]) == ("stopped", number.name, 2)
    assert run.left() == []
    assert no_part_of_a_file(run.folder)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_while_a_job_is_planned_leaves_nothing(start: Start, number: signal.Signals) -> None:
    run = start("slow_model")
    run.wait_for(
        lambda: "signalled_jobs" in Path(f"/proc/{run.process.pid}/maps").read_text() or _has_handler(run), "plan"
    )
    run.signal(number)
    code, errors = run.end(SOON_S)
    assert code == CODES[number], errors
    assert ("interrupted" if number == signal.SIGINT else number.name) in errors
    assert "Traceback" not in errors
    assert run.left() == []
    assert list(run.folder.iterdir()) == [run.errors]


def _has_handler(run: Run) -> bool:
    """It catches SIGTERM: the command has begun."""
    status = Path(f"/proc/{run.process.pid}/status").read_text()
    caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_a_step_that_was_told_and_not_read_is_not_lost(start: Start, tmp_path: Path) -> None:
    """The parent of the ranks had no core for as long as their first steps took."""
    file = tmp_path.with_name(f"{tmp_path.name}-goes-on")
    run = start("waits", str(file))
    run.wait_for_step(1)
    run.signal(signal.SIGSTOP)
    file.touch()
    run.wait_for_step(2)
    run.signal(signal.SIGUSR1)
    run.signal(signal.SIGCONT)
    assert_ended_cleanly(run, signal.SIGUSR1)


def test_a_signal_before_the_first_step_leaves_no_run(start: Start) -> None:
    run = start("slow_step", "1")
    run.wait_for_step(1)
    run.signal(signal.SIGTERM)
    code, errors = run.end(SOON_S)
    assert code == 143, errors
    assert "nothing is left of the run" in errors
    assert run.left() == []
    assert list(run.folder.iterdir()) == [run.errors]


@pytest.mark.sweep
def test_a_signal_breaks_an_evaluation_off(start: Start) -> None:
    """It would take two minutes; the epoch is not over, and has no line of figures."""
    run = start("slow_evaluation")
    run.wait_for_step(BATCHES)
    run.wait_for(lambda: "evaluating" in next(run.folder.glob("runs/*/logs/rank0.log")).read_text(), "evaluation")
    run.signal(signal.SIGTERM)
    code, errors = run.end(SOON_S)
    assert code == 143, errors
    note = run.note()
    assert (note["status"], note["step"], note["epoch"]) == ("stopped", BATCHES, 1)
    assert not (run.run_dir() / "metrics.jsonl").exists()
    assert run.left() == []


def test_a_run_that_was_killed_has_ended_without_a_word(start: Start) -> None:
    run = start("plain")
    run.wait_for_step()
    assert read_status(run.run_dir())[0] == "running"
    run.signal(signal.SIGKILL)
    run.end()
    assert run.left() == []
    assert run.note()["status"] == "running"
    assert read_status(run.run_dir())[0] == "lost"
    assert f"ended without a word (process {run.note()['process']['pid']} is gone)" in describe_status(run.run_dir())


@pytest.mark.sweep
def test_a_terminal_that_hangs_up_ends_the_training_cleanly(tmp_path: Path, planned_pair: Path) -> None:
    """What is printed afterwards would be an error of the terminal's."""
    ours, theirs = os.openpty()
    run = Run(
        train("plain", planned_pair),
        tmp_path,
        planned_pair,
        new=True,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(theirs, 0x540E, 0),  # TIOCSCTTY: its terminal
    )
    try:
        os.close(theirs)
        run.wait_for_step()
        os.close(ours)
        assert_ended_cleanly(run, signal.SIGHUP)
    finally:
        run.kill()


# ---------------------------------------------------------------------------------------------------------------------
# A script that a launcher has started


@pytest.fixture
def script(tmp_path: Path, planned_pair: Path) -> Iterator[Callable[..., list[Run]]]:
    runs: list[Run] = []

    def begin(how: str, ranks: int = 2) -> list[Run]:
        port = "0" if ranks == 1 else str(free_ports())
        for rank in range(ranks):
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            command = ["tests.distributed.signalled_loop", how, str(tmp_path)]
            environment = {} if ranks == 1 else place
            runs.append(Run(command, tmp_path, planned_pair, environment=environment))
        return runs

    yield begin
    for run in runs:
        run.kill()


def _steps(folder: Path, rank: int) -> list[str]:
    path = folder / f"{rank}.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_to_a_rank_of_a_script_ends_all_at_one_step(
    script: Callable[..., list[Run]], tmp_path: Path, number: signal.Signals
) -> None:
    runs = script("batches")
    runs[0].wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
    runs[1].signal(number)
    codes = [run.end()[0] for run in runs]
    assert codes == [CODES[number]] * 2, [run.said() for run in runs]
    told = [_steps(tmp_path, rank) for rank in range(2)]
    assert told[0] == told[1]
    assert told[0][-1] == f"stopped by {number.name}, weights saved"
    assert f"{number.name} ended the training after step {len(told[0]) - 1}" in runs[0].said()
    assert [run.left() for run in runs] == [[], []]


@pytest.mark.parametrize("how", ["with", "never closed", "does not look"])
def test_a_script_ends_with_the_code_of_the_signal(script: Callable[..., list[Run]], tmp_path: Path, how: str) -> None:
    """Also one that does not look whether it is to stop: its next step ends it."""
    (run,) = script(how, ranks=1)
    run.wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
    run.signal(signal.SIGTERM)
    code, errors = run.end(SOON_S)
    assert code == 143, errors
    assert "Traceback" not in errors


def test_a_second_signal_ends_a_rank_whose_peer_is_gone_silent(
    script: Callable[..., list[Run]], tmp_path: Path
) -> None:
    """Its main thread waits inside gloo, where Python hears no signal."""
    runs = script("batches")
    runs[0].wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
    runs[1].signal(signal.SIGSTOP)
    time.sleep(1.0)
    runs[0].signal(signal.SIGTERM)
    time.sleep(AGAIN_S)
    assert runs[0].process.poll() is None
    runs[0].signal(signal.SIGTERM)
    assert runs[0].end(SOON_S)[0] == 143


def test_a_handler_of_the_users_is_called_too_and_put_back(script: Callable[..., list[Run]], tmp_path: Path) -> None:
    (run,) = script("own handler", ranks=1)
    run.wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
    run.signal(signal.SIGUSR1)
    assert run.end(SOON_S)[0] == 138
    told = _steps(tmp_path, 0)
    assert (told.count("own handler"), told[-1]) == (1, "put back")


def test_a_signal_that_is_ignored_stays_ignored(script: Callable[..., list[Run]], tmp_path: Path) -> None:
    """As SIGHUP under nohup."""
    (run,) = script("ignores", ranks=1)
    run.wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
    run.signal(signal.SIGHUP)
    before = len(_steps(tmp_path, 0))
    run.wait_for(lambda: len(_steps(tmp_path, 0)) > before + 3, "steps after it")
    run.signal(signal.SIGTERM)
    assert run.end(SOON_S)[0] == 143


@pytest.mark.sweep
def test_torchrun_ends_its_ranks_cleanly(tmp_path: Path, planned_pair: Path) -> None:
    """It passes the signal on; both ranks have done the same steps and saved."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    loop = ["-m", "tests.distributed.signalled_loop", "batches", str(tmp_path)]
    run = Run([*command, *loop], tmp_path, planned_pair, new=True)
    try:
        run.wait_for(lambda: len(_steps(tmp_path, 0)) > 2, "steps")
        run.signal(signal.SIGTERM)
        run.end()
        told = [_steps(tmp_path, rank) for rank in range(2)]
        assert told[0] == told[1]
        assert told[0][-1] == "stopped by SIGTERM, weights saved"
        assert run.left() == []
    finally:
        run.kill()
