"""Time of a training step of a divided transformer.

    microbatch   (device^p + host^p)^(1/p)     kernels back to back against a host that has to ask for them
    device       products / (peak · share) + attention / (peak · share) + bytes / bandwidth + exchanges inside a layer
    pipeline     (m - 1) · slowest stage + one pass through all stages, of which interleaved chunks leave 1 / V
    data         gradients reduced and parameters gathered, what the backward does not hide
    update       about 30 bytes a parameter of this rank, read and written

Source:
    Narayanan et al., SC 2021, section 2, for the bubble `(P - 1) / (V m)`; Korthikanti et al., 2022, section 4, for the
    exchanges of a layer; Rajbhandari et al., SC 2020, for those of divided states.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.transformers.activations import AttentionKernel, stream_bytes, tokens_of_rank
from trimaran.costs.transformers.division import Division, stage_chunks
from trimaran.costs.transformers.rank_memory import stage_elements
from trimaran.costs.transformers.shapes import TransformerShape, key_size
from trimaran.costs.transformers.stage_work import PassWork, backward, head_forward, layer_forward
from trimaran.costs.transformers.step_constants import StepConstants

Exchange = Callable[[str, float, int, int], float]
"""Time [s] of a collective: its name, its bytes, devices of the group, and how many of them share a node's links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What trains, as far as a step's time depends on it.

    Attributes:
        precision: of products: "float16", "bfloat16" or "float8"
        attention: kind of kernel
        fused: norms, sums and activations run in kernels made for them
        overlaps: exchanges of gradients and parameters run beside the backward
        tensor_overlaps: exchanges of `tensor` ranks run beside products
        frozen: weights have no gradients, but for few that are added (LoRA)
        gradient_bytes: of a gradient that is exchanged [bytes]
        year: of its kernels
    """

    precision: str = "bfloat16"
    attention: AttentionKernel = "fused"
    fused: bool = True
    overlaps: bool = True
    tensor_overlaps: bool = False
    frozen: bool = False
    gradient_bytes: int = 4
    year: float = 2024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep:
    """Time of a step, by part.

    Attributes:
        compute_s: products, attention and elementwise work of all microbatches on the slowest stage [s]
        tensor_s: exchanges inside layers, as far as they are waited for [s]
        bubble_s: wait of the pipeline [s]
        data_s: exchanges between replicas, as far as they are waited for [s]
        update_s: the optimizer [s]
    """

    compute_s: float
    tensor_s: float
    bubble_s: float
    data_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.compute_s + self.tensor_s + self.bubble_s + self.data_s + self.update_s


def divided_step(
    shape: TransformerShape,
    division: Division,
    program: Program,
    *,
    device: CatalogDevice,
    exchange: Exchange,
    constants: StepConstants,
) -> DividedStep:
    """Time of a step.

    Args:
        shape: the network
        division: of it and of its batch
        program: what trains
        device: each rank's
        exchange: prices collectives between ranks
        constants: shares of peak and overheads

    Returns:
        By part.
    """
    stages = range(division.pipeline)
    computes = [_stage_seconds(shape, division, program, stage, device, constants) for stage in stages]
    tensor_s = _tensor_seconds(shape, division, program, exchange, constants)
    per_stage = [compute + tensor_s * _layers(shape, division, stage) for stage, compute in enumerate(computes)]
    slowest = max(per_stage)
    slowest_at = per_stage.index(slowest)
    inner = tensor_s * _layers(shape, division, slowest_at)
    sends = 2.0 * exchange("send_recv", stream_bytes(shape, division), 2, division.pipeline)
    through = (sum(per_stage) - slowest) / division.chunks + sends * (division.pipeline - 1)
    held, experts = stage_elements(shape, division, slowest_at)
    level = 1 if division.sharding == "none" else division.data * division.context
    update = 0.0 if program.frozen else (held / level + experts / max(1, division.expert_data)) * constants.update_bytes
    return DividedStep(
        compute_s=division.microbatches * (slowest - inner),
        tensor_s=division.microbatches * inner,
        bubble_s=through if division.pipeline > 1 else 0.0,
        data_s=_data_seconds(shape, division, program, slowest_at, slowest, exchange, constants),
        update_s=update / (device.bandwidth.bytes_per_s * device.bandwidth.fraction),
    )


def _layers(shape: TransformerShape, division: Division, stage: int) -> int:
    return sum(len(chunk) for chunk in stage_chunks(shape, division, stage))


def _stage_seconds(
    shape: TransformerShape,
    division: Division,
    program: Program,
    stage: int,
    device: CatalogDevice,
    constants: StepConstants,
) -> float:
    """Forward and backward of one microbatch on a stage [s]."""
    work = PassWork()
    # Layers of one kind are alike, and there are two kinds at most.
    layers = [layer for chunk in stage_chunks(shape, division, stage) for layer in chunk]
    for kind in (False, True):
        alike = [layer for layer in layers if shape.has_experts(layer) is kind]
        if alike:
            forward = layer_forward(shape, division, attention=program.attention, layer=alike[0])
            each = forward + backward(forward, attention=program.attention, frozen=program.frozen)
            each = each + forward.times(*_again(division))
            work = work + each.times(len(alike), len(alike), len(alike))
    if stage == division.pipeline - 1:
        head = head_forward(shape, division)
        # The head stays in 16 bits where layers compute in 8.
        both = head + backward(head, attention=program.attention, frozen=program.frozen)
        work = work + both.times(constants.head_factor(program.precision, device), 1.0, 1.0)
    device_s = constants.device_seconds(
        work, program.precision, kernel=program.attention, fused=program.fused, device=device, year=program.year
    )
    host_s = work.layers * constants.host_layer_s / 3.0
    power = constants.sharpness
    return float((device_s**power + host_s**power) ** (1.0 / power))


def _again(division: Division) -> tuple[float, float, float]:
    if "layers" in division.recomputed:
        return 1.0, 1.0, 1.0
    return 0.0, 1.0 if "attention" in division.recomputed else 0.0, 0.0


def _tensor_seconds(
    shape: TransformerShape, division: Division, program: Program, exchange: Exchange, constants: StepConstants
) -> float:
    """Exchanges of one layer and one microbatch, as far as they are waited for [s]."""
    tokens = tokens_of_rank(shape, division)
    seconds = 0.0
    if division.tensor > 1:
        passes = 6 if "layers" in division.recomputed else 4
        each = exchange("all_reduce", tokens * shape.hidden * 2, division.tensor, 1) + constants.call_s
        seconds += passes * each * (constants.tensor_exposed if program.tensor_overlaps else 1.0)
    if division.context > 1:
        keys = 2 * key_size(shape, division.tensor) * 2 * tokens * division.context
        each = exchange("all_gather", keys, division.context, division.tensor)
        seconds += 3 * each * constants.tensor_exposed
    if shape.experts is not None and division.expert > 1:
        sent = tokens * shape.experts.active * shape.hidden * 2
        sent //= division.tensor if division.sequence_parallel else 1
        each = exchange("all_to_all", sent, division.expert, 1)
        seconds += 4 * each * (constants.tensor_exposed if program.tensor_overlaps else 1.0)
    return seconds


def _data_seconds(
    shape: TransformerShape,
    division: Division,
    program: Program,
    stage: int,
    microbatch_s: float,
    exchange: Exchange,
    constants: StepConstants,
) -> float:
    """Exchanges between replicas, as far as they are waited for [s]."""
    replicas = division.data * division.context
    if replicas == 1 or program.frozen:
        return 0.0
    held, _ = stage_elements(shape, division, stage)
    near = division.tensor
    if division.sharding == "parameters":
        gather = exchange("all_gather", held * 2, replicas, near)
        reduce = exchange("reduce_scatter", held * program.gradient_bytes, replicas, near)
        each = 2 * gather + reduce
        # Fetched ahead of the layer that computes: the longer of the two counts, and a share of the shorter one.
        waits = max(0.0, each - microbatch_s) + constants.data_exposed * min(each, microbatch_s)
        return division.microbatches * waits
    if division.sharding == "none":
        seconds = exchange("all_reduce", held * program.gradient_bytes, replicas, near)
    else:
        seconds = exchange("reduce_scatter", held * program.gradient_bytes, replicas, near)
        seconds += exchange("all_gather", held * 2, replicas, near)
    if not program.overlaps:
        return seconds
    hidden = microbatch_s
    return max(0.0, seconds - hidden) + constants.data_exposed * min(seconds, hidden)
