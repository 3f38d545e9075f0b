"""A crossover as a document, as lines and as a drawing."""

import dataclasses
import io
import json
from xml.etree import ElementTree

import pytest
from rich.console import Console

from trimaran.report.crossover import (
    Crossing,
    Crossover,
    Row,
    Sensitivity,
    TrainingWay,
    UsedCurve,
    Worker,
    crossover_document,
    print_crossover,
)
from trimaran.report.page.study import drawing_of

WORKER = Worker(
    width=2,
    batch=64,
    strategy="pp2 zero-bubble m4",
    speedup=1.5,
    interval=(1.4, 1.6),
    slow_links=1.3,
    fast_links=1.55,
)


def row(devices: int, speedup: float) -> Row:
    data = TrainingWay(devices=devices, width=1, local_batch=8, step_s=0.05, alone_s=0.04, need=4.0)
    hybrid = TrainingWay(devices=devices, width=2, local_batch=16, step_s=0.06, alone_s=0.05, need=4.0)
    return Row(
        devices=devices,
        data=data,
        hybrid=hybrid,
        speedup=speedup,
        interval=(0.9 * speedup, 1.1 * speedup),
        likely=0.25,
        equal_batch_limit=None,
        needed_epoch_ratio=1.33,
    )


def crossing(basis: str, devices: int | None) -> Crossing:
    return Crossing(
        width=2,
        basis=basis,  # type: ignore[arg-type]  # one of the literal's values
        worker=WORKER,
        needed_speedup=1.9,
        devices=devices,
        interval=(devices, None),
        never=0.2,
        rows=(row(8, 0.8), row(16, 1.1)),
        sensitivities=(Sensitivity(change="links twice as fast", devices=8),),
        reason="because",
    )


@pytest.fixture
def found() -> Crossover:
    return crossed()


def crossed() -> Crossover:
    return Crossover(
        job="inception_v3",
        cluster="dgx1-v100:2",
        device="NVIDIA Tesla V100 SXM2 16 GB",
        precision="fp32",
        software="pytorch:2026",
        local_batch=64,
        counts=(8, 16),
        curve=UsedCurve(
            name="mine", task="to 75 %", source="by hand", unit="epochs", range=(64, 512), projection=False
        ),
        crossings=(crossing("paper", 16), crossing("ours", None)),
        notes=(),
    )


def test_the_document_is_json_without_nan_and_never_is_null(found: Crossover) -> None:
    document = json.loads(json.dumps(crossover_document(found), allow_nan=False))
    paper, ours = document["crossings"]
    assert (paper["crossover_devices"], paper["crossover_interval"]) == (16, [16, None])
    assert (ours["crossover_devices"], ours["reason"]) == (None, "because")
    assert ours["rows"][1]["data_parallel"]["global_batch_size"] == 128
    assert ours["rows"][1]["hybrid"]["workers"] == 8


def test_without_a_curve_no_speedup_is_told(found: Crossover) -> None:
    bare = dataclasses.replace(found, curve=None)
    rows = crossover_document(bare)["crossings"][1]["rows"]
    assert {(entry["speedup_over_dp"], entry["likely"]) for entry in rows} == {(None, None)}
    assert "epochs × 1.33" in printed(bare)


def test_lines_fit_into_80_columns(found: Crossover) -> None:
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("1.50 (1.40–1.60)", "16 (16–never)", "8 of 2 × 16", "links twice as fast: 8", "because"):
        assert word in text


def test_the_drawing_is_svg_with_both_bases(found: Crossover) -> None:
    drawn = drawing_of(crossover_document(found))
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle/{http://www.w3.org/2000/svg}title")) == 4
    assert "var(" not in drawn
    assert "inception_v3 on dgx1-v100:2" in drawn


def test_without_a_curve_the_drawing_compares_samples_a_second(found: Crossover) -> None:
    drawn = drawing_of(crossover_document(dataclasses.replace(found, curve=None)))
    assert "samples a second, hybrid / data parallelism" in drawn
    # 8 devices: 4 workers of 16 samples in 0.06 s, against 8 of 8 in 0.05 s.
    assert "8 devices: 0.833" in drawn


def printed(found: Crossover) -> str:
    out = io.StringIO()
    print_crossover(Console(file=out, width=80, color_system=None, highlight=False), found)
    return out.getvalue()
