"""Cells of rows of divided transformers: counts, what replicas divide, what is computed again."""

import math
from dataclasses import replace

from trimaran.costs.transformers.division import Division, Recomputed, Sharding
from trimaran.costs.transformers.rank_memory import Bookkeeping, largest_rank
from trimaran.costs.transformers.shapes import TransformerShape
from trimaran.errors import InputError
from trimaran.session.validation.rows import figure
from trimaran.session.validation.types import Row

_MOST = 10_000_000
"""No row has more of anything that is counted."""


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
            f"row {row.row_id}: column {name}: {row.fields[name]} is no count of anything",
            code="model-parallel-row.bad-count",
            row=row.row_id,
        )
    return int(value)


def recomputed(row: Row) -> frozenset[Recomputed] | None:
    """What the backward computes again, by the column `recompute`; None where it says nothing."""
    told = row.fields.get("recompute", "").strip().lower()
    if told in ("true", "full", "yes", "y", "1", "uniform", "block"):
        return frozenset({"layers"})
    if told in ("selective", "sel"):
        return frozenset({"attention"})
    return frozenset() if told in ("false", "none", "no", "n", "0") else None


def card_bytes(row: Row) -> float:
    """Memory of a row's device [bytes]: as it says, or 24 GB of an L4 and 80 GB of others of these sources."""
    told = count(row, "gpu_mem_gb")
    return 1e9 * (told or (24 if row.fields.get("gpu", "").upper() == "L4" else 80))


def fitted(shape: TransformerShape, division: Division, limit_bytes: float) -> Division:
    """A division that ran: where its activations do not fit its card, layers are computed again."""
    keeping = Bookkeeping(attention="unfused", gradient_bytes=2)
    if largest_rank(shape, division, bookkeeping=keeping).peak <= limit_bytes:
        return division
    return replace(division, recomputed=frozenset({"layers"}))


def sharding(row: Row, source: str) -> Sharding:
    """What replicas divide, by the column `zero`: a stage, or whether DeepSpeed's first one is on."""
    zero = row.fields.get("zero", "").strip().lower().removeprefix("zero").strip("-_ ")
    # Tables of ZeRO have no column for stages: there are none, and parameters are divided.
    if "bigscience" in source and not row.fields.get("pp"):
        return "parameters"
    stages: dict[str, Sharding] = {"1": "optimizer", "y": "optimizer", "yes": "optimizer", "true": "optimizer"}
    return stages.get(zero) or {"2": "gradients", "3": "parameters"}.get(zero, "none")  # type: ignore[return-value]
