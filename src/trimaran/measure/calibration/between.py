"""What a step has besides its instructions, on a machine whose host computes.

Python looks up the next instruction, hands buckets over, takes the next share of the data. No operation and no transfer
shows that, and it is some per cent of a step of a few milliseconds. It does not depend on the job, so steps of a small
network are run, all ranks together, by the executor that trains; what lies between the spans of its record is counted:

    IN ·· F ·· AR ·· B ·· AR ·· U ········ IN ·· F ...
        instruction                 step

The network's products are large enough that Python's code and data leave the caches meanwhile, as they do in training:
with nothing to compute the same gaps are three times as short.

Operations are measured in the middle over steps and ranks, by a clock that stops while another program has the core. A
step waits for the rank that takes longest in it; how much longer that is than the middle is counted in the same record.
Runs inside the ranks; imports torch.

Of a step of digits on two ranks, 10.7 ms, 0.23 to 0.27 ms lie between instructions, predicted 0.14 to 0.20; the slowest
of two ranks computed 1.02 to 1.07 times as long as the middle. That share falls with the length of a step, so steps
here take some 10 ms. A cost before each instruction would double the tasks of every simulation, for gaps of 10 µs.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from statistics import median

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.base.timeline import COMMUNICATION, COMPUTE, Timeline
from trimaran.graph.capture.capture import capture
from trimaran.launch.world import World
from trimaran.machine.detect import detect_processor
from trimaran.measure.findings import summarize
from trimaran.measure.rounds import full_shares
from trimaran.pricing.types import Between
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor

_WIDTH, _LAYERS, _BATCH = 256, 4, 512
_GROUP = 20
STEPS = 80
"""Steps that are run, of which the first quarter warms up."""


def measure_between(world: World) -> Between | None:
    """Run steps of a small network and see what lies between their instructions.

    Args:
        world: this rank; all ranks call this

    Returns:
        On rank 0 what was found; on the others nothing.
    """
    job = Job(
        model=_network,
        loss=functional.mse_loss,
        optimizer=_optimizer,
        dataset=_samples,
        global_batch_size=_BATCH * world.size,
        name="time between instructions",
    )
    captured = capture(job)
    strategy = Strategy(dp=world.size)
    program = lower(captured.graph, strategy, batch=job.global_batch_size)
    evaluation = lower_evaluation(captured.graph, strategy, batch=job.global_batch_size)
    executor = Executor(job, strategy, program, evaluation, world, capture=captured)
    for share in islice(full_shares(executor.feed()), STEPS):
        executor.step(share)
    timeline = executor.timeline()
    executor.close()
    if world.rank != 0:
        return None
    found = find_between(timeline, instructions=len(program.ranks[0]), warmup=STEPS // 4)
    # Ranks that share a core have it one after another, and their costs are measured so.
    return found if world.local_size <= detect_processor().cores else replace(found, straggling=0.0)


def find_between(timeline: Timeline, *, instructions: int, warmup: int) -> Between:
    """What lies between the spans of a record, and the wait for the slowest rank, in the middle over steps and ranks.

    Args:
        timeline: of several steps; communication does not count, the wait for it does
        instructions: of a rank's step, at least two
        warmup: steps at the beginning to leave out

    Example:
        >>> from trimaran.base.timeline import Span
        >>> spans = [
        ...     Span(rank=0, stream="compute", start_s=start_s, end_s=start_s + 2.0, instruction="r0/F0", step=step)
        ...     for step, start_s in ((0, 0.0), (0, 2.5), (1, 8.5), (1, 11.0))
        ... ]
        >>> found = find_between(Timeline(spans), instructions=2, warmup=0)
        >>> found.instruction.seconds, found.step.seconds
        (0.5, 4.0)
        >>> found.straggling
        0.0
    """
    within: list[list[float]] = []
    steps: list[list[float]] = []
    for spans in _of_ranks(timeline, warmup):
        between: list[float] = []
        gaps: dict[int, float] = defaultdict(float)
        ended = 0.0
        for (_, before_s, before), (start_s, _, step) in pairwise(spans):
            ended = max(ended, before_s)
            if step == before:
                gaps[step] += max(0.0, start_s - ended)
            else:
                between.append(max(0.0, start_s - ended))
        within += _groups([gap / (instructions - 1) for gap in gaps.values()])
        steps += _groups(between)
    how = "between the instructions of small steps"
    return Between(
        step=summarize(steps, how=how),
        instruction=summarize(within, how=how),
        straggling=_straggling(timeline, warmup),
    )


def _straggling(timeline: Timeline, warmup: int) -> float:
    """How much longer the slowest rank of a step computes than a typical one, as a share of that."""
    left_out = set(timeline.steps[:warmup])
    computes: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for span in timeline:
        if span.stream == COMPUTE and span.step not in left_out:
            computes[span.step][span.rank] += span.seconds
    typical_s = median(seconds for of in computes.values() for seconds in of.values())
    return max(0.0, median(max(of.values()) for of in computes.values()) / typical_s - 1.0)


def _groups(gaps: list[float]) -> list[list[float]]:
    return [gaps[first : first + _GROUP] for first in range(0, len(gaps), _GROUP)]


def _of_ranks(timeline: Timeline, warmup: int) -> list[list[tuple[float, float, int]]]:
    """Start and end of each span of a rank's thread, and its step, in order, rank after rank."""
    left_out = set(timeline.steps[:warmup])
    found: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for span in timeline:
        if span.stream != COMMUNICATION and span.step not in left_out:
            found[span.rank].append((span.start_s, span.end_s, span.step))
    return [sorted(spans) for spans in found.values()]


def _network() -> nn.Module:
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    return nn.Sequential(*layers)


def _optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)  # type: ignore[arg-type]


def _samples() -> TensorDataset:
    rows = torch.zeros(4 * _BATCH, _WIDTH)
    return TensorDataset(rows, rows)
