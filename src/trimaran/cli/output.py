"""Where a command's results go: JSON for programs, tables for people, errors as one message and an exit code."""

import errno
import io
import json
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from trimaran.base.errors import EnvironmentProblem, InputError, TrimaranError
from trimaran.base.files import given_from_here
from trimaran.base.printable import printable
from trimaran.base.progress import Progress as Reported
from trimaran.base.secrets import masked
from trimaran.base.signals import Catcher, Interrupted, exit_code, leaving, raise_interrupted, say_ended
from trimaran.base.system import reason_of
from trimaran.base.user_errors import DEBUG, debugging, ends_process, innermost_lines, left, summary, user_lines

if TYPE_CHECKING:
    # A page of help needs none of it.
    from rich.console import Console

    from trimaran.base.remedies import Way


_printed = {"verbose": False, "quiet": False}


def set_verbosity(*, verbose: bool = False, quiet: bool = False) -> None:
    """Say how much the pages of this process tell.

    Args:
        verbose: everything
        quiet: the verdict alone
    """
    _printed.update(verbose=verbose, quiet=quiet)
    begin_verdict()


def begin_verdict() -> None:
    """Print the next lines too where pages tell the verdict alone, as what was found first has one already."""
    _verdict.begin()


def is_verbose() -> bool:
    """Whether pages tell everything."""
    return _printed["verbose"]


def is_quiet() -> bool:
    """Whether pages tell the verdict alone."""
    return _printed["quiet"]


_streams: list[TextIO] = []


def answers() -> TextIO:
    """Where answers go: to what was standard output before code of the job printed there, or replaced it."""
    return _streams[-1] if _streams else sys.stdout


@contextmanager
def _users_apart() -> Iterator[None]:
    """What the code of the job prints goes to standard error, and streams that it replaces are put back."""
    _streams.append(answers())
    try:
        # A file, which code of the job may close without closing that of errors.
        with (
            open(2, "w", 1, errors="replace", closefd=False) as aside,
            redirect_stdout(aside),
            redirect_stderr(sys.stderr),
        ):
            yield
    finally:
        _streams.pop()


class _Verdict(io.TextIOBase):
    """Standard output up to the first empty line, which ends the verdict of a page."""

    def __init__(self) -> None:
        self._ended = False

    def begin(self) -> None:
        """Write the next verdict."""
        self._ended = False

    def isatty(self) -> bool:
        return answers().isatty()

    def write(self, text: str) -> int:
        """Write what belongs to the verdict of a text."""
        for line in text.splitlines(keepends=True):
            if not line.strip():
                self._ended = True
            if not self._ended:
                answers().write(line)
        return len(text)

    def flush(self) -> None:
        answers().flush()


_verdict = _Verdict()


def console() -> "Console":
    """The console for results; honours NO_COLOR, the width of the terminal, and --quiet."""
    from trimaran.report.tables import make_console

    if is_quiet():
        return make_console(soft_wrap=False, file=_verdict)
    return make_console(soft_wrap=False, verbose=is_verbose(), file=answers())


def print_json(value: dict[str, object]) -> None:
    """Write one JSON object to standard output; `schema_version` comes first."""
    answers().write(json.dumps({"schema_version": 1} | value, indent=2) + "\n")


def print_document(document: dict[str, Any]) -> None:
    """Write the document of a study as `print_json` does, with the command that asked for it (`trimaran report`).

    Args:
        document: of the study
    """
    from trimaran.cli.following import asked_command

    print_json(document | {"command": asked_command()})


def check_plot(path: Path | None) -> None:
    """Refuse a file that could not be drawn into, before the work that is drawn.

    Args:
        path: of `--plot`; None: nothing is drawn
    """
    if path is not None:
        from trimaran.report.svg import check_drawing

        check_drawing(path)


def write_plot(path: Path | None, answer: object) -> None:
    """Write the first drawing of a study.

    Args:
        path: of `--plot`; None: nothing is drawn
        answer: of the study
    """
    if path is not None:
        from trimaran.report.page.study import drawing_of
        from trimaran.report.svg import write_drawing

        write_drawing(path, drawing_of(answer))


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@contextmanager
def errors_reported(*, as_json: bool) -> Iterator[None]:
    """Turn errors of Trimaran, and signals that ask for the end, into a message and their exit code.

    The message goes to standard error; with `as_json` standard output carries it too, as `{"error": {...}}`. What else
    is raised is told by the lines of the user's code that led to it, as wrong input; where there are none, by the
    innermost ones of ours. With `TRIMARAN_DEBUG` the whole traceback comes first. Relative paths are meant from the
    folder in which the block begins, and answers go to its standard output, whatever the code of the job does.
    """
    try:
        with given_from_here(), Catcher(raise_interrupted), _users_apart():
            yield
    except TrimaranError as error:
        _end(error, error, as_json=as_json)
    except BrokenPipeError:
        # Whoever read our output has had enough (`| head`); what is still buffered goes nowhere, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        said = _told(error)
        # What is written to a file has its name; a stream has none.
        if error.filename is None and error.errno in _UNWRITABLE and not user_lines(error):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            said = EnvironmentProblem(
                f"standard output cannot be written: {reason_of(error)}", code="output.unwritable"
            )
        _end(said, error, as_json=as_json)
    except Exception as error:  # noqa: BLE001 nobody should have to read through ours and torch's for a line of theirs
        _end(_told(error), error, as_json=as_json)
    except BaseException as error:
        if ends_process(error):
            _end(left(error), error, as_json=as_json)
        if not isinstance(error, KeyboardInterrupt):
            raise
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        say_ended(number, *getattr(error, "__notes__", ()))
        raise SystemExit(exit_code(number)) from None


