"""The `trimaran` command, also as `python -m trimaran`."""

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from typing import NoReturn

from trimaran import interrupted
from trimaran.base.errors import EnvironmentProblem
from trimaran.base.outcome import note_exit_code, supervise
from trimaran.base.signals import STOP_SIGNALS, Catcher, exit_code, say, say_ended, was_heard

_COLLECT_AFTER = 100_000


def main(package: str = "trimaran.cli") -> None:
    """Entry point of the `trimaran` command: signals are answered from its imports to its exit.

    Args:
        package: whose `main` answers
    """
    _open_missing()
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    Catcher(_end).__enter__()
    # A page of help asks nothing of anybody; under a debugger the command stays where that looks.
    if hasattr(os, "fork") and not _is_watched() and any(not word.startswith("-") for word in sys.argv[1:]):
        supervise(STOP_SIGNALS, Catcher(_end).__enter__, _calls_shown)
    # A search makes millions of small objects and no cycles: collected as rarely as this, it is a sixth shorter.
    gc.set_threshold(_COLLECT_AFTER, 50, 50)
    try:
        importlib.import_module(package).main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if not was_heard() and _is_watched():
            raise
    except BaseException:
        note_exit_code(1)
        raise
    _leave(code)


def _is_watched() -> bool:
    return bool(sys.gettrace() or sys.getprofile())


def _calls_shown(written: bytes) -> list[str]:
    from trimaran.base.user_errors import frame_lines, frames_written

    return frame_lines(frames_written(written))


def _open_missing() -> None:
    """Where a stream was closed by whoever started this, no file that is opened is to take its number.

    What is written to standard error goes nowhere then; standard output cannot be written, and that is told.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 for the whole process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _leave(code: int) -> None:
    """End this process as the interpreter does, but for taking its modules apart, which is a second of torch's."""
    note_exit_code(code)
    # The private names are those that the interpreter itself calls, in this order.
    if not was_heard():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has had enough
        pass
    except (OSError, ValueError) as error:
        if not was_heard():
            say(f"trimaran: standard output cannot be written: {getattr(error, 'strerror', None) or error}")
            code = code or EnvironmentProblem.exit_code
            note_exit_code(code)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _end(number: int) -> NoReturn:
    """No command has begun, or it has ended: nothing is to be undone."""
    say_ended(number)
    note_exit_code(exit_code(number))
    os._exit(exit_code(number))


if __name__ == "__main__":
    main()
