"""Where a command's results go: JSON for programs, tables for people, errors as one message and an exit code."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from trimaran.errors import TrimaranError

INTERRUPTED = 130


def console() -> Console:
    """The console for results; honours NO_COLOR and the width of the terminal."""
    return Console(highlight=False, soft_wrap=False)


def print_json(value: dict[str, object]) -> None:
    """Write one JSON object to standard output; `schema_version` comes first."""
    sys.stdout.write(json.dumps({"schema_version": 1} | value, indent=2) + "\n")


def check_plot(path: Path | None) -> None:
    """Refuse a file that could not be drawn into, before the work that is drawn.

    Args:
        path: of `--plot`; None: nothing is drawn
    """
    if path is not None:
        from trimaran.report.scaling.svg import check_drawing

        check_drawing(path)


@contextmanager
def errors_reported(*, as_json: bool) -> Iterator[None]:
    """Turn errors of Trimaran into a message and their exit code.

    The message goes to standard error; with `as_json` standard output carries it too, as `{"error": {...}}`.
    """
    try:
        yield
    except TrimaranError as error:
        if as_json:
            figures = {name: value for name, value in error.figures.items() if _plain(value)}
            kind = type(error).__name__
            print_json({"error": {"kind": kind, "message": error.message, "exit_code": error.exit_code, **figures}})
        sys.stderr.write(f"trimaran: {error.message}\n")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        sys.stderr.write("trimaran: interrupted\n")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has had enough (`| head`).
        sys.stderr.close()
        raise SystemExit(0) from None


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | None)
