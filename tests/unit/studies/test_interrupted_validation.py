"""Ctrl-C in a validation that runs in several processes ends them, and does not wait for their rows."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from trimaran_studies.validation.validate import _apart


def slow(row: Any) -> Any:
    """Takes longer than anybody waits."""
    if row.fields["model"] == "slow":
        time.sleep(300)
    return row


def interrupted(what: str, done: int, total: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.timeout(120)
def test_an_interrupt_ends_the_processes() -> None:
    rows: Any = [SimpleNamespace(family="a", fields={"model": model}) for model in ("quick", "slow")]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _apart(rows, slow, interrupted, 2)
    assert time.monotonic() - began < 100
