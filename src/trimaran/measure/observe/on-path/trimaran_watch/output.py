"""The record of the process: written during the run, so that it exists however the process ends, and at its end.

No signal is caught: a process that is told to end must end as it would have. Writing is spaced so that it takes less
than half a percent of the time, and what it takes is counted as the watch's own.
"""

import atexit
import json
import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

from trimaran_watch import device
from trimaran_watch.after import time_again
from trimaran_watch.facts import describe_process, device_type
from trimaran_watch.hooks import install_hooks
from trimaran_watch.ledger import COLUMNS, COUNTS, IN_FORWARD, LEDGER, OWN
from trimaran_watch.roots import SEEN, count_samples, give_up, watch_roots
from trimaran_watch.waits import install_moves, install_waits

RECORD_VERSION = 1

_FIRST_S = 0.5
_FIRST_STEPS = 20
_LEAST_S = 2.0
_SHARE = 200


class Output:
    """Where and when the record is written.

    Attributes:
        folder: of the records; None: nothing is written
        again: whether the model is timed again at the end
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.again = True
        self._due = 0.0
        self._done = False
        self._began = time.time_ns()
        self._cuda = False

    def start(self) -> None:
        """Write into the folder that the environment names, from now on."""
        self.folder = Path(os.environ["TRIMARAN_OBSERVE"])
        self.again = os.environ.get("TRIMARAN_OBSERVE_AGAIN", "1") == "1"
        self.renew()

    def renew(self, model: torch.nn.Module | None = None) -> None:
        """Begin anew: also in a process that was forked from a watched one.

        Args:
            model: the root, where it is known
        """
        self._began, self._done, self._due = time.time_ns(), False, time.monotonic() + _FIRST_S
        self._cuda = False
        LEDGER.reset()
        watch_roots(model)
        LEDGER.begin()
        SEEN.each_step = self.after_step

    def after_step(self) -> None:
        """Write the record if it is due."""
        if self._cuda:
            device.mark_step_end()
        if LEDGER.steps == 1:
            self._cuda = device_type() == "cuda"
            SEEN.each_forward = device.look_whether_dry if self._cuda else None
            if self._cuda:
                install("moves", install_moves)
        start = time.monotonic()
        if self.folder is None or start < self._due or LEDGER.steps < _FIRST_STEPS:
            return
        depth = LEDGER.enter(OWN)
        self._write(record())
        LEDGER.leave(depth)
        end = time.monotonic()
        self._due = end + max(_LEAST_S, _SHARE * (end - start))

    def finish(self) -> None:
        """Write the last record, once."""
        if self._done or self.folder is None or get_worker_info() is not None:
            return
        self._done = True
        LEDGER.thread = 0
        try:
            whole = record()
            self._write(whole)
            if self.again and LEDGER.steps and not hasattr(sys, "last_type"):
                self._write(whole | {"again": measure_again()})
        except Exception as error:  # noqa: BLE001  the process must end as it would have
            give_up(error)

    def _write(self, content: dict[str, Any]) -> None:
        if self.folder is None:
            return
        path = self.folder / f"{os.getpid()}-{self._began}.json"
        unfinished = path.with_suffix(".part")
        try:
            unfinished.write_text(json.dumps(content, default=_plain), encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            self.folder = None
            sys.stderr.write(f"trimaran observe: the record cannot be written: {error}\n")


def _plain(value: Any) -> int | str:
    """A number of another library as an int, and anything else as its text."""
    return int(value) if isinstance(value, Integral) else str(value)


OUTPUT = Output()
"""The output of this process."""


def record() -> dict[str, Any]:
    """The record of this process so far."""
    rows = list(LEDGER.rows)
    return {
        "schema_version": RECORD_VERSION,
        **describe_process(),
        "steps": LEDGER.steps,
        "columns": list(COLUMNS),
        "rows": rows,
        "unfinished_forwards": LEDGER.counts[0],
        "again": None,
    }


def measure_again() -> dict[str, Any]:
    """Time a copy of the model again, where that is possible."""
    first = len(COLUMNS) - len(COUNTS)
    if any(row[first + IN_FORWARD] for row in LEDGER.rows):
        return {"why_not": "its forward talks to other ranks"}
    if not LEDGER.rows or SEEN.inputs is None:
        return {"why_not": "too few steps were taken"}
    watched, LEDGER.thread = LEDGER.thread, 0
    try:
        return time_again(count_samples(*SEEN.inputs))
    finally:
        LEDGER.thread = watched


def watch_process() -> None:
    """Watch this process, and those that it forks, until they end."""
    install_all()
    OUTPUT.start()
    atexit.register(OUTPUT.finish)
    os.register_at_fork(after_in_child=OUTPUT.renew)
    # A process of multiprocessing that was forked ends without atexit.
    multiprocessing.util.register_after_fork(OUTPUT, _finish_with_multiprocessing)


_installed: set[str] = set()


def install(name: str, how: Callable[[], None]) -> None:
    """Install some of the hooks, once in a process.

    Args:
        name: of these hooks
        how: installs them
    """
    if name not in _installed:
        _installed.add(name)
        how()


def install_all() -> None:
    """Install all hooks but the roots', which `renew` looks for, and those that need CUDA."""
    install("hooks", install_hooks)
    install("waits", install_waits)


def _finish_with_multiprocessing(output: Output) -> None:
    multiprocessing.util.Finalize(None, output.finish, exitpriority=-100)
