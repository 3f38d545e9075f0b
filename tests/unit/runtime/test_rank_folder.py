"""The folder in which ranks meet is locked only so that the last of them can remove it."""

import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from trimaran.launch.ranks import ALL_ANSWERED, Request
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
    work = pickle.dumps((isinstance, (World,)))
    request = Request(rank=0, ranks=1, device="cpu", timeout_s=10.0, python_path=None, work=work)
    here.send_bytes(pickle.dumps(request))
    assert answer_of(here) == ("result", True)
    here.send_bytes(pickle.dumps((ALL_ANSWERED, None)))
    assert rank.wait(30) == 0
    here.close()


@pytest.mark.timeout(60)
def test_a_command_that_comes_before_its_listener_is_heard(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    command = [sys.executable, "-m", "trimaran.launch.worker", str(there.fileno()), str(tmp_path / "absent")]
    rank = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True)
    there.close()
    work = pickle.dumps((listen_late, ()))
    request = Request(rank=0, ranks=1, device="cpu", timeout_s=10.0, python_path=None, work=work)
    here.send_bytes(pickle.dumps(request))
    for told in (("later", 15), ("nobody listens", None), ("later", 1)):
        here.send_bytes(pickle.dumps(told))
    assert answer_of(here) == ("result", [15, 1])
    here.send_bytes(pickle.dumps((ALL_ANSWERED, None)))
    assert rank.wait(30) == 0
    here.close()


def listen_late(world: World) -> list[int]:
    heard: list[int] = []
    both = threading.Event()
    time.sleep(0.2)

    def listen(number: int) -> None:
        heard.append(number)
        if len(heard) == 2:
            both.set()

    world.listen("later", listen)
    both.wait(10)
    return heard
