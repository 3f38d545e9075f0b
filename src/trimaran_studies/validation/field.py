"""Predicts steps of public training runs of transformers, whose shape, machine and degrees are written out.

Never fitted: these runs judge what was fitted on others. A run says its network as figures, its machine in Trimaran's
names, and its degrees in words:

    tp8 x cp2 x pp8 (8 chunks) x dp8 (ep8), zero1, recompute, 128 microbatches of 1

Networks follow from the name of their family. Llama and Grok: gated feed-forward networks and rotary positions.
Nemotron: not gated, rotary. GPT-NeoX: not gated, biases, rotary. GPT and OPT: not gated, biases, learned positions.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple, get_args

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.networks.published_decoders import find_published
from trimaran.pricing.analytical.huggingface_config import shape_of_configuration
from trimaran.pricing.analytical.layers import AttentionKernel
from trimaran.pricing.analytical.programs import SEQUENCE_PARALLEL, find_framework, training_program
from trimaran.pricing.analytical.shapes import LAYER_BIASES, NO_BIASES, Experts, TransformerShape, decoder_of
from trimaran.program.strategy import Degrees, Recomputed, ZeroStage
from trimaran_studies.published.rows import figure, read_rows
from trimaran_studies.validation.measurement import Answer, Row, attempt, cells_read
from trimaran_studies.validation.model_parallel import TransformerRun, answer_of_run, count

FAMILY = "field"


def field_rows() -> tuple[Row, ...]:
    """The runs that come with Trimaran."""
    return tuple(row for row in _packaged("field_runs.csv") if not row.fault)


def trainer_rows() -> tuple[Row, ...]:
    """Runs of trainers that are not NVIDIA's, in the layout of the others, whose step is published."""
    return tuple(row for row in _packaged("trainers.csv") if not row.fault)


def trainer_memory_rows() -> tuple[Row, ...]:
    """Runs of the same trainers whose memory is published, as rows of it [GiB]."""
    return tuple(
        replace(
            row,
            row_id=row.fields.get("run", row.row_id),
            family="peak_memory",
            fields={"source_repo": row.fields.get("source", ""), **row.fields},
            measured=float(row.fields["memory_gib"]),
            unit="GiB",
            fault="",
        )
        for row in _packaged("trainers.csv")
        if row.fields.get("memory_gib")
    )


def _packaged(name: str) -> tuple[Row, ...]:
    return read_rows(Path(str(resources.files("trimaran_studies.published") / name)), keeps_faulty=True)


def answer_field(row: Row) -> Answer:
    """Predict the step of a run.

    Args:
        row: of the family "field"

    Returns:
        The answer; without a prediction, the reason.

    Raises:
        TrimaranError: a fault of the predictor
    """
    found = attempt(row, lambda: _predict(row))
    return Answer(row=row, predicted=None, skipped=found) if isinstance(found, str) else found


def _predict(row: Row) -> Answer:
    with cells_read(row):
        run, machine = field_run(row)
    return answer_of_run(row, run, machine)


def field_run(row: Row) -> tuple[TransformerRun, Machine]:
    """The run of a row, and its machine.

    Raises:
        InputError: a cell is missing, or says nothing that is known
    """
    fields = row.fields
    machine = find_machine(_needed(row, "cluster"))
    degrees = run_degrees(_needed(row, "degrees"))
    if degrees.devices > machine.devices:
        raise InputError(
            f"row {row.row_id}: degrees for {degrees.devices} devices, and {fields['cluster']} has {machine.devices}",
            code="field-run.too-few-devices",
            row=row.row_id,
        )
    told = count(row, "global_batch")
    batch = degrees.dp * degrees.microbatch * degrees.microbatches
    if told and told != batch:
        raise InputError(
            f"row {row.row_id}: a global batch of {told}, where the degrees make {batch}",
            code="field-run.other-batch",
            row=row.row_id,
        )
    year = figure(_needed(row, "year"))
    if year is None:
        raise InputError(f"row {row.row_id}: year: {fields['year']} is none", code="field-run.bad-year")
    # A year without its part is meant from its begin to its end.
    year += 0.5 if year == int(year) else 0.0
    precision = _precision(row)
    device = machine.node.device
    words = _needed(row, "framework")
    framework = find_framework(words)
    program = training_program(
        framework.name if framework else "megatron",
        year,
        device=device,
        precision=precision,
        compiled="compile" in words,
        node_devices=machine.node.devices,
    )
    told_attention, frozen = fields.get("attention", ""), fields.get("trained", "").endswith("LoRA")
    if "8-bit" in words:
        degrees = replace(degrees, optimizer_state="adam-8bit")
    attention = next((kernel for kernel in get_args(AttentionKernel) if kernel == told_attention), program.attention)
    eager = program.eager
    if eager is not None:
        # Trainers of reinforcement learning never have all logits at once: only those of the tokens that were sampled.
        sampled = fields.get("work", "") == "reinforcement learning"
        parts = count(row, "sequence") / _SAMPLED_TOKENS * run_shape(row).vocabulary / _SAMPLED_WORDS
        chunks = math.ceil(parts) if sampled else eager.loss_chunks
        eager = replace(
            eager,
            loss_chunks=chunks,
            fused_loss=eager.fused_loss or "chunked loss" in words,
            hosted="activations on the host" in words,
        )
    program = replace(program, attention=attention, frozen=frozen, eager=eager)
    degrees = replace(degrees, sequence_parallel=degrees.tp > 1 and program.fused and year >= SEQUENCE_PARALLEL)
    return (
        TransformerRun(
            shape=run_shape(row),
            degrees=degrees,
            program=program,
            device=device.name,
            machine=fields["cluster"],
            devices=degrees.devices,
            nodes=machine.nodes,
            assumed=() if framework else ("framework",),
        ),
        machine,
    )


