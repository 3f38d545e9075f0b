"""Rows of memory and of divided steps: what is answered, what is skipped and why."""

from tests.unit.studies.validation.rows import published

from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.validation.memory import answer_memory
from trimaran_studies.validation.model_parallel import answer_model_parallel, transformer_run

NEMO = {"source_repo": "NVIDIA/NeMo", "gpu": "DGX-H100", "machine": "DGX-H100", "precision": "FP8", "seq_len": "4096"}


def test_a_unit_that_is_none_of_memory_is_skipped() -> None:
    answer = answer_memory(published("peak_memory", unit="images/s", model="resnet50"))
    assert answer.predicted is None
    assert "images/s" in answer.skipped


def test_a_network_that_is_not_ours_is_skipped_by_name() -> None:
    answer = answer_memory(published("peak_memory", unit="GB", model="yolov9", batch_per_gpu="8"))
    assert answer.predicted is None
    assert "yolov9" in answer.skipped


def test_a_network_of_ours_is_traced() -> None:
    """LeNet's 64 images: less than a hundred megabytes, more than its images and parameters."""
    answer = answer_memory(published("peak_memory", unit="MB", model="LeNet", batch_per_gpu="64"))
    assert answer.predicted is not None
    assert 1.0 < answer.predicted < 100.0


def test_intervals_stand_around_the_prediction() -> None:
    path = "tests/functional_tests/test_cases/gpt/gpt3_mcore_tp4_pp1/golden_values_lts.json"
    answer = answer_memory(published("peak_memory", unit="bytes", source_path=path, gpu="A100 80GB"))
    assert answer.low is not None
    assert answer.high is not None
    assert answer.predicted is not None
    assert answer.low < answer.predicted < answer.high


def test_a_step_that_does_not_fit_a_device_is_said_not_to_fit() -> None:
    """GPT of 7 billion parameters needs 58 GB on 4 devices: not of 40 GB each."""
    path = "tests/functional_tests/test_cases/gpt/gpt3_7b_tp4_pp1_memory_speed/golden_values_x.json"
    cells = {"source_path": path, "n_gpus": "8", "metric": "max_allocated"}
    fits = [
        answer_memory(published("peak_memory", unit="bytes", gpu="A100", gpu_mem_gb=size, **cells)).fits
        for size in ("40", "80")
    ]
    assert fits == [False, True]


def test_degrees_that_exceed_the_devices_are_skipped() -> None:
    row = published("mp_throughput", unit="tokens/s/GPU", model="LLAMA2-70B", n_gpus="8", tp="4", pp="4", **NEMO)
    answer = answer_model_parallel(row)
    assert answer.predicted is None
    assert "do not fit on 8 devices" in answer.skipped


def test_weights_whose_gradients_do_not_fit_are_taken_as_frozen() -> None:
    """70 billion parameters on 8 devices of 80 GB: 18 bytes each do not fit, so only few added ones are trained."""
    cells = {**NEMO, "model": "LLAMA2-70B", "global_batch": "32", "micro_batch": "1"}
    runs = [
        transformer_run(published("mp_throughput", unit="tokens/s/GPU", tp=tensor, pp="4", n_gpus=devices, **cells))
        for tensor, devices in (("2", "8"), ("4", "64"))
    ]
    assert [run.program.frozen for run in runs] == [True, False]


def test_a_shape_can_be_said_in_the_row() -> None:
    shape = named_shape("GPT h2048 L20", sequence=1024)
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.heads) == (20, 2048, 16)


def test_names_that_no_table_holds_have_no_shape() -> None:
    assert named_shape("Nemotron_3_Nano", sequence=4096) is None
