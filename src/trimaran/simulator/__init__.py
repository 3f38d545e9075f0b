"""Simulation of programs: instructions, costs and contention in, a timeline out."""
