"""Run a script for many GPUs without one: does it fit, do its ranks agree, how long is a step?"""
