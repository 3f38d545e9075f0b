"""Cells of a row that hold more than one figure: batches by precision, devices of a node, accumulated gradients."""

import re

from trimaran.errors import InputError
from trimaran.session.validation.types import Row

REDUCED = frozenset({"amp", "fp16", "bf16", "mixed", "float16", "bfloat16", "half", "fp8"})
"""Words for computing in 16 bits."""

_PAIR = re.compile(r"(\d+)\s*(?:@|\()\s*([A-Za-z0-9]+)")

_LARGEST = re.compile(r"max bsz=(\d+)")


def reduced(row: Row) -> bool:
    """Whether a row computes in 16 bits."""
    return bool(words(f"{row.fields.get('precision', '')} {row.unit}") & REDUCED)


def words(text: str) -> set[str]:
    """The words of a text, in small letters.

    Example:
        >>> sorted(words("FP16/AMP samples/s"))
        ['amp', 'fp16', 's', 'samples']
    """
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def whole(row: Row, name: str) -> int | None:
    """A column as a whole number; of several, the one of the row's precision; None where there is none.

    "128 (TF) / 256 (AMP)" and "64@AMP, 32@FP32" name the precision; "24, 40" is full precision, then reduced.
    """
    cell = row.fields.get(name, "")
    if name == "batch_per_gpu" and (largest := _LARGEST.search(row.fields.get("metric", ""))):
        # A comparison at each framework's largest batch: the column holds that of the other one.
        return int(largest.group(1))
    named = [(int(number), word.lower()) for number, word in _PAIR.findall(cell)]
    if named:
        wanted = [number for number, word in named if (word in REDUCED) == reduced(row)]
        return wanted[0] if wanted else named[0][0]
    numbers = [int(float(text)) for text in re.findall(r"\d+(?:\.\d+)?", cell)]
    if not numbers:
        return None
    return numbers[-1] if reduced(row) else numbers[0]


def accumulation(row: Row) -> int:
    """Microbatches of a step; 1 where the row says nothing. Of two figures the first is of full precision.

    Example: "Accumulation steps (FP32 and FP16)=128 and 64", but "Gradient Accumulation: mixed precision, TF32=256 ,
    512" has them the other way round.
    """
    for part in row.fields.get("config", "").split(";"):
        name, _, text = part.partition("=")
        words = name.lower()
        if "accumulat" not in words or "batch" in words:
            continue
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if not numbers:
            continue
        first_reduced = "precision, tf32" in words
        return numbers[-1] if reduced(row) != first_reduced else numbers[0]
    return 1


def count(row: Row, name: str, default: int) -> int:
    """A column as a positive whole number, or a default where it is empty.

    Raises:
        InputError: the column holds no positive number
    """
    value = whole(row, name)
    if value is None:
        if row.fields.get(name):
            raise InputError(f'row {row.row_id}: column {name}: expected a whole number, got "{row.fields[name]}"')
        return default
    if value < 1:
        raise InputError(f"row {row.row_id}: column {name}: expected at least 1, got {value}", row=row.row_id)
    return value
