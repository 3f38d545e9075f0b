"""Memory of a transformer of two stacks, worked by hand."""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.pricing.analytical.memory import Bookkeeping, layer_activations
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran_studies.validation.memory import TwoStacks, two_stack_memory

ENCODER = gpt_shape(layers=2, hidden=64, heads=4, vocabulary=1024, sequence=32)
STACKS = TwoStacks(encoder=ENCODER, layers=3, sequence=8)
DEGREES = builders.degrees(microbatch=2)
UNFUSED = Bookkeeping(attention="math")


def test_the_decoder_attends_to_the_encoder_once_a_layer() -> None:
    """For 16 tokens of the decoder: norm 4 h, mask h, queries 2 h, output 2 h, probabilities 5 a · 32; for 64 tokens of
    the encoder keys and values, 4 h. Behind each stack a norm, 4 h, and before it a mask, h; for each token.
    """
    encoder = layer_activations(ENCODER, DEGREES, attention="math").kept
    decoder = layer_activations(STACKS.decoder, DEGREES, attention="math").kept
    cross = 16 * ((4 + 1 + 2 + 2) * 64 + 5 * 4 * 32) + 64 * 4 * 64
    ends = (64 + 16) * 5 * 64
    found = two_stack_memory(STACKS, DEGREES, bookkeeping=UNFUSED)
    assert found.activations == 2 * encoder + 3 * (decoder + cross) + ends


def test_the_loss_counts_the_decoder_s_tokens_only() -> None:
    assert two_stack_memory(STACKS, DEGREES, bookkeeping=UNFUSED).transient == 16 * 1024 * 6


def test_replicas_divide_the_optimizer() -> None:
    alone = two_stack_memory(STACKS, DEGREES, bookkeeping=UNFUSED)
    shared = two_stack_memory(STACKS, replace(DEGREES, dp=4, zero=1), bookkeeping=UNFUSED)
    assert shared.optimizer == pytest.approx(alone.optimizer / 4, abs=1)
    assert shared.weights == alone.weights
