"""The shape of a transformer, how many elements its parameters have, and how it is sharded over devices.

Decoders (GPT, Llama, mixtures of experts, latent attention) and encoders with a masked-language head (BERT). Left out:
networks of two stacks, state-space layers, vision towers.

Ranks of a sharded transformer form a box: `tp` ranks share each layer, `cp` ranks each sequence, `pp` stages the stack,
`dp` replicas the batch. With experts, `ep` of the ranks that hold replicas of attention hold different experts.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Literal

from trimaran.networks.names import canonical_network
from trimaran.networks.sizes import FAMILIES, find_size
from trimaran.program.strategy import Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Attention whose queries, keys and values come from a few latent channels (DeepSeek).

    Attributes:
        query_rank: latent channels of queries; 0: queries are made directly
        key_rank: latent channels of keys and values
        head_size: of queries and keys, without the rotary part
        rotary_size: rotary part of queries, and of the one key that all heads share
        value_size: of values
    """

    query_rank: int
    key_rank: int
    head_size: int
    rotary_size: int
    value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward networks; each token is routed to a few of them.

    Attributes:
        count: of them
        active: visited by a token
        ffn: inner size of each
        shared_ffn: inner size of the one that every token visits; 0: none
        dense_layers: first layers that have an ordinary feed-forward network instead
    """

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A transformer.

    Attributes:
        layers: of the stack
        hidden: size of the residual stream
        heads: of queries
        kv_heads: of keys and values
        head_size: of each head
        ffn: inner size of the feed-forward network
        vocabulary: rows of the embedding, padding included
        sequence: tokens of a sequence
        gated: the feed-forward network has two inner products (SwiGLU)
        biases: linear layers have biases
        tied: the output layer uses the embedding's weights
        positions: rows of learned position embeddings; 0: rotary ones or none
        rotary: queries and keys are rotated
        centred_norm: norms have a bias (LayerNorm), not a scale alone (RMSNorm)
        query_key_norm: queries and keys are normalized
        hidden_dropout: dropout after the embedding and each sub-layer
        attention_dropout: dropout of attention's probabilities
        experts: in place of feed-forward networks
        latent: in place of ordinary attention
        head: layers after the stack: "causal" (products with the vocabulary) or "masked" (one dense layer before)
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    sequence: int
    gated: bool = False
    biases: bool = True
    tied: bool = True
    positions: int = 0
    rotary: bool = False
    centred_norm: bool = True
    query_key_norm: bool = False
    hidden_dropout: bool = False
    attention_dropout: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    head: Literal["causal", "masked"] = "causal"

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts is not None and layer >= self.experts.dense_layers


def gpt_shape(
    *, layers: int, hidden: int, heads: int, vocabulary: int = 50304, sequence: int = 1024, dropout: bool = True
) -> TransformerShape:
    """A decoder as in GPT-2 and GPT-3: four times the hidden size inside, biases, learned positions, one embedding.

    Example:
        >>> parameter_count(gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048))
        174615846912
    """
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn=4 * hidden,
        vocabulary=vocabulary,
        sequence=sequence,
        positions=sequence,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def attention_elements(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of one layer's attention on one of `tensor` ranks, its norms not included.

    Example:
        4 h² + 4 h for GPT-2's smallest, h = 768:

        >>> attention_elements(gpt_shape(layers=12, hidden=768, heads=12)) == 4 * 768**2 + 4 * 768
        True
    """
    hidden, latent = shape.hidden, shape.latent
    if latent is not None:
        queries = shape.heads * (latent.head_size + latent.rotary_size) // tensor
        values = shape.heads * latent.value_size // tensor
        keys_values = shape.heads * (latent.head_size + latent.value_size) // tensor
        made = hidden * latent.query_rank + latent.query_rank * (queries + 1) if latent.query_rank else hidden * queries
        down = hidden * (latent.key_rank + latent.rotary_size) + latent.key_rank
        return made + down + latent.key_rank * keys_values + values * hidden
    out = query_size(shape, tensor)
    inward = out + 2 * key_size(shape, tensor)
    norms = 2 * shape.head_size * (1 + shape.centred_norm) if shape.query_key_norm else 0
    return hidden * (inward + out) + shape.biases * (inward + hidden) + norms


def query_size(shape: TransformerShape, tensor: int = 1) -> int:
    """Size of all queries of a token on one of `tensor` ranks."""
    return shape.heads * shape.head_size // tensor


