"""The user's hooks: kept off while a model is looked at, and which of them a cut would lose.

In a segment the leaf modules are the user's own, so their hooks fire. A container such as a block is not called there,
as its parts may lie in several segments: a hook on it would never fire, and a cut is refused while there is one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def has_user_hooks(module: nn.Module) -> bool:
    """Whether someone other than torch itself hooked the forward or backward of this module."""
    return any(not _of_torch(hook) for kind in KINDS for hook in getattr(module, kind, {}).values())


@contextmanager
def without_user_hooks(model: nn.Module) -> Iterator[None]:
    """Take the user's hooks off; those by which torch computes a weight (weight and spectral norm) stay."""
    saved = [
        (hooks, hooks.copy()) for module in model.modules() for kind in KINDS if (hooks := getattr(module, kind, None))
    ]
    try:
        for hooks, _ in saved:
            for key in [key for key, hook in hooks.items() if not _of_torch(hook)]:
                del hooks[key]
        yield
    finally:
        for hooks, before in saved:
            hooks.clear()
            hooks.update(before)


def modules_with_lost_hooks(model: nn.Module, called: set[str]) -> list[str]:
    """Paths of the modules whose hooks cannot fire when only some modules are called.

    Args:
        model: the user's model
        called: paths of the modules that a segment calls; what lies inside them runs as ever
    """
    lost = []
    for path, module in model.named_modules():
        inside = any(path == leaf or path.startswith(f"{leaf}.") for leaf in called)
        if not inside and has_user_hooks(module):
            lost.append(path)
    return lost


def _of_torch(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.startswith("torch.")
