"""What rows were measured on: batches, precisions, machines and scripts, from rows as sources write them."""

import pytest
from tests.raising import raises
from tests.unit.studies.validation.rows import published

from trimaran_studies.validation.measurement import accumulation, figure_of, whole
from trimaran_studies.validation.setups import recipe_of, understand

NVIDIA = {"source_repo": "NVIDIA/DeepLearningExamples", "framework": "PyTorch", "machine": "DGX-1", "gpu": "V100"}
BERT = {**NVIDIA, "model": "LanguageModeling/BERT", "gpu_mem_gb": "32", "n_gpus": "8"}


def test_a_batch_of_accumulated_steps_is_taken_apart() -> None:
    """4096 sequences a device in 128 steps of FP32 are 32 in each; in 64 steps of 16 bits they are 64."""
    config = "Accumulation steps (FP32 and FP16)=128 and 64"
    full = published(**BERT, precision="FP32", batch_per_gpu="4096", seq_len="128", config=config)
    half = published(**BERT, precision="AMP", batch_per_gpu="4096", seq_len="128", config=config)
    assert [(setup.local_batch, setup.accumulation) for setup in (understand(full), understand(half))] == [
        (32, 128),
        (64, 64),
    ]


def test_a_batch_that_is_one_of_several_microbatches_is_kept() -> None:
    row = published(
        **{**BERT, "n_gpus": "1", "machine": "DGX-A100", "gpu": "A100", "gpu_mem_gb": "80"},
        precision="TF32",
        batch_per_gpu="176",
        global_batch="90112",
        seq_len="128",
        config="Gradient Accumulation: mixed precision, TF32=256 , 512",
    )
    setup = understand(row)
    assert (setup.local_batch, setup.accumulation, setup.precision) == (176, 512, "tf32")


@pytest.mark.parametrize(
    ("cell", "precision", "number"),
    [
        ("128 (TF) / 256 (AMP)", "AMP", 256),
        ("128 (TF) / 256 (AMP)", "TF32", 128),
        ("64@AMP, 32@FP32", "FP32", 32),
        ("24, 40", "BF16", 40),
        ("N/A", "FP32", None),
    ],
)
def test_a_cell_of_two_precisions(cell: str, precision: str, number: int | None) -> None:
    assert whole(published(batch_per_gpu=cell, precision=precision), "batch_per_gpu") == number


def test_the_word_samples_is_no_precision() -> None:
    row = published(unit="samples/s", precision="FP32", config="Accumulation steps (FP32 and FP16)=8 and 4")
    assert accumulation(row) == 8


def test_fp32_of_nvidias_containers_is_tf32_where_the_device_has_it() -> None:
    ampere = {**NVIDIA, "machine": "DGX-A100", "gpu": "A100", "gpu_mem_gb": "80"}
    rows = [published(**given, model="resnet50", precision="FP32", batch_per_gpu="64") for given in (NVIDIA, ampere)]
    assert [understand(row).precision for row in rows] == ["fp32", "tf32"]


def test_a_global_batch_is_divided() -> None:
    row = published(
        source_repo="lambdal/deeplearning-benchmark",
        framework="PyTorch (NVIDIA DLE scripts)",
        model="gnmt",
        precision="FP16",
        machine="4x RTX A6000",
        gpu="RTX A6000",
        n_gpus="4",
        global_batch="3872",
        unit="tokens/s",
    )
    setup = understand(row)
    assert (setup.local_batch, setup.devices, setup.nodes, setup.device) == (968, 4, 1, "rtx-a6000")
    assert setup.items_per_sample == 54, "27 pieces of each language"


def test_a_batch_in_tokens_is_made_one_of_sentences() -> None:
    """10,240 target tokens are 379 sentences of 27."""
    ampere = {**NVIDIA, "machine": "DGX-A100", "gpu": "A100", "gpu_mem_gb": "40"}
    row = published(**ampere, model="Translation/Transformer", precision="TF32", batch_per_gpu="10240", unit="tok/s")
    setup = understand(row)
    assert (setup.local_batch, setup.items_per_sample) == (379, 27)


