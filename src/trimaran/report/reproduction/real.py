"""Networks under the vDNN paper's policies and ours, as they ran on the machine at hand."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from trimaran.report.framing import frame_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPolicy:
    """A step under a policy.

    Attributes:
        policy: name
        predicted_peak_bytes: of the plan, before the run [bytes]
        accounted_peak_bytes: of the run, by looking at every storage [bytes]
        predicted_mean_bytes: over the ticks of autograd [bytes]
        accounted_mean_bytes: over the same ticks [bytes]
        to_host_bytes: copied to the host [bytes]
        equal: whether parameters, buffers and optimizer state after the step are the plain step's, bit for bit
    """

    policy: str
    predicted_peak_bytes: int
    accounted_peak_bytes: int
    predicted_mean_bytes: int
    accounted_mean_bytes: int
    to_host_bytes: int
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A network under each policy.

    Attributes:
        network: name
        batch: samples
        pixels: height and width of an image
        device: "cpu" or "cuda"
        policies: in order
    """

    network: str
    batch: int
    pixels: int
    device: str
    policies: tuple[RealPolicy, ...]


def real_document(runs: Sequence[RealRun]) -> dict[str, object]:
    """All figures as plain data."""
    return {"runs": [asdict(run) for run in runs]}


def real_table(run: RealRun) -> Table:
    """Policies, one line each, sizes in MB of 1e6 bytes."""
    form = "" if run.device == "cuda" else ", narrow"
    table = frame_table(f"{run.network}{form}, batch {run.batch}, {run.pixels} × {run.pixels} pixels")
    table.add_column("policy", no_wrap=True)
    for title in ("peak", "accounted", "differs", "mean", "accounted", "to host"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for line in run.policies:
        differs = line.accounted_peak_bytes / line.predicted_peak_bytes - 1
        sizes = (
            line.predicted_peak_bytes,
            line.accounted_peak_bytes,
            line.predicted_mean_bytes,
            line.accounted_mean_bytes,
            line.to_host_bytes,
        )
        peak, accounted, *rest = (f"{nbytes / 1e6:.2f}" for nbytes in sizes)
        table.add_row(
            line.policy, peak, accounted, f"{100 * differs:+.2f} %", *rest, "equal" if line.equal else "DIFFERS"
        )
    return table


def real_lines() -> list[str]:
    """How the figures are counted."""
    return [
        "peak, mean: predicted from the plan, in MB of 1e6 bytes; accounted: seen at every storage while the step ran. "
        "Means are over the ticks at which autograd packs and unpacks.",
        "trimaran: at 70 % of the peak of none, or at the floor. equal: parameters, buffers and optimizer state after "
        "the step are those of a plain step, bit for bit.",
    ]
