"""A recipe as a configuration of torchtitan: Python, because its sections are dataclasses.

Names of options and schedules are those of torchtitan 0.3 (`torchtitan/config/configs.py`) and of
`torch.distributed.pipelining`. For a network that torchtitan has, the file is a whole configuration:

    torchrun --nproc-per-node 8 -m torchtitan.train --module trimaran_torchtitan --config trainer

Settings that torchtitan 0.3 needs and no plan decides: the path of DTensor, because the one by default (`spmd_types`)
asks FSDP2 of torch 2.13 for what only later releases of torch have; no CUDA graphs in a pipeline or with experts, for
which it refuses them; recompute said in any case, because it recomputes selectively by default.

A network that torchtitan has is named. Another decoder of its parts (rotary positions, gated feed-forward networks or
experts, RMSNorm, with or without norms of queries and keys) is written out of them, as Qwen 3's model. Experts are
spread over `expert_parallel_degree` ranks; ranks of `tp` share them only where that is 1.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from trimaran.base.units import format_count
from trimaran.features.export.recipe import (
    SETTINGS,
    Exported,
    ExportRecipe,
    lost_account,
    lost_copies,
    lost_order,
    lost_to_fsdp2,
    refuse,
    render,
    sharded_by_fsdp2,
    special_parts,
    torch_rounds,
    torchrun_ranks,
)
from trimaran.networks.names import canonical_network
from trimaran.networks.published_decoders import find_published
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import Schedule

RELEASE = "0.3"

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "1F1B",
    "dualpipe": "1F1B",
    "dualpipev": "DualPipeV",
}
_SAID: Mapping[Schedule, Schedule] = {
    **{one: one for one in ("gpipe", "1f1b", "interleaved", "dualpipev")},
    **dict.fromkeys(("zero-bubble", "dualpipe"), "1f1b"),
}
"""The schedule that the file says for each."""

_CLASSES = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}
_POLICIES = {"full": "FullAC", "selective": "SelectiveAC"}

_NETWORKS: Mapping[str, tuple[str, str, str]] = {
    "llama3:1b": ("llama3", "1B", "Llama-3.2-1B"),
    "llama3:3b": ("llama3", "3B", "Llama-3.2-3B"),
    "llama3:8b": ("llama3", "8B", "Llama-3.1-8B"),
    "llama3:70b": ("llama3", "70B", "Llama-3.1-70B"),
    "llama3:405b": ("llama3", "405B", "Llama-3.1-405B"),
    "qwen3:0.6b": ("qwen3", "0.6B", "Qwen3-0.6B"),
    "qwen3:1.7b": ("qwen3", "1.7B", "Qwen3-1.7B"),
    "qwen3:4b": ("qwen3", "4B", "Qwen3-4B"),
    "qwen3:8b": ("qwen3", "8B", "Qwen3-8B"),
    "qwen3:14b": ("qwen3", "14B", "Qwen3-14B"),
    "qwen3:32b": ("qwen3", "32B", "Qwen3-32B"),
    "qwen3:30b-a3b": ("qwen3", "30B-A3B", "Qwen3-30B-A3B"),
    "qwen3:235b-a22b": ("qwen3", "235B-A22B", "Qwen3-235B-A22B"),
    "deepseek-v2:236b": ("deepseek_v3", "236B", "DeepSeek-V2"),
    "deepseek-v2:lite": ("deepseek_v3", "16B", "DeepSeek-V2-Lite"),
    "deepseek-v3": ("deepseek_v3", "671B", "DeepSeek-V3.1-Base"),
    "gpt-oss:20b": ("gpt_oss", "20b", "gpt-oss-20b"),
    "gpt-oss:120b": ("gpt_oss", "120b", "gpt-oss-120b"),
}
"""Of networks that torchtitan has: its module, its name there, and the folder of its tokenizer."""

_PARTS = frozenset({"norms of queries and keys", "experts", "experts in some layers", "tied embeddings"})
"""Of `special_parts`, those that torchtitan's Qwen 3 has."""

_RATE = 3e-4
_NO_CLIPPING = 1e30
"""torchtitan always clips, by default to a norm of 1."""


def knows_network(recipe: ExportRecipe) -> bool:
    """Whether the exported file is a whole configuration.

    Args:
        recipe: of a plan
    """
    return _network(recipe) is not None or (recipe.shape is not None and not _lacking(recipe.shape))


def _network(recipe: ExportRecipe) -> tuple[str, str, str] | None:
    published = find_published(recipe.job)
    return _NETWORKS.get(canonical_network(recipe.job) or (published.name if published else ""))


def _lacking(shape: TransformerShape) -> tuple[str, ...]:
    """What a decoder has that the parts of torchtitan's Qwen 3 have not."""
    return tuple(part for part in special_parts(shape) if part not in _PARTS)


def to_torchtitan(recipe: ExportRecipe) -> Exported:
    """The recipe for torchtitan.

    Args:
        recipe: of a plan

    Raises:
        InputError: the plan has what torchtitan lacks
    """
    refuse(recipe, "torchtitan", _reasons(recipe))
    said, lost = as_said(recipe), tuple(_lost(recipe))
    sections = {"training": _training(said), "parallelism": _parallelism(said), "compile": _compile(said)}
    return Exported(
        target="torchtitan",
        release=RELEASE,
        file_name="trimaran_torchtitan.py",
        text=_text(said, sections, lost),
        sections=sections,
        next=_next(said),
        lost=lost,
        degrees=said,
    )


def as_said(recipe: ExportRecipe) -> ExportRecipe:
    """What the file says of a recipe.

    Args:
        recipe: of a plan
    """
    said = sharded_by_fsdp2(recipe)
    return replace(
        said,
        # Experts take ranks of those that shard the state, and of `tp`.
        zero=2 if said.zero == 0 and said.ep > 1 else said.zero,
        expert_tp=None if said.ep == 1 else 1,
        ulysses=False,
        schedule=_SAID[recipe.schedule],
    )


def _reasons(recipe: ExportRecipe) -> Iterator[str]:
    shape = recipe.shape
    if shape is not None and not knows_network(recipe):
        yield f"its network is none of torchtitan's, which have no {', no '.join(_lacking(shape))}"
    if shape is not None and shape.tied and recipe.pp > 1:
        yield "the embedding is also the head, which torchtitan does not have in a pipeline (--pp 1)"
    if shape is not None and shape.prediction_layers and max(recipe.pp, recipe.cp) > 1:
        yield "layers that predict further tokens are in no pipeline and with whole sequences (--pp 1, --cp 1)"
    said = as_said(recipe)
    ranks = said.copies_of_state()[1] * said.cp * said.tp if said.zero else said.cp * said.tp
    if said.ep > 1 and ranks % said.ep:
        yield f"experts over {said.ep} ranks, which do not divide the {ranks} that share a copy of the state (--ep)"


def _next(recipe: ExportRecipe) -> str:
    if not knows_network(recipe):
        return "import the sections in a config_registry function, and pass them to Trainer.Config"
    start = f"{SETTINGS} torchrun {torchrun_ranks(recipe)} -m torchtitan.train"
    return f"{start} --module trimaran_torchtitan --config trainer"


def _training(recipe: ExportRecipe) -> dict[str, object]:
    accumulated = 1 if recipe.pp == 1 else recipe.microbatches
    section: dict[str, object] = {
        # A pipeline's microbatches are parts of the local batch; without one, accumulation follows from the global one.
        "local_batch_size": recipe.microbatch * accumulated,
        "global_batch_size": recipe.global_batch_size,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16" if recipe.precision == "bf16" else "float32",
    }
    if recipe.sequence_length is not None:
        section["seq_len"] = recipe.sequence_length
    if recipe.clip_norm is not None:
        section["max_norm"] = recipe.clip_norm
    elif recipe.source is not None:
        section["max_norm"] = _NO_CLIPPING
    if recipe.pp > 1 or recipe.ep > 1 or (recipe.shape is not None and recipe.shape.experts is not None):
        section["disable_cuda_graphs"] = True
    return section


