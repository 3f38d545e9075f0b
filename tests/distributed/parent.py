"""A parent that launches ranks and never ends, and prints their process ids; run as a script by the tests.

Arguments: none, or a folder for logs, how many ranks, and what their links are held to: the ranks never end. Or
"return" or "raise": so do two ranks, while the parent hears no more of them than their process ids.
"""

import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.distributed.duties import finish, hang

from trimaran.runtime.ranks import launch
from trimaran.session.request import parse_link


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


if __name__ == "__main__":
    if len(sys.argv) == 2:
        launch(finish, (sys.argv[1] == "raise",), ranks=2, on_event=ShowAndBlock())
    logs, ranks, rate = sys.argv[1:] if len(sys.argv) == 4 else (None, "2", "")
    launch(hang, ranks=int(ranks), log_dir=logs, on_event=show, link=parse_link(rate) if rate else None)
