"""`trimaran memory` as a person runs it, on a small network of the test's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran

JOB = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran import Job


def make():
    return Job(
        name="small",
        model=lambda: nn.Sequential(
            *(layer for n in range(8) for layer in (nn.Conv2d(3 if n == 0 else 16, 16, 3, padding=1), nn.ReLU())),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
        ),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        dataset=lambda: TensorDataset(torch.zeros(8, 3, 64, 64), torch.zeros(8, dtype=torch.long)),
        global_batch_size=4,
    )
"""
KEYS = {
    "schema_version",
    "fits",
    "keep_peak_bytes",
    "keep_mean_bytes",
    "minimum_memory_bytes",
    "plan",
    "ratio_to_lower_bound",
    "policies",
    "largest_batch",
}
POLICIES = ["none", "all", "conv", "dyn", "ours"]


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(JOB)
    return "small.py:make"


def test_the_figures_are_there_for_programs_and_a_viewer(job: str, tmp_path: Path) -> None:
    """The batch is larger than the data: only its shape counts."""
    arguments = ("--device", "titan-x", "--batch", "256", "--budget", "60%", "--storages", "--trace", "step.json")
    done = trimaran("memory", job, *arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= KEYS
    assert (found["local_batch_size"], found["fits"], found["fits_without_plan"]) == (256, True, False)
    assert found["plan"].keys() >= {"peak_bytes", "mean_bytes", "slowdown"}
    assert (
        found["minimum_memory_bytes"] <= found["plan"]["peak_bytes"] <= found["budget_bytes"] < found["keep_peak_bytes"]
    )
    assert found["ratio_to_lower_bound"] >= 1
    assert list(found["policies"]) == POLICIES
    assert all(one.keys() >= {"peak_bytes", "mean_bytes", "slowdown", "fits"} for one in found["policies"].values())
    assert found["policies"]["none"]["peak_bytes"] == found["keep_peak_bytes"]
    assert found["largest_batch_without_plan"] < 256 < found["largest_batch_ignoring_slowdown"]
    assert found["largest_batch_without_plan"] <= found["largest_batch"] <= found["largest_batch_ignoring_slowdown"]
    assert {line["decision"] for line in found["storages"]} <= {"keep", "offload", "recompute"}
    lanes = [
        one["args"]["name"]
        for one in json.loads((tmp_path / "step.json").read_text())["traceEvents"]
        if one["ph"] == "M"
    ]
    assert lanes[1:] == ["compute", "d2h", "h2d"]


def test_the_tables_and_the_chart_fit_80_columns(job: str, tmp_path: Path) -> None:
    arguments = ("--device", "titan-x", "--batch", "256", "--budget", "60%", "--chart", "--no-largest-batch")
    done = trimaran("memory", job, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for part in ("without a plan", "the plan", "lower bound", "minimum memory", "vDNN dyn", "Bottleneck", "backward"):
        assert part in done.stdout


def test_below_the_floor_is_a_code_of_its_own_with_the_ways_out(job: str, tmp_path: Path) -> None:
    arguments = ("--device", "titan-x", "--batch", "256", "--budget", "5%", "--split", "none", "--json")
    done = trimaran("memory", job, *arguments, cwd=tmp_path)
    assert done.returncode == 3
    assert "a batch of at most" in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "memory.nothing-fits"
    assert error["minimum_memory_bytes"] > error["budget_bytes"]
    assert 0 < error["largest_batch"] < 256


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--device", "titan-y"], 'did you mean "titan-x"'),
        (["--device", "titan-x", "--budget", "12"], 'got "12"'),
        (["--device", "titan-x", "--policy", "some"], "--policy"),
        ([], "--device"),
    ],
)
def test_wrong_options_are_told(arguments: list[str], part: str, job: str, tmp_path: Path) -> None:
    done = trimaran("memory", job, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_offloaded_beyond_the_host(job: str, tmp_path: Path) -> None:
    """In 60 % all of 320 MiB goes to a large host, a fifth to one of 64 MiB, where the rest is recomputed; in 40 % not
    all that must leave can be recomputed."""

    def asked(budget: str, *host: str) -> dict[str, Any]:
        options = ("--device", "titan-x", "--batch", "256", "--budget", budget, "--no-largest-batch", "--json")
        found: dict[str, Any] = json.loads(trimaran("memory", job, *options, *host, cwd=tmp_path).stdout)
        return found

    free, tight, none = (asked("60%", "--host", room) for room in ("100GiB", "64MiB", "1 B"))
    assert free["plan"]["host_peak_bytes"] > 64 * 2**20 >= tight["plan"]["host_peak_bytes"] > 0
    assert tight["plan"]["recomputed_bytes"] > free["plan"]["recomputed_bytes"]
    assert (none["plan"]["to_host_bytes"], none["fits"], tight["fits"]) == (0, True, True)
    assert free["lower_bound_s"] <= tight["lower_bound_s"] <= none["lower_bound_s"] <= none["plan"]["step_time_s"]
    assert (free["policies"]["all"]["fits"], tight["policies"]["all"]["fits"]) == (True, False)
    assert "which has room for 64.0 MiB" in tight["policies"]["all"]["note"]
    refused = asked("40%", "--host", "100KiB")["error"]
    assert (refused["code"], refused["host_bytes"]) == ("memory-plan.not-found", 100 * 1024)


def test_the_room_on_the_host_is_that_of_the_usual_machine(job: str, tmp_path: Path) -> None:
    """A box of one card has 64 GiB, and so has one of four on switches: a quarter of four fifths each."""
    arguments = ("memory", job, "--device", "titan-x", "--no-largest-batch", "--json")
    alone, shared = (json.loads(trimaran(*arguments, *more, cwd=tmp_path).stdout) for more in ((), ("--sharing", "4")))
    assert (alone["host_bytes"], shared["host_bytes"]) == (int(51.2 * 2**30), int(51.2 * 2**30) // 4)
    assert "shared by 4 devices" in shared["host_source"]


def test_a_named_codec_is_a_decision_of_the_plan(job: str, tmp_path: Path) -> None:
    """Over a link shared by four, coding shortens the plan; what is coded was offloaded, and the report says so."""
    options = ("--device", "titan-x", "--batch", "256", "--budget", "45%", "--sharing", "4", "--no-largest-batch")

    def asked(*more: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(trimaran("memory", job, *options, "--json", *more, cwd=tmp_path).stdout)
        return found

    plain, sparse, rounded = asked(), asked("--codec", "sparse:2.6"), asked("--codec", "bf16")
    assert (plain["codec"], plain["plan"]["coded_bytes"]) == ("", 0)
    for found, ratio in ((sparse, 2.6), (rounded, 2.0)):
        assert found["codec_ratio"] == ratio
        assert 0 < found["plan"]["coded_bytes"] <= found["plan"]["to_host_bytes"]
        assert found["plan"]["step_time_s"] < plain["plan"]["step_time_s"]
        assert found["ratio_to_lower_bound"] >= 1.0 - 1e-6
    shown = trimaran("memory", job, *options, "--codec", "bf16", cwd=tmp_path).stdout
    assert "not exact" in " ".join(shown.split())
    assert asked("--codec", "zip")["error"]["code"] == "codec.unknown"
