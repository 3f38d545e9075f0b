"""How NCCL compares with copies between devices on eight V100, as Apache's wiki has it of MXNet in 2018.

The batch and the networks were declared before any prediction. Two constants are fitted to some of these ratios, and
judged by the others (docs/decisions/0054).
"""

import pytest

from trimaran.planning.requests import default_software
from trimaran.pricing.exchange.frameworks import exchange_constants
from trimaran.simulator.exchange_comparison import Ratio
from trimaran_studies.reproduce.dgx1 import (
    FITTED_RATIOS,
    PUBLISHED_RATIOS,
    RATIO_BATCH,
    fit_places,
    judged_ratios,
    predicted_ratio,
)

WIDEST = 4.0
"""Of an interval, its high end by its low one: one that says nothing would pass otherwise."""


@pytest.fixture(scope="module")
def ratios() -> dict[str, Ratio]:
    return {network: predicted_ratio(network, default_software(("kvstore", "nccl"))) for network in PUBLISHED_RATIOS}


def test_the_batch_is_the_one_that_the_page_states() -> None:
    assert RATIO_BATCH == 4


@pytest.mark.parametrize("network", sorted(PUBLISHED_RATIOS))
def test_the_winner_is_right_or_not_sure(network: str, ratios: dict[str, Ratio]) -> None:
    assert ratios[network].faster in (None, PUBLISHED_RATIOS[network].nccl_over_copies > 1.0)


@pytest.mark.parametrize("network", sorted(PUBLISHED_RATIOS))
def test_the_ratio_is_in_its_interval(network: str, ratios: dict[str, Ratio]) -> None:
    assert ratios[network].covers(PUBLISHED_RATIOS[network].nccl_over_copies)
    assert ratios[network].high < WIDEST * ratios[network].low


def test_large_tensors_and_small_ones_are_told_apart(ratios: dict[str, Ratio]) -> None:
    assert [name for name in sorted(ratios) if ratios[name].faster] == ["alexnet", "vgg16"]


def test_constants_are_those_of_the_networks_that_they_are_fitted_to() -> None:
    known = exchange_constants()
    found = fit_places(FITTED_RATIOS, default_software(("kvstore", "nccl")))
    assert found == (known.mxnet_copies, known.mxnet_calls)


def test_each_ratio_is_within_a_quarter_by_constants_of_the_others() -> None:
    judged = judged_ratios(default_software(("kvstore", "nccl")))
    assert len(judged) == len(PUBLISHED_RATIOS) + 2
    assert all(one.network not in one.fitted for one in judged)
    assert max(abs(one.error) for one in judged) <= 0.25
