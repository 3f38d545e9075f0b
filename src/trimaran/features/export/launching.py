"""How an export is started as the target itself starts it, with tokens and data that need no file: for a rehearsal.

    target        what runs                                     on what
    pytorch       the exported script                           its own random tokens, or the data of the job
    torchtitan    torchtitan.train by the exported file         random tokens
    accelerate    a training script as users write them, with   random tokens
                  the settings of `accelerate launch`
    megatron      nothing: arguments are for scripts that the package of Megatron Core does not have

The files are of one folder, and one of them is the script that torchrun starts.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.features.export.accelerate import RELEASE as ACCELERATE
from trimaran.features.export.accelerate import scatters_each_time
from trimaran.features.export.pytorch import network_reasons
from trimaran.features.export.recipe import ALLOCATOR, Exported, ExportRecipe, render, special_parts, torchrun_ranks
from trimaran.features.export.torchtitan import RELEASE as TORCHTITAN
from trimaran.features.export.torchtitan import knows_network
from trimaran.pricing.analytical.shapes import TransformerShape, vocabulary_rows

_NEEDS = {"pytorch": (), "torchtitan": ("torchtitan",), "accelerate": ("accelerate", "transformers")}

_RATE = 3e-4
_RUN, _TRAIN = "trimaran_run.py", "train.py"


_MEGATRON = (
    "its file has arguments for pretrain_gpt.py, which is in the repository of Megatron-LM and in no package. With a "
    "clone of it, export the plan (trimaran export plan.json --to megatron) and rehearse that script: trimaran "
    "rehearse --cluster CLUSTER --world RANKS -- pretrain_gpt.py, with the exported arguments, those of the model, "
    "--mock-data, --tokenizer-type NullTokenizer and --transformer-impl local, as Transformer Engine needs a GPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLaunch:
    """An export with all that its training needs.

    Attributes:
        files: their texts by name, for one folder
        script: the file that torchrun starts
        arguments: of it
        ranks: that it is started as
        allocator: settings of PyTorch's allocator
    """

    files: Mapping[str, str]
    script: str
    arguments: tuple[str, ...]
    ranks: int
    allocator: str = ALLOCATOR


def check_target(target: str) -> None:
    """Refuse a target whose exports cannot be started here.

    Args:
        target: name of the runtime

    Raises:
        InputError: it is none, has no script, or is not installed
    """
    if target not in _NEEDS:
        why = _MEGATRON if target == "megatron" else "none"
        raise _refused(f'an export to "{target}"', target, [f"{why}; choose one of {', '.join(_NEEDS)} (--to)"])
    missing = [name for name in _NEEDS[target] if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"an export to {target} is rehearsed by {' and '.join(missing)}, which is not installed: install it where "
            "Trimaran is, or choose another target (--to pytorch)",
            code="export.target-not-installed",
            target=target,
        )


def launch_of(recipe: ExportRecipe, exported: Exported, *, steps: int) -> ExportLaunch:
    """How an export is started.

    Args:
        recipe: that was exported
        exported: to what
        steps: of training

    Raises:
        InputError: the target cannot be started for this network or strategy
    """
    check_target(exported.target)
    reasons = tuple(_reasons(recipe, exported.target))
    if reasons:
        raise _refused(f"the export to {exported.target} of the plan for {recipe.job}", exported.target, reasons)
    own = {exported.file_name: exported.text}
    words = {"ranks": torchrun_ranks(recipe), "file_name": _RUN, "module": _RUN.removesuffix(".py"), "steps": steps}
    arguments: tuple[str, ...] = ("--steps", str(steps))
    if exported.target == "pytorch":
        return ExportLaunch(files=own, script=exported.file_name, arguments=arguments, ranks=recipe.devices)
    if exported.target == "torchtitan":
        run = render("torchtitan_run", words | {"release": TORCHTITAN})
        return ExportLaunch(files=own | {_RUN: run}, script=_RUN, arguments=(), ranks=recipe.devices)
    run = render("accelerate_run", {"train": _TRAIN})
    texts = own | {_RUN: run, _TRAIN: accelerate_script(recipe)}
    return ExportLaunch(files=texts, script=_RUN, arguments=arguments, ranks=recipe.dp)


def check_network(reference: str, shape: TransformerShape | None, target: str) -> None:
    """Refuse a network that a target's scripts do not have, before a plan of it is looked for.

    Args:
        reference: of the job
        shape: of its network, where the analytical model plans it; None: a job that is captured
        target: name of the runtime

    Raises:
        InputError: with the reason
    """
    check_target(target)
    one = ExportRecipe(job=reference, microbatch=1, global_batch_size=1, shape=shape)
    reasons = [] if shape is None and target == "pytorch" else list(_reasons(one, target))
    if target == "pytorch" and shape is not None:
        reasons += network_reasons(one, shape)
    if reasons:
        raise _refused(f"an export to {target} of a plan for {reference}", target, reasons)


def _refused(what: str, target: str, reasons: Sequence[str]) -> InputError:
    text = f"{what} cannot be rehearsed: {'; '.join(reasons)}"
    return InputError(text, code="export.no-rehearsal", target=target)


def _reasons(recipe: ExportRecipe, target: str) -> list[str]:
    """Why the target's own training cannot be started with what is exported."""
    found = []
    if target == "torchtitan" and not knows_network(recipe):
        found.append("its network is none of torchtitan's, nor of their parts")
    if target == "torchtitan" and recipe.shape is not None and recipe.shape.tied and recipe.pp > 1:
        found.append("the embedding is also the head (--pp 1)")
    if target == "accelerate":
        if recipe.shape is None or transformers_config(recipe.shape) is None:
            found.append("the training script is for decoders like Llama, Qwen 3, Mixtral and GPT-2")
        if recipe.tp > 1:
            found.append("accelerate's tensor parallelism takes models that were loaded from a checkpoint (--tp 1)")
        if recipe.cp > 1:
            found.append("context parallelism is written into the training script (--forbid cp)")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# accelerate: a training script as users write them


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """A configuration of transformers: its class, and its settings as Python."""

    name: str
    settings: Mapping[str, object]


