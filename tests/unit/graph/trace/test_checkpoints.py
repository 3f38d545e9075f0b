"""Steps with `torch.utils.checkpoint` on meta tensors: what a CPU holds when it runs them, counted with finalizers."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.cpu_forms import forms_of_a_cpu
from tests.unit.graph.trace.test_ordinary_steps import counted, traced
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from trimaran.base.job import Job
from trimaran.graph.trace.live_bytes import live_kept, step_memory
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.graph.types import Phase
from trimaran.planning.tracing.meta_trace import JobTracer

WIDTH = 32
Layers = nn.ModuleList
How = Callable[[Layers, Tensor], Tensor]


class Block(nn.Module):
    """Attention and a dense part, as in a language model."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + functional.dropout(self.dense(self.after(x)), self.dropout)


class Net(nn.Module):
    """Blocks, run in some way."""

    def __init__(self, how: How, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.how = nn.Linear(8, WIDTH), how
        self.layers = nn.ModuleList(Block(dropout) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.layers, self.first(x))


def each(**options: Any) -> How:
    def run(layers: Layers, x: Tensor) -> Tensor:
        for layer in layers:
            x = checkpoint(layer, x, **options)
        return x

    return run


def nested(**options: Any) -> How:
    return lambda layers, x: checkpoint(lambda x: each(**options)(layers, x), x, **options)


def as_a_list(**options: Any) -> How:
    def run(layers: list[nn.Module], x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return lambda layers, x: checkpoint(run, list(layers), x, **options)


def in_parts(**options: Any) -> How:
    return lambda layers, x: checkpoint_sequential(list(layers), 2, x, **options)


def with_constants(**options: Any) -> How:
    """Makes tensors without saying where, as code does that runs under a default device."""
    return lambda layers, x: checkpoint(lambda x: layers[0](x) + torch.arange(WIDTH), x, **options)


def selective(*kept: Any) -> How:
    return each(use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, list(kept)))


def without_early_stop(layers: Layers, x: Tensor) -> Tensor:
    with torch_checkpoint.set_checkpoint_early_stop(False):
        return each(use_reentrant=False)(layers, x)


REENTRANT: dict[str, Any] = {"use_reentrant": True}
OTHER: dict[str, Any] = {"use_reentrant": False}
WAYS: dict[str, How] = {
    "reentrant": each(**REENTRANT),
    "not reentrant": each(**OTHER),
    "list, reentrant": as_a_list(**REENTRANT),
    "list": as_a_list(**OTHER),
    "sequential, reentrant": in_parts(**REENTRANT),
    "sequential": in_parts(**OTHER),
    "nested, the inner reentrant": lambda layers, x: checkpoint(lambda x: each(**REENTRANT)(layers, x), x, **OTHER),
    "nested": nested(**OTHER),
    "random state not kept": each(**OTHER, preserve_rng_state=False),
    "no check": each(**OTHER, determinism_check="none"),
    "no early stop": without_early_stop,
    "selective": selective(
        torch.ops.aten.addmm.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    ),
    "constants, reentrant": with_constants(**REENTRANT),
    "constants": with_constants(**OTHER),
}


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    output = model(batch)
    return (output if isinstance(output, Tensor) else output.logits).square().sum()


def steps(
    make: Callable[[], nn.Module], batch: Tensor, autocast: torch.dtype | None = None
) -> tuple[list[int], StepTrace]:
    """Bytes that a CPU holds at each operation, and the trace."""
    torch.manual_seed(0)
    model = make()

    def run() -> None:
        with nullcontext() if autocast is None else torch.autocast("cpu", autocast):
            value = loss(model, batch)
        value.backward()

    expected = counted(run)
    with forms_of_a_cpu():
        return expected, trace_on_meta(make, lambda: batch, loss, autocast=autocast)


def compare(make: Callable[[], nn.Module], batch: Tensor) -> None:
    expected, trace = steps(make, batch)
    assert traced(trace) == expected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("way", WAYS)
def test_bytes_of_every_operation(way: str, dropout: float) -> None:
    compare(lambda: Net(WAYS[way], dropout), torch.ones(2, 16, 8))


class Twice(nn.Module):
    """A weight that is used twice in each of two checkpoints, and once outside."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.dense, self.options = nn.Linear(WIDTH, WIDTH), options

    def forward(self, x: Tensor) -> Tensor:
        def run(x: Tensor) -> Tensor:
            return self.dense(self.dense(x).relu()).relu()

        x = self.dense(x)
        return checkpoint(run, checkpoint(run, x, **self.options), **self.options)


BOTH = pytest.mark.parametrize("options", [REENTRANT, OTHER], ids=["reentrant", "not reentrant"])


@BOTH
def test_casts_of_weights_go_when_the_part_that_runs_again_has_ended(options: dict[str, Any]) -> None:
    """A cast of the weight for the forward, and one for each checkpoint; the loss of a GPU is summed in float32."""
    batch = torch.ones(4, WIDTH)
    expected, trace = steps(lambda: Twice(**options), batch, autocast=torch.bfloat16)
    assert max(traced(trace)) == pytest.approx(max(expected), rel=0.01)
    (weight,) = (number for number, name in trace.names.items() if name == "dense.weight")
    casts = [one for one in trace.ops if one.name.startswith("aten._to_copy") and (weight, 0) in one.reads]
    assert [one.phase for one in casts] == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("way", ["reentrant", "not reentrant", "list", "nested"])
def test_what_runs_again_has_the_kernels_and_places_of_the_forward(way: str, autocast: torch.dtype | None) -> None:
    """With the forms of a GPU: fused attention, one kernel of dropout, casts."""
    trace = trace_on_meta(lambda: Net(WAYS[way], 0.1), lambda: torch.ones(2, 16, 8), loss, autocast=autocast)

    def of(phase: Phase) -> set[tuple[str, str]]:
        found = (one for one in trace.ops if one.phase is phase and one.origin.startswith("layers."))
        return {(one.name, one.origin) for one in found if "add." not in one.name}

    again = {(name, origin) for name, origin in of(Phase.BACKWARD) if (name, origin) in of(Phase.FORWARD)}
    early = {place for place in of(Phase.FORWARD) - again if "dense.2" in place[1]}  # stopped before its end
    assert again | early == of(Phase.FORWARD)


@pytest.mark.parametrize("way", ["reentrant", "not reentrant", "nested", "selective"])
def test_peaks_at_any_batch(way: str) -> None:
    """From two small steps. A graph runs without checkpoints, so what these keep is not said of it."""

    def step(samples: int) -> StepTrace:
        return trace_on_meta(lambda: Net(WAYS[way]), lambda: torch.ones(samples, 16, 8), loss)

    memory = step_memory(step(2), step(3), batch=3)
    assert memory is not None
    assert memory.peak(64) == live_kept(step(64)).max()
    assert not memory.kept


class Shared(nn.Module):
    """One layer in three checkpoints."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.options = nn.Linear(WIDTH, WIDTH), options
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = checkpoint(self.layer, x, **self.options)
        return x


@BOTH
def test_the_last_call_of_a_layer_runs_again_first(options: dict[str, Any]) -> None:
    trace = trace_on_meta(lambda: Shared(**options), lambda: torch.ones(4, WIDTH), loss)
    products = [one for one in trace.ops if one.name == "aten.addmm.default" and one.module == "layer.0"]
    calls = [one.origin.partition("/")[0] for one in products]
    assert calls == ["layer.0", "layer.0@1", "layer.0@2", "layer.0@2", "layer.0@1", "layer.0"]


class Penalised(nn.Module):
    """Its loss has a gradient of a checkpoint in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = Block(), options

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(2, 16, WIDTH).clone().requires_grad_()
        value = checkpoint(self.layer, x, **self.options)
        (gradient,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
        return value + gradient


def test_a_backward_within_the_forward_runs_again_as_the_forward_did() -> None:
    compare(lambda: Penalised(**OTHER), torch.ones(1))


def llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, bos_token_id=0, eos_token_id=1, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(sizes).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=1, use_cache=False
    )
    model = GPT2LMHeadModel(sizes).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model


@BOTH
@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_models_of_hugging_face(make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    """With an update, as the planner traces them."""
    tokens = torch.ones(16, dtype=torch.long)
    job = Job(
        name=make.__name__,
        model=lambda: make(**options),
        loss=None,
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        dataset=lambda: [{"input_ids": tokens, "labels": tokens}] * 2,  # type: ignore[arg-type,return-value]
        global_batch_size=2,
    )
    model = make(**options)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens.expand(2, 16), labels=tokens.expand(2, 16)).loss.backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    expected = counted(step)
    with forms_of_a_cpu():
        trace = JobTracer(job).trace(2)
    assert max(traced(trace)) == pytest.approx(max(expected), rel=0.01)
