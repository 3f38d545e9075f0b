import os
import threading
from pathlib import Path

import pytest

from trimaran.launch.world import calm_event_loops


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no SCHED_BATCH")
def test_only_event_loops_get_the_policy() -> None:
    """A thread that is named as gloo names its event loops, and one that is not."""
    ready, done = threading.Barrier(3), threading.Event()
    policies: dict[str, int] = {}

    def live(name: str) -> None:
        Path("/proc/thread-self/comm").write_text(name)
        ready.wait()
        done.wait()
        policies[name] = os.sched_getscheduler(threading.get_native_id())

    threads = [threading.Thread(target=live, args=(name,)) for name in ("gloo_tcp_loop", "another")]
    for thread in threads:
        thread.start()
    ready.wait()
    count = calm_event_loops()
    done.set()
    for thread in threads:
        thread.join()
    assert count >= 1
    assert policies == {"gloo_tcp_loop": os.SCHED_BATCH, "another": os.SCHED_OTHER}
