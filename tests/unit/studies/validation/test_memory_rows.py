"""Rows of memory and of divided steps: what is answered, what is skipped and why."""

import statistics
from dataclasses import replace

import pytest
from tests.unit.studies.validation.rows import published

from trimaran.jobs.resolve import resolve
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes
from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.validation.field import field_run, trainer_memory_rows
from trimaran_studies.validation.memory import answer_memory, kind_of, memory_of_run
from trimaran_studies.validation.memory_traced import growth
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


LLAMA = {"model": "llama3:8b", "gpu": "H100", "seq_len": "8192", "micro_batch": "1", "precision": "bf16"}


@pytest.mark.parametrize("devices", [{}, {"n_gpus": "64"}])
def test_a_transformer_without_degrees_is_refused(devices: dict[str, str]) -> None:
    answer = answer_memory(published("peak_memory", unit="GiB", framework="torchtitan", **LLAMA, **devices))
    assert answer.predicted is None
    assert "dp, zero" in answer.skipped


def test_degrees_and_what_is_sharded_and_recomputed_count_for_any_source() -> None:
    """8 billion parameters, 16 bytes each: FSDP on 8 devices has an eighth of them, layers their inputs alone.

    Its streams keep what a rank sent of two units, too: of a layer and of the embedding, in 16 bits.
    """
    cells = {**LLAMA, "framework": "torchtitan", "n_gpus": "8", "dp": "8", "metric": "max_allocated"}

    def figure(**more: str) -> float:
        answer = answer_memory(published("peak_memory", unit="bytes", **{**cells, **more}))
        assert answer.predicted is not None, answer.skipped
        return answer.predicted

    sharded = figure(zero="3", recompute="none")
    again, selective = figure(zero="3", recompute="full"), figure(zero="3", recompute="selective")
    assert again < selective < sharded
    more = figure(zero="3", recompute="full", n_gpus="64", dp="64")
    sent = 2 * (218_112_000 + 128_256 * 4_096)
    assert again - more == pytest.approx((16 * 8.03e9 + sent) * (1 / 8 - 1 / 64), rel=0.001)
    assert figure(zero="3", recompute="none", metric="max_reserved") > sharded


def test_a_microbatch_that_is_not_said_is_asked_for() -> None:
    cells = {name: cell for name, cell in LLAMA.items() if name != "micro_batch"}
    answer = answer_memory(published("peak_memory", unit="GiB", n_gpus="8", dp="8", zero="3", **cells))
    assert "micro_batch" in answer.skipped


def test_a_device_that_no_catalog_has_is_refused() -> None:
    answer = answer_memory(published("peak_memory", unit="MB", model="LeNet", batch_per_gpu="64", gpu="XPU-9000"))
    assert answer.predicted is None
    assert "XPU-9000" in answer.skipped


def test_a_traced_network_grows_evenly_with_its_batch() -> None:
    """Two traces say what a trace of any other batch says."""
    grown = growth("lenet", half=False)
    tracer = JobTracer(replace(resolve("lenet"), precision="fp32"))
    for batch in (3, 64, 1000):
        assert grown.peak(batch) == live_bytes(tracer.trace(batch), KEEP_ALL).peak


def test_figures_of_a_device_that_a_test_is_not_made_for_are_refused() -> None:
    path = "tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release_sm_gb200/golden_values_lts_dgx_a100.json"
    answers = [
        answer_memory(published("peak_memory", unit="bytes", source_path=path, gpu=gpu)) for gpu in ("A100", "GB200")
    ]
    assert "file of another test" in answers[0].skipped
    assert answers[1].predicted is not None


def test_figures_that_an_older_container_wrote_have_its_attention() -> None:
    """Its deterministic attention keeps probabilities; the file was not written again when the container changed."""
    name = "gpt/gpt3_mcore_te_tp1_pp4_vp1_resume_torch_dist"
    older, newer = (
        answer_memory(
            published(
                "peak_memory",
                unit="bytes",
                gpu="A100 80GB",
                source_path=f"tests/functional_tests/test_cases/{name}{rest}/golden_values_lts_dgx_a100.json",
            )
        ).predicted
        for rest in ("", "_calculate_per_token_loss")
    )
    assert older is not None
    assert newer is not None
    assert older > 1.4 * newer


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


def test_what_trainers_reserved_is_predicted() -> None:
    errors = []
    for row in trainer_memory_rows():
        if kind_of(row) == "reserved":
            run, machine = field_run(row)
            errors.append(abs(memory_of_run(run, machine, "reserved") / 2**30 / row.measured - 1))
    assert len(errors) == 30
    assert statistics.median(errors) < 0.05
    assert max(errors) < 0.12
