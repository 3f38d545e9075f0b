"""This host as a machine of one node.

Without a GPU, a device is one process with one thread: one for each core that this process may use, each with
its share of the memory. With GPUs, a device is a GPU. Figures that need a run (rates, FLOP/s) are left out;
`measure` finds them.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.system import (
    allowed_cores,
    control_groups,
    count_in,
    memory_bytes,
    memory_left,
    memory_limit,
    needs_linux,
)
from trimaran.base.units import format_count, whole_number
from trimaran.machine.types import OFFLOAD_SHARE, Device, Machine, Memory, Node

_SYSTEM = Path("/")

MEASURED = "measured: this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The processor side of this machine.

    Attributes:
        name: as the system calls it
        cores: cores that this process may use
        memory_bytes: memory that this process may use [bytes]
    """

    name: str
    cores: int
    memory_bytes: int


def detect_machine(devices: int | None = None) -> Machine:
    """This host, with as many devices as are wanted.

    Args:
        devices: how many; None: all GPUs, or where there is none, one device a core. More CPU devices than cores are
            allowed: they then share cores, and what is measured says so. More GPUs than there are are not.

    Raises:
        InputError: no device wanted, or more GPUs than there are
    """
    if devices is not None and devices < 1:
        raise InputError(
            f"a cluster needs at least one device, got {devices}", code="cluster.no-device", devices=devices
        )
    gpus = detect_gpus()
    if devices is not None and gpus and devices > len(gpus):
        raise InputError(
            f"{devices} devices were asked for, this machine has {format_count(len(gpus), 'GPU')} ({gpus[0].title})",
            devices=devices,
            available=len(gpus),
        )
    processor = detect_processor()
    return measured_machine(gpus[:devices] or cpu_devices(processor, devices or processor.cores), processor)


def measured_machine(devices: Sequence[Device], processor: Processor) -> Machine:
    """A host with some devices, whose transfers are measured.

    Args:
        devices: at least one
        processor: of the host
    """
    first = devices[0]
    node = Node(
        name="this machine",
        title="this machine",
        device=first,
        devices=len(devices),
        unlike={number: device for number, device in enumerate(devices) if device != first},
        measured=True,
        cpu_cores=processor.cores,
        host_memory_bytes=processor.memory_bytes,
        source=MEASURED,
    )
    return Machine(node=node)


def detect_processor(root: Path = _SYSTEM) -> Processor:
    """The processor of this machine: its name, and the cores and memory that this process may use.

    Args:
        root: of the file system whose `proc` and `sys` are read
    """
    return Processor(name=_processor_name(root), cores=_usable_cores(root), memory_bytes=_usable_memory(root))


def cpu_devices(processor: Processor, count: int) -> tuple[Device, ...]:
    """A processor as devices of one thread each.

    Args:
        processor: what is shared
        count: number of devices

    Returns:
        `count` equal devices, each with its share of the memory.

    Example:
        >>> processor = Processor(name="example", cores=4, memory_bytes=8_000)
        >>> [device.usable_bytes for device in cpu_devices(processor, 2)]
        [4000, 4000]
    """
    device = _device(f"1 thread of {processor.name}", processor.memory_bytes // count, form="cpu")
    return (device,) * count


def detect_gpus() -> tuple[Device, ...]:
    """The CUDA devices that torch can use here; none on a CPU-only build. Imports torch."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(_device(properties.name, properties.total_memory) for properties in found)


_FILES_OF_GPUS = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "kfd", "dxg")
"""In /dev, of drivers on servers, on Jetson boards, of AMD, and of GPUs of a Windows host."""


def lacks_gpus(root: Path = _SYSTEM) -> bool:
    """Whether this machine surely has no GPU, without an import of torch: on Linux, no driver has a file in `/dev`.

    Args:
        root: of the file system whose `dev` is read

    Returns:
        False where it may have one.
    """
    return sys.platform == "linux" and not any(any((root / "dev").glob(name)) for name in _FILES_OF_GPUS)


def _device(name: str, nbytes: int, *, form: str = "") -> Device:
    memory = Memory(nbytes=nbytes, reported_bytes=nbytes, context_bytes=0, source=MEASURED)
    return Device(name=name, title=name, memory=memory, form=form, source=MEASURED)


def _processor_name(root: Path) -> str:
    text = _read(root / "proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "processor"


def _usable_cores(root: Path) -> int:
    cores = allowed_cores()
    for group in control_groups("cpu", root):
        # It may be given less time than its cores have: "<quota> <period>" in microseconds, or "max".
        files = ("cpu.max",) if (group / "cpu.max").exists() else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, _, period = " ".join(_read(group / name).strip() for name in files).partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _usable_memory(root: Path) -> int:
    limits = [limit for group in control_groups("memory", root) if (limit := memory_limit(group)) is not None]
    # Not what is free now: the same machine gives the same plan.
    limits.append(1024 * (count_in(root / "proc/meminfo", "MemTotal") or 0))
    return min(filter(None, limits), default=0) or memory_bytes()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# ---------------------------------------------------------------------------------------------------------------------
# Memory of this host that processes can still have


def free_memory_bytes() -> int:
    """Memory that this process can have without pushing others out [bytes].

    It is the least of the free memory of the machine and what the limits of the control groups around the process
    leave.

    Raises:
        EnvironmentProblem: this is not Linux

    Source:
        Linux, Documentation/filesystems/proc.rst, MemAvailable.
    """
    needs_linux("the free memory of this machine")
    available = count_in(Path("/proc/meminfo"), "MemAvailable")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if available is None else available * 1024
    return min([free, *(left for left in map(memory_left, control_groups("memory")) if left is not None)])


def spare_host_bytes(processes: int | None = None) -> int:
    """Host memory that this process may take: its part of `OFFLOAD_SHARE` of what is free [bytes].

    Args:
        processes: of this machine that take as much; None: as `LOCAL_WORLD_SIZE` says, or this one alone
    """
    if processes is None:
        processes = whole_number(os.environ.get("LOCAL_WORLD_SIZE", "1")) or 1
    return int(free_memory_bytes() * OFFLOAD_SHARE) // max(1, processes)
