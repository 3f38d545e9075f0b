"""Rows that differ in what feeds them, worked by hand: step = max(group without waiting, samples / rate)."""

import pytest
from tests.unit.studies.validation.rows import published

from trimaran_studies.published.rows import wanted
from trimaran_studies.validation.loader_rates import LoaderSetting, answer_feeding, loader_groups, loader_setting
from trimaran_studies.validation.measurement import Anchor, Answer, Row


def _row(row_id: str, measured: float, devices: int, **fields: str) -> Row:
    same = {
        "source_repo": "tensorflow/docs",
        "framework": "TensorFlow 1.1",
        "model": "ResNet-50",
        "precision": "FP32",
        "machine": "DGX-1 (P100)",
        "gpu": "P100",
        "batch_per_gpu": "64",
        "n_nodes": "1",
    }
    return published(measured=measured, row_id=row_id, **(same | {"n_gpus": str(devices)} | fields))


def _synthetic(measured: float, devices: int, **fields: str) -> Row:
    return _row(f"s{devices}", measured, devices, dataset="ImageNet synthetic", **fields)


def _real(measured: float, devices: int, **fields: str) -> Row:
    return _row(f"r{devices}", measured, devices, dataset="ImageNet real", **fields)


def _answers(*rows: Row, anchor: Anchor = "single") -> dict[str, Answer]:
    return {found.row.row_id: found for found in answer_feeding(rows, anchor=anchor)}


def test_one_rate_predicts_the_other_rows_of_its_loader() -> None:
    """Eight devices were handed 310 images/s where they could have used 800: that is the loader's rate. So four of
    them, which could use 400, get 310; one and two, which use 100 and 200, wait for nothing."""
    synthetic = [_synthetic(100.0 * devices, devices) for devices in (1, 2, 4, 8)]
    real = [_real(measured, devices) for devices, measured in ((1, 99.0), (2, 198.0), (4, 305.0), (8, 310.0))]
    found = _answers(*synthetic, *real)
    predicted = {row_id: answer.predicted for row_id, answer in found.items()}
    assert {name: predicted[name] for name in ("r1", "r2", "r4")} == pytest.approx({"r1": 100, "r2": 200, "r4": 310})
    assert found["r4"].anchors == ("s4", "r8")
    assert found["r4"].baselines == pytest.approx({"data always there": 400.0})
    low, high = found["r4"].low, found["r4"].high
    assert low is not None
    assert high is not None
    assert low < 310 < high
    assert predicted["r8"] is None
    assert "310 samples/s of the host" in found["r8"].skipped
    assert all(predicted[name] is None for name in ("s1", "s2", "s4", "s8"))
    assert {answer.row.family for answer in found.values()} == {"feeding"}


def test_a_loader_that_never_limits_is_not_fitted() -> None:
    """Nobody waits 5 %: every row is predicted as with synthetic data, the fullest one too."""
    found = _answers(*(_synthetic(100.0 * n, n) for n in (4, 8)), *(_real(97.0 * n, n) for n in (4, 8)))
    assert [found[name].predicted for name in ("r4", "r8")] == pytest.approx([400.0, 800.0])


def test_a_rate_holds_for_another_network_on_the_same_machine() -> None:
    """A loader hands over photographs, whatever is trained on them."""
    other = {"model": "InceptionV3"}
    rows = [_synthetic(800.0, 8), _real(310.0, 8)]
    rows += [_row("so", 500.0, 8, dataset="synthetic", **other), _row("ro", 300.0, 8, dataset="real", **other)]
    assert _answers(*rows)["ro"].predicted == pytest.approx(310.0)
    elsewhere = [_row("so", 500.0, 8, dataset="synthetic", machine="DGX-1 (V100)", gpu="V100", **other)]
    elsewhere += [_row("ro", 490.0, 8, dataset="real", machine="DGX-1 (V100)", gpu="V100", **other)]
    assert _answers(*rows[:2], *elsewhere)["ro"].predicted == pytest.approx(500.0)


def test_workers_have_a_rate_each() -> None:
    """Eight workers handed over 1,080 images/s, 135 each: 40 of them would do for 5,400, so 40 never wait."""
    rows = [_synthetic(1350.0, 4, config="x"), _synthetic(2700.0, 8, config="x")]
    rows += [_row("a", 1080.0, 4, config="x, worker=8"), _row("b", 1070.0, 8, config="x, worker=8")]
    rows += [_row("c", 2630.0, 8, config="x, worker=40")]
    found = _answers(*rows)
    assert "135 samples/s of a worker" in found["a"].skipped
    assert found["b"].predicted == pytest.approx(1080.0)
    assert found["c"].predicted == pytest.approx(2700.0)


def test_processes_that_load_for_themselves_wait_for_all_of_it() -> None:
    """A worker hands over 135 images/s, so that 64 take a process 474 ms, beside which it trains 64 in 190 ms.

    That is 385 images/s of four devices; a row without workers is no row of a host that hands over so little.
    """
    rows = [_synthetic(1350.0, 4, config="x"), _row("a", 1080.0, 4, config="x, worker=8")]
    found = _answers(*rows, _row("n", 390.0, 4, config="x, workers=0"))
    assert "135 samples/s of a worker" in found["a"].skipped
    assert found["n"].predicted == pytest.approx(4 * 64 / (4 * 64 / 1350 + 64 / 135))
    assert found["n"].basis == "own loader, no workers"
    alone = _answers(rows[0], _row("n", 390.0, 4, config="x, workers=0"))["n"]
    assert (alone.predicted, "load for themselves" in alone.skipped) == (None, True)


