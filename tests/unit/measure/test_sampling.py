"""What samples take, measured on data sets whose times are known."""

import dataclasses
import time
from typing import Any

import pytest
import torch
from tests import zoo
from tests.raising import raises
from torch.utils.data import Dataset, TensorDataset

from trimaran.base.job import Job
from trimaran.measure.findings import sample_costs
from trimaran.measure.input_pipeline import measure_samples

READ_S, WORK_S = 4e-3, 3e-3


class Timed(Dataset[Any]):
    """Stands still, then computes, for a known time each."""

    def __init__(self, *, read_s: float = 0.0, work_s: float = 0.0, draws: bool = False, ragged: bool = False) -> None:
        self.read_s, self.work_s, self.draws, self.ragged = read_s, work_s, draws, ragged
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        if self.read_s:
            time.sleep(self.read_s)
        end = time.thread_time() + self.work_s
        while time.thread_time() < end:
            pass
        features = torch.full((3 + index % 2 if self.ragged else 3,), float(index))
        return (features + torch.rand(3) if self.draws else features), index


def _job(**more: Any) -> Job:
    return dataclasses.replace(zoo.cnn(), **more)


def _first(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([sample[1] for sample in samples])


@pytest.mark.alone
def test_standing_still_and_work_are_told_apart() -> None:
    """4 ms of sleep and 3 ms of a core a sample; a tenth for what comes with them."""
    found = measure_samples(_job(), Timed(read_s=READ_S, work_s=WORK_S), rank=0, ranks=1, workers=False)
    costs = sample_costs([found], how="example")
    assert costs.read.seconds == pytest.approx(READ_S, rel=0.15)
    assert costs.read_again.seconds == pytest.approx(READ_S, rel=0.15)
    assert costs.prepare.seconds == pytest.approx(WORK_S, rel=0.1)
    assert costs.batch.seconds < 1e-3
    assert costs.recall.seconds < 0.1 * WORK_S


def test_sizes_and_whether_samples_repeat() -> None:
    """Three floats and an integer: 20 bytes, and what says their types and shapes where they are kept."""
    found = measure_samples(_job(), Timed(), rank=0, ranks=1, workers=False)
    assert (found.sample_bytes, found.samples, found.repeats) == (20, 400, True)
    assert 20 < found.stored_bytes < 1000
    assert not measure_samples(_job(), Timed(draws=True), rank=0, ranks=1, workers=False).repeats
    ragged = measure_samples(_job(collate=_first), Timed(ragged=True), rank=0, ranks=1, workers=False)
    assert ragged.stored_bytes == 0


def test_ranks_read_samples_of_their_own() -> None:
    """But for the first few of the data set, which all look at."""
    read = []
    for rank in range(2):
        data = Timed()
        measure_samples(_job(), data, rank=rank, ranks=2, workers=False)
        read.append({index for index in data.asked if index > 3})
    assert read[0]
    assert read[1]
    assert not read[0] & read[1]


def test_a_worker_is_measured_where_it_is_wanted() -> None:
    found = measure_samples(_job(), Timed(), rank=0, ranks=1, workers=True)
    costs = sample_costs([found], how="example")
    assert costs.knows_workers
    assert 0.0 < costs.take.seconds < 0.05
    assert 0.0 < costs.start_s < 30.0


def test_a_data_set_of_few_samples_is_gone_through_again() -> None:
    data = TensorDataset(torch.zeros(3, 2), torch.zeros(3))
    found = measure_samples(_job(), data, rank=1, ranks=2, workers=False)
    assert (found.samples, found.sample_bytes) == (3, 12)


def test_a_data_set_that_raises_is_reported_with_the_sample() -> None:
    class Broken(Timed):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if len(self.asked) > 2:
                raise ValueError("no such file")
            return super().__getitem__(index)

    with raises("feed.bad-samples"):
        measure_samples(_job(), Broken(), rank=0, ranks=1, workers=False)


@pytest.mark.parametrize("number", range(4))
def test_a_sample_that_is_looked_at_and_raises_is_reported_too(number: int) -> None:
    """It is one of those that are looked at, and not one of those that are timed."""

    class Headless(Timed):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == number:
                raise ValueError("no such file")
            return super().__getitem__(index)

    with raises("feed.bad-samples", match="no such file", samples=(number,)):
        measure_samples(_job(), Headless(), rank=0, ranks=1, workers=False)
