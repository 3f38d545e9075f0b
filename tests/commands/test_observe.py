"""`trimaran observe` around scripts that know nothing of it."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import new_trimaran, trimaran

SCRIPT = str(Path(__file__).with_name("observed_script.py"))


def observe(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return trimaran("observe", "--not-again", "--json", "--", sys.executable, *arguments, cwd=cwd)


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(done.stdout)
    return whole


@pytest.mark.alone
def test_planted_delays_land_in_their_parts_and_the_limiter_is_named(tmp_path: Path) -> None:
    """Each part within 10 % of what the script itself timed, and the parts sum to the step."""
    # Large against what a step takes besides: some tenths of a millisecond on a slow machine, which are in "other".
    delays = {"load": 40, "forward": 8, "backward": 12, "update": 10, "other": 6}
    done = observe(SCRIPT, *(f"--{kind}={ms}" for kind, ms in delays.items()), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = document(done)
    parts = {name.split()[0].rstrip(":"): seconds for name, seconds in seen["parts_s"].items() if seconds}
    found = [parts[name] for name in ("load", "FP", "BP", "WU", "other")]
    said = re.search(r"^spent (.*)$", done.stderr, re.MULTILINE)
    assert said
    spent = json.loads(said[1])
    assert found == pytest.approx([spent[kind] for kind in delays], rel=0.1)
    assert sum(seen["parts_s"].values()) == pytest.approx(seen["step_time_s"])
    # A busy machine may make the limiter unclear, and then only what surely helps is named.
    assert seen["doubt"] is not None or seen["remedies"][0]["limiter"] == "loader"
    assert seen["schema_version"] == 1


def test_a_script_does_the_same_when_it_is_observed(tmp_path: Path) -> None:
    alone = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, cwd=tmp_path)
    watched = observe(SCRIPT, cwd=tmp_path)
    assert alone.stdout in watched.stderr


def test_workers_of_a_loader_are_no_ranks(tmp_path: Path) -> None:
    seen = document(observe(SCRIPT, "--workers=2", cwd=tmp_path))
    assert len(seen["ranks"]) == 1
    assert not any("other processes" in sentence for sentence in seen["unseen"])


@pytest.mark.parametrize(("end", "said"), [("badly", "exit code 3"), ("terminated", "SIGTERM")])
def test_a_script_that_fails_is_reported_as_far_as_it_came(end: str, said: str, tmp_path: Path) -> None:
    done = observe(SCRIPT, "--steps=200", "--forward=4", f"--end={end}", cwd=tmp_path)
    assert done.returncode == 5
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert document(done)["steps"] > 10


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_before_anything_is_seen_ends_script_and_command(number: signal.Signals, tmp_path: Path) -> None:
    """As Ctrl-C, which comes to both; SIGTERM comes to the command, which hands it on."""
    ask = "import os, signal, time; os.kill(os.getppid(), {0}); {1}; time.sleep(60)"
    both = "signal.raise_signal(2)" if number == signal.SIGINT else "0"
    done = trimaran("observe", "--", sys.executable, "-c", ask.format(int(number), both), cwd=tmp_path)
    told = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert done.returncode == 128 + number, done.stderr
    assert f"trimaran: {told}\nnothing was seen: no process imported torch" in done.stderr


def test_the_page_fits_80_columns_and_says_what_was_not_seen(tmp_path: Path) -> None:
    done = trimaran("observe", "--", sys.executable, SCRIPT, "--load=5", "--other=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for part in ("What a step is spent on", "Not seen"):
        assert part in done.stdout
    if "What limits it is not clear" not in done.stdout:  # as on a busy machine, where no remedy is named
        assert "Limited by loader" in done.stdout
        assert "Remedies, by predicted gain" in done.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ([], 2, "nothing to run"),
        (["absent-command"], 2, "absent-command"),
        ([sys.executable, "-c", "print(1)"], 1, "imported torch"),
        ([sys.executable, "-c", "import torch"], 1, "torch.optim"),
        ([sys.executable, "-c", "raise SystemExit(7)"], 5, "exit code 7"),
    ],
)
def test_what_cannot_be_observed_is_told(command: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = trimaran("observe", "--", *command, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


IN_SCRIPT = """
import torch, trimaran
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
with trimaran.observe(model) as watch:
    train(40)
