"""Batches that come from another process through memory that is used again."""

import gc
import multiprocessing
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.runtime.data.worker_transport import (
    LEAST_BYTES,
    BatchReceiver,
    BatchSender,
    NoBlock,
    Packed,
    receive_descriptor,
    send_descriptor,
)


class Line:
    """Both ends, in one process."""

    def __init__(self) -> None:
        self.here, self.there = multiprocessing.Pipe()
        self.receiver, self.sender = BatchReceiver(self.here), BatchSender(self.there)

    def pass_on(self, value: Any, least_bytes: int = 0) -> Any:
        self.sender.send(Packed(value, least_bytes=least_bytes), self.receiver.reserve())
        return self.receiver.receive().unpack()

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


DTYPES = [torch.uint8, torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
TENSORS = st.builds(
    lambda shape, dtype, turn: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype).transpose(*turn(shape)),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from(DTYPES),
    st.sampled_from([lambda shape: (0, 0), lambda shape: (0, len(shape) - 1)]),
)
VALUES = st.recursive(
    st.one_of(TENSORS, st.integers(), st.text(max_size=4), st.builds(numpy.arange, st.integers(0, 5))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


def alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(alike(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@given(values=st.lists(VALUES, min_size=1, max_size=4), least_bytes=st.sampled_from([0, LEAST_BYTES]))
def test_what_is_passed_on_is_the_same(values: list[Any], least_bytes: int) -> None:
    line = Line()
    came = [line.pass_on(value, least_bytes) for value in values]
    line.close()
    assert all(alike(*pair) for pair in zip(values, came, strict=True))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3).expand(2, 3),
        torch.arange(6)[::2],
        torch.full((2,), 1 + 2j).conj(),
        torch.full((2,), 1 + 2j).conj().imag,
        torch.zeros(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.tensor(7),
        torch.zeros(0, 3),
    ],
    ids=[
        "expanded",
        "every second",
        "conjugate",
        "negative",
        "with gradient",
        "sparse",
        "channels last",
        "0-d",
        "none",
    ],
)
def test_tensors_of_every_kind_come(tensor: torch.Tensor, line: Line) -> None:
    came = line.pass_on(tensor)
    assert (came.dtype, came.shape, came.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert came.requires_grad == tensor.requires_grad
    assert torch.equal(came.to_dense(), tensor.to_dense())


def test_a_block_is_used_again_once_nothing_refers_to_its_batch(line: Line) -> None:
    """Of three batches the second one is kept, by a view of one of its tensors: two blocks do."""
    first = line.pass_on((torch.zeros(4), torch.zeros(2)))
    address = first[0].data_ptr()
    del first
    second = line.pass_on((torch.ones(4), torch.ones(2)))[0][1:].view(3, 1)
    assert second.data_ptr() == address + 4
    third = line.pass_on((torch.full((4,), 2.0), torch.zeros(2)))
    assert third[0].data_ptr() != address
    assert second.tolist() == [[1.0]] * 3
    del second
    gc.collect()
    assert line.pass_on((torch.full((4,), 3.0), torch.zeros(2)))[0].data_ptr() == address
    assert third[0].tolist() == [2.0] * 4


def test_a_label_that_is_kept_does_not_keep_its_images(line: Line) -> None:
    images, labels = line.pass_on((torch.zeros(LEAST_BYTES), torch.ones(4)), LEAST_BYTES)
    address = images.data_ptr()
    del images
    assert line.pass_on((torch.zeros(LEAST_BYTES), torch.ones(4)), LEAST_BYTES)[0].data_ptr() == address
    assert labels.tolist() == [1.0] * 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attributes_of_a_tensor_and_strided_nested_ones_come(line: Line) -> None:
    """And what stands for more numbers than there are takes no more than it did."""
    padded = torch.zeros(2, 3)
    padded.lengths = [1, 3]  # type: ignore[attr-defined]
    assert line.pass_on(padded).lengths == [1, 3]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [part.tolist() for part in line.pass_on(nested).unbind()] == [[1.0] * 2, [1.0] * 3]
    assert Packed(torch.ones(1).expand(1000, 1000)).nbytes < 4096


def test_a_batch_that_is_larger_than_its_block_gets_another(line: Line) -> None:
    for size in (1, 5000, 3, 20_000):
        assert torch.equal(line.pass_on(torch.arange(size)), torch.arange(size))


@pytest.mark.sweep
@pytest.mark.timeout(30)
def test_a_batch_of_thousands_of_arrays_is_passed_on_before_anybody_reads(line: Line) -> None:
    """Where all lie in the block, their sizes alone would fill a pipe, and both ends of this one are in one thread."""
    arrays = [torch.full((1,), float(number)) for number in range(100_000)]
    came = line.pass_on(arrays)
    assert torch.equal(torch.cat(came), torch.arange(100_000.0))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_batches_that_are_kept_keep_no_file_open(line: Line) -> None:
    kept = [line.pass_on(torch.zeros(3))]
    before = open_files()
    kept += [line.pass_on(torch.zeros(3)) for _ in range(100)]
    assert open_files() == before


@contextmanager
def no_more_files(left: int) -> Iterator[None]:
    """This process may open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    # What lies between others that are open is filled; then as many are given back.
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(left):
        os.close(taken.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in taken:
            os.close(file)


@pytest.mark.parametrize(("left", "in_worker"), [(0, True), (1, False)])
def test_an_end_that_may_open_no_file_says_so(left: int, in_worker: bool, line: Line) -> None:
    """Each needs one for a moment; here they are one process, and the worker's is gone before the rank's comes."""
    with no_more_files(left):
        line.sender.send(Packed(torch.zeros(3)), line.receiver.reserve())
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
        with pytest.raises(NoBlock, match="Too many open files") as caught:
            line.receiver.receive()
        for file in held:
            os.close(file)
    assert caught.value.in_worker == in_worker


def test_a_block_that_cannot_grow_is_told(line: Line) -> None:
    line.pass_on(torch.zeros(3))
    block = line.receiver.reserve()
    assert block == 0
    with no_more_files(0):
        line.sender.send(Packed(torch.zeros(5000)), block)
        with pytest.raises(NoBlock, match="Too many open files") as caught:
            line.receiver.receive()
    assert caught.value.in_worker


def test_a_file_that_is_handed_over_is_not_inherited(line: Line) -> None:
    with Path(os.devnull).open() as file:
        send_descriptor(line.there, file.fileno())
    came = receive_descriptor(line.here)
    assert came is not None
    try:
        assert not os.get_inheritable(came)
    finally:
        os.close(came)


class Operations(TorchDispatchMode):
    """Whoever watches what torch does, as profilers and recorders of memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_memory_of_a_block_is_no_operation_of_torch(line: Line) -> None:
    with Operations() as operations:
        line.pass_on(numpy.arange(1000))
    assert operations.seen == []


def mapped_blocks() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:trimaran-batch")


def test_memory_goes_with_the_last_that_refers_to_it() -> None:
    """Both ends map it; the batch keeps that of its rank, beyond the line."""
    before = mapped_blocks()
    line = Line()
    kept = line.pass_on(torch.ones(3))
    assert mapped_blocks() == before + 2
    line.close()
    del line
    assert mapped_blocks() == before + 1
    assert kept.tolist() == [1.0] * 3
    del kept
    assert mapped_blocks() == before


def test_a_time_out_for_all_sockets_is_not_for_this_one(line: Line) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(1.0)
    try:
        line.pass_on(torch.zeros(3))
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(line.here.fileno())
    assert os.get_blocking(line.there.fileno())


def test_a_batch_may_be_dropped_by_any_thread(line: Line) -> None:
    kept = [line.pass_on(torch.full((100,), float(number))) for number in range(8)]
    threads = [threading.Thread(target=kept.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {line.receiver.reserve() for _ in range(8)} == set(range(8))


def test_what_is_taken_may_be_changed(line: Line) -> None:
    came = line.pass_on(torch.zeros(3))
    came += 1.0
    assert came.tolist() == [1.0] * 3
