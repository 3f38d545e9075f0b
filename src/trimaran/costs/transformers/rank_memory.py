"""Memory of one rank of a divided transformer, by part.

    weights      2 bytes a parameter (16-bit training), divided by `data` where replicas divide parameters
    gradients    a buffer that microbatches add into, 4 bytes a parameter, divided likewise
    optimizer    a 32-bit copy and Adam's two moments, 12 bytes a parameter, divided from stage 1 of ZeRO on
    activations  of all passes in flight (1F1B or interleaved), with the embedding's mask and the last norm
    loss         logits in 16 bits and once more in 32 bits: 6 bytes for each token and row of the vocabulary
    workspace    what libraries of products hold

The peak of a rank is the larger of two moments: the loss of the last stage, when logits stand beside all activations;
the backward of a layer, beside the activations of the others. Left out: fragmentation of an allocator,
buffers of a collective library, and what a framework holds before it starts.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 3.1,
    for bytes of a parameter; Korthikanti et al., 2022, section 4, for activations; Narayanan et al., SC 2021, section
    2.2, for passes in flight.
"""

from dataclasses import dataclass

from trimaran.costs.transformers.activations import (
    AttentionKernel,
    layer_activations,
    stream_bytes,
    tokens_of_rank,
)
from trimaran.costs.transformers.division import Division, passes_in_flight, stage_chunks
from trimaran.costs.transformers.shapes import (
    TransformerShape,
    embedding_elements,
    expert_elements,
    head_elements,
    layer_elements,
)
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """What a training program keeps for each parameter and logit, and which kernels it uses.

    Attributes:
        weight_bytes: of a parameter as it computes [bytes]
        gradient_bytes: of a parameter's gradient, where microbatches add up [bytes]
        optimizer_bytes: of a parameter's copy and moments [bytes]
        logit_bytes: of a logit at the loss [bytes]
        element_bytes: of an element of an activation [bytes]
        product_input_bytes: of an element that a product keeps as its input: 1 where it computes in 8 bits [bytes]
        attention: kind of kernel
        dense_mask: a mask of all pairs of tokens is kept for each microbatch in flight
        workspace_bytes: what libraries hold [bytes]
    """

    weight_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    logit_bytes: int = 6
    element_bytes: int = 2
    product_input_bytes: int = 2
    attention: AttentionKernel = "fused"
    dense_mask: bool = False
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of a rank at its peak.

    Attributes:
        stage: of the pipeline
        weights: parameters, and those that are gathered for a layer [bytes]
        gradients: buffer [bytes]
        optimizer: copies and moments [bytes]
        activations: of all passes in flight, at the peak [bytes]
        transient: logits at the loss, or what a backward makes and frees, at the peak [bytes]
        workspace: what libraries hold [bytes]
    """

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    workspace: int

    @property
    def state(self) -> int:
        """Weights, gradients and optimizer [bytes]."""
        return self.weights + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """All of it [bytes]."""
        return self.state + self.activations + self.transient + self.workspace


def rank_memory(
    shape: TransformerShape, division: Division, *, stage: int = 0, bookkeeping: Bookkeeping | None = None
) -> RankMemory:
    """Memory of a rank of a stage.

    Args:
        shape: the network
        division: of it
        stage: of the pipeline, from 0
        bookkeeping: what the program keeps; None: 16-bit training with Adam and fused attention

    Returns:
        By part.

    Raises:
        InputError: a degree is below 1, or the pipeline has no such stage.

    Example:
        GPT-3 on one device has 18 bytes a parameter before any activation:

        >>> from trimaran.costs.transformers.shapes import gpt_shape
        >>> shape = gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> rank_memory(shape, Division()).state / 174615846912
        18.0
    """
    _check(division, stage)
    keeping = bookkeeping if bookkeeping is not None else Bookkeeping()
    dense, experts = stage_elements(shape, division, stage)
    # Two layers at a time are whole: the one that computes and the one that is fetched ahead.
    layer = max(layer_elements(shape, index, tensor=division.tensor) for index in {0, shape.layers - 1})
    weights, gradients, optimizer = state_bytes(dense, division, keeping, experts=experts, gathered=2 * layer)
    activations, transient = _peak_of_activations(shape, division, stage, keeping)
    return RankMemory(
        stage=stage,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        transient=transient,
        workspace=keeping.workspace_bytes,
    )


def largest_rank(shape: TransformerShape, division: Division, *, bookkeeping: Bookkeeping | None = None) -> RankMemory:
    """The stage that needs most: what decides whether a division fits."""
    each = (
        rank_memory(shape, division, stage=stage, bookkeeping=bookkeeping)
        for stage in sorted({0, division.pipeline // 2, division.pipeline - 1})
    )
    return max(each, key=lambda rank: rank.peak)


def stage_elements(shape: TransformerShape, division: Division, stage: int) -> tuple[int, int]:
    """Parameters that a rank of a stage holds: those that all replicas hold, and those of its experts.

    The last stage holds the output layer; where it is tied to the embedding, as a copy of it.
    """
    layers = [layer for chunk in stage_chunks(shape, division, stage) for layer in chunk]
    tensor = division.tensor
    dense = experts = 0
    for layer in {shape.has_experts(layer): layer for layer in layers}.values():
        alike = sum(shape.has_experts(other) == shape.has_experts(layer) for other in layers)
        dense += alike * layer_elements(shape, layer, tensor=tensor)
        experts += alike * expert_elements(shape, layer, expert=division.expert, expert_tensor=division.expert_ranks)
    table = embedding_elements(shape, tensor)
    last = stage == division.pipeline - 1
    if stage == 0:
        dense += table + shape.positions * shape.hidden
    if last:
        dense += head_elements(shape, tensor)
        dense += table if (not shape.tied or division.pipeline > 1) else 0
    return dense, experts


def state_bytes(
    dense: int, division: Division, keeping: Bookkeeping, *, experts: int = 0, gathered: int = 0
) -> tuple[int, int, int]:
    """Weights, gradients and optimizer of a rank.

    Args:
        dense: parameters that all replicas hold
        division: what replicas divide
        keeping: bytes of a parameter
        experts: parameters of the rank's experts
        gathered: parameters that are whole for a while where replicas divide them

    Returns:
        Each of them [bytes].
    """
    level = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[division.sharding]
    held = ((dense, division.data * division.context), (experts, division.expert_data))

    def divided(nbytes: int, threshold: int) -> int:
        return sum(-(-count * nbytes // (replicas if level >= threshold else 1)) for count, replicas in held)

    weights = divided(keeping.weight_bytes, 3) + (gathered * keeping.weight_bytes if level == 3 else 0)
    return weights, divided(keeping.gradient_bytes, 2), divided(keeping.optimizer_bytes, 1)


def _peak_of_activations(
    shape: TransformerShape, division: Division, stage: int, keeping: Bookkeeping
) -> tuple[int, int]:
    chunks, passes = stage_chunks(shape, division, stage), passes_in_flight(division, stage)
    # Layers of one kind keep the same, and there are two kinds at most.
    of_kind = {
        kind: layer_activations(
            shape,
            division,
            attention=keeping.attention,
            element_bytes=keeping.element_bytes,
            product_input_bytes=keeping.product_input_bytes,
            layer=layer,
        )
        for kind, layer in {shape.has_experts(layer): layer for chunk in chunks for layer in chunk}.items()
    }
    of_chunk = [sum(of_kind[shape.has_experts(layer)].kept for layer in chunk) for chunk in chunks]
    kept = sum(of_chunk[chunk] for chunk in passes)
    first, last = stage == 0, stage == division.pipeline - 1
    tokens, stream = tokens_of_rank(shape, division), stream_bytes(shape, division, keeping.element_bytes)
    if keeping.dense_mask:
        kept += tokens * shape.sequence * min(division.pipeline, division.microbatches)
    if first:
        kept += len(passes) * tokens * 8 * 3
        kept += len(passes) * stream // keeping.element_bytes if shape.hidden_dropout else 0
    backward = max((layer.whole - layer.kept + layer.transient for layer in of_kind.values()), default=0)
    if not last:
        return kept, backward
    # The norm before the head: its input and its output, which the product with the vocabulary keeps.
    at_loss = 2 * stream + (3 * stream if shape.head == "masked" else 0)
    logits = tokens * (shape.vocabulary // division.tensor) * keeping.logit_bytes
    if at_loss + logits >= backward:
        return kept + at_loss, logits
    return kept, backward


def _check(division: Division, stage: int) -> None:
    degrees = {
        name: getattr(division, name)
        for name in ("tensor", "pipeline", "chunks", "context", "data", "expert", "microbatch", "microbatches")
    }
    for name, degree in degrees.items():
        if degree < 1:
            raise InputError(
                f"division: {name}: expected 1 or more, got {degree}",
                code="division.degree-too-small",
                **{name: degree},
            )
    if not 0 <= stage < division.pipeline:
        raise InputError(
            f"stage {stage}: the pipeline has {division.pipeline} stages, counted from 0",
            code="division.no-such-stage",
            stage=stage,
            pipeline=division.pipeline,
        )
