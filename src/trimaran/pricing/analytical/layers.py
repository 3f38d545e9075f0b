"""The table of a layer: each operation once, and every figure of a layer that is a sum over its rows.

    parameters   `elements`: matrices `n k`, biases and scales; those of experts apart
    FLOP, bytes  `work` of a forward (`PassWork`), whole or of the rows that a backward computes again
    memory       `kept` for the backward: what rows keep that are not computed again
    exchanges    `sum_count`: rows whose result the ranks of a layer sum

How ranks divide an operation is said in its row: `n` or `k` by tensor ranks, or by those that share an expert, and what
is of the residual stream where that is sharded. All figures are of one token of a rank: microbatches and ranks of a
sequence multiply them. Kernels are columns: that of attention, and PyTorch's modules in place of Megatron's (`Eager`).

The backward of a product is two of its size, that of one kernel of attention two and a half (it computes probabilities
again). That of a norm reads two tensors and writes one, that of a sum with dropout reads one and its mask and writes
one: as many bytes as their forwards move (Korthikanti et al., 2022, table 4, where sharding them saves 0.5 and 0.1 ms).

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4, for what is
    kept and exchanged; Narayanan et al., SC 2021, appendix, for FLOP of a layer; Dao, "FlashAttention-2", 2023;
    DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1, for latent attention.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeGuard, TypeVar

import numpy
from numpy.typing import NDArray

from trimaran.pricing.analytical.shapes import (
    Experts,
    LatentAttention,
    LinearAttention,
    TransformerShape,
    alike_on_stage_of,
    embedding_elements,
    head_elements,
    key_size,
    layer_kinds,
    norm_elements,
    position_elements,
    query_size,
    stage_ends,
    tokens_of_rank,
)
from trimaran.program.strategy import Degrees, GradientType, Recomputed, Schedule

Number = TypeVar("Number", float, NDArray[numpy.float64])

AttentionKernel = Literal["math", "flash2", "flash3", "cudnn"]
"""What computes attention: batched products, which keep its probabilities ("math"), or one kernel that recomputes them
from statistics: FlashAttention-2, whose instructions are Ampere's, or one that has those of later units (`NATIVE`)."""

NATIVE: frozenset[AttentionKernel] = frozenset({"flash3", "cudnn"})
"""FlashAttention-2 reaches 35 % of an H100, its successor 75 % (Shah et al., "FlashAttention-3", 2024), as does the one
of cuDNN, which Transformer Engine takes."""

_FUSED_BACKWARD = 2.5
GRADIENT_BYTES: Mapping[GradientType, int] = {"fp32": 4, "bf16": 2}
"""Of the gradient of a parameter, by its type [bytes]."""

_STATISTIC = 4
"""Bytes of a statistic that a kernel keeps for its backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """What modules of PyTorch move and keep, one operation a kernel, with state that FSDP2 shards.

    Attributes:
        compiled: kernels are a compiler's: elementwise work moves what fused kernels do, results of gates are not kept
        autocast: parameters have 32 bits and products cast what they read (`torch.autocast`): so has the stream
        foreach: the optimizer takes lists of tensors, an operation at a time, as those of `torch.optim` do unless told
        wide_norms: norms without centring compute in 32 bits, each operation a kernel, as those of transformers do
        loss_chunks: parts of a microbatch whose head, loss and backward run one after another
        sums_in_place: replicas that shard nothing add gradients of microbatches in the buffers that they exchange
        holds_logits: a copy of the logits in 32 bits stays through the backward
        fused_loss: a compiler makes one kernel of the loss: logits and their gradient in 16 bits
        whole_loss: ranks that share the head gather the logits, and each computes the loss of all of them, as
            `parallelize_module` does without `loss_parallel`
        narrow: parameters, gradients and moments have 16 bits, without a policy of mixed precision
        hosted: inputs of recomputed layers wait for their backward in the host's memory
    """

    compiled: bool = False
    autocast: bool = False
    foreach: bool = False
    wide_norms: bool = False
    loss_chunks: int = 1
    sums_in_place: bool = False
    holds_logits: bool = False
    fused_loss: bool = False
    whole_loss: bool = False
    narrow: bool = False
    hosted: bool = False


# ---------------------------------------------------------------------------------------------------------------------
# The table


class Operation(NamedTuple):
    """An operation of a layer, by what it has, does and keeps for each token of a rank.

    Attributes:
        name: of it
        part: of the layer: the residual stream, what attention reads, attention, the feed-forward network
        again: kinds of recomputation that compute it in the backward once more, so that what it keeps is not kept
        n: columns of its product on a rank; 0: it is none
        k: elements of each sum of it
        rows: of it
        experts: that a rank has of it, whose products one kernel computes at once; 0: it is of no expert
        scales: elements of biases, scales, and of matrices whose product is too small to count
        keeps: share of its result that is kept [0..1]
        second: the same where every second product is computed again, and so is the rest of it [0..1]
        whole: share of its result that a rank has once ranks have summed it [0..1]
        attention: products of queries with keys, and of probabilities with values [FLOP]
        moved: bytes that it reads and writes but for its product
        back: the same of its backward; None: twice as many, of the residual stream as many
        routed: bytes of tokens that are put in the order of their experts, and back
        kept: channels that are kept in the type of activations
        read: channels that are kept in the type in which products read them
        fixed: bytes that are kept whatever the type: statistics and masks
        sums: of its result over the ranks of a layer, in a pass
        host: layers, softmaxes of many kernels, and exchanges of experts' tokens that a host has to ask for
    """

    name: str
    part: Literal["stream", "inputs", "attention", "feed_forward"]
    again: frozenset[Recomputed] = frozenset()
    n: int = 0
    k: int = 0
    rows: float = 1.0
    experts: int = 0
    scales: int = 0
    keeps: float = 0.0
    second: float = 0.0
    whole: float = 1.0
    attention: float = 0.0
    moved: float = 0.0
    back: float | None = None
    routed: float = 0.0
    kept: float = 0.0
    read: float = 0.0
    fixed: float = 0.0
    sums: int = 0
    host: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def elements(self) -> int:
        """Of its parameters on a rank."""
        return max(1, self.experts) * (self.n * self.k + self.scales)

    @property
    def moved_back(self) -> float:
        """Bytes that its backward reads and writes but for products."""
        return self.moved * (1 if self.part == "stream" else 2) if self.back is None else self.back

    def nbytes(self, element: int, read: int, *, second: bool = False) -> float:
        """What it keeps [bytes].

        Args:
            element: of an activation [bytes]
            read: of an element that a product keeps as its input [bytes]
            second: every second product is computed again
        """
        results = self.rows * self.n * self.whole * (self.second if second else self.keeps)
        return (self.kept + results) * element + self.read * read + self.fixed


_NORMS: frozenset[Recomputed] = frozenset({"norms", "second_products"})
_SECOND: frozenset[Recomputed] = frozenset({"second_products"})
_UP: frozenset[Recomputed] = frozenset({"up_projections"})
_CORE: frozenset[Recomputed] = frozenset({"attention"})
_NETWORK: frozenset[Recomputed] = frozenset({"feed_forward"})
_ACTIVATION: frozenset[Recomputed] = frozenset({"activations", "feed_forward", "second_products"})


def operations(
    shape: TransformerShape,
    degrees: Degrees,
    layer: int,
    *,
    attention: AttentionKernel = "flash2",
    eager: Eager | None = None,
) -> tuple[Operation, ...]:
    """The table of a layer, in the order in which a forward computes.

    Args:
        shape: the network
        degrees: of it
        layer: of the stack: it may have experts
        attention: kind of kernel
        eager: by modules of PyTorch; None: by Megatron's kernels

    Example:
        A layer of GPT with h = 512: its products have 12 h² elements.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> table = operations(gpt_shape(layers=1, hidden=512, heads=8), Degrees(), 0)
        >>> [(row.name, row.n, row.k) for row in table if row.n]  # doctest: +NORMALIZE_WHITESPACE
        [('queries, keys, values', 1536, 512), ('output', 512, 512), ('inner products', 2048, 512),
         ('outer product', 512, 2048)]
    """
    sparse = shape.has_experts(layer)
    spread = (degrees.ep, degrees.expert_ranks) if sparse else (1, 1)
    fused = attention != "math"
    apart = not fused and not softmax_kernel_fits(shape, degrees)
    # A kernel that is not fused computes all pairs and masks them.
    spanned = attended_tokens(shape, layer) if fused else float(shape.sequence)
    spanned *= 0.5 if fused and shape.head == "causal" else 1.0
    kernel = spanned, fused, apart, shape.is_linear(layer)
    return _operations(shape, degrees.tp, degrees.sequence_parallel, sparse, spread, kernel, eager)


_Kernel = tuple[float, bool, bool, bool]
"""Of attention: tokens that a token attends to; whether one kernel does all, its softmax is many, it is linear."""


@functools.lru_cache(maxsize=8192)
def _operations(
    shape: TransformerShape,
    tp: int,
    sequence_parallel: bool,
    sparse: bool,
    spread: tuple[int, int],
    kernel: _Kernel,
    eager: Eager | None,
) -> tuple[Operation, ...]:
    shared = tp if sequence_parallel else 1
    stream, norms = shape.hidden / shared, shape.norms
    inputs = (1 if shape.parallel else 2) + max(0, norms - 2)
    wide = 4 * inputs * stream if eager and eager.wide_norms and not shape.centred_norm else 0.0
    norm, added = _norm_bytes(shape, eager), _sum_bytes(shape, eager)
    attention, output = _attention(shape, tp, kernel, eager)
    return (
        Operation("input", "stream", kept=stream, host=(1.0, 0.0, 0.0)),
        # Two norms before sub-layers, or two after them, have an output each that a product or the stream keeps.
        # DTensor keeps what a product reads: the whole sequence, gathered.
        Operation(
            *("norms", "stream", _NORMS),
            scales=norms * norm_elements(shape),
            moved=norm[0] * norms * stream,
            back=norm[1] * norms * stream,
            read=min(2, norms) * (shape.hidden if eager else stream),
            fixed=2 * norms * _STATISTIC / shared + wide,
        ),
        *attention,
        Operation(
            *("output", "attention"),
            n=shape.hidden,
            k=output,
            scales=shape.hidden if "output" in shape.biases else 0,
            kept=output,
            sums=1,
        ),
        *(
            _experts(shape, shape.experts, tp, shared, *spread, eager)
            if sparse and shape.experts is not None
            else _network(shape, shape.ffn // tp, shared, eager)
        ),
        Operation(
            *("sums", "stream", _SECOND),
            moved=added[0] * stream,
            back=added[1] * stream,
            kept=(inputs - 1) * stream,
            fixed=2 * stream if shape.hidden_dropout else 0.0,
        ),
    )


def _is_eager(eager: Eager | None) -> TypeGuard[Eager]:
    return eager is not None and not eager.compiled


def _norm_bytes(shape: TransformerShape, eager: Eager | None) -> tuple[float, float]:
    """Bytes that a norm reads and writes of an element, forward and backward.

    In one kernel 2 are read and 2 written, backward 4 and 2; Megatron's fuses the sum that follows. In 32 bits, an
    operation a kernel, as modules of Hugging Face write it: to 32 bits (2 + 4), square (4 + 4), mean (4), times its
    root (4 + 4), to 16 bits (4 + 2), times the scale (2 + 2); backward 92 for the same. A stream of 32 bits needs no
    change of type.
    """
    if not _is_eager(eager):
        return 4.0, 4.0
    if eager.wide_norms and not shape.centred_norm:
        return (28.0 if eager.autocast else 36.0), 92.0
    element = 4.0 if eager.autocast else 2.0
    return 2 * element, 3 * element


def _sum_bytes(shape: TransformerShape, eager: Eager | None) -> tuple[float, float]:
    """Bytes of a channel of the stream that a layer's sums read and write, forward and backward.

    An operation a kernel: two sums of the stream (2 + 2 + 2; with a stream of 32 bits 4 + 2 + 4) and their dropouts
    (2 + 1 + 2). Backward, gradients of what more than one operation read are added (3 elements each), and with autocast
    those of sub-layers are made 16 bits (4 + 2); each product casts the norm that it reads, and its gradient. Gated
    layers have three products of attention's inputs and two of the network's, others one each.
    """
    if not _is_eager(eager):
        return (9.0, 9.0) if shape.parallel else (14.0, 14.0)
    element = 4.0 if eager.autocast else 2.0
    dropped = 10.0 if shape.hidden_dropout else 0.0
    products, read = 5 if shape.gated else 2, 1 if shape.parallel and shape.norms == 1 else 2
    casts = 6.0 * products if eager.autocast else 0.0
    sums = 2 * (2 * element + 2)
    again = (2 + products - read) * 3 * element + (12.0 if eager.autocast else 0.0)
    return sums + dropped + casts, again + dropped + casts


def _attention(
    shape: TransformerShape, tp: int, kernel: _Kernel, eager: Eager | None
) -> tuple[tuple[Operation, ...], int]:
    """Rows from the norm before attention to its output, and channels of that."""
    (spanned, fused, apart, is_linear), heads = kernel, shape.heads // tp
    if shape.linear is not None and is_linear:
        return _delta_rule(shape, shape.linear, tp)
    if shape.latent is None:
        rows, queries = _attention_inputs(shape, tp, eager)
        output = queries
    else:
        rows, queries = _latent_inputs(shape, shape.latent, tp)
        output = heads * shape.latent.value_size
    pairs = 0 if fused else heads * shape.sequence
    return (
        *rows,
        # Products alone leave scores to be scaled, masked and normalized (2 + 2 bytes of each; backward 4 + 2) and
        # dropped out (2 + 3; 3 + 2): 20 in all three passes; three times 20 more where the kernel that does the first
        # three at once cannot run, for the same in 32 bits, one after another.
        Operation(
            *("attention", "attention", _CORE),
            scales=heads if shape.sinks and shape.latent is None else 0,
            attention=4.0 * spanned * queries,
            moved=(20 / 3 + (20 if apart else 0)) * pairs,
            kept=pairs * (1 + shape.attention_dropout),
            fixed=heads * _STATISTIC if fused else pairs * shape.attention_dropout,
            host=(0.0, float(apart), 0.0),
        ),
        Operation("second copy", "attention", _CORE | _SECOND, kept=output if fused and not eager else 0),
    ), output


def _attention_inputs(shape: TransformerShape, tp: int, eager: Eager | None) -> tuple[tuple[Operation, ...], int]:
    """Rows before attention, and channels of its queries."""
    queries, keys = query_size(shape, tp), key_size(shape, tp)
    gates = queries * shape.output_gate
    scales = {"head": 2 * shape.head_size * (1 + shape.centred_norm), "whole": queries + keys}
    normed = (queries + keys) * bool(shape.query_key_norm and _is_eager(eager))
    norm, rotated = _norm_bytes(shape, eager), _rotation_bytes(eager, normed=normed > 0)
    # What products make has 16 bits, so that a norm of it changes the type twice.
    casts = 10.0 if eager is not None and eager.autocast else 0.0
    return (
        Operation(
            *("queries, keys, values", "inputs"),
            n=queries + gates + 2 * keys,
            k=shape.hidden,
            scales=queries + gates + 2 * keys if "qkv" in shape.biases else 0,
            keeps=1.0,
            # Queries and values: products are of queries, keys, values.
            second=(queries + gates + keys) / (queries + gates + 2 * keys),
        ),
        Operation("output gate", "inputs", _SECOND, moved=6 * gates, kept=gates),
        Operation(
            *("norms of queries and keys", "inputs", _SECOND),
            scales=scales.get(shape.query_key_norm or "", 0),
            moved=(norm[0] + casts) * normed,
            back=norm[1] * normed,
            kept=queries + keys if shape.query_key_norm else 0,
        ),
        Operation(
            *("rotation", "inputs", _SECOND),
            moved=rotated[0] * (queries + keys) * shape.rotary,
            back=rotated[1] * (queries + keys) * shape.rotary,
            kept=(queries + keys) * (shape.rotary and eager is None),
        ),
    ), queries


def _rotation_bytes(eager: Eager | None, *, normed: bool) -> tuple[float, float]:
    """Bytes that rotating an element of queries or keys reads and writes, forward and backward.

    In one kernel 2 + 2, backward twice that. An operation a kernel: a half negated and joined with the other (2 + 4),
    two products and their sum (4 + 4 + 6), backward 34; with a stream of 32 bits tables and results have these, and are
    made 16 bits: 36 and 60. A norm in 32 bits before it leaves those too: 46.
    """
    if not _is_eager(eager):
        return 4.0, 8.0
    if not eager.autocast:
        return 20.0, 34.0
    return (46.0, 60.0) if normed else (36.0, 60.0)


def _activation_bytes(shape: TransformerShape, eager: Eager | None) -> tuple[float, float]:
    """Bytes of an inner channel that an activation and its gate read and write, forward and backward.

    In one kernel all inputs and the result, backward twice that. An operation a kernel: 2 + 2 of the function and 4 + 2
    of its product with a gate, backward 4 + 2 for each factor; of eight operations 36 and 60, under autocast, whose
    powers have 32 bits, 76 and 122.
    """
    if not _is_eager(eager):
        inputs = 2 if shape.gated else 1
        return 2.0 * (inputs + 1), 4.0 * (inputs + 1)
    forward, backward = (10.0, 18.0) if shape.gated else (4.0, 6.0)
    if shape.composed_activation:
        more = (72.0, 116.0) if eager.autocast else (32.0, 54.0)
        forward, backward = forward + more[0], backward + more[1]
    return forward, backward


def _composed_bytes(shape: TransformerShape, eager: Eager | None) -> float:
    """What an activation of eight operations keeps of an inner channel beyond its input and result [bytes].

    Half of its input, the tanh, and one more than that; with autocast the last two in 32 bits, as is the input of the
    power in place of the input.
    """
    if not _is_eager(eager) or not shape.composed_activation:
        return 0.0
    return 12.0 if eager.autocast else 6.0


def _latent_inputs(shape: TransformerShape, latent: LatentAttention, tp: int) -> tuple[tuple[Operation, ...], int]:
    """The same of latent attention, whose down projections have biases, up projections never."""
    heads = shape.heads // tp
    ranks, queries = latent.query_rank + latent.key_rank, heads * (latent.head_size + latent.rotary_size)
    down = ranks + latent.rotary_size
    return (
        Operation(
            *("down projections", "inputs"),
            n=down,
            k=shape.hidden,
            scales=down if "qkv" in shape.biases else 0,
            keeps=1.0,
            second=ranks / down,
        ),
        Operation("norms of latent channels", "inputs", _SECOND, scales=ranks, kept=ranks),
        Operation("queries", "inputs", _UP, n=queries, k=latent.query_rank or shape.hidden, keeps=1.0),
        Operation(
            *("keys, values", "inputs", _UP),
            n=heads * (latent.head_size + latent.value_size),
            k=latent.key_rank,
            keeps=1.0,
        ),
        # Queries rotated, and keys put together with their rotated part.
        Operation(
            *("rotation", "inputs", _UP | _SECOND),
            moved=4 * (queries + key_size(shape, tp)) * shape.rotary,
            kept=2 * queries,
        ),
    ), queries


def _delta_rule(shape: TransformerShape, linear: LinearAttention, tp: int) -> tuple[tuple[Operation, ...], int]:
    """Rows of linear attention, and channels of its output.

    In chunks of c = 64 tokens a head has the products of keys with keys and queries (2 c k each), of their inverse with
    keys and values, of scores with values (2 c (k + 2 v)), and of the state with keys, queries and values (6 k v).

    Source:
        Yang et al., "Gated Delta Networks", ICLR 2025, section 3.3; fla-org/flash-linear-attention, gated_delta_rule.
    """
    heads, keys = linear.value_heads // tp, linear.key_heads * linear.key_size // tp
    k, v, values = linear.key_size, linear.value_size, heads * linear.value_size
    mixed = 2 * keys + values
    flops = 2 * _CHUNK * (3 * k + 2 * v) + 6 * k * v
    return (
        Operation("queries, keys, values, gates", "inputs", n=mixed + values + 2 * heads, k=shape.hidden, keeps=1.0),
        Operation(*("convolution", "inputs", _SECOND), scales=mixed * linear.kernel, moved=4 * mixed, kept=mixed),
        Operation(
            *("delta rule", "attention", _CORE),
            scales=2 * heads,
            attention=heads * flops,
            kept=heads * _CHUNK,
            fixed=2 * heads * _STATISTIC,
        ),
        Operation(*("gated norm", "attention", _SECOND), scales=v, moved=6 * values, kept=values),
    ), values


_CHUNK = 64
"""Tokens that linear attention computes at once."""


def _network(
    shape: TransformerShape,
    inner: int,
    shared: int,
    eager: Eager | None,
    *,
    rows: float = 1.0,
    experts: int = 0,
    sums: int = 1,
) -> tuple[Operation, ...]:
    """A feed-forward network of some inner channels, or the experts of a rank; two inner products of a gate are one."""
    gates, biased = 2 if shape.gated else 1, "feed_forward" in shape.biases
    moved = _activation_bytes(shape, eager)
    return (
        Operation(
            *("inner products", "feed_forward", _NETWORK),
            n=gates * inner,
            k=shape.hidden,
            rows=rows,
            experts=experts,
            scales=gates * inner * biased,
            keeps=1.0,
            second=1 / gates,
        ),
        Operation(
            *("activation", "feed_forward", _ACTIVATION),
            moved=moved[0] * inner * rows,
            back=moved[1] * inner * rows,
            kept=inner * rows if _is_eager(eager) and shape.gated else 0.0,
            read=inner * rows,
            fixed=_composed_bytes(shape, eager) * inner * rows,
        ),
        Operation(
            *("outer product", "feed_forward", _NETWORK),
            n=shape.hidden,
            k=inner,
            rows=rows,
            experts=experts,
            scales=shape.hidden * biased,
            second=1.0 if shape.gated else 0.0,
            whole=1 / shared,
            sums=0 if shape.parallel else sums,
        ),
    )


def _experts(
    shape: TransformerShape, experts: Experts, tp: int, shared: int, ep: int, etp: int, eager: Eager | None
) -> tuple[Operation, ...]:
    """Experts with what every token visits besides.

    If tokens spread evenly, a rank receives the number that it sends; the busiest one more. Ranks that share experts as
    they share a layer have the same tokens, others their part of the stream. Where `e` ranks share an expert, each has
    the tokens of all of them and an `e`-th of its inner channels.
    """
    load, stream = experts.load(ep), shape.hidden / shared
    visits = experts.active * etp * load / (tp if etp == tp else shared)
    folds = shared > 1 or tp == 1 or etp != tp
    return (
        *(_network(shape, experts.shared_ffn // tp, shared, eager) if experts.shared_ffn else ()),
        Operation(
            *("choice of experts", "feed_forward", _NETWORK),
            scales=experts.count * (shape.hidden + ("router" in shape.biases)) + shape.hidden * experts.shared_gate,
            fixed=experts.count * _STATISTIC / shared,
        ),
        # Tokens are put in the order of their experts, sent, and put back: read and written, twice each way. Half of it
        # is of what a rank sends, half of what it receives, of which the busiest one has more.
        Operation(
            *("tokens to experts", "feed_forward", _NETWORK),
            routed=6 * (1.0 + load) * experts.active * stream,
            kept=(1 + (eager is not None) + load) * experts.active * stream,
            host=(0.0, 0.0, 1.0),
        ),
        *(
            _network(
                *(shape, experts.ffn // etp, shared, eager),
                rows=visits,
                experts=experts.count // ep,
                sums=0 if folds or experts.shared_ffn else 1,
            )
            if experts.count
            else ()
        ),
    )


def prediction_operations(
    shape: TransformerShape,
    degrees: Degrees,
    *,
    attention: AttentionKernel = "flash2",
    eager: Eager | None = None,
) -> tuple[Operation, ...]:
    """The table of a module that predicts a further token, but for its pass of the head.

    Two norms, a projection `2h -> h` and a layer as the last of the stack; published weights have a third norm, before
    the shared head. Inputs and outputs of the first two norms are kept.

    Source:
        DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2.

    Example:
        One module of h = 512: a layer, and 4 h² for each token of the projection.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = replace(gpt_shape(layers=4, hidden=512, heads=8), prediction_layers=1)
        >>> layer, module = operations(shape, Degrees(), 3), prediction_operations(shape, Degrees())
        >>> (work(module, 1024).products - work(layer, 1024).products) / 1024 == 4 * 512**2
        True
        >>> elements(module)[0] - elements(layer)[0] == 2 * 512**2 + 3 * 1024
        True
    """
    stream = shape.hidden / (degrees.tp if degrees.sequence_parallel else 1)
    projection = Operation(
        *("projection", "inputs"),
        n=shape.hidden // degrees.tp,
        k=2 * shape.hidden,
        scales=3 * norm_elements(shape),
        moved=8 * stream,
        kept=4 * stream,
    )
    return projection, *operations(shape, degrees, shape.layers - 1, attention=attention, eager=eager)


# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def elements(table: Iterable[Operation]) -> tuple[int, int]:
    """Parameters of a rank: those that all replicas hold, and those of its experts."""
    dense = experts = 0
    for row in table:
        if row.experts:
            experts += row.elements
        else:
            dense += row.elements
    return dense, experts


@functools.lru_cache(maxsize=1024)
def layer_elements(shape: TransformerShape, layer: int, *, tensor: int = 1) -> int:
    """Elements of a layer on one of `tensor` ranks, experts not included."""
    return elements(operations(shape, Degrees(tp=tensor), layer))[0]


def expert_elements(shape: TransformerShape, layer: int, *, expert: int = 1, expert_tensor: int = 1) -> int:
    """Elements of a layer's experts on one of `expert` ranks that each hold some of them."""
    return elements(operations(shape, Degrees(ep=expert, expert_tp=expert_tensor), layer))[1]


