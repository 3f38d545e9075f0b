"""Machines, their devices and links, and the devices that a job may have."""
