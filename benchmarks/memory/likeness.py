"""Whether an arm trains as plain autograd does: gradients and running statistics, bit for bit.

Two steps from the same weights and seed, with deterministic kernels; the gradients of the second depend on the update
of the first. What is kept of a tensor is a digest of its bytes and its norm, so that results of different processes,
and of different days, can be compared.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from benchmarks.memory.models import SEED, Training

STEPS = 2
Digests = dict[str, list[Any]]
_KINDS = ("gradient", "buffer")


def digests(
    training: Training, step: Callable[[], torch.Tensor], state: Mapping[str, torch.Tensor]
) -> tuple[list[float], Digests]:
    """Losses and digests after some steps from a state.

    Args:
        training: what is trained; its weights are put back, its optimizer starts anew
        step: runs one
        state: of the model

    Returns:
        The losses, and by name a digest and a norm of each gradient and buffer.
    """
    with torch.no_grad():
        for name, tensor in training.model.state_dict().items():
            tensor.copy_(state[name])
    for kept in training.optimizer.state.values():
        for value in kept.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    torch.manual_seed(SEED)
    _deterministic(True, strict=training.repeatable)
    try:
        losses = [float(step()) for _ in range(STEPS)]
    finally:
        _deterministic(False, strict=False)
    return losses, {name: _digest(tensor) for name, tensor in _tensors(training)}


def compare(found: Digests, oracle: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the oracle.

    Returns:
        `equal`: nothing does; `gradients`, `buffers`: how many do; `worst_norm_error`: by how much the norm of the
        worst gradient differs [1].
    """
    if found.keys() != oracle.keys():
        return {"equal": False, "error": f"tensors are missing or new: {sorted(found.keys() ^ oracle.keys())[:5]}"}
    different = [name for name in found if found[name][0] != oracle[name][0]]
    counts = {f"{kind}s": sum(name.startswith(kind) for name in different) for kind in _KINDS}
    errors = [
        abs(found[name][1] - oracle[name][1]) / max(oracle[name][1], 1e-30)
        for name in different
        if not name.startswith("buffer")
    ]
    return {"equal": not different, **counts, "worst_norm_error": max(errors, default=0.0)}


def _tensors(training: Training) -> Iterator[tuple[str, torch.Tensor]]:
    for number, parameter in enumerate(training.model.parameters()):
        if parameter.grad is not None:
            yield f"gradient {number}", parameter.grad.detach()
    for number, buffer in enumerate(training.model.buffers()):
        yield f"buffer {number}", buffer


def _digest(tensor: torch.Tensor) -> list[Any]:
    counts = not tensor.is_floating_point()
    norm = float(torch.linalg.vector_norm(tensor.double() if counts else tensor, dtype=torch.float64))
    flat = tensor.to("cpu").contiguous().reshape(-1)
    return [hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=8).hexdigest(), norm]


def _deterministic(wanted: bool, *, strict: bool) -> None:
    # Poolings warn although each of their sums has one term only. Where all kernels can be deterministic, all must be.
    torch.use_deterministic_algorithms(wanted, warn_only=not strict)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = wanted
