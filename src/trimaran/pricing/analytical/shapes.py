"""The shape of a transformer, and how it is sharded over devices.

Decoders (GPT, Llama, mixtures of experts, latent attention, windows of attention, parallel blocks, layers that predict
further tokens) and encoders with a masked-language head (BERT). Left out: networks of two stacks, state-space layers,
vision towers. `huggingface_config.py` reads shapes from Hugging Face configurations.

Ranks of a sharded transformer form a box: `tp` ranks share each layer, `cp` ranks each sequence, `pp` stages the stack,
`dp` replicas the batch. With experts, `ep` of the ranks that hold replicas of attention hold different experts.
"""

import functools
import itertools
from collections import Counter
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
class LinearAttention:
    """A gated delta rule in place of attention, whose state is of a fixed size, in all layers but every n-th.

    Attributes:
        key_heads: of queries, and of keys
        value_heads: of values; several share one of keys
        key_size: of each head of queries and keys
        value_size: of each head of values
        kernel: tokens of the convolution before it
        every: of this number of layers the last one has ordinary attention
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward networks; each token is routed to a few of them.

    Attributes:
        count: of them
        active: visited by a token
        ffn: inner size of each
        shared_ffn: inner size of the one that every token visits; 0: none
        dense_layers: first layers that have an ordinary feed-forward network instead
        every: of the layers after these, every n-th one of the stack has experts, the others an ordinary network
        shared_gate: the output of the shared one is weighed by a product of the token's state
        imbalance: visits to the experts of the busiest rank, by those of a rank if all had the same
    """

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    every: int = 1
    shared_gate: bool = False
    imbalance: float = 1.0

    def load(self, ranks: int) -> float:
        """Visits to the experts of the busiest of some ranks, by those of a rank if all had the same.

        A rank alone has all experts, so it has all visits, however they spread. Of several, none has more than all
        visits that its experts can have: a token visits an expert once.

        Args:
            ranks: that hold different experts

        Example:
            Two of eight experts for each token, four ranks of two experts: at most every token visits both, four times
            the balanced load. On eight ranks of one expert at most every token visits it once: 8 / 2.

            >>> experts = Experts(count=8, active=2, ffn=64, imbalance=6.0)
            >>> [experts.load(ranks) for ranks in (1, 2, 4, 8)]
            [1.0, 2.0, 4.0, 4.0]
        """
        if self.imbalance == 1.0 or ranks == 1:
            return 1.0
        most = ranks * min(self.active, self.count / ranks) / self.active
        return min(self.imbalance, max(1.0, most))


Biased = Literal["qkv", "output", "feed_forward", "router", "head"]
"""Linear layers that may have biases: queries with keys and values, attention's output, feed-forward networks and
experts, the choice of experts, the product with the vocabulary."""

LAYER_BIASES: frozenset[Biased] = frozenset({"qkv", "output", "feed_forward"})
"""Biases of all linear layers of GPT's blocks."""

NO_BIASES: frozenset[Biased] = frozenset()


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
        vocabulary: rows of the embedding
        sequence: tokens of a sequence
        padding: the training program makes the rows of the embedding a multiple of this number
        gated: the feed-forward network has two inner products (SwiGLU)
        composed_activation: modules of PyTorch write the activation as eight operations (GELU by a tanh of powers)
        biases: which linear layers have them
        tied: the output layer uses the embedding's weights
        positions: rows of learned position embeddings; 0: rotary ones or none
        segments: rows of learned embeddings of segments; 0: none
        rotary: queries and keys are rotated
        norms: of the residual stream in a layer: before or after attention and feed-forward network (2), before and
            after (4); in a parallel block one that both share, or two
        centred_norm: norms have a bias (LayerNorm), not a scale alone (RMSNorm)
        norm_scales: norms have parameters
        embedding_norm: the embedding is normalized
        query_key_norm: queries and keys are normalized, by scales that heads share ("head"), by a scale for each
            channel of all heads ("whole"), or without parameters ("bare"); None: they are not
        parallel: attention and feed-forward network both start from the layer's input, and one sum joins them to it
        windows: tokens that a token attends to, itself included, layer by layer, repeated over the stack; 0: all
            before it; empty: all layers to all
        chunked: windows do not slide: a sequence is split into chunks of that length, and attention stays inside
        sinks: each head has a learned score that takes part of attention's probability
        hidden_dropout: dropout after the embedding and each sub-layer
        attention_dropout: dropout of attention's probabilities
        experts: in place of feed-forward networks
        latent: in place of ordinary attention
        linear: in place of attention in most layers
        output_gate: attention's output is multiplied by a gate that is as wide
        prediction_layers: modules after the stack that each predict one token further ahead (MTP): a projection of
            two states to one, a layer as the last of the stack, three norms, and another pass of the head
        head: layers after the stack: "causal" (products with the vocabulary), "masked_tokens" (one dense layer before),
            "masked" (likewise, and a choice whether the next sentence follows)
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    sequence: int
    padding: int = 1
    gated: bool = False
    composed_activation: bool = False
    biases: frozenset[Biased] = LAYER_BIASES
    tied: bool = True
    positions: int = 0
    segments: int = 0
    rotary: bool = False
    norms: int = 2
    centred_norm: bool = True
    norm_scales: bool = True
    embedding_norm: bool = False
    query_key_norm: Literal["head", "whole", "bare"] | None = None
    parallel: bool = False
    windows: tuple[int, ...] = ()
    chunked: bool = False
    sinks: bool = False
    hidden_dropout: bool = False
    attention_dropout: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    output_gate: bool = False
    prediction_layers: int = 0
    head: Literal["causal", "masked", "masked_tokens"] = "causal"

    def __hash__(self) -> int:
        """By the figures in which networks differ most: a search asks for it very often."""
        return hash((self.layers, self.hidden, self.sequence))

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts.

        Example:
            Every second layer, the second one of the stack first (Llama 4 Maverick):

            >>> from dataclasses import replace
            >>> shape = gpt_shape(layers=4, hidden=64, heads=4)
            >>> shape = replace(shape, experts=Experts(count=8, active=1, ffn=64, every=2))
            >>> [shape.has_experts(layer) for layer in range(4)]
            [False, True, False, True]
        """
        experts = self.experts
        return experts is not None and layer >= experts.dense_layers and (layer + 1) % experts.every == 0

    def is_linear(self, layer: int) -> bool:
        """Whether a layer has linear attention."""
        return self.linear is not None and (layer + 1) % self.linear.every != 0

    def window(self, layer: int) -> int:
        """Tokens that a token of a layer attends to at most, itself included; 0: all before it.

        Example:
            Gemma 3: five layers of 1,024 tokens, then one of all. A window as long as the sequence is none.

            >>> from dataclasses import replace
            >>> shape = replace(gpt_shape(layers=12, hidden=64, heads=4, sequence=4096), windows=(1024,) * 5 + (0,))
            >>> [shape.window(layer) for layer in (0, 4, 5, 6)]
            [1024, 1024, 0, 1024]
            >>> replace(shape, sequence=1024).window(0)
            0
        """
        tokens = self.windows[layer % len(self.windows)] if self.windows else 0
        return tokens if tokens < self.sequence else 0


def gpt_shape(
    *, layers: int, hidden: int, heads: int, vocabulary: int = 50304, sequence: int = 1024
) -> TransformerShape:
    """A decoder as in GPT-2 and GPT-3: four times the hidden size inside, biases, learned positions, one embedding.

    Example:
        >>> from trimaran.pricing.analytical.layers import parameter_count
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
        hidden_dropout=True,
        attention_dropout=True,
    )


def query_size(shape: TransformerShape, tensor: int = 1) -> int:
    """Size of all queries of a token on one of `tensor` ranks."""
    return shape.heads * shape.head_size // tensor


def key_size(shape: TransformerShape, tensor: int = 1) -> int:
    """Size of all keys of a token on one of `tensor` ranks; where there are fewer heads than ranks, ranks share one."""
    return -(-shape.kv_heads // tensor) * shape.head_size


def norm_elements(shape: TransformerShape) -> int:
    """Elements of one norm of the residual stream."""
    return shape.hidden * (1 + shape.centred_norm) if shape.norm_scales else 0


def vocabulary_rows(shape: TransformerShape, tensor: int = 1) -> int:
    """Rows of the table of tokens on one of `tensor` ranks, as the training program pads them.

    Example:
        50,257 entries of GPT-2, padded to a multiple of 128:

        >>> from dataclasses import replace
        >>> vocabulary_rows(replace(gpt_shape(layers=12, hidden=768, heads=12, vocabulary=50257), padding=128))
        50304
    """
    padded = -(-shape.vocabulary // shape.padding) * shape.padding
    return -(-padded // tensor)


def embedding_elements(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of the table of tokens on one of `tensor` ranks, as the training program pads it."""
    return vocabulary_rows(shape, tensor) * shape.hidden


def position_elements(shape: TransformerShape) -> int:
    """Elements that join the table of tokens: positions, segments, the norm of the embedding."""
    learned = (shape.positions + shape.segments) * shape.hidden
    return learned + (norm_elements(shape) if shape.embedding_norm else 0)


def head_elements(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of the layers after the stack, without the product with the vocabulary.

    Of a masked head the two norms are that of the embedding and its own; "masked" has a dense layer and a choice of
    two more, for the next sentence.
    """
    rows = vocabulary_rows(shape, tensor)
    if shape.head == "causal":
        return norm_elements(shape) + (rows if "head" in shape.biases else 0)
    dense = shape.hidden * (shape.hidden + 1)
    sentence = dense + 2 * (shape.hidden + 1) if shape.head == "masked" else 0
    return 2 * norm_elements(shape) + dense + rows + sentence


@functools.lru_cache(maxsize=4096)
def layer_kinds(shape: TransformerShape, chunks: tuple[range, ...]) -> tuple[tuple[int, int], ...]:
    """Kinds of layers in chunks of the stack: with or without experts, by windows of attention, and by its kind.

    Args:
        shape: the network
        chunks: layers of a stage

    Returns:
        Of each kind the first layer of the whole stack that is of it, and how many layers of the chunks are.

    Example:
        Three first layers of 61 without experts, of which a first stage of 16 layers has all:

        >>> from dataclasses import replace
        >>> shape = replace(gpt_shape(layers=61, hidden=64, heads=4), experts=Experts(count=8, active=2, ffn=64))
        >>> shape = replace(shape, experts=replace(shape.experts, dense_layers=3))
        >>> layer_kinds(shape, (range(16),)), layer_kinds(shape, (range(16, 32),))
        (((0, 3), (3, 13)), ((3, 16),))
    """
    firsts = _first_of_kind(shape)
    counted = Counter(firsts[layer] for chunk in chunks for layer in chunk)
    return tuple(sorted(counted.items()))


@functools.lru_cache(maxsize=64)
def _first_of_kind(shape: TransformerShape) -> tuple[int, ...]:
    known: dict[tuple[bool, int, bool], int] = {}
    kinds = ((shape.has_experts(layer), shape.window(layer), shape.is_linear(layer)) for layer in range(shape.layers))
    return tuple(known.setdefault(kind, layer) for layer, kind in enumerate(kinds))


PADDING = 128
"""Rows of the table of tokens that Megatron pads to a multiple of.

Source:
    NVIDIA/Megatron-LM, megatron/training/arguments.py, `--make-vocab-size-divisible-by`.
"""

_LLAMA_LIKE = frozenset({"llama", "llama1", "llama2", "llama3"})


def decoder_of(text: str, sequence: int) -> TransformerShape | None:
    """The shape of a published decoder of `networks/sizes.py`.

    Its learned positions are those that it was published with, or one for each token of a longer sequence, as in the
    job of that name.

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
        vocabulary=figures.vocabulary,
        sequence=sequence,
        padding=PADDING,
        gated=llama,
        biases=NO_BIASES if llama or mosaic else LAYER_BIASES,
        tied=figures.tied,
        positions=0 if llama or mosaic else max(sequence, figures.positions),
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
"""Layers by kind: the first of the stack of each kind, how many there are, and whether their forward is recomputed."""


def alike_layers(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[Alike, ...]:
    """Layers of each chunk of a stage by kind (`layer_kinds`), recomputed or not.

    Example:
        Four layers a stage, of which the first one is recomputed.

        >>> shape = gpt_shape(layers=8, hidden=64, heads=4)
        >>> alike_layers(shape, Degrees(pp=2, recomputed=frozenset({"layers"}), recompute_layers=1), 1)
        (((0, 1, True), (0, 3, False)),)
    """
    return _alike_layers(shape, degrees.pp, degrees.chunks, degrees.segment_layers, _again(shape, degrees), stage)


def alike_on_stage(shape: TransformerShape, degrees: Degrees, stage: int) -> Alike:
    """The same of all chunks of a stage together."""
    return alike_on_stage_of(shape, degrees.pp, degrees.chunks, degrees.segment_layers, _again(shape, degrees), stage)


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
        alike = alike_on_stage_of(shape, pipeline, chunks, parts, again, stage)
        found.append(first.setdefault((frozenset(alike), stage == 0, stage == pipeline - 1), stage))
    return tuple(found)


@functools.lru_cache(maxsize=16384)
def alike_on_stage_of(
    shape: TransformerShape, pipeline: int, chunks: int, parts: tuple[int, ...], again: int, stage: int
) -> Alike:
    """The same by what it depends on: stages, chunks, layers of parts, recomputed layers of each chunk."""
    found: Counter[tuple[int, bool]] = Counter()
    for chunk in _alike_layers(shape, pipeline, chunks, parts, again, stage):
        found.update({(layer, recomputed): number for layer, number, recomputed in chunk})
    return tuple((layer, number, recomputed) for (layer, recomputed), number in found.items())


@functools.lru_cache(maxsize=16384)
def _alike_layers(
    shape: TransformerShape, pipeline: int, chunks: int, parts: tuple[int, ...], again: int, stage: int
) -> tuple[Alike, ...]:
    firsts = _first_of_kind(shape)
    found = []
    for chunk in _stages(shape.layers, pipeline, chunks, parts)[stage]:
        kinds = Counter((firsts[layer], position < again) for position, layer in enumerate(chunk))
        found.append(tuple((layer, number, recomputed) for (layer, recomputed), number in kinds.items()))
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
