"""`trimaran catalog checkpoint` and `trimaran train --weights`."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.commands.running import trimaran
from typer.testing import CliRunner

import trimaran as face
from trimaran.cli import app
from trimaran.jobs.resolve import JobSource

JOB = textwrap.dedent(
    """
    import torch
    import trimaran


    def make_job(width=4):
        return trimaran.Job(
            name="small",
            model=lambda: torch.nn.Sequential(
                torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
            ),
            loss=torch.nn.functional.mse_loss,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
            dataset=lambda: torch.utils.data.TensorDataset(torch.arange(60.0).view(20, 3) / 60, torch.ones(20, 1)),
            global_batch_size=5,
        )


    def wider():
        return make_job(6)
    """
)


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command in this process."""
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    return done.exit_code, re.sub(r"\s+", " ", done.output)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job, and a run of it with two checkpoints, one after 2 steps and one after 4."""
    made = tmp_path_factory.mktemp("saved")
    (made / "job.py").write_text(JOB)
    job = JobSource(reference=f"{made / 'job.py'}:make_job").make()
    with face.init(job, record=False) as session:
        for batch in session.batches():
            session.step(batch)
            if session.steps in (2, 4):
                session.save_checkpoint(made / "run" / "checkpoints")
        session.save(made / "expected.safetensors")
    return made


class TestShow:
    def test_a_run(self, folder: Path) -> None:
        code, said = run("catalog", "checkpoint", folder / "run")
        assert code == 0
        assert "step 4, after 0 epochs" in said
        assert "job small, global batch 5, seed 0, fp32" in said
        assert "Adam, exp_avg, exp_avg_sq, step of 6 parameters in 1 group" in said
        assert "before it step-00000002" in said

    def test_figures_are_those_of_the_model(self, folder: Path) -> None:
        """16 + 8 + 8 + 1 + 5 elements: two layers, batch norm with its running figures and its count."""
        code, said = run("catalog", "checkpoint", folder / "run" / "checkpoints" / "step-00000002", "--json")
        found = json.loads(said)
        assert code == 0
        assert (found["checkpoint"]["step"], found["checkpoint"]["strategy"], found["others"]) == (2, "one device", [])
        state = load_file(folder / "expected.safetensors")
        assert found["weights"]["tensors"] == len(state)
        assert found["weights"]["elements"] == sum(one.numel() for one in state.values()) == 16 + 8 + 8 + 1 + 5
        assert found["weights"]["bytes"] == sum(one.nbytes for one in state.values())
        assert found["weights"]["dtypes"] == {"float32": 8, "int64": 1}

    def test_what_is_nothing(self, tmp_path: Path) -> None:
        assert run("catalog", "checkpoint", tmp_path / "none")[0] == 2
        assert run("catalog", "checkpoint", tmp_path)[0] == 2


class TestVerify:
    def test_a_damaged_one_is_named(self, folder: Path, tmp_path: Path) -> None:
        run_dir = Path(shutil.copytree(folder / "run", tmp_path / "run"))
        assert run("catalog", "checkpoint", "--verify", run_dir)[0] == 0
        path = run_dir / "checkpoints" / "step-00000004" / "rank0.safetensors"
        content = bytearray(path.read_bytes())
        content[-3] ^= 8
        path.write_bytes(content)
        code, said = run("catalog", "checkpoint", "--verify", run_dir)
        assert code == 6
        assert "step-00000004: rank0.safetensors: bytes" in said
        assert "step-00000002: as it was written" in said
        assert run("catalog", "checkpoint", "--verify", path.parent)[0] == 6
        code, said = run("catalog", "checkpoint", "--verify", run_dir, "--json")
        rows = json.loads(said)["checkpoints"]
        assert [(row["step"], bool(row["faults"])) for row in rows] == [(4, True), (2, False)]

    def test_weights_of_others(self, folder: Path) -> None:
        assert "it has no checksums" in run("catalog", "checkpoint", "--verify", folder / "expected.safetensors")[1]


def test_export_writes_what_was_trained(folder: Path, tmp_path: Path) -> None:
    expected = load_file(folder / "expected.safetensors")
    code, said = run("export", folder / "run", "-o", tmp_path / "m.pt", "--with-optimizer", "--json")
    assert code == 0
    assert json.loads(said)["optimizer"] is True
    found = torch.load(tmp_path / "m.pt", weights_only=True)
    assert all(torch.equal(found["model"][name], one) for name, one in expected.items())
    code, said = run("export", folder / "run", "-o", tmp_path / "m.pt")
    assert (code, "not written over" in said) == (2, True)
    code, said = run("export", tmp_path / "m.pt", "-o", tmp_path / "hf", "--to", "huggingface")
    assert (code, "--trust-pickle" in said) == (2, True)
    options = ("--to", "huggingface", "--shard-size", "64 B", "--trust-pickle")
    code, said = run("export", tmp_path / "m.pt", "-o", tmp_path / "hf", *options)
    assert code == 0
    files = {one.name for one in (tmp_path / "hf").glob("*.safetensors")}
    loaded = {name: one for file in files for name, one in load_file(tmp_path / "hf" / file).items()}
    assert len(files) > 1
    assert all(torch.equal(loaded[name], one) for name, one in expected.items())


@pytest.mark.parametrize(
    "to", ["huggingface", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("safetensors", "pt", "dcp"))]
)
def test_a_signal_leaves_nothing(to: str, tmp_path: Path) -> None:
    """It comes as soon as something is written, of 512 MiB."""
    save_file({f"w{number}": torch.zeros(2**24) for number in range(8)}, tmp_path / "m.safetensors")
    folder = tmp_path / "out"
    folder.mkdir()
    words = ("export", str(tmp_path / "m.safetensors"), "-o", str(folder / "target"), "--to", to)
    process = subprocess.Popen([sys.executable, "-m", "trimaran", *words], stderr=subprocess.PIPE, text=True)
    while not any(folder.iterdir()) and process.poll() is None:
        time.sleep(0.001)
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert "ended by SIGTERM" in said
    assert not any(folder.iterdir())


class TestTrain:
    def test_what_cannot_begin_is_refused_before_a_plan_is_made(self, folder: Path, tmp_path: Path) -> None:
        save_file({"w": torch.ones(1)}, tmp_path / "other.safetensors")
        job, weights = f"{folder / 'job.py'}:make_job", folder / "expected.safetensors"
        for options, text in (
            (("--weights", tmp_path / "other.safetensors"), "it has w, which the model has not"),
            (("--weights", tmp_path / "none"), "there is no "),
            (("--weights", weights, "--resume", folder / "run"), "give one of them"),
            (("--weights", weights, "--with-optimizer"), "no state of an optimizer"),
            (("--trust-pickle",), "--weights"),
        ):
            code, said = run("train", job, *options, "--runs", tmp_path / "runs")
            assert (code, text in said) == (2, True), said
        code, said = run("train", f"{folder / 'job.py'}:wider", "--weights", weights, "--runs", tmp_path / "runs")
        assert (code, "0.weight (4, 3) in the file, (6, 3) in the model" in said) == (2, True), said
        assert not (tmp_path / "runs").exists()

    @pytest.mark.timeout(280)
    def test_a_training_begins_from_a_run(self, folder: Path) -> None:
        """Of no epochs: its weights are those that it began from."""
        options = ("--devices", "1", "--execution", "eager", "--epochs", "0")
        done = trimaran("train", "job.py:make_job", *options, "--weights", "run", "--with-optimizer", cwd=folder)
        assert done.returncode == 0, done.stderr
        (made,) = (folder / "runs").iterdir()
        found, expected = load_file(made / "model.safetensors"), load_file(folder / "expected.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], one) for name, one in expected.items())
        assert json.loads((made / "run.json").read_text())["weights"] == str(folder / "run")
