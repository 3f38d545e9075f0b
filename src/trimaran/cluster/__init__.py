"""Devices, links and clusters."""

from trimaran.cluster.types import Cluster, Device, Link

__all__ = ["Cluster", "Device", "Link"]
