"""The tables of a scaling study, at 80 columns."""

import io

import pytest
from rich.console import Console

from trimaran.pricing import Cost
from trimaran.pricing.exchange.step import ScaledStep
from trimaran.report.scaling import ScalingRow, ScalingStudy, legend_lines, study_tables


def row(seconds: float, *, devices: int = 1024, peak_gib: float = 79.9, fits: bool = True) -> ScalingRow:
    """A step of which compute is six tenths, and each other part a tenth."""
    step = ScaledStep(
        devices=devices,
        local_batch=64,
        sync="nccl",
        step=Cost(seconds, seconds, seconds, "example"),
        forward_s=0.2 * seconds,
        backward_s=0.4 * seconds,
        communication_s=0.2 * seconds,
        exposed_communication_s=0.1 * seconds,
        update_s=0.1 * seconds,
        overhead_s=0.1 * seconds,
        feeding_s=0.1 * seconds,
        limiter="compute",
    )
    rate = devices * 64 / seconds
    return ScalingRow(
        step=step,
        nodes=128,
        samples_per_s=rate,
        low=0.5 * rate,
        high=1.5 * rate,
        speedup=0.9 * devices,
        efficiency=0.9,
        peak_bytes=int(peak_gib * 2**30),
        own_peak_bytes=0,
        card_bytes=0,
        fits=fits,
    )


def study(*rows: ScalingRow) -> ScalingStudy:
    return ScalingStudy(
        job="vgg416",
        cluster="dgx1-v100:128",
        device="V100",
        precision="fp32",
        software="PyTorch",
        mode="weak",
        unit="images",
        rows=rows,
        advice=(),
        notes=(),
        source="modelled",
    )


def page(*rows: ScalingRow) -> str:
    text = io.StringIO()
    out = Console(file=text, width=80, no_color=True, highlight=False)
    out.print(*study_tables(study(*rows)))
    out.print(*legend_lines(study(*rows)), sep="\n")
    return text.getvalue()


@pytest.mark.parametrize("seconds", [1e-3, 0.5, 9.99, 12.5, 99.97, 1000.0, 16_666.0, 4e4, 1e6, 9e6])
def test_no_figure_is_longer_than_its_column(seconds: float) -> None:
    """From milliseconds to months; 141 GiB, too much, and a step of a single device beside that of many."""
    found = page(row(seconds, peak_gib=141.2, fits=False), row(seconds / 1024, devices=1))
    assert max(map(len, found.splitlines())) <= 80
    assert "…" not in found


def test_long_steps_are_in_a_unit_that_the_title_names() -> None:
    """Six tenths of 12.5 s and of 10 h."""
    short, long, longest = page(row(0.5)), page(row(50.0)), page(row(36_000.0))
    assert "times in" not in short
    assert "ms of a step" in short
    assert ("times in s" in long, " 30.00 " in long) == (True, True)
    assert "Parts of a step" in long
    assert ("times in h" in longest, " 6.000 " in longest) == (True, True)
