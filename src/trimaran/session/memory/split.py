"""Which modules run in parts of the batch, as people write it, and models that are made so."""

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn

from trimaran.errors import InputError
from trimaran.runtime.split import Split, splitting

_WRITTEN = re.compile(r"(?P<parent>[^:]*):(?P<first>\d+)-(?P<last>\d+):(?P<parts>\d+)")


def parse_split(text: str) -> Split:
    """A split as people write it: the sequential module, its first and last child, the parts.

    Raises:
        InputError: it is not written so

    Example:
        >>> parse_split("features:0-4:2").name
        'features[0:4] in 2 parts'
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise InputError(
            'a split is written as MODULE:FIRST-LAST:PARTS, such as "features:0-4:2", or "auto", or "none"; '
            f'got "{text}"',
            code="split.malformed",
            split=text,
        )
    return Split(parent=found["parent"], first=int(found["first"]), last=int(found["last"]), parts=int(found["parts"]))


def written(split: Split) -> str:
    """A split as `parse_split` reads it.

    Example:
        >>> written(Split(parent="features", first=0, last=4, parts=2))
        'features:0-4:2'
    """
    return f"{split.parent}:{split.first}-{split.last}:{split.parts}"


def split_maker(make_model: Callable[[], nn.Module], splits: Iterable[Split], stack: ExitStack) -> Any:
    """Makes a model and splits it, until the stack is closed.

    Args:
        make_model: makes the model
        splits: of it
        stack: undoes them
    """

    def make() -> nn.Module:
        model = make_model()
        stack.enter_context(splitting(model, list(splits)))
        return model

    return make
