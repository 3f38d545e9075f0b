"""The node that this machine is, as `nvidia-smi` tells it."""

import subprocess

from trimaran.cluster.detect import detect_processor
from trimaran.cluster.device_matching import match_device
from trimaran.cluster.machines import Node
from trimaran.cluster.smi_matrix import node_from_matrix
from trimaran.errors import EnvironmentProblem

_LIMIT_S = 30
"""A driver that does not answer in this time will not."""


def detect_node() -> Node:
    """The node of this machine: its devices by name, their links by the matrix of `nvidia-smi topo -m`.

    Raises:
        EnvironmentProblem: there is no `nvidia-smi`, it fails, or it names a device that the catalog has not
    """
    names = [
        line.strip() for line in _printed("--query-gpu=name", "--format=csv,noheader").splitlines() if line.strip()
    ]
    found = match_device(names[0]) if names else None
    if found is None:
        raise EnvironmentProblem(
            f'nvidia-smi names "{names[0] if names else "no device"}", which the catalog has not: import its matrix '
            "with `trimaran clusters --import FILE --device NAME`",
            code="nvidia-smi.unknown-device",
        )
    processor = detect_processor()
    return node_from_matrix(
        _printed("topo", "-m"),
        found.device,
        file="nvidia-smi topo -m",
        name="here",
        cores=processor.cores,
        host_memory_bytes=processor.memory_bytes,
    )


def _printed(*arguments: str) -> str:
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            f"nvidia-smi {' '.join(arguments)} cannot be run here: {error}", code="nvidia-smi.cannot-run"
        ) from None
    return done.stdout
