"""Jean Zay's tables of Megatron-DeepSpeed: what no column says of a step.

Tables without columns for network and batch are each of one network. Some of their rows differ in more than columns
say. Whether layers are computed again follows in tr3m from the row itself: its time, its TFLOP/s and its devices
multiply to the work that its authors counted for a step

    work = passes · 2 · parameters · sequence · batch        passes: 4 with layers computed again, 3 without

Time cancels in that product, so nothing of what is to be predicted is taken from it.

Source:
    bigscience-workshop/bigscience, experiments/gpt2.md, tr3m-1B3.md and tr8-104B.md. Of the 83 rows of gpt2.md, which
    do say their batch, 80 agree with the formula within 2 %. tr8-104B.md says of its first two tables that a network of
    58 billion parameters was run by mistake, that the formula does not hold for it, and not how wide its layers were.
"""

from dataclasses import dataclass

from trimaran.costs.transformers.shapes import TransformerShape, parameter_count
from trimaran.errors import InputError
from trimaran.session.validation.model_parallel_cells import count
from trimaran.session.validation.rows import figure
from trimaran.session.validation.types import Row

_MISTAKEN = {("32", 256.0), ("64", 155.0), ("32", 586.0), ("64", 301.0)}
"""Nodes and seconds of the rows of tr8's first two tables."""


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

    104 billion parameters are taken as 64 layers of 11,600, as the trainings of this size had in the end; the 32 of
    16,384 with which tr8 begins are as many parameters. Its tables do not tell which they ran.
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

    Raises:
        InputError: it is of a network that nobody knows
    """
    path, cells = row.fields.get("source_path", ""), row.fields.get("config", "").split("|")
    told = len(cells) == _CELLS
    if told and "tr8" in path and (cells[0], figure(cells[_SECONDS])) in _MISTAKEN:
        raise InputError(
            f"row {row.row_id}: its authors ran a network of 58 billion parameters by mistake, and do not tell how "
            "wide its feed-forward layers were",
            code="model-parallel-row.left-out",
            row=row.row_id,
        )
    batch = 512 if "tr3m" in path else 2048 if "tr8" in path else 1024
    seconds, teraflops = (figure(cells[_SECONDS]), figure(cells[_SECONDS + 1])) if told else (None, None)
    if "tr3m" not in path or not seconds or not teraflops:
        return TableWork(batch=batch, again=True)
    one_pass = 2.0 * parameter_count(shape) * shape.sequence * batch
    return TableWork(batch=batch, again=seconds * teraflops * 1e12 * devices > 3.5 * one_pass)


def replicas_alone(row: Row, devices: int) -> bool:
    """Whether a row is of a table of Hugging Face's trainer, which has no column for degrees: there are only replicas.

    Args:
        row: of any table of this source
        devices: in use
    """
    if any(row.fields.get(name) for name in ("tp", "pp", "dp")):
        return False
    return count(row, "global_batch") == (count(row, "micro_batch") or 1) * devices


_CELLS = 8
"""Nodes, tensor, pipeline, data, microbatch, seconds, TFLOP/s, memory."""

_SECONDS = 5
