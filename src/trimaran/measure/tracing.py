"""Steps of a job, traced as the runtime runs them: what memory plans are made from.

One process trains the whole network with a microbatch of each size in turn; the third step of each is recorded. By then
the optimizer has its state, and caches are warm. Operations are timed one by one; what lies between them is left out,
so that the time that a plan adds is known better than the time of the step.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

from trimaran.costs.memory_costs import measured_costs
from trimaran.costs.traced import TracedStep
from trimaran.graph.trace.types import StepTrace
from trimaran.job import Job
from trimaran.program import Strategy, lower, lower_evaluation
from trimaran.runtime.ranks import Event, launch
from trimaran.runtime.world import World

if TYPE_CHECKING:
    from trimaran.graph.capture import Capture

Progress = Callable[[str, int, int], None]

_WARM_UP_STEPS = 2


def trace_steps(make_job: Callable[[], Job], sizes: Sequence[int], *, progress: Progress) -> dict[int, TracedStep]:
    """Trace a job's step at some sizes of a microbatch.

    Args:
        make_job: makes the job; can be sent to another process
        sizes: of microbatches [samples]
        progress: told which size is traced

    Raises:
        ExecutionError: the process failed
    """

    def on_event(rank: int, event: Event) -> None:
        progress("tracing steps", int(str(event["traced"])), len(sizes))

    progress("tracing steps", 0, len(sizes))
    with tempfile.TemporaryDirectory(prefix="trimaran-trace-") as logs:
        found: dict[int, TracedStep] = launch(
            trace_on_rank, (make_job, tuple(sizes)), ranks=1, log_dir=logs, on_event=on_event
        )[0]
    return found


def trace_on_rank(world: World, make_job: Callable[[], Job], sizes: Sequence[int]) -> dict[int, TracedStep]:
    """Trace each size, on one rank.

    Args:
        world: of one rank
        make_job: makes the job
        sizes: of microbatches [samples]
    """
    from trimaran.graph.capture import capture
    from trimaran.measure.copies import copy_rates

    job = make_job()
    captured = capture(job)
    rates = copy_rates(world.device)
    traces: dict[int, TracedStep] = {}
    for size in sizes:
        trace = _trace(world, replace(job, global_batch_size=size), captured)
        costs = measured_costs(
            trace,
            to_host_bytes_per_s=rates.to_host_bytes_per_s,
            to_device_bytes_per_s=rates.to_device_bytes_per_s,
            copy_latency_s=rates.latency_s,
        )
        traces[size] = TracedStep(trace=trace, costs=costs)
        world.report({"traced": len(traces)})
    return traces


def _trace(world: World, job: Job, captured: "Capture") -> StepTrace:
    """The third step of a job on one device."""
    from trimaran.graph.trace.record import Recorder
    from trimaran.runtime.executor import Executor

    strategy, batch = Strategy(), job.global_batch_size
    program = lower(captured.graph, strategy, batch=batch, clip=job.clip_norm is not None)
    evaluation = lower_evaluation(captured.graph, strategy, batch=batch)
    executor = Executor(job, strategy, program, evaluation, world, capture=captured, record=False)
    feed = executor.feed()
    shares = chain.from_iterable(feed.shares() for _ in repeat(None))
    for share in islice(shares, _WARM_UP_STEPS):
        executor.step(share)
    recorder = Recorder(captured.model)
    share = next(shares)  # what a loader does on the host is no part of the step
    with recorder:
        executor.step(share)
    executor.close()
    return recorder.recording.trace
