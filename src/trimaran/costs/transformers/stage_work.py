"""What a stage of a divided transformer computes for one microbatch: FLOP of products and of attention, bytes moved.

For each token of a layer, forward, on one of `t` ranks:

    products     2 (h (q + 2k) + q h + g h f + f h) / t       g: inner products of the feed-forward network, 1 or 2
    attention    4 s q / t                                     half of it where a fused kernel skips what the mask hides
    elementwise  8 h (two norms) + 14 h (two sums with dropout) + 2 (g + 1) f / t (activation), read and written
    experts      12 e h: tokens put in the order of the `e` experts that each visits, and back
    unfused      20 a s / t in all three passes: scores scaled, masked and normalized (2 + 2; backward 4 + 2), dropped
                 out (2 + 3; backward 3 + 2); three times 20 a s / t more where the kernel that does the first three
                 at once cannot run (`softmax_kernel_fits`), for the same in 32 bits, one after another

A host that asks for kernels one by one walks through layers; head and loss have as many as one layer, the embedding
as half of one.
The backward of a product is two of its size, that of fused attention two and a half (it computes probabilities again).

Source:
    Narayanan et al., SC 2021, appendix, for FLOP of a layer; Dao, "FlashAttention-2", 2023, for fused attention.
"""

from dataclasses import dataclass

from trimaran.costs.transformers.activations import AttentionKernel, tokens_of_rank
from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.shapes import TransformerShape, key_size, query_size

_ELEMENT = 2
_FUSED_BACKWARD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Work of one pass of one microbatch.

    Attributes:
        products: of weights [FLOP]
        attention: products of queries, keys and values [FLOP]
        nbytes: moved by all else [bytes]
        layers: that host code has to walk through
        softmaxes: of them, those whose softmax is many kernels instead of one
    """

    products: float = 0.0
    attention: float = 0.0
    nbytes: float = 0.0
    layers: float = 0.0
    softmaxes: float = 0.0

    def __add__(self, other: "PassWork") -> "PassWork":
        return PassWork(
            products=self.products + other.products,
            attention=self.attention + other.attention,
            nbytes=self.nbytes + other.nbytes,
            layers=self.layers + other.layers,
            softmaxes=self.softmaxes + other.softmaxes,
        )

    def times(self, products: float, attention: float, rest: float) -> "PassWork":
        """The same with its parts multiplied."""
        return PassWork(
            products=self.products * products,
            attention=self.attention * attention,
            nbytes=self.nbytes * rest,
            layers=self.layers * rest,
            softmaxes=self.softmaxes * rest,
        )


def layer_forward(
    shape: TransformerShape, division: Division, *, attention: AttentionKernel, layer: int, causal: bool = True
) -> PassWork:
    """Forward of a layer on one rank.

    Example:
        A layer of h = 512 for one sequence of 1,024 tokens: 24 h² for each token, and 4 s h of attention.

        >>> from trimaran.costs.transformers.shapes import gpt_shape
        >>> work = layer_forward(gpt_shape(layers=1, hidden=512, heads=8), Division(), attention="unfused", layer=0)
        >>> work.products / 1024 == 24 * 512**2, work.attention / 1024 == 4 * 1024 * 512
        (True, True)
    """
    tokens, tensor = tokens_of_rank(shape, division), division.tensor
    queries, keys = query_size(shape, tensor), key_size(shape, tensor)
    gates = 2 if shape.gated else 1
    inner = _inner(shape, division, layer)
    projections = shape.hidden * (queries + 2 * keys) + queries * shape.hidden
    if shape.latent is not None:
        latent = shape.latent
        wide = shape.heads // tensor * (latent.head_size + latent.rotary_size)
        value = shape.heads // tensor * (latent.head_size + latent.value_size)
        projections = (
            shape.hidden * (latent.query_rank + latent.key_rank + latent.rotary_size)
            + latent.query_rank * wide
            + latent.key_rank * value
            + shape.heads // tensor * latent.value_size * shape.hidden
        )
        queries = wide
    skipped = 0.5 if attention == "fused" and causal else 1.0
    shared = tensor if division.sequence_parallel else 1
    moved = 22 * shape.hidden / shared + 2 * (gates + 1) * inner
    moved += 4 * (queries + keys) if shape.rotary else 0
    if shape.experts is not None and shape.has_experts(layer):
        # Tokens are put in the order of their experts, sent, and put back: read and written, twice each way.
        moved += 12 * shape.experts.active * shape.hidden / shared
    apart = attention == "unfused" and not softmax_kernel_fits(shape, division)
    if attention == "unfused":
        moved += (20 / 3 + (20 if apart else 0)) * (shape.heads // tensor) * shape.sequence
    return PassWork(
        products=2.0 * tokens * (projections + (gates + 1) * shape.hidden * inner),
        attention=4.0 * tokens * shape.sequence * queries * skipped,
        nbytes=tokens * moved,
        layers=1.0,
        softmaxes=1.0 if apart else 0.0,
    )


def softmax_kernel_fits(shape: TransformerShape, division: Division) -> bool:
    """Whether Megatron's kernel for scale, mask and softmax can run.

    A block of it takes four rows of scores at once, so heads of a rank times sequences must be a multiple of four.

    Source:
        NVIDIA/Megatron-LM, megatron/model/fused_softmax.py, `is_kernel_available`.

    Example:
        Sixteen heads on eight ranks: two of one sequence do not fill a block, those of two sequences do.

        >>> from trimaran.costs.transformers.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=1024, heads=16)
        >>> [softmax_kernel_fits(shape, Division(tensor=8, microbatch=microbatch)) for microbatch in (1, 2)]
        [False, True]
    """
    return division.microbatch * (shape.heads // division.tensor) % 4 == 0 and shape.sequence % 4 == 0


def head_forward(shape: TransformerShape, division: Division) -> PassWork:
    """Forward of the output layer and the loss on one rank: logits written, made 32 bits, reduced and normalized."""
    tokens, rows = tokens_of_rank(shape, division), shape.vocabulary // division.tensor
    return PassWork(products=2.0 * tokens * shape.hidden * rows, nbytes=16.0 * tokens * rows, layers=1.0)


def embedding_forward(shape: TransformerShape, division: Division) -> PassWork:
    """Forward of the embedding on one rank: rows gathered, positions added, dropped out."""
    return PassWork(nbytes=14.0 * tokens_of_rank(shape, division) * shape.hidden, layers=0.5)


def backward(forward: PassWork, *, attention: AttentionKernel, frozen: bool = False) -> PassWork:
    """Backward of a pass: gradients of inputs and, unless weights are frozen, of weights."""
    core = _FUSED_BACKWARD if attention == "fused" else 2.0
    return forward.times(1.0 if frozen else 2.0, core, 2.0)


def _inner(shape: TransformerShape, division: Division, layer: int) -> float:
    if shape.experts is None or not shape.has_experts(layer):
        return shape.ffn / division.tensor
    experts = shape.experts
    return (experts.active * experts.ffn + experts.shared_ffn) / division.tensor
