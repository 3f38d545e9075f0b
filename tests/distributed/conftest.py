"""What tests on several ranks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.distributed.signalled_runs import JOBS
from tests.forks.client import forked_ranks, server


@pytest.fixture(scope="module")
def _forked() -> Iterator[None]:
    """Ranks that the code under test launches are forked: new interpreters would take most of the time."""
    with forked_ranks(server()):
        yield


@pytest.fixture(scope="session")
def planned_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plan.json` for the jobs of `signalled_jobs` on two ranks; what it costs is next to it."""
    folder = tmp_path_factory.mktemp("planned")
    pins = ("--devices", "2", "--dp", "2", "--pp", "1", "--execution", "eager")
    done = trimaran("plan", f"{JOBS}:plain", *pins, "--output", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder
