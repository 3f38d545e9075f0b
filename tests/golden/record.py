"""Measure what the commands of the recorded machine want measured; `python -m tests.golden.record`, on an idle one."""

import os
import tempfile
from pathlib import Path

from tests.golden.commands import commands
from tests.golden.repeatable import FOLDER, record


def main() -> None:
    """Run every command of the recorded machine; what the first run tries out, the second one finds measured."""
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for path in FOLDER.glob("*.json"):
        path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for name, command in [*commands().items()] * 2:
            if command.here:
                command.answer(Path(folder), be=record)
                print(name, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
