"""Whether compressing gradients pays, as a study of 64 V100 in 8 servers has it.

Its abstract: with a network of 100 Gb/s that is used in full nothing need be compressed; with one of 10 Gb/s gradients
2 to 5 times smaller are enough for scaling that is almost linear. "Almost linear" is taken as 90 % of the speed that
scaling has when nothing is sent.

Source:
    Zhang et al., "Is Network the Bottleneck of Distributed Training?", NetAI 2020, arXiv:2006.10103.
"""

import functools
from dataclasses import replace

from trimaran.machine.find import find_machine
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.frameworks import DDP
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step

NODES = 8
DEVICES = 8 * NODES
LOCAL_BATCH = 32
SOFTWARE = Software(framework="pytorch", year=2020.0)
RATIOS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
ALMOST_LINEAR = 0.9


@functools.cache
def step_s(network: str, fabric: str, ratio: float) -> float:
    """A step of 64 devices whose gradients are `ratio` times smaller [s]."""
    machine = find_machine(f"dgx1-v100:{NODES}@{fabric}")
    work = workload(network, batch=LOCAL_BATCH)
    estimate = estimate_step(work, machine.node.device, SOFTWARE)
    # Buckets are filled by gradients, whatever is sent of them.
    first_bytes, bucket_bytes = round(DDP.first_bytes / ratio), round(DDP.bucket_bytes / ratio)
    recipe = replace(DDP, first_bytes=first_bytes, bucket_bytes=bucket_bytes)
    options = ExchangeOptions(explain=False, wire_share=1.0 / ratio, recipe=recipe)
    setup = DataParallelSetup(
        workload=work,
        estimate=estimate,
        machine=machine,
        devices=DEVICES,
        nodes=NODES,
        software=SOFTWARE,
        options=options,
    )
    return data_parallel_step(setup).step.seconds


def least_ratio(network: str, fabric: str) -> float:
    """The least of some ratios with which scaling is almost linear; infinite where none is enough.

    Args:
        network: such as "resnet50"
        fabric: network between the servers, such as "ethernet-10g"
    """
    ideal_s = step_s(network, fabric, 1e4)
    enough = (ratio for ratio in RATIOS if ideal_s / step_s(network, fabric, ratio) >= ALMOST_LINEAR)
    return next(enough, float("inf"))
