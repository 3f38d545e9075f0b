import dataclasses

import pytest
import torch
from tests import zoo
from tests.commands import planted_jobs
from torch.utils.data import TensorDataset

from trimaran.measure import whole_model as loading
from trimaran.measure.input_pipeline import LEAST_READS, measure_samples
from trimaran.measure.whole_model import BatchSupply
from trimaran.runtime.data.orders import some_samples


def test_a_small_data_set_is_gone_through_again_and_again() -> None:
    """5 samples in batches of 4: in 5 batches each is there 4 times; 100 batches are more than are made at a time."""
    data = TensorDataset(torch.arange(5.0).unsqueeze(1), torch.zeros(5))
    job = dataclasses.replace(zoo.cnn(), dataset=lambda: data)
    loader = BatchSupply(job, data, 4, "cpu")
    batches = [loader.load() for _ in range(100)]
    seen = torch.cat([batch[0] for batch in batches[:5]]).flatten().tolist()
    assert sorted(seen) == sorted([0.0, 1.0, 2.0, 3.0, 4.0] * 4)
    assert {len(batch[0]) for batch in batches} == {4}


def test_samples_come_in_a_random_order_that_is_the_same_each_time() -> None:
    data = TensorDataset(torch.arange(50.0).unsqueeze(1), torch.zeros(50))
    job = dataclasses.replace(zoo.cnn(), dataset=lambda: data)
    first, again = (BatchSupply(job, data, 50, "cpu").load()[0].flatten().tolist() for _ in range(2))
    assert first == again
    assert first != sorted(first)


def test_of_a_data_set_without_end_some_samples_are_read() -> None:
    """An order of all 10**12 takes 7.3 TiB."""
    job = planted_jobs.countless()
    data = job.dataset()
    assert BatchSupply(job, data, 8, "cpu").load()[0].shape == (8, planted_jobs.WIDTH)
    first, other = (measure_samples(job, data, rank=rank, ranks=2, workers=False) for rank in range(2))
    assert first.samples == other.samples == 10**12
    assert len(first.reads) >= LEAST_READS
    numbers = some_samples(10**12, seed=0).tolist()
    assert len(set(numbers)) == len(numbers)
    assert 0 <= min(numbers) < 10**10 < 99 * 10**10 < max(numbers) < 10**12


def test_a_batch_has_the_precision_of_the_job() -> None:
    job = zoo.cnn_fp64()
    assert BatchSupply(job, job.dataset(), 2, "cpu").load()[0].dtype == torch.float64


def test_of_a_slow_data_set_a_few_batches_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch takes longer than nothing: after 8 of them the last one comes again, and is not fresh."""
    monkeypatch.setattr(loading, "SLOW_S", 0.0)
    job = zoo.cnn()
    loader = BatchSupply(job, job.dataset(), 2, "cpu")
    fresh = []
    for _ in range(loading.MOST_SLOW + 2):
        batch = loader.load()
        fresh.append(loader.is_fresh)
    assert fresh == [True] * loading.MOST_SLOW + [False] * 2
    assert all(map(torch.equal, loader.again(), batch))


def test_what_does_not_time_loading_reads_a_slow_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SLOW_S", 0.0)
    job = zoo.cnn()
    batches = BatchSupply(job, job.dataset(), 2, "cpu")
    first = batches.again()
    assert batches.is_fresh
    assert all(map(torch.equal, batches.again(), first))
    assert not batches.is_fresh


def test_a_quick_data_set_gives_new_batches_to_everybody() -> None:
    job = zoo.cnn()
    batches = BatchSupply(job, job.dataset(), 2, "cpu")
    first = batches.again()
    assert batches.again() is not first
    assert batches.is_fresh
