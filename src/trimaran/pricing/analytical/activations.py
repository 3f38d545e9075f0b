"""Memory that a layer keeps for its backward, for one microbatch.

Bytes of each token, with two bytes an element, of a layer of hidden size h, `a` heads and an inner size of 4h on `t`
ranks (Korthikanti et al.): `h (10 + 24/t) + 5 a s / t`; with the residual stream sharded too, `34 h / t + 5 a s / t`.
The terms are counted apart here, so that grouped heads, gates, experts and fused attention follow from the same rules:

    norms          input 2h, output 2h, twice
    attention      queries, keys, values 2 (q + 2k); output 2q
                   probabilities 2as; with dropout, mask as and result 2as
                   fused: neither, but a second copy of its output 2q and 4 a of statistics
    feed-forward   before its activation 2f (gated 4f), after it 2f
    dropout        mask h, after attention and after the feed-forward network

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.
    Dao et al., "FlashAttention", 2022, for fused attention.
"""

from dataclasses import dataclass
from typing import Literal

from trimaran.pricing.analytical.shapes import TransformerShape, key_size, query_size
from trimaran.program.strategy import Degrees

AttentionKernel = Literal["fused", "unfused"]
"""Whether attention keeps its probabilities ("unfused") or recomputes them from statistics ("fused")."""

_STATISTIC = 4
"""Bytes of a statistic that a kernel keeps for its backward."""


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


def tokens_of_rank(shape: TransformerShape, degrees: Degrees) -> int:
    """Tokens of a microbatch that a rank computes."""
    return shape.sequence * degrees.microbatch // degrees.cp


def stream_bytes(shape: TransformerShape, degrees: Degrees, element_bytes: int = 2) -> int:
    """The residual stream between two layers, for one microbatch [bytes]."""
    shared = degrees.tp if degrees.sequence_parallel else 1
    return tokens_of_rank(shape, degrees) * shape.hidden * element_bytes // shared


def layer_activations(
    shape: TransformerShape,
    degrees: Degrees,
    *,
    attention: AttentionKernel,
    element_bytes: int = 2,
    product_input_bytes: int = 2,
    layer: int = 0,
) -> LayerActivations:
    """Activation memory of a layer for one microbatch.

    Args:
        shape: the network
        degrees: of it
        attention: kind of kernel
        element_bytes: of an element [bytes]
        product_input_bytes: of an element that a product keeps as its input: 1 where it computes in 8 bits [bytes]
        layer: which one, from the first of the stack: the first ones may have no experts

    Returns:
        Its activations.

    Example:
        A layer of GPT with h = 512, 8 heads, 4 sequences of 1,024 tokens: 34 · 512 + 5 · 8 · 1024 bytes a token, and
        16 of the norms' statistics.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=12, hidden=512, heads=8)
        >>> layer_activations(shape, Degrees(microbatch=4), attention="unfused").kept
        239140864
        >>> 4096 * (34 * 512 + 5 * 8 * 1024 + 16)
        239140864
    """
    tokens = tokens_of_rank(shape, degrees)
    shared = degrees.tp if degrees.sequence_parallel else 1
    stream = tokens * shape.hidden // shared
    norms = 2 * stream * product_input_bytes + 4 * tokens * _STATISTIC // shared
    masks = 2 * stream if shape.hidden_dropout else 0
    core = _attention_core(shape, degrees, attention, element_bytes)
    made, up = _attention_inputs(shape, degrees, element_bytes)
    before, after = _feed_forward(shape, degrees, layer, element_bytes)
    after = after * product_input_bytes // element_bytes
    inputs = 2 * stream * element_bytes
    whole = inputs + norms + masks + core + made + before + after
    again = degrees.recomputed
    if "layers" in again:
        kept = stream * element_bytes
    else:
        kept = whole
        kept -= norms if "norms" in again else 0
        kept -= core - _attention_output(shape, degrees, element_bytes) if "attention" in again else 0
        kept -= up if "up_projections" in again else 0
        kept -= after if {"activations", "feed_forward"} & again else 0
        kept -= before if "feed_forward" in again else 0
    grows = before + after + 2 * stream * element_bytes
    scores = tokens * shape.heads // degrees.tp * shape.sequence * 2 * element_bytes if attention == "unfused" else 0
    return LayerActivations(kept=kept, whole=whole, transient=max(grows, scores))


def _attention_output(shape: TransformerShape, degrees: Degrees, element_bytes: int) -> int:
    size = query_size(shape, degrees.tp)
    if shape.latent is not None:
        size = shape.heads * shape.latent.value_size // degrees.tp
    return tokens_of_rank(shape, degrees) * size * element_bytes


def _attention_core(shape: TransformerShape, degrees: Degrees, attention: AttentionKernel, element_bytes: int) -> int:
    tokens, heads = tokens_of_rank(shape, degrees), shape.heads // degrees.tp
    output = _attention_output(shape, degrees, element_bytes)
    if attention == "fused":
        return 2 * output + tokens * heads * _STATISTIC
    each = element_bytes + (1 + element_bytes if shape.attention_dropout else 0)
    return output + tokens * heads * shape.sequence * each


def _attention_inputs(shape: TransformerShape, degrees: Degrees, element_bytes: int) -> tuple[int, int]:
    """Bytes of queries, keys, values and their inputs, and the part of them that up projections compute."""
    tokens, tensor = tokens_of_rank(shape, degrees), degrees.tp
    if shape.latent is not None:
        latent = shape.latent
        wide = latent.head_size + latent.rotary_size
        heads = shape.heads // tensor
        up = heads * (2 * wide + latent.head_size + latent.value_size) * element_bytes * tokens
        down = (2 * latent.query_rank + 2 * latent.key_rank + latent.rotary_size) * element_bytes * tokens
        rotated = heads * wide * element_bytes * tokens
        return up + down + rotated, up + rotated
    queries, keys = query_size(shape, tensor), key_size(shape, tensor)
    size = queries + 2 * keys
    size += queries + keys if shape.rotary else 0
    size += queries + keys if shape.query_key_norm else 0
    return size * element_bytes * tokens, 0


def _feed_forward(shape: TransformerShape, degrees: Degrees, layer: int, element_bytes: int) -> tuple[int, int]:
    """Bytes before and after the activation function."""
    tokens = tokens_of_rank(shape, degrees)
    gates = 2 if shape.gated else 1
    if shape.experts is None or not shape.has_experts(layer):
        inner = shape.ffn // degrees.tp * tokens * element_bytes
        return gates * inner, inner
    experts = shape.experts
    # Tokens of all ranks of a layer spread evenly over its experts, so a rank receives the number that it sends.
    share = degrees.tp if degrees.sequence_parallel else 1
    visits = tokens * experts.active * degrees.tp // (share * degrees.expert_ranks)
    shared = experts.shared_ffn // degrees.tp * tokens * element_bytes
    inner = visits * experts.ffn * element_bytes + shared
    routed = 2 * tokens * experts.active // share * shape.hidden * element_bytes
    gathered = tokens * experts.count * _STATISTIC // share
    return gates * inner + routed + gathered, inner
