"""What a parent does with ranks that leave, or that it leaves; each is a process of its own, and no rank trains."""

import subprocess
import sys
import textwrap
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
