"""Predicts published steps of sharded transformers by the analytical model (`pricing/analytical`).

Jean Zay's tables of Megatron-DeepSpeed lack some columns. A table without columns for network and batch is of one
network. Some of its rows differ in more than the columns. In tr3m, the row shows whether layers are recomputed: the
product of its time, TFLOP/s and devices is the work that its authors counted for a step

    work = passes · 2 · parameters · sequence · batch        passes: 4 with layers recomputed, 3 without

Time cancels in that product, so the predicted figure is not used.

Source:
    bigscience-workshop/bigscience, experiments/gpt2.md, tr3m-1B3.md and tr8-104B.md. Of the 83 rows of gpt2.md, which
    do say their batch, 80 agree with the formula within 2 %. The first two tables of tr8-104B.md are, by its text, of a
    network of 58 billion parameters that was run by mistake. It does not give the width of its layers, and the formula
    does not hold for it.

Each source has one script. Facts of the scripts, in addition to the degrees in a row:

    vTrain        Megatron-DeepSpeed of 2022 in fp16, attention unfused, gradients exchanged after the backward; its
                  figures are exactly linear in the number of microbatches, as composed ones are, and a sum over
                  replicas takes its bytes over the bandwidth of a bus (src/predictor.py, `compute_comm_time`)
    NeMo          Megatron in 8 bits with fused attention; states sharded, exchanges overlapped, the stream sharded too
    llm-foundry   PyTorch FSDP in bf16, ALiBi attention in Triton, layers recomputed where the row says so
    Mist          Aceso on Megatron in fp16 with fused attention; stages by the name of the plan, layers recomputed
                  where they would not fit with attention as Aceso's own planner counts it
    Jean Zay      Megatron-DeepSpeed of 2021 in fp16 on V100, layers recomputed, `tensor` 4 where not said
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.machine.types import Device, Machine
from trimaran.pricing.analytical.layers import Eager, parameter_count
from trimaran.pricing.analytical.memory import Bookkeeping, largest_rank, rank_memory
from trimaran.pricing.analytical.programs import SEQUENCE_PARALLEL, find_framework, training_program, usual_year
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.pricing.analytical.step_time import (
    MachineExchange,
    TransformerProgram,
    TransformerStep,
    step_constants,
    transformer_step,
)
from trimaran.program.strategy import Degrees, Recomputed, ZeroStage
from trimaran_studies.facts.machine_labels import match_machine
from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.published.rows import figure
from trimaran_studies.validation.measurement import Answer, Row, attempt, cells_read

# ---------------------------------------------------------------------------------------------------------------------
# Cells of rows of sharded transformers: counts, what replicas shard, what is recomputed


_MOST = 10_000_000
"""Upper limit of every count in a row."""


def count(row: Row, name: str) -> int:
    """A column as a whole number: "8", "8.0", "1,024", "8 GPUs"; 0 where it holds none.

    Raises:
        InputError: below zero, or more than any machine or batch has
    """
    value = figure(row.fields.get(name, ""))
    if value is None or math.isnan(value):
        return 0
    if not 0 <= value <= _MOST:
        raise InputError(
            f"row {row.row_id}: column {name}: {row.fields[name]} is not a plausible count",
            code="model-parallel-row.bad-count",
            row=row.row_id,
        )
    return int(value)


def recomputed(row: Row) -> frozenset[Recomputed] | None:
    """Layers that the backward recomputes, by the column `recompute`; None where it is empty."""
    told = row.fields.get("recompute", "").strip().lower()
    if told in ("true", "full", "yes", "y", "1", "uniform", "block", "layers"):
        return frozenset({"layers"})
    if told in ("selective", "sel", "attention", "core_attn"):
        return frozenset({"attention"})
    return frozenset() if told in ("false", "none", "no", "n", "0") else None


def card_bytes(row: Row) -> float:
    """Memory of a row's device [bytes]: from the row, else 24 GB of an L4 and 80 GB of others of these sources."""
    told = count(row, "gpu_mem_gb")
    return 1e9 * (told or (24 if row.fields.get("gpu", "").upper() == "L4" else 80))


