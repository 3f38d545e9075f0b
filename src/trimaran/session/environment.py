"""On what a result was found: kept with it."""

import platform

from trimaran.cluster import Cluster


def cluster_environment(cluster: Cluster) -> dict[str, str]:
    """Versions and devices, to be kept with what was found on them.

    Args:
        cluster: the devices, and what their links are held to
    """
    import torch

    from trimaran.measure.costs import name_link

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "devices": f"{cluster.size} × {cluster.devices[0].name}",
    } | ({} if cluster.link is None else {"link": name_link(cluster.link)})
