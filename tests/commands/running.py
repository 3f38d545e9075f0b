"""The `trimaran` command as a person runs it."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.caches import make_cache
from tests.forks.commands import run_command


def trimaran(
    *arguments: str, cwd: Path, timeout_s: float = 280, be: Callable[..., None] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command, forked from a process that has imported it; what one measures, the next in the folder finds."""
    return run_command(*arguments, folder=cwd, environment=_variables(cwd), timeout_s=timeout_s, be=be)


def new_trimaran(*arguments: str, cwd: Path, timeout_s: float = 280) -> "subprocess.CompletedProcess[str]":
    """The same in an interpreter of its own, with all that is read when one starts."""
    return subprocess.run(
        [sys.executable, "-m", "trimaran", *arguments],
        cwd=cwd,
        env=_variables(cwd),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def instead(words: Sequence[str], *given: str) -> list[str]:
    """Words of a command with other values of some options: one that is given twice is refused."""
    places = {place for place, word in enumerate(words) if word.startswith("--") and word in given}
    return [*(word for place, word in enumerate(words) if not {place, place - 1} & places), *given]


def _variables(folder: Path) -> dict[str, str]:
    return os.environ | {"TRIMARAN_CACHE": make_cache(Path(f"{folder}-cache"))}
