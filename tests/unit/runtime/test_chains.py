"""A collective that follows another: started once, in order, by nobody's waiting; a failure is told to who waits."""

import threading
from collections.abc import Callable

import pytest

from trimaran.runtime.communication.channels import HostChain, open_chain

LONG_S = 20.0


class Work:
    """A collective that ends when it is told to."""

    def __init__(self, error: str = "") -> None:
        self.ended = threading.Event()
        self._error = error

    def wait(self) -> None:
        assert self.ended.wait(LONG_S)
        if self._error:
            raise RuntimeError(self._error)

    def get_future(self) -> "Work":
        return self

    def then(self, done: Callable[[object], None]) -> None:
        self.wait()
        done(self)


def test_the_second_starts_when_the_first_has_ended_and_not_before() -> None:
    chain, first, second = HostChain(), Work(), Work()
    started = threading.Event()

    def start() -> Work:
        assert first.ended.is_set()
        started.set()
        return second

    one, two = chain.after(first, start)
    assert not started.is_set()
    first.ended.set()
    one.wait()
    assert started.wait(LONG_S)
    second.ended.set()
    two.wait()
    chain.close()


def test_seconds_start_in_the_order_of_their_firsts() -> None:
    """The later first ends earlier, and its second starts later all the same: groups keep one order."""
    chain, works = HostChain(), [Work(), Work()]
    order: list[int] = []

    def starter(number: int) -> Callable[[], Work]:
        def start() -> Work:
            order.append(number)
            works[number].ended.set()
            return works[number]

        return start

    pairs = [chain.after(work, starter(number)) for number, work in enumerate(works)]
    works[1].ended.set()
    works[0].ended.set()
    for _, second in pairs:
        second.wait()
    assert order == [0, 1]
    chain.close()


def test_the_ends_of_both_are_told() -> None:
    chain, first, second = HostChain(), Work(), Work()
    told: list[str] = []
    both = threading.Barrier(2)
    one, two = chain.after(first, lambda: second)
    one.get_future().then(lambda _: told.append("first"))
    second.ended.set()
    two.get_future().then(lambda _: (told.append("second"), both.wait(LONG_S)))
    first.ended.set()
    both.wait(LONG_S)
    assert told == ["first", "second"]
    chain.close()


def test_a_first_that_fails_fails_both_and_nothing_is_started() -> None:
    chain, first = HostChain(), Work(error="connection closed by peer")
    started: list[bool] = []
    one, two = chain.after(first, lambda: started.append(True))
    heard: list[object] = []
    one.get_future().then(heard.append)
    two.get_future().then(heard.append)
    first.ended.set()
    for work in (one, two):
        with pytest.raises(RuntimeError, match="closed by peer"):
            work.wait()
    assert started == heard == []
    follow, _ = chain.after(_ended(), Work)
    follow.wait()
    chain.close()


def test_a_second_that_cannot_be_started_fails_alone() -> None:
    chain = HostChain()

    def start() -> Work:
        raise RuntimeError("no such group")

    one, two = chain.after(_ended(), start)
    one.wait()
    with pytest.raises(RuntimeError, match="no such group"):
        two.wait()
    chain.close()


def test_a_closed_chain_has_no_thread() -> None:
    before = threading.active_count()
    chain = open_chain("cpu")
    assert threading.active_count() == before + 1
    chain.close()
    assert threading.active_count() == before


def _ended() -> Work:
    work = Work()
    work.ended.set()
    return work
