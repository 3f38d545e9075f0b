"""A node from a file that some program wrote, whichever of the known ones it was."""

from pathlib import Path

from trimaran.cluster.catalog import find_device
from trimaran.cluster.links import find_link
from trimaran.cluster.machines import Node
from trimaran.cluster.nccl_xml import node_from_xml
from trimaran.cluster.smi_matrix import node_from_matrix
from trimaran.errors import InputError


def import_node(path: Path, device: str | None = None, network: str | None = None) -> Node:
    """The node of a file: NCCL's topology, or what `nvidia-smi topo -m` printed.

    Args:
        path: of the file
        device: name of the device that the node has; needed where the file does not say it
        network: kind of the cards for the network, where the file does not say it

    Raises:
        InputError: the file cannot be read, or a place in it is wrong, or the device must be named
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", file=str(path)) from None
    name = path.stem
    known = None if device is None else find_device(device)
    if text.lstrip().startswith("<"):
        return node_from_xml(text, file=str(path), device=known, name=name)
    if known is None:
        raise InputError(
            f"{path}: what nvidia-smi prints does not say which device it is: name it with --device",
            code="smi-matrix.needs-device",
            file=str(path),
        )
    return node_from_matrix(text, known, file=str(path), name=name, network=find_link(network) if network else None)
