"""Each document that a command writes is read back by each command that takes it, also on a busy machine."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.unit.machine.test_imports import MESH

SCRIPT = """
import torch
device, steps = "cuda" if torch.cuda.is_available() else "cpu", {steps}
model = torch.nn.Linear(64, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.ones(16, 64, device=device)).sum().backward()
    optimizer.step()
"""
JOB = """
import torch
from trimaran import Job

def samples(seed):
    inputs = torch.randn(128, 8, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())

def make_job():
    return Job(
        model=lambda: torch.nn.Linear(8, 2),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: samples(0),
        evaluation_dataset=lambda: samples(1),
        metric=lambda scores, classes: (scores.argmax(dim=1) == classes).double().mean().item(),
        target=0.6,
        global_batch_size=16,
        epochs=1,
    )
"""
TABLE = "global_batch,epochs\n32,4\n64,4.2\n128,5\n256,7\n512,11\n"
ON = "--cluster dgx1-v100 --devices 4"

PAIRS = {
    f"plan lenet {ON} --batch 64 -o plan.json --json": (
        *("report plan.json -o page.html", "explain plan.json", "simulate plan.json"),
    ),
    "plan llama3:8b --cluster dgx-h100 --batch 8 -o plan.json --json": (
        *("report plan.json -o page.html", "explain plan.json", "export plan.json --to torchtitan -o config.py"),
        *("export plan.json --to megatron", "report out.json -o page.html"),
    ),
    "scale lenet --cluster dgx1-v100 --devices 1,2,4 --json": ("report out.json -o page.html",),
    "memory lenet --device v100 --json": ("report out.json -o page.html",),
    "crossover vgg16 --cluster 8xrtx-3090 --devices 8,16 --widths 2 --json": ("report out.json -o page.html",),
    "curve table.csv --samples-per-epoch 60000 --output curve.toml --json": (
        *("report out.json -o page.html", "curve curve.toml --at 64", f"plan lenet {ON} --curve curve.toml"),
        "crossover vgg16 --cluster 8xrtx-3090 --devices 8,16 --widths 2 --curve curve.toml",
    ),
    "curve table.csv --output curve.json": ("curve curve.json --at 64",),
    "converge job.py:make_job --devices 1 --batches 16,32 --repeats 1 --max-epochs 4 -o curve.json --json": (
        *("report out.json -o page.html", "curve curve.json --at 16"),
        "plan job.py:make_job --devices 1 --curve curve.json",
    ),
    "calibrate --devices 1 --repeats 2 -o calibration.json --json": (
        "plan job.py:make_job --devices 1 --calibration calibration.json -o plan.json",
        "train job.py:make_job --plan plan.json --calibration calibration.json --epochs 1",
        "simulate plan.json --calibration calibration.json",
    ),
    "plan job.py:make_job --devices 2 --strategy dp2 -o plan.json --json": (
        *("train job.py:make_job --plan plan.json", "explain plan.json"),
        *("simulate plan.json", "report plan.json -o page.html"),
    ),
    "train job.py:make_job --devices 1 --epochs 2 --save-every 4 --json": (
        *("report {run} -o page.html", "checkpoint show {run}", "checkpoint verify {run}"),
        *("checkpoint export {run} -o out.safetensors", "train job.py:make_job --resume {run} --epochs 3"),
        "train job.py:make_job --weights out.safetensors --epochs 1",
    ),
    "clusters --import topo.txt --device v100 --toml": (
        "clusters rack.toml",
        "plan lenet --cluster rack.toml --batch 64",
    ),
    "rehearse --world 1 --steps 2 --json train.py": ("report out.json -o page.html",),
    f"observe --not-again --json -- {sys.executable} train.py": ("report out.json -o page.html",),
}
"""Commands that write, and those that read what they wrote; out.json and rack.toml are what a command printed."""

BUSY = "while True: sum(range(10**6))"


@pytest.fixture(scope="module")
def _busy() -> Iterator[None]:
    """Two processes that want all of their cores."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    yield
    for process in started:
        process.kill()
        process.wait()


def written_and_read(writer: str, folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT.format(steps=60))
    (folder / "table.csv").write_text(TABLE)
    (folder / "job.py").write_text(JOB)
    (folder / "topo.txt").write_text(MESH)
    wrote = trimaran(*shlex.split(writer), cwd=folder)
    assert wrote.returncode == 0, (writer, wrote.stderr, wrote.stdout)
    for name in ("out.json", "rack.toml"):
        (folder / name).write_text(wrote.stdout)
    if "--json" in writer:
        json.loads(wrote.stdout)
    for reader in PAIRS[writer]:
        reader = reader.format(run=next(folder.glob("runs/*"), ""))
        read = trimaran(*shlex.split(reader), cwd=folder)
        assert read.returncode == 0, (writer, reader, read.stderr, read.stdout)


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("writer", PAIRS)
def test_what_a_command_writes_is_read_by_those_that_take_it(writer: str, tmp_path: Path) -> None:
    written_and_read(writer, tmp_path)


@pytest.mark.sweep
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("number", range(50))
@pytest.mark.parametrize("writer", [writer for writer in PAIRS if re.search(r"train\.py|job\.py|calibrate", writer)])
def test_what_is_measured_is_read_each_time(writer: str, number: int, tmp_path: Path) -> None:
    """What is measured differs each time; other documents do not."""
    written_and_read(writer, tmp_path)
