"""A command whose user code ends the process, in whatever manner, never ends as if it had its result."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.distributed.signalled_runs import plan_for_two
from tests.forks.commands import be_command
from tests.representative import some_and_rest

from trimaran.base import outcome

FILE = Path(__file__).with_name("ending_jobs.py")
JOB = f"{FILE}:make_job"
WAYS = ["import sys; sys.exit(0)", "import sys; sys.exit('x')", "import os; os._exit(0)", "raise KeyboardInterrupt"]
WAYS.append("raise Odd('x')")
PLACES = ["import", "factory", "forward", "data", "loss", "optimizer", "metric"]
COMMANDS = {
    "check": ["check", JOB],
    "plan": ["plan", JOB, "--devices", "2"],
    "train": ["train", JOB, "--devices", "1"],
    "memory": ["memory", JOB, "--device", "titan-x"],
}
CELLS = [(place, command, way) for place in PLACES for command in COMMANDS for way in WAYS]
# Only training computes a metric.
CELLS = [cell for cell in CELLS if cell[0] != "metric" or cell[1] == "train"]
# Of each place with each command one way, and with each way one command or more.


def some(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [cell for number, cell in enumerate(cells) if number // len(WAYS) % len(WAYS) == number % len(WAYS)]


def ended_by_user(done: "subprocess.CompletedProcess[str]", place: str, way: str) -> None:
    assert done.returncode == 2, (done.args, done.stderr)
    # Of a process that is gone nobody knows the line: where the function begins is told, or which file was imported.
    line = "" if place == "import" and "_exit" in way else r":\d+"
    assert re.search(rf"ending_jobs\.py{line}", done.stderr), done.stderr
    assert re.search(r"ended.* with exit code \d+", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("cells", some_and_rest("cells", some(CELLS), CELLS))
def test_code_that_ends_the_process_is_wrong_input(
    cells: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, command, way in cells:
        monkeypatch.setenv("FAULT", f"{place} {way}")
        done = trimaran(*COMMANDS[command], cwd=tmp_path)
        ended_by_user(done, place, way)
        assert done.stdout == ""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan_for_two(tmp_path_factory.mktemp("planned"), JOB)


@pytest.mark.parametrize(
    ("place", "way"),
    [("callback", way) for way in WAYS] + [("data", WAYS[0]), ("data", WAYS[4]), ("forward", WAYS[2])],
)
def test_a_rank_that_it_ends_is_wrong_input_too(
    place: str, way: str, planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In data and model wherever ranks have a group: nothing is wrong in the parent."""
    in_rank = f"import torch.distributed as dist\nif dist.is_initialized(): {way}"
    monkeypatch.setenv("FAULT", f"{place} {way if place == 'callback' else in_rank}")
    done = trimaran("train", JOB, "--plan", "plan.json", cwd=planned)
    ended_by_user(done, place, way)
    if place == "callback":  # others may end ranks that look at the job before there is a run
        note = max(planned.glob("runs/*/run.json"))
        assert json.loads(note.read_text())["status"] == "failed"


PRINTS = ["print('x')", "import os, sys; sys.stdout = open(os.devnull, 'w')", "import sys; sys.stdout = None"]
PRINTS += ["import sys; sys.stdout.close()", "import sys; sys.stderr = None; print('x')"]
PRINT_CELLS = [(place, command, way) for place in PLACES[:4] for command in ("check", "plan") for way in PRINTS]


