"""Runs exported scripts one after the other in one rank; a rank that a script has no place for goes on to the next.

    python exported.py RANK STEPS PORT RANKS=SCRIPT...

What a script prints goes to SCRIPT.out.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path


def run(rank: int, steps: str, first_port: int, scripts: list[str]) -> None:
    for number, each in enumerate(scripts):
        ranks, _, script = each.partition("=")
        if rank >= int(ranks):
            continue
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(first_port + number),
        }
        sys.argv = [script, "--steps", steps]
        path = Path(script).with_suffix(".out" if rank == 0 else f".{rank}.out")
        with path.open("w") as out, contextlib.redirect_stdout(out):
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
