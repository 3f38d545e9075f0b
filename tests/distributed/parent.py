"""A parent that launches ranks which never end, and prints their process ids; run as a script by the tests."""

import sys
from collections.abc import Mapping
from typing import Any

from tests.distributed.duties import hang

from trimaran.runtime.ranks import launch


def show(rank: int, event: Mapping[str, Any]) -> None:
    sys.stdout.write(" ".join(map(str, event["pids"])) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    launch(hang, ranks=2, log_dir=sys.argv[1], on_event=show)
