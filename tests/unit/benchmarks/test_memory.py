"""What the benchmark of memory does beside measuring: its order, its rows, its table, going on where it stopped."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.memory.cases import ARMS, CASES, ORACLE, SUBSETS, Arm, Case, cells, reduce
from benchmarks.memory.rows import Rows
from benchmarks.memory.table import HEADER, LEGEND, line, summary

VGG, RESNET = (next(case for case in CASES if case.name == name) for name in ("vgg16-fp32", "resnet50-tf32"))


def arm(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def row(**changes: Any) -> dict[str, Any]:
    return {"status": "ok", "step_s": 1.0, "held": True, "peak_bytes": 2**33, "likeness": {"equal": True}} | changes


def test_oracles_come_first_then_ours_over_all_cases() -> None:
    pairs = [(case.name, arm.name) for case, arm in cells([VGG, RESNET], [arm("checkpoint"), arm("ours")])]
    assert pairs == [
        ("vgg16-fp32", ORACLE),
        ("resnet50-tf32", ORACLE),
        ("vgg16-fp32", "ours"),
        ("resnet50-tf32", "ours"),
        ("vgg16-fp32", "checkpoint"),
        ("resnet50-tf32", "checkpoint"),
    ]


def test_every_case_has_one_kind_of_budget_and_subsets_name_cases() -> None:
    assert all((case.card_bytes is None) != (case.share is None) for case in CASES)
    names = {case.name for case in CASES}
    assert all(set(subset) <= names for subset in SUBSETS.values())
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert ARMS[0].name == ORACLE


def test_a_reduced_case_has_a_share_of_what_its_own_oracle_takes() -> None:
    assert reduce(VGG).card_bytes is None
    assert reduce(VGG).share == 0.9


def test_rows_are_set_beside_the_oracle_and_the_limit(tmp_path: Path) -> None:
    """Oracle 2 s, ours 2.2 s where 5 % slower is the limit: 1.1 / 1.05 = 1.048."""
    rows = Rows(tmp_path / "rows", resume=None)
    assert rows.add(VGG, arm(ORACLE), row(step_s=2.0))["slowdown"] == 0.0
    ours = rows.add(VGG, arm("ours"), row(step_s=2.2, limit_slowdown=0.05))
    assert ours["slowdown"] == pytest.approx(0.1)
    assert ours["ratio_to_limit"] == pytest.approx(1.1 / 1.05)
    other = rows.add(VGG, arm("checkpoint"), row(step_s=3.0))
    assert other["limit_s"] == pytest.approx(2.1)
    assert other["ratio_to_limit"] == pytest.approx(3 / 2.1)


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What ran out of memory is a result. What failed, or was cut off in the middle of its line, is tried again."""
    earlier = Rows(tmp_path / "earlier", resume=None)
    earlier.add(VGG, arm(ORACLE), row())
    earlier.add(VGG, arm("checkpoint"), {"status": "out of memory", "error": "CUDA"})
    earlier.add(VGG, arm("ours"), {"status": "failed", "error": "?"})
    with (tmp_path / "earlier").open("a") as file:
        file.write('{"case": "vgg16-fp32", "arm": "vdnn_a')
    rows = Rows(tmp_path / "now", resume=tmp_path / "earlier")
    assert rows.has(VGG, arm(ORACLE))
    assert rows.has(VGG, arm("checkpoint"))
    assert not rows.has(VGG, arm("ours"))
    assert not rows.has(RESNET, arm(ORACLE))
    assert not rows.has(reduce(VGG), arm(ORACLE))
    kept = [json.loads(text) for text in (tmp_path / "now").read_text().splitlines()]
    assert [one["arm"] for one in kept] == [ORACLE, "checkpoint"]


def test_a_line_has_the_columns_of_the_header() -> None:
    whole = row(
        case="vgg16-fp32",
        arm="ours",
        slowdown=0.0123,
        ratio_to_limit=1.007,
        budget_bytes=12 * 2**30,
        to_host_bytes=3 * 2**20,
        stall_s=0.001,
    )
    cells = line(whole).split()
    assert cells == [
        "vgg16-fp32", "ours", "1000.0ms", "+1.2%", "1.007", "8.00G", "12.00G", "yes", "3.0M", "-", "1.0ms", "yes",
    ]  # fmt: skip
    assert len(cells) == len(HEADER.split())
    assert max(len(text) for text in (HEADER, *LEGEND.splitlines())) <= 120


def test_a_broken_budget_and_unlike_gradients_are_seen() -> None:
    text = line(row(case="c", arm="a", slowdown=0.0, held=False, likeness={"equal": False, "gradients": 3}))
    assert "NO" in text.split()[7]
    assert text.split()[-1] == "NO"
    statistics = {"equal": False, "gradients": 0, "buffers": 5}
    assert line(row(case="c", arm="a", slowdown=0.0, likeness=statistics)).split()[-1] == "stats"


def test_what_did_not_run_says_why() -> None:
    text = line({"case": "c", "arm": "a", "status": "out of memory", "error": "CUDA out of memory. Tried\nmore"})
    assert "out of memory: CUDA out of memory. Tried" in text


def test_the_summary_has_the_limit_and_leaves_out_what_broke_its_budget() -> None:
    rows = [
        row(case="c", arm=ORACLE, slowdown=0.0),
        row(case="c", arm="ours", slowdown=0.02, step_s=1.02, limit_slowdown=0.01),
        row(case="c", arm="checkpoint", slowdown=0.3, step_s=1.3),
        row(case="c", arm="vdnn_all", slowdown=0.01, step_s=1.01, held=False),
    ]
    assert summary(rows) == "c: ours +2.0%, checkpoint +30.0%, limit +1.0%"


@pytest.mark.parametrize("case", [reduce(case) for case in CASES], ids=lambda case: case.name)
def test_reduced_networks_train(case: Case) -> None:
    from benchmarks.memory.foreign import checkpointed
    from benchmarks.memory.models import build, prepare

    training = prepare(*build(case), case, "cpu")
    first = float(training.step())
    again = prepare(*build(case), case, "cpu")
    assert float(checkpointed(again).step()) == first
