"""From the division of a transformer over a machine to a recipe.

Such a plan names no modules: its stages are numbers of layers. The embedding is with the first part of the stack and
the loss with the last. Its file holds more, for people to read: what the recipe takes is `_Decided`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimaran.costs.transformers.division import Division
from trimaran.errors import InputError
from trimaran.program.files import check_version, from_plain
from trimaran.session.export.recipe import Precision, Recipe, Recompute, Stage
from trimaran.units import format_count

_ZERO = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}
# What a runtime calls "selective" is attention's probabilities, or what is cheap to compute again.
_SELECTIVE = frozenset({"attention", "norms", "activations", "feed_forward", "up_projections"})

_PRECISIONS: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What a file of a division says that a recipe takes.

    Attributes:
        job: reference of the network
        division: degrees and stages
        layers: of the whole stack
        global_batch_size: sequences of one update
        sequence_length: tokens of a sequence
        precision: of products
    """

    job: str
    division: Division
    layers: int
    global_batch_size: int
    sequence_length: int
    precision: str


def recipe_of_division_file(plain: Mapping[str, Any], *, source: str) -> Recipe:
    """What the file of a division says, in the words of other runtimes.

    Args:
        plain: the object of the file
        source: what to call it in errors

    Raises:
        InputError: another version, a key that is missing or wrong, or parts that are not the whole stack
    """
    plain = dict(plain)
    check_version(plain, 1, source=source)
    names = [field.name for field in dataclasses.fields(_Decided)]
    decided = from_plain({name: plain[name] for name in names if name in plain}, _Decided, source=source)
    division = decided.division
    _check_parts(division, decided.layers, source=source)
    if decided.precision not in _PRECISIONS:
        raise InputError(
            f'{source}: precision is "{decided.precision}", known are {", ".join(_PRECISIONS)}',
            code="export.unknown-precision",
            source=source,
            precision=decided.precision,
        )
    recipe = recipe_of_division(
        division,
        job=decided.job,
        layers=decided.layers,
        global_batch_size=decided.global_batch_size,
        sequence_length=decided.sequence_length,
        precision=_PRECISIONS[decided.precision],
    )
    if decided.precision != "float8":
        return recipe
    return replace(recipe, beyond=(*recipe.beyond, "products in float8: the file says bf16"))


def _check_parts(division: Division, layers: int, *, source: str) -> None:
    wanted = division.pipeline * division.chunks
    if division.parts and (len(division.parts) != wanted or sum(division.parts) != layers):
        raise InputError(
            f"{source}: $.division.parts has {len(division.parts)} parts with {sum(division.parts)} layers in all, "
            f"{format_count(division.pipeline, 'stage')} of {format_count(division.chunks, 'part')} want {wanted} with "
            f"{layers}",
            code="export.wrong-layer-count",
            source=source,
            parts=division.parts,
        )


def recipe_of_division(
    division: Division,
    *,
    job: str,
    layers: int,
    global_batch_size: int,
    sequence_length: int | None,
    precision: Precision,
) -> Recipe:
    """What a division says, in the words of other runtimes.

    Args:
        division: degrees and stages
        job: reference of the network
        layers: of the whole stack
        global_batch_size: sequences of one update
        sequence_length: tokens of a sequence
        precision: in which is computed
    """
    parts = division.parts or _even(layers, division.pipeline * division.chunks)
    recompute: Recompute = "none"
    if "layers" in division.recomputed:
        recompute = "full"
    elif division.recomputed & _SELECTIVE:
        recompute = "selective"
    return Recipe(
        job=job,
        dp=division.data,
        tp=division.tensor,
        pp=division.pipeline,
        cp=division.context,
        chunks=division.chunks,
        schedule="interleaved" if division.chunks > 1 else "1f1b",
        zero=_ZERO[division.sharding],  # type: ignore[arg-type]  # of the literal's own values
        sequence_parallel=division.sequence_parallel,
        stages=tuple(Stage(modules=(), layers=count) for count in parts) if division.pipeline > 1 else (),
        microbatch_size=division.microbatch,
        microbatches=division.microbatches,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        precision=precision,
        recompute=recompute,
        beyond=tuple(_beyond(division)),
    )


def _even(layers: int, parts: int) -> tuple[int, ...]:
    return tuple(layers // parts + (part < layers % parts) for part in range(parts))


def _beyond(division: Division) -> Iterator[str]:
    if division.expert > 1:
        yield f"experts over {division.expert} ranks: set the target's expert-parallel degree yourself"
    if len(division.recomputed) > 1:
        yield f"recompute of {', '.join(sorted(division.recomputed))}: the file names one kind"
