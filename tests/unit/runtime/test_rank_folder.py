"""The folder in which ranks meet is locked only so that the last of them can remove it."""

import multiprocessing
import pickle
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from trimaran.launch.supervise import ALL_ANSWERED, LaunchRequest
from trimaran.launch.world import World


def answer_of(here: Connection) -> Any:
    """What a rank sends when its work is done, after what it says of itself meanwhile."""
    while (said := pickle.loads(here.recv_bytes()))[0] in ("page", "beat", "event"):  # noqa: S301 from the rank that was made here
        pass
    return said


@pytest.mark.timeout(60)
def test_a_rank_that_cannot_open_it_works_all_the_same(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    command = [sys.executable, "-m", "trimaran.launch.worker", str(there.fileno()), str(tmp_path / "absent")]
    rank = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True)
    there.close()
    work = pickle.dumps((isinstance, (World,), None))
    request = LaunchRequest(rank=0, ranks=1, device="cpu", timeout_s=10.0, python_path=None, work=work)
    here.send_bytes(pickle.dumps(request))
    assert answer_of(here) == ("result", True)
    here.send_bytes(pickle.dumps((ALL_ANSWERED, None)))
    assert rank.wait(30) == 0
    here.close()
