"""What tests on several ranks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distributed.signalled_runs import JOBS, plan_for_two
from tests.forks.client import forked_ranks, server


@pytest.fixture(scope="module")
def _forked() -> Iterator[None]:
    """Ranks that the code under test launches are forked: new interpreters would take most of the time."""
    with forked_ranks(server()):
        yield


@pytest.fixture(scope="session")
def planned_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plan.json` for the jobs of `signalled_jobs` on two ranks; what it costs is next to it."""
    return plan_for_two(tmp_path_factory.mktemp("planned"), f"{JOBS}:plain")


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the job `spoken` of `resumed_jobs`."""
    return plan_for_two(tmp_path_factory.mktemp("planned"), f"{Path(__file__).with_name('resumed_jobs.py')}:spoken")
