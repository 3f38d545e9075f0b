"""The `trimaran` command, also as `python -m trimaran`."""

import atexit
import gc
import os
import sys
import threading
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
        code = 0 if ended.code is None else ended.code
        watched = sys.gettrace() or sys.getprofile()
        if isinstance(code, int) and (was_heard() or not watched):
            _leave(code)
        raise


def _leave(code: int) -> None:
    """End this process as the interpreter does, but for taking its modules apart, which is a second of torch's.

    Returns where what was printed cannot be written: that is told as usual.
    """
    # The private names are those that the interpreter itself calls, in this order.
    if not was_heard():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        if not was_heard():
            return
    os._exit(code)


def _end(number: int) -> NoReturn:
    """No command has begun, or it has ended: nothing is to be undone."""
    say_ended(number)
    os._exit(exit_code(number))


if __name__ == "__main__":
    main()
