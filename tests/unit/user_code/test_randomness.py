"""Seeds of ranks and of data."""

import random

import numpy
import torch

from trimaran.user_code.randomness import derive_seed, seed_generators, seeded


def test_ranks_get_different_seeds() -> None:
    seeds = {derive_seed(0, "rank", replica, stage) for replica in range(20) for stage in range(20)}
    assert len(seeds) == 400
    assert derive_seed(1, "rank", 0, 0) not in seeds


def test_all_generators_are_seeded_and_put_back() -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(numpy.random.rand())  # noqa: NPY002

    seed_generators(5)
    expected = draw()
    seed_generators(6)
    after = draw()
    seed_generators(6)
    with seeded(5):
        assert draw() == expected
    assert draw() == after
