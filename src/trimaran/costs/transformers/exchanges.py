"""How long a divided step waits for exchanges: inside layers, between stages, between replicas.

    tensor      4 sums of the residual stream a layer and microbatch, 6 where layers are computed again
    context     keys and values of all ranks gathered in the forward and twice in the backward
    experts     tokens sent to their experts and back, forward and backward
    stages      the residual stream, once forward and once backward, for each chunk
    replicas    gradients summed once a step; with optimizers divided scattered, and parameters gathered; with gradients
                divided too, scattered for each microbatch; with parameters divided, gathered twice for each as well

Source:
    Korthikanti et al., 2022, section 4, for exchanges of a layer; Narayanan et al., SC 2021, section 2.2, for stages;
    Rajbhandari et al., SC 2020, section 7, for divided states.
"""

from trimaran.costs.transformers.activations import tokens_of_rank
from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.exchange import Exchange
from trimaran.costs.transformers.rank_memory import stage_elements
from trimaran.costs.transformers.shapes import TransformerShape, key_size
from trimaran.costs.transformers.step_constants import StepConstants
from trimaran.costs.transformers.training_program import Program


def tensor_seconds(
    shape: TransformerShape, division: Division, program: Program, exchange: Exchange, constants: StepConstants
) -> float:
    """Exchanges of one layer and one microbatch, as far as they are waited for [s]."""
    tokens = tokens_of_rank(shape, division)
    seconds = 0.0
    if division.tensor > 1:
        each = exchange("all_reduce", tokens * shape.hidden * 2, division.tensor, 1)
        seconds += sum_count(division) * each * (constants.tensor_exposed if program.tensor_overlaps else 1.0)
    if division.context > 1:
        keys = 2 * key_size(shape, division.tensor) * 2 * tokens * division.context
        each = exchange("all_gather", keys, division.context, division.tensor)
        seconds += 3 * each * constants.tensor_exposed
    if shape.experts is not None and division.expert > 1:
        sent = tokens * shape.experts.active * shape.hidden * 2
        sent //= division.tensor if division.sequence_parallel else 1
        each = exchange("all_to_all", sent, division.expert, 1)
        seconds += 4 * each * (constants.tensor_exposed if program.tensor_overlaps else 1.0)
    return seconds


def sum_count(division: Division) -> int:
    """Sums of the residual stream over `tensor` ranks, in one layer and for one microbatch."""
    return 6 if "layers" in division.recomputed else 4


def send_seconds(division: Division, sends: float, constants: StepConstants) -> float:
    """What a stage waits for sends of one microbatch once the pipeline is full.

    1F1B sends between two computations, and nothing is left to do meanwhile: of the way there and the way back each
    stage waits for one. Interleaved chunks send as often as there are chunks, but another chunk computes meanwhile.

    Args:
        division: stages and chunks
        sends: a microbatch's stream to a neighbour and its gradient back [s]
        constants: the share that overlapped sends leave

    Returns:
        The wait [s].
    """
    if division.pipeline == 1:
        return 0.0
    return sends / 2.0 if division.chunks == 1 else sends * division.chunks * constants.send_exposed


def data_seconds(
    shape: TransformerShape,
    division: Division,
    program: Program,
    stage: int,
    microbatch_s: float,
    exchange: Exchange,
    constants: StepConstants,
) -> float:
    """Exchanges between replicas, as far as they are waited for [s].

    Args:
        shape: the network
        division: of it
        program: whether exchanges overlap, and what a gradient has
        stage: the slowest one
        microbatch_s: its forward and backward, beside which they run [s]
        exchange: prices collectives
        constants: what overlapped exchanges leave
    """
    if program.frozen:
        return 0.0

    def waits(seconds: float) -> float:
        # The longer of the two counts, and a share of the shorter one.
        if not program.overlaps:
            return seconds
        return max(0.0, seconds - microbatch_s) + constants.data_exposed * min(seconds, microbatch_s)

    held, experts = stage_elements(shape, division, stage)
    everywhere, once = _replica_exchanges(
        held, division.data * division.context, division.tensor, division, program, exchange
    )
    # Ranks that hold the same experts stand as far apart as there are ranks with others.
    apart = division.expert * division.expert_ranks
    more, more_once = _replica_exchanges(experts, division.expert_data, apart, division, program, exchange)
    return division.microbatches * waits(everywhere + more) + waits(once + more_once)


def _replica_exchanges(
    held: int, replicas: int, near: int, division: Division, program: Program, exchange: Exchange
) -> tuple[float, float]:
    """Exchanges of parameters that replicas share: for each microbatch, and once a step [s]."""
    if replicas <= 1 or not held:
        return 0.0, 0.0
    if division.sharding == "none":
        ring = 2.0 * (replicas - 1) / replicas if program.flat_sums else 1.0
        return 0.0, exchange("all_reduce", held * program.gradient_bytes, replicas, near) / ring
    gather = exchange("all_gather", held * 2, replicas, near)
    scatter = exchange("reduce_scatter", held * program.gradient_bytes, replicas, near)
    if division.sharding == "parameters":
        return 2 * gather + scatter, 0.0
    return (scatter, gather) if division.sharding == "gradients" else (0.0, gather + scatter)
