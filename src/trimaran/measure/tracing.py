"""Steps of a job, traced as the runtime runs them: what memory plans are made from.

One process trains the whole network with a microbatch of each size in turn; the third step of each is recorded. By then
the optimizer has its state, and caches are warm. Operations are timed one by one; the time between them is left out,
so that the time that a plan adds is known better than the time of the step. On a CPU, the steps after it show what
hooks take.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from trimaran.base.job import Job
from trimaran.base.progress import Progress
from trimaran.launch.supervise import Event, launch
from trimaran.launch.world import World
from trimaran.pricing.offload_costs import HookCosts, TracedStep, measured_costs
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.memory import CODECS
from trimaran.program.strategy import Strategy

if TYPE_CHECKING:
    from trimaran.graph.capture.capture import Capture
    from trimaran.graph.trace.calls import Recording
    from trimaran.runtime.data.batch_shares import Share
    from trimaran.runtime.executor import Executor


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
    found: dict[int, TracedStep] = launch(trace_on_rank, (make_job, tuple(sizes)), ranks=1, on_event=on_event)[0]
    return found


def trace_on_rank(world: World, make_job: Callable[[], Job], sizes: Sequence[int]) -> dict[int, TracedStep]:
    """Trace each size, on one rank.

    Args:
        world: of one rank
        make_job: makes the job
        sizes: of microbatches [samples]
    """
    from trimaran.graph.capture.capture import capture
    from trimaran.measure.offload import coding_rate, copy_rates

    job = make_job()
    captured = capture(job)
    rates = copy_rates(world.device)
    coding = {name: coding_rate(name) for name in CODECS} if world.device == "cpu" else {}
    traces: dict[int, TracedStep] = {}
    for size in sizes:
        recording, hooks = _trace(world, replace(job, global_batch_size=size), captured)
        costs = measured_costs(
            recording.trace,
            to_host_bytes_per_s=rates.to_host_bytes_per_s,
            to_device_bytes_per_s=rates.to_device_bytes_per_s,
            copy_latency_s=rates.latency_s,
        )
        traces[size] = TracedStep(trace=recording.trace, costs=costs, hooks=hooks, coding_bytes_per_s=coding)
        world.report({"traced": len(traces)})
    return traces


def _trace(world: World, job: Job, captured: "Capture") -> "tuple[Recording, HookCosts]":
    """The third step of a job on one device, and what hooks add to those behind it."""
    from trimaran.graph.trace.record import Recorder
    from trimaran.measure.offload import measure_hooks
    from trimaran.measure.rounds import full_shares
    from trimaran.runtime.executor import Executor

    strategy, batch = Strategy(), job.global_batch_size
    program = lower(captured.graph, strategy, batch=batch, clip=job.clip_norm is not None)
    evaluation = lower_evaluation(captured.graph, strategy, batch=batch)
    executor = Executor(job, strategy, program, evaluation, world, capture=captured, record=False, on_nan="skip")
    shares = full_shares(executor.feed())
    for share in islice(shares, _WARM_UP_STEPS):
        executor.step(share)
    recorder = Recorder(captured.model)
    share = next(shares)  # what a loader does on the host is no part of the step
    with recorder:
        executor.step(share)
    recording = recorder.recording
    hooks = HookCosts()
    if world.device == "cpu":
        hooks = measure_hooks(lambda: _step(executor, shares), recording)
    executor.close()
    return recording, hooks


def _step(executor: "Executor", shares: "Iterator[Share]") -> None:
    executor.step(next(shares))
