"""`trimaran memory --split` and `--sharing` as a person runs them."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

JOB = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran import Job


def make():
    layers = [layer for n in range(6) for layer in (nn.Conv2d(3 if n == 0 else 16, 16, 3, padding=1), nn.ReLU())]
    layers.insert(4, nn.MaxPool2d(2))
    return Job(
        name="small",
        model=lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        dataset=lambda: TensorDataset(torch.zeros(8, 3, 64, 64), torch.zeros(8, dtype=torch.long)),
        global_batch_size=4,
    )
"""
ASKED = ("--device", "titan-x", "--batch", "256", "--no-largest-batch")


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(JOB)
    return "small.py:make"


def test_a_budget_below_the_floor_is_kept_with_the_split_that_a_refusal_names(job: str, tmp_path: Path) -> None:
    refused = trimaran("memory", job, *ASKED, "--budget", "45%", "--split", "none", "--json", cwd=tmp_path)
    assert refused.returncode == 3
    named = json.loads(refused.stdout)["error"]["split"]
    assert f"--split {named}" in refused.stderr

    done = trimaran("memory", job, *ASKED, "--budget", "45%", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    split = found["split"]
    assert (found["fits"], split["written"]) == (True, named)
    assert (
        found["minimum_memory_bytes"]
        <= found["plan"]["peak_bytes"]
        <= found["budget_bytes"]
        < split["whole_minimum_bytes"]
    )
    assert found["plan"]["slowdown"] == pytest.approx(found["plan"]["step_time_s"] / found["kept_s"] - 1)


def test_a_split_and_a_shared_link_are_shown_in_80_columns(job: str, tmp_path: Path) -> None:
    done = trimaran("memory", job, *ASKED, "--budget", "45%", "--chart", "--sharing", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    shown = " ".join(done.stdout.split())
    assert "4 devices on one link to the host" in shown
    for part in ("the plan, [", "minimum memory", "without the split", "Split: [", "In parts without a plan"):
        assert part in shown


@pytest.mark.parametrize(
    ("arguments", "part"), [(["--split", "half"], "MODULE:FIRST-LAST:PARTS"), (["--sharing", "0"], "--sharing")]
)
def test_wrong_options_are_told(arguments: list[str], part: str, job: str, tmp_path: Path) -> None:
    done = trimaran("memory", job, *ASKED, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr
