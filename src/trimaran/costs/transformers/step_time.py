"""Time of a training step of a divided transformer.

    microbatch   (device^p + host^p)^(1/p)     kernels back to back against a host that has to ask for them
    device       products / (peak · share) + attention / (peak · share) + bytes / bandwidth + exchanges inside a layer
    pipeline     (m - 1) · slowest stage + one pass through all stages, of which interleaved chunks leave 1 / V;
                 sends between stages are waited for (1F1B), or V times as many overlap (interleaved)
    data         gradients reduced and parameters gathered, what the backward does not hide
    update       about 30 bytes a parameter of this rank, read and written

Source:
    Narayanan et al., SC 2021, section 2, for the bubble `(P - 1) / (V m)`; Korthikanti et al., 2022, section 4, for the
    exchanges of a layer; Rajbhandari et al., SC 2020, for those of divided states.
"""

from dataclasses import dataclass, replace

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.transformers.activations import stream_bytes
from trimaran.costs.transformers.division import Division, stage_chunks
from trimaran.costs.transformers.exchange import Exchange
from trimaran.costs.transformers.exchanges import data_seconds, send_seconds, sum_count, tensor_seconds
from trimaran.costs.transformers.rank_memory import stage_elements
from trimaran.costs.transformers.shapes import TransformerShape, layer_elements
from trimaran.costs.transformers.stage_work import PassWork, backward, embedding_forward, head_forward, layer_forward
from trimaran.costs.transformers.step_constants import StepConstants
from trimaran.costs.transformers.training_program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep:
    """Time of a step, by part.

    Attributes:
        compute_s: products, attention and elementwise work of all microbatches on the slowest stage [s]
        tensor_s: exchanges inside layers, as far as they are waited for [s]
        bubble_s: wait of the pipeline, for its filling and for sends between stages [s]
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
    tensor_s = tensor_seconds(shape, division, program, exchange, constants)
    known: dict[tuple[int, int, bool, bool], float] = {}
    per_stage = []
    for stage in range(division.pipeline):
        # Stages with as many layers of each kind are alike, but for those with the embedding and the head.
        kind = (*_layers_of_kinds(shape, division, stage), stage == 0, stage == division.pipeline - 1)
        if kind not in known:
            known[kind] = _stage_seconds(shape, division, program, stage, device, constants)
        per_stage.append(known[kind] + tensor_s * _layers(shape, division, stage))
    slowest = max(per_stage)
    slowest_at = per_stage.index(slowest)
    inner = tensor_s * _layers(shape, division, slowest_at)
    stream = stream_bytes(shape, division)
    one_way = stream / program.send_bytes_per_s if program.send_bytes_per_s else 0.0
    sends = 2.0 * (one_way or exchange("send_recv", stream, 2, division.pipeline))
    through = (sum(per_stage) - slowest) / division.chunks + sends * (division.pipeline - 1)
    waited = send_seconds(division, sends, constants)
    held, experts = stage_elements(shape, division, slowest_at)
    alone = division.sharding == "none"
    mine = held if alone else held / (division.data * division.context)
    mine += experts if alone else experts / division.expert_data
    update = 0.0 if program.frozen else mine * constants.update_bytes
    return DividedStep(
        compute_s=division.microbatches * (slowest - inner),
        tensor_s=division.microbatches * inner,
        bubble_s=through + division.microbatches * waited if division.pipeline > 1 else 0.0,
        data_s=data_seconds(shape, division, program, slowest_at, slowest, exchange, constants),
        update_s=update / (device.bandwidth.bytes_per_s * device.bandwidth.fraction),
    )


def least_seconds(
    shape: TransformerShape,
    division: Division,
    program: Program,
    *,
    device: CatalogDevice,
    exchange: Exchange,
    constants: StepConstants,
) -> float:
    """A step with all stages equally loaded, without bubble, exchanges of replicas and update [s].

    No schedule, sharding or choice of layers for stages makes a division of these degrees faster: the slowest stage has
    at least the mean load.
    """
    whole = replace(division, pipeline=1, chunks=1, parts=())
    alone = _stage_seconds(shape, whole, program, 0, device, constants) / division.pipeline
    inside = tensor_seconds(shape, division, program, exchange, constants) * shape.layers / division.pipeline
    return division.microbatches * (alone + inside)


def _layers(shape: TransformerShape, division: Division, stage: int) -> int:
    return sum(len(chunk) for chunk in stage_chunks(shape, division, stage))


def _layers_of_kinds(shape: TransformerShape, division: Division, stage: int) -> tuple[int, int]:
    """Layers of a stage with an ordinary feed-forward network, and with experts."""
    every = _layers(shape, division, stage)
    if shape.experts is None:
        return every, 0
    plain = sum(
        len(range(chunk.start, min(chunk.stop, shape.experts.dense_layers)))
        for chunk in stage_chunks(shape, division, stage)
    )
    return plain, every - plain


def _stage_seconds(
    shape: TransformerShape,
    division: Division,
    program: Program,
    stage: int,
    device: CatalogDevice,
    constants: StepConstants,
) -> float:
    """Forward and backward of one microbatch on a stage [s]."""
    work, held = PassWork(), 0
    # Layers of one kind are alike, and there are two kinds at most.
    layers = [layer for chunk in stage_chunks(shape, division, stage) for layer in chunk]
    for kind in (False, True):
        alike = [layer for layer in layers if shape.has_experts(layer) is kind]
        if alike:
            forward = layer_forward(shape, division, attention=program.attention, layer=alike[0])
            each = forward + backward(forward, attention=program.attention, frozen=program.frozen)
            each = each + forward.times(*_again(division))
            work = work + each.times(len(alike), len(alike), len(alike))
            held += len(alike) * layer_elements(shape, alike[0], tensor=division.tensor)
    if stage == 0:
        rows = embedding_forward(shape, division)
        work = work + rows + backward(rows, attention=program.attention, frozen=program.frozen)
    if stage == division.pipeline - 1:
        head = head_forward(shape, division)
        # The head stays in 16 bits where layers compute in 8.
        both = head + backward(head, attention=program.attention, frozen=program.frozen)
        rows_of_rank = shape.vocabulary // division.tensor
        work = work + both.times(constants.head_factor(program.precision, device, rows_of_rank), 1.0, 1.0)
    device_s = constants.device_seconds(
        work, program.precision, kernel=program.attention, fused=program.fused, device=device, year=program.year
    )
    if not program.frozen and division.microbatches > 1:
        device_s += constants.sum_seconds(held, device)
    calls = sum_count(division) * len(layers) if division.tensor > 1 else 0
    host_s = constants.host_seconds(work) + calls * constants.call_s
    power = constants.sharpness
    return float((device_s**power + host_s**power) ** (1.0 / power))


def _again(division: Division) -> tuple[float, float, float]:
    if "layers" in division.recomputed:
        return 1.0, 1.0, 1.0
    return 0.0, 1.0 if "attention" in division.recomputed else 0.0, 0.0
