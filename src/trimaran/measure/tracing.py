"""Steps of a job, traced as the runtime runs them: what memory plans are made from.

One process trains the whole network with a microbatch of each size; its third step is recorded. By then the optimizer
has its state, and caches are warm. Operations are timed one by one; what lies between them is left out, so that the
time that a plan adds is known better than the time of the step.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat

from trimaran.costs.memory_costs import measured_costs
from trimaran.costs.traced import TracedStep
from trimaran.job import Job
from trimaran.program import Strategy, lower, lower_evaluation
from trimaran.runtime.ranks import launch
from trimaran.runtime.world import World

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
    traces: dict[int, TracedStep] = {}
    for number, size in enumerate(sizes):
        progress("tracing steps", number, len(sizes))
        with tempfile.TemporaryDirectory(prefix="trimaran-trace-") as logs:
            traces[size] = launch(trace_on_rank, (make_job, size), ranks=1, log_dir=logs)[0]
    return traces


def trace_on_rank(world: World, make_job: Callable[[], Job], size: int) -> TracedStep:
    """Trace one size.

    Args:
        world: of one rank
        make_job: makes the job
        size: samples of the microbatch
    """
    from trimaran.graph.capture import capture
    from trimaran.graph.trace.record import Recorder
    from trimaran.measure.copies import copy_rates
    from trimaran.runtime.executor import Executor

    job = replace(make_job(), global_batch_size=size)
    captured = capture(job)
    strategy = Strategy()
    program = lower(captured.graph, strategy, batch=size, clip=job.clip_norm is not None)
    evaluation = lower_evaluation(captured.graph, strategy, batch=size)
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
    rates = copy_rates(world.device)
    trace = recorder.recording.trace
    costs = measured_costs(
        trace,
        to_host_bytes_per_s=rates.to_host_bytes_per_s,
        to_device_bytes_per_s=rates.to_device_bytes_per_s,
        copy_latency_s=rates.latency_s,
    )
    return TracedStep(trace=trace, costs=costs)
