"""What a published row of a divided transformer was measured on, in our words.

Each source has a script of its own; what it does besides the degrees that a row says is a fact of it:

    vTrain        Megatron-DeepSpeed of 2022 in fp16, attention unfused, gradients exchanged after the backward; its
                  figures are exactly linear in the number of microbatches, as composed ones are, and a sum over
                  replicas takes its bytes over the bandwidth of a bus (src/predictor.py, `compute_comm_time`)
    NeMo          Megatron in 8 bits with fused attention; states divided, exchanges overlapped, the stream divided too
    llm-foundry   PyTorch FSDP in bf16, ALiBi attention in Triton, layers computed again where the row says so
    Mist          Aceso on Megatron in fp16 with fused attention; stages by the name of the plan, layers computed again
                  where they would not fit with attention as Aceso's own planner counts it
    Jean Zay      Megatron-DeepSpeed of 2021 in fp16 on V100, layers computed again, `tensor` 4 where not said
"""

import math
import re
from dataclasses import dataclass

from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.rank_memory import rank_memory
from trimaran.costs.transformers.shapes import TransformerShape
from trimaran.costs.transformers.training_program import Program
from trimaran.errors import InputError
from trimaran.session.validation.model_parallel_cells import card_bytes, count, fitted, recomputed, sharding
from trimaran.session.validation.model_parallel_shapes import named_shape
from trimaran.session.validation.model_parallel_tables import replicas_alone, table_network, table_sequence, table_work
from trimaran.session.validation.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedRun:
    """A run of a divided transformer.

    Attributes:
        shape: the network
        division: of it
        program: what trained
        device: as the row calls it
        machine: as the row calls it
        devices: in use
        nodes: in use; None: not said
        trainer: the library of the loop, where a source compares several; "" for its first one
    """

    shape: TransformerShape
    division: Division
    program: Program
    device: str
    machine: str
    devices: int
    nodes: int | None
    trainer: str = ""


def divided_run(row: Row) -> DividedRun:
    """What a row was measured on.

    Raises:
        InputError: its network or what it was divided by is not known.
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
    if "llm-foundry" in source:
        shape_, division, program = shape, _sharded(row, devices), _foundry(row)
    elif any(word in source for word in ("bigscience", "vtrain", "aceso", "mist", "megatron-deepspeed")):
        shape_, division, program = shape, _plain(row, shape, devices, source), _megatron_of_then(source)
        division = division if "bigscience" in source else fitted(shape, division, card_bytes(row))
    else:
        shape_, division, program = _nemo(row, shape, devices)
    most = 4 * shape_.layers
    if division.pipeline > most:
        raise InputError(
            f"row {row.row_id}: {division.pipeline} stages for {shape_.layers} layers: more than {most} are not known",
            code="model-parallel-row.too-many-stages",
            row=row.row_id,
        )
    nodes = count(row, "n_nodes") or (math.ceil(devices / 4) if "bigscience" in source else None)
    device = fields.get("gpu", "")
    return DividedRun(
        shape=shape_,
        division=division,
        program=program,
        device=device,
        machine=fields.get("machine") or device,
        devices=devices,
        nodes=nodes,
        trainer="Hugging Face" if "bigscience" in source and replicas_alone(row, devices) else "",
    )


_VTRAIN_SENDS = 800e9 / 8 * 1.074 / 8
"""800 Gib/s of four cards, of which a send has a quarter, with twice its bytes (`_compute_p2p_latency`) [bytes/s]."""


def _plain(row: Row, shape: TransformerShape, devices: int, source: str) -> Division:
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
        told = frozenset({"layers"}) if "bigscience" in source and work.again else frozenset()
    return Division(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * data))),
        sharding=sharding(row, source),
        recomputed=told,
    )


def _megatron_of_then(source: str) -> Program:
    return Program(
        precision="float16",
        attention="fused" if "aceso" in source else "unfused",
        overlaps=False,
        gradient_bytes=2,
        flat_sums="vtrain" in source,
        send_bytes_per_s=_VTRAIN_SENDS if "vtrain" in source else 0.0,
        year=2021.5 if "bigscience" in source else 2024.0 if "aceso" in source else 2022.5,
    )


def _sharded(row: Row, devices: int) -> Division:
    microbatch = count(row, "micro_batch") or 1
    batch = count(row, "global_batch") or microbatch * devices
    return Division(
        data=devices,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * devices))),
        sharding="parameters",
        recomputed=frozenset({"layers"}) if row.fields.get("recompute") == "True" else frozenset(),
    )


def _foundry(row: Row) -> Program:
    precision = "float8" if "fp8" in row.fields.get("precision", "").lower() else "bfloat16"
    return Program(precision=precision, fused=False, gradient_bytes=4, year=2023.0)


def _nemo(row: Row, shape: TransformerShape, devices: int) -> tuple[TransformerShape, Division, Program]:
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
    division = Division(
        tensor=tensor,
        pipeline=pipeline,
        chunks=chunks,
        context=context,
        data=data,
        expert=expert if shape.experts is not None else 1,
        expert_tensor=1 if shape.experts is not None else None,
        microbatch=microbatch,
        microbatches=max(1, round(batch / (microbatch * data))),
        sequence_parallel=tensor > 1,
        sharding="parameters" if fully and tensor == pipeline == 1 else "optimizer",
    )
    # Products in 4 bits are taken as fast as in 8: no row says how much faster a step with them is.
    eight = any(word in fields.get("precision", "").lower() for word in ("fp8", "mx", "fp4"))
    # Weights, gradients and their buffers of a rank: a table of fine-tuning names runs that hold no gradients of them.
    per_rank = _state_bytes(shape, division)
    frozen = per_rank > 80e9
    program = Program(
        precision="float8" if eight else "bfloat16",
        tensor_overlaps=True,
        frozen=frozen,
        year=2025.0,
    )
    return shape, division, program


def _state_bytes(shape: TransformerShape, division: Division) -> int:
    return rank_memory(shape, division, stage=0).state
