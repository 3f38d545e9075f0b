"""Predicts published figures of memory.

Four kinds of rows: Megatron-LM's training tests (peak of an allocator on the last rank), a paper's figures on
recomputation, tables of runs measured by the device's tool, and Caffe's sum of its layers' outputs. Other rows with a
known network and a batch are traced. An answer also says whether the step fits, where the device is known.

Intervals are by kind. Where the arguments of a program are known, errors come from its version rather than from the
formulas: most figures are within 1 or 2 %, and some of an older container have large errors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.machine.matching import match_device
from trimaran.pricing.analytical.activations import layer_activations
from trimaran.pricing.analytical.memory import Bookkeeping, RankMemory, largest_rank, rank_memory
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.program.strategy import Degrees, Recomputed
from trimaran_studies.facts.network_shapes import named_shape
from trimaran_studies.validation.measurement import Answer, Row, attempt, cells_read
from trimaran_studies.validation.megatron import megatron_case, megatron_rank

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
            layer_activations(shape, _degrees(run, *_MODES[which]), attention="unfused").kept
            for which in (mode, "none")
        ]
        return 100.0 * kept[0] / kept[1]
    rank = rank_memory(shape, _degrees(run, *_MODES[mode]), bookkeeping=Bookkeeping(attention="unfused"))
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
    keeping = Bookkeeping(gradient_bytes=6, attention="unfused", workspace_bytes=_DRIVER_BYTES)
    return largest_rank(shape, degrees, bookkeeping=keeping)


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
        count = row.fields.get("n_gpus")
        with cells_read(row):
            devices = int(float(count)) if count else None
        rank = megatron_rank(case, path=path, device=row.fields.get("gpu", ""), devices=devices)
        plain = case.listed and case.family in ("gpt", "bert") and "num-experts" not in case.arguments
        return rank.peak / scale, _EXACT if plain else _NEAR if case.listed else _ROUGH
    if "calculon" in row.fields.get("source_repo", ""):
        figure = paper_figure(row)
        return None if figure is None else (figure, _EXACT)
    if "bigscience" in row.fields.get("source_repo", ""):
        rank_at_peak = script_rank(row)
        return None if rank_at_peak is None else (rank_at_peak.peak / scale, _ROUGH)
    from trimaran_studies.validation.memory_traced import blobs_of, traced_peak  # torch is needed only from here on

    if row.family == "activation_memory":
        return blobs_of(row) / scale, _EXACT
    return traced_peak(row) / scale, _ROUGH