def test_without_anchors_no_figure_stands_for_the_step() -> None:
    """Rows of synthetic data are predicted as others are, and none is an anchor; a modelled step has its interval."""
    rows = [_synthetic(218.0, 1), _real(217.0, 1), _synthetic(1600.0, 8), _real(310.0, 8), _real(309.0, 4)]
    found = _answers(*rows, anchor="none")
    assert not {anchor for name in ("s1", "r1", "s8") for anchor in found[name].anchors}
    assert found["s1"].predicted == found["r1"].predicted
    assert found["r4"].anchors == ("r8",)
    assert found["r4"].predicted == pytest.approx(310.0)
    one = found["s1"]
    assert one.low is not None
    assert one.predicted is not None
    assert one.low < 0.8 * one.predicted


def test_a_loader_that_limits_elsewhere_limits_where_it_hands_over_as_much() -> None:
    """Eight workers hand over 1,070 to devices that could use 2,700, and a hundredth more to four that could use 1,100.

    Had four been handed 1,200, the eight would wait for something else.
    """
    rows = [_synthetic(1100.0, 4, config="x"), _synthetic(2700.0, 8, config="x")]
    rows += [_row("b", 1070.0, 8, config="x, worker=8")]
    near = _answers(*rows, _row("a", 1080.0, 4, config="x, worker=8"))
    assert "134 samples/s of a worker" in near["b"].skipped
    assert near["a"].predicted == pytest.approx(1070.0)
    far = _answers(*rows, _row("a", 1200.0, 4, config="x, worker=8"))
    assert far["b"].predicted == pytest.approx(2700.0)


def test_rows_with_one_loader_are_left_to_other_families() -> None:
    rows = [_real(100.0, 1), _real(200.0, 2), _real(390.0, 4)]
    assert _answers(*rows) == {}
    assert [one.row.row_id for one in loader_groups([*rows, _synthetic(400.0, 4)])] == ["r1", "r2", "r4", "s4"]


def test_a_slip_of_the_source_is_left_out() -> None:
    flagged = Row(
        row_id="x",
        family="dp_throughput",
        fields=_synthetic(1.0, 1).fields,
        measured=1.0,
        unit="",
        anchor=None,
        flag="slip",
    )
    assert _answers(_real(100.0, 1), flagged) == {}


@pytest.mark.parametrize(
    ("config", "dataset", "setting"),
    [
        ("ResNet50 v1.5 batch_size = 128, worker=8 | Use DALI", "", LoaderSetting(kind="dali", workers=8)),
        ("batch_size = 128, worker=48 | use torch.utils.data.DataLoader", "", LoaderSetting(kind="own", workers=48)),
        ("synthetic data & batch size = 224 & withxla", "", LoaderSetting(kind="synthetic")),
        ("variable_update=replicated", "ImageNet synthetic", LoaderSetting(kind="synthetic")),
        ("variable_update=replicated", "ImageNet real", LoaderSetting(kind="own")),
        ("batch_size = 128, workers=0", "", LoaderSetting(kind="own", workers=0)),
    ],
)
def test_words_of_a_row(config: str, dataset: str, setting: LoaderSetting) -> None:
    assert loader_setting(_row("x", 1.0, 1, config=config, dataset=dataset)) == setting


def test_a_row_that_is_not_understood_says_why() -> None:
    """The other rows keep their answers."""
    rows = [_synthetic(100.0, 1, gpu="no such device", machine=""), _real(99.0, 1, gpu="no such device", machine="")]
    found = _answers(*rows, _synthetic(200.0, 2), _real(198.0, 2))
    assert "no device of the catalog" in found["r1"].skipped
    assert found["r2"].predicted == pytest.approx(200.0)


def test_the_family_asks_for_steps() -> None:
    assert [name for name in ("dp_throughput", "dp_step_time", "collectives") if wanted(name, "feeding")] == [
        "dp_throughput",
        "dp_step_time",
    ]


def test_a_figure_of_nothing_is_skipped() -> None:
    """Without a twin, one device's figure is what others start from."""
    found = _answers(_synthetic(0.0, 1), _real(99.0, 1))
    assert "cannot be compared" in found["s1"].skipped
    assert "other rows are predicted from it" in found["r1"].skipped


def test_rows_that_are_numbered_alike_are_told_apart() -> None:
    """Files without ids number their rows by lines: only the row of 310 images/s is what the rate was taken from."""
    synthetic = [_synthetic(800.0, 8), _synthetic(400.0, 4)]
    real = [_row("7", measured, devices, dataset="ImageNet real") for devices, measured in ((8, 310.0), (4, 305.0))]
    found = answer_feeding([*synthetic, *real], anchor="single")
    assert [answer.predicted for answer in found] == [None, None, None, pytest.approx(310.0)]
