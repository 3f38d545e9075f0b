"""A crossover as a document, as lines and as a drawing."""

import dataclasses
import io
import json
from xml.etree import ElementTree

import pytest

from trimaran.program.json_files import to_plain
from trimaran.report.crossover import (
    Crossing,
    Crossover,
    Row,
    Sensitivity,
    TrainingWay,
    UsedCurve,
    Worker,
    crossover_page,
    verdict_line,
)
from trimaran.report.page.study import drawing_of
from trimaran.report.page.terminal import SCREEN, print_page
from trimaran.report.tables import make_console

WORKER = Worker(
    devices=2,
    local_batch_size=64,
    strategy="pp2 zero-bubble m4",
    speedup=1.5,
    speedup_interval=(1.4, 1.6),
    speedup_links_half=1.3,
    speedup_links_double=1.55,
)


def way(devices: int, width: int, batch: int, *, step_s: float) -> TrainingWay:
    return TrainingWay(
        devices=devices,
        model_parallel_width=width,
        local_batch_size=batch,
        step_time_s=step_s,
        worker_alone_s=step_s - 0.01,
        need=4.0,
    )


def row(devices: int, speedup: float) -> Row:
    data = way(devices, 1, 8, step_s=0.05)
    hybrid = way(devices, 2, 16, step_s=0.06)
    return Row(
        devices=devices,
        data_parallel=data,
        hybrid=hybrid,
        speedup_over_dp=speedup,
        speedup_interval=(0.9 * speedup, 1.1 * speedup),
        likely=0.25,
        equal_batch_limit=None,
        needed_epoch_ratio=1.33,
    )


def crossing(basis: str, devices: int | None) -> Crossing:
    return Crossing(
        model_parallel_width=2,
        basis=basis,  # type: ignore[arg-type]  # one of the literal's values
        worker=WORKER,
        needed_speedup=1.9,
        crossover_devices=devices,
        crossover_interval=(devices, None),
        share_never=0.2,
        rows=(row(8, 0.8), row(16, 1.1)),
        sensitivity=(Sensitivity(change="links twice as fast", crossover_devices=8),),
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
        local_batch_size=64,
        devices=(8, 16),
        curve=UsedCurve(
            name="mine", task="to 75 %", source="by hand", unit="epochs", range=(64, 512), projection=False
        ),
        crossings=(crossing("paper", 16), crossing("ours", None)),
        notes=(),
    )


def test_the_document_is_json_without_nan_and_never_is_null(found: Crossover) -> None:
    document = json.loads(json.dumps(to_plain(found), allow_nan=False))
    paper, ours = document["crossings"]
    assert (paper["crossover_devices"], paper["crossover_interval"]) == (16, [16, None])
    assert (ours["crossover_devices"], ours["reason"]) == (None, "because")
    assert ours["rows"][1]["data_parallel"]["global_batch_size"] == 128
    assert ours["rows"][1]["hybrid"]["workers"] == 8


def test_without_a_curve_no_speedup_is_told(found: Crossover) -> None:
    bare = dataclasses.replace(found, curve=None)
    assert "epochs × 1.33" in printed(bare)


def test_lines_fit_into_80_columns(found: Crossover) -> None:
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("1.50 (1.40–1.60)", "16 (16–never)", "8 of 2 × 16", "links twice as fast: 8", "because"):
        assert word in text


def test_the_drawing_is_svg_with_both_bases(found: Crossover) -> None:
    drawn = drawing_of(found)
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle/{http://www.w3.org/2000/svg}title")) == 4
    assert "var(" not in drawn
    assert "inception_v3 on dgx1-v100:2" in drawn


def test_without_a_curve_the_drawing_compares_samples_a_second(found: Crossover) -> None:
    untold = dict.fromkeys(("speedup_over_dp", "speedup_interval", "likely"))
    crossings = tuple(
        dataclasses.replace(one, rows=tuple(dataclasses.replace(row, **untold) for row in one.rows))  # type: ignore[arg-type]
        for one in found.crossings
    )
    drawn = drawing_of(dataclasses.replace(found, curve=None, crossings=crossings))
    assert "samples a second, hybrid / data parallelism" in drawn
    # 8 devices: 4 workers of 16 samples in 0.06 s, against 8 of 8 in 0.05 s.
    assert "8 devices: 0.833" in drawn


def test_a_screen_has_the_verdict_first_and_names_the_curve_once_however_much_there_is(found: Crossover) -> None:
    assert found.curve is not None
    curve = dataclasses.replace(found.curve, name="a-curve", warnings=("that batch was not measured " * 9,) * 9)
    many = dataclasses.replace(found, curve=curve, crossings=found.crossings * 9)
    for page in (found, many):
        lines = str(page).splitlines()
        assert len(lines) <= SCREEN - 3
        assert max(map(len, lines)) <= 80
        assert " ".join(lines).startswith(verdict_line(page)[:70])
        assert lines[-1].startswith("--verbose: ") or lines[-2].startswith("--verbose: ")
    assert str(many).count("a-curve") == 1


def printed(found: Crossover) -> str:
    out = io.StringIO()
    print_page(make_console(file=out, width=80, verbose=True), crossover_page(found))
    return out.getvalue()
