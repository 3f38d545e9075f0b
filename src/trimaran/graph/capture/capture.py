"""A job becomes a graph.

    Job ──▶ model, a few samples ──▶ flow (the exported model over the user's own leaf modules) ──▶ Graph

The flow is compared with the user's model before it is believed, by running both on data. Where there is none, the
graph has the model as one operation, and a note says what that costs. The capture of a job is the same in every
process, so every rank makes its own.

Which parameters of a captured model get no gradient, by one backward: the loss may read some of its outputs.

Between segments of a network a gradient that is missing travels as zeros, and the parameters behind it would have
zeros for a gradient, by which an optimizer decays them. So whoever divides a network asks before.
"""

import dataclasses
import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.system import memory_bytes
from trimaran.base.user_errors import asking
from trimaran.graph.behaviour import TOO_LARGE, Behaviour
from trimaran.graph.capture.describe import describe_flow, describe_whole, run_whole
from trimaran.graph.capture.export import NotExportableError, OutputStructure, first_line, take_apart
from trimaran.graph.capture.flow import make_flow
from trimaran.graph.examine import examine
from trimaran.graph.gradients import are_alike, kept_gradient, largest, largest_difference
from trimaran.graph.optimizers import modules_of
from trimaran.graph.types import Graph
from trimaran.user_code.batches import (
    are_sliceable,
    call_model,
    compute_loss,
    copied_batch,
    count_samples,
    move_batch,
    name_tensors,
    slice_batch,
    split_batch,
)
from trimaran.user_code.held_state import HOST_GENERATOR_TYPES, HeldState, generator_states
from trimaran.user_code.model import (
    HOOKED,
    MOST_LOOKED_AT,
    SAMPLES,
    Samples,
    begin_training,
    cast_model,
    device_of,
    differing_sizes,
    enter_mode,
    largest_look,
    make_model,
    modules_with_lost_hooks,
    precision_context,
    quiet,
    sample_batch,
    uncompiled,
    untouched,
    without_user_hooks,
)
from trimaran.user_code.randomness import PYTHON_AND_NUMPY, find_moved, host_states, seed_generators

# ---------------------------------------------------------------------------------------------------------------------
# Whether the flow computes what the user's model computes, by running both on data


# Largest difference for results that should be equal, relative to the largest value. Models that look whether they are
# being traced take another kernel then (Hugging Face's attention masks), so equality to the last bit is not asked for.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

SEEDS = 8
"""Under which a model that is quickly run is compared with its graph; under two of them any."""

LIGHT_FLOPS = 1e10
"""Forwards of the model and of its flow take at most so much together, beyond the first two seeds [FLOP]."""

_COPIES = 5
"""Of the parameters, while a job is looked at: weights, gradients, two moments, and what they were before."""

LARGEST_FLOPS = 2e11  # a few seconds on one core [FLOP]


