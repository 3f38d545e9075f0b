"""What ranks do in the tests of training: several runs in one world, as starting a world takes longer than a run."""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from tests.distributed.drawn import draw_parts
from tests.distributed.jobs import make_job

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import find_classifier_shards
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor
from trimaran.trial.compare import Examiner, Verified, Verifier
from trimaran.user_code.alone import alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        job: its name, in `jobs` or in the zoo
        strategy: boundaries are filled in: evenly over the places where the graph may be cut
        steps: of training
        cut: where to cut in place of evenly: after which share of those places
        draw: seed of a placement that is drawn for `strategy.pp` rows; None: a pipeline
        shared: replicas share the big layers at the end of the network
    """

    job: str
    strategy: Strategy
    steps: int
    cut: tuple[float, ...] = ()
    draw: int | None = None
    shared: bool = False

    @property
    def name(self) -> str:
        shared = " sharded classifier" if self.shared else ""
        return f"{self.job} {self.strategy.name}{f' cut {self.cut}' if self.cut else ''}{shared} draw {self.draw}"

    def fit(self, graph: Graph) -> Strategy:
        """The strategy for a graph."""
        if self.shared:
            shards = find_classifier_shards(graph, self.strategy.dp)
            assert shards, f"replicas of {self.job} can share no layer"
            return replace(self.strategy, shards=shards)
        if self.draw is not None:
            return replace(self.strategy, parts=draw_parts(graph, self.strategy.pp, self.draw))
        if self.cut:
            return replace(
                self.strategy,
                boundaries=tuple(graph.split_points[int(len(graph.split_points) * at)] for at in self.cut),
            )
        return replace(
            self.strategy, boundaries=even_boundaries(graph.split_points, self.strategy.pp * self.strategy.chunks)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank saw: losses by step, weights at the end (on rank 0), metric of the evaluation at the end."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    score: float


def verifier(executor: Executor, job: Job, strategy: Strategy, world: World, *, draws: bool = False) -> Verifier:
    """Compares steps with a plain loop in this process, in a thread, where the user's code is told of no ranks."""
    examiner = Examiner(job, strategy, world.device, draws=draws)

    def examine(step: Any) -> Verified:
        with ThreadPoolExecutor(1) as thread, alone():
            return thread.submit(examiner, step).result()

    return Verifier(executor, world, examine)


@functools.cache
def capture_once(job: str) -> tuple[Capture, dict[str, torch.Tensor]]:
    """A job captured, once in this process and in those that are forked from it, with a copy of its initial weights.

    Jobs that differ in no matter of their graph, but in optimizers, schedules or batches, share what was captured.
    """
    own = make_job(job)
    network = (own.model, own.loss, own.precision, own.seed, own.dataset, own.collate)
    if network not in _CAPTURED:
        made = capture(own)
        _CAPTURED[network] = made, {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    return _CAPTURED[network]


_CAPTURED: dict[Any, tuple[Capture, dict[str, torch.Tensor]]] = {}


def captured(job: str) -> Capture:
    """A job captured, with its initial weights."""
    made, initial = capture_once(job)
    made.model.load_state_dict(initial)
    return made


def train_all(world: World, runs: list[Run]) -> list[Outcome]:
    """Do several runs in one world."""
    found = []
    for run in runs:
        job = make_job(run.job)
        executor = open_executor(world, run, captured(run.job))
        losses = take_steps(executor, run.steps)
        score = executor.evaluate(job.evaluation_dataset()) if job.evaluation_dataset and job.metric else math.nan
        found.append(Outcome(losses=losses, weights=executor.weights(), score=score))
        executor.close()
    return found


def open_executor(world: World, run: Run, made: Capture, **options: Any) -> Executor:
    """The executor of a run."""
    job = make_job(run.job)
    strategy = run.fit(made.graph)
    batch = full_batch(job.global_batch_size, strategy)
    return Executor(
        job,
        strategy,
        lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
        lower_evaluation(made.graph, strategy, batch=batch),
        world,
        capture=made,
        **options,
    )


def take_steps(
    executor: Executor, steps: int, seen: Callable[[int, float], None] = lambda step, loss: None
) -> list[float]:
    """Train for some steps, epoch after epoch."""
    feed = executor.feed()
    losses: list[float] = []
    while True:
        for share in feed.shares():
            losses.append(executor.step(share))
            seen(len(losses), losses[-1])
            if len(losses) == steps:
                return losses


def even_boundaries(cuts: tuple[str, ...], stages: int) -> tuple[str, ...]:
    """Places to cut, evenly over those that there are."""
    return tuple(cuts[len(cuts) * stage // stages] for stage in range(1, stages))


def full_batch(batch: int, strategy: Strategy) -> int:
    """The batch for which a program is lowered: it must divide; the runtime takes any."""
    parts = strategy.dp * strategy.microbatches
    return -(-batch // parts) * parts