@pytest.mark.parametrize("cells", some_and_rest("cells", some(PRINT_CELLS), PRINT_CELLS))
def test_what_the_users_code_prints_or_puts_in_place_of_a_stream_is_no_part_of_the_answer(
    cells: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, command, way in cells:
        monkeypatch.setenv("FAULT", f"{place} {way}")
        done = trimaran(*COMMANDS[command], "--json", cwd=tmp_path)
        assert done.returncode == 0, (place, command, way, done.stderr)
        assert json.loads(done.stdout)["job"]


WAIT = "import threading; threading.Event().wait()"


def be_impatient(descriptor: int, *arguments: str) -> None:
    outcome.LONGEST_S = 1.5
    be_command(descriptor, *arguments)


@pytest.mark.parametrize(
    ("place", "way", "command"),
    [
        ("import", "while True: pass", "check"),
        ("factory", WAIT, "train"),
        ("data", "while True: pass", "plan"),
        ("forward", "import time; time.sleep(1000)", "memory"),
        ("loss", WAIT, "check"),
        ("step", WAIT, "check"),
        ("step", "while True: pass", "memory"),
        ("backward", "while True: pass", "plan"),
        ("optimizer", "try:\n while True: pass\nexcept BaseException:\n while True: pass", "plan"),
    ],
)
def test_code_that_never_comes_back_is_ended_with_its_line(
    place: str, way: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", f"{place} {way}")
    done = trimaran(*COMMANDS[command], cwd=tmp_path, be=be_impatient)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has taken more than 1.50 s" in done.stderr
    assert re.search(rf'ending_jobs\.py:\d+, in .*\n +fault\("{place}"\)', done.stderr), done.stderr


def test_code_that_is_slow_and_comes_back_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "data import time; time.sleep(0.05)")
    began = time.monotonic()
    done = trimaran(*COMMANDS["check"], cwd=tmp_path, be=be_impatient)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 1.5


def test_a_callback_that_spins_on_one_rank_has_a_limit(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "callback import torch.distributed as dist\nwhile dist.get_rank(): pass")
    done = trimaran("train", JOB, "--plan", "plan.json", "--callback-timeout", "2", cwd=planned)
    assert done.returncode == 5, done.stderr
    assert re.search(r'Rank 1 holds.*Job\.on_step.*fault\("callback"\).*--callback-timeout', done.stderr, re.DOTALL)


SCRIPT_CELLS = [(place, way) for place in [*PLACES, "callback"] for way in WAYS]


@pytest.mark.parametrize("cells", some_and_rest("cells", some(SCRIPT_CELLS), SCRIPT_CELLS))
def test_a_script_that_ends_before_it_was_seen_has_no_answer(
    cells: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, way in cells:
        monkeypatch.setenv("FAULT", f"{place} {way}")
        done = trimaran("observe", "--", sys.executable, str(FILE), cwd=tmp_path)
        assert (bool(done.returncode), done.stdout) == (True, ""), (place, way)
        assert "nothing was seen" in done.stderr


@pytest.mark.parametrize("ways", some_and_rest("ways", WAYS[2:3], WAYS))
def test_a_script_that_ends_later_is_told_with_what_was_seen(
    ways: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `os._exit` the last record counts, which comes every half second; where there is none, there is no answer."""
    monkeypatch.setenv("FAULT_AFTER", "100")
    monkeypatch.setenv("EPOCHS", "30")
    for way in ways:
        monkeypatch.setenv("FAULT", f"callback {way}")
        done = trimaran("observe", "--not-again", "--json", "--", sys.executable, str(FILE), cwd=tmp_path)
        if done.returncode and "nothing was seen" in done.stderr:
            assert json.loads(done.stdout or "{}").keys() <= {"error"}
        else:
            seen = json.loads(done.stdout)
            assert bool(seen["exit_code_of_command"]) == bool(done.returncode)
            assert seen["steps"] > 0


@pytest.mark.parametrize("places", some_and_rest("places", ["forward"], [one for one in PLACES if one != "metric"]))
def test_a_script_that_never_ends_is_ended_with_observe(
    places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a script takes is its own: whoever waits ends it, and nothing that hangs is left."""
    for place in places:
        monkeypatch.setenv("FAULT", f"{place} import os; print(os.getpid(), flush=True); {WAIT}")
        words = [sys.executable, "-m", "trimaran", "observe", "--", sys.executable, str(FILE)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) as started:
            assert started.stdout is not None
            script = int(started.stdout.readline())
            started.send_signal(signal.SIGTERM)
            rest, told = started.communicate()
        assert (started.returncode, rest) == (128 + signal.SIGTERM, ""), place
        assert "nothing was seen" in told
        assert not Path(f"/proc/{script}").exists()


@pytest.mark.parametrize(("words", "code"), [(["catalog", "jobs"], 4), (["plan", "no-such-job"], 2)])
def test_a_stream_that_cannot_be_written_keeps_the_exit_code(words: list[str], code: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "trimaran", *words], stdout=full, stderr=full, check=False)
    assert done.returncode == code


INTERRUPTED_IN = [
    "importlib",
    "trimaran.base",
    "trimaran.base.errors",
    "trimaran.base.outcome",
    "trimaran.base.signals",
]
COMMAND = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.modules.pop({name!r}, None)
sys.meta_path.insert(0, Finder())
from trimaran.__main__ import main
sys.argv = ["trimaran", "catalog", "jobs"]
main()
"""


@pytest.mark.parametrize("name", INTERRUPTED_IN)
def test_a_command_that_is_interrupted_while_it_is_imported_ends_quietly(tmp_path: Path, name: str) -> None:
    (tmp_path / "trimaran").write_text(COMMAND.format(name=name))
    done = subprocess.run([sys.executable, tmp_path / "trimaran"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trimaran: interrupted\n")


@pytest.mark.parametrize(("file", "default"), [("own.py", True), ("trimaran", False)])
def test_a_script_that_imports_trimaran_keeps_its_signals(tmp_path: Path, file: str, default: bool) -> None:
    """Of the command one that is ignored, as with nohup, stays so."""
    (tmp_path / file).write_text("import signal, trimaran\nprint(signal.getsignal(signal.SIGINT))\n")
    before = None if default else lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    done = subprocess.run(
        [sys.executable, tmp_path / file], capture_output=True, text=True, check=True, preexec_fn=before
    )
    assert done.stdout.strip() == str(signal.default_int_handler if default else signal.SIG_IGN)