def find_difference(
    job: Job, model: nn.Module, flow: fx.GraphModule, batch: Any, *, evaluation: bool, flops: float
) -> tuple[str | None, list[str]]:
    """How a flow differs from the model, in words; None where it does not.

    Both run in train mode and, if asked, in eval mode, with the same random numbers, on one sample less than the model
    was exported with. Compared are the tensors of the output, and the buffers afterwards. In train mode they run under
    several seeds, as a forward may go other ways: a graph has one. Gradients are compared too, also very large and very
    small ones: torch.export drops the backward of a torch.autograd.Function, and hooks on tensors, which may clamp.

    Args:
        job: the job
        model: its model, which is left as it was
        flow: its flow
        batch: a few samples
        evaluation: compare in eval mode too
        flops: of a forward of the batch [FLOP]

    Returns:
        The difference, and the names of the model's buffers that a backward changes.
    """
    fewer = slice_batch(batch, 0, count_samples(batch) - 1)

    def called() -> tuple[Tensor, ...]:
        # A forward may write to a batch, which it gets once in a training.
        return take_apart(call_model(job, model, copied_batch(fewer)))[0]

    def flowed() -> Any:
        return flow(*name_tensors(copied_batch(fewer)).values())

    modes = [(True, seed) for seed in range(SEEDS)] + ([(False, 0)] if evaluation else [])
    for training, seed in modes:
        if training and seed > 1 and 2 * (seed + 1) * flops > LIGHT_FLOPS:
            continue
        try:
            expected, drew = _run(job, model, called, training, seed)
        except Exception as error:  # noqa: BLE001 the user's
            # Its user may never evaluate it; what it fails by in training is told where it runs as a whole.
            return f"the model fails in {'train' if training else 'eval'} mode: {first_line(error)}", []
        if drew:
            return "its forward draws from the generator of Python or NumPy, and a graph would repeat one draw", []
        try:
            found, _ = _run(job, model, flowed, training, seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, this flow cannot be used
            return f"it fails on another batch size: {type(error).__name__}: {error}".splitlines()[0], []
        if len(expected) != len(found) or not all(map(_alike, found, expected)):
            return f"its results differ from the model's in {'train' if training else 'eval'} mode", []
    tolerance = _GRADIENT_TOLERANCE if job.precision in ("fp32", "fp64") else _ROUNDED_TOLERANCE
    for factor in _FACTORS:
        if factor != 1.0 and 2 * (SEEDS + 3) * flops > LIGHT_FLOPS:
            continue
        try:
            expected_gradients, rewritten, read = _gradients(job, model, called, factor)
            found_gradients, _, read_by_flow = _gradients(job, model, flowed, factor)
        except Exception as error:  # noqa: BLE001 - if it is the model's, it is told where that runs as a whole
            return f"a backward fails: {first_line(error)}", []
        if read != read_by_flow:
            return (
                "its backward reads values, by which it may decide, and torch.export drops the backward of a "
                "torch.autograd.Function and hooks on tensors: decide for each element (torch.where)"
            ), []
        most = max(map(largest, expected_gradients.values()), default=0.0)
        for name, gradient in expected_gradients.items():
            if not math.isfinite(most):
                continue
            # What should be zero is rounding.
            scale = max(largest(gradient), 0.03 * most)
            if not largest_difference(found_gradients[name], gradient) <= tolerance * scale:
                return (
                    f"the gradient of {name} differs from the model's: torch.export drops the backward of a "
                    "torch.autograd.Function and hooks on tensors; put them into a module without children, "
                    "whose forward is called as it is"
                ), []
    return None, rewritten


_FACTORS = (2.0**20, 2.0**-20, 1.0)
"""Of the gradient that comes into a backward: powers of two, as all of them round alike."""

_GRADIENT_TOLERANCE, _ROUNDED_TOLERANCE = 1e-3, 0.1
"""Differences of gradients, of the largest, that are rounding: in fp32, and where operations round to 16 bits."""


class _Reading(TorchDispatchMode):
    """Counts the values that are read of tensors, as an `if` does."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@asking("")
def _gradients(job: Job, model: nn.Module, call: Any, factor: float) -> tuple[dict[str, Tensor], list[str], int]:
    """Gradients of a sum of the outputs, with weights that are drawn, by parameter; without one they are zeros.

    And the names of the buffers that the backward changes, and how many values it reads.

    Args:
        job: the job
        model: its model
        call: gives the outputs
        factor: of the weights
    """
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    generator = torch.Generator().manual_seed(job.seed)
    with quiet(), uncompiled(), untouched(model), without_user_hooks(model), torch.enable_grad():
        enter_mode(model, training=True)
        seed_generators(job.seed)
        with precision_context(job, device_of(model)):
            outputs = [one for one in call() if one.requires_grad]
        weights = [torch.randn(one.shape, generator=generator).mul(factor).to(one) for one in outputs]
        found: Any = [None] * len(trained)
        before = {name: one.detach().clone() for name, one in model.named_buffers()}
        reading = _Reading()  # type: ignore[no-untyped-call]
        if outputs and trained:
            with reading:
                found = torch.autograd.grad(outputs, list(trained.values()), weights, allow_unused=True)
        rewritten = [name for name, one in model.named_buffers() if name in before and not _alike(one, before[name])]
    named = zip(trained.items(), found, strict=True)
    return (
        {
            name: kept_gradient(torch.zeros_like(one) if gradient is None else gradient)
            for (name, one), gradient in named
        },
        rewritten,
        reading.count,
    )


def _run(job: Job, model: nn.Module, call: Any, training: bool, seed: int) -> tuple[list[Tensor], bool]:
    """Outputs and buffers, and whether a generator of the host was drawn from."""
    # In training a forward may ask for gradients, as one that puts hooks on its tensors.
    with quiet(), uncompiled(), untouched(model), without_user_hooks(model), torch.set_grad_enabled(training):
        enter_mode(model, training=training)
        seed_generators(job.seed + seed)
        held = HeldState(dict(model.named_modules()), undoable=False)
        before, own = host_states(PYTHON_AND_NUMPY), list(held.find(*HOST_GENERATOR_TYPES).values())
        began = generator_states(own)
        with precision_context(job, device_of(model)):
            outputs = [tensor.detach().clone() for tensor in call()]
        drew = bool(find_moved(before)) or generator_states(own) != began
        return outputs + [tensor.detach().clone() for tensor in model.buffers()], drew


def _alike(one: Tensor, other: Tensor) -> bool:
    return are_alike(one, other, TOLERANCE.get(other.dtype, 0.0))


# ---------------------------------------------------------------------------------------------------------------------
# The capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured job.

    Attributes:
        graph: the job as pure data
        model: the user's model, with its real parameters
        flow: the exported model over the user's own leaf modules, called with the tensors of a batch by position; None
            if the model could not be exported. Its nodes carry the ids of the graph: `meta["op"]`, `meta["tensor"]`
        structure: how to make the model's output from the tensors that the flow returns
        one_for_both_modes: False where the flow stands for train mode only
    """

    graph: Graph
    model: nn.Module
    flow: fx.GraphModule | None
    structure: OutputStructure | None = None
    one_for_both_modes: bool = True


def capture(job: Job, model: nn.Module | None = None, *, batch: Any = None) -> Capture:
    """The graph of a job, and what is needed to build segments of its model.

    The model is traced where it is. Capture before it is moved to a GPU: then every machine gets the same graph.

    Args:
        job: the job
        model: its model; made under the job's seed unless given; for an fp64 job it is converted in place
        batch: samples as `collate` makes them; taken from the training data unless given

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    model = make_model(job) if model is None else cast_model(job, model)
    if batch is not None:
        size = count_samples(batch)
        return _capture_at(job, model, batch, slice_batch(batch, 0, size - 1), size, ())
    given, size = Samples(job, device_of(model)), SAMPLES
    differing = differing_sizes(given)
    # A loss may count its calls, also in a buffer.
    held = HeldState({"the loss": job.loss})
    with ExitStack() as stack:
        stack.callback(held.put_back)
        for part in modules_of(job.loss):
            stack.enter_context(untouched(part))
        while True:
            batch, fewer = given.batch(range(size)), given.batch(range(size - 1))
            try:
                return _capture_at(job, model, batch, fewer, size, differing)
            except Exception:
                given = Samples(job, device_of(model), most=MOST_LOOKED_AT)
                size = _enough(job, model, given, more_than=size)
                if not size:
                    raise


def _enough(job: Job, model: nn.Module, samples: Samples, *, more_than: int) -> int:
    """Samples of a larger batch on which the model runs, also with one less; 0: none was found."""
    size = 2 * more_than
    while size <= largest_look(job, samples):
        batches = samples.batch(range(size - 1)), samples.batch(range(size))
        try:
            run_whole(job, model, batches, (size - 1, size))
        except Exception:  # noqa: BLE001 - what it raised on fewer samples is told
            size *= 2
        else:
            return size
    return 0


def _capture_at(job: Job, model: nn.Module, batch: Any, fewer: Any, size: int, differing: tuple[str, ...]) -> Capture:
    with torch.enable_grad():
        try:
            # A first dim that is another one, such as time, may be as long by chance.
            if not are_sliceable(batch, fewer, size):
                raise NotExportableError(
                    f"in a batch of {size} samples the first dims of the tensors are not all {size}, or it holds other "
                    "things than tensors"
                )
            if differing:
                raise NotExportableError(
                    f"{', '.join(differing)}: other sizes from batch to batch; pad to one length in Job.collate"
                )
            return _capture_flow(job, model, batch)
        except NotExportableError as error:
            graph = describe_whole(job, model, run_whole(job, model, (fewer, batch), (size - 1, size)), str(error))
            return Capture(graph=graph, model=model, flow=None)


def capture_and_look(job: Job) -> Capture:
    """The graph of a job, with what the job was seen to do.

    Args:
        job: the job

    Raises:
        InputError: the model, the data or the loss of the job cannot be used; or this is within `virtual_memory`
    """
    if HOOKED.locked():
        raise InputError(
            "a job was to be planned, checked or trained within virtual_memory, or while a session has a memory plan: "
            "it is looked at first, and its steps would be taken for steps of the loop. Do so before `with "
            "virtual_memory(...)`, which goes around the loop, and close a session with a memory plan first",
            code="virtual-memory.around-look",
        )
    captured = capture(job)
    return dataclasses.replace(captured, graph=looked_at(job, captured.graph, captured.model))


def looked_at(job: Job, graph: Graph, model: nn.Module | None = None) -> Graph:
    """A graph with what its job was seen to do.

    Args:
        job: the job
        graph: of it
        model: its model; None: it is made, where this machine has the memory for it and its optimizer

    Raises:
        InputError: the model or the data cannot be made
    """
    if model is None and _COPIES * sum(parameter.nbytes for parameter in graph.parameters) > memory_bytes():
        return dataclasses.replace(graph, behaviour=Behaviour(not_looked=TOO_LARGE, precision=job.precision))
    too_large = 3 * sum(op.flops.at(SAMPLES) for op in graph.ops) > LARGEST_FLOPS
    model = make_model(job) if model is None else model
    return dataclasses.replace(graph, behaviour=examine(job, model, too_large=too_large))


def _lost_hooks(model: nn.Module, flow: fx.GraphModule) -> list[str]:
    called = {str(node.target) for node in flow.graph.nodes if node.op == "call_module"}
    return modules_with_lost_hooks(model, called)


def _capture_flow(job: Job, model: nn.Module, batch: Any) -> Capture:
    flow = make_flow(job, model, batch)
    graph = describe_flow(job, model, flow, batch, name_tensors(batch))
    flops = sum(op.flops.at(8) for op in graph.ops)
    if flops > LARGEST_FLOPS:
        note = "the exported model was not compared with the model, which is too large to run here"
        graph = dataclasses.replace(graph, notes=(*graph.notes, note))
    else:
        difference, rewritten = find_difference(
            job, model, flow.module, batch, evaluation=flow.one_for_both_modes, flops=flops
        )
        if difference is not None:
            raise NotExportableError(f"the exported model is not the model: {difference}")
        if rewritten:
            why = (
                "the backward changes it once more, as torch.utils.checkpoint runs the forward again: checkpoint a "
                "part without it, or let a memory plan recompute"
            )
            graph = _undivided(graph, rewritten[0], why, "a buffer")
    lost = _lost_hooks(model, flow.module)
    if lost:
        names = ", ".join(path or "the model itself" for path in lost)
        note = f"no pipeline: hooks on {names} would not fire in parts of the model; hooks on leaf modules would"
        whole = dict.fromkeys(
            (path or "the model" for path in lost), "a hook on it would not fire in a part of the model"
        )
        graph = dataclasses.replace(graph, split_points=(), regions=(), whole=whole, notes=(*graph.notes, note))
    returned = _returned_parameters(model, flow.module)
    if returned:
        why = "the forward returns it as it is, and no operation has its gradient: compute with it in the forward"
        graph = _undivided(graph, returned[0], why, "a parameter")
    return Capture(
        graph=graph,
        model=model,
        flow=flow.module,
        structure=flow.structure,
        one_for_both_modes=flow.one_for_both_modes,
    )


def _undivided(graph: Graph, name: str, why: str, what: str) -> Graph:
    """A graph without parts for several devices, with the tensor of the model for which it has none."""
    note = f"no pipeline: {name} is {what}, and {why}"
    return dataclasses.replace(graph, split_points=(), regions=(), whole={name: why}, notes=(*graph.notes, note))


def _returned_parameters(model: nn.Module, flow: fx.GraphModule) -> list[str]:
    """Trained parameters that are outputs of a graph, by name: replicas of its stages would not add up gradients."""
    trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
    output = next(node for node in flow.graph.nodes if node.op == "output")
    return [str(one.target) for one in output.all_input_nodes if one.op == "get_attr" and str(one.target) in trained]


@asking("")
def unused_parameters(job: Job, capture: Capture) -> frozenset[str]:
    """Names of the trained parameters that get no gradient in any step, of a captured model that may have some.

    One backward tells, of a few samples. A model that is too large to run here runs on tensors without content.

    Args:
        job: the job
        capture: of it, with a flow

    Raises:
        InputError: it is too large to run here, and it or its loss reads the content of its tensors
    """
    model = capture.model
    small = sum(op.flops.at(8) for op in capture.graph.ops) <= LARGEST_FLOPS
    device = device_of(model) if small else torch.device("meta")
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    leaves = {name: tensor.detach().to(device).requires_grad_() for name, tensor in trained.items()}
    others = {
        name: tensor.detach().to(device)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if name not in trained
    }
    batch = move_batch(sample_batch(job, device_of(model)), device)
    arguments, keywords, _ = split_batch(batch, own_loss=job.loss is None, model=capture.model)
    held = HeldState({"the loss": job.loss})
    own = [one for part in (model, *modules_of(job.loss)) for one in part.parameters()]
    before = [one.grad for one in own]
    try:
        with quiet(), untouched(model), without_user_hooks(model), torch.enable_grad(), precision_context(job, device):
            begin_training(model)
            output = functional_call(model, {**leaves, **others}, arguments, keywords)
            total, _ = compute_loss(job, output, batch)
            # Before buffers are put back, of which autograd may have kept some; and of everything, as a checkpoint that
            # is reentrant asks.
            total.backward()
    except Exception as error:
        if small:
            raise
        raise InputError(
            f"{job.name!r} has outputs or parameters that its loss may not read, and is too large to run here and see: "
            f"on tensors without content it fails ({type(error).__name__}: {error}). Use data parallelism (pp=1, tp=1)"
        ) from error
    finally:
        held.put_back()
        for one, gradient in zip(own, before, strict=True):
            one.grad = gradient
    return frozenset(name for name, leaf in leaves.items() if leaf.grad is None)
