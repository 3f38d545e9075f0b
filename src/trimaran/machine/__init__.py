"""Machines, their devices and links, and the devices that a job may have."""

from trimaran.machine.types import Allocation, Device, Link, Machine

__all__ = ["Allocation", "Device", "Link", "Machine"]
