"""A recipe as a configuration of torchtitan: Python, because its sections are dataclasses.

Names of options and schedules are those of torchtitan 0.3 (`torchtitan/config/configs.py`) and of
`torch.distributed.pipelining`. For a network that torchtitan has, the file is a whole configuration:

    torchrun --nproc-per-node 8 -m torchtitan.train --module trimaran_torchtitan --config trainer

Settings that torchtitan 0.3 needs and no plan decides: the path of DTensor, because the one by default (`spmd_types`)
asks FSDP2 of torch 2.13 for what only later releases of torch have; no CUDA graphs in a pipeline, which it refuses;
recompute said in any case, because it recomputes selectively by default.
"""

import json
from collections.abc import Iterator
from itertools import accumulate

from trimaran.base.units import format_count
from trimaran.features.export.recipe import (
    SETTINGS,
    Exported,
    Recipe,
    lost_account,
    lost_copies,
    lost_order,
    torch_rounds,
    torchrun_ranks,
)
from trimaran.networks.names import parse_network

RELEASE = "0.3"

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "1F1B",
    "dualpipe": "1F1B",
    "dualpipev": "DualPipeV",
}
_CLASSES = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}
_POLICIES = {"full": "FullAC", "selective": "SelectiveAC"}

_NETWORKS = {
    ("llama3", "1b"): ("llama3", "1B", "Llama-3.2-1B"),
    ("llama3", "3b"): ("llama3", "3B", "Llama-3.2-3B"),
    ("llama3", "8b"): ("llama3", "8B", "Llama-3.1-8B"),
    ("llama3", "70b"): ("llama3", "70B", "Llama-3.1-70B"),
    ("llama3", "405b"): ("llama3", "405B", "Llama-3.1-405B"),
}
"""Of networks that torchtitan has: its module, its name there, and the folder of its tokenizer."""

_RATE = 3e-4
_NO_CLIPPING = 1e30
"""torchtitan always clips, by default to a norm of 1."""


def knows_network(recipe: Recipe) -> bool:
    """Whether the exported file is a whole configuration.

    Args:
        recipe: of a plan
    """
    return _network(recipe) is not None


def _network(recipe: Recipe) -> tuple[str, str, str] | None:
    network = parse_network(recipe.job)
    return None if network is None else _NETWORKS.get((network.name, str(network.size)))


def to_torchtitan(recipe: Recipe) -> Exported:
    """The recipe for torchtitan.

    Args:
        recipe: of a plan
    """
    sections = {"training": _training(recipe), "parallelism": _parallelism(recipe), "compile": _compile(recipe)}
    return Exported(
        target="torchtitan",
        release=RELEASE,
        file_name="trimaran_torchtitan.py",
        text=_text(recipe, sections),
        sections=sections,
        next=_next(recipe),
        lost=tuple(_lost(recipe)),
    )


def _next(recipe: Recipe) -> str:
    if not knows_network(recipe):
        return "import the sections in a config_registry function, and pass them to Trainer.Config"
    start = f"{SETTINGS} torchrun {torchrun_ranks(recipe)} -m torchtitan.train"
    return f"{start} --module trimaran_torchtitan --config trainer"


def _training(recipe: Recipe) -> dict[str, object]:
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
    if recipe.pp > 1:
        section["disable_cuda_graphs"] = True
    return section


def _parallelism(recipe: Recipe) -> dict[str, object]:
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


def _stages(recipe: Recipe) -> list[list[str]]:
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


def _compile(recipe: Recipe) -> dict[str, object]:
    return {"enable": recipe.compiled}


