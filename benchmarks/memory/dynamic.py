"""What the loss of the vDNN paper's dynamic policy depends on, in the model of `reproduce vdnn`.

    python -m benchmarks.memory.dynamic

VGG-16 with 256 images on a Titan X. One constant is changed at a time; all else is as `benchmarks/vdnn/README.md` says.
Each line has the trial that the policy ends with, how many convolutions compute without workspace, its peak and its
loss of speed against none (p) in unlimited memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from trimaran.base.errors import InfeasibleError
from trimaran.machine.catalog import find_device
from trimaran.memory.vdnn import Offload
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.pricing.offload_costs import MemoryCosts, modelled_costs
from trimaran_studies.reproduce import vdnn_dynamic
from trimaran_studies.reproduce.vdnn import PAPER_SOFTWARE, network_job
from trimaran_studies.reproduce.vdnn_accounting import Buffers, PaperNetwork, baseline, network_of, virtualized
from trimaran_studies.reproduce.vdnn_dynamic import Algorithm, Usage, choose_dynamically

GIB = 2**30
POOL_BYTES = 12 * GIB


@contextmanager
def slower_without_workspace(factor: float) -> Iterator[None]:
    """Convolutions without workspace take so many times as long."""
    before = vdnn_dynamic.SLOWER
    vdnn_dynamic.SLOWER = factor
    try:
        yield
    finally:
        vdnn_dynamic.SLOWER = before


def dynamic(network: PaperNetwork, costs: MemoryCosts, pool_bytes: int) -> str:
    """The line of one setting."""
    convolutions = tuple(n for n, layer in enumerate(network.layers) if layer.convolution is not None)
    kept_s = baseline(network).step_time_s

    def step(offload: Offload, algorithms: Mapping[int, Algorithm]) -> Buffers:
        if offload == Offload.NONE:
            return baseline(network, algorithms)
        return virtualized(
            network,
            offload,
            algorithms,
            to_host_bytes_per_s=costs.to_host_bytes_per_s,
            to_device_bytes_per_s=costs.to_device_bytes_per_s,
        )

    def used(offload: Offload, algorithms: Mapping[int, Algorithm]) -> Usage:
        found = step(offload, algorithms)
        steps = (found.steps_bytes + found.weight_bytes).tolist()
        return Usage(peak_bytes=found.peak_bytes, by_convolution={n: max(steps[n], steps[-1 - n]) for n in algorithms})

    try:
        choice = choose_dynamically(used, convolutions, budget_bytes=pool_bytes)
    except InfeasibleError as error:
        return f"cannot be trained: {int(str(error.figures['peak_bytes'])) / 1e9:.2f} GB needed"
    found = step(choice.offload, choice.algorithms)
    frugal = sum(one == Algorithm.MEMORY for one in choice.algorithms.values())
    return (
        f"{choice.tried[-1]:<13} {frugal:>2} of {len(convolutions)}  {found.peak_bytes / 1e9:6.2f} GB  "
        f"{100 * (found.step_time_s / kept_s - 1):5.1f} %"
    )


def main() -> None:
    """Print a line for each setting."""
    trace = JobTracer(network_job("vgg16")).trace(256)
    costs = modelled_costs(trace, find_device("titan-x"), software=PAPER_SOFTWARE)
    network = network_of(trace, costs.durations_s)
    print("as documented            ", dynamic(network, costs, POOL_BYTES))
    for pool in (11.8, 11.7, 11.6, 11.0):
        print(f"pool of {pool} GiB         ", dynamic(network, costs, int(pool * GIB)))
    for factor in (1.1, 1.5, 1.9):
        with slower_without_workspace(factor):
            print(f"(m) takes {factor} × (p)     ", dynamic(network, costs, POOL_BYTES))
    for rate in (9.6e9, 8e9, 6.4e9):
        slow = replace(costs, to_host_bytes_per_s=rate, to_device_bytes_per_s=rate)
        print(f"copies at {rate / 1e9:4.1f} GB/s     ", dynamic(network, slow, POOL_BYTES))
    for factor in (0.8, 1.25):
        scaled = network_of(trace, costs.durations_s * factor)
        print(f"operations take {factor} ×  ", dynamic(scaled, costs, POOL_BYTES))


if __name__ == "__main__":
    main()
