"""Memory of one rank of a sharded transformer, by part.

    weights      2 bytes a parameter (16-bit training), divided by `data` where replicas shard parameters
    gradients    a buffer that microbatches add into, 4 bytes a parameter unless it is in bf16, divided likewise
    optimizer    a 32-bit copy and Adam's two moments, 12 bytes a parameter or fewer (`OPTIMIZER_BYTES`), divided from
                 stage 1 of ZeRO on
    activations  of all passes in flight (1F1B or interleaved), with the embedding's mask and the last norm
    loss         logits in 16 bits and once more in 32 bits: 6 bytes for each token and row of the vocabulary; or their
                 gradient in 16 bits, with that of the head's weights and of its input
    workspace    memory of the libraries of products, and gradients of weights that Transformer Engine keeps

The peak of a rank is the larger of two moments: the loss of the last stage, with logits and all activations; the
backward of a layer, with the activations of the others. PyTorch's FSDP2 gathers and frees more on the way, so its peak
is the largest of four moments of a step (`_fsdp_memory`). What is not of the network is in `fits_device.py`: fragments
of an allocator, buffers of a collective library; memory of a framework before training starts is the device's context.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 3.1,
    for bytes of a parameter; Korthikanti et al., 2022, section 4, for activations; Narayanan et al., SC 2021, section
    2.2, for passes in flight.

What a layer keeps is summed over its table (`layers.py`): with two bytes an element, hidden size h, `a` heads, an inner
size of 4h and `t` ranks that is `h (10 + 24/t) + 5 a s / t` of each token (Korthikanti et al.); with the residual
stream sharded too, `34 h / t + 5 a s / t`.
"""

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from trimaran.base.errors import InputError
from trimaran.pricing.analytical.layers import (
    GRADIENT_BYTES,
    AttentionKernel,
    Eager,
    Operation,
    largest_layer,
    operations,
    stage_elements,
)
from trimaran.pricing.analytical.shapes import (
    TransformerShape,
    alike_layers,
    alike_on_stage,
    embedding_elements,
    layer_kinds,
    passes_in_flight,
    stage_ends,
    stream_bytes,
    tokens_of_rank,
    vocabulary_rows,
)
from trimaran.program.strategy import Degrees, OptimizerState

# ---------------------------------------------------------------------------------------------------------------------
# What a layer keeps for its backward, for one microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Activation memory of one layer for one microbatch.

    Attributes:
        kept: until its backward [bytes]
        whole: the same without recomputation [bytes]
        transient: largest memory that its backward allocates and frees [bytes]
    """

    kept: int
    whole: int
    transient: int


def layer_activations(
    shape: TransformerShape,
    degrees: Degrees,
    *,
    attention: AttentionKernel,
    element_bytes: int = 2,
    product_input_bytes: int = 2,
    layer: int = 0,
    eager: Eager | None = None,
) -> LayerActivations:
    """Activation memory of a layer for one microbatch.

    Args:
        shape: the network
        degrees: of it
        attention: kind of kernel
        element_bytes: of an element [bytes]
        product_input_bytes: of an element that a product keeps as its input: 1 where it computes in 8 bits [bytes]
        layer: which one, from the first of the stack: the first ones may have no experts
        eager: by modules of PyTorch; None: by Megatron's kernels

    Returns:
        Its activations.

    Example:
        A layer of GPT with h = 512, 8 heads, 4 sequences of 1,024 tokens: 34 · 512 + 5 · 8 · 1024 bytes a token, and
        16 of the norms' statistics.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=12, hidden=512, heads=8)
        >>> layer_activations(shape, Degrees(microbatch=4), attention="math").kept
        239140864
        >>> 4096 * (34 * 512 + 5 * 8 * 1024 + 16)
        239140864

        As a parallel block with one norm, it keeps an input and an output of a norm less, 2 · 2 h, and two of the four
        statistics of 4 bytes; with norms after both sub-layers too, two inputs of 2 h and four statistics more.

        >>> from dataclasses import replace
        >>> kept = {}
        >>> for norms, parallel in ((1, True), (2, False), (4, False)):
        ...     block = replace(shape, norms=norms, parallel=parallel)
        ...     kept[norms] = layer_activations(block, Degrees(microbatch=4), attention="math").kept // 4096
        >>> kept[2] - kept[1] == 4 * 512 + 8, kept[4] - kept[2] == 4 * 512 + 16
        (True, True)
    """
    tokens, again = tokens_of_rank(shape, degrees), degrees.recomputed
    table = operations(shape, degrees, layer, attention=attention, eager=eager)

    def nbytes(rows: Iterable[Operation], *, second: bool = False) -> int:
        return round(tokens * sum(row.nbytes(element_bytes, product_input_bytes, second=second) for row in rows))

    kept = nbytes((row for row in table if not row.again & again), second="second_products" in again)
    if "layers" in again:
        kept = nbytes(table[:1])
    network = [row for row in table if row.part == "feed_forward"]
    stream = tokens * shape.hidden * element_bytes
    if eager:
        # Gradients of both factors of the gate, and of the stream before and after the network.
        grows = 2 * round(tokens * sum(row.read for row in network)) * element_bytes + 2 * stream
        if shape.experts is not None and shape.has_experts(layer):
            grows += _WIDE_VISITS * 4 * tokens * shape.experts.active * shape.hidden
    else:
        grows = nbytes(network) + 2 * stream // (degrees.tp if degrees.sequence_parallel else 1)
    if degrees.ulysses:
        # Queries, keys and values of all tokens, for the heads of this rank, as they are received.
        grows = max(grows, nbytes(row for row in table if row.part == "inputs"))
    scores = tokens * shape.heads // degrees.tp * shape.sequence * 2 * element_bytes if attention == "math" else 0
    return LayerActivations(kept=kept, whole=nbytes(table), transient=max(grows, scores))


_WIDE_VISITS = 3
"""Tensors of all visits of experts in 32 bits at once, while scores weight them: what is weighted, and two gradients.

