"""Which parameters of a captured model get no gradient, by one backward: the loss may read some of its outputs.

Between segments of a network a gradient that is missing travels as zeros, and the parameters behind it would have
zeros for a gradient, by which an optimizer decays them. So whoever divides a network asks before.
"""

import torch
from torch.func import functional_call

from trimaran.errors import InputError
from trimaran.graph.batches import compute_loss, move_batch, split_batch
from trimaran.graph.capture import Capture
from trimaran.graph.hooks import without_user_hooks
from trimaran.graph.sample import sample_batch
from trimaran.graph.training_mode import begin_training
from trimaran.graph.untouched import device_of, precision_context, quiet, untouched
from trimaran.graph.verify import LARGEST_FLOPS
from trimaran.job import Job


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
    try:
        with quiet(), untouched(model), without_user_hooks(model), torch.enable_grad(), precision_context(job, device):
            begin_training(model)
            output = functional_call(model, {**leaves, **others}, arguments, keywords)
            total, _ = compute_loss(job, output, batch)
            # Before buffers are put back, of which autograd may have kept some.
            gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except Exception as error:
        if small:
            raise
        raise InputError(
            f"{job.name!r} has outputs or parameters that its loss may not read, and is too large to run here and see: "
            f"on tensors without content it fails ({type(error).__name__}: {error}). Use data parallelism (pp=1, tp=1)"
        ) from error
    return frozenset(name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None)
