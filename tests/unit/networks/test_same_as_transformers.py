"""The networks of language compute what Hugging Face's do: the same weights give the same scores.

Tolerance: 1e-5 of scores of about one, the rounding of fp32 sums in another order.
"""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from trimaran.networks.bert import BertForPretraining, BertForQuestions
from trimaran.networks.gpt import Gpt2, Mpt
from trimaran.networks.llama import Llama
from trimaran.networks.sizes import TransformerSize

transformers = pytest.importorskip("transformers")

SIZE = TransformerSize(width=32, layers=2, heads=4, dense=128, vocabulary=60, positions=16)
TOKENS = torch.arange(24).reshape(2, 12) % SIZE.vocabulary


def copy(theirs: nn.Module, ours: nn.Module, names: Mapping[str, str]) -> None:
    """Weights by name, after the replacements of `names` in the names of theirs; every one of ours is set."""
    found = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = value
    missing, _ = ours.load_state_dict(found, strict=False)
    assert missing == []


def drawn(model: nn.Module) -> nn.Module:
    """With weights of some size, so that every part of the network shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [2, 4])
def test_llama(groups: int) -> None:
    size = TransformerSize(
        width=32, layers=2, heads=4, kv_heads=groups, dense=48, vocabulary=60, positions=16, tied=False
    )
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=groups,
        rms_norm_eps=1e-5,
        max_position_embeddings=16,
    )
    theirs, ours = drawn(transformers.LlamaForCausalLM(config)), Llama(size).eval()
    names = {
        "model.layers.": "blocks.",
        "model.": "",
        "self_attn": "attention",
        "input_layernorm": "norm1",
        "post_attention_layernorm": "norm2",
        "mlp.": "",
    }
    copy(theirs, ours, names)
    assert_same(ours(TOKENS), theirs(TOKENS).logits)


BERT_NAMES = {
    "bert.embeddings.word_embeddings": "encoder.words",
    "bert.embeddings.position_embeddings": "encoder.positions",
    "bert.embeddings.token_type_embeddings": "encoder.segments",
    "bert.embeddings.LayerNorm": "encoder.norm",
    "bert.encoder.layer": "encoder.blocks",
    "bert.pooler.dense": "pooler",
    "attention.self": "attention",
    "attention.output.dense": "attention.outer",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "norm2",
    "cls.predictions.transform.dense": "transform",
    "cls.predictions.transform.LayerNorm": "norm",
    "cls.predictions.decoder": "decoder",
    "cls.seq_relationship": "follows",
    "qa_outputs": "answer",
}


def bert_config() -> object:
    return transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=16,
    )


def test_bert_with_the_heads_of_its_pretraining() -> None:
    theirs, ours = drawn(transformers.BertForPreTraining(bert_config())), BertForPretraining(SIZE).eval()
    copy(theirs, ours, BERT_NAMES)
    segments, hidden = TOKENS % 2, torch.tensor([[1, 5], [0, 11]])
    words, follows = ours(TOKENS, segments, hidden)
    expected = theirs(TOKENS, token_type_ids=segments)
    assert_same(words, torch.stack([expected.prediction_logits[row, hidden[row]] for row in range(2)]))
    assert_same(follows, expected.seq_relationship_logits)


def test_bert_with_the_head_of_questions() -> None:
    theirs, ours = drawn(transformers.BertForQuestionAnswering(bert_config())), BertForQuestions(SIZE).eval()
    copy(theirs, ours, BERT_NAMES)
    segments = TOKENS % 2
    expected = theirs(TOKENS, token_type_ids=segments)
    assert_same(ours(TOKENS, segments), torch.stack([expected.start_logits, expected.end_logits], dim=-1))


def test_opt() -> None:
    config = transformers.OPTConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=128,
        max_position_embeddings=16,
        word_embed_proj_dim=32,
    )
    theirs = drawn(transformers.OPTForCausalLM(config))
    ours = Gpt2(32, 4, 2, vocabulary=60, length=16, relu=True).eval()
    merged = {}
    for number, layer in enumerate(theirs.model.decoder.layers):
        attention = layer.self_attn
        for kind in ("weight", "bias"):
            parts = [getattr(part, kind) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
            merged[f"h.{number}.attn.inner.{kind}"] = torch.cat(parts)
    names = {
        "model.decoder.layers.": "h.",
        "model.decoder.embed_tokens": "wte",
        "model.decoder.final_layer_norm": "ln_f",
        "self_attn_layer_norm": "ln_1",
        "final_layer_norm": "ln_2",
        "self_attn.out_proj": "attn.outer",
        "fc1": "mlp.0",
        "fc2": "mlp.2",
    }
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    # Its first two positions are those of no token.
    state["wpe"] = theirs.model.decoder.embed_positions.weight[2:]
    missing, _ = ours.load_state_dict(state | merged, strict=False)
    assert missing == []
    assert_same(ours(TOKENS), theirs(TOKENS).logits)


def test_mpt() -> None:
    config = transformers.MptConfig(vocab_size=60, d_model=32, n_heads=4, n_layers=2, max_seq_len=16)
    theirs, ours = drawn(transformers.MptForCausalLM(config)), Mpt(SIZE).eval()
    names = {
        "transformer.": "",
        "norm_f": "norm",
        "norm_1": "norm1",
        "norm_2": "norm2",
        "attn.Wqkv": "inner",
        "attn.out_proj": "outer",
        "ffn.": "",
    }
    copy(theirs, ours, names)
    assert_same(ours(TOKENS), theirs(TOKENS).logits)
