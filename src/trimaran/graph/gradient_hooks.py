"""Hooks of the user's on the gradients of parameters, and which of them may see parts of a gradient.

In a plain loop such a hook sees the gradient of the whole batch. Replicas and microbatches show it those of parts,
which are added up afterwards: the same where the hook is linear, as a mask or a factor is, and not where it clips. So
hooks are tried on numbers, small ones and large ones, as a clip may be far from the first gradients. One that runs
after the gradient has been accumulated sees sums that are not complete, and is not tried.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trimaran.user_code.held_state import HeldState

_SCALES = (1e-4, 1.0, 1e4)
_CLOSE = 1e-3


Kind = Literal["linear", "uneven", "follows ranks"]


def gradient_hooks(
    model: nn.Module, elsewhere: Callable[[], AbstractContextManager[None]] = nullcontext
) -> list[tuple[str, Kind]]:
    """The parameters with hooks on their gradients, each with what these do.

    Args:
        model: the user's, as its factory made it
        elsewhere: tells who asks that this is one of several ranks, or of one

    Example:
        >>> model = nn.Linear(2, 1)
        >>> _ = model.weight.register_hook(lambda gradient: 0.5 * gradient)
        >>> _ = model.bias.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        >>> gradient_hooks(model)
        [('weight', 'linear'), ('bias', 'uneven')]
    """
    found: list[tuple[str, Kind]] = []
    for name, parameter in model.named_parameters():
        # Properties of torch that hold nothing until a hook is there.
        hooks = list((getattr(parameter, "_backward_hooks", None) or {}).values())
        late = list((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values())
        if hooks or late:
            held = HeldState({str(number): hook for number, hook in enumerate(hooks)})
            found.append((name, "uneven" if late else _kind_of(hooks, parameter, elsewhere)))
            held.put_back()
    return found


def _kind_of(hooks: list[Any], parameter: Tensor, elsewhere: Callable[[], AbstractContextManager[None]]) -> Kind:
    if not parameter.numel():
        return "linear"
    generator = torch.Generator().manual_seed(0)

    def drawn() -> Tensor:
        numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        return numbers.to(device=parameter.device, dtype=parameter.dtype)

    def after(gradient: Tensor) -> Tensor:
        for hook in hooks:
            given = hook(gradient)
            gradient = gradient if given is None else given
        return gradient

    try:
        with torch.no_grad():
            for scale in _SCALES:
                one, other = drawn() * scale, drawn() * scale * 0.3
                parts = after(one.clone()) + after(other.clone())
                whole = after(one + other)
                largest = max(float(parts.abs().max()), 1e-30)
                with elsewhere():
                    if not float((whole - after(one + other)).abs().max()) <= _CLOSE * largest:
                        return "follows ranks"
                if not float((whole - parts).abs().max()) <= _CLOSE * largest:
                    return "uneven"
    except Exception:  # noqa: BLE001 - the user's; what it needs is not known
        return "uneven"
    return "linear"
