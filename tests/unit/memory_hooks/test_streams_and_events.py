"""Seen in the wild: copies that are not ordered with the computation, and recorded streams that make memory grow.

On a CPU the order shows, as copies are stretched at random: whoever does not wait reads or frees too early.
"""

import ast
import inspect
import threading

import pytest
import torch
from tests.raising import raises
from tests.unit.memory_hooks.executing import SlowEngine, executing, gradients, random_delays, record, same_bits
from torch import nn

from trimaran.base.errors import ExecutionError
from trimaran.memory_hooks import copies as cuda
from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import HostEngine


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU(inplace=True))))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_copies_take_the_gradients_are_the_same(seed: int) -> None:
    model, x = network(), torch.randn(256, 64)
    model(x).sum().backward()
    expected = gradients(model)
    recording = record(lambda: model(x).sum().backward(), model)
    for recorded in (recording, None):
        with executing(recorded, keep=model.parameters(), delay=random_delays(seed, 2e-3)) as executor:
            for _ in range(2):
                model.zero_grad()
                with executor.hooks():
                    model(x).sum().backward()
                assert same_bits(gradients(model), expected)


def test_the_gpu_part_waits_for_events_only() -> None:
    """No tensor is recorded on a stream, no stream waits for a whole other one, and the host never waits in a step."""
    calls = {
        node.func.attr
        for node in ast.walk(ast.parse(inspect.getsource(cuda)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert "wait_event" in calls
    assert not calls & {"record_stream", "wait_stream", "resize_"}


def test_the_compute_stream_is_read_before_a_copy_stream_is_made_current() -> None:
    copy = ast.parse(inspect.getsource(cuda.CudaEngine.copy).replace("\n    ", "\n").strip())
    reads = [
        node.lineno for node in ast.walk(copy) if isinstance(node, ast.Attribute) and node.attr == "current_stream"
    ]
    switches = [node.lineno for node in ast.walk(copy) if isinstance(node, ast.With)]
    assert len(reads) == len(switches) == 1
    assert reads[0] < switches[0]


def test_a_copy_reads_what_was_there_and_a_wait_is_enough() -> None:
    """The source is overwritten right after the wait; the copy back must have the old values."""
    gate = threading.Event()
    engine, arena = SlowEngine(lambda _: gate.wait()), HostArena(4096)
    source = torch.arange(8.0)
    slot = arena.allocate(32)
    saving = engine.save(source.untyped_storage(), slot)
    assert not saving.done()
    gate.set()
    saving.wait()
    source.zero_()
    target = torch.zeros(8)
    engine.load(slot, target.untyped_storage()).wait()
    assert target.tolist() == list(range(8))
    engine.close()
    slot.free()
    arena.close()


def test_an_error_of_a_copy_thread_is_raised_by_the_wait() -> None:
    def fail(lane: str) -> None:
        raise OSError(f"no such lane as {lane}")

    with HostArena(4096) as arena:
        engine = SlowEngine(fail)
        copy = engine.save(torch.zeros(4).untyped_storage(), arena.allocate(16))
        with raises("copy-engine.copy-failed", ExecutionError, lane="d2h"):
            copy.wait()
        engine.close()


def test_a_resized_storage_is_refused_not_read_beyond_its_end() -> None:
    with HostArena(4096) as arena:
        engine = HostEngine()
        copy = engine.save(torch.zeros(4).untyped_storage(), arena.allocate(64))
        with raises("copy-engine.copy-failed", ExecutionError):
            copy.wait()
        engine.close()


def test_a_closed_engine_says_so() -> None:
    engine = HostEngine()
    engine.close()
    engine.close()
    with HostArena(4096) as arena, raises("copy-engine.closed", ExecutionError):
        engine.save(torch.zeros(4).untyped_storage(), arena.allocate(16))
