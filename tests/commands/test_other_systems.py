"""Planning works on Windows and macOS, as far as the standard library goes; what starts ranks says that it needs Linux.

`tests/elsewhere.py` hides from Trimaran what the system lacks. What torch does on that system is not tried.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.elsewhere import missing_modules, names

ROOT = Path(__file__).parents[2]

ANSWERED = {
    "--help": "Usage: trimaran COMMAND",
    "plan --help": "Usage: trimaran plan JOB",
    "catalog machines": "dgx-h100",
    "memory resnet18 --device titan-x --batch 64": "resnet18 with batch 64 fits",
    "scale resnet50 --cluster dgx-a100:4 --devices 8..32": "resnet50: ",
    "plan llama2:7b --cluster dgx-h100:2 --devices 16 --batch 64 --output plan.json": "llama2:7b on 16 devices: ",
    "explain plan.json": "llama2:7b on 16 devices: ",
    "export plan.json --to torchtitan --output torchtitan.py": "Wrote torchtitan.py for torchtitan",
    "report plan.json --output plan.html": "plan.html (",
    "doctor": "system",
}
"""Commands, in the order in which they are given, with what they print."""

REFUSED = {
    "plan digits --devices 2": "starting ranks",
    "train digits --devices 2": "training",
    "observe -- python train.py": "observing a script",
    "train --emulate digits --devices 2 --link 1Gb/s": "emulating a plan",
    "rehearse --world 2 --cluster dgx-h100:1 -- train.py": "rehearsing a script",
}
"""Commands, with what they say to need Linux."""

RANKS_ONLY = {
    "win32": {"trimaran.launch.worker", "trimaran.rehearsal.worker", "trimaran.rehearsal.real.worker"},
    "darwin": set[str](),
}
"""Modules that are the program of a process which is started on Linux alone."""

Ask = Callable[[str, tuple[str, ...]], dict[str, Any]]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    @cache
    def ask(platform: str, lines: tuple[str, ...]) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(platform)
        (folder / "train.py").write_text("import torch\n")
        commands = [command.split() for command in lines]
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "elsewhere.py"), platform],
            input=json.dumps({"commands": commands, "imports": True}),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found | {"told": dict(zip(lines, found["told"], strict=True))}

    return ask


def test_what_windows_and_macos_lack_is_known() -> None:
    assert {"fcntl", "resource", "termios", "pwd", "grp", "syslog"} <= missing_modules("win32")
    hidden = {platform: names("os", "linux") - names("os", platform) for platform in ("win32", "darwin")}
    assert {"fork", "getuid", "sysconf", "killpg", "sched_getaffinity", "memfd_create"} <= hidden["win32"]
    assert {"sched_getaffinity", "memfd_create"} <= hidden["darwin"]
    assert not {"fork", "getuid", "sysconf"} & hidden["darwin"]
    assert {"SIGKILL", "SIGUSR1", "SIGHUP"} <= names("signal", "linux") - names("signal", "win32")


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_planning_works_on_other_systems(platform: str, asked: Ask) -> None:
    for command, printed in ANSWERED.items():
        told = asked(platform, (*ANSWERED,))["told"][command]
        assert (told["code"], told["stderr"]) == (0, ""), f"{command}: {told['stderr']}"
        assert printed in told["stdout"], command


@pytest.mark.timeout(900)
@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.sweep)])
def test_what_needs_linux_says_so_on_other_systems(platform: str, asked: Ask) -> None:
    for command, what in REFUSED.items():
        told = asked(platform, (*REFUSED,))["told"][command]
        assert told["code"] == 4, f"{command}: {told['stderr']}"
        assert told["stderr"].startswith(f"trimaran: {what} needs Linux, and this is {platform}: ")
        assert told["stderr"].count("\n") == 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.sweep)])
def test_modules_are_imported_on_other_systems(platform: str, asked: Ask) -> None:
    failed = asked(platform, (*REFUSED,))["failed"]
    assert set(failed) == RANKS_ONLY[platform], failed
