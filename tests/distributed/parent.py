"""A parent that launches ranks and never ends, and prints their process ids; run as a script, or in a fork.

Arguments: none, or a folder for logs, how many ranks, and what their links are held to: the ranks never end. Or
"return" or "raise": so do two ranks, while the parent hears no more of them than their process ids. Or "leave": they
return, and are gone when the parent kills itself.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.distributed.duties import finish, hang

from trimaran.emulation.links import launch_on
from trimaran.launch import supervise as starting
from trimaran.launch.supervise import launch


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


def main(*arguments: str) -> None:
    if arguments == ("leave",):
        finish_and_die()
    if len(arguments) == 1:
        launch(finish, (arguments[0] == "raise",), ranks=2, on_event=ShowAndBlock())
    if not arguments:
        launch(hang, ranks=2, on_event=show)
    # Takes seconds to import.
    from trimaran.planning.requests import parse_link

    logs, ranks, rate = arguments
    launch_on(parse_link(rate), hang, ranks=int(ranks), log_dir=logs, on_event=show)


def main_of_forks(descriptor: int, *arguments: str) -> None:
    """The same with ranks that are forked."""
    from tests.forks.client import Server, forked_ranks

    with forked_ranks(Server(socket.socket(fileno=descriptor))):
        main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
