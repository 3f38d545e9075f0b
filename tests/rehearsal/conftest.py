"""What tests of rehearsals share."""

from collections.abc import Iterator

import pytest
from tests.forks.client import forked_rehearsals


@pytest.fixture(scope="module")
def _forked_rehearsals() -> Iterator[None]:
    """Ranks that are rehearsed are forked: new interpreters would take most of the time."""
    with forked_rehearsals():
        yield
