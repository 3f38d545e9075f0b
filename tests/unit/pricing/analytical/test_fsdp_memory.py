"""Memory under FSDP2: what modules keep by autograd's own account, and the largest moment of a step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import builders
from torch import Tensor, nn
from torch.nn import functional

from trimaran.machine.catalog import find_device
from trimaran.planning.analytical import decoder_of_job
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.analytical.fits_device import bookkeeping_of
from trimaran.pricing.analytical.layers import Eager
from trimaran.pricing.analytical.memory import RankMemory, layer_activations, rank_memory
from trimaran.pricing.analytical.shapes import TransformerShape, decoder_of, gpt_shape
from trimaran.program.strategy import Degrees
from trimaran.program.strategy import Strategy as Plan

GIB = 2**30
EAGER = Eager()
HIDDEN, FFN, HEADS, KV_HEADS, TOKENS = 256, 896, 8, 2, 512
EXPERTS, ACTIVE = 4, 2
LLAMA = replace(
    gpt_shape(layers=1, hidden=HIDDEN, heads=HEADS, vocabulary=1024, sequence=TOKENS),
    ffn=FFN,
    kv_heads=KV_HEADS,
    gated=True,
    rotary=True,
    positions=0,
    centred_norm=False,
    biases=frozenset(),
    hidden_dropout=False,
    attention_dropout=False,
)


class Normed(torch.autograd.Function):
    """As a GPU's kernel: the input is kept, and a statistic of each token."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor) -> Tensor:
        rates = torch.rsqrt(states.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(states, weight, rates)
        return (states.float() * rates).to(states.dtype) * weight


class FusedNorm(nn.RMSNorm):
    def forward(self, states: Tensor) -> Tensor:
        return Normed.apply(states, self.weight)


class WideNorm(nn.RMSNorm):
    """In 32 bits by operations of its own, as that of transformers."""

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(states.dtype)


def rotated(heads: Tensor) -> Tensor:
    angles = torch.rand(heads.shape[2], heads.shape[3], dtype=heads.dtype)
    low, high = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()


class Layer(nn.Module):
    def __init__(self, norm: type[nn.RMSNorm]) -> None:
        super().__init__()
        size = HIDDEN // HEADS
        self.norm1, self.norm2 = norm(HIDDEN), norm(HIDDEN)
        self.query, self.out = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(HIDDEN, KV_HEADS * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        inner = self.norm1(states)
        parts = (part(inner).unflatten(-1, (-1, HIDDEN // HEADS)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(
            rotated(query), rotated(key), value, is_causal=True, enable_gqa=True
        )
        states = states + self.out(mixed.transpose(1, 2).flatten(2))
        inner = self.norm2(states)
        return states + self.sub_layer(inner)

    def sub_layer(self, inner: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Routed(Layer):
    """With experts that tokens visit as evenly as may be, by products of a slice each."""

    def __init__(self) -> None:
        super().__init__(FusedNorm)
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.gates, self.ups = (nn.Parameter(torch.rand(EXPERTS, HIDDEN, FFN)) for _ in range(2))
        self.downs = nn.Parameter(torch.rand(EXPERTS, FFN, HIDDEN))
        self.order = torch.randperm(ACTIVE * TOKENS) // ACTIVE

    def sub_layer(self, inner: Tensor) -> Tensor:
        tokens = inner.flatten(0, 1)
        scores = self.router(tokens)[self.order, :1]
        visits = tokens[self.order].unflatten(0, (EXPERTS, -1))
        hidden = functional.silu(visits @ self.gates) * (visits @ self.ups)
        outputs = (hidden @ self.downs).flatten(0, 1) * scores
        return torch.zeros_like(tokens).index_add(0, self.order, outputs).view_as(inner)


def kept_by_autograd(layer: nn.Module) -> int:
    """Bytes of the storages that a layer keeps, but for its weights, angles of positions and order of visits."""
    layer = layer.to(torch.bfloat16)
    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        angles = tensor.dim() == 2 and tensor.shape[1] == HIDDEN // HEADS
        if tensor.untyped_storage().data_ptr() not in weights and not angles and tensor.is_floating_point():
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.rand(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True))
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.parametrize(("norm", "wide"), [(FusedNorm, False), (WideNorm, True)])
def test_a_layer_keeps_what_autograd_keeps(norm: type[nn.RMSNorm], wide: bool) -> None:
    said = layer_activations(LLAMA, Degrees(), attention="flash2", eager=Eager(wide_norms=wide)).kept
    assert kept_by_autograd(Layer(norm)) == pytest.approx(said, rel=0.002)


def test_a_layer_with_experts_keeps_what_autograd_keeps() -> None:
    shape = replace(LLAMA, experts=builders.experts(count=EXPERTS, active=ACTIVE, ffn=FFN))
    said = layer_activations(shape, Degrees(), attention="flash2", eager=EAGER).kept
    assert kept_by_autograd(Routed()) == pytest.approx(said, rel=0.01)


def test_experts_need_what_torchtitan_keeps() -> None:
    """GiB of activations of rank 0 of 1,024 in the rehearsal of torchtitan's own trainer."""
    shape = decoder_of_job("mixtral:8x7b", PlanRequest(options={"sequence": "4096"})).shape
    found = memory_of(shape, Plan(dp=1024, ep=8, zero=2), eager=Eager(loss_chunks=8))
    assert (found.activations + found.transient) / GIB == pytest.approx(42.8, rel=0.05)


def test_a_product_keeps_its_gathered_input() -> None:
    degrees = Degrees(tp=2, sequence_parallel=True)
    whole, part = (
        layer_activations(LLAMA, degrees, attention="flash2", eager=eager).kept
        for eager in (Eager(compiled=True), None)
    )
    # Two outputs of norms are whole; no input of a rotation and no copy of attention's output.
    heads = HIDDEN + HIDDEN + KV_HEADS * HIDDEN // HEADS
    assert whole - part == 2 * TOKENS * (2 * HIDDEN // 2 - heads // 2)


def memory_of(shape: TransformerShape, degrees: Degrees, stage: int = 0, eager: Eager = EAGER) -> RankMemory:
    return rank_memory(
        shape, degrees, stage=stage, bookkeeping=bookkeeping_of("bf16", find_device("h100"), eager=eager)
    )


@pytest.mark.parametrize(("stage", "rehearsed"), [(0, 99.2), (1, 95.0), (2, 91.8), (3, 89.0)])
def test_stages_of_many_chunks_need_what_the_script_allocates(stage: int, rehearsed: float) -> None:
    """GiB that ranks 0, 256, 512 and 768 of 1,024 allocate of the exported script, rehearsed."""
    degrees = Plan(
        dp=64,
        pp=4,
        tp=4,
        chunks=10,
        zero=1,
        microbatch=2,
        microbatches=8,
        sequence_parallel=True,
        schedule="interleaved",
    )
    found = memory_of(decoder_of("llama2:70b", 4096), degrees, stage)
    assert found.peak / GIB == pytest.approx(rehearsed, rel=0.01)


@pytest.mark.parametrize(("recomputed", "rehearsed"), [(frozenset({"layers"}), 30.3), (frozenset(), 69.6)])
def test_streams_of_fsdp_need_what_they_once_had(recomputed: frozenset[str], rehearsed: float) -> None:
    """GiB of all streams of an eighth of 8B at their own largest moments, in the rehearsal of the exported script."""
    found = memory_of(decoder_of("llama3:8b", 8192), Degrees(dp=8, zero=3, recomputed=recomputed))
    assert found.peak / GIB == pytest.approx(rehearsed, rel=0.02)


def test_gradients_of_a_whole_step_are_not_there_at_the_loss() -> None:
    """Of one microbatch they are scattered layer by layer; those of several are whole at the loss of the last."""
    shape, one = decoder_of("llama3:8b", 8192), Degrees(dp=8, zero=1)
    several = memory_of(shape, replace(one, microbatches=2)).gradients - memory_of(shape, one).gradients
    assert several / GIB == pytest.approx(4 * 8.03e9 / GIB, rel=0.01)


def test_a_loss_in_chunks_never_has_all_logits() -> None:
    shape, degrees = decoder_of("llama3:8b", 8192), Degrees(dp=8, zero=3)
    whole, chunked = (memory_of(shape, degrees, eager=Eager(loss_chunks=chunks)) for chunks in (1, 8))
    assert whole.transient == 12 * 8192 * 128256
    assert chunked.peak < whole.peak - whole.transient / 2


def test_gradients_of_16_bits_are_kept_in_32_where_they_are_updated() -> None:
    shape, degrees = decoder_of("llama3:8b", 8192), Degrees(dp=8, zero=3)
    found = [memory_of(shape, replace(degrees, gradients=kind)).gradients for kind in (None, "bf16")]
    assert min(found) >= 4 * 8.03e9 / 8 * 0.999


@pytest.mark.parametrize(("eager", "nbytes"), [(Eager(holds_logits=True), 16), (Eager(fused_loss=True), 4)])
def test_bytes_of_a_logit_are_those_that_a_trainer_keeps(eager: Eager, nbytes: int) -> None:
    shape = decoder_of("llama3:8b", 8192)
    kept = memory_of(shape, Degrees(dp=8, zero=3), eager=eager)
    if eager.holds_logits:
        assert kept.transient == nbytes * 8192 * 128256
    assert kept.peak <= memory_of(shape, Degrees(dp=8, zero=3)).peak + max(0, nbytes - 12) * 8192 * 128256


def test_a_program_of_16_bits_has_its_gradients_only_at_the_end() -> None:
    """Parameters and two moments of 2 bytes each; gradients of a step of one microbatch come as activations go."""
    shape, count = decoder_of("llama3:8b", 8192), 8.03e9
    long, short = (memory_of(replace(shape, sequence=s), Degrees(), eager=Eager(narrow=True)) for s in (8192, 128))
    assert (long.gradients, long.state) == (0, pytest.approx(6 * count, rel=0.01))
    assert short.gradients == pytest.approx(2 * count, rel=0.01)


def test_weights_that_are_not_trained_have_neither_gradients_nor_state() -> None:
    shape, device = decoder_of("llama3:8b", 8192), find_device("h100")
    keeping = bookkeeping_of("bf16", device, eager=EAGER, frozen=True)
    found = rank_memory(shape, Degrees(dp=8, zero=3), bookkeeping=keeping)
    assert found.gradients == found.optimizer == 0
