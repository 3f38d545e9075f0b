"""A study of data parallelism on a DGX-1 with V100 again: five networks, three batches, 1 to 8 devices, two exchanges.

Its figures are not public, its setting is: MXNet with copies between devices or NCCL, 32-bit, each device with its own
batch. What is public of the same machine and software is how NCCL compares with copies on eight devices; that stands
beside ours (`report/reproduction/exchange_figures`).
"""

from trimaran.errors import InputError
from trimaran.report.reproduction.exchange import ReproducedExchange, StudiedNetwork
from trimaran.report.reproduction.exchange_figures import PUBLISHED_RATIOS
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.scaling.requests import default_software
from trimaran.session.scaling.study import StudyRequest, study

STUDIED_NETWORKS = ("lenet", "alexnet", "googlenet", "inception_v3", "resnet50")
"""The study's networks; ResNet in the size that the public ratio is of."""

BATCHES = (16, 32, 64)
DEVICES = (1, 2, 4, 8)
_CLUSTER = "dgx1-v100"


def reproduce_dgx1(
    *,
    networks: str | None = None,
    batches: tuple[int, ...] = BATCHES,
    devices: tuple[int, ...] = DEVICES,
    progress: Progress = ignore_progress,
) -> ReproducedExchange:
    """Every network on every set-up, and the networks of which a ratio is public.

    Args:
        networks: some of them, such as "alexnet,resnet50"; None: all
        batches: of a device
        devices: sizes of the group
        progress: told what is being done

    Raises:
        InputError: a network that is in neither
    """
    known = tuple(dict.fromkeys((*STUDIED_NETWORKS, *PUBLISHED_RATIOS)))
    names = known if networks is None else tuple(part.strip() for part in networks.split(","))
    for name in names:
        if name not in known:
            raise InputError(f'"{name}" is not of this study; there are {", ".join(known)}', network=name)
    software = default_software(("p2p", "nccl"))
    found = []
    for place, name in enumerate(dict.fromkeys(names)):
        progress(name, place, len(names))
        request = StudyRequest(
            cluster=_CLUSTER, devices=devices, batches=batches, syncs=("p2p", "nccl"), software=software
        )
        result = study(name, request)
        found.append(StudiedNetwork(network=name, rows=result.rows, published=PUBLISHED_RATIOS.get(name)))
    return ReproducedExchange(
        cluster=_CLUSTER, software=f"{software.framework} of {software.year:.0f}", networks=tuple(found)
    )