train(5)
before = torch.get_rng_state(), [parameter.grad.clone() for parameter in model.parameters()]
seen = watch.report()
assert torch.equal(before[0], torch.get_rng_state())
assert all(torch.equal(a, b.grad) for a, b in zip(before[1], model.parameters()))
print(seen)
assert 25 < seen.steps <= 35, seen.steps
if seen.doubt is None:  # a busy machine may make the limiter unclear, and then only what surely helps is named
    assert any(remedy.name == "fused optimizer" for remedy in seen.remedies), seen.remedies
    assert seen.remedies[0].limiter == "small kernels", seen.remedies
else:
    assert all(remedy.gain_interval[0] > 0 for remedy in seen.remedies), seen.remedies
"""


def test_a_script_can_observe_itself(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IN_SCRIPT], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Sequential on 1 process (cpu)" in done.stdout


AGAIN_IN_SCRIPT = """
import torch, trimaran
def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def compute():
        optimizer.zero_grad()
        loss = model({"x": torch.randn(4, 8)}).mean()
        loss.backward()
        return loss
    for _ in range(steps):
        optimizer.step(compute)
class First(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LazyLinear(8)
    def forward(self, batch):
        return self.layer(batch["x"])
class Second(First):
    pass
with trimaran.observe() as watch:
    train(First(), 30)
assert watch.report(again=False).model == "First"
with trimaran.observe(Second()) as watch:
    pass
with trimaran.observe() as watch:
    train(First(), 20)
    # The first fifty are another optimizer's.
    train(Second(), 120)
seen = watch.report(again=False)
assert seen.model == "Second" and 60 < seen.steps < 90, (seen.model, seen.steps)
assert seen.ranks[0].samples == 4
parts = {name.split()[0]: seconds for name, seconds in seen.parts_s.items()}
assert min(parts["FP"], parts["BP"], parts["WU"]) > 0, parts
"""


def test_later_models_and_optimizers_are_observed_and_closures_are_no_update(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGAIN_IN_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "watched no longer" not in done.stderr


def test_looking_torch_up_does_not_end_the_watch(tmp_path: Path) -> None:
    looks = "import importlib.util as u; u.find_spec('torch'); import torch"
    done = trimaran("observe", "--", sys.executable, "-c", looks, cwd=tmp_path)
    assert "torch.optim" in done.stderr


def test_a_sitecustomize_that_stands_behind_ours_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('mine ran\\n')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = new_trimaran("observe", "--", sys.executable, "-c", "import torch", cwd=tmp_path)
    # Once in the command itself, and once in ours.
    assert done.stdout.count("mine ran") == 2


@pytest.mark.parametrize(
    ("way", "package", "evaluations"),
    [
        ("huggingface", "transformers", 3),
        pytest.param("lightning", "pytorch_lightning", 4, marks=pytest.mark.sweep),
    ],
)
def test_scripts_of_trainers_are_observed_as_they_are(way: str, package: str, evaluations: int, tmp_path: Path) -> None:
    """40 steps of two batches of four. Three evaluations are in the step that follows; Lightning tries one first."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = str(Path(__file__).with_name("trained_by_others.py"))
    folder = tmp_path / "alone"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, script, way], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    ) as alone:
        watched = observe(script, way, cwd=tmp_path)
        said = alone.communicate()[0]
    assert watched.returncode == 5
    assert "exit code 3" in watched.stderr
    assert [line for line in said.splitlines() if line.startswith("losses")] == [
        line for line in watched.stderr.splitlines() if line.startswith("losses")
    ]
    seen = document(watched)
    assert seen["backwards"] == 2
    assert seen["ranks"][0]["samples"] == 8
    assert seen["left_out"] | {"far longer than the others": 0} == {
        "at the start": 5,
        "with an evaluation": evaluations,
        "far longer than the others": 0,
    }
    spent = {name.split()[0] for name, seconds in seen["parts_s"].items() if seconds}
    assert {"load", "FP", "BP", "WU"} <= spent