def key_size(shape: TransformerShape, tensor: int = 1) -> int:
    """Size of all keys of a token on one of `tensor` ranks; where there are fewer heads than ranks, ranks share one."""
    return -(-shape.kv_heads // tensor) * shape.head_size


def feed_forward_elements(shape: TransformerShape, inner: int) -> int:
    """Elements of a feed-forward network with `inner` inner channels on this rank."""
    products = 3 if shape.gated else 2
    biases = inner * (products - 1) + shape.hidden if shape.biases else 0
    return products * shape.hidden * inner + biases


def norm_elements(shape: TransformerShape) -> int:
    """Elements of one norm of the residual stream."""
    return shape.hidden * (1 + shape.centred_norm)


def embedding_elements(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of the table of tokens on one of `tensor` ranks."""
    return shape.vocabulary * shape.hidden // tensor


def head_elements(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of the layers after the stack, without the product with the vocabulary."""
    if shape.head == "causal":
        return norm_elements(shape)
    dense = shape.hidden * (shape.hidden + 1)
    return 2 * norm_elements(shape) + 2 * dense + shape.vocabulary // tensor + 2 * (shape.hidden + 1)


def layer_elements(shape: TransformerShape, layer: int, *, tensor: int = 1) -> int:
    """Elements of a layer on one of `tensor` ranks, experts not included."""
    if shape.experts is not None and shape.has_experts(layer):
        shared = shape.experts.shared_ffn
        inner = shape.experts.count * shape.hidden
        inner += feed_forward_elements(shape, shared // tensor) if shared else 0
    else:
        inner = feed_forward_elements(shape, shape.ffn // tensor)
    return attention_elements(shape, tensor) + inner + 2 * norm_elements(shape)


def expert_elements(shape: TransformerShape, layer: int, *, expert: int = 1, expert_tensor: int = 1) -> int:
    """Elements of a layer's experts on one of `expert` ranks that each hold some of them."""
    if shape.experts is None or not shape.has_experts(layer):
        return 0
    return shape.experts.count // expert * feed_forward_elements(shape, shape.experts.ffn // expert_tensor)


def parameter_count(shape: TransformerShape) -> int:
    """Parameters of the whole network.

    Example:
        GPT-2 with its own 50,257 entries and 1,024 positions has 124,439,808:

        >>> parameter_count(gpt_shape(layers=12, hidden=768, heads=12, vocabulary=50257))
        124439808
    """
    stack = sum(layer_elements(shape, layer) + expert_elements(shape, layer) for layer in range(shape.layers))
    tables = embedding_elements(shape) * (1 if shape.tied else 2) + shape.positions * shape.hidden
    return stack + tables + head_elements(shape)


_LLAMA_LIKE = frozenset({"llama", "llama1", "llama2", "llama3"})


def decoder_of(text: str, sequence: int) -> TransformerShape | None:
    """The shape of a published decoder of `networks/sizes.py`.

    Args:
        text: its name, such as "gpt3:175b" or "LLAMA3_70B"
        sequence: tokens of a sequence

    Returns:
        The shape; None where the name means none of them.

    Example:
        >>> shape = decoder_of("llama3:70b", 8192)
        >>> shape.layers, shape.kv_heads, shape.ffn
        (80, 8, 28672)
    """
    reference = canonical_network(text)
    family, _, size = (reference or "").partition(":")
    if family not in FAMILIES or family in ("transformer", "bert"):
        return None
    figures = find_size(family, size.split(",")[0].split(":")[0])
    llama, mosaic = family in _LLAMA_LIKE, family == "mpt"
    return TransformerShape(
        layers=figures.layers,
        hidden=figures.width,
        heads=figures.heads,
        kv_heads=figures.groups,
        head_size=figures.head_size,
        ffn=figures.dense,
        vocabulary=-(-figures.vocabulary // 128) * 128,
        sequence=sequence,
        gated=llama,
        biases=not (llama or mosaic),
        tied=figures.tied,
        positions=0 if llama or mosaic else sequence,
        rotary=llama,
        centred_norm=not llama,
        hidden_dropout=family in ("gpt", "gpt2"),
        attention_dropout=family in ("gpt", "gpt2"),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Of a rank: tokens, layers and elements, and the passes whose activations it holds at once


def stage_chunks(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[range, ...]:
    """Layers of each chunk of a stage, counted from the first of the stack.

    A stage holds every `pipeline`-th part of the stack: chunk `c` of stage `p` is part `c * pipeline + p`. Layers that
    do not divide evenly go one each to the first parts.

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=8, hidden=64, heads=4)
        >>> stage_chunks(shape, Degrees(pp=2), 1)
        (range(4, 8),)
        >>> stage_chunks(shape, Degrees(pp=2, chunks=2), 1)
        (range(2, 4), range(6, 8))
    """
    return _stages(shape.layers, degrees.pp, degrees.chunks, degrees.segment_layers)[stage]


@functools.lru_cache(maxsize=4096)
def _stages(layers: int, pipeline: int, chunks: int, parts: tuple[int, ...]) -> tuple[tuple[range, ...], ...]:
    count = pipeline * chunks
    sizes = parts or tuple(layers // count + (part < layers % count) for part in range(count))
    ends = list(itertools.accumulate(sizes))
    whole = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return tuple(tuple(whole[stage::pipeline]) for stage in range(pipeline))


Alike = tuple[tuple[int, int, bool], ...]
"""Layers by kind: one of each kind, how many there are of it, and whether its forward is recomputed as a whole."""


def alike_layers(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[Alike, ...]:
    """Layers of each chunk of a stage by kind: with experts or without, recomputed or not.

    Example:
        Four layers a stage, of which the first one is recomputed.

        >>> shape = gpt_shape(layers=8, hidden=64, heads=4)
        >>> alike_layers(shape, Degrees(pp=2, recomputed=frozenset({"layers"}), recompute_layers=1), 1)
        (((4, 1, True), (5, 3, False)),)
    """
    return _alike_layers(shape, degrees.pp, degrees.chunks, degrees.segment_layers, _again(shape, degrees), stage)


def alike_on_stage(shape: TransformerShape, degrees: Degrees, stage: int) -> Alike:
    """The same of all chunks of a stage together."""
    return _alike_on_stage(shape, degrees.pp, degrees.chunks, degrees.segment_layers, _again(shape, degrees), stage)


def _again(shape: TransformerShape, degrees: Degrees) -> int:
    """First layers of each chunk that are recomputed, as Megatron's block method counts them."""
    if "layers" not in degrees.recomputed:
        return 0
    return shape.layers if degrees.recompute_layers is None else degrees.recompute_layers


def alike_stages(shape: TransformerShape, degrees: Degrees) -> tuple[int, ...]:
    """For each stage the first one like it: as many layers of each kind, and neither is the first nor the last stage.

    Example:
        >>> alike_stages(gpt_shape(layers=10, hidden=64, heads=4), Degrees(pp=5))
        (0, 1, 1, 1, 4)
    """
    return _alike_stages(shape, degrees.pp, degrees.chunks, degrees.segment_layers, _again(shape, degrees))


@functools.lru_cache(maxsize=4096)
def _alike_stages(
    shape: TransformerShape, pipeline: int, chunks: int, parts: tuple[int, ...], again: int
) -> tuple[int, ...]:
    first: dict[object, int] = {}
    found = []
    for stage in range(pipeline):
        alike = _alike_on_stage(shape, pipeline, chunks, parts, again, stage)
        kinds = frozenset((shape.has_experts(layer), number, recomputed) for layer, number, recomputed in alike)
        found.append(first.setdefault((kinds, stage == 0, stage == pipeline - 1), stage))
    return tuple(found)


@functools.lru_cache(maxsize=16384)
def _alike_on_stage(
    shape: TransformerShape, pipeline: int, chunks: int, parts: tuple[int, ...], again: int, stage: int
) -> Alike:
    found: dict[tuple[bool, bool], tuple[int, int]] = {}
    for chunk in _alike_layers(shape, pipeline, chunks, parts, again, stage):
        for layer, number, recomputed in chunk:
            kind = shape.has_experts(layer), recomputed
            first, before = found.get(kind, (layer, 0))
            found[kind] = first, before + number
    return tuple((layer, number, recomputed) for (_, recomputed), (layer, number) in found.items())


@functools.lru_cache(maxsize=16384)
def _alike_layers(
    shape: TransformerShape, pipeline: int, chunks: int, parts: tuple[int, ...], again: int, stage: int
) -> tuple[Alike, ...]:
    found = []
    for chunk in _stages(shape.layers, pipeline, chunks, parts)[stage]:
        kinds: dict[tuple[bool, bool], tuple[int, int]] = {}
        for position, layer in enumerate(chunk):
            kind = shape.has_experts(layer), position < again
            first, number = kinds.get(kind, (layer, 0))
            kinds[kind] = first, number + 1
        found.append(tuple((layer, number, recomputed) for (_, recomputed), (layer, number) in kinds.items()))
    return tuple(found)


def passes_in_flight(degrees: Degrees, stage: int) -> tuple[int, ...]:
    """Chunk of each pass whose activations a stage holds at once, at most.

    One forward, one backward (1F1B): stage `p` of `P` runs `P - p - 1` forwards ahead and holds one more. Interleaved,
    `V` chunks a stage alternate every `G` microbatches, `G = P` if nothing else is said: `2 (P - p - 1) + (V - 1) G`
    ahead, and one more. ZB-H1 holds `P` on every stage, since gradients of weights wait. DualPipe and DualPipeV hold
    `P + 1`, of microbatches from both ends.

    Source:
        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
        section 2.2. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2 and table 2, for ZB-H1.
        DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, table 2, for DualPipe; deepseek-ai/DualPipe, README, for
        DualPipeV.

    Example:
        >>> passes_in_flight(Degrees(pp=4, microbatches=8), 0)
        (0, 0, 0, 0)

        Four stages of three chunks: the last one holds 2·0 + 2·4 + 1.

        >>> passes_in_flight(Degrees(pp=4, chunks=3, microbatches=8), 3)
        (0, 0, 0, 0, 1, 1, 1, 1, 2)

        The last of four stages of ZB-H1, and any of DualPipe:

        >>> degrees = [Degrees(pp=4, microbatches=8, schedule=name) for name in ("zero-bubble", "dualpipe")]
        >>> [len(passes_in_flight(each, 3)) for each in degrees]
        [4, 5]
    """
    behind = degrees.pp - stage - 1
    if degrees.pp == 1:
        return (0,)
    if degrees.schedule in ("zero-bubble", "dualpipe", "dualpipev"):
        return (0,) * min(degrees.pp + (degrees.schedule != "zero-bubble"), degrees.microbatches)
    if degrees.chunks == 1:
        return (0,) * min(behind + 1, degrees.microbatches)
    group = degrees.microbatch_group or degrees.pp
    count = min(2 * behind + (degrees.chunks - 1) * group + 1, degrees.microbatches * degrees.chunks)
    return tuple(index // group % degrees.chunks for index in range(count))


def stage_ends(degrees: Degrees, stage: int) -> tuple[bool, bool]:
    """Whether a rank of a stage holds the embedding, and whether it holds the output layer.

    Example:
        >>> [stage_ends(Degrees(pp=4, schedule=name), 3) for name in ("1f1b", "dualpipe", "dualpipev")]
        [(False, True), (True, True), (False, False)]
    """
    first, last = stage == 0, stage == degrees.pp - 1
    if degrees.schedule == "dualpipe":
        return first or last, first or last
    return first, first if degrees.schedule == "dualpipev" else last


def tokens_of_rank(shape: TransformerShape, degrees: Degrees) -> int:
    """Tokens of a microbatch that a rank computes."""
    return shape.sequence * degrees.microbatch // degrees.cp


def stream_bytes(shape: TransformerShape, degrees: Degrees, element_bytes: int = 2) -> int:
    """The residual stream between two layers, for one microbatch [bytes]."""
    shared = degrees.tp if degrees.sequence_parallel else 1
    return tokens_of_rank(shape, degrees) * shape.hidden * element_bytes // shared


def stage_elements(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[int, int]:
    """Parameters that a rank of a stage holds: those that all replicas hold, and those of its experts.

    The last stage holds the output layer; where it is tied to the embedding, as a copy of it.
    """
    layers = alike_on_stage(shape, degrees, stage)
    if degrees.schedule == "dualpipe" and degrees.pp > 1:
        # A rank holds the stage as far from the other end too.
        layers += alike_on_stage(shape, degrees, degrees.pp - 1 - stage)
    tensor = degrees.tp
    dense = experts = 0
    for layer, alike, _ in layers:
        dense += alike * layer_elements(shape, layer, tensor=tensor)
        experts += alike * expert_elements(shape, layer, expert=degrees.ep, expert_tensor=degrees.expert_ranks)
    table = embedding_elements(shape, tensor)
    first, last = stage_ends(degrees, stage)
    if first:
        dense += table + shape.positions * shape.hidden
    if last:
        dense += head_elements(shape, tensor)
        dense += table if (not shape.tied or degrees.pp > 1) else 0
    return dense, experts
