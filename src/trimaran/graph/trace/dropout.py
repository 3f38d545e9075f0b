"""Dropout on meta tensors, as a GPU has it: one kernel, which keeps a mask of one byte an element.

Without a device torch falls back on the plain form, which keeps noise in the precision of the input. In place there is
only the plain form, on a GPU as well.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def drop_out(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`dropout` as a GPU runs it.

    Args:
        func: torch's own function, that of modules or the one below it
        args: its arguments by place
        kwargs: its arguments by name
    """
    given = dict(zip(("input", "p", "train", "inplace"), args, strict=False), **kwargs)
    value, share = given["input"], given.get("p", 0.5)
    trains = given.get("train", given.get("training", True))
    if given.get("inplace") or not trains or not 0 < share < 1 or not value.numel():
        return func(*args, **kwargs)
    return torch.native_dropout(value, share, True)[0]
