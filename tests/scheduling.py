"""A worker of pytest-xdist that crashes costs the run the test that it crashed in, which is run once more.

pytest-xdist 3.8.0 gives the replacement of a crashed worker every file that the worker had, also those without a test
left to run, and then waits for ever for the end of such a file
(https://github.com/pytest-dev/pytest-xdist/issues/1323).
"""

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


class SurvivingScheduling(LoadFileScheduling):  # type: ignore[misc]  # the scheduler of xdist is not typed for others
    """A file to a worker; of the files of a worker that crashed, what is left goes to another."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self.crashes: Counter[str] = Counter()

    def remove_node(self, node: Any) -> str | None:
        """Take a worker away, and give the test that it crashed in, if it did; that waits to be run again, but once."""
        left = {
            file: waiting
            for file, tests in self.assigned_work.pop(node).items()
            if (waiting := {test: False for test, is_done in tests.items() if not is_done})
        }
        if not left:
            return None
        file, tests = next(iter(left.items()))
        crashed: str = next(iter(tests))
        if crashed in self.crashes:
            del tests[crashed]
            if not tests:
                del left[file]
        self.crashes[crashed] += 1
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SurvivingScheduling | None:
    """Schedule whole files so; another distribution is left to xdist."""
    return SurvivingScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """A test that a worker crashed in is run once more, whatever the worker had time to say of it."""
    if isinstance(sched, SurvivingScheduling):
        report.outcome = "rerun" if sched.crashes[crashitem] == 1 else "failed"
