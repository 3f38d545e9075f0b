"""Errors by what programs read of them: the code and the figures, not the wording."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trimaran.base.errors import InputError, TrimaranError


@contextmanager
def raises(
    code: str, kind: type[TrimaranError] = InputError, /, *, match: str | None = None, **figures: Any
) -> Iterator[pytest.ExceptionInfo[TrimaranError]]:
    """Expect an error.

    Args:
        code: of the error
        kind: its class
        match: a pattern of values or of a word or two in its message that no figure has
        figures: some of its figures
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.code == code
    found = caught.value.figures
    assert {name: found.get(name) for name in figures} == figures
