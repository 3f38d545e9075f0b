"""Rehearses ranks of a script side by side, each in its own process, and reads their records."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from trimaran.rehearsal.record import Record, read_record
from trimaran.rehearsal.request import Gpu, RankRequest

ROOT = Path(__file__).parents[2]
H100 = Gpu("NVIDIA H100 80GB HBM3", "h100-sxm", 80 * 2**30, (9, 0), 132)


def rehearse(
    script: Path,
    folder: Path,
    *,
    world: int,
    ranks: Sequence[int],
    arguments: Sequence[str] = (),
    most_steps: int = 100,
    patience_s: float = 3.0,
    environment: Mapping[str, str] | None = None,
) -> list[Record]:
    """Records of ranks, in the order asked for.

    Args:
        script: to run
        folder: for records and what is printed
        world: ranks in all
        ranks: to rehearse
        arguments: of the script
        most_steps: optimizer steps after which a rank stops
        patience_s: how long a rank waits for an object [s]
        environment: added to this process's own
    """
    meeting = folder / "meeting"
    meeting.mkdir(parents=True, exist_ok=True)
    running = []
    for rank in ranks:
        request = RankRequest(
            script=str(script),
            arguments=tuple(arguments),
            rank=rank,
            world=world,
            per_node=8,
            gpu=H100,
            together=tuple(ranks),
            meeting=str(meeting),
            record=str(folder / f"{rank}.record"),
            output=str(folder / f"{rank}.txt"),
            most_steps=most_steps,
            most_seconds=120,
            patience_s=patience_s,
        )
        path = folder / f"{rank}.json"
        path.write_bytes(msgspec.json.encode(request))
        output = Path(request.output).open("w")  # noqa: SIM115 - closed with the process's end
        process = subprocess.Popen(
            [sys.executable, "-m", "trimaran.rehearsal.worker", str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | dict(environment or {}),
        )
        running.append((rank, process, output))
    records = []
    for rank, process, output in running:
        process.wait(timeout=180)
        output.close()
        path = folder / f"{rank}.record"
        if not path.exists():
            raise AssertionError(f"rank {rank} wrote no record:\n{(folder / f'{rank}.txt').read_text()}")
        records.append(read_record(path))
    return records


def summary(records: Sequence[Record]) -> str:
    """What ranks asked for, to look at."""
    lines = []
    for record in records:
        lines.append(f"rank {record.rank}: {record.end.how} {record.end.status} {record.end.text}")
        for asked in record.collectives:
            where = record.lines[asked.lines]
            shapes = [tensor.shape for tensor in asked.inputs or asked.outputs]
            lines.append(
                f"  {asked.operation} {asked.reduction} {asked.group} {shapes} peer {asked.peer} "
                f"{'async' if asked.asynchronous else ''} batch {asked.coalesced} stream {asked.stream} "
                f"{asked.part} {asked.module} {json.dumps([f'{frame.file}:{frame.line}' for frame in where])}"
            )
    return "\n".join(lines)
