"""Rehearses ranks of many scripts side by side and reads their records.

Each rank is a process of its own, as when it is rehearsed by itself; they are forked from one that has imported torch,
which takes most of a small script's time.
"""

import ast
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.rehearsal.record import Record, read_record
from trimaran.rehearsal.request import Gpu, RankRequest

ROOT = Path(__file__).parents[2]
H100 = Gpu("NVIDIA H100 80GB HBM3", "h100-sxm", 80 * 2**30, (9, 0), 132)
LONGEST_S = 240


@dataclass(frozen=True)
class Job:
    """A script and what to rehearse of it.

    Attributes:
        name: of the folder for its files
        script: path
        world: ranks in all
        ranks: to rehearse
        arguments: of the script
        most_steps: optimizer steps after which a rank stops
        patience_s: how long a rank waits for an object of another [s]
    """

    name: str
    script: Path
    world: int
    ranks: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    most_steps: int = 100
    patience_s: float = 60.0


def rehearse(jobs: Sequence[Job], folder: Path) -> dict[str, list[Record]]:
    """Records of every job, by its name, in the order of its ranks."""
    requests = [[_request(job, rank, folder / job.name) for rank in job.ranks] for job in jobs]
    told = folder / "jobs.json"
    told.write_bytes(msgspec.json.encode(requests))
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    longest_s = LONGEST_S + 30 * len(jobs)
    subprocess.run([sys.executable, __file__, str(told)], cwd=folder, env=environment, check=True, timeout=longest_s)
    found = {}
    for job in jobs:
        records = []
        for rank in job.ranks:
            path = folder / job.name / f"{rank}.record"
            said = (folder / job.name / f"{rank}.txt").read_text()
            assert path.exists(), f"rank {rank} of {job.name} wrote no record:\n{said}"
            records.append(read_record(path))
        found[job.name] = records
    return found


def _request(job: Job, rank: int, folder: Path) -> RankRequest:
    (folder / "meeting").mkdir(parents=True, exist_ok=True)
    return RankRequest(
        script=str(job.script),
        arguments=job.arguments,
        rank=rank,
        world=job.world,
        per_node=8,
        gpu=H100,
        together=job.ranks,
        meeting=str(folder / "meeting"),
        record=str(folder / f"{rank}.record"),
        output=str(folder / f"{rank}.txt"),
        most_steps=job.most_steps,
        most_seconds=100,
        patience_s=job.patience_s,
    )


def summary(records: Sequence[Record]) -> str:
    """What ranks asked for, to look at."""
    return "\n".join(_summary(records))


def _summary(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        where = record.lines[record.end.lines][:1] if record.end.lines >= 0 else ""
        yield f"rank {record.rank}: {record.end.how} {record.end.status} {record.end.text} {where}"
        for asked in record.collectives:
            shapes = [tensor.shape for tensor in asked.inputs or asked.outputs]
            lines = [f"{frame.file}:{frame.line}" for frame in record.lines[asked.lines]]
            yield (
                f"  {asked.operation} {asked.reduction} {asked.group} {shapes} peer {asked.peer} "
                f"{'async' if asked.asynchronous else ''} batch {asked.coalesced} stream {asked.stream} "
                f"{asked.part} {record.modules[asked.module]} {json.dumps(lines)}"
            )


def marked_lines(script: Path, mark: str = "# fault") -> set[int]:
    """Lines of a script that end in a comment; those of a statement over several lines, all of them."""
    text = script.read_text()
    marked = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith(mark)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr | ast.Assign) and node.end_lineno in marked:
            marked.update(range(node.lineno, node.end_lineno + 1))
    return marked


# ---------------------------------------------------------------------------------------------------------------------
# The process that the ranks are forked from


def _fork(request: RankRequest) -> int:
    """Start a rank; its process."""
    process = os.fork()
    if process:
        return process
    try:
        output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(Path(request.record).parent)
        from trimaran.rehearsal.worker import Rank

        Rank(request).run()
    except BaseException:  # noqa: BLE001  whatever it is, this process must not go on as its parent does
        traceback.print_exc()
    finally:
        os._exit(70)


def _main(told: Path) -> None:
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    for module in ("device.cuda", "groups", "lines", "patches", "recorder", "tensors", "values", "worker"):
        __import__(f"trimaran.rehearsal.{module}")
    waiting = msgspec.json.decode(told.read_bytes(), type=list[list[RankRequest]])
    running: set[int] = set()
    while waiting or running:
        while waiting and (not running or len(running) + len(waiting[0]) <= 4):
            running.update(_fork(request) for request in waiting.pop(0))
        process, _ = os.wait()
        running.discard(process)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
