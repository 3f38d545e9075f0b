"""Real runs of the small trainings on CPUs, by gloo, with their live bytes: `python -m tests.rehearsal.observed` renews
`observed.json`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.ports import free_ports

HERE = Path(__file__).parent
TRAININGS = HERE / "trainings"
KEPT = HERE / "observed.json"

WORLDS = {
    "conv": 2,
    "ddp": 2,
    "ddp_accumulate": 2,
    "ddp_checkpoint": 2,
    "experts": 2,
    "fsdp": 4,
    "fsdp_accumulate": 2,
    "fsdp_checkpoint": 2,
    "fsdp_mixed": 2,
    "fsdp_uneven": 4,
    "hsdp": 4,
    "odd": 2,
    "offload": 2,
    "pipeline": 2,
    "pipeline_interleaved": 2,
    "tensor": 2,
    "tensor_fsdp": 4,
    "zero": 4,
}
"""Ranks of each training."""

LONGEST_S = 240


def observe(names: Iterable[str]) -> dict[str, list[list[int]]]:
    """Run trainings for real; of each, by rank, the most live bytes of its steps."""
    names = list(names)
    scripts = [text for name in names for text in (str(WORLDS[name]), str(TRAININGS / f"{name}.py"))]
    ranks = max(WORLDS[name] for name in names)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "observer.py"), folder, str(ranks), str(free_ports(len(names))), *scripts]
        told = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=os.environ | told, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
        texts = done.stdout + done.stderr
        assert not done.returncode, texts
        by_rank = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(ranks)]
    missing = [name for name in names for rank in range(WORLDS[name]) if name not in by_rank[rank]]
    assert not missing, f"{missing}\n{texts}"
    return {name: [by_rank[rank][name]["steps"] for rank in range(WORLDS[name])] for name in names}


def kept() -> dict[str, list[list[int]]]:
    """What was observed when the file was made."""
    return json.loads(KEPT.read_text())


if __name__ == "__main__":
    lines = (f'"{name}": {json.dumps(steps)}' for name, steps in observe(WORLDS).items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
