"""Hooks of the user's on the gradients of parameters, and which of them may see parts of a gradient.

In a plain loop such a hook sees the gradient of the whole batch. Replicas and microbatches show it those of parts,
which are added up afterwards: the same where the hook is linear, as a mask or a factor is, and not where it clips. So
hooks are tried on numbers, small ones and large ones, as a clip may be far from the first gradients. One that runs
after the gradient has been accumulated sees sums that are not complete, and is not tried.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trimaran.user_code.held_state import HeldState

_SCALES = (1e-4, 1.0, 1e4)
_CLOSE = 1e-3


def gradient_hooks(model: nn.Module) -> list[tuple[str, bool]]:
    """The parameters with hooks on their gradients, each with whether these are linear.

    Args:
        model: the user's, as its factory made it

    Example:
        >>> model = nn.Linear(2, 1)
        >>> _ = model.weight.register_hook(lambda gradient: 0.5 * gradient)
        >>> _ = model.bias.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        >>> gradient_hooks(model)
        [('weight', True), ('bias', False)]
    """
    found = []
    for name, parameter in model.named_parameters():
        # Properties of torch that hold nothing until a hook is there.
        hooks = list((getattr(parameter, "_backward_hooks", None) or {}).values())
        late = list((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values())
        if hooks or late:
            held = HeldState({str(number): hook for number, hook in enumerate(hooks)})
            found.append((name, not late and _are_linear(hooks, parameter)))
            held.put_back()
    return found


def _are_linear(hooks: list[Any], parameter: Tensor) -> bool:
    if not parameter.numel():
        return True
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
                if not float((whole - parts).abs().max()) <= _CLOSE * max(float(parts.abs().max()), 1e-30):
                    return False
    except Exception:  # noqa: BLE001 - the user's; what it needs is not known
        return False
    return True