def _lost(recipe: Recipe) -> Iterator[str]:
    yield from recipe.beyond
    yield from lost_order(recipe)
    yield from lost_account(recipe, "torchtitan")
    yield from torch_rounds(recipe)
    if recipe.precision not in ("fp32", "bf16"):
        yield f"precision {recipe.precision}: torchtitan trains in float32 and bfloat16; the file says float32"
    if recipe.zero >= 2 and recipe.copies_of_state()[0] == 1:
        yield from lost_copies(recipe)
    if recipe.zero == 1:
        yield "ZeRO-1: torchtitan shards all (FSDP2) or nothing; the file says replicas, with whole optimizer states"
    if recipe.pp > 1:
        yield (
            f"the release of torch: a pipeline of torchtitan {RELEASE} hands microbatches to torch's schedules, which "
            'torch 2.13 refuses ("Expecting ... arg_mbs"); take a later one'
        )
    if recipe.gradients == "bf16":
        yield "gradients in bf16: torchtitan keeps and exchanges them in fp32, and may need more memory than the plan"
    if recipe.optimizer_state not in (None, "fp32"):
        yield f"states of the optimizer in {recipe.optimizer_state}: the file has AdamW's in fp32"
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
    if recipe.recompute_layers is not None:
        yield f"recompute of {recipe.recompute_layers} layers a stage: torchtitan recomputes those of all or none"
    if recipe.recompute == "selective":
        yield "what is recomputed: torchtitan's own choice, every second product and what is between them"
    if recipe.bucket_bytes is not None and recipe.dp > 1:
        yield f"bucket size {recipe.bucket_bytes} bytes: torchtitan takes torch's own"


def _text(recipe: Recipe, sections: dict[str, dict[str, object]]) -> str:
    devices, network = format_count(recipe.devices, "device"), _network(recipe)
    lost = list(_lost(recipe))
    lines = [
        f'"""{recipe.job} on {devices}, for torchtitan {RELEASE}; made by `trimaran export`.',
        "",
        *([f"    {_next(recipe)}", ""] if network else []),
        *(["Not said here:", *(f"- {line}" for line in lost)] if lost else []),
        '"""',
        "",
        *_imports(recipe, network),
        "",
    ]
    for name, section in sections.items():
        lines.append(f"{name} = {_CLASSES[name]}(")
        lines += [f"    {key}={_python(value)}," for key, value in section.items()]
        lines.append(")")
    policy = _POLICIES.get(recipe.recompute)
    lines.append(f"activation_checkpoint = {f'{policy}.Config()' if policy else None}")
    if network:
        lines += _trainer(network)
    return "\n".join(lines) + "\n"


def _imports(recipe: Recipe, network: tuple[str, str, str] | None) -> list[str]:
    lines = [f"from torchtitan.config import {', '.join(sorted(_CLASSES.values()))}"]
    if recipe.recompute in _POLICIES:
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {_POLICIES[recipe.recompute]}")
    if network:
        lines += [
            "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
            "from torchtitan.components.optimizer import default_adamw",
            "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
            "from torchtitan.models.common.config_utils import decoder_vocab_size",
            f"from torchtitan.models.{network[0]} import model_registry",
            "from torchtitan.trainer import Trainer",
        ]
    return sorted(lines)


def _trainer(network: tuple[str, str, str]) -> list[str]:
    """The function of the file that makes the whole configuration."""
    _, flavor, assets = network
    return [
        "",
        "",
        "def trainer() -> Trainer.Config:",
        '    """The whole configuration; tokenizer, data and rate are those of torchtitan\'s own."""',
        f'    spec = model_registry("{flavor}")',
        "    return Trainer.Config(",
        "        model_spec=spec,",
        "        loss=ChunkedLossWrapper.Config(",
        "            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),",
        "        ),",
        f'        hf_assets_path="./assets/hf/{assets}",',
        f"        optimizer=default_adamw(lr={_RATE:g}),",
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
        "        training=training,",
        "        parallelism=parallelism,",
        "        compile=compile,",
        "        activation_checkpoint=activation_checkpoint,",
        "    )",
    ]


def _python(value: object) -> str:
    return repr(value) if isinstance(value, bool | None) else json.dumps(value)
