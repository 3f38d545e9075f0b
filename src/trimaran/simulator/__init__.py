"""Simulation of programs: instructions, costs and contention in, a timeline out."""

from trimaran.simulator.engine import simulate

__all__ = ["simulate"]
