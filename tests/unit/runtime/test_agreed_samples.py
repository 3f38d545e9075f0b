"""Ranks whose data differ are refused, also where the first samples are alike."""

from typing import Any

import torch
from tests.raising import raises

from trimaran.runtime.communication.channels import Agreement
from trimaran.runtime.data.pipeline import _agreed, _digests_of_some


class Told(Agreement):
    """What two ranks say."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def gather_objects(self, said: Any, what: str) -> list[Any]:
        return [self.other, said]


def labels(*names: str) -> list[tuple[torch.Tensor, int]]:
    """Samples of three classes, numbered in this order."""
    return [(torch.tensor(float(number)), names.index("abc"[number % 3])) for number in range(40)]


def agree(mine: Any, other: Any) -> None:
    said = (False, 40)
    digests = [_digests_of_some(data, samples=40, seed=0) for data in (mine, other)]
    _agreed(Told((said, "", digests[1])), said, None, digests[0])


def test_classes_in_another_order_are_seen() -> None:
    agree(labels("a", "b", "c"), labels("a", "b", "c"))
    with raises("feed.other-samples", match="some of them", ranks=(0, 1)):
        agree(labels("a", "b", "c"), labels("a", "c", "b"))
    with raises("feed.other-samples", match="first ones", ranks=(0, 1)):
        agree(labels("a", "b", "c"), labels("b", "a", "c"))


def test_what_no_rank_can_tell_is_not_compared() -> None:
    class Drawn:
        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.rand(1, generator=GENERATOR)

    agree(Drawn(), labels("a", "b", "c"))


GENERATOR = torch.Generator().manual_seed(0)
