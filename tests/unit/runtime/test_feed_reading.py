"""A request becomes a batch: what is drawn, what is wrong, what it took."""

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from trimaran.runtime.data.reading import Reading, Request, SeededCalls, now, since
from trimaran.user_code.randomness import ALL_GENERATORS, find_moved, host_states, restore_host, seed_host

GENERATORS = {
    "torch": lambda: torch.rand(()),
    "random": random.random,
    "numpy": lambda: numpy.random.rand(),  # noqa: NPY002
    "normal": lambda: numpy.random.randn(),  # noqa: NPY002 keeps every second number for the next call
}


def request(*samples: int, seed: int = 5) -> Request:
    return Request((0, 0, 0), seed, list(samples))


class Rows(Dataset[Any]):
    """Row `index` is three times its number; what it does besides is given by its function."""

    def __init__(self, also: Any = lambda index: None, width: Any = lambda index: 3) -> None:
        self.also, self.width = also, width
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        self.also(index)
        return torch.full((self.width(index),), float(index)), index


@pytest.mark.parametrize("name", GENERATORS)
def test_a_draw_from_any_global_generator_is_seen_and_taken_back(name: str) -> None:
    marks = host_states()
    assert not find_moved(marks)
    first = float(GENERATORS[name]())
    moved = find_moved(marks)
    assert len(moved) == 1
    restore_host(marks, moved)
    assert not find_moved(marks)
    assert float(GENERATORS[name]()) == first


def test_a_function_that_draws_nothing_is_soon_called_for_all_at_once() -> None:
    calls: list[str] = []

    def each(item: int) -> int:
        calls.append("each")
        return item

    def together(items: Sequence[int]) -> list[int]:
        calls.append("together")
        return list(items)

    drawing = SeededCalls()
    assert [drawing.call([1, 2], each, together, lambda item: item) for _ in range(2)] == [[1, 2], [1, 2]]
    assert calls == ["each", "each", "together"]


def test_one_that_draws_later_is_called_again_with_its_seed() -> None:
    """The third call draws: what it drew unseeded does not count, and what follows goes on as if nothing was drawn."""
    drawing = SeededCalls()

    def draw(item: int) -> float:
        return torch.rand(()).item() if item > 2 else 0.0

    def call(*items: int) -> list[float]:
        return drawing.call(items, draw, lambda some: [draw(one) for one in some], lambda item: item)

    torch.manual_seed(1)
    first = [call(1, 2), call(1, 2), call(3, 4)]
    left = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(left, torch.rand(3))
    assert first == [[0.0, 0.0], [0.0, 0.0], [call(3)[0], call(4)[0]]]
    assert first[2][0] != first[2][1]


