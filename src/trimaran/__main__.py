"""The `trimaran` command, also as `python -m trimaran`."""

import atexit
import contextlib
import gc
import os
import sys
from typing import NoReturn

from trimaran.base.signals import Catcher, exit_code, say_ended, was_heard

_COLLECT_AFTER = 100_000


def main() -> None:
    """Entry point of the `trimaran` command: signals are answered from its imports to its exit."""
    Catcher(_end).__enter__()
    # A search makes millions of small objects and no cycles: collected as rarely as this, it is a sixth shorter.
    gc.set_threshold(_COLLECT_AFTER, 50, 50)
    from trimaran.cli import main as command

    try:
        command()
    except SystemExit as ended:
        if was_heard() and isinstance(ended.code, int):
            # To take torch's modules apart is seconds of a busy machine, for which a terminal would wait.
            atexit._run_exitfuncs()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(ended.code)
        raise


def _end(number: int) -> NoReturn:
    """No command has begun, or it has ended: nothing is to be undone."""
    say_ended(number)
    os._exit(exit_code(number))


if __name__ == "__main__":
    main()
