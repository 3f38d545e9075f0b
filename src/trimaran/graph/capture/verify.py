"""Whether a flow computes what the user's model computes, by running both on data."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.base.job import Job
from trimaran.graph.batches import call_model, count_samples, name_tensors, slice_batch
from trimaran.graph.capture.export import take_apart
from trimaran.graph.randomness import PYTHON_AND_NUMPY, find_moved, host_states, seed_generators
from trimaran.graph.user_model import (
    device_of,
    enter_mode,
    precision_context,
    quiet,
    uncompiled,
    untouched,
    without_user_hooks,
)

# Largest difference for results that should be equal, relative to the largest value. Models that look whether they are
# being traced take another kernel then (Hugging Face's attention masks), so equality to the last bit is not asked for.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

SEEDS = 8
"""Under which a model that is quickly run is compared with its graph; under two of them any."""

LIGHT_FLOPS = 1e10
"""Forwards of the model and of its flow take at most so much together, beyond the first two seeds [FLOP]."""

LARGEST_FLOPS = 2e11  # a few seconds on one core [FLOP]


def find_difference(
    job: Job, model: nn.Module, flow: fx.GraphModule, batch: Any, *, evaluation: bool, flops: float
) -> str | None:
    """How a flow differs from the model, in words; None where it does not.

    Both run in train mode and, if asked, in eval mode, with the same random numbers, on one sample less than the model
    was exported with. Compared are the tensors of the output, and the buffers afterwards. In train mode they run under
    several seeds, as a forward may go other ways: a graph has one.

    Args:
        job: the job
        model: its model, which is left as it was
        flow: its flow
        batch: a few samples
        evaluation: compare in eval mode too
        flops: of a forward of the batch [FLOP]
    """
    fewer = slice_batch(batch, 0, count_samples(batch) - 1)
    modes = [(True, seed) for seed in range(SEEDS)] + ([(False, 0)] if evaluation else [])
    for training, seed in modes:
        if training and seed > 1 and 2 * (seed + 1) * flops > LIGHT_FLOPS:
            continue
        expected, drew = _run(job, model, lambda: take_apart(call_model(job, model, fewer))[0], training, seed)
        if drew:
            return "its forward draws from the generator of Python or NumPy, and a graph would repeat one draw"
        try:
            found, _ = _run(job, model, lambda: flow(*name_tensors(fewer).values()), training, seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, this flow cannot be used
            return f"it fails on another batch size: {type(error).__name__}: {error}".splitlines()[0]
        if len(expected) != len(found) or not all(map(_equal, expected, found)):
            return f"its results differ from the model's in {'train' if training else 'eval'} mode"
    return None


def _run(job: Job, model: nn.Module, call: Any, training: bool, seed: int) -> tuple[list[Tensor], bool]:
    """Outputs and buffers, and whether a generator of the host was drawn from."""
    with quiet(), uncompiled(), untouched(model), without_user_hooks(model), torch.no_grad():
        enter_mode(model, training=training)
        seed_generators(job.seed + seed)
        before = host_states(PYTHON_AND_NUMPY)
        with precision_context(job, device_of(model)):
            outputs = [tensor.clone() for tensor in call()]
        return outputs + [tensor.clone() for tensor in model.buffers()], bool(find_moved(before))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    tolerance = TOLERANCE.get(one.dtype, 0.0)
    if not tolerance or torch.equal(one, other):
        return torch.equal(one, other)
    scale = one.nan_to_num(0.0, 0.0, 0.0).abs().max()
    return torch.allclose(one, other, rtol=0.0, atol=float(tolerance * scale), equal_nan=True)
