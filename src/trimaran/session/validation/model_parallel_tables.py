"""Jean Zay's tables of Megatron-DeepSpeed: what no column says of a step.

Tables without columns for network and batch are each of one network. Some of their rows differ in more than columns
say: in the batch, or in whether layers are computed again. That follows from the row itself: its time, its TFLOP/s and
its devices multiply to the work that its authors counted for a step

    work = passes · 2 · parameters · sequence · batch        passes: 4 with layers computed again, 3 without

Time cancels in that product, so nothing of what is to be predicted is taken from it.

Source:
    bigscience-workshop/bigscience, experiments/gpt2.md, tr3m-1B3.md and tr8-104B.md. Of the 83 rows of gpt2.md, which
    do say their batch, 80 agree with the formula within 2 %.
"""

from dataclasses import dataclass

from trimaran.costs.transformers.shapes import TransformerShape, parameter_count
from trimaran.session.validation.model_parallel_cells import count
from trimaran.session.validation.rows import figure
from trimaran.session.validation.types import Row

_BATCH_STEP = 256
"""Batches of 104 billion parameters are multiples of so many sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """What a step of a table computes.

    Attributes:
        batch: sequences
        again: layers are computed again in the backward
    """

    batch: int
    again: bool


def table_network(path: str) -> str:
    """The network of a table that has no column for it.

    104 billion parameters are taken as 64 layers of 11,600: 32 of 16,384 are as many, but cannot fill 64 stages. Rows
    of 32 stages may be of either.
    """
    if "tr3m" in path:
        return "GPT h2048 L24 a16"
    return "GPT h11600 L64 a80" if "tr8" in path else "GPT 52B"


def table_sequence(path: str) -> int:
    """Tokens of a sequence, where a table has no column for it."""
    return 2048 if "tr3m" in path or "tr8" in path else 1024


def table_work(row: Row, shape: TransformerShape, devices: int) -> TableWork:
    """What a step computes, where a table has no column for its batch.

    Args:
        row: of the table
        shape: the network
        devices: in use
    """
    path = row.fields.get("source_path", "")
    batch = 512 if "tr3m" in path else 2048 if "tr8" in path else 1024
    counted = _counted_flops(row, devices)
    if counted is None:
        return TableWork(batch=batch, again=True)
    one_pass = 2.0 * parameter_count(shape) * shape.sequence
    if "tr3m" in path:
        return TableWork(batch=batch, again=counted > 3.5 * one_pass * batch)
    steps = max(1, round(counted / (4.0 * one_pass * _BATCH_STEP)))
    return TableWork(batch=steps * _BATCH_STEP, again=True)


def replicas_alone(row: Row, devices: int) -> bool:
    """Whether a row is of a table of Hugging Face's trainer, which has no column for degrees: there are only replicas.

    Args:
        row: of any table of this source
        devices: in use
    """
    if any(row.fields.get(name) for name in ("tp", "pp", "dp")):
        return False
    return count(row, "global_batch") == (count(row, "micro_batch") or 1) * devices


def _counted_flops(row: Row, devices: int) -> float | None:
    """Work that the authors of tr3m and tr8 counted; None where the row is of another table [FLOP]."""
    path, cells = row.fields.get("source_path", ""), row.fields.get("config", "").split("|")
    if len(cells) != _CELLS or not ("tr3m" in path or "tr8" in path):
        return None
    seconds, teraflops = figure(cells[_SECONDS]), figure(cells[_SECONDS + 1])
    return seconds * teraflops * 1e12 * devices if seconds and teraflops else None


_CELLS = 8
"""Nodes, tensor, pipeline, data, microbatch, seconds, TFLOP/s, memory."""

_SECONDS = 5
