"""The folder in which ranks meet is locked only so that the last of them can remove it."""

import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from trimaran.runtime.launch.ranks import Request
from trimaran.runtime.launch.world import World


@pytest.mark.timeout(60)
def test_a_rank_that_cannot_open_it_works_all_the_same(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    command = [sys.executable, "-m", "trimaran.runtime.worker", str(there.fileno()), str(tmp_path / "absent")]
    rank = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True)
    there.close()
    work = pickle.dumps((isinstance, (World,)))
    request = Request(rank=0, ranks=1, device="cpu", timeout_s=10.0, python_path=None, work=work)
    here.send_bytes(pickle.dumps(request))
    assert pickle.loads(here.recv_bytes()) == ("result", True)  # noqa: S301 from the rank that was made here
    here.send_bytes(b"")
    assert rank.wait(30) == 0
    here.close()
