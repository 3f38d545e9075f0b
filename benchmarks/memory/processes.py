"""One process a pair: what it allocates, compiles or breaks, no other sees.

A process imports and builds first, then waits for the word; so the next one gets ready while one computes. The last
line of its output that begins with a mark is its row.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.memory.cases import Arm, Case

MARK = "ROW "
CELL = Path(__file__).with_name("cell.py")
_TAIL = 400


def start(case: Case, arm: Arm, *, device: str, quick: bool) -> "Process":
    """Start the process of a pair; it computes nothing yet."""
    order = {"case": asdict(case), "arm": asdict(arm), "device": device, "quick": quick}
    return Process([sys.executable, str(CELL), json.dumps(order)])


class Process:
    """A pair that runs.

    Args:
        command: of the process
    """

    def __init__(self, command: list[str]) -> None:
        self._output: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 open as long as the process runs
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._output, stderr=self._errors, text=True
        )

    def go(self, oracle: Mapping[str, Any] | None) -> None:
        """Give the word.

        Args:
            oracle: row of the oracle of the same case, where there is one
        """
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(json.dumps(oracle) + "\n")
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it died while it got ready; its row says why

    def result(self, *, timeout_s: float) -> dict[str, Any]:
        """Wait for the row.

        Args:
            timeout_s: then the process is ended [s]
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"status": "no time", "error": f"took more than {timeout_s:.0f} s"}
        self._output.seek(0)
        found = [text for text in self._output.read().splitlines() if text.startswith(MARK)]
        if found:
            row: dict[str, Any] = json.loads(found[-1][len(MARK) :])
            return row
        self._errors.seek(0)
        error = self._errors.read().strip()[-_TAIL:]
        return {"status": "failed", "error": f"ended with {self._process.returncode}: {error}"}

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
