"""Times of the whole model in one piece, as the runtime runs it.

The runtime's own stages run here, with nothing to communicate: the user's module as it is; the same as a replica, whose
hooks reduce nothing; and the captured graph as one segment. Between their forwards and backwards is what no single
operation shows: Python, autograd's bookkeeping, DDP's hooks. Each forward is on a batch that was just loaded, and after
an update of all parameters, as in a step, so that both find the caches as they do there. Runs inside the
ranks; imports torch.

Batches of the job's own data, loaded as the runtime loads them.

A slow data set would delay all measurements on its batches. So only a few batches of such a data set are read; after
them, the last one is used again.

Runs inside the ranks; imports torch.

Times of the update and the clipping of a job's parameters, and the state of its optimizer.

The job's own optimizer steps over its own parameters, each time after a forward and a backward, as in a step: first
all of them, then parts (every second, the small half, the large quarter), from which fixed, per-tensor and per-byte
times follow. Runs inside the ranks; imports torch.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture
from trimaran.graph.capture.segments import build_segment
from trimaran.graph.optimizers import named_in
from trimaran.graph.types import parameter_use
from trimaran.launch.world import World
from trimaran.measure.findings import ListKey, Timed
from trimaran.pricing.tables import Form
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.strategy import Execution
from trimaran.runtime.data.batch_shares import BatchShares, Share
from trimaran.runtime.data.datasets import dataset_length
from trimaran.runtime.data.orders import some_samples
from trimaran.runtime.parts.part import Stage, Used, evaluating
from trimaran.runtime.parts.replica import BucketedReplica, Replica
from trimaran.runtime.parts.segments import SegmentStage
from trimaran.runtime.parts.setup import replica_buckets
from trimaran.runtime.precision import autocast, place_batch, place_model
from trimaran.runtime.step.losses import loss_term
from trimaran.runtime.step.updates import Updater
from trimaran.runtime.streams import Stamp, Streams
from trimaran.user_code.batches import copied_batch, split_batch
from trimaran.user_code.model import make_model

SLOW_S = 0.02
"""A batch that takes longer than this is not read again and again [s]."""

MOST_SLOW = 8
"""Batches of a slow data set that are read: the first ones while all warms up, the others count."""

_BATCHES_AHEAD = 64


class BatchSupply:
    """An endless supply of batches of one size; a small data set is gone through again and again.

    Args:
        job: has the collate function and the precision
        dataset: its training data
        size: samples of a batch
        device: where batches go
    """

    def __init__(self, job: Job, dataset: Any, size: int, device: str) -> None:
        self._job = job
        self._dataset = dataset
        self._device = device
        order = some_samples(dataset_length(dataset), seed=job.seed)
        visits = _BATCHES_AHEAD * size
        self._batches = BatchShares(
            order.repeat(-(-visits // len(order)))[:visits], batch=size, replicas=1, microbatches=1, replica=0
        )
        self._loaded: Iterator[Share] = iter(())
        self._slow = 0
        self._last: Any = None
        self._fresh = False

    @property
    def is_fresh(self) -> bool:
        """Whether the last batch came from the data set."""
        return self._fresh

    def load(self) -> Any:
        """The next batch, on the device."""
        if self._slow >= MOST_SLOW:
            self._fresh = False
            return copied_batch(self._last)
        started = time.perf_counter()
        batch = self._read()
        self._fresh = True
        if time.perf_counter() - started > SLOW_S:
            self._slow, self._last = self._slow + 1, copied_batch(batch)
        return batch

    def again(self) -> Any:
        """A batch that need not be a new one: of a slow data set the last one, on the device."""
        if self._last is None:
            return self.load()
        self._fresh = False
        # A forward may write to it.
        return copied_batch(self._last)

    def _read(self) -> Any:
        share = next(self._loaded, None)
        if share is None:
            self._loaded = self._batches.load(
                range(_BATCHES_AHEAD),
                self._dataset,
                self._job,
                seed=self._job.seed,
                pin_memory=self._device != "cpu",
            )
            share = next(self._loaded)
        return place_batch(share.microbatch(0), precision=self._job.precision, device=self._device)


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
        loader: of the job's data
        samples: of a batch
        clock: by which compute is measured
        device: of the rank
        updater: of the stage's parameters; None: there are no updates
        times_loads: batches are read from the data set and loading them is timed; else a slow data set is not read
    """

    def __init__(
        self,
        job: Job,
        stage: Stage,
        loader: BatchSupply,
        samples: int,
        clock: Streams,
        device: str,
        updater: Updater | None = None,
        *,
        times_loads: bool = False,
    ) -> None:
        self._job = job
        self._stage = stage
        self._loader = loader
        self._samples = samples
        self._clock = clock
        self._device = device
        self._updater = updater
        self._next_batch = loader.load if times_loads else loader.again

    def run(self, repeats: int) -> dict[str, list[float]]:
        """Load, forward, backward and update several times, then evaluate as often.

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
        """The parameters that updates change, so that every round starts from the same weights."""
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
        batch = self._next_batch()
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


class UpdateTimer:
    """Updates of the parameters of a model, by lists of them.

    Args:
        job: makes the optimizer; hooks on it do not fire, and there is no schedule, which may end
        model: on its device; the values of its parameters are put back after each round
        whole: runs its forward and backward
        clock: by which compute is measured
    """

    def __init__(self, job: Job, model: nn.Module, whole: WholeModel, clock: Streams) -> None:
        self._model = model
        self._whole = whole
        self._clock = clock
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained = trained
        self._lists: dict[ListKey, tuple[list[nn.Parameter], Updater]] = {}
        for chosen in choose_lists(trained):
            try:
                updater = Updater(job, named_in(model, chosen), chosen, measured=True)
            except InputError:
                if not self._lists:
                    raise
                # An optimizer may want certain parameters to be there: then it is timed on fewer lists.
                continue
            self._lists[list_key(chosen)] = (chosen, updater)

    def run(self, repeats: int) -> dict[Timed, list[float]]:
        """Update each list, each time after a forward and a backward.

        Args:
            repeats: how often

        Returns:
            Durations of "update" and "clip", by list; of all parameters first [s].
        """
        saved = [parameter.detach().clone() for parameter in self._trained]
        found: dict[Timed, list[float]] = {}
        for key, (parameters, updater) in self._lists.items():
            # Twice at most, as there is a forward and a backward for each of several lists, and once more before: in a
            # step the caches have what the update before it has used.
            for number in range(1 + min(repeats, 2)):
                self._whole.step([])
                self._fill_gradients(parameters)
                started = self._clock.stamp()
                updater.clip(updater.square_norm(str(parameters[0].device)).sqrt())
                clipped = self._clock.stamp()
                updater.update()
                ended = self._clock.stamp()
                self._clock.synchronize()
                if number:
                    found.setdefault(Timed(key, 0, "clip"), []).append(self._whole.seconds(started, clipped))
                    found.setdefault(Timed(key, 0, "update"), []).append(self._whole.seconds(clipped, ended))
        drop_gradients(self._model)
        with torch.no_grad():
            for parameter, value in zip(self._trained, saved, strict=True):
                parameter.copy_(value)
        return found

    def state_bytes_per_byte(self) -> float:
        """Bytes of optimizer state for a byte of parameter, once there was an update; counters of steps left out."""
        if not self._trained:
            return 0.0
        key = list_key(self._trained)
        optimizer = self._lists[key][1].optimizer
        states = optimizer.state if optimizer is not None else {}
        kept = [value for parameter in states for value in states[parameter].values()]
        nbytes = sum(value.nbytes for value in kept if isinstance(value, torch.Tensor) and value.dim())
        return nbytes / max(1, key.nbytes)

    def _fill_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        # A parameter that the model did not use in this batch is updated in others.
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def choose_lists(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The lists of parameters whose update is measured: all, and parts that differ in number and size.

    Args:
        parameters: all; none where nothing is trained
    """
    if not parameters:
        return []
    by_size = sorted(parameters, key=lambda parameter: parameter.numel())
    count = len(parameters)
    small, large = by_size[: (count + 1) // 2], by_size[-max(1, count // 4) :]
    return [list(parameters), list(parameters[::2]), small, large]


def list_key(parameters: Sequence[nn.Parameter]) -> ListKey:
    """Length and bytes of a list of parameters."""
    return ListKey(len(parameters), sum(parameter.nbytes for parameter in parameters))
