"""Published figures of memory, answered.

Four kinds of rows: Megatron-LM's training tests (peak of an allocator on the last rank), a paper's figures on
recomputation, tables of runs as the device's own tool saw them, and Caffe's sum of its layers' outputs. Whatever else
names a network of ours and a batch is traced. An answer also says whether the step fits, where the device is known.

Intervals are by kind. Where the arguments of a program are known, an error comes from its version rather than from
the formulas: most figures are within a hundredth or two, and some that an older container made are far off.
"""

from trimaran.cluster.device_matching import match_device
from trimaran.errors import TrimaranError
from trimaran.session.validation.megatron_cases import megatron_case
from trimaran.session.validation.memory_megatron import megatron_rank
from trimaran.session.validation.memory_tables import paper_figure, script_rank
from trimaran.session.validation.types import Answer, Row

_DECIMAL = {"bytes": 1.0, "B": 1.0, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_UNITS = {**_DECIMAL, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
"""Bytes of a unit."""

_PARTS = ("par_opt", "act", "opt")
"""Metrics of a part of a step's memory."""

_TOLD_BY_NAME = ("gpt", "bert", "moe", "mixtral", "t5")
"""Families of Megatron's tests whose names tell enough of what runs; others have parts that are not modelled."""

_EXACT = (0.965, 1.04)
"""Interval of a figure whose program and arguments are known, by what the same test needed in other versions of it."""

_NEAR = (0.9, 1.1)
"""Interval where a network's form has parts that are not modelled one by one, such as experts."""

_ROUGH = (0.85, 1.2)
"""Interval of what a device's own tool shows, rounded, with what its driver holds; and of tests not listed."""


def answer_memory(row: Row) -> Answer:
    """What we say of a row of the families "peak_memory" and "activation_memory".

    Args:
        row: as published

    Returns:
        The answer; one that cannot be given says why.
    """
    if _unit(row) not in {*_UNITS, "%"}:
        return Answer(row=row, predicted=None, skipped=f'unit "{row.unit}": not one of memory')
    try:
        found = _predict(row)
    except TrimaranError as error:
        return Answer(row=row, predicted=None, skipped=error.message)
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
    found = match_device(row.fields.get("gpu", ""), float(said) if said else None)
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
        device = row.fields.get("gpu", "")
        rank = megatron_rank(case, path=path, device=device, devices=int(float(count)) if count else None)
        plain = case.listed and case.family in ("gpt", "bert") and "num-experts" not in case.arguments
        return rank.peak / scale, _EXACT if plain else _NEAR if case.listed else _ROUGH
    if "calculon" in row.fields.get("source_repo", ""):
        figure = paper_figure(row)
        return None if figure is None else (figure, _EXACT)
    if "bigscience" in row.fields.get("source_repo", ""):
        rank_at_peak = script_rank(row)
        return None if rank_at_peak is None else (rank_at_peak.peak / scale, _ROUGH)
    from trimaran.session.validation.memory_traced import blobs_of, traced_peak  # torch is needed only from here on

    if row.family == "activation_memory":
        return blobs_of(row) / scale, _EXACT
    return traced_peak(row) / scale, _ROUGH
