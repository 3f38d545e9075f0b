"""A rank of a script, rehearsed in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from trimaran.machine.find import find_machine
from trimaran.rehearsal.record import Record, read_record


def rehearse_rank(
    script: Path, *arguments: object, folder: Path, cluster: str = "dgx-h100", rank: int = 0, world: int = 1
) -> Record:
    """Rehearse one rank alone.

    Args:
        script: for torchrun
        arguments: of it
        folder: for what the process writes
        cluster: whose device it has, with four times its memory
        rank: which
        world: of how many
    """
    device = find_machine(cluster).node.device
    request = {
        "script": str(script),
        "arguments": [str(each) for each in arguments],
        "rank": rank,
        "world": world,
        "per_node": min(8, world),
        "gpu": {
            "name": device.title,
            "catalog_name": device.name,
            "memory_bytes": 4 * device.memory.nbytes,
            "capability": [9, 0],
            "multiprocessors": device.multiprocessors,
        },
        "together": [rank],
        "meeting": str(folder),
        "record": str(folder / "record"),
        "output": str(folder / "output"),
    }
    path = folder / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    command = [sys.executable, "-m", "trimaran.rehearsal.worker", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ, check=False)
    assert (folder / "record").exists(), done.stdout + done.stderr
    record = read_record(folder / "record")
    assert record.end.how in ("finished", "steps"), done.stdout + done.stderr
    return record
