"""Each document that a command writes is read back by each command that takes it, also on a busy machine."""

import json
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
    ),
    "curve table.csv --output curve.json": ("curve curve.json --at 64",),
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
    (folder / "topo.txt").write_text(MESH)
    wrote = trimaran(*shlex.split(writer), cwd=folder)
    assert wrote.returncode == 0, (writer, wrote.stderr, wrote.stdout)
    for name in ("out.json", "rack.toml"):
        (folder / name).write_text(wrote.stdout)
    if "--json" in writer:
        json.loads(wrote.stdout)
    for reader in PAIRS[writer]:
        read = trimaran(*shlex.split(reader), cwd=folder)
        assert read.returncode == 0, (writer, reader, read.stderr, read.stdout)


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("writer", PAIRS)
def test_what_a_command_writes_is_read_by_those_that_take_it(writer: str, tmp_path: Path) -> None:
    written_and_read(writer, tmp_path)


@pytest.mark.sweep
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("number", range(50))
@pytest.mark.parametrize("writer", [writer for writer in PAIRS if "train.py" in writer])
def test_what_is_measured_is_read_each_time(writer: str, number: int, tmp_path: Path) -> None:
    """What is measured differs each time; other documents do not."""
    written_and_read(writer, tmp_path)
