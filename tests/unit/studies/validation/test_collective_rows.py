"""What the bytes of a published row mean, by who published it."""

from typing import Any

import pytest
from tests.raising import raises

from trimaran_studies.validation.collectives import answer_collectives
from trimaran_studies.validation.measurement import Row


def _row(**fields: str) -> Row:
    given = {"machine": "dgx-a100", "gpu": "A100-SXM4-40GB", "n_gpus": "8", "op": "all_reduce", "bytes": "1048576"}
    return Row(row_id="7", family="collectives", fields=given | fields, measured=100.0, unit="us", anchor=None, flag="")


def _told(**fields: str) -> float:
    answer = answer_collectives(_row(**fields))
    assert answer.predicted is not None
    assert answer.low is not None
    assert answer.high is not None
    assert 0 < answer.low < answer.predicted < answer.high
    return answer.predicted


def test_nccl_tests_count_the_gathered_buffer_and_the_profiler_a_part_of_it() -> None:
    """An eighth of 2 GiB a rank: the same flight, and three copies' worth of memory traffic on top, under a half."""
    whole = _told(op="all_gather", bytes=str(2**31), source_file="nccl_tests_repo_logs.csv")
    part = _told(op="all_gather", bytes=str(2**28), source_file="mist_collectives.csv")
    assert 1.1 < part / whole < 1.5


def test_the_profiler_waits_for_the_host_before_every_call() -> None:
    """Some 30 us more than calls one after the other, where the message is small."""
    fields = {"n_gpus": "2", "bytes": "4096"}
    apart = _told(source_file="mist_collectives.csv", **fields) - _told(source_file="nccl_tests.csv", **fields)
    assert 15 < apart < 60


def test_one_thread_that_launches_everywhere_decides_small_messages() -> None:
    """34 to 36 us from 0 to 32 KiB on 8 A100 (microsoft/superbenchmark@700d650: tests/data/nccl_allreduce.log)."""
    times = [_told(machine="8x A100-SXM4-40GB, one node", bytes=size, source_file="nccl.csv") for size in ("0", "4096")]
    assert times == pytest.approx([34.5, 35.9], rel=0.1)


@pytest.mark.parametrize(("theirs", "ours"), [("alltoall", "all_to_all"), ("sendrecv", "send_recv")])
def test_other_names_of_operations(theirs: str, ours: str) -> None:
    assert _told(op=theirs) == _told(op=ours)


@pytest.mark.parametrize(
    ("fields", "code", "figures"),
    [
        ({"op": "all_sum"}, "collective-row.unknown-collective", {"match": r'\b7\b.*"all_sum"'}),
        ({"bytes": "many"}, "collective-row.not-a-number", {"match": r'\b7\b.*"many"'}),
        ({"n_gpus": "0"}, "collective-row.too-few", {"match": "n_gpus"}),
        (
            {"machine": "abacus", "gpu": "beads"},
            "collective-row.unknown-machine",
            {"match": r'\b7\b.*"abacus".*"beads"'},
        ),
    ],
)
def test_a_row_that_is_not_understood_is_named(fields: dict[str, str], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        answer_collectives(_row(**fields))
