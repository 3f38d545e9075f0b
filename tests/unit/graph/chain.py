"""Segments in one process, the way the runtime runs them on several.

What crosses a cut is sent without its history; gradients come back and are summed over all who read a tensor.
"""

import copy
from functools import cache
from typing import Any

import torch
from tests import zoo
from torch import Tensor, nn
from torch.utils.data import default_collate

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.capture.segments import Segment, build_segment
from trimaran.user_code.batches import call_model, compute_loss, count_samples, name_tensors

NETWORKS = ("cnn", "unet", "lstm", "gpt")


@cache
def captured(name: str) -> tuple[Job, Capture]:
    """A network of the zoo, captured once; tests put its state back or do not change it."""
    job = getattr(zoo, name)()
    return job, capture(job)


def make_batch(job: Job, samples: int) -> Any:
    dataset: Any = job.dataset()
    return (job.collate or default_collate)([dataset[index] for index in range(samples)])


def train_whole(job: Job, model: nn.Module, batch: Any) -> Tensor:
    """One forward and backward of the user's model; the gradients are in its parameters."""
    model.zero_grad()
    torch.manual_seed(5)
    total, weight = compute_loss(job, call_model(job, model, batch), batch)
    loss: Tensor = total / weight
    loss.backward()
    return loss.detach()


def train_chain(job: Job, segments: list[Segment], model: nn.Module, batch: Any) -> Tensor:
    """The same through segments."""
    model.zero_grad()
    torch.manual_seed(5)
    data = name_tensors(batch)
    made: dict[str, Tensor] = {}
    received: list[dict[str, Tensor]] = []
    output = None
    for segment in segments:
        copies = {name: made[name].detach().requires_grad_(made[name].requires_grad) for name in segment.reads}
        received.append(copies)
        fed = {name: data[name] for name in segment.inputs}
        writes, output = segment({**copies, **fed}, count_samples(batch))
        made.update(writes)
    total, weight = compute_loss(job, output, batch)
    loss: Tensor = total / weight
    loss.backward()
    collected = _collect({}, received[-1])
    for segment, copies in zip(reversed(segments[:-1]), reversed(received[:-1]), strict=True):
        sent = [name for name in segment.writes if made[name].requires_grad]
        if sent:
            gradients = [collected.get(name, torch.zeros_like(made[name])) for name in sent]
            torch.autograd.backward([made[name] for name in sent], gradients)
        collected = _collect(collected, copies)
    return loss.detach()


def evaluate_chain(segments: list[Segment], batch: Any) -> Any:
    """The model's output through segments, without gradients."""
    values = dict(name_tensors(batch))
    output = None
    with torch.no_grad():
        for segment in segments:
            writes, output = segment(values, count_samples(batch))
            values.update(writes)
    return output


def build_chain(found: Capture, boundaries: tuple[str, ...]) -> list[Segment]:
    return [build_segment(found, boundaries, index) for index in range(len(boundaries) + 1)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.grad.clone() for name, tensor in model.named_parameters() if tensor.grad is not None}


def assert_equal_to_model(
    job: Job,
    found: Capture,
    boundaries: tuple[str, ...],
    samples: int = 5,
    tolerance: float = 0.0,
    segments: list[Segment] | None = None,
) -> None:
    """Loss, gradients and buffers of a step through segments, or a chain, equal those of the user's model."""
    model, twin = found.model, copy.deepcopy(found.model)
    before = copy.deepcopy(model.state_dict())
    batch = make_batch(job, samples)
    model.train()
    twin.train()
    expected = train_whole(job, twin, batch)
    loss = train_chain(job, build_chain(found, boundaries) if segments is None else segments, model, batch)
    torch.testing.assert_close(loss, expected, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(gradients(model), gradients(twin), rtol=0.0, atol=tolerance)
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()), rtol=0.0, atol=tolerance)
    model.zero_grad()
    model.load_state_dict(before)


def _collect(collected: dict[str, Tensor], copies: dict[str, Tensor]) -> dict[str, Tensor]:
    found = dict(collected)
    for name, tensor in copies.items():
        if tensor.grad is not None:
            found[name] = found[name] + tensor.grad if name in found else tensor.grad
    return found
