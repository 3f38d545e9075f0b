"""Coded copies: exact to the bit where they say so, smaller where they can be, and gradients as without them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises
from tests.unit.memory_hooks.executing import SlowEngine, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import OFFLOAD, plan_by_rule
from torch import nn

from trimaran.base.errors import ExecutionError, InputError
from trimaran.graph.trace.calls import Recording
from trimaran.memory_hooks.arena import HostArena, Slot
from trimaran.memory_hooks.coding import CHUNK_BYTES, Codec, Coding, SparseCodec
from trimaran.memory_hooks.executor import MemoryExecutor


def there_and_back(codec: Codec, device: np.ndarray) -> tuple[np.ndarray, int]:
    host, back = np.full_like(device, 0xAA), np.full_like(device, 0x55)
    coding = Coding(codec)
    coding.save(device, host)
    coding.load(host, back)
    return back, coding.nbytes


@given(
    zeros=st.floats(0, 1),
    nbytes=st.integers(0, 300),
    word_bytes=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_bytes_come_back_as_they_were(zeros: float, nbytes: int, word_bytes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    device = generator.integers(0, 256, nbytes, dtype=np.uint8)
    device[generator.random(nbytes) < zeros] = 0
    back, coded = there_and_back(SparseCodec(word_bytes), device)
    assert np.array_equal(back, device)
    assert coded <= nbytes


@pytest.mark.parametrize("size", [CHUNK_BYTES - 3, CHUNK_BYTES, CHUNK_BYTES + 5, 2 * CHUNK_BYTES + 1])
def test_chunks_of_zeros_and_of_noise_lie_side_by_side(size: int) -> None:
    device = np.zeros(size, np.uint8)
    device[: size // 2] = np.random.default_rng(0).integers(1, 256, size // 2, dtype=np.uint8)
    back, coded = there_and_back(SparseCodec(), device)
    assert np.array_equal(back, device)
    assert size / 2 < coded < 0.8 * size if size > CHUNK_BYTES + 5 else coded <= size


def test_negative_zeros_and_nans_keep_their_bits() -> None:
    """-0.0 == 0.0, so a code by values would lose the sign; no NaN equals itself, and this one carries a payload."""
    words = np.zeros(64, np.uint32)
    words[:4] = 0x80000000, 0x7FC01234, 0xFFC00001, 0x00000001
    back, coded = there_and_back(SparseCodec(), words.view(np.uint8))
    assert np.array_equal(back.view(np.uint32), words)
    assert coded == 64 // 8 + 4 * 4


def test_what_has_no_zeros_stays_as_it_is() -> None:
    device = np.random.default_rng(0).standard_normal(1024).astype(np.float32).view(np.uint8)
    back, coded = there_and_back(SparseCodec(), device)
    assert coded == len(device)
    assert np.array_equal(back, device)


def test_words_of_another_size_are_refused() -> None:
    with pytest.raises(InputError):
        SparseCodec(3)


class _Net(nn.Module):
    """ReLUs in place and not, pool indices (int64) and a sigmoid without zeros."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(8 * 64, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layers(x).logsumexp(1).sum()
        return loss


class _Coding(SlowEngine):
    """Codes all that is offloaded; with None bytes go as they are."""

    def __init__(self, codec: Codec | None) -> None:
        super().__init__(random_delays(1))
        self._codecs = {} if codec is None else {"given": codec}

    def _transfer(self, storage: torch.UntypedStorage, offset: int, slot: Slot, lane: str) -> None:
        slot.codec = "given" if self._codecs else ""
        super()._transfer(storage, offset, slot, lane)


def _run(codec: Codec | None, recording: Recording, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    engine, arena = _Coding(codec), HostArena(16 << 20)
    executor = MemoryExecutor(recording, plan_by_rule(recording.trace, OFFLOAD), engine, arena, smallest_bytes=1)
    try:
        for _ in range(2):
            model.zero_grad()
            with executor.hooks():
                model(x).backward()
            assert executor.finish_step().to_host_bytes > 0
    finally:
        engine.close()
        arena.close()
    return gradients(model)


def test_gradients_under_an_exact_codec_are_bit_for_bit_those_of_autograd() -> None:
    model, x = _Net(), torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    recording = record(lambda: model(x).backward(), model)
    model.zero_grad()
    model(x).backward()
    expected, codec = gradients(model), SparseCodec()
    assert same_bits(_run(codec, recording, model, x), expected)
    assert codec.traffic.coded_bytes < 0.9 * codec.traffic.raw_bytes


def test_an_error_of_the_codec_reaches_who_waits() -> None:
    class Broken(SparseCodec):
        def encode(self, source: np.ndarray, target: np.ndarray) -> int:
            raise ValueError("no code today")

    model, x = _Net(), torch.randn(4, 3, 16, 16)
    recording = record(lambda: model(x).backward(), model)
    with raises("copy-engine.copy-failed", ExecutionError):
        _run(Broken(), recording, model, x)