Source:
    pytorch/torchtitan, torchtitan/models/moe (`top_scores` times tokens in `torch.float32`).
"""

# ---------------------------------------------------------------------------------------------------------------------
# Memory of a rank, by part


COPY_BYTES = 4
"""Of the optimizer's own copy of a parameter [bytes]."""

OPTIMIZER_BYTES: Mapping[OptimizerState, float] = {
    "fp32": COPY_BYTES + 4 + 4,
    "remainders": 2 + 4 + 4,
    "bf16-moments": COPY_BYTES + 2 + 2,
    "precision-aware": 2 + 2 + 2,
    "adam-8bit": COPY_BYTES + 2 * (1 + 4 / 256),
}
"""Of a parameter's copy and moments, where it computes in 16 bits [bytes].

Source:
    NVIDIA/Megatron-LM, megatron/core/optimizer/__init__.py: `use_precision_aware_optimizer` stores 16-bit remainders of
    parameters (`store_param_remainders`) and moments of type `exp_avg_dtype`, `exp_avg_sq_dtype`. Dettmers et al.,
    "8-bit Optimizers via Block-wise Quantization", ICLR 2022: a byte for each moment, and a 32-bit scale for a block;
    bitsandbytes takes blocks of 256.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """Bytes that a training program keeps for each parameter and logit, and its kernels.

    Attributes:
        weight_bytes: of a parameter as it computes [bytes]
        gradient_bytes: of a parameter's gradient, where microbatches add up, unless a strategy says its type [bytes]
        optimizer_bytes: of a parameter's copy and moments, unless a strategy says what is kept [bytes]
        has_copy: whether the optimizer has its own copy of parameters, since those that compute have fewer bits
        gathered_bytes: of a parameter that is whole for a while; None: `weight_bytes` [bytes]
        logit_bytes: of a logit at the loss [bytes]
        element_bytes: of an element of an activation [bytes]
        product_input_bytes: of an element that a product keeps as its input: 1 where it computes in 8 bits [bytes]
        attention: kind of kernel
        dense_mask: a mask of all pairs of tokens is kept for each microbatch in flight
        workspace_bytes: memory of libraries [bytes]
        keeps_weight_gradients: of the weights of products one gradient of each shape stays
        eager: by modules of PyTorch under FSDP2; None: by the kernels of Megatron, which divides the state itself
        frozen: weights have neither gradients nor a state of the optimizer, but for few that are added (LoRA)
        measured_share: of activations and of what comes and goes, measured by modelled
    """

    weight_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: float = 12
    has_copy: bool = True
    gathered_bytes: int | None = None
    logit_bytes: int = 6
    element_bytes: int = 2
    product_input_bytes: int = 2
    attention: AttentionKernel = "flash2"
    dense_mask: bool = False
    workspace_bytes: int = 0
    keeps_weight_gradients: bool = False
    eager: Eager | None = None
    frozen: bool = False
    measured_share: float = 1.0

    def of(self, degrees: Degrees) -> "Bookkeeping":
        """The same with the types of gradients and of the optimizer's state that a strategy says.

        Args:
            degrees: of a strategy

        Example:
            >>> keeping = Bookkeeping().of(Degrees(gradients="bf16", optimizer_state="remainders"))
            >>> keeping.weight_bytes + keeping.gradient_bytes + keeping.optimizer_bytes
            14
        """
        if degrees.gradients is None and degrees.optimizer_state is None:
            return self
        gradient, optimizer = self.gradient_bytes, self.optimizer_bytes
        if degrees.gradients is not None:
            gradient = GRADIENT_BYTES[degrees.gradients]
        if degrees.optimizer_state is not None:
            optimizer = OPTIMIZER_BYTES[degrees.optimizer_state] - (0 if self.has_copy else COPY_BYTES)
        return replace(self, gradient_bytes=gradient, optimizer_bytes=optimizer)


class RankMemory(NamedTuple):
    """Memory of a rank at its peak.

    Attributes:
        stage: of the pipeline
        weights: parameters, and those that are gathered for a layer [bytes]
        gradients: buffer [bytes]
        optimizer: copies and moments [bytes]
        activations: of all passes in flight, at the peak [bytes]
        transient: logits at the loss, or memory that a backward allocates and frees, at the peak [bytes]
        workspace: memory of libraries [bytes]
        buffers: of collectives, where they are counted (`fits_device.py`) [bytes]
        fragments: of the allocator, likewise [bytes]
    """

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    workspace: int
    buffers: int = 0
    fragments: int = 0

    @property
    def state(self) -> int:
        """Weights, gradients and optimizer [bytes]."""
        return self.weights + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """All of it [bytes]."""
        return self.state + self.activations + self.transient + self.workspace + self.buffers + self.fragments


def rank_memory(
    shape: TransformerShape, degrees: Degrees, *, stage: int = 0, bookkeeping: Bookkeeping | None = None
) -> RankMemory:
    """Memory of a rank of a stage.

    Args:
        shape: the network
        degrees: of it
        stage: of the pipeline, from 0
        bookkeeping: bytes that the program keeps; None: 16-bit training with Adam and fused attention

    Returns:
        By part.

    Raises:
        InputError: a degree is below 1, or the pipeline has no such stage.

    Example:
        GPT-3 on one device has 18 bytes a parameter before any activation:

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> rank_memory(shape, Degrees()).state / 174615846912
        18.0
    """
    _check(degrees, stage)
    keeping = bookkeeping if bookkeeping is not None else Bookkeeping()
    if keeping.eager is not None:
        return _as_measured(_fsdp_memory(shape, degrees, stage, keeping.of(degrees), keeping.eager), keeping)
    return _as_measured(_largest_of(shape, degrees, (stage,), keeping), keeping)


def _as_measured(memory: RankMemory, keeping: Bookkeeping) -> RankMemory:
    share = keeping.measured_share
    if share == 1.0:
        return memory
    return memory._replace(activations=int(share * memory.activations), transient=int(share * memory.transient))


def _largest_of(shape: TransformerShape, degrees: Degrees, stages: tuple[int, ...], keeping: Bookkeeping) -> RankMemory:
    """Memory of the rank with the highest peak of some stages, under Megatron."""
    # A stage has never more microbatches in flight, however many there are.
    number = min(degrees.microbatches, 2 * degrees.pp + max(degrees.pp, degrees.microbatch_group))
    held, (weights, gradients, optimizer) = max(
        (
            (held, state_bytes(held.dense, degrees, keeping, experts=held.experts, gathered=held.gathered))
            for held in _held_on_stages(shape, _stage_values(degrees), number, stages, keeping)
        ),
        key=lambda rank: rank[0].activations + rank[0].transient + sum(rank[1]),
    )
    workspace = keeping.workspace_bytes + overlap_bytes(shape, degrees)
    if keeping.keeps_weight_gradients:
        kept = weight_gradient_elements(shape, degrees.tp, degrees.expert_ranks)
        workspace += kept * keeping.element_bytes
    return RankMemory(
        stage=held.stage,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=held.activations,
        transient=held.transient,
        workspace=workspace,
    )


@functools.lru_cache(maxsize=64)
def largest_rank(shape: TransformerShape, degrees: Degrees, *, bookkeeping: Bookkeeping | None = None) -> RankMemory:
    """Memory of the stage with the highest peak: it decides whether the parallel degrees fit.

    It is the first one, one in the middle, or the last.
    """
    stages = tuple(sorted({0, degrees.pp // 2, degrees.pp - 1}))
    keeping = bookkeeping if bookkeeping is not None else Bookkeeping()
    if keeping.eager is not None:
        ranks = [rank_memory(shape, degrees, stage=stage, bookkeeping=keeping) for stage in stages]
        return max(ranks, key=lambda rank: rank.peak)
    _check(degrees, stages[-1])
    return _as_measured(_largest_of(shape, degrees, stages, keeping), keeping)


_OVERLAP_BUFFERS = 10
"""Of a whole stream, each for one product of a layer or its gradient whose exchange overlaps it: the names in
`initialize_ub` of NVIDIA/TransformerEngine, pytorch/module/base.py."""


def overlap_bytes(shape: TransformerShape, degrees: Degrees) -> int:
    """Buffers by which exchanges of `tp` ranks overlap products, where that is asked for [bytes].

    Source:
        NVIDIA/TransformerEngine, pytorch/module/base.py, `initialize_ub`: one buffer of tokens times h for each of
        ten products; NVIDIA/Megatron-LM, `--tp-comm-overlap`.

    Example:
        4,096 tokens of h = 8,192 in 16 bits, ten times.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=8192, heads=64, sequence=4096)
        >>> overlap_bytes(shape, Degrees(tp=8, tensor_overlap=True)), overlap_bytes(shape, Degrees(tp=8))
        (671088640, 0)
    """
    if degrees.tp == 1 or not degrees.tensor_overlap:
        return 0
    return _OVERLAP_BUFFERS * tokens_of_rank(shape, degrees) * shape.hidden * 2


@functools.lru_cache(maxsize=256)
def weight_gradient_elements(shape: TransformerShape, tensor: int, expert_tensor: int) -> int:
    """Elements of the gradients of weights that stay where products add to the buffer of gradients by themselves.

    What autograd is given in their place is a tensor of the weight's shape and type, whose content nobody reads: one
    for each shape, which stays.

    Args:
        shape: the network
        tensor: ranks that share a layer
        expert_tensor: ranks that share an expert

    Source:
        NVIDIA/TransformerEngine, pytorch/module/base.py, `get_dummy_wgrad` (ba5dc5dde, April 2025; of experts
        d2945c6a5, October 2025).

    Example:
        Llama 3 405B on one rank: queries with keys and values, their output, gate with inner channels, their output.

        >>> from trimaran.pricing.analytical.shapes import decoder_of
        >>> shape = decoder_of("llama3:405b", 8192)
        >>> weight_gradient_elements(shape, 1, 1) == 16384 * (18432 + 16384 + 2 * 53248 + 53248)
        True
    """
    degrees = Degrees(tp=tensor, expert_tp=expert_tensor)
    kinds = layer_kinds(shape, (range(shape.layers),))
    weights = {(row.n, row.k) for layer, _ in kinds for row in operations(shape, degrees, layer)}
    return sum(rows * columns for rows, columns in weights)


def host_bytes(shape: TransformerShape, degrees: Degrees, *, bookkeeping: Bookkeeping | None = None) -> int:
    """Memory of the host that a rank of the largest stage takes where the optimizer's state is there [bytes].

    The optimizer's state, and the gradients that it reads.

    Source:
        Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, section 4.

    Example:
        A billion parameters on 8 replicas that shard the optimizer: 12 + 4 bytes of each eighth.

        >>> from trimaran.pricing.analytical.layers import parameter_count
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=24, hidden=1920, heads=20)
        >>> host_bytes(shape, Degrees(dp=8, zero=1, offload=True)) == 2 * parameter_count(shape)
        True
    """
    if not degrees.offload:
        return 0
    keeping = bookkeeping if bookkeeping is not None else Bookkeeping()
    here, keeping = replace(degrees, offload=False), keeping.of(degrees)
    most = 0
    for stage in sorted({0, degrees.pp // 2, degrees.pp - 1}):
        dense, experts = stage_elements(shape, degrees, stage)
        _, _, optimizer = state_bytes(dense, here, keeping, experts=experts)
        each = keeping.optimizer_bytes + keeping.gradient_bytes
        most = max(most, math.floor(optimizer * each / keeping.optimizer_bytes))
    return most


def state_bytes(
    dense: int, degrees: Degrees, keeping: Bookkeeping, *, experts: int = 0, gathered: int = 0
) -> tuple[int, int, int]:
    """Weights, gradients and optimizer of a rank.

    Args:
        dense: parameters that all replicas hold
        degrees: `zero` says which state replicas shard
        keeping: bytes of a parameter
        experts: parameters of the rank's experts
        gathered: parameters that are whole for a while where replicas shard them

    Returns:
        Each of them [bytes].
    """
    level, keeping = degrees.zero, keeping.of(degrees)
    share, experts_share = (degrees.state_ranks, degrees.expert_state_ranks) if level else (1, 1)

    def sharded(nbytes: float, threshold: int) -> int:
        if level < threshold:
            return math.ceil(dense * nbytes) + math.ceil(experts * nbytes)
        return math.ceil(dense * nbytes / share) + math.ceil(experts * nbytes / experts_share)

    each = keeping.weight_bytes if keeping.gathered_bytes is None else keeping.gathered_bytes
    weights = sharded(keeping.weight_bytes, 3) + (gathered * each if level == 3 else 0)
    optimizer = 0 if degrees.offload else sharded(keeping.optimizer_bytes, 1)
    return weights, sharded(keeping.gradient_bytes, 2), optimizer


_OF_STATE = ("zero", "shard_ranks", "offload", "gradients", "optimizer_state")
_FIELDS_BUT_STATE = tuple(one.name for one in fields(Degrees) if one.name not in _OF_STATE)
degrees_without_state = operator.attrgetter(*_FIELDS_BUT_STATE)
"""Degrees but for what is sharded of the state and where it is."""

# Strategies of a search differ in their state, replicas and order of ranks too, which leave a rank's activations as
# they are.
_OF_LAYER = (
    "tp",
    "cp",
    "ep",
    "expert_tp",
    "microbatch",
    "sequence_parallel",
    "ulysses",
    "recomputed",
    "recompute_layers",
)
_OF_STAGE = (*_OF_LAYER, "pp", "chunks", "segment_layers", "microbatch_group", "schedule")
_layer_values, _stage_values = operator.attrgetter(*_OF_LAYER), operator.attrgetter(*_OF_STAGE)


@dataclass(frozen=True, slots=True)
class _Activations:
    """What a stage keeps of all passes in flight, and what it allocates besides [bytes].

    Attributes:
        kept: by the layers, and by the embedding
        at_loss: by the norm in front of the head, and by heads but for their logits
        logits: with their copies and gradients; 0 but on the last stage
        backward: most that the backward of a layer adds to what is kept
    """

    kept: int
    at_loss: int
    logits: int
    backward: int


class _Held(NamedTuple):
    """What a rank of a stage holds, whatever is sharded of its state.

    Attributes:
        stage: of the pipeline
        dense: parameters that all replicas hold
        experts: parameters of its experts
        gathered: parameters that are whole for a while where replicas shard them
        activations: at the peak [bytes]
        transient: what comes and goes at it: at the loss, or in the backward of a layer [bytes]
    """

    stage: int
    dense: int
    experts: int
    gathered: int
    activations: int
    transient: int


@functools.lru_cache(maxsize=8192)
def _held_on_stages(
    shape: TransformerShape, values: tuple[Any, ...], microbatches: int, stages: tuple[int, ...], keeping: Bookkeeping
) -> tuple[_Held, ...]:
    degrees = Degrees(**dict(zip(_OF_STAGE, values, strict=True)))
    # Two units at a time are whole: the one that computes and the one that is fetched ahead.
    layer, table = largest_layer(shape, degrees.tp), embedding_elements(shape, degrees.tp)
    if shape.experts is None or shape.experts.imbalance == 1.0:
        # How many ranks have different experts matters where one of them has more visits.
        values = _stage_values(replace(degrees, ep=1))
    found = []
    for stage in stages:
        dense, experts = stage_elements(shape, degrees, stage)
        gathered = layer + max(layer, table if stage in (0, degrees.pp - 1) else 0)
        kept = _kept_activations(shape, values, microbatches, stage, keeping)
        peak = kept.kept, kept.backward
        if kept.logits and kept.at_loss + kept.logits >= kept.backward:
            peak = kept.kept + kept.at_loss, kept.logits
        found.append(_Held(stage, dense, experts, gathered, *peak))
    return tuple(found)


@functools.lru_cache(maxsize=8192)
def _layer_activations(
    shape: TransformerShape, values: tuple[Any, ...], layer: int, keeping: Bookkeeping
) -> LayerActivations:
    return layer_activations(
        shape,
        Degrees(**dict(zip(_OF_LAYER, values, strict=True))),
        attention=keeping.attention,
        element_bytes=keeping.element_bytes,
        product_input_bytes=keeping.product_input_bytes,
        layer=layer,
        eager=keeping.eager,
    )


@functools.lru_cache(maxsize=8192)
def _kept_activations(
    shape: TransformerShape, values: tuple[Any, ...], microbatches: int, stage: int, keeping: Bookkeeping
) -> _Activations:
    degrees = Degrees(**dict(zip(_OF_STAGE, values, strict=True)), microbatches=microbatches)
    chunks, passes = alike_layers(shape, degrees, stage), passes_in_flight(degrees, stage)
    first, last = stage_ends(degrees, stage)
    predicted = shape.prediction_layers if last else 0
    kinds = [{(layer, again): number for layer, number, again in chunk} for chunk in chunks]
    if predicted:
        ((of_last, _),) = layer_kinds(shape, (range(shape.layers - 1, shape.layers),))
        kind = of_last, "layers" in degrees.recomputed and degrees.recompute_layers is None
        kinds[-1][kind] = kinds[-1].get(kind, 0) + predicted
    whole = degrees
    if degrees.recompute_layers is not None:
        whole = replace(degrees, recomputed=degrees.recomputed - {"layers"}, recompute_layers=None)
    # Layers of one kind keep the same, each recomputed or not.
    of_kind = {
        (layer, again): _layer_activations(shape, _layer_values(degrees if again else whole), layer, keeping)
        for layer, again in {kind for counted in kinds for kind in counted}
    }
    of_chunk = [sum(count * of_kind[kind].kept for kind, count in counted.items()) for counted in kinds]
    tokens, stream = tokens_of_rank(shape, degrees), stream_bytes(shape, degrees, keeping.element_bytes)
    of_chunk[-1] += 4 * predicted * stream
    kept = sum(map(of_chunk.__getitem__, passes))
    if keeping.dense_mask:
        kept += tokens * shape.sequence * min(degrees.pp, degrees.microbatches)
    if first:
        kept += len(passes) * tokens * 8 * 3
        kept += len(passes) * stream // keeping.element_bytes if shape.hidden_dropout else 0
    if keeping.eager is not None and degrees.pp > 1:
        kept += _message_buffers(degrees, stage, len(passes)) * stream
    if keeping.eager is not None and keeping.eager.hosted:
        # One input is on its way to the host, or back, while the next one is read or written.
        kept = min(kept, 2 * stream)
    backward = max((layer.whole - layer.kept + layer.transient for layer in of_kind.values()), default=0)
    if not last:
        return _Activations(kept, 0, 0, backward)
    # The norm before the head: its input and its output, which the product with the vocabulary keeps. Each module that
    # predicts a further token has a head's pass, and all losses come before the first backward.
    heads = 1 + predicted
    read = stream if keeping.eager is None else tokens * shape.hidden * keeping.element_bytes
    at_loss = heads * (stream + read + (3 * stream if shape.head != "causal" else 0))
    each = keeping.logit_bytes
    if keeping.eager is not None and keeping.eager.fused_loss:
        each = 2 * keeping.element_bytes
    if keeping.eager is not None and keeping.eager.holds_logits:
        each += 4
    every = keeping.eager is not None and keeping.eager.whole_loss
    if keeping.eager is not None and keeping.eager.loss_chunks == 1 and degrees.tp > 1 and not every:
        each = 4 * _PARALLEL_LOSS + keeping.element_bytes
    logits = heads * tokens * vocabulary_rows(shape, 1 if every else degrees.tp) * each
    if keeping.eager is not None and keeping.eager.loss_chunks > 1:
        # The gradient of the head's input is put together in 32 bits.
        at_loss, logits = at_loss + 4 * tokens * shape.hidden, logits // keeping.eager.loss_chunks
    if keeping.eager is None:
        # The head's backward: gradients of logits, of its weights, and of its input, which is gathered once more where
        # its ranks share the stream.
        passed = tokens * (vocabulary_rows(shape, degrees.tp) + (2 if degrees.sequence_parallel else 1) * shape.hidden)
        weights = vocabulary_rows(shape, degrees.tp) * shape.hidden
        logits = max(logits, (passed + weights) * keeping.element_bytes)
    return _Activations(kept, at_loss, logits, backward)


_PARALLEL_LOSS = 4
"""Tensors of all logits in 32 bits at once in the backward of `loss_parallel`, besides the logits that DTensor holds:
logarithms, the gradient of the chosen ones, exponentials, their sum.

