"""Under which strategies an optimizer updates as it would in a plain loop.

    whole      one device, replicas that sum everywhere      the optimizer of every rank holds all parameters
    subsets    zero=1, sync="p2p", pipelines, placements     that of a rank holds some: right where it is separable
    parts      zero=2 and 3, tensor parallelism              it holds parts of tensors: right where it is elementwise

What is not elementwise may still be right under zero=2 and 3, on tensors that know that they are parts; the runtime
tries that where it has the ranks.
"""

from trimaran.graph.behaviour import OptimizerTraits
from trimaran.program.strategy import Strategy


def update_obstacle(strategy: Strategy, traits: OptimizerTraits, *, precision: str = "fp32") -> str:
    """Why an update under a strategy would not be that of a plain loop; empty: it would.

    Args:
        strategy: how a job runs
        traits: of its optimizer
        precision: of the job

    Example:
        >>> update_obstacle(Strategy(dp=2, zero=1), OptimizerTraits(class_name="SGD"))
        ''
        >>> traits = OptimizerTraits(class_name="Norm", separable=False, elementwise=False, reason="it takes one norm")
        >>> update_obstacle(Strategy(dp=2), traits)
        ''
        >>> update_obstacle(Strategy(dp=2, zero=1), traits)
        'each rank updates some parameters, and Norm cannot be split over parameters: it takes one norm; use replicas \
that update everything (dp with sync="all-reduce", zero=0)'
    """
    name = traits.class_name
    if traits.needs_closure:
        return (
            f"the step of {name} computes the loss again (a closure, or two halves of a step), and here each "
            "microbatch runs forward and backward once: use an optimizer whose step() needs no closure"
        )
    if precision == "fp16" and (found := scaling_obstacle(strategy)):
        return found
    if strategy.devices == 1:
        return ""
    if traits.draws:
        return f"the step of {name} draws random numbers, and every rank would draw its own: use one device"
    if traits.foreign:
        return (
            f"{name} holds what is no parameter of the model ({', '.join(traits.foreign[:3])}), whose gradients no "
            "other rank would hear of: put them into the model, or use one device"
        )
    parts = bool(strategy.shards) or strategy.tp > 1 or strategy.zero > 1
    subsets = strategy.pp > 1 or (strategy.dp > 1 and (strategy.zero == 1 or strategy.sync == "p2p"))
    if not (parts or subsets):
        return ""
    if traits.extra:
        return (
            f"{name} holds parameters that it was not given ({', '.join(traits.extra[:3])}), and a rank updates some "
            f"only: let Job.optimizer use those of its argument, which has named_parameters() too, or use {_WHOLE}"
        )
    if traits.hooked:
        return f"hooks on the step of {name} would see the parameters of one rank only: use {_WHOLE}"
    if not traits.separable and (subsets or strategy.zero < 2):
        return (
            f"each rank updates some parameters, and {name} cannot be split over parameters: {traits.reason}; use "
            f"{_WHOLE}"
        )
    if not traits.elementwise and (strategy.shards or strategy.tp > 1):
        return (
            f"ranks that share tensors update parts of them, and {name} needs whole parameters: {traits.reason}; use "
            "one that treats every element by itself, or tp=1 without shards"
        )
    return ""


_WHOLE = 'replicas that update everything (dp with sync="all-reduce", zero=0)'


def scaling_obstacle(strategy: Strategy) -> str:
    """Why gradients cannot be scaled for fp16 under a strategy as in a plain loop; empty: they can.

    Args:
        strategy: how a job runs

    Example:
        >>> scaling_obstacle(Strategy(dp=2, zero=1)), "zero=3" in scaling_obstacle(Strategy(dp=2, zero=3))
        ('', True)
    """
    divided = {
        "pipelines and placements": strategy.pp > 1 or strategy.segments > 1,
        "ranks that share tensors": strategy.tp > 1 or bool(strategy.shards),
        f"zero={strategy.zero}": strategy.zero > 1,
        'sync="p2p"': strategy.sync == "p2p" and strategy.dp > 1,
        "compressed gradients": strategy.compression is not None,
    }
    found = [name for name, holds in divided.items() if holds]
    if not found:
        return ""
    return (
        f"in fp16 gradients are scaled for one device, for replicas and for zero=1, not for {' and '.join(found)}: "
        'use these, or precision="bf16", which needs no scaling'
    )