def transformers_config(shape: TransformerShape) -> TransformersConfig | None:
    """The configuration of transformers that makes a network; None: Llama's, Qwen 3's, Mixtral's and GPT-2's do not.

    Args:
        shape: of the network
    """
    rows, special = vocabulary_rows(shape), {*special_parts(shape)} - {"tied embeddings"}
    if special <= {"norms of queries and keys", "experts"}:
        settings: dict[str, object] = {
            "vocab_size": rows,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.ffn,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_size,
            "max_position_embeddings": shape.sequence,
            "tie_word_embeddings": shape.tied,
        }
        experts, normed = shape.experts, bool(shape.query_key_norm)
        if experts is None:
            return TransformersConfig(name="Qwen3Config" if normed else "LlamaConfig", settings=settings)
        settings["num_experts_per_tok"] = experts.active
        if not normed:
            settings |= {"intermediate_size": experts.ffn, "num_local_experts": experts.count}
            return TransformersConfig(name="MixtralConfig", settings=settings)
        settings |= {"moe_intermediate_size": experts.ffn, "num_experts": experts.count, "norm_topk_prob": True}
        return TransformersConfig(name="Qwen3MoeConfig", settings=settings)
    gpt = {"positions that are learned", "feed-forward networks without gates", "norms with a bias", "biases"}
    if special <= gpt and shape.positions and not shape.gated and shape.heads == shape.kv_heads:
        return TransformersConfig(
            name="GPT2Config",
            settings={
                "vocab_size": rows,
                "n_positions": shape.positions,
                "n_embd": shape.hidden,
                "n_layer": shape.layers,
                "n_head": shape.heads,
                "n_inner": shape.ffn,
                # The same function as its default, in one kernel.
                "activation_function": '"gelu_pytorch_tanh"',
                "resid_pdrop": 0.1 if shape.hidden_dropout else 0.0,
                "embd_pdrop": 0.1 if shape.hidden_dropout else 0.0,
                "attn_pdrop": 0.1 if shape.attention_dropout else 0.0,
                "tie_word_embeddings": shape.tied,
            },
        )
    return None


def accelerate_script(recipe: ExportRecipe) -> str:
    """A training script for accelerate, with what the exported file leaves to the script.

    Args:
        recipe: of a plan, whose network transformers has
    """
    shape = recipe.shape
    config = None if shape is None else transformers_config(shape)
    if shape is None or config is None:
        raise ValueError(f"{recipe.job}: transformers has no such network")
    sharded = recipe.zero >= 2 and recipe.dp > 1
    buckets = recipe.bucket_bytes is not None and recipe.dp > 1 and not sharded
    return render(
        "accelerate_train",
        {
            "title": f"{recipe.job} by accelerate {ACCELERATE}; made by `trimaran`.",
            "file_name": _TRAIN,
            "shape": shape,
            "vocabulary": vocabulary_rows(shape),
            "config": config,
            "microbatch": recipe.microbatch,
            "microbatches": recipe.microbatches,
            "recompute": recipe.recompute == "full" and not sharded,
            "rate": _RATE,
            "clip_norm": recipe.clip_norm,
            "scatters": scatters_each_time(recipe),
            "replicas": recipe.dp > 1 and not sharded,
            "bucket_mb": max(1, (recipe.bucket_bytes or 0) // 2**20) if buckets else None,
        },
    )