def test_only_generators_that_are_drawn_from_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call finds them out; when another one is drawn from, all are, and the call is made again."""
    seeded: list[list[int]] = []
    monkeypatch.setattr(
        "trimaran.runtime.data.reading.seed_host",
        lambda seed, which=ALL_GENERATORS: (seeded.append(sorted(which)), seed_host(seed, which)),
    )
    drawing = SeededCalls()

    def draw(item: int) -> float:
        return torch.rand(()).item() + (random.random() if item == 2 else 0.0)

    def call(item: int) -> float:
        return drawing.call([item], draw, lambda some: [draw(one) for one in some], lambda item: item)[0]

    first = [call(1), call(1), call(2)]
    assert seeded == [[0, 1, 2], [0], [0], [0, 1, 2]]
    assert first == [call(1), call(1), call(2)]
    assert seeded[4:] == [[0, 1]] * 3


def test_a_data_set_that_draws_nothing_is_read_once() -> None:
    rows = Rows()
    reading = Reading(rows, None)
    for samples in ((4, 1), (2, 3), (9, 8)):
        assert reading[request(*samples)].batch[1].tolist() == list(samples)
    assert rows.asked == [4, 1, 2, 3, 9, 8]


def test_what_the_collate_function_draws_depends_on_its_microbatch() -> None:
    def mask(samples: list[Any]) -> Any:
        return torch.rand(len(samples)), torch.tensor([number for _, number in samples])

    one, other = Reading(Rows(), mask), Reading(Rows(), mask)
    torch.rand(5)
    first = one[request(3, 4)].batch[0]
    assert torch.equal(first, other[request(3, 4)].batch[0])
    assert not torch.equal(first, one[request(4, 3)].batch[0])
    assert not torch.equal(first, one[request(3, 4, seed=6)].batch[0])


def fail_at(number: int) -> Any:
    def check(index: int) -> None:
        if index == number:
            raise OSError(f"no picture {index}")

    return check


class Fetched(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("made", [Rows, Fetched])
def test_a_sample_that_cannot_be_read_is_named_with_the_line(made: Any) -> None:
    reading = Reading(made(fail_at(7)), None)
    assert reading[request(1, 2)].fault is None
    fault = reading[request(5, 7, 9)].fault
    assert fault is not None
    assert fault.samples == (7,)
    assert fault.text.startswith("sample 7 of the data set could not be read: OSError: no picture 7 (")
    assert f"{__file__}:" in fault.text
    assert "Traceback" not in fault.text
    assert reading[request(5, 9)].fault is None


def test_a_data_set_that_gives_too_few_samples_is_told() -> None:
    class Stingy(Rows):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices[1:]]

    reading = Reading(Stingy(), None)
    assert reading[request(1, 2)].fault is None
    fault = reading[request(1, 2)].fault
    assert fault is not None
    assert "__getitems__ gave 1 samples for 2 numbers" in fault.text


def test_samples_of_other_shapes_are_named_with_them() -> None:
    reading = Reading(Rows(width=lambda index: 5 if index == 8 else 3), None)
    fault = reading[request(2, 4, 8)].fault
    assert fault is not None
    assert fault.samples == (2, 8)
    assert '"input" has the shape (3,) in sample 2 and (5,) in sample 8: give Job.collate one that pads' in fault.text


def test_samples_with_other_parts_are_named_with_them() -> None:
    samples = [{"ids": torch.zeros(2)}, {"ids": torch.zeros(2), "mask": torch.zeros(2)}]
    fault = Reading(samples, lambda _: 1 // 0)[request(0, 1)].fault
    assert fault is not None
    assert 'sample 0 has the parts "ids", sample 1 has "ids", "mask"' in fault.text
    assert "Job.collate could not make a batch of samples 0, 1" in fault.text


def test_a_collate_function_that_fails_on_samples_that_are_alike_is_told() -> None:
    fault = Reading(Rows(), lambda samples: samples[9])[request(0, 1)].fault
    assert fault is not None
    assert "Job.collate could not make a batch of samples 0, 1: IndexError: list index out of range" in fault.text


def test_sleeping_is_reading_and_computing_is_preparing() -> None:
    """4 samples that sleep 5 ms each stand still for 20 ms at least; 4 that compute for 5 ms work for 20 ms."""
    sleeping = Reading(Rows(lambda index: time.sleep(0.005)), None)[request(1, 2, 3, 4)]
    assert sleeping.read_s >= 0.0199
    computing = Reading(Rows(lambda index: compute(0.005)), None)[request(1, 2, 3, 4)]
    assert computing.prepared_s >= 0.0199
    assert computing.read_s < computing.prepared_s


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_both_parts_of_a_span_add_up_to_the_clock() -> None:
    begun_ns = time.perf_counter_ns()
    start = now()
    time.sleep(0.002)
    still_s, busy_s = since(start)
    assert still_s >= 0
    assert busy_s >= 0
    assert 0.002 <= still_s + busy_s <= (time.perf_counter_ns() - begun_ns) * 1e-9 + 1e-3


def test_rows_of_tensors_are_not_looked_at_for_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.runtime.data.reading.host_states", None)
    reading = Reading(TensorDataset(torch.arange(6)), None)
    assert reading[request(3, 1)].batch[0].tolist() == [3, 1]
