"""What each rank of `against_torch` does: steps that are fed by our workers and by torch's DataLoader, in turns."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.feed.ranks import _ahead, _fed
from torch.utils.data import DataLoader, default_collate

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Program
from trimaran.runtime.data import pipeline
from trimaran.runtime.data.loader import TIMEOUT_S, Loader
from trimaran.runtime.data.reading import Answer, Reading, Request
from trimaran.runtime.executor import Executor

WAYS: dict[str, Any] = {"ours": Loader}


class TorchLoader:
    """torch's DataLoader in the place of our loader: its sampler gives requests, and the data set batches."""

    in_line = False

    def __init__(
        self,
        reading: Reading,
        requests: Iterator[Request],
        feeding: Feeding,
        *,
        pin: bool = False,
        seed: int = 0,
        rank: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if reading._collate is None:
            # It puts batches into shared memory, as torch's workers do; ours hand them over otherwise.
            reading._collate, reading._makes = default_collate, None
        self._batches: Any = iter(
            DataLoader(
                reading,
                batch_size=None,
                sampler=requests,  # type: ignore[arg-type]
                num_workers=feeding.workers,
                prefetch_factor=feeding.ahead,
                persistent_workers=True,
                collate_fn=_as_it_is,
                worker_init_fn=_one_thread,
                pin_memory=pin,
            )
        )

    def next(self) -> Answer:
        answer: Answer = next(self._batches)
        return answer

    def stop(self) -> None:
        """Nobody waits in another thread."""

    def close(self) -> None:
        if self._batches is not None:
            self._batches._shutdown_workers()
        self._batches = None


WAYS["torch"] = TorchLoader


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def time_loaders(
    world: World,
    source: JobSource,
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    rounds: int,
    steps: int,
) -> dict[str, list[tuple[float, float]]]:
    """By loader, of each block the mean step and the work of this rank and its workers for it [s].

    Args:
        world: this rank's
        source: of the job
        strategy: with the feeding that was planned
        program: of its step
        evaluation: of an evaluation
        rounds: blocks of each
        steps: of a block
    """
    job = source.make()
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job), record=False)
    feeds = {name: executor.feed() for name in WAYS}
    ways = {name: _fed(executor, job, feed) for name, feed in feeds.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 else reversed(ways):
            pipeline.Loader = WAYS[name]  # type: ignore[misc]
            for _ in range(_ahead(strategy.feeding)):
                ways[name]()
            _meet(world)
            spent, began = _work_s(), time.perf_counter()
            for _ in range(steps):
                ways[name]()
            seconds = time.perf_counter() - began
            _meet(world)
            found[name].append((seconds / steps, (_work_s() - spent) / steps))
    for feed in feeds.values():
        feed.close()
    executor.close()
    return found


def _meet(world: World) -> None:
    if world.size > 1:
        dist.barrier()


def _work_s() -> float:
    """Of this process and its children so far [s]."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK") + time.process_time()
