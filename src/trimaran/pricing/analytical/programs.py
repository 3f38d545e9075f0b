"""Settings of a training program that follow from its framework and its year.

    attention   one kernel that keeps no probabilities, since 2023, where the device has bfloat16: that of cuDNN in
                Transformer Engine, else FlashAttention-2; before, batched products
    fused       norms, sums and activations in kernels made for them: Megatron and what is built on it; PyTorch's
                modules one operation at a time, unless they are compiled
    overlaps    exchanges of gradients and parameters meanwhile the backward: PyTorch's FSDP and DeepSpeed's sharded
                parameters always, Megatron since its `overlap-grad-reduce` of 2023
    tensor      exchanges of `tp` ranks meanwhile products: Megatron since 2022 in the backward, by
                `async_tensor_model_parallel_allreduce`; NVIDIA's recipes since 2023 in both, by Transformer Engine
    tokens      sent once to each node by Megatron since 2025 (DeepEP), else once to each of their experts
    recomputed  PyTorch ends a forward that it repeats with the last tensor that the backward needs; Megatron runs all
    gradients   4 bytes where bfloat16 is summed up in Megatron, 2 of fp16 and in PyTorch's policies of one type
    memory      what modules keep: those of PyTorch's own, of transformers under accelerate, of torchtitan; gradients of
                weights that Transformer Engine keeps since April 2025 (2.3)

Source:
    NVIDIA/Megatron-LM, release notes of core 0.2 to 0.5 and megatron/core/distributed (`overlap_grad_reduce`),
    megatron/training/arguments.py (`accumulate_allreduce_grads_in_fp32` is for bfloat16; `use_flash_attn` came in
    January 2023); pytorch/pytorch, torch/distributed/fsdp (`MixedPrecision`)
    and torch/utils/checkpoint.py (`set_checkpoint_early_stop`); NVIDIA/TransformerEngine, user buffers;
    pytorch/torchtitan 0.3, torchtitan/components/loss.py (`ChunkedLossWrapper`), torchtitan/config (FSDP2, which
    shards all or nothing; activation checkpointing of all layers or of operations); huggingface/transformers,
    models/llama/modeling_llama.py (`LlamaRMSNorm`).
"""

from dataclasses import dataclass, replace
from functools import cache

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision, element_bytes
from trimaran.machine.types import Device
from trimaran.pricing.analytical.layers import Eager
from trimaran.pricing.analytical.step_time import TransformerProgram
from trimaran.program.strategy import ZeroStage

FUSED_ATTENTION = 2023.0
"""Since when frameworks compute attention in one kernel."""

OVERLAPPED = 2023.0
"""Since when Megatron exchanges gradients of replicas during the backward."""

TENSOR_OVERLAPPED = 2022.0
"""Since when Megatron computes gradients of weights while a layer's ranks exchange those of its input."""

INTERLEAVED = 2021.25
"""Since when Megatron has several chunks of layers on a stage (Narayanan et al., April 2021)."""

SEQUENCE_PARALLEL = 2022.5
"""Since when Megatron shards the residual stream over `tp` ranks, and recomputes parts of a layer (Korthikanti et al.,
May 2022)."""

ONCE_A_NODE = 2025.0
"""Since when Megatron sends a token once to each node that has some of its experts."""

WEIGHT_GRADIENTS_KEPT = 2025.25
"""Since when Transformer Engine keeps a gradient of each shape of weights, where products add to Megatron's buffer."""

LOSS_COMPILED = 2025.25
"""Since when torchtitan compiles the loss with the layers (pytorch/torchtitan, pull request 1033)."""

LOSS_IN_CHUNKS = 2026.0
"""Since when torchtitan computes head and loss in parts of the sequence, eight of them."""

_EARLY = ("volta", "turing", "pascal", "maxwell", "kepler")
"""Architectures without bfloat16, on which attention is two batched products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What a framework does, whatever its year; what is not said is as in PyTorch's own under sharded state.

    Attributes:
        name: as users say it
        words: that name it in published rows
        fused: norms, sums and activations run in kernels made for them
        tensor_overlaps: exchanges of `tp` ranks overlap products, where its year has that
        sharded_overlaps: exchanges of gradients overlap the backward in every year
        gradient_bytes: of a gradient in bfloat16 that is exchanged [bytes]
        tuned: fused attention is the device maker's (Transformer Engine), not the one of PyTorch
        eager: what its modules keep, where they are PyTorch's under FSDP2; None: as Megatron's
        priced_as: the framework whose figures its steps have; "": its own
        levels: of ZeRO that it has
        some_layers: it can recompute some layers of a stage, and keep others
    """

    name: str
    words: tuple[str, ...]
    fused: bool = False
    tensor_overlaps: bool = False
    sharded_overlaps: bool = True
    gradient_bytes: int = 2
    tuned: bool = False
    eager: Eager | None = None
    priced_as: str = ""
    levels: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    some_layers: bool = True


_MEGATRON = Framework(
    name="megatron",
    words=("megatron",),
    fused=True,
    tensor_overlaps=True,
    sharded_overlaps=False,
    gradient_bytes=4,
    tuned=True,
)

