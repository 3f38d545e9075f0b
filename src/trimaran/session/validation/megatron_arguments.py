"""The network and the division of a training test of Megatron-LM, from its arguments."""

import re

from trimaran.costs.transformers.division import Division, Recomputed
from trimaran.costs.transformers.encoder_decoder import TwoStacks
from trimaran.costs.transformers.shapes import Experts, LatentAttention, TransformerShape, padded_vocabulary
from trimaran.session.validation.megatron_cases import Arguments, MegatronCase

_ENTRIES = {
    "GPTSentencePieceTokenizer": 256000,
    "Llama2Tokenizer": 32000,
    "BertWordPieceCase": 28996,
}
"""Entries of a tokenizer's vocabulary, where it is not GPT-2's 50,257 (facts of the tokenizers' own files)."""

_RECOMPUTED: dict[str, Recomputed] = {
    "core_attn": "attention",
    "mlp": "feed_forward",
    "layernorm": "norms",
    "moe_act": "activations",
    "mla_up_proj": "up_projections",
}


def shape_of(case: MegatronCase) -> TransformerShape:
    """The network of a test."""
    given = case.arguments
    hidden, heads = int(given["hidden-size"]), int(given["num-attention-heads"])
    layers = int(given.get("num-layers") or given["encoder-num-layers"])
    tensor = _degree(given, "tensor-model-parallel-size")
    sequence = int(given.get("seq-length") or given["encoder-seq-length"])
    gated = "swiglu" in given
    inner = int(given.get("ffn-hidden-size") or (int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden))
    rotary = given.get("position-embedding-type") == "rope" or "use-rotary-position-embeddings" in given
    entries = int(given.get("vocab-size") or _ENTRIES.get(given.get("tokenizer-type", ""), 50257))
    if case.family == "bert":
        entries = _ENTRIES["BertWordPieceCase"]
    entries += int(given.get("vocab-extra-ids", 0))
    multiple = int(given.get("make-vocab-size-divisible-by", 128))
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(given.get("num-query-groups", heads)),
        head_size=int(given.get("kv-channels", hidden // heads)),
        ffn=inner,
        vocabulary=padded_vocabulary(entries, tensor=tensor, multiple=multiple),
        sequence=sequence,
        gated=gated,
        biases="disable-bias-linear" not in given,
        tied="untie-embeddings-and-output-weights" not in given,
        positions=0 if rotary else sequence,
        rotary=rotary,
        centred_norm=given.get("normalization") != "RMSNorm",
        query_key_norm="qk-layernorm" in given,
        hidden_dropout=float(given.get("hidden-dropout", 0.1)) > 0,
        attention_dropout=float(given.get("attention-dropout", 0.1)) > 0,
        experts=_experts(given, layers, inner),
        latent=_latent(given),
        head="masked" if case.family == "bert" else "causal",
    )


def stacks_of(case: MegatronCase) -> TwoStacks:
    """The two stacks of a T5."""
    given = case.arguments
    layers, sequence = int(given["decoder-num-layers"]), int(given["decoder-seq-length"])
    return TwoStacks(encoder=shape_of(case), layers=layers, sequence=sequence)


def _experts(given: Arguments, layers: int, inner: int) -> Experts | None:
    count = int(given.get("num-experts", 0))
    if not count:
        return None
    dense = re.match(r"\(\[0\]\*(\d+)", given.get("moe-layer-freq", ""))
    return Experts(
        count=count,
        active=int(given.get("moe-router-topk", 2)),
        ffn=int(given.get("moe-ffn-hidden-size", inner)),
        shared_ffn=int(given.get("moe-shared-expert-intermediate-size", 0)),
        dense_layers=min(layers, int(dense.group(1))) if dense else 0,
    )


def _latent(given: Arguments) -> LatentAttention | None:
    if "multi-latent-attention" not in given:
        return None
    return LatentAttention(
        query_rank=int(given.get("q-lora-rank", 0)),
        key_rank=int(given["kv-lora-rank"]),
        head_size=int(given["qk-head-dim"]),
        rotary_size=int(given["qk-pos-emb-head-dim"]),
        value_size=int(given["v-head-dim"]),
    )


def _degree(given: Arguments, name: str) -> int:
    return int(given.get(name, 1))


def division_of(case: MegatronCase, devices: int) -> Division:
    """How a test divides its network over so many devices."""
    given = case.arguments
    tensor, pipeline = _degree(given, "tensor-model-parallel-size"), _degree(given, "pipeline-model-parallel-size")
    context, microbatch = _degree(given, "context-parallel-size"), int(given["micro-batch-size"])
    data = max(1, devices // (tensor * pipeline * context))
    batch = int(given.get("global-batch-size") or microbatch * data * 8)
    layers = int(given.get("num-layers") or given["encoder-num-layers"])
    parts = _layout(given, layers, pipeline)
    chunks = len(parts) // pipeline if parts else _chunks(given, layers, pipeline)
    sharded = "use-megatron-fsdp" in given or "use-torch-fsdp2" in given
    expert_tensor = given.get("expert-tensor-parallel-size")
    return Division(
        tensor=tensor,
        pipeline=pipeline,
        chunks=chunks,
        context=context,
        data=data,
        expert=_degree(given, "expert-model-parallel-size"),
        expert_tensor=int(expert_tensor) if expert_tensor else None,
        microbatch=microbatch,
        microbatches=max(1, batch // (microbatch * data)),
        sequence_parallel="sequence-parallel" in given and tensor > 1,
        sharding="parameters" if sharded else "optimizer" if "use-distributed-optimizer" in given else "none",
        recomputed=_recomputed(given),
        parts=parts,
        group=int(given.get("microbatch-group-size-per-virtual-pipeline-stage", 0)),
    )


def _chunks(given: Arguments, layers: int, pipeline: int) -> int:
    per_chunk = given.get("num-layers-per-virtual-pipeline-stage")
    if per_chunk:
        return max(1, layers // pipeline // int(per_chunk))
    return _degree(given, "num-virtual-stages-per-pipeline-rank")


def _layout(given: Arguments, layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each part, where a test says them: as a text such as "Et*3|(tt|)*6L", or by exceptions."""
    text = given.get("pipeline-model-parallel-layout")
    if text:
        text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda found: found.group(1) * int(found.group(2)), text)
        text = re.sub(r"(\w)\*(\d+)", lambda found: found.group(1) * int(found.group(2)), text)
        return tuple(part.count("t") for part in text.split("|"))
    first, last = given.get("decoder-first-pipeline-num-layers"), given.get("decoder-last-pipeline-num-layers")
    if first and last:
        between = (layers - int(first) - int(last)) // (pipeline - 2)
        stages = (int(first), *(between for _ in range(pipeline - 2)), int(last))
        chunks = max(1, _degree(given, "num-virtual-stages-per-pipeline-rank"))
        per_chunk = given.get("num-layers-per-virtual-pipeline-stage")
        chunks = min(stages) // int(per_chunk) if per_chunk else chunks
        return tuple(count // chunks for _ in range(chunks) for count in stages)
    if "account-for-embedding-in-pipeline-split" in given:
        chunks = _chunks(given, layers + 2, pipeline)
        each = (layers + 2) // (pipeline * chunks)
        return (each - 1, *(each for _ in range(pipeline * chunks - 2)), each - 1)
    return ()


def _recomputed(given: Arguments) -> frozenset[Recomputed]:
    grain = given.get("recompute-granularity")
    if grain == "full":
        return frozenset({"layers"})
    if grain != "selective":
        return frozenset()
    modules = given.get("recompute-modules", "core_attn").strip("[]").split(",")
    return frozenset(_RECOMPUTED[module] for module in modules if module in _RECOMPUTED)
