"""One device at many batches: some measured steps correct the kernel model, the others are predicted.

Source:
    apache/mxnet, docs/faq/perf.md: training on one V100 (p3.2xlarge) with MXNet 1.2 in float32, images/s by batch.
"""

from collections.abc import Mapping, Sequence

from trimaran.machine.catalog import find_device
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.kernels.corrections import correction_from_steps
from trimaran.pricing.kernels.estimate import estimate_step, measured_step
from trimaran.pricing.kernels.software import Software

SOURCE = "apache/mxnet: docs/faq/perf.md, training on V100 (p3.2xlarge), MXNet 1.2, float32"
IMAGES_PER_S: Mapping[str, Mapping[int, float]] = {
    "resnet50": {1: 34.54, 2: 65.01, 4: 113.49, 8: 174.81, 16: 251.22, 32: 298.51, 64: 343.19, 128: 363.69},
    "inception-v3": {1: 21.83, 2: 40.11, 4: 72.79, 8: 118.43, 16: 173.15, 32: 214.48, 64: 247.43, 128: 253.68},
}
"""Published rates by network and batch."""

MXNET = Software(framework="mxnet", year=2018.4, source=SOURCE)


def sweep_errors(network: str, *, known: Sequence[int], asked: Sequence[int] | None = None) -> dict[int, float]:
    """Errors of rates that were not fitted.

    Args:
        network: of `IMAGES_PER_S`
        known: batches whose figures correct the model
        asked: batches to predict; None: all others

    Returns:
        By batch, predicted / measured - 1.
    """
    measured, device = IMAGES_PER_S[network], find_device("v100")
    steps = [measured_step(workload(network, batch=batch), device, MXNET, batch / measured[batch]) for batch in known]
    correction = correction_from_steps(steps)
    others = [batch for batch in measured if batch not in known] if asked is None else asked
    return {
        batch: batch
        / estimate_step(workload(network, batch=batch), device, MXNET, correction=correction).seconds
        / measured[batch]
        - 1.0
        for batch in others
    }
