"""What of signals needs no run: which are caught, when a second one counts, and what a fork has."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from trimaran.base import signals
from trimaran.base.files import file_name, unfinished
from trimaran.base.signals import STOP_SIGNALS, Catcher, Interrupted, held_back, leaving, raise_interrupted


def run(script: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    head = "import os, signal, sys, time\nfrom trimaran.base.signals import *\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("threaded", [False, True])
def test_the_first_one_is_told_and_handlers_are_put_back(number: signal.Signals, threaded: bool) -> None:
    before = {one: signal.getsignal(one) for one in STOP_SIGNALS}
    told: list[int] = []
    with Catcher(told.append, threaded=threaded):
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    assert told == [number]
    assert {one: signal.getsignal(one) for one in STOP_SIGNALS} == before
    assert "trimaran-signals" not in [thread.name for thread in threading.enumerate()]


def test_two_of_one_cause_are_one() -> None:
    told: list[int] = []
    with Catcher(told.append):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert told == [signal.SIGHUP]


def test_what_begins_to_be_is_known_before_a_signal_is_heard() -> None:
    known: list[int] = []

    def begin() -> None:
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            known.append(1)
        known.append(2)

    with Catcher(raise_interrupted), pytest.raises(Interrupted):
        begin()
    assert known == [1]


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told: list[int] = []
        with Catcher(told.append):
            os.kill(os.getpid(), signal.SIGHUP)
        assert told == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_than_the_main_one_catches_nothing() -> None:
    before = {one: signal.getsignal(one) for one in STOP_SIGNALS}
    seen: list[object] = []

    def catch() -> None:
        with Catcher(raise_interrupted):
            seen.append({one: signal.getsignal(one) for one in STOP_SIGNALS})

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join()
    assert seen == [before]


def test_one_in_the_other_hears_alone() -> None:
    told: list[int] = []
    with Catcher(raise_interrupted), Catcher(told.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert told == [signal.SIGTERM]
    with pytest.raises(Interrupted) as caught, Catcher(raise_interrupted):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert caught.value.number == signal.SIGUSR1


@pytest.mark.parametrize("threaded", [False, True])
def test_a_second_one_does_what_is_left_and_ends(tmp_path: Path, threaded: bool) -> None:
    done = run(f"""
        from pathlib import Path
        from trimaran.base.files import unfinished
        with Catcher(lambda number: None, threaded={threaded}), leaving(lambda number: say(f"left by {{number}}")):
            with unfinished(Path("weights")) as part:
                part.write_text("half")
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(SAME_CAUSE_S + 0.1)
                say("still there")
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(30)
    """, tmp_path)  # fmt: skip
    assert done.returncode == 129
    assert done.stderr.splitlines() == ["still there", "trimaran: SIGHUP again: it ends at once", "left by 1"]
    assert list(tmp_path.iterdir()) == []


def test_a_fork_has_the_handlers_of_before() -> None:
    """And a signal to it is none to its parent."""
    done = run("""
        heard = []
        with Catcher(heard.append, threaded=True):
            child = os.fork()
            if not child:
                time.sleep(30)
            time.sleep(0.2)
            os.kill(child, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            time.sleep(0.2)
        sys.exit(0 if (code, heard) == (-signal.SIGTERM, []) else 1)
    """)
    assert done.returncode == 0, done.stderr


def test_a_thread_hears_where_the_main_one_waits_in_a_library() -> None:
    done = run("""
        import ctypes, threading
        def second():
            time.sleep(SAME_CAUSE_S + 0.3)
            os.kill(os.getpid(), signal.SIGTERM)
        with Catcher(lambda number: None, threaded=True):
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Thread(target=second, daemon=True).start()
            # Locked twice: for ever, and no signal ends that.
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
            libc.pthread_mutex_init(mutex, None)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
    """)
    assert done.returncode == 143, done.stderr


def test_names_of_jobs_stay_in_their_folder(tmp_path: Path) -> None:
    for name in (
        "../../x",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/../../b",
        "\x1b[31mred",
        "a\x00b",
        ".hidden",
        "x" * 500,
        "é" * 99,
    ):
        made = file_name(name)
        (tmp_path / made).write_text("")
        assert (tmp_path / made).resolve().parent == tmp_path.resolve()
        assert not made.startswith(".")
        assert made.isprintable()
    assert file_name("ResNet-50 v1.5") == "ResNet-50-v1.5"


def test_callbacks_of_leaving_are_gone_with_their_block(tmp_path: Path) -> None:
    with unfinished(tmp_path / "x"), leaving(print):
        assert len(signals._leaving) == 2
    assert signals._leaving == []


@pytest.mark.parametrize(
    "swallowing",
    [
        "os.register_at_fork(after_in_parent=interrupt)\n    os.fork() or os._exit(0)",
        "weakref.finalize(Gone(), interrupt)",
        "Told()",
    ],
    ids=["at a fork", "in a callback", "in a finalizer"],
)
def test_one_that_python_swallows_is_raised_again(swallowing: str) -> None:
    ended = run(
        f"""
import weakref
asked = []
def interrupt():
    if not asked:
        asked.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
class Gone: pass
class Told:
    def __del__(self): interrupt()
try:
  with Catcher(raise_interrupted):
    {swallowing}
    time.sleep(10)
    print("went on")
except Interrupted as raised:
    print("ended by", raised)
"""
    )
    assert ended.stdout == "ended by SIGINT\n", ended.stderr
    assert ended.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("where", ["import", "exit"])
def test_a_command_answers_while_it_is_imported_and_at_its_exit(number: signal.Signals, where: str) -> None:
    """There is no traceback of imports, nor an end without a word."""
    done = run(f"""
        import atexit, runpy
        class Sending:
            def find_spec(self, name, *_):
                if name == "typer":
                    os.kill(os.getpid(), {int(number)})
        if "{where}" == "import":
            sys.meta_path.insert(0, Sending())
        else:
            atexit.register(os.kill, os.getpid(), {int(number)})
        sys.argv = ["trimaran", "--version"]
        runpy.run_module("trimaran", run_name="__main__", alter_sys=True)
    """)
    told = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert (done.returncode, done.stderr) == (128 + number, f"trimaran: {told}\n")


def test_one_that_is_sent_again_after_its_block_is_the_first_of_the_next() -> None:
    ended = run(
        """
        from trimaran.base import signals
        with Catcher(lambda number: print("first", flush=True)):
            signals._send(signal.SIGTERM)
            time.sleep(0.6)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        """
    )
    assert (ended.stdout, ended.returncode) == ("first\n", 128 + signal.SIGTERM)


@pytest.mark.parametrize(("most_s", "printed"), [(5.0, "imported\n"), (0.1, "")], ids=["short", "long"])
def test_a_short_import_ends_before_one_is_raised(tmp_path: Path, most_s: float, printed: str) -> None:
    """Compiled parts of numpy's swallow what is raised in them, torch's abort the process."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("from package import part\n")
    (tmp_path / "package/part.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.6)\nprint('imported')\n"
    )
    ended = run(
        f"""
        from trimaran.base import signals
        signals.MOST_IMPORT_S = {most_s}
        try:
            with Catcher(raise_interrupted):
                import package
                time.sleep(10)
                print("went on")
        except Interrupted as raised:
            print("ended by", raised)
        """,
        cwd=tmp_path,
    )
    assert (ended.stdout, ended.stderr) == (f"{printed}ended by SIGTERM\n", "")


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [("ended", 3, ""), ("/dev/full", 3, "No space left on device")],
    ids=["file", "full disk"],
)
def test_a_command_ends_with_all_that_it_began(tmp_path: Path, target: str, code: int, told: str) -> None:
    """Modules are not taken apart at its end, and nothing else of an end is left out."""
    printed = tmp_path / target
    script = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from trimaran import __main__, cli
def later(text):
    time.sleep(0.1)
    print(text)
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
def command():
    threading.Thread(target=later, args=("a thread",)).start()
    ThreadPoolExecutor().submit(later, "a pool")
    atexit.register(print, "at exit")
    raise SystemExit(3)
cli.main = command
__main__.main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with printed.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    if not told:
        assert sorted(printed.read_text().splitlines()) == ["a pool", "a thread", "at exit"]