def fitted(shape: TransformerShape, degrees: Degrees, limit_bytes: float) -> Degrees:
    """The degrees of a run: where its activations do not fit its card, layers are recomputed."""
    keeping = Bookkeeping(attention="math", gradient_bytes=2)
    if largest_rank(shape, degrees, bookkeeping=keeping).peak <= limit_bytes:
        return degrees
    return replace(degrees, recomputed=frozenset({"layers"}))


def zero_stage(row: Row, source: str) -> ZeroStage:
    """Tensors that replicas shard, by the column `zero`: a stage, or whether DeepSpeed's stage 1 is on."""
    zero = row.fields.get("zero", "").strip().lower().removeprefix("zero").strip("-_ ").removeprefix("stage").strip()
    # Tables of ZeRO have no column for stages of a pipeline: there are none, and parameters are sharded.
    if "bigscience" in source and not row.fields.get("pp"):
        return 3
    return _STAGES.get(zero, 0)


_STAGES: Mapping[str, ZeroStage] = {
    # DeepSpeed's stages, Megatron's distributed optimizer, and names of PyTorch's FSDP
    "": 0, "0": 0, "n": 0, "no": 0, "none": 0, "false": 0, "no_shard": 0, "ddp": 0,
    "1": 1, "y": 1, "yes": 1, "true": 1, "optimizer": 1, "2": 2, "gradients": 2, "shard_grad_op": 2,
    "3": 3, "full_shard": 3, "fsdp": 3, "fsdp1": 3, "fsdp2": 3, "parameters": 3,
}  # fmt: skip