FRAMEWORKS = (
    replace(_MEGATRON, name="nemo", words=("nemo", "megatron-bridge")),
    Framework(
        name="megatron-deepspeed",
        words=("megatron-deepspeed", "megatron deepspeed"),
        fused=True,
        sharded_overlaps=False,
    ),
    Framework(name="fairscale", words=("fairscale", "metaseq"), fused=True),
    Framework(
        name="torchtitan",
        words=("torchtitan",),
        eager=Eager(loss_chunks=8),
        priced_as="fsdp",
        levels=(0, 2, 3),
        some_layers=False,
    ),
    Framework(
        name="prime-rl",
        words=("prime-rl",),
        eager=Eager(holds_logits=True),
        priced_as="fsdp",
        levels=(3,),
        some_layers=False,
    ),
    Framework(
        name="torchtune",
        words=("torchtune",),
        eager=Eager(wide_norms=True, narrow=True),
        priced_as="fsdp",
        levels=(0, 3),
        some_layers=False,
    ),
    Framework(name="fsdp", words=("fsdp", "llm-foundry", "composer"), eager=Eager()),
    Framework(
        name="pytorch",
        words=("pytorch",),
        eager=Eager(wide_norms=True, autocast=True, foreach=True, whole_loss=True),
        priced_as="fsdp",
    ),
    Framework(name="deepspeed", words=("deepspeed",)),
    _MEGATRON,
    Framework(
        name="accelerate",
        words=("accelerate",),
        eager=Eager(wide_norms=True, sums_in_place=True),
        priced_as="fsdp",
        levels=(0, 2, 3),
        some_layers=False,
    ),
)
"""In the order in which their words are looked for."""

FRAMEWORK_NAMES = tuple(sorted(each.name for each in FRAMEWORKS))


def usual_year(device: Device) -> float:
    """Year of the software where none is said: 2025, of old devices 2022, of new ones two years after they came."""
    return 2022.0 if device.generation in _EARLY else max(2025.0, device.year + 2.0)


def find_framework(text: str) -> Framework | None:
    """The framework that a text names; None where it names none of them.

    Example:
        >>> find_framework("Megatron-DeepSpeed").name, find_framework("FSDP (PyTorch)").name, find_framework("caffe")
        ('megatron-deepspeed', 'fsdp', None)
    """
    lowered = text.lower()
    return next((each for each in FRAMEWORKS if any(word in lowered for word in each.words)), None)


@cache
def framework_of(text: str) -> Framework:
    """The framework that a text names; of one that is not known, one that has all levels of ZeRO.

    Example:
        >>> framework_of("megatron:2025").levels, framework_of("torchtitan").levels
        ((0, 1, 2, 3), (0, 2, 3))
    """
    return find_framework(text) or Framework(name="", words=())


def not_priced(framework: str) -> InputError:
    """The refusal of a framework without figures of sharded transformers, with those that have some."""
    return InputError(
        f'the analytical model of transformers has no figures of "{framework}": say one of '
        f"{', '.join(FRAMEWORK_NAMES)} with its year, such as megatron:2024",
        code="software.not-priced",
        software=framework,
    )


def training_program(
    framework: str,
    year: float,
    *,
    device: Device,
    precision: Precision,
    compiled: bool = False,
    node_devices: int = 0,
) -> TransformerProgram:
    """The program of a framework of a year.

    Args:
        framework: its name, or words of a row that name it
        year: of its release, with the part of the year
        device: old ones compute attention as two batched products
        precision: of products
        compiled: kernels are fused by a compiler
        node_devices: devices of a node; 0: not known

    Raises:
        InputError: a framework without figures of sharded transformers

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> program = training_program("megatron", 2021.5, device=find_device("a100-80gb"), precision="fp16")
        >>> program.attention, program.overlaps, program.gradient_bytes
        ('math', False, 2)
    """
    found = find_framework(framework)
    if found is None:
        raise not_priced(framework)
    early = device.generation in _EARLY
    name, eager = found.priced_as or found.name, found.eager
    if eager is not None:
        chunks = eager.loss_chunks if year >= LOSS_IN_CHUNKS else 1
        eager = replace(
            eager,
            compiled=compiled,
            autocast=eager.autocast and element_bytes(precision) == 2,
            foreach=eager.foreach and not compiled,
            wide_norms=eager.wide_norms and not compiled and element_bytes(precision) == 2,
            loss_chunks=chunks,
            fused_loss=compiled and found.name == "torchtitan" and year >= LOSS_COMPILED,
        )
    return TransformerProgram(
        framework=name,
        precision=precision,
        attention="math" if early or year < FUSED_ATTENTION else "cudnn" if found.tuned else "flash2",
        fused=found.fused or compiled,
        overlaps=found.sharded_overlaps or year >= OVERLAPPED,
        tensor_overlaps=found.tensor_overlaps and year >= TENSOR_OVERLAPPED and not early,
        gradient_bytes=2 if precision == "fp16" else found.gradient_bytes,
        year=year,
        tuned=found.tuned,
        stops_early=name == "fsdp",
        eager=eager,
        once_a_node=node_devices if found.tuned and year >= ONCE_A_NODE else 0,
        keeps_weight_gradients=found.tuned and year >= WEIGHT_GRADIENTS_KEPT,
    )
