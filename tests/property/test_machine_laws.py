"""Laws of machines: no step is longer with more of anything, and no batch or sequence needs less memory when it grows.

Machines are drawn from the catalog and from the whole range that the reader of machine files accepts.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.property.test_transformer_physics import EQUAL, question, some_strategy

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes, parse_flops, parse_power, parse_rate, parse_seconds
from trimaran.graph.kernels.workload import Workload
from trimaran.machine.catalog import catalog
from trimaran.machine.machine_files import read_machine
from trimaran.machine.types import Device, Link, Machine
from trimaran.planner.analytical.candidates import AnalyticalModel
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.tracing.workloads import memory_of_step, workload
from trimaran.pricing.analytical.memory import largest_rank
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software

NETWORKS = (("vgg16", 32), ("resnet50", 4), ("bert:base", 4))
TIMES = (1.01, 1.1, 2.0, 10.0, 100.0)


def some(count: int, ordinary: int) -> list[object]:
    """Draws by tens, the first of them in the ordinary run."""
    return [
        pytest.param(range(first, first + 10), id=f"{first}", marks=[pytest.mark.sweep] if first >= ordinary else [])
        for first in range(0, count, 10)
    ]


def between(numbers: random.Random, low: float, high: float) -> float:
    return math.exp(numbers.uniform(math.log(low), math.log(high)))


def drawn_device(numbers: random.Random) -> Device:
    """One of the catalog, or with figures that a machine file may say."""
    device = numbers.choice(list(catalog().values()))
    if numbers.random() < 0.5:
        return device
    compute = {name: replace(peak, flops_per_s=between(numbers, 1e6, 1e18)) for name, peak in device.compute.items()}
    return replace(
        device,
        compute=compute,
        bandwidth=replace(device.bandwidth, bytes_per_s=between(numbers, 1e3, 1e15)),
        power_w=numbers.choice([0.0, between(numbers, 0.1, 1e6)]),
        multiprocessors=numbers.choice([0, numbers.randint(1, 10**6)]),
    )


def drawn_link(link: Link, numbers: random.Random) -> Link:
    raw = between(numbers, 1e3, 1e15)
    return replace(
        link,
        raw_bytes_per_s=raw,
        bytes_per_s=raw * numbers.uniform(0.3, 1.0),
        ring_bytes_per_s=numbers.choice([0.0, raw * numbers.uniform(0.3, 1.0)]),
        latency_s=between(numbers, 1e-9, 10.0),
    )


def with_links(machine: Machine, change: Callable[[Link], Link]) -> Machine:
    """The machine with each kind of link changed, the fabric and the node's own cards as well."""
    known = {edge.link.name: change(edge.link) for edge in machine.node.edges}
    node = replace(machine.node, edges=tuple(replace(edge, link=known[edge.link.name]) for edge in machine.node.edges))
    return replace(machine, node=node, fabric=machine.fabric and (machine.fabric[0], change(machine.fabric[1])))


def drawn_machine(machine: Machine, numbers: random.Random) -> Machine:
    machine = replace(machine, node=replace(machine.node, device=drawn_device(numbers)))
    return with_links(machine, lambda link: drawn_link(link, numbers)) if numbers.random() < 0.5 else machine


def one_peak(device: Device, times: float) -> Device:
    name = list(device.compute)[round(times * 100) % len(device.compute)]
    peak = device.compute[name]
    return replace(device, compute={**device.compute, name: replace(peak, flops_per_s=peak.flops_per_s * times)})


def all_peaks(device: Device, times: float) -> Device:
    compute = {name: replace(peak, flops_per_s=peak.flops_per_s * times) for name, peak in device.compute.items()}
    return replace(device, compute=compute)


