"""Times to train from smaller ones: laws that hold for whatever was measured, and trainings worked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.raising import raises

from trimaran_studies.facts.benchmarks import benchmark_of
from trimaran_studies.published.rows import SUBMITTED, read_rows
from trimaran_studies.time_to_train import answer_times
from trimaran_studies.time_to_train.from_submissions import (
    BUILT,
    SIZE_ONLY,
    StepModel,
    TrainingWidth,
    epochs_of,
    forecast,
    logged,
    training_devices,
)
from trimaran_studies.time_to_train.from_tables import training_of
from trimaran_studies.time_to_train.submissions import Submission, read_submission
from trimaran_studies.validation.measurement import Answer, Row

HEADER = "round,benchmark,kind,global_batch,to_target_mean,ttt_min,n_accelerators,accelerator\n"


def line(kind: str, devices: int, batch: int, minutes: float, *, benchmark: str = "resnet", logged: str = "35") -> Row:
    fields = {
        "metric": SUBMITTED, "round": "v2.0", "model": benchmark, "machine": kind, "global_batch": str(batch),
        "n_gpus": str(devices), "gpu": "NVIDIA A100-SXM4-80GB", "to_target_mean": logged,
    }  # fmt: skip
    return Row(row_id=f"{kind}", family="time_to_train", fields=fields, measured=minutes, unit="min", anchor=None)


def submission(devices: int, batch: int, minutes: float = 28.6, **more: str) -> Submission:
    nodes = f"_n{devices // 8}" if devices > 8 else ""
    return read_submission(line(f"NVIDIA dgxa100{nodes}_mxnet", devices, batch, minutes, **more))


def of_table(
    devices: int, figure: float, *, model: str = "Classification/RN50v1.5", row_id: str = "", **more: str
) -> Row:
    fields = {
        "source_repo": "NVIDIA/DeepLearningExamples", "source_path": f"MxNet/{model}/README.md", "framework": "MxNet",
        "model": model, "precision": "FP32", "machine": "DGX-1", "gpu": "V100", "gpu_mem_gb": "16",
        "n_gpus": str(devices), "batch_per_gpu": "96", "mode": "train", **more,
    }  # fmt: skip
    name = row_id or f"{model}{devices}"
    return Row(row_id=name, family="time_to_train", fields=fields, measured=figure, unit="h", anchor=None)


def only(answers: tuple[Answer, ...], row_id: str) -> Answer:
    return next(found for found in answers if found.row.row_id == row_id)


def test_devices_share_samples_where_there_are_too_few() -> None:
    """84 samples on 768 devices: eight to each, so 672 train; on 42 devices, two samples each."""
    assert training_devices(84, 768) == (672, 0.125)
    assert training_devices(84, 42) == (42, 2.0)


def test_the_anchor_is_explained_by_its_own_factor() -> None:
    """A step of 125 ms: the factor that is found gives it back."""
    anchor, benchmark = submission(8, 3264), benchmark_of("resnet", 2.0)
    model = StepModel(anchor, benchmark)
    factor = model.factor(0.125)
    assert factor is not None
    assert model.step(factor).seconds == pytest.approx(0.125, rel=1e-3)
    assert model.factor(1e4) is None


@settings(max_examples=15, deadline=None)
@given(minutes=st.floats(10, 100), nodes=st.sampled_from([2, 8, 32]))
def test_more_devices_take_less_and_never_less_than_their_share(minutes: float, nodes: int) -> None:
    """At one batch: between the anchor's time training_devices by the devices, and the anchor's time."""
    benchmark, anchor = benchmark_of("resnet", 2.0), submission(8, 3264, minutes)
    found = forecast(anchor, submission(8 * nodes, 3264, 1.0), benchmark)
    assert minutes / nodes <= found.minutes < minutes
    assert found.baselines["linear"] == pytest.approx(minutes / nodes)


def test_what_was_measured_of_the_target_changes_nothing() -> None:
    """Neither its time nor its own log."""
    benchmark, anchor = benchmark_of("resnet", 2.0), submission(8, 3264)
    one = forecast(anchor, submission(64, 3264, 4.5, logged="35"), benchmark)
    other = forecast(anchor, submission(64, 3264, 9.0, logged="70"), benchmark)
    assert one == other


def test_epochs_follow_the_curve() -> None:
    """35 epochs at 1,632 and 56 at 32,768 in the catalog; the anchor ran as the curve says."""
    found = epochs_of(submission(8, 1632), submission(512, 32768), benchmark_of("resnet", 2.0))
    assert found.anchor == pytest.approx(35.0)
    assert found.target == pytest.approx(56.0, rel=0.05)


def test_a_recipe_that_takes_more_epochs_keeps_them() -> None:
    """60 epochs at 1,632 where 35 would do: at 32,768 it is not fewer; another submitter needs what the curve says."""
    anchor, target = submission(8, 1632, logged="60"), submission(512, 32768)
    benchmark = benchmark_of("resnet", 2.0)
    assert epochs_of(anchor, target, benchmark).target == pytest.approx(60.0)
    other = epochs_of(replace(anchor, submitter="other"), target, benchmark)
    assert other.anchor == 60.0
    assert other.target == pytest.approx(56.0, rel=0.05)


@pytest.mark.parametrize(
    ("benchmark", "told", "near", "epochs"),
    [
        ("resnet", 41.0, 37.0, 41.0),
        ("bert", 2_507_610.448, 0.016, 0.016),
        ("bert", 1.0, 0.016, None),
        ("dlrm", 1.9, 0.9, 0.9),
        ("resnet", 0.0, 37.0, None),
    ],
)
def test_logs_in_any_unit(benchmark: str, told: float, near: float, epochs: float | None) -> None:
    """Epochs, samples, epochs counted from one; what fits nothing is left out."""
    ran = replace(submission(8, 3264), logged=told)
    found = logged(ran, benchmark_of(benchmark, 1.1), near=near)
    assert found == (None if epochs is None else pytest.approx(epochs))


def test_far_beyond_the_curve_nothing_is_said() -> None:
    with raises("curve.batch-beyond-points"):
        epochs_of(submission(8, 3264), submission(4096, 262144), benchmark_of("resnet", 2.0))


def test_a_benchmark_without_a_curve_says_so_and_is_wider() -> None:
    """Four times the batch: 1.25² the epochs by the median of known curves."""
    anchor, target = submission(8, 96, logged="13", benchmark="maskrcnn"), submission(64, 384, benchmark="maskrcnn")
    found = epochs_of(anchor, target, benchmark_of("maskrcnn", 2.0))
    assert found.target == pytest.approx(13 * 1.25**2)
    assert found.deviation > 0.1
    assert "no convergence curve" in found.assumed


@pytest.mark.parametrize(("benchmark", "width"), [("resnet", BUILT), ("dlrm", SIZE_ONLY)])
def test_a_training_is_at_least_as_unsure_as_those_of_calibration(benchmark: str, width: TrainingWidth) -> None:
    """Eight times the devices, three doublings; what they add to the step, and the curve, come on top."""
    batch, minutes = (3264, 28.6) if benchmark == "resnet" else (55296, 1.9)
    anchor, target = (submission(devices, batch, minutes, benchmark=benchmark) for devices in (8, 64))
    found = forecast(anchor, target, benchmark_of(benchmark, 2.0))
    assert found.deviation >= width.deviation(3.0, found.step.added_s / found.step.seconds)
    other = forecast(replace(anchor, submitter="other"), target, benchmark_of(benchmark, 2.0))
    assert other.deviation > found.deviation


def test_ssd_is_another_network_since_round_two() -> None:
    assert benchmark_of("ssd", 1.1).name == "ssd"
    assert benchmark_of("ssd", 2.0).name == benchmark_of("retinanet", 5.1).name == "retinanet"
    assert benchmark_of("something new", 5.0).stand_in


def test_a_file_of_results_is_read_and_every_line_answered(tmp_path: Path) -> None:
    """Points of convergence and lines of nonsense are skipped, each with its reason."""
    path = tmp_path / "results.csv"
    path.write_text(
        HEADER
        + "v2.0,resnet,submission NVIDIA dgxa100_mxnet,3264,35.0,28.6,8,NVIDIA A100-SXM4-80GB\n"
        + "v2.0,resnet,submission NVIDIA dgxa100_n8_mxnet,3264,35.0,4.5,64,NVIDIA A100-SXM4-80GB\n"
        + "3.0.0,cosmoflow,reference convergence point,64,18.3,,,\n"
        + ",,,,,,,\n"
        + "vX,what,submission,abc,xyz,nan,-4,\n",
        encoding="utf-8",
    )
    answers = answer_times(read_rows(path, family="time_to_train"))
    assert len(answers) == 5
    assert [found.predicted is not None for found in answers] == [False, True, False, False, False]
    assert all(found.skipped for found in answers if found.predicted is None)
    large = answers[1]
    assert large.low is not None
    assert large.high is not None
    assert large.low < 4.5 < large.high
    assert large.anchors == (answers[0].row.row_id,)
    assert set(large.baselines or {}) >= {"linear", "log2"}


def test_tables_go_from_the_smallest_of_the_same_set_up() -> None:
    """Four and eight devices from one; the anchor itself from the 90 epochs of its script."""
    answers = answer_times([of_table(1, 84.5), of_table(4, 21.4), of_table(8, 10.7), of_table(8, 9.0, precision="AMP")])
    one, four, eight = answers[:3]
    assert four.anchors == eight.anchors == (one.row.row_id,)
    assert four.predicted is not None
    assert eight.predicted is not None
    assert 84.5 / 4 <= four.predicted <= 84.5 / 4 * 1.2
    assert 84.5 / 8 <= eight.predicted <= 84.5 / 8 * 1.3
    assert one.basis == "from epochs and data of its script"
    assert answers[3].anchors == ()


@pytest.mark.parametrize(("anchor", "target"), [("Training Time", "min"), ("min", "Training Time")])
def test_a_row_without_a_unit_has_that_of_the_other(anchor: str, target: str) -> None:
    """846 minutes on one device are about 107 on eight, whichever of the two says that they are minutes."""
    rows = [replace(of_table(1, 846.0), unit=anchor), replace(of_table(8, 107.0), unit=target)]
    told = answer_times([replace(row, unit="min") for row in rows])[1]
    found = answer_times(rows)[1]
    assert found.predicted == told.predicted
    assert found.predicted is not None
    assert 846 / 8 <= found.predicted <= 846 / 8 * 1.3


def test_a_training_without_length_or_anchor_is_skipped() -> None:
    found = answer_times([of_table(1, 3.0, model="Detection/SSD")])[0]
    assert found.predicted is None
    assert "no smaller set-up" in found.skipped


def test_a_truncated_figure_is_no_anchor() -> None:
    """ "1" of "1:50": whole numbers so small say nothing."""
    rows = [of_table(1, 1.0, model="Detection/SSD"), of_table(8, 19.0, model="Detection/SSD")]
    found = answer_times(rows)[1]
    assert found.predicted is None
    assert "truncated or rounded" in found.skipped


def test_a_batch_that_was_cut_at_its_comma() -> None:
    """ "384" of 16,384, where one device has 131,072: the step trains as many samples."""
    name = "Recommendation/WideAndDeep"
    rows = [
        of_table(1, 400.0, model=name, batch_per_gpu="072", source_path=f"TensorFlow/{name}/README.md"),
        of_table(8, 60.0, model=name, batch_per_gpu="384", source_path=f"TensorFlow/{name}/README.md"),
    ]
    found = answer_times(rows)[1]
    assert found.predicted is not None
    assert 50.0 <= found.predicted <= 120.0


def test_lengths_of_trainings() -> None:
    """90 epochs of 1,281,167; as many as the row says; and none where nobody says."""
    assert training_of("pytorch/classification/convnets/resnet50v1.5/readme.md", 2021.0) == 115_305_030
    assert training_of("pytorch/classification/convnets/resnet50v1.5/readme.md", 2021.0, "50") == 64_058_350
    assert training_of("pytorch/detection/ssd/readme.md", 2021.0) is None