def _told(error: Exception) -> TrimaranError:
    lines = user_lines(error)
    whole = f"{DEBUG}=1 shows the whole traceback"
    if lines:
        return InputError("\n".join([summary(error), *lines, whole]))
    return TrimaranError(
        "\n".join([f"{summary(error)}, which Trimaran did not expect", *innermost_lines(error), whole])
    )


def _end(said: TrimaranError, error: BaseException, *, as_json: bool) -> NoReturn:
    given: Any = said.figures.get("ways", ())
    message = masked(said.message)
    ways = ways_document(given)
    if as_json:
        figures = {name: masked(value) for name, value in said.figures.items() if _plain(value)}
        kind = type(said).__name__
        ours = {"kind": kind, "code": said.code, "message": message, "exit_code": said.exit_code}
        print_json({"error": {**ours, **figures, **({"ways": ways} if "ways" in said.figures else {})}})
    # The exit code is the answer also where nobody can read the words.
    with suppress(OSError, ValueError):
        if debugging():
            sys.stderr.write(printable(masked("".join(traceback.format_exception(error)))))
        sys.stderr.write(f"trimaran: {printable(message)}\n")
        sys.stderr.flush()
    if ways:
        from trimaran.report.tables import make_console

        print_ways(make_console(soft_wrap=False, stderr=True), ways)
    raise SystemExit(said.exit_code) from None


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | None)


def ways_document(ways: "Iterable[Way]") -> list[dict[str, Any]]:
    """What would fit in place of a request, each as a command too.

    Args:
        ways: the shortest step first
    """
    from trimaran.cli.following import following

    found = []
    for way in ways:
        options: dict[str, Any] = {name.replace("-", "_"): value for name, value in way.options.items()}
        found.append(asdict(way) | {"command": shlex.join(following("plan", **options))})
    return found


def print_ways(out: "Console", ways: list[dict[str, Any]]) -> None:
    """Print what would fit, and the commands that plan it, in the same order.

    Args:
        out: for the page
        ways: as of `ways_document`
    """
    from trimaran.base.units import format_bytes, format_seconds
    from trimaran.program.strategy import strategy_legend
    from trimaran.report.tables import add_figures, add_words, frame_table

    has_tokens = any(way["tokens_per_s"] is not None for way in ways)
    table = frame_table("What fits", strategy_legend([way["strategy"] for way in ways]))
    add_words(table, "with", "strategy")
    add_figures(table, "step", *(["tokens/s"] if has_tokens else []), "peak")
    for way in ways:
        table.add_row(
            way["name"],
            way["strategy"],
            format_seconds(way["step_time_s"]),
            *([f"{way['tokens_per_s']:,.0f}"] if has_tokens else []),
            format_bytes(way["peak_bytes"]),
        )
    out.print()
    out.print(table)
    out.print()
    for way in ways:
        out.print(way["command"], soft_wrap=True, markup=False, highlight=False)


class _PrintableLines(logging.Formatter):
    """Lines of the log, whose messages name files and quote them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def open_streams() -> None:
    """Have whatever is printed written: a file is UTF-8 on Windows too, and what a terminal has no sign for is "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if sys.platform == "win32" and not stream.isatty():
                stream.reconfigure(encoding="utf-8")
            stream.reconfigure(errors="replace")


def guard_log() -> None:
    """Keep control characters out of the warnings that reach standard error where a program sets up no log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableLines())


# ---------------------------------------------------------------------------------------------------------------------
# Progress on standard error while long work runs; silent when it is not a terminal


@contextmanager
def progress_shown() -> Iterator[Reported]:
    """Show progress bars for as long as the block runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from trimaran.report.tables import make_console

    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, object] = {}

        def report(what: str, done: int, total: int) -> None:
            what = printable(what)
            key = what.split(":")[0]
            if key not in tasks:
                tasks[key] = bars.add_task(what, total=total or None)
            bars.update(tasks[key], description=what, completed=done, total=total or None)  # type: ignore[arg-type]

        # The cursor is off while bars are shown.
        with leaving(lambda _: console.show_cursor(True)):
            yield report
