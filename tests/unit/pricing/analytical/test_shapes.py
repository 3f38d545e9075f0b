"""Elements of transformers, against counts worked by hand and published ones."""

import pytest
from tests import builders

from trimaran.pricing.analytical.layers import expert_elements, layer_elements, parameter_count
from trimaran.pricing.analytical.shapes import LatentAttention, TransformerShape, gpt_shape


def test_a_layer_of_gpt_has_twelve_squares_and_thirteen_rows_of_its_hidden_size() -> None:
    """4 h² + 4 h of attention, 8 h² + 5 h of the feed-forward network, 4 h of two norms."""
    assert layer_elements(gpt_shape(layers=1, hidden=512, heads=8), 0) == 12 * 512**2 + 13 * 512


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (builders.transformer_shape(), 6_738_415_616),
        (builders.transformer_shape(hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672), 68_976_648_192),
        (builders.transformer_shape(kv_heads=8, ffn=14336, vocabulary=128256), 8_030_261_248),
        (gpt_shape(layers=24, hidden=1024, heads=16, vocabulary=50257), 354_823_168),
    ],
    ids=["llama2-7b", "llama2-70b", "llama3-8b", "gpt2-medium"],
)
def test_whole_networks_have_as_many_parameters_as_published(shape: TransformerShape, count: int) -> None:
    assert parameter_count(shape) == count


def test_experts_multiply_the_feed_forward_network_only() -> None:
    """Mixtral 8x7B: 46,702,792,704 parameters, of which 32 layers of 8 networks of 3 · 4096 · 14336, and 8 · 4096."""
    shape = builders.transformer_shape(kv_heads=8, ffn=14336, experts=builders.experts(count=8, active=2, ffn=14336))
    assert parameter_count(shape) == 46_702_792_704
    assert expert_elements(shape, 0, expert=4) == 2 * 3 * 4096 * 14336


def test_first_layers_may_have_no_experts() -> None:
    shape = builders.transformer_shape(experts=builders.experts(count=8, active=2, ffn=64, dense_layers=3))
    assert [shape.has_experts(layer) for layer in (2, 3)] == [False, True]
    assert expert_elements(shape, 2) == 0


def test_latent_attention_has_the_elements_of_its_down_and_up_products() -> None:
    """h = 64, 4 heads, ranks 16 and 8, sizes 6 + 2 and 5, each summand in the order of the module."""
    latent = LatentAttention(query_rank=16, key_rank=8, head_size=6, rotary_size=2, value_size=5)
    shape = builders.transformer_shape(hidden=64, heads=4, kv_heads=4, head_size=16, ffn=96, latent=latent)
    attention = 64 * 16 + 16 + 16 * 4 * 8 + 64 * (8 + 2) + 8 + 8 * 4 * (6 + 5) + 4 * 5 * 64
    assert layer_elements(shape, 0) == attention + 3 * 64 * 96 + 2 * 64
