"""The step of a job on meta tensors, at any batch: shapes without values, so it costs no memory and little time.

The model and a few samples of the data are made once. Clipping of gradients is left out: it moves nothing and holds no
more than the update does.

Models of transformers look at the positions of tokens to find out whether several texts were packed into one window.
Positions without values say nothing, so they are answered for: the windows of a job hold one text each.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from trimaran.errors import InputError, TrimaranError
from trimaran.graph.batches import call_model, compute_loss
from trimaran.graph.sample import cast_model, sample_batch
from trimaran.graph.trace.meta import trace_on_meta, trace_twice_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.graph.training_mode import begin_training
from trimaran.graph.untouched import AUTOCAST
from trimaran.job import Job
from trimaran.runtime.split import Split
from trimaran.session.memory.batch import meta_batch
from trimaran.session.memory.split import split_maker

_MASKS = "transformers.masking_utils"


class JobTracer:
    """Traces steps of one job.

    Args:
        job: whose model, loss, optimizer and data are used
        splits: modules that run in parts of the batch
        like: a tracer of the same job, whose model and data are used again
        autocast: lower precision in place of the job's; None: the job's
        layers: recurrent layers run in one operation each

    Attributes:
        splits: as given

    Raises:
        InputError: its data cannot be made
    """

    def __init__(
        self,
        job: Job,
        *,
        splits: Sequence[Split] = (),
        like: "JobTracer | None" = None,
        autocast: torch.dtype | None = None,
        layers: bool = False,
    ) -> None:
        self._job = job
        self._layers = layers
        self._autocast = autocast or AUTOCAST.get(job.precision)
        self.splits = tuple(splits)
        self._sample: Any = sample_batch(job) if like is None else like._sample
        self._model: nn.Module | None = None if like is None else like._model
        self._traces: dict[int, StepTrace] = {}

    def split(self, *splits: Split) -> "JobTracer":
        """A tracer of the same job with some modules in parts of the batch."""
        return JobTracer(self._job, splits=splits, like=self, autocast=self._autocast, layers=self._layers)

    def batch(self, samples: int) -> Any:
        """A batch of so many samples, without values."""
        return meta_batch(self._job, samples, like=self._sample)

    @property
    def model(self) -> nn.Module:
        """The model, without values once a step was traced."""
        return self._make_model()

    def trace(self, samples: int) -> StepTrace:
        """The step with so many samples.

        Raises:
            InputError: it cannot run on meta tensors
        """
        if samples not in self._traces:
            self._traces[samples] = self._traced(samples)
        return self._traces[samples]

    def trace_twice(self, samples: int) -> tuple[StepTrace, StepTrace]:
        """The step with so many samples, without its update, and the step with one sample more.

        Raises:
            InputError: it cannot run on meta tensors
        """
        with self._telling(), ExitStack() as stack:
            return trace_twice_on_meta(
                split_maker(self._make_model, self.splits, stack),
                (lambda: self.batch(samples), lambda: self.batch(samples + 1)),
                self._loss,
                make_optimizer=self._job.optimizer,
                autocast=self._autocast,
                layers=self._layers,
            )

    def _traced(self, samples: int) -> StepTrace:
        with self._telling(), ExitStack() as stack:
            return trace_on_meta(
                split_maker(self._make_model, self.splits, stack),
                lambda: self.batch(samples),
                self._loss,
                make_optimizer=self._job.optimizer,
                autocast=self._autocast,
                layers=self._layers,
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the user's code raises is told with the name of the job."""
        try:
            yield
        except TrimaranError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            raise InputError(
                f"tracing the step of {self._job.name} failed: {type(error).__name__}: {lines[0] if lines else ''}",
                job=self._job.name,
            ) from error

    def _make_model(self) -> nn.Module:
        # Once: drawing weights takes longer than a step, even where they have no values.
        if self._model is None:
            self._model = cast_model(self._job, begin_training(self._job.model()))
        return self._model

    def _loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        with _no_packing():
            output = call_model(self._job, model, batch)
        total, weight = compute_loss(self._job, output, batch)
        return total / weight


@contextmanager
def _no_packing() -> Iterator[None]:
    """Windows hold one text each, for models of transformers."""
    masks = sys.modules.get(_MASKS)
    name = "find_packed_sequence_indices"
    if masks is None or not hasattr(masks, name):
        yield
        return
    asked = getattr(masks, name)
    setattr(masks, name, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masks, name, asked)
