"""Progress of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""`(what is being done, done so far, out of)`; out of 0 where the amount is not known."""


def ignore_progress(what: str, done: int, total: int) -> None:
    """The progress of somebody who does not look."""
