"""Progress on standard error while long work runs; silent when it is not a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str, int, int], None]
"""`(what is being done, done so far, out of)`; out of 0 where the amount is not known."""


@contextmanager
def progress_shown() -> Iterator[Report]:
    """Show progress bars for as long as the block runs."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, object] = {}

        def report(what: str, done: int, total: int) -> None:
            key = what.split(":")[0]
            if key not in tasks:
                tasks[key] = bars.add_task(what, total=total or None)
            bars.update(tasks[key], description=what, completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
