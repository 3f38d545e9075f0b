"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it.

A small network is trained with torch's own `DataLoader`, on one process or on two with DDP. For each data set there is
a loader with each number of workers, and a batch that is there already; their blocks of steps take turns. Nothing of
Trimaran trains or loads here.
"""

import fcntl
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

from trimaran.measure.others import SpentTime, others_share, read_spent

PIXELS, CLASSES, WIDTH = 32, 10, 12
LEAST_STEPS = 6
_SAMPLES = 4096
_PREFETCH = 2

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowData:
    """A data set that is slow in a known way.

    Attributes:
        name: of it
        wait_s: that a sample waits, whatever else waits, as on a network file system [s]
        side: of the picture that a core unpacks and scales down for a sample [pixels]; 0: none
        disk_s: that a sample keeps a disk to itself, which all ranks and workers share [s]
    """

    name: str
    wait_s: float = 0.0
    side: int = 0
    disk_s: float = 0.0


DATA = (
    SlowData(name="reading", wait_s=8e-3),
    SlowData(name="reading_slow", wait_s=20e-3),
    SlowData(name="decoding", side=320),
    SlowData(name="decoding_slow", side=560),
    SlowData(name="reading_decoding", wait_s=8e-3, side=320),
    SlowData(name="disk", disk_s=4e-3),
)
"""Data sets, by name in the results."""


class Samples(Dataset[Any]):
    """Pictures that are waited for, read from a disk in turn, and unpacked.

    Args:
        slow: in which way
        disk: a file; who has it locked has the disk
    """

    def __init__(self, slow: SlowData, disk: Path) -> None:
        self._slow, self._disk = slow, disk
        self._packed = b""
        if slow.side:
            shades = numpy.random.default_rng(0).integers(0, 64, 3 * slow.side * slow.side, dtype=numpy.uint8)
            self._packed = zlib.compress(shades.tobytes(), 6)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        slow = self._slow
        if slow.wait_s:
            time.sleep(slow.wait_s)
        if slow.disk_s:
            with self._disk.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(slow.disk_s)
        if not slow.side:
            return torch.full((3, PIXELS, PIXELS), (index % 256) / 256.0), index % CLASSES
        pixels = numpy.frombuffer(zlib.decompress(self._packed), dtype=numpy.uint8)
        image = torch.from_numpy(pixels.reshape(1, 3, slow.side, slow.side).astype(numpy.float32)) / 255.0
        small = nn.functional.interpolate(image, size=(PIXELS, PIXELS), mode="bilinear", antialias=True)
        return small[0] + (index % 256) / 256.0, index % CLASSES


class Endless(Sampler[int]):
    """Indices without an end, so that workers always have something to do."""

    def __iter__(self) -> Iterator[int]:
        index = 0
        while True:
            yield index % _SAMPLES
            index += 1


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * WIDTH, CLASSES),
    )


def time_loaders(
    rank: int,
    ranks: int,
    folder: str,
    data: SlowData,
    workers: Sequence[int],
    batch: int,
    rounds: int,
    block_s: float,
) -> None:
    """Time blocks of steps with each number of workers; rank 0 saves them in `folder`.

    Args:
        rank: this one
        ranks: of the training
        folder: for the meeting of ranks, the disk and the result
        data: the slow data set
        workers: numbers of them; in the result None stands for a batch that is there already
        batch: samples of a rank
        rounds: blocks of each
        block_s: about how long a block takes [s]
    """
    # More workers than cores are what is to be seen.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    torch.set_num_threads(1)
    disk = Path(folder, "disk")
    disk.touch()
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    model = _network()
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    dataset = Samples(data, disk)

    def step_on(take: Callable[[], Any]) -> Step:
        def step() -> None:
            inputs, target = take()
            nn.functional.cross_entropy(trained(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    loaders = {
        count: iter(
            DataLoader(
                dataset,
                batch_size=batch,
                sampler=Endless(),
                num_workers=count,
                prefetch_factor=_PREFETCH if count else None,
            )
        )
        for count in workers
    }
    there = next(loaders[min(workers)])
    steps: dict[int | None, Step] = {None: step_on(lambda: there)}
    for count, loader in loaders.items():
        steps[count] = step_on(lambda loader=loader: next(loader))  # type: ignore[misc]  # bound now
    counts = {count: _steps(ranks, step, block_s) for count, step in steps.items()}
    blocks: dict[int | None, list[tuple[float, float]]] = {count: [] for count in steps}
    for _ in range(rounds):
        for count, step in steps.items():
            blocks[count].append(_block(ranks, step, counts[count], before=_PREFETCH * (count or 0) + 2))
    if rank == 0:
        torch.save(blocks, Path(folder, "blocks.pt"))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def _steps(ranks: int, step: Step, block_s: float) -> int:
    """Steps of a block, the same on every rank."""
    for _ in range(3):
        step()
    began = time.perf_counter()
    for _ in range(3):
        step()
    count = torch.tensor(max(LEAST_STEPS, int(block_s / ((time.perf_counter() - began) / 3))))
    if ranks > 1:
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
    return int(count)


def _block(ranks: int, step: Step, steps: int, *, before: int) -> tuple[float, float]:
    """Mean step [s], and the share of the usable cores that other programs took during it."""
    for _ in range(before):
        step()
    if ranks > 1:
        dist.barrier()
    before, began = _spent(), time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - began
    return seconds / steps, others_share(before, _spent(), cores=len(os.sched_getaffinity(0)))


def _spent() -> SpentTime:
    """What has been spent until now, workers and the other process included."""
    return replace(read_spent(), own_s=_own_s())


def _own_s() -> float:
    """Work of the processes of this benchmark so far: those of its process group [s]."""
    group, total = os.getpgrp(), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
