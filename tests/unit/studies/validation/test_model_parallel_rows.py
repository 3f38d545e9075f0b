"""Rows of divided transformers: what they were measured on, and jobs that they make."""

from dataclasses import replace

import pytest
from tests.raising import raises
from tests.unit.studies.validation.rows import published

from trimaran.base.errors import InputError
from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import (
    TableWork,
    answer_model_parallel,
    table_network,
    table_work,
    transformer_run,
)
from trimaran_studies.validation.regret import regret_jobs
from trimaran_studies.validation.validate import answer

GRID = {
    "source_repo": "VIA-Research/vTrain",
    "framework": "Megatron-DeepSpeed",
    "model": "GPT h2048 L20",
    "gpu": "A100",
    "machine": "single-node 8xA100",
    "seq_len": "1024",
}


def grid_row(row_id: str = "r", measured: float = 100.0, **degrees: object) -> Row:
    cells = {"n_gpus": 8, "global_batch": 16, "tp": 1, "pp": 1, "dp": 8, "micro_batch": 1} | degrees
    fields = GRID | {name: str(value) for name, value in cells.items()}
    return published("mp_step_time", measured=measured, unit="ms", row_id=row_id, **fields)


def test_degrees_of_a_row() -> None:
    run = transformer_run(grid_row(tp=2, pp=2, dp=2, micro_batch=2))
    degrees = run.degrees
    assert (degrees.tp, degrees.pp, degrees.dp) == (2, 2, 2)
    assert (degrees.microbatch, degrees.microbatches) == (2, 4)
    assert (run.shape.heads, run.shape.vocabulary) == (16, 50257)


def test_counts_are_read_as_people_write_them() -> None:
    row = grid_row(n_gpus="8.0", global_batch="16", tp="2 ", dp="4 replicas", seq_len="1,024")
    assert transformer_run(row).degrees == transformer_run(grid_row(tp=2, dp=4)).degrees
    assert transformer_run(row).shape.sequence == 1024


@pytest.mark.parametrize(
    "degrees",
    [
        {"tp": "-1"},
        {"tp": "1e12"},
        {"pp": "1000", "n_gpus": "1000", "dp": "1"},
        {"tp": "3", "dp": "5"},
        {"n_gpus": ""},
        {"model": "no such network"},
        {"n_gpus": "nan"},
    ],
)
def test_odd_degrees_are_refused_with_the_row(degrees: dict[str, str]) -> None:
    row = grid_row(**degrees)
    with pytest.raises(InputError):
        transformer_run(row)
    found = answer(row, anchor="none")
    assert found.predicted is None
    assert "failed" not in found.skipped


OTHER = {
    "source_repo": "somebody/benchmarks",
    "framework": "Megatron-LM 2024",
    "model": "LLAMA3_8B",
    "gpu": "H100",
    "precision": "bf16",
    "seq_len": "8192",
    "n_gpus": "8",
    "global_batch": "128",
    "micro_batch": "1",
    "recompute": "none",
}


def other_row(**cells: str) -> Row:
    fields = {name: value for name, value in (OTHER | cells).items() if value}
    return published("mp_throughput", measured=1e4, unit="tokens/s/GPU", row_id="r", **fields)


def test_what_a_row_of_any_source_says_of_sharding_and_recomputation_counts() -> None:
    degrees = transformer_run(other_row(zero="FULL_SHARD", recompute="full")).degrees
    assert (degrees.dp, degrees.zero, degrees.recomputed) == (8, 3, {"layers"})
    plain = answer(other_row(dp="8", zero="1"), anchor="none").predicted or 0.0
    again = answer(other_row(dp="8", zero="1", recompute="full"), anchor="none").predicted or 0.0
    assert 1.2 < plain / again < 1.4


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ({}, "tp, pp, cp, ep, dp, zero"),
        ({"zero": "sometimes"}, "zero"),
        ({"dp": "8", "recompute": "a bit"}, "recompute"),
        ({"dp": "8", "precision": "fp32"}, "precision"),
        ({"dp": "8", "precision": ""}, "precision"),
        ({"dp": "8", "gpu": "Quantum 9000"}, "Quantum 9000"),
        ({"dp": "8", "gpu": "Quantum 9000", "machine": "8xA100"}, "Quantum 9000"),
        ({"dp": "8", "seq_len": ""}, "seq_len"),
        ({"dp": "4"}, "do not make 8 devices"),
    ],
)
def test_a_row_that_leaves_its_step_open_is_refused(cells: dict[str, str], word: str) -> None:
    found = answer(other_row(**cells), anchor="none")
    assert found.predicted is None
    assert word in found.skipped


def test_what_a_row_does_not_say_widens_its_interval() -> None:
    def width(**cells: str) -> float:
        found = answer(other_row(dp="8", **cells), anchor="none")
        return (found.high or 0.0) / (found.low or 1.0)

    assert width() < width(recompute="") < width(recompute="", framework="")
    assert width() < width(framework="PyTorch FSDP")


