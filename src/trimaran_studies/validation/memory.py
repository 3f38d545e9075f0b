"""Predicts published figures of memory.

Four kinds of rows: Megatron-LM's training tests (peak of an allocator on the last rank), a paper's figures on
recomputation, tables of runs measured by the device's tool, and Caffe's sum of its layers' outputs. Other rows with a
known network and a batch are traced. An answer also says whether the step fits, where the device is known.

Intervals are by kind. Where the arguments of a program are known, errors come from its version rather than from the
formulas: most figures are within 1 or 2 %, and some of an older container have large errors.

Memory of the last rank in Megatron-LM's training tests, the rank that writes their figures.

The memory of the program is known from its source: gradients are 32-bit buffers in bf16 and 16-bit ones in fp16; a
product library's workspace of 32 MiB for each of its two callers where the test fixes it, and one of Transformer
Engine; the loss has logits in 16 and in 32 bits, and one to three more 32-bit forms where it is compiled.

A published figure names its test and not the arguments. These are published in Megatron-LM's repository;
`megatron_cases.toml` has those that memory depends on, by test. The arguments of a test that is not listed are read
from its name, which has degrees and main switches in the repository's notation.

Memory of a rank of a transformer of two stacks (T5), without a pipeline.

Both stacks have the same width. A layer of the decoder is one of a decoder alone, and attends once more: its queries
come from its own tokens, keys and values from the encoder's output, which is kept once for all layers.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_toml
from trimaran.machine.catalog import match_device
from trimaran.machine.types import Machine
from trimaran.pricing.analytical.fits_device import MemoryKind, bookkeeping_of, memory_of_kind, workspace_bytes
from trimaran.pricing.analytical.layers import Eager, elements, layer_elements, operations
from trimaran.pricing.analytical.memory import (
    Bookkeeping,
    RankMemory,
    largest_rank,
    layer_activations,
    rank_memory,
    state_bytes,
)
from trimaran.pricing.analytical.shapes import (
    LAYER_BIASES,
    NO_BIASES,
    Experts,
    LatentAttention,
    TransformerShape,
    embedding_elements,
    gpt_shape,
    key_size,
    norm_elements,
    query_size,
    stream_bytes,
    tokens_of_rank,
)
from trimaran.program.strategy import Degrees, Recomputed
from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.validation.measurement import Answer, Row, attempt, cells_read
from trimaran_studies.validation.model_parallel import TransformerRun, machine_of, transformer_run

# ---------------------------------------------------------------------------------------------------------------------
# A transformer of two stacks (T5), without a pipeline


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
    table = operations(encoder, Degrees(tp=tensor), 0)
    crossing, _ = elements(row for row in table if row.part in ("inputs", "attention"))
    stack = (encoder.layers + stacks.layers) * layer + stacks.layers * (crossing + norm)
    embedding = embedding_elements(encoder, tensor) + encoder.positions * encoder.hidden
    return stack + 2 * norm + embedding + encoder.vocabulary // tensor


def _cross_attention(stacks: TwoStacks, degrees: Degrees, keeping: Bookkeeping) -> int:
    """What a decoder's layer keeps for its attention to the encoder [bytes]."""
    decoder, encoder, tensor = stacks.decoder, stacks.encoder, degrees.tp
    own, others = tokens_of_rank(decoder, degrees), tokens_of_rank(encoder, degrees)
    queries = own * query_size(decoder, tensor) * 2
    keys = 2 * others * key_size(decoder, tensor) * 2
    heads = decoder.heads // tensor
    if keeping.attention != "math":
        core = 2 * queries + own * heads * _STATISTIC
    else:
        core = queries + own * heads * encoder.sequence * (5 if decoder.attention_dropout else 2)
    stream = stream_bytes(decoder, degrees)
    return 2 * stream + (stream // 2 if decoder.hidden_dropout else 0) + queries + keys + core


# ---------------------------------------------------------------------------------------------------------------------
# Megatron-LM's training tests: the last rank, which writes their figures


Arguments = Mapping[str, str]
"""Arguments by name, without dashes; one without a value has "true"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronCase:
    """A test.

    Attributes:
        family: "gpt", "bert", "moe", "mixtral" or "t5"
        name: of the test
        arguments: as given to the program
        listed: whether the arguments are the published ones, not read from the name
    """

    family: str
    name: str
    arguments: Arguments
    listed: bool


@functools.cache
def _document() -> dict[str, Any]:
    return packaged_toml("trimaran_studies.validation", "megatron_cases.toml")


@functools.cache
def _bases() -> dict[str, Arguments]:
    """Arguments of all tests of a family."""
    return {family: _arguments(line) for family, line in _document()["base"].items()}


@functools.cache
def _cases() -> dict[tuple[str, str], Arguments]:
    return {
        (family, name): {**base, **_arguments(group["arguments"])}
        for family, base in _bases().items()
        for group in _document()[family]
        for name in group["cases"]
    }


def _arguments(line: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in line.split())
    return {name: value if sign else "true" for name, sign, value in pairs}


def megatron_case(path: str) -> MegatronCase | None:
    """The test whose figures a file of the repository holds.

    Args:
        path: of the file, such as "tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2/golden_values_lts.json"

    Returns:
        The test; None where the path names none.

    Example:
        >>> megatron_case("tests/functional_tests/test_cases/gpt/gpt3_mcore_tp4_pp1/x.json").arguments["hidden-size"]
        '512'
    """
    match = re.search(r"test_cases/([^/]+)/([^/]+)", path)
    if match is None:
        return None
    family, name = match.groups()
    known = _cases().get((family, name))
    if known is not None:
        return MegatronCase(family=family, name=name, arguments=known, listed=True)
    return MegatronCase(family=family, name=name, arguments=_from_name(family, name), listed=False)


_SWITCHES = {
    "dist_optimizer": "use-distributed-optimizer",
    "sequence_parallel": "sequence-parallel",
    "swiglu": "swiglu",
    "untie": "untie-embeddings-and-output-weights",
    "disable_bias": "disable-bias-linear",
    "qk_layernorm": "qk-layernorm",
    "cross_entropy_loss_fusion": "cross-entropy-loss-fusion",
    "fsdp": "use-megatron-fsdp",
}


def _from_name(family: str, name: str) -> dict[str, str]:
    base = {
        "num-layers": "24" if family == "bert" else "12",
        "hidden-size": "1024" if family == "bert" else "512",
        "num-attention-heads": "16" if family == "bert" else "8",
        "micro-batch-size": "4",
        "global-batch-size": "128" if family == "bert" else "32",
        "seq-length": "512" if family == "bert" else "1024",
        "transformer-impl": "transformer_engine" if "_te_" in name else "local",
        "fixed-workspace": "true",
    }
    if family == "t5":  # two stacks, with other names
        base = {**_bases()[family], "transformer-impl": base["transformer-impl"], "fixed-workspace": "true"}
    degrees = {
        "tensor-model-parallel-size": r"(?:^|_)tp(\d+)",
        "pipeline-model-parallel-size": r"(?:^|_)pp(\d+)",
        "context-parallel-size": r"(?:^|_)cp(\d+)",
        "expert-model-parallel-size": r"(?:^|_)ep(\d+)",
        "expert-tensor-parallel-size": r"(?:^|_)etp(\d+)",
        "num-virtual-stages-per-pipeline-rank": r"(?:^|_)vp(\d+)",
        "num-experts": r"(\d+)experts",
    }
    found = {key: re.search(pattern, name) for key, pattern in degrees.items()}
    base |= {key: match.group(1) for key, match in found.items() if match is not None}
    base |= {argument: "true" for word, argument in _SWITCHES.items() if word in name}
    if "rope" in name:
        base["position-embedding-type"] = "rope"
    if "full_recompute" in name:
        base["recompute-granularity"] = "full"
    if "resume" not in name and "nondeterministic" not in name:
        base["attention-backend"] = "unfused"
    return base


# ---------------------------------------------------------------------------------------------------------------------
# The network and the degrees of a training test of Megatron-LM, from its arguments


_ENTRIES = {
    "GPTSentencePieceTokenizer": 256000,
    "Llama2Tokenizer": 32000,
    "BertWordPieceCase": 28996,
}
"""Entries of a tokenizer's vocabulary, where it is not GPT-2's 50,257 (facts of the tokenizers' files)."""

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
        biases=NO_BIASES if "disable-bias-linear" in given else LAYER_BIASES,
        tied="untie-embeddings-and-output-weights" not in given,
        positions=0 if rotary else sequence,
        rotary=rotary,
        centred_norm=given.get("normalization") != "RMSNorm",
        query_key_norm="head" if "qk-layernorm" in given else None,
        hidden_dropout=float(given.get("hidden-dropout", 0.1)) > 0,
        attention_dropout=float(given.get("attention-dropout", 0.1)) > 0,
        experts=_experts(given, layers, inner),
        latent=_latent(given),
        head="masked" if case.family == "bert" else "causal",
    )


def padded_vocabulary(entries: int, *, tensor: int = 1, multiple: int = 128) -> int:
    """Rows of an embedding that is divided evenly: the entries, up to the next multiple of `multiple * tensor`.

    Example:
        >>> padded_vocabulary(50257), padded_vocabulary(50257, tensor=2)
        (50304, 50432)
    """
    step = multiple * tensor
    return -(-entries // step) * step


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


def degrees_of(case: MegatronCase, devices: int) -> Degrees:
    """The parallel degrees of a test on a number of devices."""
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
    return Degrees(
        tp=tensor,
        pp=pipeline,
        chunks=chunks,
        cp=context,
        dp=data,
        ep=_degree(given, "expert-model-parallel-size"),
        expert_tp=int(expert_tensor) if expert_tensor else None,
        microbatch=microbatch,
        microbatches=max(1, batch // (microbatch * data)),
        sequence_parallel="sequence-parallel" in given and tensor > 1,
        zero=3 if sharded else 1 if "use-distributed-optimizer" in given else 0,
        recomputed=_recomputed(given),
        segment_layers=parts,
        microbatch_group=int(given.get("microbatch-group-size-per-virtual-pipeline-stage", 0)),
    )


def _chunks(given: Arguments, layers: int, pipeline: int) -> int:
    per_chunk = given.get("num-layers-per-virtual-pipeline-stage")
    if per_chunk:
        return max(1, layers // pipeline // int(per_chunk))
    return _degree(given, "num-virtual-stages-per-pipeline-rank")


def _layout(given: Arguments, layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each segment, where a test has them: as a text such as "Et*3|(tt|)*6L", or by exceptions."""
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


_RELEASE_DEVICES = 512
"""Devices of release tests, whose number is not published; assumed."""

_TEST_DEVICES = 8
"""Devices of all other tests (tests/test_utils/recipes of the repository)."""


_LOSS_FORMS = (1, 2, 3)
"""32-bit forms of the logits that a compiled loss keeps besides the plain one's: less the maximum, exponentials, and
their quotients, as far as the container's compiler does not fuse them away. The least, what is taken, and the most."""


def megatron_rank(
    case: MegatronCase, *, path: str, device: str, devices: int | None, loss_forms: int = _LOSS_FORMS[1]
) -> RankMemory:
    """Memory of the last rank of a test.

    Args:
        case: the test
        path: of its file of figures, which names the container
        device: label in the row
        devices: of the run; None: not published
        loss_forms: of the logits that a compiled loss keeps

    Returns:
        Memory by part.
    """
    degrees = degrees_of(case, devices or devices_of(case, device))
    bookkeeping = _bookkeeping(case, path, device, loss_forms)
    if case.family == "t5":
        return two_stack_memory(stacks_of(case), degrees, bookkeeping=bookkeeping)
    found = rank_memory(shape_of(case), degrees, stage=degrees.pp - 1, bookkeeping=bookkeeping)
    # Optimizer state is divided over the replicas of one instance, and each instance has all of it.
    instances = int(case.arguments.get("num-distributed-optimizer-instances", 1)) if degrees.zero == 1 else 1
    return found._replace(
        optimizer=found.optimizer * instances,
        activations=found.activations + _probabilities_32(case, degrees, bookkeeping),
    )


def _probabilities_32(case: MegatronCase, degrees: Degrees, keeping: Bookkeeping) -> int:
    """What the last stage keeps more where attention's softmax is PyTorch's, in 32 bits [bytes].

    Source:
        NVIDIA/Megatron-LM megatron/core/fusions/fused_softmax.py: scores become 32-bit, and so is the result that the
        backward of the softmax needs; the kernel that joins scale, mask and softmax keeps 16-bit ones.
    """
    given = case.arguments
    wide = {"apply-query-key-layer-scaling", "attention-softmax-in-fp32"} & given.keys()
    if keeping.attention != "math" or "no-masked-softmax-fusion" not in given or not wide:
        return 0
    shape = shape_of(case)
    scores = tokens_of_rank(shape, degrees) * (shape.heads // degrees.tp) * shape.sequence
    return 2 * scores * (shape.layers // degrees.pp)


def devices_of(case: MegatronCase, device: str) -> int:
    """Devices of a test whose row does not have their number."""
    degrees = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    least = 1
    for degree in degrees:
        least *= int(case.arguments.get(degree, 1))
    usual = _TEST_DEVICES
    if "release" in case.name:
        usual = _RELEASE_DEVICES
    elif case.name.endswith("1node") and "B200" in device.upper():
        usual = _TEST_DEVICES // 2
    return max(least, usual)


def _bookkeeping(case: MegatronCase, path: str, device: str, loss_forms: int) -> Bookkeeping:
    given = case.arguments
    local = given.get("transformer-impl") == "local" or given.get("spec") == "local"
    before_hopper = any(name in device.upper() for name in ("A100", "V100"))
    logit = 6
    if "cross-entropy-loss-fusion" in given:
        logit += 4 * loss_forms
    if "defer-embedding-wgrad-compute" in given:
        logit += 4
    fp8 = "fp8-format" in given
    return Bookkeeping(
        weight_bytes=4 if fp8 and "fp8-param-gather" not in given else 2,
        gradient_bytes=2 if "fp16" in given else 4,
        logit_bytes=logit,
        product_input_bytes=1 if fp8 else 2,
        attention="math" if _keeps_probabilities(case, local=local, path=path) else "flash2",
        dense_mask="no-create-attention-mask-in-dataloader" not in given,
        workspace_bytes=workspace_bytes(
            before_hopper=before_hopper, fixed="fixed-workspace" in given, engine=not local
        ),
    )


def _keeps_probabilities(case: MegatronCase, *, local: bool, path: str) -> bool:
    """Whether attention is not fused: by argument, or because an older container has no deterministic fused kernel."""
    backend = case.arguments.get("attention-backend", "auto")
    if local or backend in ("unfused", "local"):
        return True
    return backend == "auto" and "deterministic" in case.arguments and _is_of_older_container(case, path)


def _is_of_older_container(case: MegatronCase, path: str) -> bool:
    """Whether a file of figures was written before its container got the newer libraries (`megatron_cases.toml`)."""
    if "lts_dgxa100_dracooci" in path:
        return True
    return path.endswith("lts_dgx_a100.json") and case.name in _document()["lts_before_25_09"].get(case.family, ())


_OF_DEVICE = re.compile(r"_(gb200|gb300|b200|h100|a100)(_1node)?$")


def _check_of_its_device(case: MegatronCase, row: Row) -> None:
    """Refuse figures of a device that the arguments of a test are not for: such files are copies of another test's.

    Raises:
        InputError: with the device
    """
    made_for, device = _OF_DEVICE.search(case.name), row.fields.get("gpu", "")
    if made_for is not None and device and made_for.group(1).upper() not in device.upper():
        raise InputError(
            f"row {row.row_id}: the arguments of {case.name} are for {made_for.group(1).upper()}, and its figures are "
            f"said to be of {device}: a file of another test's figures",
            code="memory-row.other-device",
            row=row.row_id,
            device=device,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Memory of sharded transformers in published tables: those of a paper on recomputation, and of runs on Jean Zay


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRun:
    """A run of Korthikanti et al., 2022, table 3: layers, hidden size, heads, degrees and microbatch."""

    layers: int
    hidden: int
    heads: int
    pipeline: int
    chunks: int
    microbatch: int
    batch: int


_PAPER: Mapping[str, PaperRun] = {
    "22b": PaperRun(layers=48, hidden=6144, heads=64, pipeline=1, chunks=1, microbatch=4, batch=4),
    "175b": PaperRun(layers=96, hidden=12288, heads=96, pipeline=8, chunks=3, microbatch=1, batch=64),
    "530b": PaperRun(layers=105, hidden=20480, heads=128, pipeline=35, chunks=3, microbatch=1, batch=280),
    "1t": PaperRun(layers=128, hidden=25600, heads=160, pipeline=64, chunks=1, microbatch=1, batch=512),
}

_MODES: Mapping[str, tuple[bool, frozenset[Recomputed]]] = {
    "none": (False, frozenset()),
    "seq": (True, frozenset()),
    "sel": (False, frozenset({"attention"})),
    "seqsel": (True, frozenset({"attention"})),
    "full": (False, frozenset({"layers"})),
}
"""Names of a run's techniques: the residual stream sharded, and what is recomputed."""

_DRIVER_BYTES = 2_000_000_000
"""Memory in a device's tool in addition to tensors: context, code of libraries, buffers of collectives. Assumed."""


def paper_figure(row: Row) -> float | None:
    """The predicted figure for a row of the paper, in its unit; None for other rows."""
    size = re.search(r"(\d+[bt])\b", row.fields.get("model", "").lower())
    run = _PAPER.get(size.group(1)) if size else None
    mode = row.fields.get("recompute") or row.fields.get("precision") or ""
    if run is None or mode not in _MODES:
        return None
    shape = gpt_shape(layers=run.layers, hidden=run.hidden, heads=run.heads, vocabulary=51200, sequence=2048)
    metric = row.fields.get("metric", "")
    if "relative" in metric:
        kept = [
            layer_activations(shape, _degrees(run, *_MODES[which]), attention="math").kept for which in (mode, "none")
        ]
        return 100.0 * kept[0] / kept[1]
    rank = rank_memory(shape, _degrees(run, *_MODES[mode]), bookkeeping=Bookkeeping(attention="math"))
    figures = {"par_opt": rank.state, "act": rank.activations, "total": rank.peak, "opt": rank.optimizer}
    nbytes = figures.get(metric)
    return None if nbytes is None else nbytes / 2**30


def _degrees(run: PaperRun, sharded: bool, recomputed: frozenset[Recomputed]) -> Degrees:
    return Degrees(
        tp=8,
        pp=run.pipeline,
        chunks=run.chunks,
        microbatch=run.microbatch,
        microbatches=max(1, run.batch // run.microbatch),
        sequence_parallel=sharded,
        recomputed=recomputed,
    )


def script_rank(row: Row) -> RankMemory | None:
    """Memory of the largest rank in a run of the Jean Zay tables; None where the row lacks cells.

    The scripts train in fp16 with layers recomputed. In addition to weights, gradients and Adam's state, there is a
    32-bit copy of gradients from the first update on.

    Source:
        bigscience-workshop/bigscience: experiments/gpt2.md, tr3m-1B3.md, tr8-104B.md and the scripts that they name.
    """
    fields = row.fields
    deep = "tr3m" in fields.get("source_path", "") or "tr8" in fields.get("source_path", "")
    sequence = 2048 if deep else 1024
    shape = named_shape(fields.get("model", ""), sequence=sequence, source="bigscience")
    with cells_read(row):
        counts = {key: int(float(fields[key])) for key in ("n_gpus", "pp", "dp") if fields.get(key)}
        tensor, batch = int(float(fields.get("tp") or 0)), int(float(fields.get("global_batch") or 1024))
        microbatch = int(float(fields.get("micro_batch") or 1))
    if shape is None or len(counts) < 3:
        return None
    tensor = tensor or max(1, counts["n_gpus"] // (counts["pp"] * counts["dp"]))
    # The table's column of microbatches is right where its columns of batch and accumulation agree.
    said = [int(part) for part in fields.get("config", "").split("|") if part.isdigit()]
    steps = next((count for count in said if count * microbatch * counts["dp"] == batch), 0)
    if not steps and 256 in said:
        microbatch = max(1, batch // (256 * counts["dp"]))
    degrees = Degrees(
        tp=tensor,
        pp=counts["pp"],
        dp=counts["dp"],
        microbatch=microbatch,
        microbatches=max(1, batch // (microbatch * counts["dp"])),
        recomputed=frozenset({"layers"}),
    )
    keeping = Bookkeeping(gradient_bytes=6, attention="math", workspace_bytes=_DRIVER_BYTES)
    return largest_rank(shape, degrees, bookkeeping=keeping)


def sharded_figure(row: Row) -> float | None:
    """Memory of the largest rank of a transformer, by what a row says of its degrees; None of a step on one device.

    A step on one device is traced: it may be of any framework. Everything else depends on degrees, on what replicas
    shard and on what is recomputed, which has to be said.

    Args:
        row: of a transformer whose shape is known

    Returns:
        The peak of an allocator; with its fragments where the metric is what it reserved, with all else where it is
        nvidia-smi's [bytes].

    Raises:
        InputError: the row does not say on how many devices, or with which degrees; or its device is not known
    """
    fields = row.fields
    with cells_read(row):
        devices = int(float(fields["n_gpus"])) if fields.get("n_gpus") else 0
    said = any(fields.get(name) for name in ("tp", "pp", "cp", "ep", "dp", "zero"))
    if not devices and not said:
        raise InputError(
            f"row {row.row_id}: n_gpus and degrees: missing, and the memory of {fields['model']} depends on them: say "
            "n_gpus, and above 1 also tp, pp, dp, zero",
            code="memory-row.no-degrees",
            row=row.row_id,
        )
    if devices > 1 and not said:
        raise InputError(
            f"row {row.row_id}: tp, pp, dp, zero: none is said, and the memory of a rank of {devices} devices depends "
            "on them: say them",
            code="memory-row.no-degrees",
            row=row.row_id,
        )
    if devices == 1 and not said:
        return None
    microbatch = fields.get("micro_batch") or fields.get("batch_per_gpu")
    if not microbatch:
        raise InputError(
            f"row {row.row_id}: micro_batch, batch_per_gpu: missing, and activations depend on it: say one of them",
            code="memory-row.no-batch",
            row=row.row_id,
        )
    with cells_read(row):
        run = transformer_run(replace(row, fields={**fields, "micro_batch": microbatch}))
    degrees = run.degrees
    if "torchtitan" in fields.get("framework", "").lower() and degrees.recomputed == {"attention"}:
        run = replace(run, degrees=replace(degrees, recomputed=frozenset({"second_products"})))
    return memory_of_run(run, machine_of(run), kind_of(row))


def kind_of(row: Row) -> MemoryKind:
    """What the memory of a row is of; of a row that does not say it, of the allocator's tensors."""
    told = f"{row.fields.get('memory_kind', '')} {row.fields.get('metric', '')}".lower()
    return next((kind for kind in get_args(MemoryKind) if kind in told), "allocated")


def memory_of_run(run: TransformerRun, machine: Machine, kind: MemoryKind, *, reserved: float | None = None) -> float:
    """Memory of the largest rank of a run, as a figure of a kind says it [bytes].

    Args:
        run: with its program
        machine: of it
        kind: of the figure
        reserved: above tensors, as a share of them; None: as fitted
    """
    eager = run.program.eager
    if not run.program.framework and run.degrees.zero == 3:
        eager = Eager()
    device = machine.node.device
    keeping = bookkeeping_of(
        run.program.precision,
        device,
        attention=run.program.attention,
        keeps_weight_gradients=run.program.keeps_weight_gradients,
        eager=eager,
        frozen=run.program.frozen,
    )
    memory = largest_rank(run.shape, run.degrees, bookkeeping=keeping)
    return memory_of_kind(memory, run.degrees, kind, device, keeping=keeping, reserved=reserved)


def _check_device(row: Row) -> None:
    """Refuse a device that is none of the catalog.

    Raises:
        InputError: with the label
    """
    label = row.fields.get("gpu", "")
    if label and match_device(label) is None:
        raise InputError(
            f"row {row.row_id}: gpu: {label}: no device of the catalog is meant",
            code="memory-row.unknown-device",
            row=row.row_id,
            device=label,
        )


_DECIMAL = {"bytes": 1.0, "B": 1.0, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_UNITS = {**_DECIMAL, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
"""Bytes of a unit."""

_PARTS = ("par_opt", "act", "opt")
"""Metrics of a part of a step's memory."""

_TOLD_BY_NAME = ("gpt", "bert", "moe", "mixtral", "t5")
"""Families of Megatron's tests whose names define the network; others have parts that are not modelled."""

_EXACT = (0.965, 1.04)
"""Interval of a figure whose program and arguments are known, from the memory of the same test in other versions."""

_NEAR = (0.9, 1.1)
"""Interval where a network's form has parts that are not modelled one by one, such as experts."""

_SAID = (0.75, 1.3)
"""Interval where only degrees are known, and neither the program's arguments nor its kernels. Assumed."""

_ROUGH = (0.85, 1.2)
"""Interval of a device's tool, which rounds and includes the driver's memory; and of tests not listed."""


def answer_memory(row: Row) -> Answer:
    """Predict a row of the families "peak_memory" and "activation_memory".

    Args:
        row: as published

    Returns:
        The answer; without a prediction, the reason.

    Raises:
        TrimaranError: a fault of the predictor
    """
    if _unit(row) not in {*_UNITS, "%"}:
        return Answer(row=row, predicted=None, skipped=f'unit "{row.unit}": not one of memory')
    found = attempt(row, lambda: _predict(row))
    if isinstance(found, str):
        return Answer(row=row, predicted=None, skipped=found)
    if found is None:
        return Answer(row=row, predicted=None, skipped="neither its program nor its network is known")
    predicted, (low, high) = found
    return Answer(row=row, predicted=predicted, low=predicted * low, high=predicted * high, fits=_fits(row, predicted))


def _unit(row: Row) -> str:
    """The first word of a unit, such as "GiB" of "GiB per GPU"; bytes where none is given."""
    return next(iter(row.unit.split()), "bytes")


def _fits(row: Row, predicted: float) -> bool | None:
    """Whether a whole step fits the row's device; None for figures of a part of it, and for unknown devices."""
    unit = _unit(row)
    if unit not in _UNITS or row.family != "peak_memory" or row.fields.get("metric", "") in _PARTS:
        return None
    said = row.fields.get("gpu_mem_gb")
    with cells_read(row):
        memory_gb = float(said) if said else None
    found = match_device(row.fields.get("gpu", ""), memory_gb)
    if found is None:
        return None
    memory = found.device.memory
    room = memory.reported_bytes - (0 if "nvidia-smi" in row.fields.get("metric", "") else memory.context_bytes)
    return predicted * _UNITS[unit] <= room


def _predict(row: Row) -> tuple[float, tuple[float, float]] | None:
    """A figure in the row's unit, and its interval as shares of it."""
    path = row.fields.get("source_path", "")
    scale = _UNITS.get(_unit(row), 1.0)
    case = megatron_case(path)
    if case is not None and (case.listed or case.family in _TOLD_BY_NAME):
        _check_of_its_device(case, row)
        count = row.fields.get("n_gpus")
        with cells_read(row):
            devices = int(float(count)) if count else None
        least, usual, most = (
            megatron_rank(case, path=path, device=row.fields.get("gpu", ""), devices=devices, loss_forms=forms).peak
            for forms in _LOSS_FORMS
        )
        plain = case.listed and case.family in ("gpt", "bert") and "num-experts" not in case.arguments
        low, high = _EXACT if plain else _NEAR if case.listed else _ROUGH
        return usual / scale, (low * least / usual, high * most / usual)
    if "calculon" in row.fields.get("source_repo", ""):
        figure = paper_figure(row)
        return None if figure is None else (figure, _EXACT)
    if "bigscience" in row.fields.get("source_repo", ""):
        rank_at_peak = script_rank(row)
        return None if rank_at_peak is None else (rank_at_peak.peak / scale, _ROUGH)
    if row.family == "peak_memory" and named_shape(row.fields.get("model", ""), sequence=1) is not None:
        figure = sharded_figure(row)
        if figure is not None:
            return figure / scale, _SAID
    _check_device(row)
    from trimaran_studies.validation.memory_traced import blobs_of, traced_peak  # torch is needed only from here on

    if row.family == "activation_memory":
        return blobs_of(row) / scale, _EXACT
    return traced_peak(row) / scale, _ROUGH