DEVICES: Mapping[str, Callable[[Device, float], Device]] = {
    "one peak": one_peak,
    "peaks": all_peaks,
    "bandwidth": lambda device, times: replace(
        device, bandwidth=replace(device.bandwidth, bytes_per_s=device.bandwidth.bytes_per_s * times)
    ),
    "power": lambda device, times: replace(device, power_w=device.power_w * times),
    "launch": lambda device, times: replace(
        device, launch=replace(device.launch, seconds=device.launch.seconds / times)
    ),
    "memory": lambda device, times: replace(
        device, memory=replace(device.memory, reported_bytes=round(device.memory.reported_bytes * times))
    ),
}
"""What a device may have more of, and that device."""


def rates(link: Link, times: float) -> Link:
    return replace(
        link,
        raw_bytes_per_s=link.raw_bytes_per_s * times,
        bytes_per_s=link.bytes_per_s * times,
        ring_bytes_per_s=link.ring_bytes_per_s * times,
    )


MACHINES: Mapping[str, Callable[[Machine, float], Machine]] = {
    "links": lambda machine, times: with_links(machine, lambda link: rates(link, times)),
    "latency": lambda machine, times: with_links(machine, lambda link: replace(link, latency_s=link.latency_s / times)),
    "edges": lambda machine, times: replace(
        machine,
        node=replace(
            machine.node, edges=tuple(replace(edge, count=edge.count * math.ceil(times)) for edge in machine.node.edges)
        ),
    ),
    "cards": lambda machine, times: replace(
        machine, fabric=machine.fabric and (machine.fabric[0] * math.ceil(times), machine.fabric[1])
    ),
}
"""What a machine may have more of, and that machine."""


def works() -> list[Workload]:
    return [
        workload(name, batch=batch, precision=precision)
        for name, batch in NETWORKS
        for precision in ("fp32", "bf16", "fp16")
    ]


@pytest.mark.parametrize("draws", some(2000, 300))
def test_no_network_is_slower_on_a_device_with_more(draws: range) -> None:
    for number in draws:
        numbers = random.Random(f"device {number}")
        device = drawn_device(numbers)
        work = numbers.choice([each for each in works() if each.precision in device.compute])
        software = Software(
            framework=numbers.choice(["pytorch", "tensorflow", "mxnet"]), year=numbers.choice([2016.0, 2020.0, 2025.0])
        )
        before = estimate_step(work, device, software).seconds
        name, times = numbers.choice(list(DEVICES)), numbers.choice(TIMES)
        after = estimate_step(work, DEVICES[name](device, times), software).seconds
        assert after <= before * (1 + EQUAL), (number, name, times, device.name, work.name, work.precision)


@pytest.mark.parametrize("name", list(catalog()))
def test_no_network_is_slower_on_a_device_of_the_catalog_with_more(name: str) -> None:
    device = catalog()[name]
    work = workload("vgg16", batch=32, precision="bf16" if "bf16" in device.compute else "fp32")
    before = estimate_step(work, device, Software()).seconds
    for what, more in DEVICES.items():
        assert estimate_step(work, more(device, 4.0), Software()).seconds <= before * (1 + EQUAL), what


@pytest.mark.parametrize("draws", some(400, 60))
def test_no_decoder_is_slower_on_a_machine_with_more(draws: range) -> None:
    for number in draws:
        numbers, asked = random.Random(f"decoder {number}"), question(number, "machines")
        machine = drawn_machine(asked.machine(), numbers)
        precision = numbers.choice([name for name in machine.node.device.compute if name != "tf32"])
        problem = asked.problem(machine=machine, precision=precision)
        strategy = some_strategy(problem, numbers)
        if strategy is None:
            continue
        before = AnalyticalModel(problem=problem).price(strategy).step_time_s
        changes = [more(machine, numbers.choice(TIMES)) for more in MACHINES.values()] + [
            replace(machine, node=replace(machine.node, device=more(machine.node.device, numbers.choice(TIMES))))
            for more in DEVICES.values()
        ]
        for name, changed in zip((*MACHINES, *DEVICES), changes, strict=True):
            after = AnalyticalModel(problem=replace(problem, machine=changed)).price(strategy).step_time_s
            assert after <= before * (1 + EQUAL), (number, name, asked, strategy)


