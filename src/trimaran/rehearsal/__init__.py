"""Rehearsals: a training script that was written for many GPUs, run as any of its ranks on a host without one.

    script ──a process a rank──▶ simulated device, tensors without data, collectives without peers ──▶ Record
    Records ─┬─ agreement ─▶ do the ranks ask for the same collectives, or hang?
             ├─ memory ────▶ what is allocated and reserved, by what, and which line runs out first
             └─ time ──────▶ the step on the target cluster

`record.py` says what is written down. The files that end up in a rank's process: `worker.py` and what it imports.
"""
