"""Devices, links and clusters."""

from trimaran.machine.types import Cluster, Device, Link

__all__ = ["Cluster", "Device", "Link"]
