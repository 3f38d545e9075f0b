"""Trimaran in a user's own training loop.

    session = trimaran.init(job, plan="plan.json")      # alone, or under torchrun, srun, Ray
    for batch in session.batches():
        loss = session.step(batch)
    accuracy = session.evaluate()
    session.save("model.safetensors")
    session.close()

Every rank runs the same script. What the plan says of this rank, the session does; the loop is the user's.
"""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from trimaran.costs.convergence.noise_scale import NoiseScale, as_scaled, estimate_noise_scale
from trimaran.errors import InputError
from trimaran.graph.capture import Capture, capture
from trimaran.job import Job
from trimaran.program import (
    Plan,
    Program,
    Strategy,
    check_against_graph,
    check_plan,
    lower,
    lower_evaluation,
    plan_program,
    read_plan,
)
from trimaran.runtime.executor import Executor
from trimaran.runtime.feed import Feed
from trimaran.runtime.verification import Verified, Verifier
from trimaran.runtime.world import World, join_world, leave_world
from trimaran.session.accuracy.following import job_as_planned
from trimaran.session.rank_training import held_to
from trimaran.session.virtual.report import MemoryReport
from trimaran.timeline import Timeline


class Session:
    """One rank's part in the training of a job; made by `trimaran.init`.

    Attributes:
        job: what is trained
        strategy: how
        program: one training step, all ranks
        rank: number of this process
        world_size: number of processes

    Args:
        job: what is trained
        strategy: how
        program: lowered from it
        captured: graph and model
        world: this process's
        owns_world: the process group was made by the session, and ends with it
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients in one step of so many; 0: in none
        verify: compare so many of the first steps with one process
    """

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        program: Program,
        captured: Capture,
        world: World,
        *,
        owns_world: bool,
        record: bool = True,
        gradient_noise: int = 0,
        verify: int = 0,
    ) -> None:
        self.job, self.strategy, self.program = job, strategy, program
        self.rank, self.world_size = world.rank, world.size
        self._owns_world = owns_world
        evaluation = lower_evaluation(captured.graph, strategy, batch=job.global_batch_size)
        self._executor = Executor(
            job, strategy, program, evaluation, world, capture=captured, record=record, gradient_noise=gradient_noise
        )
        self._memory = ExitStack()
        self._virtual = self._memory.enter_context(held_to(strategy))
        self._feed = self._executor.feed()
        self._fetched: tuple[Any, int] | None = None
        self._verify = verify
        self._verifier = Verifier(self._executor, job, strategy, world) if verify else None
        self._closed = False
        # A thread of gloo that outlives the interpreter would end the process with an error.
        atexit.register(self.close)

    def batches(self) -> Iterator[Any]:
        """This rank's share of each global batch, for the epochs of the job.

        Yields:
            A batch as the job's collate makes it; an empty tuple on a rank that reads no data.
        """
        while self._feed.epoch < self.job.epochs:
            for share in self._feed.shares():
                batch = self._executor.fetch(share)
                self._fetched = (batch, share.samples)
                yield batch

    @property
    def epoch(self) -> int:
        """Number of epochs that have been completed."""
        return self._feed.epoch

    @property
    def feed(self) -> Feed:
        """This rank's training data: its `state_dict` can be saved, and another run goes on from there."""
        return self._feed

    @property
    def memory(self) -> MemoryReport | None:
        """What the memory plan of this rank did so far; None where the strategy keeps everything."""
        return None if self._virtual is None else self._virtual.report()

    def step(self, batch: Any) -> float:
        """Forward, backward and update.

        Args:
            batch: from `batches`, or this rank's share of a full global batch of one's own

        Returns:
            Mean loss of the global batch, the same on every rank.

        Raises:
            InputError: the batch does not fit the plan, or the loss is no scalar
            ExecutionError: the loss is not a finite number, or another rank is gone; or a step that is verified is not
                that of one process
        """
        samples = None
        if self._fetched is not None and batch is self._fetched[0]:
            samples = self._fetched[1]
        self._fetched = None
        if self._verifier is None or self._executor.steps >= self._verify:
            return self._executor.step(batch, samples=samples)
        if samples is None:
            raise InputError("a step is verified on the job's own data: pass what session.batches() gave")
        # The batch that is under way counts as done.
        epoch, index = self._feed.epoch, self._feed.index - 1
        loss = self._verifier.step(batch, epoch=epoch, index=index, samples=samples)
        if self._executor.steps == self._verify:
            self._verifier.close()
        return loss

    @property
    def verified(self) -> Verified | None:
        """How far the first steps were from those of one process, on rank 0; None where nobody asked."""
        return None if self._verifier is None else self._verifier.verified

    def evaluate(self, dataset: Any = None) -> float:
        """The job's metric.

        Args:
            dataset: map-style data; None: the job's evaluation data

        Returns:
            Mean over the samples, the same on every rank.

        Raises:
            InputError: the job has no metric, or there is no data
        """
        if dataset is None:
            if self.job.evaluation_dataset is None:
                raise InputError(
                    f"the job {self.job.name!r} has no evaluation_dataset: give it one, or session.evaluate(dataset)"
                )
            dataset = self.job.evaluation_dataset()
        return self._executor.evaluate(dataset)

    def save(self, path: str | Path) -> None:
        """Write the plain `state_dict` of the user's model as safetensors; every rank calls it, rank 0 writes."""
        self._executor.save(path)

    def load(self, path: str | Path) -> None:
        """Read the plain `state_dict` of the user's model, under any strategy; every rank calls it."""
        self._executor.load(path)
        if self._verifier is not None:
            self._verifier.fresh = False

    def timeline(self) -> Timeline:
        """What happened in the last steps: on rank 0; on the others an empty timeline. Every rank calls it."""
        return self._executor.timeline()

    def gradient_noise(self) -> NoiseScale:
        """The gradient noise scale over the steps so far, the same on every rank; every rank calls it.

        Where the optimizer scales gradients, as Adam does, and a rank knows by what, it is that of scaled gradients.

        Raises:
            InputError: the session was not made with `gradient_noise`, or no step has been taken
        """
        observations = self._executor.observations()
        return estimate_noise_scale(as_scaled(observations) or observations)

    def close(self) -> None:
        """End the connections of the session; every rank calls it. At the exit of the script it is done anyway."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._memory.close()
        self._executor.close()
        if self._owns_world:
            leave_world()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()
        if error is None:
            self.close()


def init(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    record: bool = True,
    gradient_noise: int = 0,
    verify: int = 0,
) -> Session:
    """Take part in the training of a job.

    The process joins the world that it was started in (torchrun, Slurm, Ray Train), or is alone. It starts no other
    process.

    Args:
        job: what to train
        plan: a plan, or the file of one; None: plain data parallelism over all processes
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients, for `Session.gradient_noise`, in one step of so many
            (with 5 the run takes 1 to 3 % longer); 0: in none
        verify: run so many of the first steps as one process too, on rank 0, and compare

    Raises:
        InputError: the plan was made for another job, world or batch; or gradient noise cannot be seen under it
        EnvironmentProblem: the world cannot be joined
        CorruptDataError: the plan file is damaged
    """
    import torch.distributed as dist

    owns_world = not (dist.is_available() and dist.is_initialized())
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    if plan is not None:
        job = job_as_planned(plan, job)
    world = join_world()
    captured = capture(job)
    if plan is None:
        strategy = Strategy(dp=world.size)
        program = lower(captured.graph, strategy, batch=job.global_batch_size, clip=job.clip_norm is not None)
    else:
        check_plan(plan, graph_digest=captured.graph.digest, global_batch_size=job.global_batch_size)
        if plan.strategy.devices != world.size:
            raise InputError(
                f"the plan is for {plan.strategy.devices} processes, and this world has {world.size}: start "
                f"{plan.strategy.devices}, or plan again with --devices {world.size}",
                planned=plan.strategy.devices,
                world_size=world.size,
            )
        strategy, program = plan.strategy, plan_program(plan)
        check_against_graph(program, captured.graph, strategy, batch=job.global_batch_size)
    return Session(
        job,
        strategy,
        program,
        captured,
        world,
        owns_world=owns_world,
        record=record,
        gradient_noise=gradient_noise,
        verify=verify,
    )
