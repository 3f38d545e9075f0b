"""Optimizers by name, for a workload under another one than the job's.

Learning rates are of no account: nothing is learned.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from trimaran.errors import InputError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def make_optimizer(name: str) -> "Callable[[Iterable[nn.Parameter]], Optimizer]":
    """Makes an optimizer as networks are usually trained with it.

    Args:
        name: in small letters. "sgd" is with momentum and weight decay, as image networks are trained; "plain-sgd"
            without. "lamb" is counted as AdamW, whose state is the same, without the norms of each layer

    Raises:
        InputError: no such optimizer
    """
    from torch import optim

    made: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
        "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "plain-sgd": lambda p: optim.SGD(p, lr=0.01),
        "adam": lambda p: optim.Adam(p, lr=1e-3),
        "adamw": lambda p: optim.AdamW(p, lr=1e-3),
        "lamb": lambda p: optim.AdamW(p, lr=1e-3),
        "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
        "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9),
        "adadelta": lambda p: optim.Adadelta(p),
        "adafactor": lambda p: optim.Adafactor(p),
    }
    if name not in made:
        near = difflib.get_close_matches(name, made, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise InputError(
            f'unknown optimizer "{name}"{hint} Known are {", ".join(made)}', code="optimizer.unknown", optimizer=name
        )
    return made[name]
