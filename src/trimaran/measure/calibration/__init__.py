"""Measured rates of devices and links, and the noise of repeated runs."""