_MISTAKEN = {("32", 256.0), ("64", 155.0), ("32", 586.0), ("64", 301.0)}
"""Nodes and seconds of the rows of tr8's first two tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """The work of a step in a table.

    Attributes:
        batch: sequences
        recomputes: whether the backward recomputes layers
    """

    batch: int
    recomputes: bool


def table_network(path: str) -> str:
    """The network of a table that has no column for it.

    104 billion parameters are assumed to be 64 layers of width 11,600, as in the final trainings of this size. The
    first form in tr8, 32 layers of width 16,384, has the same number of parameters; its tables do not say which ran.
    """
    if "tr3m" in path:
        return "GPT h2048 L24 a16"
    return "GPT h11600 L64 a80" if "tr8" in path else "GPT 52B"


def table_sequence(path: str) -> int:
    """Tokens of a sequence, where a table has no column for it."""
    return 2048 if "tr3m" in path or "tr8" in path else 1024


def table_work(row: Row, shape: TransformerShape, devices: int) -> TableWork:
    """The work of a step, where a table has no column for its batch.

    Args:
        row: of the table
        shape: the network
        devices: in use

    Raises:
        InputError: its network is not known
    """
    path, cells = row.fields.get("source_path", ""), row.fields.get("config", "").split("|")
    told = len(cells) == _CELLS
    if told and "tr8" in path and (cells[0], figure(cells[_SECONDS_COLUMN])) in _MISTAKEN:
        raise InputError(
            f"row {row.row_id}: its authors ran a network of 58 billion parameters by mistake, and do not tell how "
            "wide its feed-forward layers were",
            code="model-parallel-row.left-out",
            row=row.row_id,
        )
    batch = 512 if "tr3m" in path else 2048 if "tr8" in path else 1024
    seconds, teraflops = (figure(cells[_SECONDS_COLUMN]), figure(cells[_SECONDS_COLUMN + 1])) if told else (None, None)
    if "tr3m" not in path or not seconds or not teraflops:
        return TableWork(batch=batch, recomputes=True)
    one_pass = 2.0 * parameter_count(shape) * shape.sequence * batch
    return TableWork(batch=batch, recomputes=seconds * teraflops * 1e12 * devices > 3.5 * one_pass)


def replicas_alone(row: Row, devices: int) -> bool:
    """Whether a row is of a table of Hugging Face's trainer, which has only replicas and no column for degrees.

    Args:
        row: of any table of this source
        devices: in use
    """
    if any(row.fields.get(name) for name in ("tp", "pp", "dp")):
        return False
    return count(row, "global_batch") == (count(row, "micro_batch") or 1) * devices


_CELLS = 8
"""Nodes, tensor, pipeline, data, microbatch, seconds, TFLOP/s, memory."""

_SECONDS_COLUMN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerRun:
    """A run of a sharded transformer.

    Attributes:
        shape: the network
        degrees: of it
        program: that trained
        device: label in the row
        machine: label in the row
        devices: in use
        nodes: in use; None: not published
        trainer: library of the training loop, where a source compares several; "" for its first one
        assumed: what the row does not say and a step depends on, each of which widens its interval
    """

    shape: TransformerShape
    degrees: Degrees
    program: TransformerProgram
    device: str
    machine: str
    devices: int
    nodes: int | None
    trainer: str = ""
    assumed: tuple[str, ...] = ()


def transformer_run(row: Row) -> TransformerRun:
    """Read the run of a row.

    Raises:
        InputError: its network or its degrees is not known.
    """
    fields = row.fields
    source = f"{fields.get('source_repo', '')} {fields.get('framework', '')}".lower()
    path = fields.get("source_path", "")
    sequence = count(row, "seq_len") or table_sequence(path)
    model = fields.get("model", "").strip()
    if not model and "nvidia/nemo" in source:
        model = "LLAMA3-8B"  # its table of sequence lengths
    if "bigscience" in source and model in ("", "GPT"):
        model = table_network(path)
    shape = named_shape(model, sequence=sequence, source=fields.get("source_repo", ""))
    if shape is None:
        raise InputError(
            f"{model or 'a row without a network'}: no shape is known for it",
            code="model-parallel-row.unknown-network",
            model=model,
        )
    devices = count(row, "n_gpus") or count(row, "n_nodes") * 4
    if not devices:
        raise InputError(f"row {row.row_id}: n_gpus: missing", code="model-parallel-row.missing-cell", row=row.row_id)
    assumed: tuple[str, ...] = ()
    if "llm-foundry" in source:
        shape_, degrees, program = shape, _sharded(row, devices), _foundry(row)
    elif any(word in source for word in ("bigscience", "vtrain", "aceso", "mist", "megatron-deepspeed")):
        shape_, degrees, program = shape, _plain(row, shape, devices, source), _megatron_of_then(source)
        degrees = degrees if "bigscience" in source else fitted(shape, degrees, card_bytes(row))
    elif "nemo" in source or "megatron-bridge" in source:
        shape_, degrees, program = _nemo(row, shape, devices)
        assumed = ("frozen",) if program.frozen else ()
    else:
        shape_, (degrees, program, assumed) = shape, _told(row, shape, devices)
    most = 4 * shape_.layers
    if degrees.pp > most:
        raise InputError(
            f"row {row.row_id}: {degrees.pp} stages for {shape_.layers} layers: more than {most} are not known",
            code="model-parallel-row.too-many-stages",
            row=row.row_id,
        )
    nodes = count(row, "n_nodes") or (math.ceil(devices / 4) if "bigscience" in source else None)
    device = fields.get("gpu", "")
    return TransformerRun(
        shape=shape_,
        degrees=degrees,
        program=program,
        device=device,
        machine=fields.get("machine") or device,
        devices=devices,
        nodes=nodes,
        trainer="Hugging Face" if "bigscience" in source and replicas_alone(row, devices) else "",
        assumed=assumed,
    )


def _told(row: Row, shape: TransformerShape, devices: int) -> tuple[Degrees, TransformerProgram, tuple[str, ...]]:
    """Degrees and program of a row whose source has no script here: what the row says, and no more.

    Returns:
        Degrees, program, and what had to be assumed.

    Raises:
        InputError: degrees that cannot be assumed, or a cell that says nothing known
    """
    fields = row.fields

    def refuse(name: str, why: str) -> InputError:
        return InputError(
            f"row {row.row_id}: {name}: {why}", code="model-parallel-row.not-said", row=row.row_id, column=name
        )

    names = ("tp", "pp", "cp", "ep", "dp", "zero")
    if devices > 1 and not any(fields.get(name) for name in names):
        raise refuse(", ".join(names), f"none is said, and the step of {devices} devices depends on them: say them")
    if not fields.get("seq_len"):
        raise refuse("seq_len", "missing, and a step depends on it")
    zero = fields.get("zero", "").strip().lower().removeprefix("zero").strip("-_ ").removeprefix("stage").strip()
    if zero not in _STAGES:
        raise refuse("zero", f"{fields['zero']} is no stage of ZeRO, nor a name of FSDP's: say 0, 1, 2 or 3")
    recompute = recomputed(row)
    if recompute is None and fields.get("recompute"):
        raise refuse("recompute", f"{fields['recompute']} is not known: say none, selective or full")
    assumed = [name for name in ("micro_batch", "global_batch", "recompute") if not fields.get(name)]
    tensor, pipeline, context = (count(row, name) or 1 for name in ("tp", "pp", "cp"))
    expert = count(row, "ep") or 1
    data = count(row, "dp") or devices // (tensor * pipeline * context)
    if tensor * pipeline * context * data != devices:
        raise InputError(
            f"row {row.row_id}: tp {tensor}, pp {pipeline}, cp {context}, dp {data} do not make {devices} devices",
            code="model-parallel-row.degrees-do-not-multiply",
            row=row.row_id,
        )
    microbatch = count(row, "micro_batch") or 1
    batch = count(row, "global_batch") or microbatch * data * pipeline
    said = re.search(r"\bvp=(\d+)", fields.get("config", ""))
    framework = find_framework(f"{fields.get('framework', '')} {fields.get('source_repo', '')}")
    year = _year_of(row)
    if framework is None:
        assumed.append("framework")
    if year is None:
        assumed.append("year")
    device = device_of(row)
    name = framework.name if framework else "fsdp" if zero in ("3", "full_shard", "fsdp") else "megatron"
    program = training_program(
        name,
        usual_year(device) if year is None else year,
        device=device,
        precision=_sixteen_or_eight(row),
        compiled="compile" in f"{fields.get('config', '')} {fields.get('framework', '')}".lower(),
    )
    degrees = Degrees(
        tp=tensor,
        pp=pipeline,
        chunks=int(said.group(1)) if said and pipeline > 1 else 1,
        cp=context,
        dp=data,
        ep=expert if shape.experts is not None else 1,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * data))),
        sequence_parallel=tensor > 1 and program.fused and program.year >= SEQUENCE_PARALLEL,
        zero=_STAGES[zero],
        recomputed=recompute or frozenset(),
    )
    return degrees, program, tuple(assumed)


def _year_of(row: Row) -> float | None:
    """Year of the software of a row: its own column, a release such as "25.09", or a year in words; None: not said."""
    told = figure(row.fields.get("year", ""))
    if told is not None:
        return told + (0.5 if told == int(told) else 0.0)
    text = f"{row.fields.get('framework', '')} {row.fields.get('date', '')}"
    release = re.search(r"\b(2\d)\.(0[1-9]|1[0-2])\b", text)
    if release is not None:
        return 2000.0 + int(release.group(1)) + int(release.group(2)) / 12.0
    dated = re.search(r"\b(20[12]\d)(?:-(0[1-9]|1[0-2]))?\b", text)
    if dated is None:
        return None
    return int(dated.group(1)) + (int(dated.group(2)) / 12.0 if dated.group(2) else 0.5)


def _sixteen_or_eight(row: Row) -> Precision:
    """Precision of a row's products.

    Raises:
        InputError: one that sharded transformers have no figures for
    """
    told = row.fields.get("precision", "").lower()
    if any(word in told for word in ("fp8", "mx", "fp4", "float8")):
        return "fp8"
    if any(word in told for word in ("bf16", "bfloat16")):
        return "bf16"
    if any(word in told for word in ("fp16", "float16", "half", "mixed", "amp")):
        return "fp16"
    raise InputError(
        f"row {row.row_id}: precision: {told or 'missing'}: sharded transformers have figures of bf16, fp16 and fp8",
        code="model-parallel-row.precision",
        row=row.row_id,
    )


def device_of(row: Row) -> Device:
    """The device of a row.

    Raises:
        InputError: the catalog has none of its name
    """
    fields = row.fields
    label, named = fields.get("gpu", ""), fields.get("machine", "")
    found = match_machine(named or label, label, devices=1)
    if found is None or (label and match_machine("", label, devices=1) is None):
        raise InputError(
            f"row {row.row_id}: {label or named or 'no device'}: no device of the catalog is meant",
            code="model-parallel-row.unknown-device",
            row=row.row_id,
        )
    return found.device


_VTRAIN_SENDS = 800e9 / 8 * 1.074 / 8
"""800 Gib/s of four cards, of which a send has a quarter, with twice its bytes (`_compute_p2p_latency`) [bytes/s]."""


def _plain(row: Row, shape: TransformerShape, devices: int, source: str) -> Degrees:
    stages = re.search(r"_(\d+)stages", row.fields.get("config", ""))
    pipeline = count(row, "pp") or (int(stages.group(1)) if stages else 1)
    data, tensor = count(row, "dp"), count(row, "tp")
    work = table_work(row, shape, devices)
    batch = count(row, "global_batch") or work.batch
    microbatch = count(row, "micro_batch") or 1
    if "bigscience" in source and replicas_alone(row, devices):
        data = devices
    if not tensor and data:
        tensor = devices // (pipeline * data)
    elif not tensor:
        tensor = 4 if "bigscience" in source else devices // pipeline if stages else 1
    data = data or devices // max(1, pipeline * tensor)
    if pipeline * data * tensor > devices or not pipeline * data * tensor:
        raise InputError(
            f"row {row.row_id}: tp {tensor}, pp {pipeline}, dp {data} do not make {devices} devices",
            code="model-parallel-row.degrees-do-not-multiply",
            row=row.row_id,
        )
    told = recomputed(row)
    if told is None:
        told = frozenset({"layers"}) if "bigscience" in source and work.recomputes else frozenset()
    return Degrees(
        tp=tensor,
        pp=pipeline,
        dp=data,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * data))),
        zero=zero_stage(row, source),
        recomputed=told,
    )


def _megatron_of_then(source: str) -> TransformerProgram:
    return TransformerProgram(
        framework="megatron-deepspeed",
        precision="fp16",
        attention="flash2" if "aceso" in source else "math",
        overlaps=False,
        gradient_bytes=2,
        flat_sums="vtrain" in source,
        send_bytes_per_s=_VTRAIN_SENDS if "vtrain" in source else 0.0,
        year=2021.5 if "bigscience" in source else 2024.0 if "aceso" in source else 2022.5,
    )


def _sharded(row: Row, devices: int) -> Degrees:
    microbatch = count(row, "micro_batch") or 1
    batch = count(row, "global_batch") or microbatch * devices
    return Degrees(
        dp=devices,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * devices))),
        zero=_STAGES.get(row.fields.get("zero", "").strip().lower(), 3),
        recomputed=recomputed(row) or frozenset(),
    )


def _foundry(row: Row) -> TransformerProgram:
    precision: Precision = "fp8" if "fp8" in row.fields.get("precision", "").lower() else "bf16"
    # Its tables of H100 came half a year after those of A100. Its policy "PURE" sums gradients in 16 bits.
    year = 2023.5 if "h100" in row.fields.get("gpu", "").lower() else 2023.0
    program = training_program("fsdp", year, device=device_of(row), precision=precision)
    # `fused_crossentropy` unless told (llmfoundry/models/mpt/modeling_mpt.py).
    return replace(program, eager=Eager(fused_loss=True))


def _nemo(row: Row, shape: TransformerShape, devices: int) -> tuple[TransformerShape, Degrees, TransformerProgram]:
    fields = row.fields
    tensor, pipeline, context = (count(row, name) or 1 for name in ("tp", "pp", "cp"))
    data = max(1, devices // (tensor * pipeline * context))
    microbatch = count(row, "micro_batch") or 1
    batch = count(row, "global_batch") or microbatch * data
    said = re.search(r"vp=(\d+)", fields.get("config", ""))
    per_stage = shape.layers // pipeline
    chunks = int(said.group(1)) if said and pipeline > 1 else 1
    if chunks > per_stage:
        chunks = 1
    expert = count(row, "ep") or 1
    if max(expert, tensor * pipeline * context) > devices:
        raise InputError(
            f"row {row.row_id}: ep {expert}, tp {tensor}, pp {pipeline}, cp {context} do not fit on {devices} devices",
            row=row.row_id,
        )
    fully = re.search(r"fsdp=([1-9]\d*)", fields.get("config", "")) is not None
    degrees = Degrees(
        tp=tensor,
        pp=pipeline,
        chunks=chunks,
        cp=context,
        dp=data,
        ep=expert if shape.experts is not None else 1,
        expert_tp=1 if shape.experts is not None else None,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * data))),
        sequence_parallel=tensor > 1,
        zero=3 if fully and tensor == pipeline == 1 else 1,
    )
    # Products in 4 bits are assumed as fast as in 8: no row has the speed of a step with them.
    eight = any(word in fields.get("precision", "").lower() for word in ("fp8", "mx", "fp4"))
    # If a rank's weights, gradients and buffers exceed its memory, the row is fine-tuning without their gradients.
    per_rank = _state_bytes(shape, degrees)
    frozen = per_rank > device_of(row).memory.nbytes
    program = TransformerProgram(
        framework="nemo",
        precision="fp8" if eight else "bf16",
        tensor_overlaps=True,
        frozen=frozen,
        year=_year_of(row) or 2025.0,
        once_a_node=8,
    )
    return shape, degrees, program


def _state_bytes(shape: TransformerShape, degrees: Degrees) -> int:
    return rank_memory(shape, degrees, stage=0).state


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def answer_model_parallel(row: Row) -> Answer:
    """Predict a row of the families "mp_step_time" and "mp_throughput".

    Args:
        row: as published

    Returns:
        The answer; without a prediction, the reason.

    Raises:
        TrimaranError: a fault of the predictor
    """
    found = attempt(row, lambda: _predict(row))
    return Answer(row=row, predicted=None, skipped=found) if isinstance(found, str) else found


def _predict(row: Row) -> Answer:
    with cells_read(row):
        run = transformer_run(row)
    return answer_of_run(row, run, machine_of(run))


def answer_of_run(row: Row, run: TransformerRun, machine: Machine) -> Answer:
    """The prediction of a run's figure with its 90 % interval.

    Args:
        row: with the figure
        run: of it
        machine: of the run
    """
    step, constants = run_step(run, machine), step_constants()
    predicted = in_unit(row, run, step)
    if "bigscience" in row.fields.get("source_repo", ""):
        # Its authors: an identical test is 40 % faster or slower on the same nodes at another time of the day.
        return Answer(row=row, predicted=predicted, low=predicted * 0.6, high=predicted * 2.0)
    half = constants.half_width(run.shape, run.program, machine.node.device, not_said=run.assumed)
    return Answer(row=row, predicted=predicted, low=predicted / math.exp(half), high=predicted * math.exp(half))


def machine_of(run: TransformerRun) -> Machine:
    """The machine of a run.

    Raises:
        InputError: the catalog has no such machine or device.
    """
    found = match_machine(run.machine, run.device, devices=run.devices, nodes=run.nodes)
    if found is None:
        raise InputError(f"{run.machine or run.device}: no machine of the catalog", machine=run.machine)
    return found.machine


def run_step(run: TransformerRun, machine: Machine) -> TransformerStep:
    """Time of a run's step."""
    return transformer_step(
        run.shape,
        run.degrees,
        run.program,
        device=machine.node.device,
        exchange=MachineExchange(machine, ranks=run.degrees.devices, year=run.program.year),
        constants=step_constants(),
    )


def in_unit(row: Row, run: TransformerRun, step: TransformerStep) -> float:
    """A step's time or throughput, in the unit of a row.

    Raises:
        InputError: a unit that does not fit a step.
    """
    if row.family != "mp_throughput":
        if row.unit not in _SECONDS:
            raise InputError(f"unit {row.unit}: expected one of {', '.join(_SECONDS)}", unit=row.unit)
        return step.seconds / _SECONDS[row.unit]
    degrees = run.degrees
    sequences = degrees.microbatch * degrees.microbatches * degrees.dp
    per_s = sequences / step.seconds
    if row.unit.startswith(("samples", "sequences")):
        return per_s / (run.devices if row.unit.endswith("/GPU") else 1)
    if not row.unit.startswith("tokens"):
        raise InputError(f"unit {row.unit}: expected tokens/s or samples/s", unit=row.unit)
    return per_s * run.shape.sequence / (run.devices if row.unit.lower().endswith("gpu") else 1)