Source:
    pytorch/pytorch, torch/distributed/tensor/parallel/loss.py, `_nll_loss_and_log_softmax_backward`.
"""


def _message_buffers(degrees: Degrees, stage: int, in_flight: int) -> int:
    """Streams that a stage of torch's pipelines holds, but for those that its layers keep as their input.

    There is one for each message of a step, from its first on, and passes in flight hold the one that they sent.

    Source:
        pytorch/pytorch, torch/distributed/pipelining/stage.py: `args_recv_info`, `grad_recv_info`, `fwd_cache`.
    """
    messages = degrees.microbatches * degrees.chunks
    first, last = stage_ends(degrees, stage)
    forwards = messages - (degrees.microbatches if first else 0)
    backwards = messages - (degrees.microbatches if last else 0)
    return max(0, forwards - in_flight) + backwards + in_flight


_ACTIVE_CHUNKS = 3
"""Of a stage that torch's interleaved schedules gather at once (`max_active_stages` of `_add_unshard_reshard`)."""


def _fsdp_memory(
    shape: TransformerShape, degrees: Degrees, stage: int, keeping: Bookkeeping, eager: Eager
) -> RankMemory:
    """Memory of a rank of a stage under FSDP2: the largest of four moments, and what its own streams hold.

        loss        all activations, logits                        gathered: a tied table; the head of a loss in chunks
        head        all activations, gradients of logits           the head, its gradient
        layer       all activations, its own as it grows           it, its gradient; what the head scatters is in flight
        embedding   of one stage none                              it, its gradient; what a layer scatters is in flight

    A unit is a layer, the embedding, or the head. With parameters that are not sharded all units are gathered from the
    forward on; interleaved, those of three chunks. Gradients are 16 bits until they are copied for the scatter, in the
    exchanged type, or added to those of the microbatches before, where these are whole (in a pipeline, and of several
    microbatches below ZeRO-2). A stage has had a backward of some chunks only while most passes are in flight.

    Streams of FSDP2 keep what they once had: gradients that were scattered, and two units as they were received.

    Source:
        pytorch/pytorch 2.13, torch/distributed/fsdp/_fully_shard: `foreach_all_gather`, `foreach_reduce`,
        `FSDPParamGroup.post_backward`, `wait_for_unshard`.
    """
    dense, experts = stage_elements(shape, degrees, stage)
    held = dense + experts
    first, last = stage_ends(degrees, stage)
    found = _kept_activations(shape, _stage_values(degrees), degrees.microbatches, stage, keeping)
    element = keeping.weight_bytes if keeping.gathered_bytes is None else keeping.gathered_bytes
    # Gradients are exchanged in their own type, and kept in that of the parameters that are updated.
    sharded = replace(degrees, zero=3 if degrees.zero else 0, gradients=None)
    kept = replace(keeping, gradient_bytes=keeping.weight_bytes)
    shards, gradients, optimizer = state_bytes(dense, sharded, kept, experts=experts)
    if keeping.frozen:
        gradients = optimizer = 0
    layers = sum(number for _, number, _ in alike_on_stage(shape, degrees, stage))
    layer = largest_layer(shape, degrees.tp) + experts // max(1, layers)
    table = embedding_elements(shape, degrees.tp)
    tied = shape.tied and first and last
    head = table if last and not tied else 0
    summed = degrees.pp > 1 or (degrees.zero < 2 and degrees.microbatches > 1)
    # Parameters that compute as they are kept are their own gathered copy where no other rank has a part of them.
    alone = eager.narrow and degrees.state_ranks == 1
    summed = summed and not (eager.sums_in_place and degrees.zero == 0) and not alone and not keeping.frozen
    whole = _share_with_gradients(degrees, stage) * keeping.gradient_bytes * held if summed else 0
    grows = 0 if keeping.frozen else element
    exchanged = 0 if summed or keeping.frozen else keeping.gradient_bytes
    active = min(1.0, _ACTIVE_CHUNKS / degrees.chunks) if degrees.chunks > 1 else 1.0

    def gathered(unit: int) -> float:
        if alone:
            return 0.0
        if degrees.zero < 3:
            return element * active * held
        return element * (unit + (table if tied else 0))

    chunked = eager.loss_chunks > 1
    read = 2 * tokens_of_rank(shape, degrees) * shape.hidden * keeping.element_bytes
    of_logits = tokens_of_rank(shape, degrees) * vocabulary_rows(shape, degrees.tp) * keeping.element_bytes
    of_logits //= eager.loss_chunks
    # Gathered, gradients, activations, what comes and goes.
    moments: list[tuple[float, float, int, int]] = [
        (gathered(layer), grows * layer + exchanged * max(head, layer), found.kept, found.backward)
    ]
    if alone and degrees.microbatches == 1:
        # No stream of exchanges holds gradients of the step before: they are there once a backward has made them.
        moments.append((0.0, gradients, 0, found.backward))
        gradients = 0
    if last:
        before = exchanged * head if chunked else 0
        moments.append((gathered(head if chunked else 0), before, found.kept + found.at_loss, found.logits))
        both = max(grows * head + of_logits, exchanged * head)
        moments.append((gathered(head), both + before, found.kept + found.at_loss, read))
    if first and degrees.pp == 1:
        moments.append((gathered(table), grows * table + exchanged * max(table, layer), 0, 0))
    weights, grown, activations, transient = max(moments, key=sum)
    return RankMemory(
        stage=stage,
        weights=shards + round(weights) + _received(degrees, round(element * active * held), element, layer, table),
        gradients=gradients + round(whole + grown),
        optimizer=optimizer,
        activations=activations,
        transient=transient,
        workspace=keeping.workspace_bytes + overlap_bytes(shape, degrees),
    )


