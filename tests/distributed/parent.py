"""A parent that launches ranks and never ends, and prints their process ids; run as a script by the tests.

Arguments: none, or a folder for logs, how many ranks, and what their links are held to: the ranks never end. Or
"return" or "raise": so do two ranks, while the parent hears no more of them than their process ids. Or "leave": they
return, and are gone when the parent kills itself.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.distributed.duties import finish, hang

from trimaran.planning.requests import parse_link
from trimaran.runtime.launch import ranks as starting
from trimaran.runtime.launch.ranks import launch


def show(rank: int, event: Mapping[str, Any]) -> None:
    sys.stdout.write(" ".join(map(str, event["pids"])) + "\n")
    sys.stdout.flush()


class ShowAndBlock:
    """Shows the process ids of two ranks, and then never returns."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, rank: int, event: Mapping[str, Any]) -> None:
        show(rank, event)
        self._shown += 1
        if self._shown == 2:
            threading.Event().wait()


def finish_and_die() -> None:
    """Launch two ranks that return, and be killed as soon as they have left."""
    let_go = starting._let_go

    def die(started: Any) -> None:
        let_go(started)
        os.kill(os.getpid(), signal.SIGKILL)

    starting._let_go = die
    launch(finish, (False,), ranks=2, on_event=show)


if __name__ == "__main__":
    if sys.argv[1:] == ["leave"]:
        finish_and_die()
    if len(sys.argv) == 2:
        launch(finish, (sys.argv[1] == "raise",), ranks=2, on_event=ShowAndBlock())
    logs, ranks, rate = sys.argv[1:] if len(sys.argv) == 4 else (None, "2", "")
    launch(hang, ranks=int(ranks), log_dir=logs, on_event=show, link=parse_link(rate) if rate else None)
