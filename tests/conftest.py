"""What every test shares: one thread, the loopback interface, a cache of its own, examples that repeat."""

import gc
import itertools
import multiprocessing
import os
import signal
import sys

# Read by OpenMP and gloo when torch is loaded, so they are set before anything imports it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.caches import VARIABLE as TRACED
from tests.caches import make_cache

# A shared machine makes deadlines fail by chance. "ci" draws the same examples every time; "explore" draws new ones.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell starts what it runs in the background with Ctrl-C ignored, and whatever is started here would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with hang-ups.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.quiet", "tests.scheduling"]
BRIEF = "TRIMARAN_TEST_BRIEF"
"""Read by forks, which then measure for a short time only (tests/forks/brief.py)."""
SETTLE = "TRIMARAN_SETTLE"
"""How long commands wait for other programs to end before they measure [s]: tests beside them never end."""

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in tests/distributed, so that no one has to remember it."""
    for item in items:
        if item.nodeid.startswith("tests/distributed/"):
            item.add_marker("distributed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let forks measure briefly and at once, but for tests that judge what a clock says; before any fixture is made."""
    for name, value in ((BRIEF, "1"), (SETTLE, "0")):
        os.environ.pop(name, None)
        if item.get_closest_marker("alone") is None:
            os.environ[name] = value


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Set what collection makes aside: a test that collects garbage would look at thousands of tests each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # As rarely as the command does: tests of searches take a tenth less.
        gc.set_threshold(100_000, 50, 50)
        gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show in full why a test was run once more: it may be long until that happens again."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"run once more: {report.nodeid}")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's own cache out of the tests, also from fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.getbasetemp()
        patch.setenv(TRACED, str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "traced"))
        cache = tmp_path_factory.mktemp("trimaran-cache")
        patch.setenv("TRIMARAN_CACHE", make_cache(cache / "session"))
        yield cache


@pytest.fixture(autouse=True)
def _test_cache(_session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own, so that none sees what another one stored, but for networks."""
    monkeypatch.setenv("TRIMARAN_CACHE", make_cache(_session_cache / f"test-{next(_numbers)}"))


@pytest.fixture
def _empty_cache(_test_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that looks at what a cache keeps of networks, or damages it."""
    monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path / "empty-cache"))


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """Kill what a test started and left: after a timeout, pytest would wait at its exit for ranks that never end."""
    before = set(multiprocessing.active_children())
    yield
    for process in set(multiprocessing.active_children()) - before:
        process.kill()
        process.join()


@pytest.fixture(scope="session", autouse=True)
def _no_server_left() -> Iterator[None]:
    """End the server of forks, where a test has started one."""
    yield
    if client := sys.modules.get("tests.forks.client"):
        client.stop_server()