def test_devices_of_each_node_are_summed() -> None:
    row = published(**{**BERT, "n_nodes": "4"}, precision="AMP", batch_per_gpu="64", seq_len="128")
    setup = understand(row)
    assert (setup.devices, setup.nodes) == (32, 4)


@pytest.mark.parametrize(
    ("config", "sync"),
    [
        ("variable_update=parameter_server/cpu", "server"),
        ("variable_update=parameter_server/gpu", "kvstore"),
        ("variable_update=replicated (without NCCL)/gpu", "kvstore"),
        ("variable_update=replicated (with NCCL)", "nccl"),
        ("variable_update=distributed_replicated", "server"),
    ],
)
def test_how_tensorflow_kept_its_variables(config: str, sync: str) -> None:
    row = published(source_repo="tensorflow/docs", framework="tf_cnn_benchmarks", model="ResNet-50", config=config)
    assert recipe_of(row).sync == sync


def test_a_form_of_a_network_follows_from_the_script() -> None:
    common = {"model": "alexnet", "gpu": "GTX 1080", "precision": "FP32", "batch_per_gpu": "16"}
    scripts = ("jcjohnson/cnn-benchmarks", "soumith/convnet-benchmarks", "tensorflow/docs")
    rows = [published("single_gpu_time", **common, source_repo=script) for script in scripts]
    assert [understand(row).network for row in rows] == ["alexnet-2012", "alexnet", "alexnet-tf"]


def test_what_the_row_does_not_say_is_told() -> None:
    setup = understand(published(model="vgg16", gpu="V100", n_gpus="1"))
    assert any("batch not said" in text for text in setup.assumed)
    assert any("script is not known" in text for text in setup.assumed)


def test_a_network_of_known_size_is_accepted_and_an_unknown_one_refused() -> None:
    assert understand(published(**NVIDIA, model="Detection/SSD", batch_per_gpu="32")).network == "published:ssd300"
    with raises("row.unknown-network"):
        understand(published(**NVIDIA, model="nothing/of-the-kind"))


def test_an_unknown_device_is_refused() -> None:
    with raises("row.unknown-device"):
        understand(published(model="vgg16", gpu="abacus", batch_per_gpu="1"))


@pytest.mark.parametrize(
    ("machine", "precision", "said", "tokens"),
    [
        ("DGX-1", "FP32", "5120", 2560),
        ("DGX-1", "AMP", "2560", 5120),
        ("DGX-2", "FP32", "10240", 5120),
        ("DGX-A100", "TF32", "10240", 10240),
    ],
)
def test_transformers_tokens_are_those_of_its_scripts(machine: str, precision: str, said: str, tokens: int) -> None:
    """Its tables have those of FP32 and of mixed precision exchanged, for V100 alone."""
    given = {**NVIDIA, "machine": machine, "gpu": "A100" if "A100" in machine else "V100", "gpu_mem_gb": ""}
    row = published(
        **{**given, "source_path": "PyTorch/Translation/Transformer/README.md", "framework": "PyTorch"},
        model="Translation/Transformer",
        precision=precision,
        batch_per_gpu=said,
    )
    assert understand(row).local_batch == round(tokens / 27)
    assert recipe_of(row).unequal_lengths


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ({"n_gpus": "-1"}, "row.no-count"),
        ({"n_gpus": "99999999999999999999"}, "row.no-count"),
        ({"batch_per_gpu": "nan"}, "row.no-count"),
        ({"global_batch": "inf", "batch_per_gpu": ""}, "row.no-count"),
        ({"precision": "FP7"}, "row.no-precision"),
        ({"unit": "bananas"}, "row.no-unit"),
    ],
)
def test_a_cell_that_says_nothing_is_not_taken_for_the_usual(cells: dict[str, str], code: str) -> None:
    given = {**NVIDIA, "model": "resnet50", "precision": "FP32", "n_gpus": "8", "batch_per_gpu": "64", **cells}
    row = published(**given)
    with raises(code, row="r1"):
        figure_of(row, understand(row), 1.0)
