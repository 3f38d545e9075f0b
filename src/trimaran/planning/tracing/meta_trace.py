"""The step of a job on meta tensors, at any batch: shapes without values, so it costs no memory and little time.

The model and a few samples of the data are made once. Clipping of gradients is left out: it moves nothing and holds no
more than the update does.

Models of transformers look at the positions of tokens to find out whether several texts were packed into one window.
Positions without values say nothing, so they are answered for: the windows of a job hold one text each.

A batch of any size on meta tensors, in the form of a job's own data: shapes without values.

A few samples of the data are made and collated; every tensor's first dim, which counts samples, then becomes what was
asked for. So data of which the batch is larger than memory, or than the data set, can be looked at all the same.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.precision import Precision
from trimaran.base.units import format_bytes
from trimaran.base.user_errors import told, users
from trimaran.graph.trace.meta import trace_on_meta, trace_twice_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.jobs.huggingface import configuration_of_job
from trimaran.machine.types import Device
from trimaran.memory_hooks.splitting import Split, splitting
from trimaran.pricing.analytical.huggingface_config import is_known, shape_of_configuration
from trimaran.pricing.analytical.layers import parameter_count
from trimaran.pricing.analytical.memory import rank_memory
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.offload_costs import MemoryCosts, modelled_costs
from trimaran.program.memory import KEEP_ALL, CodecChoice
from trimaran.program.strategy import Degrees
from trimaran.simulator.memory import LiveBytes, live_bytes
from trimaran.user_code.batches import call_model, compute_loss, map_tensors
from trimaran.user_code.model import AUTOCAST, begin_training, cast_model, sample_batch


def meta_batch(job: Job, samples: int, *, like: Any = None) -> Any:
    """A batch on meta tensors.

    Args:
        job: whose data it is like
        samples: its size
        like: a batch of the job of any size, where there is one already

    Raises:
        InputError: the data cannot be made, indexed or collated
    """
    return map_tensors(sample_batch(job) if like is None else like, lambda tensor: _resized(tensor, samples))


def _resized(tensor: Tensor, samples: int) -> Tensor:
    wide = torch.empty((samples, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
    if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        return wide.to(memory_format=torch.channels_last)
    return wide


# ---------------------------------------------------------------------------------------------------------------------
# Which modules run in parts of the batch, as people write it, and models that are made so


_WRITTEN = re.compile(r"(?P<parent>[^:]*):(?P<first>\d+)-(?P<last>\d+):(?P<parts>\d+)")


@told_of_classes
def parse_split(text: str) -> Split:
    """A split as people write it: the sequential module, its first and last child, the parts.

    Args:
        text: such as "features:0-4:2"; the last child is included

    Raises:
        InputError: it is not written so

    Example:
        >>> parse_split("features:0-4:2").name
        'features[0:4] in 2 parts'
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise InputError(
            'a split is written as MODULE:FIRST-LAST:PARTS, such as "features:0-4:2", or "auto", or "none"; '
            f'got "{text}"',
            code="split.malformed",
            split=text,
        )
    return Split(parent=found["parent"], first=int(found["first"]), last=int(found["last"]), parts=int(found["parts"]))


def written(split: Split) -> str:
    """A split as `parse_split` reads it.

    Example:
        >>> written(Split(parent="features", first=0, last=4, parts=2))
        'features:0-4:2'
    """
    return f"{split.parent}:{split.first}-{split.last}:{split.parts}"


def split_maker(make_model: Callable[[], nn.Module], splits: Iterable[Split], stack: ExitStack) -> Any:
    """Makes a model and splits it, until the stack is closed.

    Args:
        make_model: makes the model
        splits: of it
        stack: undoes them
    """

    def make() -> nn.Module:
        model = make_model()
        stack.enter_context(splitting(model, list(splits)))
        return model

    return make


_MASKS = "transformers.masking_utils"


MOST_TRACED = 20_000_000_000
"""Up to this number of parameters a decoder with a known shape is traced, which takes minutes above."""


