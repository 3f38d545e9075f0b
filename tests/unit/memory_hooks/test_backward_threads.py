"""Seen in the wild: what is waited for on the wrong stream, when the backward runs elsewhere than the forward."""

import inspect
import threading
import time

import torch
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from tests.unit.memory_hooks.plans import MIXED
from torch import nn

from trimaran.memory_hooks import copies as cuda


def test_the_thread_that_walks_the_graph_is_the_one_that_waits() -> None:
    """Forward here, backward in another thread: copies are slow, and the values are right all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(48, 48), nn.Tanh())))
    x = torch.randn(64, 48)
    model(x).square().sum().backward()
    expected = gradients(model)
    model.zero_grad()
    recording = record(lambda: model(x).square().sum().backward(), model)
    model.zero_grad()

    def delay(lane: str) -> None:
        time.sleep(0.02 if lane == cuda.TO_DEVICE else 0.0)  # far longer than the layers that come before it is needed

    with executing(recording, rule=MIXED, delay=delay) as executor:
        with executor.hooks():
            losses = [model(x).square().sum()]
        thread = threading.Thread(target=lambda: losses.pop().backward())
        thread.start()
        thread.join()
        done = executor.finish_step()
        assert same_bits(gradients(model), expected)
        assert done.to_device_bytes > 0
        assert sum(done.stalls_s.values()) > 0


def test_no_stream_is_assumed_for_a_wait() -> None:
    """The GPU part asks for the current stream at each wait, and never for the default one."""
    assert "current_stream(self._engine.device)" in inspect.getsource(cuda.CudaCopy.wait)
    assert "default_stream" not in inspect.getsource(cuda)
