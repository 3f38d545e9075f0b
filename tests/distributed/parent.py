"""A parent that launches ranks which never end, and prints their process ids; run as a script by the tests.

Arguments: none, or a folder for logs, how many ranks, and what their links are held to.
"""

import sys
from collections.abc import Mapping
from typing import Any

from tests.distributed.duties import hang

from trimaran.runtime.ranks import launch
from trimaran.session.request import parse_link


def show(rank: int, event: Mapping[str, Any]) -> None:
    sys.stdout.write(" ".join(map(str, event["pids"])) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logs, ranks, rate = sys.argv[1:] if len(sys.argv) == 4 else (None, "2", "")
    launch(hang, ranks=int(ranks), log_dir=logs, on_event=show, link=parse_link(rate) if rate else None)
