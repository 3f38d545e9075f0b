"""How NCCL compares with copies between devices on eight V100, as Apache's wiki has it of MXNet in 2018.

The batch and the networks were declared before any prediction, and no constant is fitted to these ratios
(docs/decisions/0019).
"""

import pytest

from trimaran.planning.requests import default_software
from trimaran.simulator.exchange_comparison import Ratio
from trimaran_studies.reproduce.dgx1 import PUBLISHED_RATIOS, RATIO_BATCH, predicted_ratio

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
