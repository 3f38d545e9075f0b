"""What the whole model takes in one piece, as the runtime runs it.

The runtime's own stages run here, with nothing to communicate: the user's module as it is; the same as a replica, whose
hooks reduce nothing; and the captured graph as one segment. Between their forwards and backwards lies what no single
operation shows: Python, autograd's bookkeeping, DDP's hooks. Each forward is on a batch that was just loaded, and after
an update of all parameters, as in a step, so that both find the caches as they do there. Runs inside the
ranks; imports torch.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trimaran.costs.tables import Form
from trimaran.graph.batches import split_batch
from trimaran.graph.capture import Capture
from trimaran.graph.sample import make_model
from trimaran.graph.segments import build_segment
from trimaran.graph.use import parameter_use
from trimaran.job import Job
from trimaran.measure.loading import Batches
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES
from trimaran.program.types import Execution
from trimaran.runtime.bucketed import BucketedReplica
from trimaran.runtime.losses import loss_term
from trimaran.runtime.precision import autocast, place_model
from trimaran.runtime.replica import Replica
from trimaran.runtime.segments import SegmentStage
from trimaran.runtime.setup import replica_buckets
from trimaran.runtime.stages import Stage, evaluating
from trimaran.runtime.streams import Stamp, Streams
from trimaran.runtime.updates import Updater
from trimaran.runtime.used import Used
from trimaran.runtime.world import World


def make_stage(job: Job, capture: Capture, world: World, form: Form, execution: Execution) -> Stage:
    """The whole model as a stage of the runtime that communicates nothing.

    Args:
        job: the job
        capture: its graph and model, on the device of the world
        world: this rank; "replicated" needs several, and all call this
        form: how the model runs
        execution: "eager" or "compiled"
    """
    if form == "graph":
        segment = build_segment(capture, (), 0)
        return SegmentStage(segment, execution=execution, buckets=(), reduce_bucket=_reduce_nothing)
    model = _another(job, capture.model, world.device) if form == "replicated" else capture.model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if form == "replicated" and trained and parameter_use(capture.graph) != "always":
        return BucketedReplica(
            model,
            own_loss=job.loss is None,
            execution=execution,
            buckets=replica_buckets(
                capture.graph, [one for one in model.parameters() if one.requires_grad], model, DEFAULT_BUCKET_BYTES
            ),
            reduce_bucket=_reduce_nothing,
            used=Used(trained),
        )
    return Replica(
        model,
        own_loss=job.loss is None,
        execution=execution,
        group=dist.new_group() if form == "replicated" else None,
        bucket_bytes=DEFAULT_BUCKET_BYTES,
        reduce_bucket=_reduce_nothing,
    )


def _another(job: Job, model: nn.Module, device: str) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - a model that cannot be copied is made once more
        return place_model(make_model(job), precision=job.precision, device=device)


class WholeModel:
    """The whole model in one form, at one batch size.

    Args:
        job: has the loss and the metric
        stage: the model
        loader: of the job's data; loads that are fresh are timed
        samples: of a batch
        clock: by which compute is measured
        device: of the rank
        updater: of the stage's parameters; None: there are no updates
    """

    def __init__(
        self,
        job: Job,
        stage: Stage,
        loader: Batches,
        samples: int,
        clock: Streams,
        device: str,
        updater: Updater | None = None,
    ) -> None:
        self._job = job
        self._stage = stage
        self._loader = loader
        self._samples = samples
        self._clock = clock
        self._device = device
        self._updater = updater

    def run(self, repeats: int) -> dict[str, list[float]]:
        """Load, forward, backward and update so many times, then evaluation as often.

        Args:
            repeats: how often

        Returns:
            Durations by phase: "load" (of a slow data set, fewer), "forward", "backward" and "evaluation" [s].
        """
        loads: list[float] = []
        stamps = []
        values = self._values()
        for _ in range(repeats):
            stamps.append(self.step(loads))
            if self._updater is not None:
                self._updater.update()
        drop_gradients(self._stage.module)
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)
        evaluations = list(self._evaluations(repeats))
        self._clock.synchronize()
        return {
            "load": loads,
            "forward": [self.seconds(started, between) for started, between, _ in stamps],
            "backward": [self.seconds(between, ended) for _, between, ended in stamps],
            "evaluation": [self.seconds(started, ended) for started, ended in evaluations],
        }

    def _values(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """What updates change, so that every round starts from the same weights."""
        if self._updater is None:
            return []
        parameters = [parameter for parameter in self._stage.module.parameters() if parameter.requires_grad]
        return [(parameter, parameter.detach().clone()) for parameter in parameters]

    def step(self, loads: list[float]) -> tuple[Stamp, Stamp, Stamp]:
        """Load a batch, run its forward and its backward.

        Args:
            loads: gets the time on the wall that loading took [s]

        Returns:
            Start of the forward, start of the backward, and its end. The gradients stay.
        """
        drop_gradients(self._stage.module)
        # On a GPU a step begins when the one before has ended, and its load has ended when the copy has.
        self._clock.synchronize()
        start_s = time.perf_counter()
        batch = self._loader.load()
        self._clock.synchronize()
        if self._loader.is_fresh:
            loads.append(time.perf_counter() - start_s)
        started = self._clock.stamp()
        with autocast(self._job.precision, self._device):
            _, output = self._stage.forward(batch, {}, self._samples, completing=True)
            root, _ = loss_term(self._job, output, batch, samples=self._samples, of=self._samples)
        between = self._clock.stamp()
        self._stage.backward([root], [None], completing=True)
        return started, between, self._clock.stamp()

    def seconds(self, started: Stamp, ended: Stamp) -> float:
        """Time between two moments that the device has passed [s]."""
        return (self._clock.nanoseconds(ended) - self._clock.nanoseconds(started)) * 1e-9

    def _evaluations(self, repeats: int) -> Iterator[tuple[Stamp, Stamp]]:
        with evaluating(self._stage.module):
            for _ in range(repeats):
                batch = self._loader.again()
                started = self._clock.stamp()
                self._evaluate(batch)
                yield started, self._clock.stamp()

    def _evaluate(self, batch: Any) -> None:
        with autocast(self._job.precision, self._device):
            _, output = self._stage.evaluate(batch, {}, self._samples)
        if self._job.metric is not None:
            float(self._job.metric(output, split_batch(batch, own_loss=self._job.loss is None)[2]))


def drop_gradients(module: nn.Module) -> None:
    """Forget the gradients, as the end of a step does."""
    for parameter in module.parameters():
        parameter.grad = None


def _reduce_nothing(number: int, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
    """In place of an all-reduce."""
