"""Networks of their own for processes, that nothing outlives.

A network namespace lives as long as somebody holds it: a process in it, or an open descriptor of it. Those of this
module have no name and are held by descriptors alone, so that the kernel removes them, with the interfaces in them,
when the last of their holders ends, however it ends, SIGKILL included.

A thread may be in another namespace than the rest of its process, and a process that it starts begins where the thread
is. So work inside a namespace is done by a thread that lives no longer than the work.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trimaran.errors import EnvironmentProblem

Result = TypeVar("Result")

# From linux/sched.h.
_NEW_NETWORK = 0x40000000
_OWN_NETWORK = "/proc/thread-self/ns/net"


def open_namespace(holders: contextlib.ExitStack) -> int:
    """Make a network namespace with nothing in it but a loopback interface that is down.

    Args:
        holders: closes the descriptor when it is left

    Returns:
        A descriptor of the namespace, which no process that is started inherits.

    Raises:
        EnvironmentProblem: this process may not make one
    """

    def make() -> int:
        _call("unshare", _NEW_NETWORK)
        descriptor = os.open(_OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        # Here, so that an interrupt of the waiting thread cannot come in between.
        holders.callback(os.close, descriptor)
        return descriptor

    return _in_thread(make)


def inside(namespace: int, work: Callable[[], Result]) -> Result:
    """Do something in a network namespace; a process that it starts stays there.

    Args:
        namespace: descriptor, from `open_namespace`
        work: what to do; runs in a thread of its own

    Returns:
        What it returned.

    Raises:
        EnvironmentProblem: this process may not enter the namespace
    """

    def enter() -> Result:
        _call("setns", namespace, _NEW_NETWORK)
        return work()

    return _in_thread(enter)


def _in_thread(work: Callable[[], Result]) -> Result:
    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(work).result()


def _call(name: str, *arguments: int) -> None:
    """A call of the C library, as Python has these only from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise EnvironmentProblem(
            f"links between local ranks can be held to a rate only in network namespaces, and this process may not "
            f"make or enter one ({name}: {reason}): run as root; in a container, with the capabilities SYS_ADMIN and "
            "NET_ADMIN",
            call=name,
            reason=reason,
        )
