import pytest
from tests.raising import raises

from trimaran.machine.catalog import catalog, entries_of, find_device
from trimaran.machine.types import Device

GIB = 2**30


def test_the_devices_people_ask_for_are_there() -> None:
    asked = {
        "titan-x": "titan-x",
        "v100": "v100-16gb",
        "v100-32gb": "v100-32gb",
        "a100": "a100-80gb",
        "a100-40gb": "a100-40gb",
        "h100": "h100",
        "h200": "h200",
        "rtx-3090": "rtx-3090",
        "rtx-4090": "rtx-4090",
        "p100": "p100",
        "k80": "k80",
        "t4": "t4",
        "gh200": "gh200",
        "gb200": "gb200",
    }
    assert {name: find_device(name).name for name in asked} == asked


def test_names_are_read_as_people_write_them() -> None:
    assert find_device(" TITAN_X ").name == find_device("Titan X").name == find_device("titanx").name == "titan-x"
    assert find_device("RTX 2080 Ti").name == find_device("rtx2080ti").name == "rtx-2080-ti"


def test_no_two_devices_share_a_name() -> None:
    names = [name for entry in catalog().values() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


def test_a_near_miss_is_suggested_and_where_the_rest_is_listed() -> None:
    with raises("device.unknown", match='"titan-y".*"titan-x".*catalog machines --devices') as caught:
        find_device("titan-y")
    assert caught.value.figures["device"] == "titan-y"


def test_every_table_is_a_device() -> None:
    assert [entry.text("name") for entry in entries_of("devices")] == list(catalog())


@pytest.mark.parametrize("entry", catalog().values(), ids=lambda entry: entry.name)
def test_every_group_of_figures_has_a_source(entry: Device) -> None:
    groups = [entry, entry.memory, entry.bandwidth, entry.copies, entry.launch, *entry.compute.values()]
    assert all(group.source.strip() for group in groups)


@pytest.mark.parametrize("entry", catalog().values(), ids=lambda entry: entry.name)
def test_figures_are_in_range(entry: Device) -> None:
    assert 0 < entry.memory.context_bytes < entry.memory.reported_bytes <= entry.memory.nbytes
    assert all(0 < group.fraction <= 1 for group in (entry.bandwidth, *entry.compute.values()))
    assert 1e9 < entry.copies.to_host_bytes_per_s < entry.sustained_bytes_per_s
    assert 1e9 < entry.copies.to_device_bytes_per_s < entry.sustained_bytes_per_s
    assert "fp32" in entry.compute
    assert 2013 <= entry.year <= 2026
    assert 6 <= entry.multiprocessors <= 304
    assert 2**20 <= entry.cache_bytes <= 2**29
    assert 60 <= entry.power_w <= 1500
    assert set(entry.tensor_precisions) <= set(entry.compute)


@pytest.mark.parametrize(
    "entry",
    [entry for entry in catalog().values() if entry.architecture not in ("cdna4", "cpu")],
    ids=lambda entry: entry.name,
)
def test_peaks_are_of_a_clock_that_a_device_can_have(entry: Device) -> None:
    """float32 peak = multiprocessors × lanes × 2 × clock, with 64, 128 or 192 lanes: 0.7 to 2.7 GHz for one of them."""
    lanes = {"kepler": 192, "maxwell": 128, "pascal": 128, "ampere": 128, "ada": 128, "hopper": 128, "blackwell": 128}
    each = 64 if entry.name.startswith(("p100", "a100", "a800", "a30")) else lanes.get(entry.generation, 64)
    each = 256 if entry.architecture == "cdna3" else each
    clock_hz = entry.compute["fp32"].flops_per_s / (entry.multiprocessors * each * 2)
    assert 0.7e9 < clock_hz < 2.7e9


def test_geforce_since_2018_copies_by_way_of_the_host() -> None:
    without = {entry.name for entry in catalog().values() if not entry.peer_access}
    assert {"rtx-2080-ti", "rtx-3090", "rtx-4090"} <= without
    assert not {"gtx-1080-ti", "titan-x", "rtx-a6000", "a100-pcie-80gb", "l40s", "t4"} & without


def _sustained(device: Device, precision: str) -> float:
    peak = device.compute[precision]
    return peak.flops_per_s * peak.fraction


def test_the_constants_that_were_fixed_before_the_comparison() -> None:
    """Titan X: 6.1 TFLOP/s × 0.7 and 12.8 GB/s.

    H200: 67 × 0.7, 495 × 0.55 and 989 × 0.55 TFLOP/s, 4.8 TB/s × 0.75, and 53 GB/s.
    """
    titan, h200 = find_device("titan-x"), find_device("h200")
    assert _sustained(titan, "fp32") == pytest.approx(4.27e12)
    assert (titan.copies.to_host_bytes_per_s, titan.copies.to_device_bytes_per_s) == (12.8e9, 12.8e9)
    assert _sustained(h200, "fp32") == pytest.approx(46.9e12)
    assert _sustained(h200, "tf32") == pytest.approx(272.25e12)
    assert _sustained(h200, "bf16") == pytest.approx(543.95e12)
    assert h200.sustained_bytes_per_s == pytest.approx(3.6e12)
    assert (h200.copies.to_host_bytes_per_s, h200.copies.to_device_bytes_per_s) == (53e9, 53e9)


def test_a_card_of_12_gib_leaves_11_6() -> None:
    """12 GiB less the 0.4 GiB of a context, on the card that has as much and on a larger one."""
    for name in ("titan-x", "h200"):
        assert find_device(name).budget_bytes(12 * GIB) / GIB == pytest.approx(11.6, abs=1e-6)


def test_a_budget_of_the_whole_card_is_what_is_usable() -> None:
    """The driver of an H200 reports less than what is on the card; that is not a job's either."""
    device = find_device("h200")
    assert device.budget_bytes(device.memory.nbytes) == device.usable_bytes


def test_more_than_the_card_has_is_refused() -> None:
    with raises("device.budget-exceeds-memory", match=r"12\.0 GiB.*16\.0 GiB"):
        find_device("titan-x").budget_bytes(16 * GIB)


def test_less_than_the_context_is_refused() -> None:
    with raises("device.budget-below-context"):
        find_device("titan-x").budget_bytes(GIB // 4)


def test_a_dtype_that_a_device_lacks_is_told_with_those_it_has() -> None:
    with raises("device.precision-unsupported", match="fp32", precision="tf32"):
        find_device("v100").check_computes("tf32")