def _parallelism(recipe: ExportRecipe) -> dict[str, object]:
    sharded = recipe.zero >= 2
    copies, shared = recipe.copies_of_state()
    section: dict[str, object] = {
        "data_parallel_replicate_degree": copies if sharded else recipe.dp,
        "data_parallel_shard_degree": shared if sharded else 1,
        "tensor_parallel_degree": recipe.tp,
        "pipeline_parallel_degree": recipe.pp,
        "context_parallel_degree": recipe.cp,
        "spmd_backend": "full_dtensor",
    }
    if recipe.ep > 1:
        section["expert_parallel_degree"] = recipe.ep
    if sharded:
        section["fsdp_reshard_after_forward"] = "always" if recipe.zero == 3 else "never"
    if recipe.tp > 1:
        section["enable_sequence_parallel"] = recipe.sequence_parallel
    if recipe.pp > 1:
        section["pipeline_parallel_schedule"] = _SCHEDULES[recipe.schedule]
        section["pipeline_parallel_microbatch_size"] = recipe.microbatch
        if recipe.stages:
            section["module_fqns_per_model_part"] = _stages(recipe)
    return section


def _stages(recipe: ExportRecipe) -> list[list[str]]:
    """The modules of each stage; where the plan only counts layers, under the names of torchtitan's own decoders."""
    if any(stage.modules for stage in recipe.stages):
        return [list(stage.modules) for stage in recipe.stages]
    ends = list(accumulate(stage.layers for stage in recipe.stages))
    named = [
        [f"layers.{layer}" for layer in range(end - stage.layers, end)]
        for stage, end in zip(recipe.stages, ends, strict=True)
    ]
    named[0].insert(0, "tok_embeddings")
    named[-1] += ["norm", "lm_head"]
    return named


def _compile(recipe: ExportRecipe) -> dict[str, object]:
    return {"enable": recipe.compiled}


def _lost(recipe: ExportRecipe) -> Iterator[str]:
    yield from recipe.beyond
    yield from lost_order(recipe)
    yield from lost_account(recipe, "torchtitan")
    yield from torch_rounds(recipe)
    if recipe.precision not in ("fp32", "bf16"):
        yield f"precision {recipe.precision}: torchtitan trains in float32 and bfloat16; the file says float32"
    yield from lost_to_fsdp2(recipe, "torchtitan")
    if recipe.zero >= 2 and recipe.copies_of_state()[0] == 1:
        yield from lost_copies(recipe)
    if recipe.ep > 1 and recipe.expert_ranks > 1:
        yield f"experts shared by {recipe.expert_ranks} ranks: where they are over {recipe.ep}, each is on one"
    if recipe.ulysses:
        yield "heads exchanged for parts of the sequence (Ulysses): torchtitan gathers keys and values"
    if recipe.pp > 1:
        yield (
            f"the release of torch: a pipeline of torchtitan {RELEASE} hands microbatches to torch's schedules, which "
            'torch 2.13 refuses ("Expecting ... arg_mbs"); take a later one'
        )
    if recipe.pp > 1 and recipe.schedule == "zero-bubble":
        yield (
            "zero-bubble with one segment a stage: torch's zero-bubble schedules want two or more; the file says 1F1B, "
            "which idles for longer"
        )
    if recipe.pp > 1 and recipe.schedule == "dualpipe":
        yield "dualpipe: torchtitan has the folded form alone (DualPipeV); the file says 1F1B, which idles for longer"
    if recipe.pp > 1:
        for number, stage in enumerate(recipe.stages):
            if stage.split:
                yield (
                    f"stage {number}: its boundary splits {', '.join(stage.split)}; stages are lists of whole modules, "
                    "so the module is in the stage that has most of it"
                )
        if not recipe.stages:
            yield "the modules of each stage: not known from this plan; torchtitan will divide the layers evenly"
    if recipe.recompute == "selective":
        yield "what is recomputed: torchtitan's own choice, every second product and what is between them"
    if recipe.bucket_bytes is not None and recipe.dp > 1:
        yield f"bucket size {recipe.bucket_bytes} bytes: torchtitan takes torch's own"