@functools.lru_cache(maxsize=1024)
def largest_layer(shape: TransformerShape, tensor: int = 1) -> int:
    """Elements of the layer with the most on one of `tensor` ranks, experts not included."""
    return max(layer_elements(shape, layer, tensor=tensor) for layer, _ in layer_kinds(shape, (range(shape.layers),)))


def prediction_count(shape: TransformerShape) -> int:
    """Parameters of the modules that predict further tokens, experts included; the tables of tokens are shared."""
    return shape.prediction_layers * sum(elements(prediction_operations(shape, Degrees())))


def active_count(shape: TransformerShape) -> int:
    """Parameters that a token visits: all but those of the experts that it is not routed to.

    Example:
        Two of eight experts, in two layers: six of them less each, of 2 · 64 · 256 and their biases.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = replace(gpt_shape(layers=2, hidden=64, heads=4), experts=Experts(count=8, active=2, ffn=256))
        >>> parameter_count(shape) - active_count(shape) == 2 * 6 * (2 * 64 * 256 + 256 + 64)
        True
    """
    if shape.experts is None:
        return parameter_count(shape)
    idle = shape.experts.count - shape.experts.active
    held = sum(expert_elements(shape, layer) for layer in range(shape.layers))
    return parameter_count(shape) - held // shape.experts.count * idle


