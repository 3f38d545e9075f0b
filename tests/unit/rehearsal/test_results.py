"""What members of a group hold after an operation: as torch's gloo would, of values that are known."""

from pathlib import Path

import pytest
import torch

from trimaran.features.rehearse.target import find_target
from trimaran.rehearsal.results import Given, results

TWO = [Given((torch.tensor([1, 2]),)), Given((torch.tensor([3, 4]),))]
FLAT = [[1, 2], [3, 4]]


def held(
    operation: str, given: list[Given], outputs: int = 1, *, reduction: str = "sum", root: int = -1
) -> list[object]:
    """Of each member, its results as lists."""
    found: list[object] = []
    for member in range(len(given)):
        made = results(operation, reduction, given, member, root, outputs)
        found.append([None if value is None else value.tolist() for value in made])
    return found


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", [[[4, 6]], [[4, 6]]]),
        ("all_gather", [[[1, 2, 3, 4]], [[1, 2, 3, 4]]]),
        ("reduce_scatter", [[[4]], [[6]]]),
        ("all_to_all", [[[1, 3]], [[2, 4]]]),
    ],
)
def test_two_members_exchange_what_they_have(operation: str, expected: list[object]) -> None:
    assert held(operation, TWO) == expected


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sum", [4, 6]),
        ("avg", [2, 3]),
        ("max", [3, 4]),
        ("min", [1, 2]),
        ("product", [3, 8]),
        ("band", [1, 0]),
        ("bor", [3, 6]),
        ("bxor", [2, 6]),
        ("premul_sum", None),
    ],
)
def test_reductions(reduction: str, expected: list[int] | None) -> None:
    assert held("all_reduce", TWO, reduction=reduction)[0] == [expected]


def test_members_that_are_taken_to_be_alike_count_as_often_as_they_are() -> None:
    one = Given((torch.tensor([2, 3]),))
    assert held("all_reduce", [one] * 3)[0] == [[6, 9]]
    assert held("all_reduce", [one] * 3, reduction="product")[0] == [[8, 27]]
    assert held("all_reduce", [one] * 3, reduction="avg")[0] == [[2, 3]]
    assert held("all_reduce", [one] * 2, reduction="bxor")[0] == [[0, 0]]
    assert results("all_reduce", "max", [Given((torch.tensor(True),))] * 2, 0, -1, 1)[0] is not None


def test_only_the_root_of_a_sum_has_it_and_a_root_gives_what_it_has() -> None:
    assert held("reduce", TWO, root=1) == [[[1, 2]], [[4, 6]]]
    assert held("broadcast", TWO, root=1) == [[[3, 4]], [[3, 4]]]
    assert held("scatter", [Given((torch.tensor(7), torch.tensor(8))), Given(())], root=0) == [[7], [8]]


def test_lists_and_uneven_parts() -> None:
    assert held("all_gather", TWO, 2) == [FLAT, FLAT]
    lists = [Given((torch.tensor([1]), torch.tensor([2, 2]))), Given((torch.tensor([3]), torch.tensor([4, 4])))]
    assert held("all_to_all", lists, 2) == [[[1], [3]], [[2, 2], [4, 4]]]
    rows = [Given((torch.arange(3),), (1, 2)), Given((torch.arange(10, 13),), (3, 0))]
    assert held("all_to_all", rows) == [[[0, 10, 11, 12]], [[1, 2]]]
    coalesced = [Given((torch.tensor([1]), torch.tensor([2]))), Given((torch.tensor([3]), torch.tensor([4])))]
    assert held("all_gather", [*coalesced, coalesced[0]], 2)[0] == [[1, 3, 1], [2, 4, 2]]


def test_what_depends_on_an_unknown_value_is_unknown_and_what_cannot_go_together_too() -> None:
    half = [TWO[0], Given((None,))]
    assert held("all_reduce", half) == [[None], [None]]
    assert held("all_gather", half, 2)[0] == [[1, 2], None]
    assert held("broadcast", half, root=0)[1] == [[1, 2]]
    assert held("all_reduce", [TWO[0], Given((torch.ones(3),))])[0] == [None]
    assert held("broadcast", TWO)[0] == [None]
    assert held("something_new", TWO)[0] == [None]


def test_nodes_of_several_kinds_are_told_to_count_as_the_slowest(tmp_path: Path) -> None:
    """A script "fits 32 × A100" where half of the devices are others, without a word."""
    mixed = tmp_path / "mixed.toml"
    mixed.write_text('[machine]\nnodes = { "dgx-a100" = 2, "dgx-h100" = 2 }\nfabric = "8 ib-hdr"\n')
    assert find_target(str(mixed)).notes == ("of 2 dgx-a100 and 2 dgx-h100 all count as dgx-a100, the slowest",)
    assert find_target("dgx-a100").notes == ()
