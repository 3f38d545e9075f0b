"""The tables of a scaling study, at 80 columns."""

import dataclasses

import pytest

from trimaran.features.scaling import predict_scaling, why_above_linear
from trimaran.pricing.exchange.step import ScaledStep
from trimaran.pricing.types import Cost
from trimaran.report.scaling import ScalingRow, ScalingStudy


def row(seconds: float, *, devices: int = 1024, peak_gib: float = 79.9, fits: bool = True) -> ScalingRow:
    """A step of which compute is six tenths, and each other part a tenth."""
    rate = devices * 64 / seconds
    return ScalingRow(
        devices=devices,
        local_batch_size=64,
        sync="nccl",
        nodes=128,
        samples_per_s=rate,
        interval=(0.5 * rate, 1.5 * rate),
        limiter="compute" if fits else "memory",
        step_time_s=seconds,
        forward_s=0.2 * seconds,
        backward_s=0.4 * seconds,
        communication_s=0.2 * seconds,
        exposed_communication_s=0.1 * seconds,
        update_s=0.1 * seconds,
        overhead_s=0.1 * seconds,
        feeding_s=0.1 * seconds,
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
    return str(study(*rows))


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


def step_of(devices: int, local_batch: int, *, fp_bp_s: float, update_s: float, overhead_s: float) -> ScaledStep:
    seconds = fp_bp_s + update_s + overhead_s
    return ScaledStep(
        devices=devices,
        local_batch=local_batch,
        sync="kvstore",
        step=Cost(seconds, seconds, seconds, "example"),
        forward_s=fp_bp_s / 3,
        backward_s=2 * fp_bp_s / 3,
        communication_s=0.0,
        exposed_communication_s=0.0,
        update_s=update_s,
        overhead_s=overhead_s,
        feeding_s=0.0,
        limiter="compute",
    )


def test_a_speedup_above_the_number_of_devices_is_explained_by_its_largest_part() -> None:
    """0.84 s on each of two devices, 0.87 s on one: the update, 0.03 s in place of 0.06 s, is the largest gain."""
    alone = step_of(1, 32, fp_bp_s=0.80, update_s=0.06, overhead_s=0.01)
    owners = step_of(2, 32, fp_bp_s=0.79, update_s=0.03, overhead_s=0.02)
    said = why_above_linear(alone, owners)
    assert "tensors that it owns" in said
    assert "30.0 ms against 60.0 ms" in said
    quicker = step_of(2, 16, fp_bp_s=0.30, update_s=0.03, overhead_s=0.005)
    assert "of a sample take less with 16" in why_above_linear(alone, quicker)


@pytest.mark.parametrize("overhead_s", [0.02, 0.1])
def test_a_speedup_below_the_number_of_devices_is_not_explained(overhead_s: float) -> None:
    alone = step_of(1, 32, fp_bp_s=0.80, update_s=0.06, overhead_s=0.01)
    assert why_above_linear(alone, step_of(2, 32, fp_bp_s=0.80, update_s=0.06, overhead_s=overhead_s)) == ""


def test_the_reason_stands_under_its_table_and_in_the_document() -> None:
    found = dataclasses.replace(row(1.0, devices=2), speedup=2.01, why_above_linear="the update is shared")
    said = page(row(1.0, devices=1), found)
    assert "2.01^" in said
    assert "^ 2 GPUs: the update is shared" in said


def test_owners_that_share_the_update_of_a_large_network_are_more_than_twice_as_fast_as_one() -> None:
    """bert:large by one owner for each tensor: the one row above the number of devices says why."""
    found = predict_scaling(
        "bert:large",
        cluster="dgx2",
        devices=(1, 2, 4),
        local_batch=32,
        sync="kvstore",
        software="pytorch:2024",
        precision="fp32",
    )
    for one in found.rows:
        assert (one.speedup > one.devices * (1 + 1e-9)) == bool(one.why_above_linear)
    assert any("tensors that it owns" in one.why_above_linear for one in found.rows)
