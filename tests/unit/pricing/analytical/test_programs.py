"""Programs of frameworks and years: which kernels they have, and what they overlap."""

import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_device
from trimaran.pricing.analytical.programs import FRAMEWORKS, find_framework, training_program, usual_year

A100 = find_device("a100-80gb")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NeMo/Megatron-Bridge 25.09 NeMo Container", "nemo"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-LM", "megatron"),
        ("FSDP (PyTorch)", "fsdp"),
        ("torchtitan", "torchtitan"),
        ("Accelerate", "accelerate"),
        ("DeepSpeed by accelerate", "deepspeed"),
        ("FSDP (fairscale) with Megatron tensor parallelism", "fairscale"),
        ("DeepSpeed", "deepspeed"),
    ],
)
def test_frameworks_are_known_by_their_words(text: str, name: str) -> None:
    found = find_framework(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("framework", [each.name for each in FRAMEWORKS])
def test_attention_is_one_kernel_since_2023(framework: str) -> None:
    before, after = (
        training_program(framework, year, device=A100, precision="bf16").attention for year in (2022.9, 2023.0)
    )
    assert before == "math" != after


def test_old_devices_have_no_fused_attention() -> None:
    assert training_program("megatron", 2025.0, device=find_device("v100-32gb"), precision="fp16").attention == "math"


def test_megatron_of_2021_waits_for_its_gradients_and_fsdp_does_not() -> None:
    megatron, fsdp = (training_program(name, 2021.5, device=A100, precision="fp16") for name in ("megatron", "fsdp"))
    assert (megatron.overlaps, fsdp.overlaps) == (False, True)


def test_modules_of_pytorch_are_fused_where_they_are_compiled() -> None:
    eager, compiled = (
        training_program("fsdp", 2024.0, device=A100, precision="bf16", compiled=compiled).fused
        for compiled in (False, True)
    )
    assert (eager, compiled) == (False, True)


def test_another_framework_is_refused_with_those_that_are_known() -> None:
    with raises("software.not-priced"):
        training_program("caffe", 2017.0, device=A100, precision="fp16")


def test_software_that_is_not_said_is_no_older_than_its_device() -> None:
    assert [usual_year(find_device(name)) for name in ("v100-32gb", "a100-80gb", "b200")] == [2022.0, 2025.0, 2026.0]


@pytest.mark.parametrize(
    ("framework", "year", "kept"), [("megatron", 2025.0, False), ("nemo", 2025.5, True), ("fsdp", 2026.0, False)]
)
def test_gradients_of_weights_are_kept_by_transformer_engine_since_spring_2025(
    framework: str, year: float, kept: bool
) -> None:
    program = training_program(framework, year, device=find_device("h100"), precision="bf16")
    assert program.keeps_weight_gradients == kept
