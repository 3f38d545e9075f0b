"""Cost of an exchange of gradients on a machine: calls, copies into buffers, ranks that wait for the slowest."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from trimaran.machine.types import Machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.collectives.corrections import CollectiveCorrection
from trimaran.pricing.collectives.links import all_with_all_rate, fabric_of
from trimaran.pricing.collectives.parameter_servers import byteps_time
from trimaran.pricing.exchange.frameworks import ExchangeRecipe, exchange_constants
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.exchange.unknowns import End, placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    """Settings of a job that differ from its framework's defaults.

    Attributes:
        accumulation: microbatches of a step, whose gradients are exchanged once
        recipe: how gradients are exchanged; None: as the framework does
        wire_share: bytes sent, as a share of the gradients'
        explain: say which layers the step waits for
        correction: of collectives, from a person's own runs; None: none
        length_spread: standard deviation of a microbatch's work by its mean, as sentences of different lengths have it
        servers: machines without devices that sum gradients of several nodes; 0: the nodes' hosts do
        end: where the constants are taken that nobody has measured
    """

    accumulation: int = 1
    recipe: ExchangeRecipe | None = None
    wire_share: float = 1.0
    explain: bool = True
    correction: CollectiveCorrection | None = None
    length_spread: float = 0.0
    servers: int = 0
    end: End = "typical"


def call_price(
    recipe: ExchangeRecipe,
    machine: Machine,
    *,
    devices: int,
    nodes: int,
    sync: Sync,
    year: float,
    options: ExchangeOptions | None = None,
) -> Callable[[int], float]:
    """Time of a call by its bytes [s].

    Args:
        recipe: of the framework
        machine: where
        devices: in the group
        nodes: that they are in
        sync: "nccl", or "byteps"
        year: of the software, which decides the library of collectives
        options: settings of the job
    """
    within, asked = -(-devices // nodes), options or ExchangeOptions()

    def collective(op: str, nbytes: int, group: int, over: int) -> float:
        cost = collective_cost(
            op, nbytes, machine=machine, devices=group, nodes=over, year=year, correction=asked.correction
        )
        place = recipe.bytes_place
        seconds = cost.seconds if place is None or not cost.low else placed(cost.low, cost.high, place)
        return {"fast": cost.low, "typical": seconds, "slow": cost.high}[asked.end]

    @functools.cache
    def price(nbytes: int) -> float:
        if sync == "nccl" or nodes == 1:
            return sum(collective(op, nbytes, devices, nodes) for op in recipe.collectives)
        local_s = collective("all_reduce", nbytes, within, 1) if within > 1 else 0.0
        return local_s + _over_servers_s(nbytes, machine, nodes=nodes, servers=asked.servers)

    return price


def _over_servers_s(nbytes: int, machine: Machine, *, nodes: int, servers: int) -> float:
    """Push and pull of BytePS, whose servers are on the workers' machines and on spare ones [s]."""
    _, link = fabric_of(machine)
    rate = all_with_all_rate(machine, nodes + servers)
    return 2 * link.latency_s + byteps_time(nbytes, workers=nodes, servers=servers, bytes_per_s=rate)


def handling_s(recipe: ExchangeRecipe, machine: Machine, *, tensors: int, nbytes: int) -> float:
    """Copies of gradients into the buffers of calls and out of them, on the device [s].

    Args:
        recipe: of the framework
        machine: whose devices
        tensors: that are exchanged
        nbytes: of all of them [bytes]
    """
    bandwidth = machine.node.device.bandwidth
    return (
        recipe.step_s
        + recipe.tensor_s * tensors
        + recipe.passes * nbytes / (bandwidth.bytes_per_s * bandwidth.fraction)
    )


def straggling(devices: int, nodes: int = 1) -> float:
    """How much longer a step is because all wait for the slowest, as a share of the step.

    Args:
        devices: in the group
        nodes: that they are in

    Example:
        >>> straggling(1)
        0.0
    """
    if devices == 1:
        return 0.0
    known = exchange_constants()
    return known.straggling + known.straggling_growth * math.log2(devices) + known.node_straggling * math.log2(nodes)
