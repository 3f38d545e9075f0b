"""Memory and time of sharded transformers, and Caffe's sums of outputs, against published figures."""

from dataclasses import dataclass

import pytest
from tests import builders

from trimaran.machine.find import find_machine
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.pricing.analytical.step_time import MachineExchange, TransformerProgram, step_constants, transformer_step
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.memory import answer_memory
from trimaran_studies.validation.model_parallel import answer_model_parallel

pytestmark = pytest.mark.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory that a test of Megatron-LM reports of its last rank, on 8 A100.

    Source: NVIDIA/Megatron-LM@d98e8a64:tests/functional_tests/test_cases/gpt/<name>/golden_values_<golden>.json,
    mem-max-allocated-bytes.

    Attributes:
        name: of the test, behind "gpt3_"
        golden: which of its files
        nbytes: [bytes]
    """

    name: str
    golden: str
    nbytes: int


PEAKS = (
    Peak(name="mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", golden="lts", nbytes=4673069568),
    Peak(name="mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer", golden="lts", nbytes=2711714304),
    Peak(name="mcore_te_tp1_pp1_uniform_full_recompute", golden="dev_dgx_a100", nbytes=2534070272),
    Peak(name="mcore_te_tp1_pp4_resume_torch_dist_swiglu", golden="dev_dgx_a100", nbytes=2194839040),
    Peak(name="mcore_te_tp1_pp4_vp1", golden="lts", nbytes=4119165440),
    Peak(name="mcore_te_tp1_pp4_vp1_tunable_overlap", golden="lts", nbytes=4593254400),
    Peak(name="mcore_te_tp1_pp4_vp1_uneven_pipeline", golden="lts", nbytes=2387253760),
    Peak(name="mcore_te_tp2_pp2", golden="dev_dgx_a100", nbytes=1900158464),
    Peak(name="mcore_te_tp2_pp2_cp2", golden="dev_dgx_a100", nbytes=857134592),
    Peak(name="mcore_te_tp2_pp2_mla", golden="dev_dgx_a100", nbytes=1216200192),
    Peak(name="mcore_te_tp2_zp_z3_resume_fsdp_dtensor", golden="dev_dgx_a100", nbytes=1463116800),
    Peak(name="mcore_te_tp4_pp1_dist_optimizer_overlap_grad_reduce", golden="dev_dgx_a100", nbytes=1515628032),
    Peak(name="7b_tp4_pp1_memory_speed", golden="dev_dgx_a100", nbytes=58188115968),
)
PEAK_TOLERANCE = 0.02


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_the_last_rank_of_a_training_test_needs_as_much_as_it_reports(peak: Peak) -> None:
    path = f"tests/functional_tests/test_cases/gpt/gpt3_{peak.name}/golden_values_{peak.golden}.json"
    fields = {"source_path": path, "gpu": "A100 80GB", "n_gpus": "8", "metric": "max_allocated"}
    row = Row(row_id="p", family="peak_memory", fields=fields, measured=peak.nbytes, unit="bytes", anchor=None)
    answer = answer_memory(row)
    assert answer.predicted == pytest.approx(peak.nbytes, rel=PEAK_TOLERANCE)
    assert answer.fits is True


@pytest.mark.parametrize(
    ("mode", "metric", "figure"),
    [
        ("none", "act", 59.25),
        ("seqsel", "act", 9.5625),
        ("seq", "relative activation memory", 66.84),
        ("sel", "relative activation memory", 49.42),
        ("seqsel", "relative activation memory", 16.18),
        ("full", "relative activation memory", 7.64),
    ],
)
def test_activations_of_22_billion_parameters_are_those_of_the_paper(mode: str, metric: str, figure: float) -> None:
    """Korthikanti et al., 2022, figures 1 and 7, as in calculon-ai/calculon@caa4b11f:calculon/llm/validation.py."""
    fields = {"source_repo": "calculon-ai/calculon", "model": "megatron-22B", "recompute": mode, "metric": metric}
    unit = "GiB per GPU" if metric == "act" else "% of no-recompute activation memory"
    row = Row(row_id="p", family="peak_memory", fields=fields, measured=figure, unit=unit, anchor=None)
    assert answer_memory(row).predicted == pytest.approx(figure, rel=0.01)


@pytest.mark.parametrize(
    ("network", "batch", "nbytes"),
    [
        ("alexnet", 128, 623628288),
        ("googlenet", 128, 6648061952),
        ("overfeat", 128, 999192064),
        ("vgg_a", 64, 4234799104),
    ],
)
def test_caffe_needs_as_much_for_data_as_its_log_says(network: str, batch: int, nbytes: int) -> None:
    """soumith/convnet-benchmarks@b458aab6:caffe/output_*.log. Its networks have no ReLU behind dense layers: 1 %."""
    fields = {"framework": "caffe", "model": network, "batch_per_gpu": str(batch)}
    row = Row(row_id="p", family="activation_memory", fields=fields, measured=nbytes, unit="bytes", anchor=None)
    assert answer_memory(row).predicted == pytest.approx(nbytes, rel=0.01)


NEMO = {"source_repo": "NVIDIA/NeMo", "gpu": "DGX-H100", "machine": "DGX-H100", "precision": "FP8"}
FOUNDRY = {
    "source_repo": "mosaicml/llm-foundry",
    "framework": "llm-foundry (PyTorch FSDP, Composer)",
    "precision": "bf16",
}


@pytest.mark.parametrize(
    ("fields", "tokens_per_s", "tolerance"),
    [
        (
            {
                **NEMO,
                "model": "GPT3-175B",
                "n_gpus": "128",
                "global_batch": "256",
                "seq_len": "2048",
                "tp": "4",
                "pp": "8",
            }
            | {"micro_batch": "1", "config": "vp=6 fsdp= primary"},
            716,
            0.15,
        ),
        (
            {
                **NEMO,
                "model": "LLAMA2-70B",
                "n_gpus": "64",
                "global_batch": "128",
                "seq_len": "4096",
                "tp": "4",
                "pp": "4",
            }
            | {"micro_batch": "1", "config": "vp=20 fsdp= primary"},
            1728,
            0.15,
        ),
        (
            {**FOUNDRY, "model": "MPT-3b", "gpu": "a100_80gb", "machine": "a100_80gb", "n_gpus": "8", "seq_len": "2048"}
            | {"global_batch": "160", "micro_batch": "10", "recompute": "False"},
            10811,
            0.15,
        ),
    ],
    ids=["gpt3-175b", "llama2-70b", "mpt-3b"],
)
def test_steps_of_sharded_networks_are_as_fast_as_published(
    fields: dict[str, str], tokens_per_s: float, tolerance: float
) -> None:
    """NVIDIA/NeMo: docs/source/performance/performance_summary.md; mosaicml/llm-foundry: scripts/train/benchmarking."""
    row = Row(
        row_id="p", family="mp_throughput", fields=fields, measured=tokens_per_s, unit="tokens/s/GPU", anchor=None
    )
    assert answer_model_parallel(row).predicted == pytest.approx(tokens_per_s, rel=tolerance)


@pytest.mark.parametrize(
    ("network", "layers", "degrees", "devices", "batch", "tflops"),
    [
        ("1.7B", (24, 2304, 24), (1, 1), 32, 512, 137),
        ("3.6B", (30, 3072, 32), (2, 1), 64, 512, 138),
        ("7.5B", (36, 4096, 32), (4, 1), 128, 512, 142),
        ("18.4B", (40, 6144, 48), (8, 1), 256, 1024, 135),
        ("39.1B", (48, 8192, 64), (8, 2), 512, 1536, 138),
        ("76.1B", (60, 10240, 80), (8, 4), 1024, 1792, 140),
        ("145.6B", (80, 12288, 96), (8, 8), 1536, 2304, 148),
        ("310.1B", (96, 16384, 128), (8, 16), 1920, 2160, 155),
        ("529.6B", (105, 20480, 128), (8, 35), 2520, 2520, 163),
        ("1008.0B", (128, 25600, 160), (8, 64), 3072, 3072, 163),
    ],
)
def test_utilization_of_networks_of_up_to_a_trillion_parameters(
    network: str, layers: tuple[int, int, int], degrees: tuple[int, int], devices: int, batch: int, tflops: float
) -> None:
    """Narayanan et al., SC 2021, table 1, on DGX A100: layers recomputed, the best microbatch and chunks.

    Nothing was fitted on it. Its FLOP of a step, 96 B s l h² (1 + s / 6h + V / 16 l h), count layers recomputed.
    """
    depth, hidden, heads = layers
    tensor, pipeline = degrees
    data = devices // (tensor * pipeline)
    shape = gpt_shape(layers=depth, hidden=hidden, heads=heads, vocabulary=51200, sequence=2048)
    machine = find_machine(f"dgx-a100:{devices // 8}")
    flops = 96 * batch * 2048 * depth * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * depth * hidden))
    found = []
    for microbatch, chunks in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)):
        count, rest = divmod(batch // data, microbatch)
        if rest or (chunks > 1 and (pipeline == 1 or count % pipeline or depth % (pipeline * chunks))):
            continue
        degrees = builders.degrees(
            tensor=tensor,
            pipeline=pipeline,
            chunks=chunks,
            data=data,
            microbatch=microbatch,
            microbatches=count,
            recomputed=frozenset({"layers"}),
        )
        step = transformer_step(
            shape,
            degrees,
            TransformerProgram(precision="fp16", attention="math", overlaps=False, gradient_bytes=2, year=2021.5),
            device=machine.node.device,
            exchange=MachineExchange(machine, ranks=degrees.devices, year=2021.5),
            constants=step_constants(),
        )
        found.append(flops / step.seconds / devices / 1e12)
    assert max(found) == pytest.approx(tflops, rel=0.15)