def _needed(row: Row, name: str) -> str:
    cell = row.fields.get(name, "")
    if not cell:
        raise InputError(f"row {row.row_id}: {name}: missing", code="field-run.missing-cell", row=row.row_id)
    return cell


_SAMPLED_TOKENS, _SAMPLED_WORDS = 2048, 8192
"""Whose logits a trainer of reinforcement learning has at once (PrimeIntellect-ai/prime-rl, `FusedOutputLinear`)."""

_PRECISIONS: Mapping[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def _precision(row: Row) -> Precision:
    told = _needed(row, "precision").lower()
    if told not in _PRECISIONS:
        raise InputError(
            f"row {row.row_id}: precision: {told} is not one of {', '.join(_PRECISIONS)}",
            code="field-run.precision",
            row=row.row_id,
        )
    return _PRECISIONS[told]


_DEGREE = re.compile(r"\b(tp|cp|pp|dp|ep|etp)(\d+)\b")
_CHUNKS = re.compile(r"\((\d+) chunks?\)")
_BATCHES = re.compile(r"\b(\d+) microbatch(?:es)? of (\d+)\b")
_ZERO = re.compile(r"\bzero([0-3])(?: in (\d+))?\b")


_RECOMPUTED: Mapping[str, Recomputed] = {"recompute": "layers", "selective": "second_products"}


def run_degrees(text: str) -> Degrees:
    """The degrees of a run, in words.

    Raises:
        InputError: the microbatches are not said

    Example:
        >>> degrees = run_degrees("tp8 x pp8 (12 chunks) x dp2, zero1, 16 microbatches of 1")
        >>> degrees.devices, degrees.chunks, degrees.zero, degrees.microbatches
        (128, 12, 1, 16)
    """
    told = {name: int(value) for name, value in _DEGREE.findall(text)}
    chunks, batches, zero = _CHUNKS.search(text), _BATCHES.search(text), _ZERO.search(text)
    if batches is None:
        raise InputError(
            f'degrees "{text}": expected them with microbatches, such as "tp2 x dp4, 8 microbatches of 1"',
            code="field-run.degrees",
            degrees=text,
        )
    stages: dict[str, ZeroStage] = {"0": 0, "1": 1, "2": 2, "3": 3}
    return Degrees(
        tp=told.get("tp", 1),
        cp=told.get("cp", 1),
        pp=told.get("pp", 1),
        dp=told.get("dp", 1),
        ep=told.get("ep", 1),
        expert_tp=told.get("etp"),
        chunks=int(chunks.group(1)) if chunks else 1,
        zero=stages[zero.group(1)] if zero else 0,
        microbatches=int(batches.group(1)),
        microbatch=int(batches.group(2)),
        shard_ranks=int(zero.group(2)) if zero and zero.group(2) else None,
        recomputed=frozenset(kind for word, kind in _RECOMPUTED.items() if word in text),
    )


class _Sizes(NamedTuple):
    """Columns of a run that say the shape of its network."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int


def run_shape(row: Row) -> TransformerShape:
    """The network of a run.

    Raises:
        InputError: a figure is missing, or the name is of no family that is known
    """
    model = _needed(row, "model").lower()
    published = find_published(model)
    if published is not None and not row.fields.get("layers"):
        return shape_of_configuration(published.values, sequence=_size(row, "sequence")).shape
    named = None if row.fields.get("layers") else decoder_of(model, _size(row, "sequence"))
    if named is not None:
        return named
    sizes = _Sizes(*(_size(row, name) for name in _Sizes._fields))
    family = next(
        (name for name in ("llama", "grok", "mistral", "mixtral", "qwen", "deepseek", "internlm") if name in model), ""
    )
    neox, nemotron, learned = "neox" in model, "nemotron" in model, model.startswith(("gpt", "opt", "bloom", "mt-nlg"))
    if not (family or nemotron or learned):
        raise InputError(
            f"row {row.row_id}: {model}: no family of networks that is known", code="field-run.network", row=row.row_id
        )
    experts = count(row, "experts")
    positions = sizes.sequence if learned and not neox and "bloom" not in model else 0
    return TransformerShape(
        **sizes._asdict(),
        head_size=sizes.hidden // sizes.heads,
        gated=bool(family),
        biases=LAYER_BIASES if learned else NO_BIASES,
        tied=learned and not neox,
        positions=positions,
        rotary=bool(family) or nemotron or neox,
        centred_norm=not family,
        parallel=neox,
        experts=Experts(count=experts, active=count(row, "active_experts") or 1, ffn=sizes.ffn) if experts else None,
    )


def _size(row: Row, name: str) -> int:
    found = count(row, name)
    if found < 1:
        raise InputError(f"row {row.row_id}: {name}: missing", code="field-run.missing-cell", row=row.row_id)
    return found
