"""`trimaran export`, as a person runs it."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

JOBS = Path(__file__).with_name("faulty_jobs.py")


def test_a_plan_is_exported(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    done = trimaran("plan", f"{JOBS}:good", "--devices", "1", "--output", plan, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    file = tmp_path / "accelerate.yaml"
    done = trimaran("export", plan, "--to", "accelerate", "-o", str(file), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"accelerate launch --config_file {file}" in " ".join(done.stdout.replace("\\\n", "").split())
    assert "num_processes: 1" in file.read_text()

    done = trimaran("export", plan, "--to", "megatron", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema_version"
    assert document["sections"]["model"]["tensor_model_parallel_size"] == 1
    assert isinstance(document["lost"], list)

    done = trimaran("export", plan, "--to", "nemo", cwd=tmp_path)
    assert done.returncode == 2
    assert "torchtitan" in done.stderr


def test_a_plan_in_another_precision_than_the_jobs_is_exported(tmp_path: Path) -> None:
    where = ("--cluster", "dgx-h100", "--devices", "2", "--precision", "bf16")
    done = trimaran("plan", f"{JOBS}:good", *where, "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = trimaran("export", "plan.json", "--to", "accelerate", "-o", "accelerate.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("job", "target", "said"), [("qwen3:4b", "pytorch", "query_norm"), ("qwen3:30b-a3b", "torchtitan", '"30B-A3B"')]
)
def test_a_plan_for_a_target_is_exported_to_it(tmp_path: Path, job: str, target: str, said: str) -> None:
    where = ("--cluster", "dgx-h100:4", "--devices", "32", "--batch", "64", "--to", target)
    done = trimaran("plan", job, *where, "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"trimaran export plan.json --to {target}" in " ".join(done.stdout.split())

    done = trimaran("export", "plan.json", "--to", target, "-o", "file.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in (tmp_path / "file.py").read_text()
