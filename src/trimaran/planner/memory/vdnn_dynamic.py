"""The dynamic policy of the vDNN paper: which maps to offload, and which algorithm for each convolution.

    1. all(m)      every X to the host, memory-optimal algorithms: if that does not fit, the network cannot be trained
    2. none(p)     nothing offloaded, the fastest algorithms
    3. conv(p)     the X of convolutions
    4. all(p)      every X
    5. conv(greedy), all(greedy): from the fastest on, each convolution that does not fit gets the memory-optimal one
    6. all(m)      what step 1 has shown to fit

The first that fits is taken. It is the paper's profiling, in which each trial is a run of a step; here each is a
simulation. Of the algorithms between the two, which the paper walks through layer by layer, there is none here.

Source:
    Rhu et al., MICRO 2016, section III-C.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from trimaran.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory.vdnn import Offload, vdnn_plan
from trimaran.planner.memory.vdnn_convolution import Algorithm
from trimaran.program.memory import MemoryPlan
from trimaran.simulator.memory_live import live_bytes
from trimaran.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory of one trial.

    Attributes:
        peak_bytes: peak of the step [bytes]
        by_convolution: peak during each convolution, forward or backward [bytes], by number of the layer
    """

    peak_bytes: int
    by_convolution: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the dynamic policy settles on.

    Attributes:
        offload: whose X goes to the host
        algorithms: of each convolution, by number of the layer
        tried: names of the trials in order, the last one is the choice
    """

    offload: Offload
    algorithms: Mapping[int, Algorithm]
    tried: tuple[str, ...]


Evaluate = Callable[[Offload, Mapping[int, Algorithm]], Usage]


def vdnn_dyn(trace: StepTrace, *, budget_bytes: int) -> MemoryPlan:
    """The dynamic policy on a traced step.

    A trace counts no workspaces, so that only what is offloaded remains to be chosen: the first of none, conv and all
    that fits.

    Args:
        trace: of the step
        budget_bytes: peak of live bytes that there is room for [bytes]

    Raises:
        InfeasibleError: not even offloading every X fits
    """
    plans = {offload: vdnn_plan(trace, offload) for offload in Offload}

    def evaluate(offload: Offload, _: Mapping[int, Algorithm]) -> Usage:
        return Usage(peak_bytes=live_bytes(trace, plans[offload]).peak, by_convolution={})

    choice = choose_dynamically(evaluate, (), budget_bytes=budget_bytes)
    return replace(plans[choice.offload], policy="vdnn_dyn", budget_bytes=budget_bytes)


def choose_dynamically(evaluate: Evaluate, convolutions: tuple[int, ...], *, budget_bytes: int) -> Choice:
    """Walk through the trials of the dynamic policy.

    Args:
        evaluate: memory of a step with this offloading and these algorithms
        convolutions: numbers of the layers that are convolutions, in order
        budget_bytes: memory of the device [bytes]

    Returns:
        The first trial that fits.

    Raises:
        InfeasibleError: not even the first one fits
    """
    frugal = MappingProxyType(dict.fromkeys(convolutions, Algorithm.MEMORY))
    fastest = MappingProxyType(dict.fromkeys(convolutions, Algorithm.PERFORMANCE))
    tried = ["all(m)"]
    least = evaluate(Offload.ALL, frugal).peak_bytes
    if least > budget_bytes:
        raise InfeasibleError(
            f"vDNN cannot train this network: its first trial, all(m), needs {format_bytes(least)} and has "
            f"{format_bytes(budget_bytes)}. Take a smaller batch or a larger device.",
            code="memory-plan.vdnn-cannot-train",
            peak_bytes=least,
            budget_bytes=budget_bytes,
        )
    for name, offload in (("none(p)", Offload.NONE), ("conv(p)", Offload.CONV), ("all(p)", Offload.ALL)):
        tried.append(name)
        if evaluate(offload, fastest).peak_bytes <= budget_bytes:
            return Choice(offload=offload, algorithms=fastest, tried=tuple(tried))
    for name, offload in (("conv(greedy)", Offload.CONV), ("all(greedy)", Offload.ALL)):
        tried.append(name)
        algorithms = _downgraded(evaluate, offload, fastest, budget_bytes)
        if evaluate(offload, algorithms).peak_bytes <= budget_bytes:
            return Choice(offload=offload, algorithms=algorithms, tried=tuple(tried))
    return Choice(offload=Offload.ALL, algorithms=frugal, tried=(*tried, "all(m)"))


def _downgraded(
    evaluate: Evaluate, offload: Offload, fastest: Mapping[int, Algorithm], budget_bytes: int
) -> Mapping[int, Algorithm]:
    # A workspace is there during its own layer only, so one pass over the layers finds all that overflow.
    peaks = evaluate(offload, fastest).by_convolution
    return {
        number: Algorithm.MEMORY if peaks.get(number, 0) > budget_bytes else algorithm
        for number, algorithm in fastest.items()
    }
