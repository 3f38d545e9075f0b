"""Strategies timed each in processes of its own."""

import tempfile
from collections.abc import Sequence

from benchmarks.grid.ranks import Entry, time_apart

from trimaran.emulation.links import launch_on
from trimaran.jobs.resolve import JobSource
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.requests import PlanRequest
from trimaran.program.lowering.lower import lower_evaluation


def entry_of(planned: Simulated) -> Entry:
    """What the ranks need of a plan."""
    strategy, batch = planned.chosen.strategy, planned.job.global_batch_size
    return strategy, planned.chosen.program, lower_evaluation(planned.graph, strategy, batch=batch)


def times_apart(source: JobSource, request: PlanRequest, entries: Sequence[Entry], blocks: int) -> list[list[float]]:
    """Mean step time of each block of each strategy, as rank 0 saw it [s].

    Args:
        source: of the job
        request: its link
        entries: what to run
        blocks: of each
    """
    with tempfile.TemporaryDirectory() as folder:
        return [
            launch_on(request.link, time_apart, (source, entry, blocks), ranks=entry[0].devices, log_dir=folder)[0]
            for entry in entries
        ]