def check_traceable(job: Job) -> None:
    """Refuse what no trace ends for, by the configuration that a job's model is made of.

    Raises:
        InputError: experts, or more parameters than a trace is worth, with what a step needs on one device
    """
    values = configuration_of_job(job)
    if values is None or not is_known(values.get("model_type")):
        return
    try:
        shape = shape_of_configuration(values).shape
    except InputError:  # a trace finds out
        return
    count = parameter_count(shape)
    if shape.experts is None and count <= MOST_TRACED:
        return
    state = rank_memory(shape, Degrees()).state
    why = "is too large to be traced" if shape.experts is None else "has experts, which no trace follows without data"
    raise InputError(
        f"{job.name}, {count / 1e9:.1f} billion parameters, {why}. In 16 bits its weights, gradients and optimizer "
        f"states take {format_bytes(state)} on one device; `trimaran plan` takes it by its "
        "shape, on the devices of a --cluster",
        code="decoder.not-traced",
        parameters=count,
        state_bytes=state,
    )


class JobTracer:
    """Traces steps of one job. Recurrent layers run in one operation each, as a library of a GPU runs them.

    Args:
        job: whose model, loss, optimizer and data are used
        splits: modules that run in parts of the batch
        like: a tracer of the same job, whose model and data are used again
        precision: of `KERNEL_PRECISIONS`, in place of the job's; None: the job's

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
        precision: Precision | None = None,
    ) -> None:
        check_traceable(job)
        self._job = job if precision is None else replace(job, precision="fp32")
        self._precision = precision
        self._autocast = AUTOCAST.get(job.precision if precision is None else precision)
        self.splits = tuple(splits)
        self._sample: Any = sample_batch(job) if like is None else like._sample
        self._model: nn.Module | None = None if like is None else like._model
        self._traces: dict[int, StepTrace] = {}

    def split(self, *splits: Split) -> "JobTracer":
        """A tracer of the same job with some modules in parts of the batch."""
        return JobTracer(self._job, splits=splits, like=self, precision=self._precision)

    def batch(self, samples: int) -> Any:
        """A batch of this number of samples, without values."""
        return meta_batch(self._job, samples, like=self._sample)

    @property
    def model(self) -> nn.Module:
        """The model, without values once a step was traced."""
        return self._make_model()

    def trace(self, samples: int) -> StepTrace:
        """The step with this number of samples.

        Raises:
            InputError: it cannot run on meta tensors
        """
        if samples not in self._traces:
            self._traces[samples] = self._traced(samples)
        return self._traces[samples]

    def trace_twice(self, samples: int) -> tuple[StepTrace, StepTrace]:
        """The step with this number of samples, without its update, and the step with one sample more.

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
            )

    def _traced(self, samples: int) -> StepTrace:
        with self._telling(), ExitStack() as stack:
            return trace_on_meta(
                split_maker(self._make_model, self.splits, stack),
                lambda: self.batch(samples),
                self._loss,
                make_optimizer=self._job.optimizer,
                autocast=self._autocast,
            )

    def _telling(self) -> AbstractContextManager[None]:
        """Errors of the user's code are raised with the name of the job."""
        name = self._job.name
        failed = f"tracing the step of {name} on meta tensors, which have shapes and no values, failed"
        return users("", said=lambda error: InputError(f"{failed}: {told(error)}", code="trace.failed", job=name))

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


# ---------------------------------------------------------------------------------------------------------------------
# Steps of a job at any batch, and their costs on a device of the catalog


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedStep:
    """A step on a device.

    Attributes:
        trace: the step
        costs: of its operations
        kept: live bytes without offload or recompute
    """

    trace: StepTrace
    costs: MemoryCosts
    kept: LiveBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSteps:
    """Steps of a job at any batch, and their costs on a device.

    Attributes:
        tracer: traces them
        device: prices them
        precision: in which products are computed
        software: framework and libraries
        host_bytes: most that may lie on the host at once for the device [bytes]; None: no limit
        codec: may code copies; None: bytes go as they are
    """

    tracer: JobTracer
    device: Device
    precision: Precision
    software: Software = field(default_factory=Software)
    host_bytes: int | None = None
    codec: CodecChoice | None = None

    def costs(self, trace: StepTrace) -> MemoryCosts:
        """Costs of a step."""
        return modelled_costs(
            trace,
            self.device,
            precision=self.precision,
            software=self.software,
            host_bytes=self.host_bytes,
            codec=self.codec,
        )

    def step(self, samples: int) -> PricedStep:
        """The step with this number of samples."""
        trace = self.tracer.trace(samples)
        return PricedStep(trace=trace, costs=self.costs(trace), kept=live_bytes(trace, KEEP_ALL))

    def split(self, split: Split) -> "PricedSteps":
        """Steps of the same job with some modules in parts of the batch."""
        return replace(self, tracer=self.tracer.split(split))
