"""What a program would do: instructions, costs and contention in, a timeline out."""

from trimaran.simulator.engine import simulate

__all__ = ["simulate"]
