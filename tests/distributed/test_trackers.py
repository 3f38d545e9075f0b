"""Curves in TensorBoard of runs of two processes that are killed."""

import os
import signal
from pathlib import Path

import pytest
from tests.distributed.signalled_runs import Run, plan_for_two

pytest.importorskip("tensorboard")

JOB = f"{Path(__file__).with_name('resumed_jobs.py')}:spoken"
EPOCHS, STEPS, EVERY = 3, 15, 3


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name their points as TensorBoard shows them, in the order in which it has read them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in events.Tags()["scalars"]}


def last_step(run: Run) -> int:
    """That rank 0 has said, however often it was started."""
    texts = [log.read_text() for log in run.folder.rglob("rank0.log")]
    return max((int(line[5:]) for text in texts for line in text.splitlines() if line.startswith("step ")), default=0)


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_goes_on_with_its_curve(spoken: Path, tmp_path: Path) -> None:
    """First a rank, which is started again, then all, and another run goes on."""
    planned = plan_for_two(spoken, JOB)
    how = (JOB, "--plan", str(planned / "plan.json"), "--save-every", str(EVERY), "--log", "tensorboard", "--no-trial")

    def start(name: str, *more: str) -> Run:
        (tmp_path / name).mkdir(exist_ok=True)
        return Run(["trimaran", "train", *how, *more], tmp_path / name, planned)

    whole = start("whole")
    assert whole.end(600)[0] == 0
    torn = start("torn", "--max-restarts", "1")
    torn.wait_for(lambda: last_step(torn) >= 5, "step 5")
    os.kill(torn.ranks()[-1], signal.SIGKILL)
    torn.wait_for(lambda: "restart 1 of 1" in torn.said() and last_step(torn) >= 11, "step 11")
    torn.kill()
    run = torn.run_dir()
    until_then = curves(run)["train/loss"]
    again = start("again", "--resume", str(run))
    code, errors = again.end(600)
    assert code == 0, errors
    expected, found = curves(whole.run_dir()), curves(run)
    assert [step for step, _ in expected["train/loss"]] == [*range(STEPS)]
    assert 10 <= len(until_then) < STEPS
    same = {name for name in expected if name.startswith("epoch/") or name in ("train/loss", "train/learning_rate")}
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    assert {len(expected[name]) for name in same if name.startswith("epoch/")} == {EPOCHS}
    assert {name: len(points) for name, points in found.items()} == {name: len(expected[name]) for name in expected}
    assert not [*again.run_dir().glob("events.*")]
