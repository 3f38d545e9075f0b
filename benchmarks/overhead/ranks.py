"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.graph.capture.segments import Segment, build_segment
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World, calm_event_loops
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.runtime.executor import Executor
from trimaran.user_code.batches import split_batch
from trimaran.user_code.model import make_model

WARM_UP_STEPS = 6
LEAST_STEPS = 4
BLOCK_S = 0.4

Step = Callable[[], object]


def time_loops(
    world: World, source: JobSource, strategy: Strategy, program: Program, evaluation: Program, blocks: int
) -> dict[str, list[float]]:
    """Seconds a step of our runtime, of the hand-written loop, and of the same loop again, block by block.

    Args:
        world: this rank's
        source: of the job
        strategy: data parallelism or a pipeline, on all ranks
        program: of its step
        evaluation: of an evaluation
        blocks: of each loop

    Returns:
        Mean step time of each block, as rank 0 saw it, by loop [s]. "by hand, as it is" has event loops that preempt.
    """
    job = source.make()
    by_hand = _data_parallel if strategy.pp == 1 else _pipeline
    loops: dict[str, Step] = {
        "ours": _ours(job, strategy, program, evaluation, world),
        "by hand": by_hand(job, strategy, world),
        "by hand, again": by_hand(job, strategy, world),
    }
    # The groups of the other loops get what the runtime does for its own: this is about the work of the runtime.
    calm_event_loops()
    if strategy.pp == 1:
        # Made after that: what people have.
        loops["by hand, as it is"] = by_hand(job, strategy, world)
    steps = max(_warm_up(world, step) for step in loops.values())
    times: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for block in range(blocks):
        turn = block % len(names)
        for name in (*names[turn:], *names[:turn]):
            times[name].append(_block(loops[name], steps))
    return times


def _ours(job: Job, strategy: Strategy, program: Program, evaluation: Program, world: World) -> Step:
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job))
    feed = executor.feed()

    def endless() -> Iterator[Any]:
        while True:
            yield from (share for share in feed.shares() if share.samples == job.global_batch_size)

    shares = endless()
    return lambda: executor.step(next(shares))


def _data_parallel(job: Job, strategy: Strategy, world: World) -> Step:
    """What a tutorial has: DistributedSampler, DataLoader, DDP, and the loss of each step on the host."""
    model = DistributedDataParallel(make_model(job), process_group=dist.new_group())
    optimizer = job.optimizer(model.parameters())
    schedule = job.lr_schedule(optimizer) if job.lr_schedule else None
    dataset = job.dataset()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, world.size, world.rank, seed=job.seed)
    batches = _batches(DataLoader(
        dataset, batch_size=job.global_batch_size // world.size, sampler=sampler, collate_fn=job.collate, drop_last=True
    ), sampler)  # fmt: skip

    def step() -> float:
        arguments, keywords, target = split_batch(next(batches), own_loss=False)
        loss = _mean(job, model(*arguments, **keywords), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        return loss.item()

    return step


class _StageModule(nn.Module):
    """A segment with the interface that torch.distributed.pipelining wants: tensors in, tensors out."""

    def __init__(self, segment: Segment) -> None:
        super().__init__()
        self.segment = segment
        self._names = (*segment.reads, *segment.inputs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        made, output = self.segment(dict(zip(self._names, tensors, strict=True)), tensors[0].shape[0])
        return output if self.segment.is_last else tuple(made.values())


def _pipeline(job: Job, strategy: Strategy, world: World) -> Step:
    """torch.distributed.pipelining with the same stages, schedule and microbatches."""
    captured = capture(job)
    module = _StageModule(build_segment(captured, strategy.boundaries, world.rank))
    optimizer = job.optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    learning_rate = job.lr_schedule(optimizer) if job.lr_schedule else None
    stage = PipelineStage(module, world.rank, strategy.pp, torch.device("cpu"), group=dist.new_group())
    kind = Schedule1F1B if strategy.schedule == "1f1b" else ScheduleGPipe
    schedule = kind(stage, strategy.microbatches, loss_fn=lambda output, target: _mean(job, output, target))
    order = torch.Generator().manual_seed(job.seed)
    batches = _batches(DataLoader(
        job.dataset(), batch_size=job.global_batch_size, shuffle=True, generator=order, collate_fn=job.collate,
        drop_last=True,
    ))  # fmt: skip

    def step() -> float:
        arguments, _, target = split_batch(next(batches), own_loss=False)
        losses: list[torch.Tensor] = []
        if world.rank == 0:
            schedule.step(*arguments)
        else:
            schedule.step(target=target, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if learning_rate is not None:
            learning_rate.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    return step


def _mean(job: Job, output: Any, target: Any) -> torch.Tensor:
    value = job.loss(output, target)  # type: ignore[misc]  # the jobs here have a loss
    return value[0] / value[1] if isinstance(value, tuple) else value


def _batches(loader: DataLoader[Any], sampler: DistributedSampler[Any] | None = None) -> Iterator[Any]:
    epoch = 0
    while True:
        if sampler is not None:
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _warm_up(world: World, step: Step) -> int:
    for _ in range(WARM_UP_STEPS):
        step()
    slowest: Sequence[float] = [0.0] * world.size
    dist.all_gather_object(slowest, _block(step, 2))
    return max(LEAST_STEPS, round(BLOCK_S / max(slowest)))


def _block(step: Step, steps: int) -> float:
    dist.barrier()
    # The first step after others have run finds cold caches.
    step()
    start_s = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start_s) / steps
