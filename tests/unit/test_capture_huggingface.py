"""Models of Hugging Face, made from tiny configurations: captured, cut, and equal to themselves.

They take a dict with labels and have their own loss. Their attention builds its mask in another way while it is traced,
so results are compared to rounding.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graph.chain import (
    build_chain,
    evaluate_chain,
    gradients,
    make_batch,
    train_chain,
    train_whole,
)
from torch import nn

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.user_code.batches import call_model

transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(  # type: ignore[no-any-return]
        transformers.GPT2Config(n_positions=16, n_embd=32, n_layer=2, n_head=4, **TOKENS)
    )


def llama() -> nn.Module:
    config = transformers.LlamaConfig(num_key_value_heads=2, max_position_embeddings=16, **SMALL, **TOKENS)
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=64, max_position_embeddings=16, **SMALL)
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **SMALL)
    return transformers.ViTForImageClassification(config)  # type: ignore[no-any-return]


def words(*, mask: bool, label: bool) -> list[dict[str, torch.Tensor]]:
    """Sentences of 8 tokens; with a mask, the last tokens of each are padding."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for number in range(6):
        ids = torch.randint(2, 64, (8,), generator=generator)
        sample = {"input_ids": ids, "labels": torch.tensor(number % 2) if label else ids}
        if mask:
            sample["attention_mask"] = (torch.arange(8) < 8 - number % 3).long()
        samples.append(sample)
    return samples


def pictures() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"pixel_values": torch.randn(3, 16, 16, generator=generator), "labels": torch.tensor(number % 5)}
        for number in range(6)
    ]


DATA: dict[Callable[[], nn.Module], Callable[[], list[dict[str, torch.Tensor]]]] = {
    gpt2: lambda: words(mask=False, label=False),
    llama: lambda: words(mask=True, label=False),
    bert: lambda: words(mask=True, label=True),
    vit: pictures,
}


@pytest.fixture(scope="module", params=list(DATA), ids=lambda factory: factory.__name__)
def captured(request: pytest.FixtureRequest) -> tuple[Job, Capture]:
    job = Job(
        name=request.param.__name__,
        model=request.param,
        loss=None,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=DATA[request.param],  # type: ignore[arg-type]
        global_batch_size=4,
    )
    return job, capture(job)


def halves(found: Capture) -> tuple[str, ...]:
    return (found.graph.split_points[len(found.graph.split_points) // 2],)


def test_it_can_be_cut(captured: tuple[Job, Capture]) -> None:
    graph = captured[1].graph
    assert len(graph.split_points) > 20
    assert all("past_key_values" in note for note in graph.notes)
    assert "labels" in [spec.name for spec in graph.inputs]


def test_every_leaf_module_is_called_as_a_whole(captured: tuple[Job, Capture]) -> None:
    """Also those whose inside is read from outside: what a Llama norm casts without need is the residual too."""
    job, found = captured
    called: list[str] = []
    twin = copy.deepcopy(found.model)
    for path, module in twin.named_modules():
        if not list(module.children()):
            module.register_forward_pre_hook(lambda *_, path=path: called.append(path))
    with torch.no_grad():
        call_model(job, twin, make_batch(job, 2))
    operations = [op.id.partition("@")[0] for op in found.graph.ops]
    assert called
    assert sorted(called) == sorted(path for path in operations if path in dict(twin.named_modules()))


@pytest.mark.parametrize("parts", [2, 4])
def test_segments_give_the_same_step(captured: tuple[Job, Capture], parts: int) -> None:
    job, found = captured
    twin = copy.deepcopy(found.model).train()
    found.model.train()
    batch = make_batch(job, 5)
    cuts = found.graph.split_points
    boundaries = tuple(cuts[len(cuts) * part // parts] for part in range(1, parts))
    expected = train_whole(job, twin, batch)
    loss = train_chain(job, build_chain(found, boundaries), found.model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(found.model), gradients(twin), rtol=1e-4, atol=1e-5)


def test_segments_give_the_output_of_the_model(captured: tuple[Job, Capture]) -> None:
    job, found = captured
    segments = build_chain(found, halves(found))
    for segment in segments:
        segment.eval()
    batch = make_batch(job, 2)
    output: Any = evaluate_chain(segments, batch)
    with torch.no_grad():
        expected = call_model(job, found.model, batch)
    assert type(output) is type(expected)
    torch.testing.assert_close(output.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-4, atol=1e-5)


def test_rotary_tables_and_masks_of_sizes_are_not_sent() -> None:
    """Llama's rotary embedding reads the hidden state for its dtype only: every segment computes its own."""
    job = Job(
        model=llama,
        loss=None,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=DATA[gpt2],  # type: ignore[arg-type]
        global_batch_size=4,
    )
    graph = capture(job).graph
    rotary = next(op for op in graph.ops if op.target == "LlamaRotaryEmbedding")
    assert rotary.inputs == ()
    made = {spec.name for spec in rotary.outputs}
    assert made
    assert not any(made & set(op.inputs) for op in graph.ops)
    middle = graph.split_points[len(graph.split_points) // 2]
    assert all(spec.requires_grad for spec in graph.crossing((middle,))[0, 1])
