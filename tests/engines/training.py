"""The training of the documents: their scripts, what it printed, and the same training undisturbed."""

import os
import re
import runpy
import shutil
from pathlib import Path

from tests.engines.nodes import ROOT
from tests.forks.world import run_world

EXAMPLE = ROOT / "examples" / "resumable_loop.py"
EPOCHS, EPOCH, EVERY = 16, 25, 50
"""Epochs of the training, steps of one, and steps between two checkpoints."""
STEPS = EPOCHS * EPOCH
WEIGHTS = "model.safetensors"


def blocks(page: str, language: str, containing: str) -> list[str]:
    """The code of a page of docs/ that contains a text."""
    text = (ROOT / "docs" / page).read_text()
    return [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if containing in block]


def prepare(folder: Path, *, epochs: int = EPOCHS) -> None:
    """Put the script of the documents into a folder, as `train.py`; perhaps with another number of epochs."""
    folder.mkdir(exist_ok=True)
    (script,) = blocks("torchrun.md", "python", "trimaran.init")
    assert f"epochs={EPOCHS}," in script
    (folder / "train.py").write_text(script.replace(f"epochs={EPOCHS},", f"epochs={epochs},"))


Steps = list[tuple[int, str]]
"""Numbers and losses, as they were printed: a loss is printed with all of its digits."""


def steps_of(*logs: Path) -> Steps:
    """The steps that were printed, file after file."""
    text = "\n".join(log.read_text(errors="replace") for log in logs if log.exists())
    return [(int(number), loss) for number, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)]


def done_again(steps: Steps) -> int:
    """How many steps were done more than once."""
    return len(steps) - len(dict(steps))


def run_script(folder: str) -> None:
    """Be a rank of the training, in a process that was forked."""
    os.chdir(folder)
    runpy.run_path("train.py", run_name="__main__")


def train_undisturbed(
    folder: Path, ranks: int, *, checkpoints: Path | None = None, epochs: int = EPOCHS
) -> tuple[Steps, bytes]:
    """Train in one go, on forked ranks and the loopback interface, without torchrun or Slurm.

    Args:
        folder: to train in; new
        ranks: how many
        checkpoints: to begin with; they are copied
        epochs: in all

    Returns:
        The steps, and the file of the weights.
    """
    prepare(folder, epochs=epochs)
    if checkpoints is not None:
        shutil.copytree(checkpoints, folder / "checkpoints")
    run_world(run_script, str(folder), processes=ranks, folder=folder)
    return steps_of(folder / "0.log"), (folder / WEIGHTS).read_bytes()


def assert_equal(steps: Steps, weights: bytes, undisturbed: tuple[Steps, bytes]) -> None:
    """All steps were done, and each, also where it was done again, has the loss of the undisturbed training."""
    expected = dict(undisturbed[0])
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert {number for number, _ in steps} == set(expected)
    assert [(number, loss) for number, loss in steps if loss != expected[number]] == []
    assert weights == undisturbed[1]