def test_weights_are_frozen_only_where_they_would_not_fit_the_row_s_own_device() -> None:
    """405 billion parameters on 4 x 8 ranks: 12.7 billion of 2, 4 and 12 / 4 bytes are 114 GB of a B200's 180."""
    cells = {"source_repo": "NVIDIA-NeMo/Megatron-Bridge", "model": "LLAMA3.1_405B", "n_gpus": "128", "tp": "4"}
    cells |= {"pp": "8", "cp": "2", "precision": "FP8"}
    assert not transformer_run(other_row(gpu="B200", **cells)).program.frozen
    assert transformer_run(other_row(gpu="H100", **cells)).program.frozen


def test_a_run_that_would_not_fit_computes_layers_again() -> None:
    """39 billion parameters on 64 of the ranks of a replica: 11 GB of state; 48 layers of 4 sequences fit only so."""
    cells = {"model": "GPT h8192 L48", "n_gpus": 64, "tp": 8, "pp": 8, "dp": 1, "seq_len": 2048}
    big = transformer_run(grid_row(**cells, global_batch=64, micro_batch=8))
    assert big.degrees.recomputed == {"layers"}
    assert transformer_run(grid_row()).degrees.recomputed == frozenset()


@pytest.mark.parametrize(
    ("fields", "degrees"),
    [
        # Tables of ZeRO without a column for stages; with replicas alone where they say neither degree.
        ({"dp": "16", "global_batch": "768", "micro_batch": "48"}, (4, 1, 16, 3)),
        ({"zero": "3", "global_batch": "512", "micro_batch": "8"}, (1, 1, 64, 3)),
        ({"pp": "8", "dp": "2", "zero": "Y", "global_batch": "1024", "micro_batch": "4"}, (4, 8, 2, 1)),
        ({"pp": "16", "dp": "1", "zero": "N", "global_batch": "1024", "micro_batch": "4"}, (4, 16, 1, 0)),
    ],
)
def test_tables_of_jean_zay(fields: dict[str, str], degrees: tuple[int, int, int, str]) -> None:
    row = published(
        "mp_step_time",
        unit="s",
        source_repo="bigscience-workshop/bigscience",
        source_path="experiments/gpt2.md",
        model="GPT 52B",
        gpu="V100-32GB",
        n_gpus="64",
        **fields,
    )
    ran = transformer_run(row).degrees
    assert (ran.tp, ran.pp, ran.dp, ran.zero) == degrees
    found = answer_model_parallel(row)
    assert found.low is not None
    assert found.high is not None
    assert found.predicted is not None
    assert found.low < found.predicted < found.high


def table_row(path: str, config: str, row_id: str = "r") -> Row:
    """A row of a table without a column for its batch: nodes, tp, pp, dp, microbatch, seconds, TFLOP/s, memory."""
    nodes, tensor, pipeline, data, microbatch, seconds, *_ = config.split("|")
    fields = {"tp": tensor, "pp": pipeline, "dp": data, "micro_batch": microbatch, "n_nodes": nodes}
    return published(
        "mp_step_time",
        measured=float(seconds),
        unit="s",
        row_id=row_id,
        source_repo="bigscience-workshop/bigscience",
        source_path=f"experiments/{path}.md",
        model="GPT",
        gpu="V100-32GB",
        n_gpus=str(4 * int(nodes)),
        config=config,
        **fields,
    )


@pytest.mark.parametrize(
    ("path", "config", "batch", "recomputes"),
    [
        # 29 s · 47 TFLOP/s · 8 devices = 10.9 PFLOP = 8 · 1.3e9 · 512 · 2,048; 23 s · 44.4 TFLOP/s · 8 = three quarters
        ("tr3m-1B3", "2|1|1|8|1|29|47.0|16GB", 512, True),
        ("tr3m-1B3", "2|1|1|8|1|23|44.4|27GB", 512, False),
        ("tr3m-1B3", "", 512, True),
        # 681 s · 40 TFLOP/s · 128 devices = 3.49 EFLOP = 8 · 104e9 · 2,048 · 2,048
        ("tr8-104B", "32|4|16|2|1|681|40.0|31GB", 2048, True),
        ("tr8-104B", "32|4|16|2|1|n/a|40.0|31GB", 2048, True),
        ("gpt2", "16|7.5B|1|4|4|1|4|0.661s", 1024, True),
    ],
)
def test_work_that_a_table_counted_says_what_its_columns_do_not(
    path: str, config: str, batch: int, recomputes: bool
) -> None:
    shape = named_shape(table_network(path), sequence=2048, source="bigscience")
    assert shape is not None
    devices = 4 * int((config or "2").split("|")[0])
    row = published("mp_step_time", unit="s", source_path=f"experiments/{path}.md", config=config)
    assert table_work(row, shape, devices) == TableWork(batch=batch, recomputes=recomputes)


@pytest.mark.parametrize("config", ["32|4|32|1|1|256|54.5|31.5GB", "64|4|64|1|1|301|45.28|25GB"])
def test_a_row_of_a_network_that_was_run_by_mistake_is_skipped(config: str) -> None:
    with raises("model-parallel-row.left-out", match=r"\b58\b"):
        transformer_run(table_row("tr8-104B", config))


