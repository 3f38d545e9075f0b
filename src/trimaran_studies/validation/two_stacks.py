"""Memory of a rank of a transformer of two stacks (T5), without a pipeline.

Both stacks have the same width. A layer of the decoder is one of a decoder alone, and attends once more: its queries
come from its own tokens, keys and values from the encoder's output, which is kept once for all layers.
"""

from dataclasses import dataclass, replace

from trimaran.pricing.analytical.activations import layer_activations, stream_bytes, tokens_of_rank
from trimaran.pricing.analytical.memory import Bookkeeping, RankMemory, state_bytes
from trimaran.pricing.analytical.shapes import (
    TransformerShape,
    attention_elements,
    embedding_elements,
    key_size,
    layer_elements,
    norm_elements,
    query_size,
)
from trimaran.program.strategy import Degrees

_STATISTIC = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoStacks:
    """A transformer of two stacks.

    Attributes:
        encoder: its stack, with the vocabulary and the positions of both
        layers: of the decoder
        sequence: tokens of the decoder
    """

    encoder: TransformerShape
    layers: int
    sequence: int

    @property
    def decoder(self) -> TransformerShape:
        """The other stack, without its attention to the encoder."""
        return replace(self.encoder, layers=self.layers, sequence=self.sequence)


def two_stack_memory(stacks: TwoStacks, degrees: Degrees, *, bookkeeping: Bookkeeping) -> RankMemory:
    """Memory of a rank at the loss, where it needs most.

    Args:
        stacks: the network
        degrees: of it; without a pipeline
        bookkeeping: what the program keeps

    Returns:
        By part.
    """
    encoder, decoder, keeping = stacks.encoder, stacks.decoder, bookkeeping
    weights, gradients, optimizer = state_bytes(two_stack_elements(stacks, degrees.tp), degrees, keeping)
    kept = 0
    for shape in (encoder, decoder):
        each = layer_activations(
            shape, degrees, attention=keeping.attention, product_input_bytes=keeping.product_input_bytes
        )
        stream = stream_bytes(shape, degrees)
        # The norm behind a stack, and the mask of the dropout before it.
        kept += shape.layers * each.kept + 2 * stream + (stream // 2 if shape.hidden_dropout else 0)
        if keeping.dense_mask:
            kept += tokens_of_rank(shape, degrees) * shape.sequence
    kept += stacks.layers * _cross_attention(stacks, degrees, keeping)
    logits = tokens_of_rank(decoder, degrees) * (decoder.vocabulary // degrees.tp) * keeping.logit_bytes
    return RankMemory(
        stage=0,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=kept,
        transient=logits,
        workspace=keeping.workspace_bytes,
    )


def two_stack_elements(stacks: TwoStacks, tensor: int) -> int:
    """Parameters of a rank.

    Example:
        Two stacks of one layer, h = 64: a decoder's layer has another 4 h² + 4 h of attention and 2 h of its norm; then
        two norms, the table, its positions, and a bias for each row of the vocabulary.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=64, heads=4, vocabulary=1000, sequence=16)
        >>> two_stack_elements(TwoStacks(encoder=shape, layers=1, sequence=8), 1)
        183016
        >>> 28 * 64**2 + 32 * 64 + 4 * 64 + (1000 + 16) * 64 + 1000
        183016
    """
    encoder = stacks.encoder
    layer, norm = layer_elements(encoder, 0, tensor=tensor), norm_elements(encoder)
    stack = (encoder.layers + stacks.layers) * layer + stacks.layers * (attention_elements(encoder, tensor) + norm)
    table = embedding_elements(encoder, tensor) + encoder.positions * encoder.hidden
    return stack + 2 * norm + table + encoder.vocabulary // tensor


def _cross_attention(stacks: TwoStacks, degrees: Degrees, keeping: Bookkeeping) -> int:
    """What a decoder's layer keeps for its attention to the encoder [bytes]."""
    decoder, encoder, tensor = stacks.decoder, stacks.encoder, degrees.tp
    own, others = tokens_of_rank(decoder, degrees), tokens_of_rank(encoder, degrees)
    queries = own * query_size(decoder, tensor) * 2
    keys = 2 * others * key_size(decoder, tensor) * 2
    heads = decoder.heads // tensor
    if keeping.attention == "fused":
        core = 2 * queries + own * heads * _STATISTIC
    else:
        core = queries + own * heads * encoder.sequence * (5 if decoder.attention_dropout else 2)
    stream = stream_bytes(decoder, degrees)
    return 2 * stream + (stream // 2 if decoder.hidden_dropout else 0) + queries + keys + core
