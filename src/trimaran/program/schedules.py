"""Orders of compute: which forward or backward each row of a pipeline does next.

Pure generators, with no communication in them: that follows from the graph (`lower.py`). A row is what one rank of a
replica does. The wavefronts beside the generators are drawn by `clock.draw_order`, with every step one unit long.
"""

from trimaran.errors import InputError
from trimaran.program.orders import Compute, Order
from trimaran.program.types import Kind, Schedule


def compute_order(schedule: Schedule, *, stages: int, microbatches: int, chunks: int = 1) -> Order:
    """Order of compute of a chain of which row `s % stages` has segment `s`.

    Args:
        schedule: name of the schedule; with one stage every schedule is microbatch by microbatch
        stages: stages of the pipeline
        microbatches: microbatches of a replica
        chunks: segments of each stage; more than one is for "interleaved"

    Returns:
        One row a stage.

    Raises:
        InputError: an unknown schedule, fewer than one stage, microbatch or chunk, or chunks that it cannot have
    """
    generators = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero-bubble": zero_bubble}
    known = [*generators, "interleaved"]
    if schedule not in known:
        raise InputError(
            f"unknown schedule {schedule!r}: choose one of {', '.join(known)}",
            code="schedule.unknown",
            schedule=schedule,
        )
    if chunks != 1 and (schedule != "interleaved" or stages == 1):
        raise InputError(
            f'several segments a stage are for the schedule "interleaved" of two stages or more, got {chunks} with '
            f'"{schedule}" of {stages}',
            code="schedule.chunks-not-interleaved",
            chunks=chunks,
            schedule=schedule,
        )
    if stages == 1:
        return accumulation(microbatches)
    if schedule == "interleaved":
        return interleaved(stages, microbatches, chunks)
    return generators[schedule](stages, microbatches)


def gpipe(stages: int, microbatches: int) -> Order:
    """All forwards, then all backwards.

    Every stage keeps the activations of all its microbatches. Idle share of a stage: (K-1)/(M+K-1) for K stages and M
    microbatches.

    Source:
        Huang et al., GPipe, NeurIPS 2019.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(gpipe(3, 4)))
        row 0  0F0 0F1 0F2 0F3  .   .   .   .  0B0 0B1 0B2 0B3
        row 1   .  1F0 1F1 1F2 1F3  .   .  1B0 1B1 1B2 1B3  .
        row 2   .   .  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3  .   .
    """
    _check_sizes(stages, microbatches)
    return tuple(
        tuple(
            Compute(kind, stage, microbatch)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for microbatch in range(microbatches)
        )
        for stage in range(stages)
    )


def one_forward_one_backward(stages: int, microbatches: int) -> Order:
    """Backwards as early as possible: stage k of K keeps the activations of at most K-k microbatches.

    A stage runs as many forwards ahead as there are stages after it, then one forward and one backward in turn, then
    what is left. The idle share is that of GPipe.

    Source:
        Narayanan et al., PipeDream-Flush (1F1B), "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(one_forward_one_backward(3, 4)))
        row 0  0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
        row 1   .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
        row 2   .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
    """
    _check_sizes(stages, microbatches)
    rows = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        row = [Compute(Kind.FORWARD, stage, microbatch) for microbatch in range(ahead)]
        for microbatch in range(ahead, microbatches):
            row.append(Compute(Kind.FORWARD, stage, microbatch))
            row.append(Compute(Kind.BACKWARD, stage, microbatch - ahead))
        row.extend(
            Compute(Kind.BACKWARD, stage, microbatch) for microbatch in range(microbatches - ahead, microbatches)
        )
        rows.append(tuple(row))
    return tuple(rows)


def interleaved(stages: int, microbatches: int, chunks: int) -> Order:
    """1F1B over several segments a stage, dealt in turn: a microbatch goes `chunks` times around the stages.

    Microbatches are taken in groups, as many as there are stages where that divides; a stage runs a group through its
    first segment, then through its second. Idle share of a stage where the microbatches are a multiple of the stages:
    (K-1)/(vM+K-1) for K stages, v segments a stage and M microbatches; v times less of a step than with 1F1B.

    Source:
        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(interleaved(2, 2, 2)))
        row 0  0F0 0F1 2F0 2F1  .  2B0  .  2B1 0B0 0B1
        row 1   .  1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1  .
    """
    _check_sizes(stages, microbatches)
    if chunks < 1:
        raise InputError(f"a schedule needs at least one of its chunks, got {chunks}", chunks=chunks)
    group = -(-microbatches // max(1, microbatches // stages))
    visits = [
        (chunk, microbatch)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + group, microbatches))
    ]
    rows = []
    for stage in range(stages):
        forwards = [Compute(Kind.FORWARD, chunk * stages + stage, microbatch) for chunk, microbatch in visits]
        backwards = [
            Compute(Kind.BACKWARD, (chunks - 1 - chunk) * stages + stage, microbatch) for chunk, microbatch in visits
        ]
        ahead = min((chunks - 1) * group + 2 * (stages - 1 - stage), len(visits))
        row = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            row += [forward, backward]
        rows.append((*row, *backwards[len(visits) - ahead :]))
    return tuple(rows)


def zero_bubble(stages: int, microbatches: int) -> Order:
    """1F1B whose backwards are split: the gradient of the inputs first, that of the weights where nothing else is.

    Stage k puts off k gradients of weights, so that every stage keeps as many activations as the first one does with
    1F1B. With steps of one unit each, a stage idles (K-1)/(3M+K-1) of a step where there are enough microbatches
    (M >= K): a third of what 1F1B idles.

    Source:
        Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, schedule ZB-H1.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(zero_bubble(2, 3)))
        row 0  0F0 0F1  .  0I0 0W0 0F2 0I1 0W1 0I2 0W2
        row 1   .  1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    _check_sizes(stages, microbatches)
    rows = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        row = [Compute(Kind.FORWARD, stage, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            if microbatch + ahead < microbatches:
                row.append(Compute(Kind.FORWARD, stage, microbatch + ahead))
            row.append(Compute(Kind.BACKWARD_INPUT, stage, microbatch))
            if microbatch >= stage:
                row.append(Compute(Kind.BACKWARD_WEIGHT, stage, microbatch - stage))
        left = range(max(0, microbatches - stage), microbatches)
        rows.append((*row, *(Compute(Kind.BACKWARD_WEIGHT, stage, microbatch) for microbatch in left)))
    return tuple(rows)


def accumulation(microbatches: int) -> Order:
    """One stage: forward and backward of one microbatch after the other, gradients added up.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(accumulation(3)))
        row 0  0F0 0B0 0F1 0B1 0F2 0B2
    """
    return one_forward_one_backward(1, microbatches)


def evaluation(stages: int, microbatches: int) -> Order:
    """Evaluation forwards of a chain, microbatch after microbatch.

    Example:
        >>> from trimaran.program.clock import draw_order
        >>> print(draw_order(evaluation(2, 3)))
        row 0  0EV0 0EV1 0EV2  .
        row 1   .   1EV0 1EV1 1EV2
    """
    _check_sizes(stages, microbatches)
    return tuple(
        tuple(Compute(Kind.EVALUATE, stage, microbatch) for microbatch in range(microbatches))
        for stage in range(stages)
    )


def _check_sizes(stages: int, microbatches: int) -> None:
    for name, value in (("stages", stages), ("microbatches", microbatches)):
        if value < 1:
            raise InputError(
                f"a schedule needs at least one of its {name}, got {value}",
                code="schedule.count-too-small",
                **{name: value},
            )
