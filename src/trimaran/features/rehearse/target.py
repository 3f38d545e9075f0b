"""The target of a rehearsal: cluster, ranks, and what each device is to torch."""

import re
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.base.units import format_count, parse_memory
from trimaran.machine.find import find_machine
from trimaran.machine.types import Device, Machine
from trimaran.rehearsal.request import Gpu

USUAL = "dgx-h100"
"""Where no cluster is named."""

MOST_RANKS = 131_072

_TORCH_NAMES = {
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-80gb": "NVIDIA A100-SXM4-80GB",
    "a100-pcie-40gb": "NVIDIA A100-PCIE-40GB",
    "a100-pcie-80gb": "NVIDIA A100 80GB PCIe",
    "b200": "NVIDIA B200",
    "h100": "NVIDIA H100 80GB HBM3",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h100-nvl": "NVIDIA H100 NVL",
    "h20": "NVIDIA H20",
    "h200": "NVIDIA H200",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "t4": "Tesla T4",
    "v100-16gb": "Tesla V100-SXM2-16GB",
    "v100-32gb": "Tesla V100-SXM2-32GB",
}
"""What `torch.cuda.get_device_name` says; scripts look up the peak of their device by it. Others by their title."""

_CAPABILITIES = {
    "kepler": (3, 7),
    "maxwell": (5, 2),
    "pascal": (6, 1),
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 6),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (12, 0),
}
_CAPABILITIES_OF = {
    "a100-40gb": (8, 0),
    "a100-80gb": (8, 0),
    "a100-pcie-40gb": (8, 0),
    "a100-pcie-80gb": (8, 0),
    "a800-80gb": (8, 0),
    "a30": (8, 0),
    "p100": (6, 0),
    "p100-pcie": (6, 0),
    "p100-pcie-12gb": (6, 0),
    "k40": (3, 5),
    "titan-black": (3, 5),
    "b200": (10, 0),
    "gb200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
}
"""CUDA GPU compute capability, https://developer.nvidia.com/cuda-gpus; by architecture, and where a chip differs."""

_NAMED_NODES = re.compile(r":\s*[0-9]+\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a script is rehearsed for.

    Attributes:
        name: of the cluster, with its number of nodes
        machine: the cluster
        world: ranks in all
        per_node: ranks of a node
        gpu: what torch is told of each device
        notes: what was assumed
    """

    name: str
    machine: Machine
    world: int
    per_node: int
    gpu: Gpu
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        """The device of the catalog."""
        return self.machine.node.device


def find_target(
    cluster: str | None, *, world: int | None = None, per_node: int | None = None, memory: str | int | None = None
) -> Target:
    """The target of a rehearsal.

    Args:
        cluster: such as "dgx-h100:128"; without a number of nodes it has those that the ranks need; None: `USUAL`
        world: ranks in all; None: the devices of the cluster
        per_node: ranks of a node; None: a node's devices
        memory: of a device, such as "80GiB" or in bytes; None: the device's

    Raises:
        InputError: no such cluster, one without NVIDIA GPUs, more ranks than it has devices, or more memory than they
            have

    Example:
        >>> found = find_target("dgx-h100", world=1024)
        >>> found.name, found.machine.nodes, found.per_node, found.gpu.capability
        ('dgx-h100:128', 128, 8, (9, 0))
    """
    text = cluster or USUAL
    head, at, fabric = text.partition("@")
    machine = find_machine(text)
    device, most = machine.node.device, machine.node.devices
    _check_device(device, text)
    if world is not None and not 0 < world <= MOST_RANKS:
        raise InputError(f"--world {world}: expected 1 to {MOST_RANKS:,} ranks", code="rehearse.bad-world", world=world)
    here = min(most, world or most) if per_node is None else per_node
    if not 0 < here <= most:
        raise InputError(
            f"--per-node {here}: a node of {text} has {format_count(most, 'device')}",
            code="rehearse.more-than-node",
            per_node=here,
            devices=most,
        )
    is_counted = bool(_NAMED_NODES.search(head)) or machine.nodes > 1
    needed = 1 if world is None else -(-world // here)
    if is_counted and needed > machine.nodes:
        raise InputError(
            f"{world} ranks at {here} a node need {needed} nodes, and {text} has {machine.nodes}: take a larger "
            "cluster, or leave the number of nodes out",
            code="rehearse.more-ranks-than-devices",
            world=world,
            nodes=machine.nodes,
        )
    if not is_counted and needed > 1:
        text = f"{head}:{needed}{at}{fabric}"
        machine = find_machine(text)
    notes = () if cluster else (f"no --cluster was given: {text}, of which the step time is",)
    if machine.kinds:
        notes = (f"of {machine.kinds_text} all count as {machine.node.name}, the slowest",)
    return Target(
        name=text,
        machine=machine,
        world=world or here * machine.nodes,
        per_node=here,
        gpu=_gpu(device, _memory(device, memory, is_named=cluster is not None)),
        notes=notes,
    )


def _check_device(device: Device, text: str) -> None:
    if device.generation not in _CAPABILITIES:
        raise InputError(
            f"{text} has {device.title}: rehearsals are for NVIDIA GPUs, such as those of `trimaran catalog machines`: "
            f"{USUAL}",
            code="rehearse.not-nvidia",
            device=device.name,
        )


def _memory(device: Device, memory: str | int | None, *, is_named: bool) -> int:
    """What torch is told that the device has [bytes]; of a cluster that is named no more than there is."""
    if memory is None:
        return device.memory.reported_bytes
    nbytes = parse_memory(memory)
    # 80 GiB of a card of that size are what its driver reports of them.
    return min(device.checked_bytes(nbytes), device.memory.reported_bytes) if is_named else nbytes


def _gpu(device: Device, memory_bytes: int) -> Gpu:
    capability = _CAPABILITIES_OF.get(device.name, _CAPABILITIES[device.generation])
    return Gpu(
        name=_TORCH_NAMES.get(device.name, device.title),
        catalog_name=device.name,
        memory_bytes=memory_bytes,
        capability=capability,
        multiprocessors=device.multiprocessors or 1,
    )