def parameter_count(shape: TransformerShape) -> int:
    """Parameters of the whole network, without padding and without modules that predict further tokens.

    Example:
        GPT-2 with its own 50,257 entries and 1,024 positions has 124,439,808:

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> parameter_count(gpt_shape(layers=12, hidden=768, heads=12, vocabulary=50257))
        124439808
    """
    shape = replace(shape, padding=1, prediction_layers=0)
    return sum(_held(shape, layer_kinds(shape, (range(shape.layers),)), 1, 1, 1, first=True, last=True))


def stage_elements(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[int, int]:
    """Parameters that a rank of a stage holds: those that all replicas hold, and those of its experts.

    The last stage holds the output layer; where it is tied to the embedding, as a copy of it. Modules that predict
    further tokens are there too.
    """
    spread = degrees.tp, degrees.ep, degrees.expert_ranks
    return _stage_elements(shape, degrees.pp, degrees.chunks, degrees.segment_layers, degrees.schedule, spread, stage)


@functools.lru_cache(maxsize=16384)
def _stage_elements(
    shape: TransformerShape,
    pipeline: int,
    chunks: int,
    parts: tuple[int, ...],
    schedule: Schedule,
    spread: tuple[int, int, int],
    stage: int,
) -> tuple[int, int]:
    """The same by tensor ranks, ranks of experts, and those that share an expert: all that it depends on."""
    kinds = tuple((layer, number) for layer, number, _ in alike_on_stage_of(shape, pipeline, chunks, parts, 0, stage))
    if schedule == "dualpipe" and pipeline > 1:
        # A rank holds the stage as far from the other end too.
        other = alike_on_stage_of(shape, pipeline, chunks, parts, 0, pipeline - 1 - stage)
        kinds += tuple((layer, number) for layer, number, _ in other)
    first, last = stage_ends(Degrees(pp=pipeline, schedule=schedule), stage)
    return _held(shape, kinds, *spread, first=first, last=last)


@functools.lru_cache(maxsize=4096)
def _held(
    shape: TransformerShape,
    kinds: tuple[tuple[int, int], ...],
    tensor: int,
    expert: int,
    expert_tensor: int,
    *,
    first: bool,
    last: bool,
) -> tuple[int, int]:
    degrees = Degrees(tp=tensor, ep=expert, expert_tp=expert_tensor)
    tables = [(operations(shape, degrees, layer), count) for layer, count in kinds]
    if last and shape.prediction_layers:
        tables.append((prediction_operations(shape, degrees), shape.prediction_layers))
    held = [(*elements(rows), count) for rows, count in tables]
    dense, experts = sum(each * count for each, _, count in held), sum(each * count for _, each, count in held)
    table = embedding_elements(shape, tensor)
    if first:
        dense += table + position_elements(shape)
    if last:
        dense += head_elements(shape, tensor)
        dense += table if (not shape.tied or not first) else 0
        if shape.prediction_layers:
            # Modules embed the tokens that they predict from, so an untied table of a first stage is copied.
            dense += table if not shape.tied and not first else 0
    return dense, experts


# ---------------------------------------------------------------------------------------------------------------------
# Work of a pass


@dataclass(frozen=True, slots=True)
class Product:
    """Products of an `m x k` with a `k x n` matrix.

    Attributes:
        m: rows of each result; of experts, tokens of each
        n: columns of each result
        k: elements of each sum
        count: how often
        experts: that a rank holds, whose products one kernel computes at once; 0: the product is of no expert
        cast: its left matrix is not there in eight bits yet
        summed: each result is added to one in 32 bits, which is read and written, as a gradient of weights is
    """

    m: float
    n: float
    k: float
    count: float = 1.0
    experts: float = 0.0
    cast: bool = True
    summed: bool = False

    def again(self, count: float) -> "Product":
        """The same, another number of times."""
        return Product(self.m, self.n, self.k, self.count * count, self.experts, self.cast, self.summed)

    @property
    def groups(self) -> float:
        """How many one kernel computes at once."""
        return self.experts or 1.0

    @property
    def cast_bytes(self) -> float:
        """Moved to make the left matrix of eight bits: 16 read, written twice, for the transposed one too [bytes]."""
        return 4.0 * self.m * self.k * self.count * self.groups if self.cast else 0.0

    @property
    def flops(self) -> float:
        """Of all of them [FLOP]."""
        return 2.0 * self.m * self.n * self.k * self.count * self.groups

    @property
    def gradients(self) -> tuple["Product", "Product"]:
        """Products of the backward: of the gradient of the input, and of the weights."""
        m, n, k = self.m, self.n, self.k
        inputs = Product(m, k, n, self.count, self.experts, self.cast)
        return inputs, Product(k, n, m, self.count, self.experts, cast=False, summed=True)

    def moved(self, operand_bytes: float, result_bytes: float) -> float:
        """Read and written by all of them [bytes].

        Args:
            operand_bytes: of an element of the matrices that are multiplied [bytes]
            result_bytes: of an element of the result, unless it is summed [bytes]

        Example:
            Ten tokens of an expert of 100 by 1,000: its weights are nearly all that is read.

            >>> Product(10, 1000, 100).moved(2.0, 2.0)
            222000.0
        """
        operands, results = self.k * (self.m + self.n), self.m * self.n
        each = operands * operand_bytes + results * (2.0 * GRADIENT_BYTES["fp32"] if self.summed else result_bytes)
        return self.count * self.groups * each

    def overhead(self, tile: float, start: float, expert_start: float = 0.0) -> float:
        """FLOP that the units could have done in the time that is lost to the last wave of tiles and to their starts.

        The time of a product is that of `2 (m n + tile) (k + start)` FLOP: the last wave of tiles is half empty, and
        each tile waits for its first operands. Tokens of an expert fill whole rows of tiles, half of one is empty.

        Args:
            tile: elements of half a wave of tiles on the whole device
            start: elements of a sum that a unit adds up while a tile starts
            expert_start: the same of products of experts, whose rows are gathered

        Source:
            NVIDIA, "Matrix Multiplication Background User's Guide", sections 3.1 and 3.2, for both quantizations.

        Example:
            A result of 1,000 elements with sums of 1,000; 100 are lost in a wave, and 100 in starts: 1.21 times.

            >>> product = Product(100, 10, 1000)
            >>> product.overhead(tile=100, start=100) / (2 * 100 * 10 * 1000)
            0.21
        """
        rows = self.m + (_TILE_ROWS / 2.0 if self.experts else 0.0)
        whole = tiled_flops(self.groups * rows * self.n, self.k, tile, expert_start if self.experts else start)
        return self.count * (whole - 2.0 * self.groups * self.m * self.n * self.k)


def tiled_flops(results: Number, depth: Number, tile: Number, start: float) -> Number:
    """FLOP that the units could have done in the time of a product; see `Product.overhead`.

    Args:
        results: elements of the result
        depth: elements of each sum
        tile: elements of half a wave of tiles on the whole device
        start: elements of a sum that a unit adds up while a tile starts
    """
    return 2.0 * (results + tile) * (depth + start)


_TILE_ROWS = 128
"""Of the tiles of products of experts (NVIDIA/cutlass, grouped kernels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Work of one pass of one microbatch.

    Attributes:
        attention: products of queries, keys and values [FLOP]
        nbytes: moved by all else [bytes]
        back: moved by all else in the backward [bytes]
        layers: that host code has to walk through
        softmaxes: of them, those whose softmax is many kernels instead of one
        routings: of them, those whose tokens are sent to experts
        routed: bytes of tokens that are put in the order of their experts, and back [bytes]
        shapes: of the products of weights
    """

    attention: float = 0.0
    nbytes: float = 0.0
    back: float = 0.0
    layers: float = 0.0
    softmaxes: float = 0.0
    routings: float = 0.0
    routed: float = 0.0
    shapes: tuple[Product, ...] = ()

    def __add__(self, other: "PassWork") -> "PassWork":
        return PassWork(
            attention=self.attention + other.attention,
            nbytes=self.nbytes + other.nbytes,
            back=self.back + other.back,
            layers=self.layers + other.layers,
            softmaxes=self.softmaxes + other.softmaxes,
            routings=self.routings + other.routings,
            routed=self.routed + other.routed,
            shapes=self.shapes + other.shapes,
        )

    @property
    def without_last(self) -> "PassWork":
        """The same without its last product: the backward of a layer needs the input of that, not its result."""
        return replace(self, shapes=self.shapes[:-1])

    @property
    def products(self) -> float:
        """Of weights [FLOP]."""
        return sum(product.flops for product in self.shapes)

    def times(self, products: float, attention: float, rest: float) -> "PassWork":
        """The same with its parts multiplied."""
        return PassWork(
            attention=self.attention * attention,
            nbytes=self.nbytes * rest,
            back=self.back * rest,
            layers=self.layers * rest,
            softmaxes=self.softmaxes * rest,
            routings=self.routings * rest,
            routed=self.routed * rest,
            shapes=_repeated(self.shapes, products),
        )


def _repeated(shapes: tuple[Product, ...], times: float) -> tuple[Product, ...]:
    if times == 1.0:
        return shapes
    return tuple(product.again(times) for product in shapes) if times else ()


def attended_tokens(shape: TransformerShape, layer: int) -> float:
    """Tokens that one of a layer's windows spans, such that a mask of causality halves them.

    Of `s` tokens, those of a window of `w` attend to `w s - w²/2` others in all, where a sequence without a window has
    `s²/2`. A chunk of `w` tokens is a whole sequence, so `s / w` chunks have `s w / 2`.

    Args:
        shape: the network
        layer: of the stack

    Returns:
        Twice the mean number of tokens that a token attends to.

    Example:
        Mistral 7B, 4,096 of 8,192 tokens: three quarters of all; in chunks of 4,096: half of all.

        >>> from dataclasses import replace
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = replace(gpt_shape(layers=1, hidden=512, heads=8, sequence=8192), windows=(4096,))
        >>> attended_tokens(shape, 0) / 8192, attended_tokens(replace(shape, chunked=True), 0) / 8192
        (0.75, 0.5)
    """
    window = shape.window(layer)
    if not window:
        return float(shape.sequence)
    share = window / shape.sequence
    return shape.sequence * (share if shape.chunked else share * (2.0 - share))


def work(table: Iterable[Operation], tokens: int, *, second: bool = False) -> PassWork:
    """Forward of some rows of a table on one rank.

    Args:
        table: of a layer, or rows of it
        tokens: of the rank
        second: of products what is not kept where every second one is computed again

    Example:
        In a parallel block with one norm, 4 h fewer bytes move for the norm and 5 h for the sum.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=512, heads=8)
        >>> block = replace(shape, norms=1, parallel=True)
        >>> each = [work(operations(one, Degrees(), 0), 1).nbytes for one in (shape, block)]
        >>> each[0] - each[1] == 9 * 512
        True
    """
    rows = tuple(table)
    layers, softmaxes, routings = (sum(row.host[each] for row in rows) for each in range(3))
    return PassWork(
        attention=tokens * sum(row.attention for row in rows),
        nbytes=tokens * sum(row.moved for row in rows),
        back=tokens * sum(row.moved_back for row in rows),
        routed=tokens * sum(row.routed for row in rows),
        layers=layers,
        softmaxes=softmaxes,
        routings=routings,
        shapes=tuple(
            Product(
                tokens * row.rows / max(1, row.experts), row.n * (1.0 - second * row.second), row.k, 1.0, row.experts
            )
            for row in rows
            if row.n
        ),
    )


def layer_forward(
    shape: TransformerShape, degrees: Degrees, *, attention: AttentionKernel, layer: int, eager: Eager | None = None
) -> PassWork:
    """Forward of a layer on one rank.

    Example:
        A layer of h = 512 for one sequence of 1,024 tokens: 24 h² for each token, and 4 s h of attention.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> forward = layer_forward(gpt_shape(layers=1, hidden=512, heads=8), Degrees(), attention="math", layer=0)
        >>> forward.products / 1024 == 24 * 512**2, forward.attention / 1024 == 4 * 1024 * 512
        (True, True)
    """
    table = operations(shape, degrees, layer, attention=attention, eager=eager)
    return work(table, tokens_of_rank(shape, degrees))


def recomputed_work(table: Sequence[Operation], tokens: int, again: frozenset[Recomputed]) -> PassWork:
    """Forward of what a layer's backward computes again, where it does not all of it.

    Source:
        Korthikanti et al., 2022, section 5, for attention's core; NVIDIA/Megatron-LM, `--recompute-modules`
        (core_attn, layernorm, moe_act, mlp, mla_up_proj), for the others; pytorch/torchtitan, parallelize_llama.py, for
        every second product.

    Example:
        The feed-forward network of h = 512 is 16 h² FLOP of each token, and of the norms 8 h bytes.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> table = operations(gpt_shape(layers=1, hidden=512, heads=8), Degrees(), 0)
        >>> recomputed_work(table, 1, frozenset({"feed_forward"})).products == 16 * 512**2
        True
        >>> recomputed_work(table, 1, frozenset({"norms"})).nbytes == 8 * 512
        True
    """
    second = "second_products" in again
    return work((row for row in table if row.again & again or (second and row.n)), tokens, second=second)


def softmax_kernel_fits(shape: TransformerShape, degrees: Degrees) -> bool:
    """Whether Megatron's kernel for scale, mask and softmax can run.

    A block of it takes four rows of scores at once, so heads of a rank times sequences must be a multiple of four.

    Source:
        NVIDIA/Megatron-LM, megatron/model/fused_softmax.py, `is_kernel_available`.

    Example:
        Sixteen heads on eight ranks: two of one sequence do not fill a block, those of two sequences do.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=1024, heads=16)
        >>> [softmax_kernel_fits(shape, Degrees(tp=8, microbatch=microbatch)) for microbatch in (1, 2)]
        [False, True]
    """
    return degrees.microbatch * (shape.heads // degrees.tp) % 4 == 0 and shape.sequence % 4 == 0


def backward(forward: PassWork, *, attention: AttentionKernel, frozen: bool = False) -> PassWork:
    """Backward of a pass: gradients of inputs and, unless weights are frozen, of weights."""
    core = _FUSED_BACKWARD if attention != "math" else 2.0
    each = 1 if frozen else 2
    return PassWork(
        attention=forward.attention * core,
        nbytes=forward.back,
        layers=forward.layers * 2.0,
        softmaxes=forward.softmaxes * 2.0,
        routings=forward.routings * 2.0,
        routed=forward.routed * 2.0,
        shapes=tuple(gradient for product in forward.shapes for gradient in product.gradients[:each]),
    )
