"""What the guides of Megatron-LM and of torchtitan recommend, as rules about degrees that a plan is compared with.

A guide names a few settings and leaves the rest to be tried. Here it is an order of degrees: of the settings that fit,
those that come first in it are tried, and the fastest of these is what a practitioner runs who has followed the guide.

Megatron-LM

    model parallelism       as little as fits, so that replicas take the rest
    layers over ranks       first, and within a node only
    stages                  across nodes, interleaved where microbatches allow it
    states                  of the optimizer sharded over replicas (the distributed optimizer)
    sequence                norms and dropout sharded over the ranks of a layer; over more ranks where it is long
    recomputation           attention's core where it is kept; whole layers only where that is what makes it fit
    microbatch              by trying

torchtitan

    replicas                first, with all states sharded (FSDP2)
    layers over ranks       next, within a node, where replicas alone do not fit or would be more than sequences
    stages                  last
    recomputation           tried, none or whole layers
    microbatch              by trying

Both say to try with and without recomputation of layers, so each of the two has its own first settings.

That plan is the baseline of PlanBench, too. Least model parallelism with the largest microbatch that fits, a common
rule, leaves pipelines with one microbatch, which nobody runs: any plan looks good next to that.

Source:
    Narayanan et al., SC 2021, takeaways 1 to 3 of section 3; Korthikanti et al., arXiv:2205.05198, 2022, section 5
    (selective recomputation, sequence parallelism); NVIDIA Megatron Core, "Parallelism Strategies Guide", and Megatron
    Bridge, "Parallelism Strategy Selection" (sizing, mapping to nodes). Liang et al., "TorchTitan", arXiv:2410.06511,
    2024 (one, two and three dimensions, in this order).
"""

from collections.abc import Callable
from dataclasses import dataclass

from trimaran.program.strategy import Degrees, ZeroStage

Order = Callable[[Degrees], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Recommendations about degrees.

    Attributes:
        name: whose
        levels: of ZeRO that it recommends, the first one before the others
        order: sort key of degrees; those with the least one are tried
    """

    name: str
    levels: tuple[ZeroStage, ...]
    order: Order


def _least_model_parallelism(degrees: Degrees) -> tuple[int, ...]:
    return (degrees.tp * degrees.pp * degrees.cp, degrees.cp, degrees.pp)


def _replicas_first(degrees: Degrees) -> tuple[int, ...]:
    return (degrees.pp, degrees.cp, degrees.tp)


MEGATRON = Guide(name="Megatron-LM", levels=(1, 0), order=_least_model_parallelism)
TORCHTITAN = Guide(name="torchtitan", levels=(3, 2), order=_replicas_first)
GUIDES = (MEGATRON, TORCHTITAN)


def recomputes_layers(degrees: Degrees) -> bool:
    """Whether the backward computes whole layers again."""
    return "layers" in degrees.recomputed