def _received(degrees: Degrees, active: int, element: int, layer: int, table: int) -> int:
    """Units as they were received, and what this rank sent of them: of a chunk all at once, else two [bytes]."""
    ranks = degrees.state_ranks if degrees.zero else 1
    if ranks == 1:
        return 0
    both = active if degrees.chunks > 1 else element * (layer + max(layer, table))
    return both + both // ranks


def _share_with_gradients(degrees: Degrees, stage: int) -> float:
    """Chunks of a stage that have had a backward when most passes are in flight for the last time [0..1]."""
    if degrees.pp == 1:
        return 1.0
    passes = degrees.microbatches * degrees.chunks
    done = passes - len(passes_in_flight(degrees, stage))
    return min(1.0, math.ceil(done / (degrees.microbatch_group or degrees.pp)) / degrees.chunks)


_COUNTED = ("tp", "pp", "chunks", "cp", "dp", "ep", "microbatch", "microbatches")
_COUNTS = operator.attrgetter(*_COUNTED)


def _check(degrees: Degrees, stage: int) -> None:
    if min(_COUNTS(degrees)) < 1:
        name, degree = next((name, getattr(degrees, name)) for name in _COUNTED if getattr(degrees, name) < 1)
        raise InputError(
            f"degrees: {name}: expected 1 or more, got {degree}",
            code="degrees.degree-too-small",
            **{name: degree},
        )
    if not 0 <= stage < degrees.pp:
        raise InputError(
            f"stage {stage}: the pipeline has {degrees.pp} stages, counted from 0",
            code="degrees.no-such-stage",
            stage=stage,
            pipeline=degrees.pp,
        )
