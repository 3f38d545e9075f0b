"""What a parent does with ranks that leave, or that it leaves; each is a process of its own, and no rank trains."""

import pickle
import signal
import subprocess
import sys
import textwrap
from multiprocessing import Pipe
from pathlib import Path


def test_leaving_waits_for_nothing_that_the_interrupted_code_holds(tmp_path: Path) -> None:
    """The second signal comes while the parent waits for a rank that it ends."""
    folder = tmp_path / "folder"
    folder.mkdir()
    script = f"""
        import os, signal, subprocess
        from multiprocessing import Pipe
        from pathlib import Path
        from trimaran.launch.ranks import _leave, _Rank

        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        rank = _Rank(number=0, process=process, connection=Pipe()[0], log=Path("log"))

        def second(number, frame):
            _leave([rank], {str(folder)!r})
            os._exit(7)

        signal.signal(signal.SIGALRM, second)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        process.wait()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 7
    assert not folder.exists()


def test_a_rank_that_answers_a_parent_that_is_gone_ends_itself(tmp_path: Path) -> None:
    """A command is unread when the parent is killed, so that the answer to it finds the pipe closed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    ours, theirs = Pipe()
    ours.send_bytes(pickle.dumps(("broken", None)))
    ours.send_bytes(pickle.dumps(("stacks", None)))
    script = f"""
        import sys
        from multiprocessing.connection import Connection
        from trimaran.launch.worker import _Parent

        sys.stdin.readline()
        parent = _Parent(Connection({theirs.fileno()}))
        parent.listen("broken", lambda _: 1 / 0)
        parent.listen("stacks", lambda _: parent.send("stacks", "x" * 2**20))
        parent.watch({str(folder)!r})
    """
    rank = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    ours.close()
    _, errors = rank.communicate("go\n", timeout=60)
    assert rank.returncode == -signal.SIGKILL
    assert "ZeroDivisionError" in errors
    assert "BrokenPipeError" not in errors
    assert not folder.exists()
