"""The commands whose answers are kept, as `commands.toml` lists them."""

import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commands.running import trimaran

FOLDER = Path(__file__).parent
GRAPHS = FOLDER / "graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and what it needs.

    Attributes:
        command: what is run, without `--json`
        before: commands that run before it, in its folder; once, where several have the same
        here: it plans for this machine, in whose place the recorded one stands
        sweep: it takes long, or asks what another one asks, and is left to `make test-all`
    """

    command: str
    before: tuple[str, ...] = ()
    here: bool = False
    sweep: bool = False

    def answer(self, folder: Path, *, be: Callable[..., None]) -> Any:
        """What it prints as JSON; an assertion fails where it fails.

        Args:
            folder: where it runs; commands of one folder share what they trace
            be: becomes the command
        """
        for line in self.before:
            if (line, folder) not in _DONE:
                _run(line, folder, be)
                _DONE.add((line, folder))
        return json.loads(_run(f"{self.command} --json", folder, be))


_DONE: set[tuple[str, Path]] = set()
"""Commands that have run before others, and where."""


def _run(line: str, folder: Path, be: Callable[..., None]) -> str:
    words = shlex.split(line.format(graphs=GRAPHS))
    done = trimaran(*words, cwd=folder, timeout_s=600, be=be)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def commands() -> dict[str, Command]:
    """All of them, by name."""
    with (FOLDER / "commands.toml").open("rb") as file:
        return {
            name: Command(**entry | {"before": tuple(entry.get("before", ()))})
            for name, entry in tomllib.load(file).items()
        }
