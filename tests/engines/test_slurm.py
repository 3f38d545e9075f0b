"""Slurm over two nodes, as docs/torchrun.md says: warned, requeued, killed, and in the end the same training."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.nodes import obstacle, wait_for
from tests.engines.slurm import Slurm, missing_programs, slurm
from tests.engines.training import (
    EPOCHS,
    EVERY,
    STEPS,
    WEIGHTS,
    Steps,
    assert_equal,
    blocks,
    done_again,
    prepare,
    steps_of,
    train_undisturbed,
)

_OBSTACLE = missing_programs() or obstacle()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(_OBSTACLE), reason=_OBSTACLE or "Slurm can run"),
]

SOON_S = 150.0
(SCRIPT,) = blocks("torchrun.md", "bash", "#SBATCH")
TASKS, WAIT = "--ntasks-per-node=", "srun --wait="
Record = Callable[[str, object], None]


class Training:
    """A job of the cluster.

    Attributes:
        folder: that all nodes see
        number: of the job
    """

    def __init__(self, cluster: Slurm, folder: Path, each: int, *options: str, epochs: int = EPOCHS) -> None:
        self.cluster, self.folder = cluster, folder
        prepare(folder, epochs=epochs)
        assert f"{TASKS}2\n" in SCRIPT
        assert f"{WAIT}60 " in SCRIPT
        (folder / "train.sbatch").write_text(
            SCRIPT.replace(f"{TASKS}2", f"{TASKS}{each}").replace(f"{WAIT}60", f"{WAIT}5")
        )
        self.number = cluster.submit(folder / "train.sbatch", *options)

    @property
    def log(self) -> str:
        path = self.folder / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def steps(self) -> Steps:
        return steps_of(self.folder / "train.log")

    @property
    def state(self) -> str:
        return self.cluster.job(self.number)["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.cluster.job(self.number)["Restarts"])

    def wait_for_steps(self, count: int) -> None:
        before = len(self.steps)
        wait_for(lambda: len(self.steps) >= before + count, f"{count} more steps", SOON_S, self.told)

    def wait_for_end(self, state: str = "COMPLETED") -> None:
        wait_for(lambda: self.state not in ("RUNNING", "PENDING", "COMPLETING"), "end", SOON_S, self.told)
        assert self.state == state, self.told()

    def told(self) -> str:
        return f"{self.cluster.job(self.number)}\n{self.log[-3000:]}\n{self.cluster.told()}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm(folder) as made:
        yield made
        pids = [pid for node in (made.head, *made.nodes) for pid in node.processes()]
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_warned_job_saves_is_queued_again_and_loses_nothing(
    cluster: Slurm, tmp_path: Path, record_testsuite_property: Record
) -> None:
    """With the signal that Slurm sends before the time limit."""
    training = Training(cluster, tmp_path / "training", 1)
    training.wait_for_steps(EVERY + 20)
    warned = time.monotonic()
    cluster.ask("scancel", "--signal=USR1", str(training.number))
    wait_for(lambda: training.restarts == 1, "restart", SOON_S, training.told)
    training.wait_for_steps(1)
    record_testsuite_property("seconds without a step", time.monotonic() - warned)
    training.wait_for_end()
    assert re.search(r"SIGUSR1 ended the training after step \d+", training.log)
    assert done_again(training.steps) == 0
    assert_equal(training.steps, (training.folder / WEIGHTS).read_bytes(), train_undisturbed(tmp_path / "whole", 2))


@pytest.mark.parametrize("which", [1, pytest.param(0, marks=pytest.mark.sweep)], ids=["other", "batch host"])
def test_a_job_whose_node_dies_is_queued_again_and_ends_with_the_same_losses(
    cluster: Slurm, tmp_path: Path, which: int, record_testsuite_property: Record
) -> None:
    """The node is gone with all that runs on it, and comes back: at once; or, where the script of the job ran on it,
    when Slurm has given it up. (Of a job that began less than 20 s ago Slurm does not ask a node that is back, and next
    asks after 200 s.)"""
    training = Training(cluster, tmp_path / "training", 1)
    training.wait_for_steps(2 * EVERY + 20)
    node = cluster.nodes[which]
    node.stop()
    killed = time.monotonic()
    back_first = which != 0
    if not back_first:
        wait_for(lambda: training.restarts == 1, "restart", SOON_S, training.told)
    node.boot()
    cluster.start(node)
    if back_first:
        wait_for(lambda: training.restarts == 1, "restart", SOON_S, training.told)
    training.wait_for_steps(1)
    record_testsuite_property("seconds without a step", time.monotonic() - killed)
    training.wait_for_end()
    record_testsuite_property("steps done again", done_again(training.steps))
    assert 0 < done_again(training.steps) <= 2 * EVERY
    assert_equal(training.steps, (training.folder / WEIGHTS).read_bytes(), train_undisturbed(tmp_path / "whole", 2))


@pytest.mark.sweep
def test_slurm_itself_warns_before_the_time_limit(cluster: Slurm, tmp_path: Path) -> None:
    """Three minutes, warned 30 s before, which Slurm may do a minute earlier; what is to be done takes longer."""
    training = Training(cluster, tmp_path / "training", 2, "--time=3", "--signal=USR1@30", epochs=40000)
    wait_for(lambda: training.restarts == 1, "restart", 200.0, training.told)
    assert re.search(r"SIGUSR1 ended the training after step \d+", training.log), training.log[-2000:]
    training.wait_for_steps(20)
    assert done_again(training.steps) == 0
    cluster.ask("scancel", str(training.number))
    training.wait_for_end("CANCELLED")


@pytest.mark.sweep
def test_a_cancelled_job_saves_and_is_not_queued_again(cluster: Slurm, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path / "training", 1)
    training.wait_for_steps(EVERY + 20)
    cluster.ask("scancel", str(training.number))
    training.wait_for_end("CANCELLED")
    assert training.restarts == 0
    wait_for(lambda: "SIGTERM ended the training" in training.log, "last words", 30, training.told)
    again = cluster.submit(training.folder / "train.sbatch")
    training.number = again
    training.wait_for_end()
    assert done_again(training.steps) == 0
    assert len(training.steps) == STEPS


@pytest.mark.sweep
def test_a_job_goes_on_with_one_node_where_the_other_stays_away(cluster: Slurm, tmp_path: Path) -> None:
    """--nodes=1-2: two ranks, then one."""
    training = Training(cluster, tmp_path / "training", 1, "--nodes=1-2")
    training.wait_for_steps(2 * EVERY + 20)
    cluster.nodes[1].stop()
    wait_for(lambda: training.restarts == 1 and training.state == "COMPLETED", "end", SOON_S, training.told)
    assert {number for number, _ in training.steps} == set(range(1, STEPS + 1))
    assert 0 < done_again(training.steps) <= 2 * EVERY
    assert cluster.job(training.number)["NumNodes"] == "1"


@pytest.mark.sweep
def test_an_error_of_the_script_is_tried_five_times_more(cluster: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    training = Training(cluster, folder, 1, "--hold")
    (folder / "train.py").write_text("raise ValueError('no such file')\n")
    cluster.ask("scontrol", "release", str(training.number))
    training.wait_for_end("FAILED")
    assert training.restarts == 5
    assert cluster.job(training.number)["ExitCode"] == "1:0"
