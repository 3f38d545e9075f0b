"""From the division of a transformer over a machine to a recipe.

Such a plan names no modules: its stages are numbers of layers. The embedding is with the first part of the stack and
the loss with the last.
"""

from collections.abc import Iterator

from trimaran.costs.transformers.division import Division
from trimaran.session.export.recipe import Precision, Recipe, Recompute, Stage

_ZERO = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}
# What a runtime calls "selective" is attention's probabilities, or what is cheap to compute again.
_SELECTIVE = frozenset({"attention", "norms", "activations", "feed_forward", "up_projections"})


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