def test_runs_with_and_without_layers_computed_again_are_two_plans() -> None:
    rows = [table_row("tr3m-1B3", "2|1|1|8|1|29|47.0|16GB", "a"), table_row("tr3m-1B3", "2|1|1|8|1|23|44.4|27GB", "b")]
    (job,) = regret_jobs(answer_model_parallel(row) for row in rows)
    assert [plan.rows for plan in job.plans] == [("a",), ("b",)]
    assert job.chosen.rows == ("b",)


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("GPT h1024 L12", "VIA-Research/vTrain", (12, 1024, 16)),
        ("GPT h=1024 L=12", "", (12, 1024, 8)),
        ("gpt_h12288_l96_a96", "", (96, 12288, 96)),
        ("GPT 18B", "VIA-Research/vTrain", (40, 6144, 48)),
        ("GPT 3B", "VIA-Research/vTrain", (30, 3072, 32)),
        ("gpt_2_6B", "Dazz993/Mist", (32, 2560, 32)),
        ("GPT-3 175B", "", (96, 12288, 96)),
        ("Megatron GPT 530B", "", (105, 20480, 128)),
        ("meta-llama/Llama-2-70b-hf", "", (80, 8192, 64)),
        ("LLAMA3.1_405B", "", (126, 16384, 128)),
        ("llama-1.3B", "", (24, 2048, 16)),
        ("Qwen3_30B_a3B", "", (48, 2048, 32)),
        ("Nemotron-4 340B", "", (96, 18432, 96)),
        ("Falcon-40B", "", (60, 8192, 128)),
    ],
)
def test_networks_by_name(text: str, source: str, expected: tuple[int, int, int]) -> None:
    shape = named_shape(text, sequence=2048, source=source)
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.heads) == expected
    assert shape.sequence == 2048


@pytest.mark.parametrize("text", ["", "GPT", "ResNet-50", "T5 3B", "GPT 9000B"])
def test_networks_that_no_name_means(text: str) -> None:
    assert named_shape(text, sequence=1024) is None


def test_a_job_is_a_network_a_count_of_devices_and_a_batch() -> None:
    rows = [
        grid_row("a", 183.0),
        grid_row("b", 199.0, pp=2, dp=4, micro_batch=2),
        grid_row("c", 205.0, pp=2, dp=4, micro_batch=2),
        grid_row("d", 240.0, global_batch=32),
        grid_row("e", 90.0, model="GPT h1024 L20"),
        replace(grid_row("f", 1.0), flag="slip"),
        grid_row("g", 100.0, model="unknown"),
    ]
    jobs = regret_jobs(answer_model_parallel(row) for row in rows)
    assert [(job.network, job.batch, len(job.plans)) for job in jobs] == [
        ("GPT h2048 L20", "16", 2),
        ("GPT h2048 L20", "32", 1),
        ("GPT h1024 L20", "16", 1),
    ]
    twice = jobs[0].plans[1]
    assert (twice.rows, twice.measured, twice.degrees.tp * twice.degrees.pp) == (("b", "c"), 202.0, 2)
    assert jobs[0].best.rows == ("a",)


def test_another_trainer_is_another_job() -> None:
    """A table of Megatron-DeepSpeed says its replicas, one of Hugging Face's trainer no degree at all."""
    fields = {"source_repo": "bigscience-workshop/bigscience", "source_path": "experiments/gpt2.md", "model": "GPT 52B"}
    fields |= {"gpu": "V100-32GB", "n_gpus": "64", "global_batch": "768"}
    rows = [
        published("mp_step_time", unit="s", row_id="megatron", dp="16", micro_batch="48", **fields),
        published("mp_step_time", unit="s", row_id="hugging face", zero="3", micro_batch="12", **fields),
    ]
    jobs = regret_jobs(answer_model_parallel(row) for row in rows)
    assert [[plan.rows for plan in job.plans] for job in jobs] == [[("megatron",)], [("hugging face",)]]


def test_training_of_adapters_is_another_job_than_that_of_all_weights() -> None:
    """13 billion parameters fit on one H100 only frozen: 18 bytes of state for each would be 234 GB."""
    fields = {"source_repo": "NVIDIA/NeMo", "model": "LLAMA2-13B", "gpu": "DGX-H100", "machine": "DGX-H100"}
    fields |= {"precision": "FP8", "n_gpus": "8", "global_batch": "32", "seq_len": "4096", "tp": "1"}
    rows = [
        published("mp_throughput", unit="tokens/s/GPU", row_id=stages, pp=stages, **fields) for stages in ("1", "4")
    ]
    assert [transformer_run(row).program.frozen for row in rows] == [True, False]
    assert [len(job.plans) for job in regret_jobs(answer_model_parallel(row) for row in rows)] == [1, 1]


def test_throughput_is_turned_over() -> None:
    fields = GRID | {"n_gpus": "8", "global_batch": "16", "pp": "1", "tp": "1", "micro_batch": "1"}
    row = published("mp_throughput", measured=200.0, unit="samples/s", row_id="r", **fields)
    (job,) = regret_jobs([answer_model_parallel(row)])
    assert job.plans[0].measured == pytest.approx(1 / 200)