@pytest.mark.parametrize("draws", some(400, 20))
def test_no_data_parallel_step_is_longer_on_a_machine_with_more(draws: range) -> None:
    for number in draws:
        numbers = random.Random(f"exchange {number}")
        asked = question(number, "exchange")
        machine = drawn_machine(asked.machine(), numbers)
        devices = numbers.randint(2, machine.devices)
        network, batch = numbers.choice(NETWORKS)
        sync = numbers.choice(["nccl", "kvstore"])

        def step_s(machine: Machine, *, network=network, batch=batch, devices=devices, sync=sync) -> float:
            return DataParallelJob(reference=network, machine=machine).step(batch, devices, sync=sync).step.seconds

        before = step_s(machine)
        for name, more in MACHINES.items():
            times = numbers.choice(TIMES)
            assert step_s(more(machine, times)) <= before * (1 + EQUAL), (number, name, times, asked.cluster, devices)


@pytest.mark.parametrize("network", [name for name, _ in NETWORKS])
def test_a_larger_batch_needs_no_less_memory(network: str) -> None:
    batches = (1, 2, 3, 4, 7, 8, 31, 64)
    peaks = [memory_of_step(network, batch=batch, precision="fp32").peak(batch) for batch in batches]
    assert peaks == sorted(peaks)


def test_a_longer_sequence_or_larger_microbatch_needs_no_less_memory() -> None:
    for number in range(60):
        numbers, asked = random.Random(f"memory {number}"), question(number, "memory")
        strategy = some_strategy(asked.problem(), numbers)
        if strategy is None:
            continue
        small = largest_rank(asked.shape, strategy).peak
        wider = replace(strategy, microbatch=strategy.microbatch * 2)
        assert largest_rank(asked.shape, wider).peak >= small, (asked, strategy)
        longer = replace(asked.shape, sequence=asked.shape.sequence * 2)
        assert largest_rank(longer, strategy).peak >= small, (asked, strategy)


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_flops, ["1e40 TFLOP/s", "1e-20 TFLOP/s"]),
        (parse_rate, ["1e-9 B/s", "1e20 GB/s"]),
        (parse_power, ["1e-9 W", "1e9 kW"]),
        (parse_seconds, ["1e11 s"]),
        (parse_bytes, ["1e9 PiB"]),
    ],
    ids=["arithmetic", "rate", "power", "duration", "size"],
)
def test_a_figure_outside_its_bounds_is_refused(parse: Callable[[str], float], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InputError) as raised:
            parse(text)
        assert raised.value.code == "quantity.out-of-bounds"


FILE = """
[[nodes]]
name = "box"
device = "card"
devices = 2
links = ["gpu0 gpu1 wire", "cpu0 gpu0-1 pcie3x16"]
source = "s"
[[devices]]
name = "card"
memory = "{memory}"
bandwidth = "448 GB/s"
compute = {{ fp32 = "19.2 TFLOP/s" }}
source = "s"
[[links]]
name = "wire"
kind = "nvlink"
raw = "14 GB/s"
sustained = "12 GB/s"
ring = "{ring}"
latency = "{latency}"
source = "s"
"""


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("devices[0].memory", {"memory": "500 MiB"}),
        ("links[0].ring", {"ring": "15 GB/s"}),
        ("links[0].latency", {"latency": "1e9 s"}),
    ],
)
def test_a_figure_that_no_machine_has_is_refused_by_its_place(key: str, changed: dict[str, str]) -> None:
    usual = {"memory": "16 GiB", "ring": "11 GB/s", "latency": "9 us"}
    read_machine(FILE.format(**usual), file="rack.toml")
    with pytest.raises(InputError, match="rack.toml: " + key.replace("[", r"\[").replace("]", r"\]")):
        read_machine(FILE.format(**usual | changed), file="rack.toml")