def _text(recipe: ExportRecipe, sections: dict[str, dict[str, object]], lost: tuple[str, ...]) -> str:
    devices, whole = format_count(recipe.devices, "device"), knows_network(recipe)
    lines = [
        f'"""{recipe.job} on {devices}, for torchtitan {RELEASE}; made by `trimaran export`.',
        "",
        *([f"    {_next(recipe)}", ""] if whole else []),
        *(["Not said here:", *(f"- {line}" for line in lost)] if lost else []),
        '"""',
        "",
        *_imports(recipe),
        "",
    ]
    for name, section in sections.items():
        lines.append(f"{name} = {_CLASSES[name]}(")
        lines += [f"    {key}={_python(value)}," for key, value in section.items()]
        lines.append(")")
    policy = _POLICIES.get(recipe.recompute)
    lines.append(f"activation_checkpoint = {f'{policy}.Config()' if policy else None}")
    if whole:
        lines += _trainer(recipe)
    return "\n".join(lines) + "\n"


def _imports(recipe: ExportRecipe) -> list[str]:
    network = _network(recipe)
    lines = [f"from torchtitan.config import {', '.join(sorted(_CLASSES.values()))}"]
    if recipe.recompute in _POLICIES:
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {_POLICIES[recipe.recompute]}")
    if knows_network(recipe):
        ahead = recipe.shape is not None and recipe.shape.prediction_layers
        lines += [
            "from torchtitan.models.deepseek_v3 import MTPLoss"
            if ahead
            else "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
            "from torchtitan.components.optimizer import default_adamw",
            "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
            "from torchtitan.trainer import Trainer",
        ]
        if network:
            lines.append(f"from torchtitan.models.{network[0]} import model_registry")
            lines.append("from torchtitan.models.common.config_utils import decoder_vocab_size")
        else:
            lines += [
                "from functools import partial",
                "from torch import nn",
                "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
                "from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm, config_utils",
                "from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3",
                "from torchtitan.models.qwen3.model import Qwen3TransformerBlock",
                "from torchtitan.protocols.model_spec import ModelSpec",
            ]
    return sorted(lines)


def _trainer(recipe: ExportRecipe) -> list[str]:
    """The function of the file that makes the whole configuration."""
    network, spec, vocabulary = _network(recipe), [], "decoder_vocab_size(spec)"
    assets = recipe.job.replace(":", "-")
    ahead = 0 if recipe.shape is None else recipe.shape.prediction_layers
    if network:
        made, assets = f'model_registry("{network[1]}"{f", num_mtp_layers={ahead}" if ahead else ""})', network[2]
    elif recipe.shape is not None:
        spec, made, vocabulary = _decoder(recipe.job, recipe.shape), "decoder()", "spec.model.vocab_size"
    return [
        *spec,
        "",
        "",
        "def trainer() -> Trainer.Config:",
        '    """The whole configuration; tokenizer, data and rate are those of torchtitan\'s own."""',
        f"    spec = {made}",
        "    return Trainer.Config(",
        "        model_spec=spec,",
        *(
            [f"        loss=MTPLoss.Config(global_vocab_size={vocabulary}),"]
            if ahead
            else [
                "        loss=ChunkedLossWrapper.Config(",
                f"            loss_fn=CrossEntropyLoss.Config(global_vocab_size={vocabulary}),",
                "        ),",
            ]
        ),
        f'        hf_assets_path="./assets/hf/{assets}",',
        f"        optimizer=default_adamw(lr={_RATE:g}),",
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
        "        training=training,",
        "        parallelism=parallelism,",
        "        compile=compile,",
        "        activation_checkpoint=activation_checkpoint,",
        "    )",
    ]


def _decoder(job: str, shape: TransformerShape) -> list[str]:
    """The function of the file that makes a decoder of torchtitan's parts."""
    dense = [layer for layer in range(shape.layers) if not shape.has_experts(layer)]
    return render("torchtitan_decoder", {"job": job, "shape": shape, "dense_layers": dense}).rstrip().split("\n")


def _python(value: object) -> str:
    return repr(value) if isinstance(value, bool | None) else json.dumps(value)
