"""What tests on several ranks share."""

from collections.abc import Iterator

import pytest
from tests.forks.client import forked_ranks, server


@pytest.fixture(scope="module")
def _forked() -> Iterator[None]:
    """Ranks that the code under test launches are forked: new interpreters would take most of the time."""
    with forked_ranks(server()):
        yield
