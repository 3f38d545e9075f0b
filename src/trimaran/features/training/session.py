"""Trimaran in a user's training loop, and in that of `trimaran train`.

    session = trimaran.init(job, plan="plan.json")      # alone, or under torchrun, srun, Ray
    for batch in session.batches():
        loss = session.step(batch)
    accuracy = session.evaluate()
    session.save("model.safetensors")
    session.close()

Every rank runs the same script. What the plan says of this rank, the session does; the loop is the user's. A script
may have several sessions, such as the two of a GAN, which it closes in any order.
"""

import atexit
import itertools
import logging
import math
import multiprocessing.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from torch import Tensor, empty, is_grad_enabled, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from trimaran.base.arguments import checked_classes
from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.files import file_name, given
from trimaran.base.job import Job
from trimaran.base.signals import exit_code, say, signal_name
from trimaran.base.system import needs_linux
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_some
from trimaran.base.user_errors import refuse_training
from trimaran.checkpoint_files.commit import Store
from trimaran.checkpoint_files.pieces import Entry, fill_from
from trimaran.checkpoint_files.plain import decode, encode
from trimaran.convergence.noise_scale import NoiseScale, as_scaled, estimate_noise_scale
from trimaran.features.training.callbacks import Callbacks, is_nothing, is_power, not_replaceable
from trimaran.features.training.kept import KeptByUser
from trimaran.features.training.run_record import RUNS
from trimaran.features.training.trackers import LOSS, MetricLog, check_tracker, name_of_metric
from trimaran.graph.behaviour import Behaviour, weighed
from trimaran.graph.capture.capture import Capture, capture_and_look
from trimaran.graph.capture.constants import Constants
from trimaran.graph.examine import readers_of
from trimaran.graph.types import ParameterUse
from trimaran.launch.stop_requests import REQUESTS, stopping_code
from trimaran.launch.world import TIMEOUT_S, World, join_world, leave_world
from trimaran.memory_budget import planned_memory
from trimaran.planning.target import job_as_planned
from trimaran.program.json_files import finite
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import sharing_ops
from trimaran.program.plan_file import Plan, check_has_program, check_plan, plan_program, read_plan
from trimaran.program.refusals import check_exact
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.strategy import Strategy, splits_batches
from trimaran.program.types import Program
from trimaran.rehearsal.launch import MARK
from trimaran.report.virtual_memory import MemoryReport
from trimaran.runtime.checkpoint.put_back import Fill
from trimaran.runtime.checkpoint.recovered import PassedOver, Recovered
from trimaran.runtime.checkpoint.saving import Saver, WholeTensors, find_saved
from trimaran.runtime.data.batch_shares import Share, microbatch_sizes
from trimaran.runtime.data.datasets import make_evaluation_dataset
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.executor import Executor
from trimaran.runtime.parts.setup import is_partitioned
from trimaran.runtime.step.on_nan import MOST_ROLLBACKS, OnNan, Rollback, check_on_nan
from trimaran.runtime.step.stashing import check_stale
from trimaran.trial.compare import Verified
from trimaran.trial.watch import TrialWatch
from trimaran.user_code.batches import count_samples
from trimaran.user_code.held_state import HeldState

_MOST_FETCHED = 4
"""Batches without a tensor that are known as those of the data until a step takes them."""


class _Nothing(tuple[()]):
    """The batch of a rank that reads no data: another object each time, by which it is known which one a step takes."""

    anchor: Tensor


class _Fetched:
    """A batch of the data that a loop may train on later, or leave: it is known as long as the loop keeps it.

    Args:
        batch: as it was handed out
        samples: of its global batch
        place: its epoch, and its number from 1
    """

    def __init__(self, batch: Any, samples: int, place: tuple[int, int]) -> None:
        anchored = [batch.anchor] if isinstance(batch, _Nothing) else pytree.tree_leaves(batch)
        first = next((one for one in anchored if isinstance(one, Tensor)), None)
        self._id, self.samples, self.place = id(batch), samples, place
        self._tensor = None if first is None else weakref.ref(first)
        self._batch = batch if first is None else None

    @property
    def is_kept(self) -> bool:
        """Whether somebody else may still have it."""
        return self._tensor is None or self._tensor() is not None

    @property
    def has_tensors(self) -> bool:
        """Whether it is known without being kept here."""
        return self._tensor is not None

    def is_of(self, batch: Any) -> bool:
        """Whether a batch is that one."""
        return batch is self._batch if self._tensor is None else id(batch) == self._id and self.is_kept


class Session:
    """One rank's part in the training of a job; made by `trimaran.init`, and in each rank of `trimaran train`.

    It is also the first argument of `Job.on_step` and `Job.on_epoch`.

    Attributes:
        job: what is trained
        strategy: how
        program: one training step, all ranks
        rank: number of this process
        world_size: number of processes
        executor: runs the program
        stopped: a callback or a signal has asked for the end of the training, or the metric has reached the job's
            target
        stop_signal: number of the signal that asked for it, after a step that all ranks have done; None: none did
        recovered: checkpoint or weights that it goes on from, which newer ones were passed over, and what has changed
            since; None: nothing was loaded
        carried: plain values of the loop, such as its best metric: they are in each checkpoint, and back after
            `load_checkpoint`; those of rank 0 count

    Args:
        job: what is trained
        strategy: how
        program: lowered from it
        captured: graph and model; None: the strategy needs no graph, and `evaluation` is given
        world: this process's
        owns_world: the process group was made by the session, and ends with the last session of the process
        evaluation: program of the evaluation of one batch; None: lowered from the graph
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients in one step out of this number; 0: in none
        use: which parameters get a gradient; None: as the graph says
        on_nan: what to do where the loss of a step is not a finite number: "stop", "skip" its update, or "rollback",
            which skips it too and leaves it to the loop to call `roll_back`
    """

    _open: ClassVar[list["Session"]] = []

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        program: Program,
        captured: Capture | None,
        world: World,
        *,
        owns_world: bool,
        evaluation: Program | None = None,
        record: bool = True,
        gradient_noise: int = 0,
        use: ParameterUse | None = None,
        on_nan: OnNan = "stop",
    ) -> None:
        check_on_nan(on_nan, strategy)
        check_stale(strategy, job)
        self.job, self.strategy, self.program = job, strategy, program
        self.rank, self.world_size = world.rank, world.size
        self.stopped = False
        self.stop_signal: int | None = None
        self._owns_world = owns_world
        if evaluation is None:
            if captured is None:
                raise InputError("a session needs the graph of its job, or the program of its evaluation")
            evaluation = lower_evaluation(captured.graph, strategy, batch=job.global_batch_size)
        self.executor = Executor(
            job,
            strategy,
            program,
            evaluation,
            world,
            capture=captured,
            record=record,
            gradient_noise=gradient_noise,
            use=use,
            on_nan=on_nan,
        )
        self.executor.training.graph = "" if captured is None else captured.graph.digest
        self._callbacks = Callbacks(
            job,
            strategy,
            self.executor,
            rank=world.rank,
            world_size=world.size,
            data=lambda: self._feed.changes(),
            timeout_s=world.timeout_s,
        )
        self._kept = KeptByUser(job, self.executor, world.rank)
        self._constants: Constants | None = None
        if captured is not None and captured.flow is not None and is_partitioned(strategy):
            called = {str(node.target) for node in captured.flow.graph.nodes if node.op == "call_module"}
            self._constants = Constants(
                self.executor.model,
                called,
                rewritten={one.partition("@")[0] for one in sharing_ops(captured.graph, strategy)},
                modes=captured.one_for_both_modes,
            )
        self._ends_script = False
        self._memory, self._at_close = ExitStack(), ExitStack()
        self._virtual = self._memory.enter_context(
            planned_memory(strategy, local_ranks=world.local_size, device=world.device)
        )
        self._feed = self.executor.feed()
        # The batches that were handed out, and not yet trained on.
        self._fetched: list[_Fetched] = []
        self._held_out: Any = None
        if world.size > 1 and job.evaluation_dataset is not None and job.metric is not None:
            with self.executor.agreement.alike("the evaluation data"):
                self._held_out = make_evaluation_dataset(job)
            self.executor.compare_evaluation(self._held_out)
        self._losses, self._samples = 0.0, 0
        self._index = 0
        self._scored: float | None = None
        self._untrained = self._going_on = self._stepped = False
        # `batches` has given all epochs.
        self._is_over = False
        # Epoch of the state that the session goes on from, before the first step after it.
        self._loaded: int | None = None
        self._history: list[dict[str, Any]] = []
        self._notes: tuple[str, ...] = ()
        self.recovered: Recovered | None = None
        self._saver: Saver | None = None
        self._rolled_back: list[Rollback] = []
        # What was registered when the checkpoint was saved that the training goes on from, before the first step.
        self._registered: Mapping[str, int] = {}
        self.carried: dict[str, Any] = {}
        self._watch: TrialWatch | None = None
        self._log: MetricLog | None = None
        # The time of a step is that since the last one, but for an evaluation or a save.
        self._since = time.perf_counter()
        self._closed = False
        # A loop may fetch batches in another thread: samples that draw and a step that does have the same generators.
        self._drawing = threading.RLock()
        # The thread that iterated over batches last, and whether it does there what all ranks must.
        self._iterating = (threading.get_ident(), False)
        # Samples of the global batch that was handed out last: of another session, as long as this one hands out none.
        self._newest, self._hands_out = job.global_batch_size, False
        REQUESTS.open()
        self._memory.callback(REQUESTS.close)
        Session._open.append(self)
        # A thread of gloo that outlives the interpreter would end the process with an error.
        atexit.register(self._close_at_exit)

    def batches(self) -> Iterator[Any]:
        """This rank's share of each global batch, for the epochs of the job, or until a callback or a signal stops it.

        When the batch after the last one of an epoch is asked for, the epoch ends: where the job has `on_epoch` or a
        target, its evaluation data are evaluated, then `on_epoch` is called, on every rank.

        A schedule that follows a metric is stepped between the epochs, with that of the evaluation: the loop's, if it
        evaluated the job's data after the last step, else one that is done here. Without evaluation, with the mean
        loss.

        A signal that asks for the end (SIGTERM, SIGHUP, SIGUSR1, Ctrl-C) ends it after a step that all ranks have done.
        The epoch is not ended then.

        Yields:
            A batch as the job's collate makes it; an empty tuple on a rank that reads no data. Where microbatches make
            no batch together, as those of graphs or strings, what `shares` gives.

        Raises:
            InputError: it has given all epochs of the job before, as where a loop over epochs is around it
        """
        if self._is_over and not self.stopped:
            raise InputError(
                f"session.batches() has given every epoch of the job already (Job.epochs={self.job.epochs}), and a "
                "second loop over it would train nothing: let Job.epochs say how many there are, and one loop go over "
                "all of them, with Job.on_epoch after each; or go over session.shares() in each epoch, and call "
                "session.end_epoch(number) after it",
                code="session.epochs-over",
                epochs=self.job.epochs,
            )
        by_metric = self.executor.follows_metric
        evaluates = self.job.on_epoch is not None or self.job.target is not None or by_metric
        agrees = evaluates or (self.world_size > 1 and self.job.epochs - self._feed.epoch > 1)
        while self._feed.epoch < self.job.epochs and not self.stopped:
            number = self._feed.epoch
            for share in self._shares(agrees=agrees):
                with self._drawing:
                    batch = self.executor.fetch(share)
                    if is_nothing(batch):
                        batch = _Nothing()
                        batch.anchor = empty(0)
                    kept = [one for one in self._fetched[: 1 - _MOST_FETCHED] if one.has_tensors and one.is_kept]
                    fetched = _Fetched(batch, share.samples, (number, self._feed.index))
                    self._fetched = [*kept, *self._fetched[1 - _MOST_FETCHED :], fetched]
                yield batch
            if self.stop_signal is not None:
                return
            if self._loaded not in (None, number):
                # The loop has gone on from a state of another epoch: this one is not over.
                continue
            self.end_epoch(number, evaluate=evaluates)
            self._is_over = self._feed.epoch >= self.job.epochs

    def shares(self) -> Iterator[Share]:
        """This rank's shares of what is left of the epoch, for a loop that calls `end_epoch`.

        Yields:
            What `step` takes as it takes a batch, and loads microbatch by microbatch.
        """
        return self._shares(agrees=False)

    def _shares(self, *, agrees: bool) -> Iterator[Share]:
        """As `shares`; who iterates does what all ranks must, or evaluates, also where the data are no stream."""
        if self.stop_signal is not None:
            return
        if not self._going_on:
            self._losses, self._samples = 0.0, 0
        self._going_on = False
        self._callbacks.settle("batches")
        if self._stepped:
            self._check_readers()
        self._since = time.perf_counter()
        for share in self._feed.shares():
            self._untrained = True
            self._iterating = threading.get_ident(), agrees or (self.world_size > 1 and self._feed.streams)
            self._newest, self._hands_out = share.samples, True
            for one in Session._open:
                if not one._hands_out:
                    one._newest, one._iterating = share.samples, (threading.get_ident(), False)
            yield share
            if self.stopped:
                return
        self._untrained = False

    def end_epoch(self, number: int, *, evaluate: bool = True) -> dict[str, float]:
        """End an epoch: its evaluation, its schedule, the job's target, `Job.on_epoch`.

        After a signal nothing of that is done, so that a run that goes on from here does it. Where the signal comes in
        the evaluation, that is broken off.

        Args:
            number: of the epoch, from 0
            evaluate: compute the metric, where the job has one and evaluation data, and it is not known

        Returns:
            "loss", the mean over the samples of the epoch's steps here, and "metric" where it was computed.
        """
        self.drain()
        metrics = {"loss": self.mean_loss}
        if self.stop_signal is None and self.strategy.is_stale and self.executor.asked:
            # It was heard while the last global batches were under way.
            self._stop_by(self._told_to_stop())
        if self.stop_signal is not None:
            return metrics
        self._callbacks.settle("end_epoch")
        if evaluate and self.job.evaluation_dataset is not None and self.job.metric is not None:
            scored = self._evaluate(None, breaks_off=True) if self._scored is None else self._scored
            if self.executor.asked:
                # The epoch is not over: who goes on from here ends it.
                self._feed.epoch, self._feed.index = number, self._index
                self._stop_by(self._told_to_stop())
                return metrics
            metrics["metric"] = scored
            if self.job.target is not None and metrics["metric"] >= self.job.target:
                self.stopped = True
        if self.executor.follows_metric:
            self.executor.updater.end_epoch(metrics.get("metric", metrics["loss"]))
        if self._log is not None:
            self._log.add(self.steps, self._of_epoch(number + 1, metrics))
        self._history.append({"epoch": number + 1, **{name: finite(value) for name, value in metrics.items()}})
        self._feed.watch()
        if self._callbacks.call(self, "on_epoch", number, dict(metrics)):
            self.stopped = True
        if self.job.on_epoch is not None:
            self._check_constants()
        self._feed.follow()
        return metrics

    def drain(self) -> None:
        """End the global batches that are under way, where the steps of a plan overlap; every rank calls it.

        `end_epoch` does it too. Nothing is done under any other plan.
        """
        for loss in self.executor.drain():
            self._count(loss, self.executor.settled)

    @property
    def mean_loss(self) -> float:
        """Mean over the samples of the steps of the epoch so far; no number before the first."""
        return self._losses / self._samples if self._samples else math.nan

    @property
    def model(self) -> nn.Module:
        """The user's model: on one device, under replicas (also with `sync="p2p"`) and under zero=1.

        Under other plans a rank has a part of it. `weights`, `save`, `load` and `evaluate` work under any plan.

        Raises:
            InputError: a rank has a part of it
        """
        return self._callbacks.model()

    @model.setter
    def model(self, model: nn.Module) -> None:
        raise not_replaceable("model", self._callbacks.who)

    @property
    def optimizer(self) -> Optimizer | None:
        """The torch optimizer of what this rank updates, which may be a share of the parameters; None: nothing."""
        optimizer: Optimizer | None = self.executor.updater.optimizer
        return optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        raise not_replaceable("optimizer", self._callbacks.who)

    @property
    def steps(self) -> int:
        """Training steps that have been done."""
        return self.executor.steps

    @property
    def skipped(self) -> tuple[int, ...]:
        """Numbers of the steps whose update was left out (`on_nan`): their losses count in no mean."""
        return self.executor.skipped

    @property
    def rolled_back(self) -> tuple[Rollback, ...]:
        """The times that `roll_back` was called: from which step to which, and how many batches were left out."""
        return tuple(self._rolled_back)

    @property
    def epoch(self) -> int:
        """Number of epochs that have been completed."""
        return self._feed.epoch

    @property
    def history(self) -> list[dict[str, Any]]:
        """Of each epoch that has ended its number from 1, "loss", and "metric" where it was computed.

        None stands for what is no finite number: the mean loss of an epoch whose steps were all skipped.
        """
        return self._history

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know: of the data, of a checkpoint that was gone on from, of saves that failed."""
        recovered = () if self.recovered is None else self.recovered.notes
        return (*self._feed.notes, *recovered, *self._notes, *self.unsaved)

    @property
    def unsaved(self) -> tuple[str, ...]:
        """What went wrong with saves that were not waited for, as far as this rank knows."""
        return () if self._saver is None else tuple(self._saver.failures)

    @property
    def saved(self) -> Path | None:
        """The newest checkpoint that was committed here; None: none. Other ranks than 0 know those waited for."""
        return None if self._saver is None else self._saver.last

    def is_saved(self, folder: str | Path) -> bool:
        """Whether the last state that was saved in a folder is that of now; every rank calls it, and waits for saves.

        Args:
            folder: of the checkpoints
        """
        if self._saver is None or self._saver.folder != Store(folder).folder:
            return False
        return self._saver.has(self._moment)

    @property
    def _moment(self) -> tuple[int, int]:
        """What changes whenever the state does, in a loop that ends its epochs."""
        return self.steps, len(self._history)

    @property
    def feed(self) -> Feed:
        """This rank's training data: its `state_dict` can be saved, and another run goes on from there."""
        return self._feed

    @property
    def memory(self) -> MemoryReport | None:
        """The report of this rank's memory plan so far; None where the strategy has none."""
        return None if self._virtual is None else self._virtual.report()

    def step(self, batch: Any, *, keep_gradients: bool = False) -> float:
        """Forward, backward and update; then `Job.on_step`.

        Args:
            batch: from `batches` or `shares`, or one that the loop makes itself: this rank's share of a full global
                batch, or of the last that it took from `batches`, which may be smaller; those of another session where
                it takes none of this one
            keep_gradients: keep copies of the gradients of the global batch, for `executor.full_state`

        Returns:
            Mean loss of the global batch, the same on every rank; no finite number where the update was skipped.

        Raises:
            InputError: the batch does not fit the plan, or the loss is no scalar; or a callback did what it cannot; or
                another thread iterates over batches of several epochs
            ExecutionError: the loss is not a finite number, and that ends the run, or another rank is gone; or a step
                that is verified is not that of one process
            SystemExit: a signal has asked for the end, and the loop takes a step more
        """
        if self.stop_signal is not None:
            self.close()
            raise SystemExit(exit_code(self.stop_signal))
        if self._callbacks.running:
            raise InputError("a callback of the job cannot take a step of the session that calls it")
        if not is_grad_enabled():
            raise InputError(
                "a step was asked for under torch.no_grad() or torch.inference_mode(), where no gradients are "
                "computed, so that nothing would be trained: call session.step outside of it, and session.evaluate "
                "to evaluate",
                code="session.step-without-gradients",
            )
        thread, agrees = self._iterating
        if agrees and thread != threading.get_ident():
            raise InputError(
                "another thread than that of the steps iterates over session.batches(), or over a stream, and what "
                "ranks agree on, or evaluate, between two epochs or batches would come in the middle of a step: fetch "
                "there what session.shares() gives of one epoch, of data that are no stream, and call "
                "session.end_epoch(number) in the thread of the steps; or iterate in that",
                code="session.another-thread",
            )
        with self._drawing:
            fetched = next((one for one in reversed(self._fetched) if one.is_of(batch)), None)
            self._fetched = [one for one in self._fetched if one is not fetched]
        # What a rank has that reads no data is the same each time.
        self._callbacks.meet(
            fetched.place if fetched is not None and not is_nothing(batch) else None,
            None if fetched is not None or isinstance(batch, Share) else batch,
        )
        # The loop may be the user's, who may have changed them, also one over `shares`.
        self._check_constants()
        if not self._stepped or is_power(self.executor.steps):
            self._check_readers()
        if self._registered:
            saved, self._registered = self._registered, {}
            for note in self._kept.see_registered(saved, self.carried):
                self._notes += (note,)
                if self._ends_script:
                    say(f"trimaran: {note}")
        samples = self._samples_of(batch, fetched)
        number = self.executor.steps
        self._index = self._feed.index
        rate = self._learning_rate() if self._log is not None else None
        step = self.executor.step if self._watch is None else self._watch.step
        with self._drawing, nullcontext() if self._stepped else self._kept.first_step():
            loss = step(batch, samples=samples, keep_gradients=keep_gradients)
        self._stepped = True
        counted = batch.samples if isinstance(batch, Share) else samples or self.job.global_batch_size
        if self.strategy.is_stale:
            # The loss is that of an earlier global batch, or of none.
            counted = self.executor.settled
        self._count(loss, counted)
        before, self._since = self._since, time.perf_counter()
        if self._log is not None:
            seconds = self._since - before
            figures = {LOSS: loss, "train/learning_rate": rate, "train/step_seconds": seconds}
            self._log.add(number, figures | {"train/samples_per_second": counted / seconds})
        told = self._told_to_stop() if self.executor.asked else []
        self._scored, self._untrained = None, False
        self._going_on, self._loaded = False, None
        if self._saver is not None and self._saver.pending:
            self._saver.poll()
        self._feed.watch()
        if self._callbacks.call(self, "on_step", number, {"loss": loss}):
            self.stopped = True
        if self.job.on_step is not None:
            self._check_constants()
        self._feed.follow()
        if any(told):
            self._stop_by(told)
        if self._ends_script:
            self._watch_loop()
        return loss

    def _samples_of(self, batch: Any, fetched: _Fetched | None) -> int | None:
        """Samples of the global batch that a step takes; None: they are known, or those of a full one.

        A loop may change what it was given, also of a smaller global batch, or make other batches: which of them it
        is, ranks know together, as some have as many samples of both. Asked is only where the last that was handed out
        is a smaller one, and where all ranks take it in the thread of the steps.

        Args:
            batch: that the loop gives
            fetched: that this is; None: the loop has made it
        """
        known = None if fetched is None else fetched.samples
        smaller = self._newest < self.job.global_batch_size
        if isinstance(batch, Share) or not smaller or self._iterating[0] != threading.get_ident():
            return known
        own = 0
        if fetched is None and not is_nothing(batch):
            with suppress(InputError):
                own = count_samples(batch)
        told = self.executor.agreement.gather_integers([known or 0, own], "the samples of a batch")
        if taken := max(one for one, _ in told):
            return taken if own in (0, self._share_of(taken, self.rank)) else None
        fits = all(one == self._share_of(self._newest, rank) for rank, (_, one) in enumerate(told) if one)
        return self._newest if fits else None

    def _share_of(self, samples: int, rank: int) -> int:
        """How many samples of a global batch are in the share of a rank's replica."""
        replicas = self.strategy.dp
        sizes = microbatch_sizes(samples, replicas=replicas, microbatches=self.strategy.microbatches)
        return sum(sizes[rank * replicas // self.world_size])

    def _watch_loop(self) -> None:
        self._kept.note_modes()
        self._callbacks.watch()

    def _begin_loop(self) -> None:
        """The loop is one of the user's, whose script ends with the last session."""
        self._ends_script = True
        self._watch_loop()
        before = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._callbacks.explain(error)
            before(kind, error, trace)

        def forget() -> None:
            if sys.excepthook is tell:
                sys.excepthook = before

        sys.excepthook = tell
        self._at_close.callback(forget)

    def _check_constants(self) -> None:
        """See that nothing was changed that the graph has as a constant."""
        found = self._constants.take_over() if self._constants is not None else []
        if found:
            raise InputError(
                f"{format_some(found)} changed, and under {self.strategy.name} ranks run the graph of "
                "the model, which has it as it was at its capture: set it in Job.model, make it a buffer "
                "(register_buffer) and change that in place, put it into the batch, or train by replicas: --allow dp",
                code="session.attribute-changed",
                attributes=tuple(found),
            )

    def _check_readers(self) -> None:
        """See that the job has been given no model since of which a rank has parts, this session's or another's."""
        for one in Session._open if self.world_size > 1 else ():
            seen = one.executor.seen
            held = Behaviour(
                readers=(*readers_of(self.job, one.executor.model), *self._held_by_optimizer(one.executor.model)),
                accepted=seen is not None and seen.accepted,
            )
            check_exact(held, one.strategy)

    def _held_by_optimizer(self, model: nn.Module) -> list[tuple[str, str]]:
        modules = {id(one): path or "the model" for path, one in model.named_modules()}
        held = HeldState({"the optimizer": self.executor.updater.optimizer}, undoable=False).parts()
        return [("Job.optimizer", modules[id(one)]) for one in held if id(one) in modules][:1]

    def _count(self, loss: float, samples: int) -> None:
        # That of a skipped step is no finite number, and counts in no mean.
        if math.isfinite(loss):
            self._losses += loss * samples
            self._samples += samples

    def _told_to_stop(self) -> list[int]:
        """The signals that ranks have heard, 0: none; every rank calls it after the same step."""
        return [number for (number,) in self.executor.agreement.gather_integers([REQUESTS.stop], "a request to stop")]

    def _stop_by(self, told: list[int]) -> None:
        self.stop_signal, self.stopped = stopping_code(told), True

    def log_to(self, tool: str, folder: Path, job: str) -> None:
        """Write metrics to a tracker from the next step on; rank 0 does.

        Args:
            tool: a name of `trackers.TRACKERS`
            folder: of the run
            job: as it was named
        """
        if self.rank == 0:
            batch, ranks = self.job.global_batch_size, self.world_size
            facts = {"job": job, "strategy": self.strategy.name, "global_batch_size": batch, "ranks": ranks}
            self._log = MetricLog(tool, folder, facts)

    def _learning_rate(self) -> float | None:
        """That of the optimizer's first group; None: this rank updates nothing."""
        optimizer = self.optimizer
        return None if optimizer is None or not optimizer.param_groups else float(optimizer.param_groups[0]["lr"])

    def _of_epoch(self, number: int, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
        """What is logged of an epoch that has ended."""
        names = {"loss": "epoch/loss", "metric": f"epoch/{name_of_metric(self.job.metric)}"}
        return {"epoch/number": number, **{name: metrics[key] for key, name in names.items() if key in metrics}}

    def _log_on(self, place: str) -> None:
        """Go on with a curve after a state was loaded."""
        if self._log is not None:
            row = self._history[-1] if self._history and not self._feed.index else None
            self._log.go_on(place, self.steps, None if row is None else self._of_epoch(row["epoch"], row))

    def watch(self, world: World, first: int = 0, *, tried: bool = True) -> Verified:
        """Compare steps of the training with one process from now on (`trial.watch`); every rank calls it.

        Args:
            world: this process's
            first: number of first steps that are compared too
            tried: a trial has taken the first steps

        Returns:
            With the reason, where none can be.
        """
        self._watch = TrialWatch(self.executor, self.job, self.strategy, world, first=first, tried=tried)
        return self._watch.verified

    @property
    def verified(self) -> Verified | None:
        """How far steps were from those of one process, on the rank that compares; None where nobody asked."""
        return None if self._watch is None else self._watch.verified

    def stop(self) -> None:
        """End the training, from a callback on any rank: all agree when it has ended.

        After `on_step` the epoch ends with this step: it is evaluated and `on_epoch` is called, as after any other.

        Raises:
            InputError: no callback is under way
        """
        self._callbacks.stop()

    def evaluate(self, dataset: Any = None) -> float:
        """The job's metric, with the weights of now; every rank calls it.

        Args:
            dataset: map-style data; None: the job's evaluation data

        Returns:
            The metric of all samples, the same on every rank.

        Raises:
            InputError: the job has no metric, or there is no data
        """
        return self._evaluate(dataset)

    def _evaluate(self, dataset: Any, *, breaks_off: bool = False) -> float:
        with self._callbacks.together("evaluate"):
            own = dataset is None
            if dataset is None:
                if self._held_out is None:
                    self._held_out = make_evaluation_dataset(self.job)
                dataset = self._held_out
            found = self.executor.evaluate(dataset, breaks_off=breaks_off)
        self._since = time.perf_counter()
        if own and not self._callbacks.running:
            self._scored = found
        return found

    def weights(self) -> dict[str, Tensor]:
        """The plain `state_dict` of the user's model in host memory, whole under any plan; every rank calls it.

        Returns:
            On rank 0 a copy of every tensor; on the others nothing.
        """
        with self._callbacks.together("weights"):
            return self.executor.weights()

    def save(self, path: str | Path) -> None:
        """Write the plain `state_dict` of the user's model as safetensors; every rank calls it, rank 0 writes."""
        with self._callbacks.together("save"):
            self.executor.save(path)

    def load(self, path: str | Path, *, trust_pickle: bool = False, optimizer: bool = False) -> None:
        """Begin from weights, under any strategy; every rank calls it, between steps.

        Args:
            path: a safetensors file with the plain `state_dict` of the user's model, such as `save` writes; a Hugging
                Face folder; a run directory, a folder of checkpoints or one checkpoint; a directory of
                `torch.distributed.checkpoint` or a file of `torch.save`
            trust_pickle: read the last two, which are pickles, as tensors and plain values alone
            optimizer: take the state of the optimizer too; hyperparameters and the schedule are those of the job

        Raises:
            InputError: names, shapes or dtypes are not those of the model; the optimizer's state is of another one; a
                pickle is not trusted; nothing has been changed
            CorruptDataError: it is damaged
        """
        with self._callbacks.together("load"):
            self.recovered, notes = self.executor.load(path, trust_pickle=trust_pickle, optimizer=optimizer)
            self._notes += notes
        self._say_recovered()

    def check_saving(self, folder: str | Path) -> None:
        """Refuse, before the training begins, what a checkpoint could not hold exactly; every rank calls it.

        Args:
            folder: of the checkpoints

        Raises:
            InputError: the optimizer, the schedule, the model or the stream of the data keeps what is no plain value
            EnvironmentProblem: the folder has no room for a checkpoint
        """
        check_stale(self.strategy, saves="a checkpoint")
        with self._callbacks.together("check_saving"), self.executor.agreement.alike("whether the state can be saved"):
            self.executor.training.check()
            self.executor.training.check_writable()
            self._own_position()
            self._feed.check_state()
            if self.rank == 0:
                Store(folder).check_space(self.executor.training.expected_bytes())

    def save_checkpoint(self, folder: str | Path, *, wait: bool = True, keep: int = 2) -> Path | None:
        """Write everything that it takes to go on, as a new directory in a folder; every rank calls it, between steps.

        That is weights, buffers, the optimizer's state, schedule, scale, random states, the place in the data, and
        `carried`. It is committed when all ranks have written; one that does not get so far is never loaded. Under any
        plan `load_checkpoint` goes on from it.

        Args:
            folder: of the checkpoints, such as "runs/mine/checkpoints"; on a file system that all ranks share
            wait: return when it is committed. False: when the state has been copied to host memory; it is written while
                the next steps run, and committed when they, or `close`, find that all ranks have written
            keep: checkpoints that stay in the folder, at least 1; older ones are removed when newer ones are whole

        Returns:
            The directory of the checkpoint; None where it is not waited for.

        Raises:
            InputError: a batch was taken and not trained on; or something cannot be kept exactly
            EnvironmentProblem: it cannot be written; only where it is waited for, else `notes` says so
            ExecutionError: another rank cannot write, or is gone; or ranks that have copies of weights have others
        """
        check_stale(self.strategy, saves="a checkpoint")
        with self._callbacks.together("save_checkpoint"):
            self._check_between_steps()
            if self._watch is not None:
                self._watch.check_copies()
            saver = self._saver_of(Path(folder), keep)
            saver.finish()
            if self._log is not None:
                self._log.flush()
            taken = self.executor.training.take(self.steps, self._figures(), copy=not wait)
            if not wait:
                saver.begin(taken, self.steps, self._moment)
            saved = saver.save(taken, self.steps, self._moment) if wait else None
        self._since = time.perf_counter()
        return saved

    def load_checkpoint(self, path: str | Path, *, missing_ok: bool = False) -> bool:
        """Go on from a checkpoint, perhaps of another plan or number of ranks; every rank calls it, between steps.

        Afterwards `batches` and `shares` begin with the global batch that comes next, and `steps`, `epoch`, `history`
        and `carried` are what they were. Under the same plan on a CPU the training is the same bit for bit. What is
        otherwise is in `notes`.

        Args:
            path: a run directory or a folder of checkpoints, of which the newest that is as it was written is taken; or
                one checkpoint
            missing_ok: begin anew where there is no such folder, or no checkpoint was ever committed in it, as when a
                script starts for the first time, or was killed in its first save

        Returns:
            Whether there was one; the same on every rank, as rank 0 looks for it.

        Raises:
            InputError: there is none; or it is of another model, data, global batch, seed or optimizer; or this plan
                cannot have it
            CorruptDataError: it is damaged
        """
        self._begin_loading()
        found = find_saved(path, self.executor.agreement, missing_ok=missing_ok)
        if found is None:
            return False
        with found as saved:
            fill = partial(fill_from, saved)
            self._put_back(saved.plain, saved.entries, fill, saved.name, saved.passed_over)
        self._say_recovered()
        return True

    def _say_recovered(self) -> None:
        if self.rank == 0:
            say(str(self.recovered))

    def roll_back(self, folder: str | Path) -> Rollback:
        """After a step whose loss is not a finite number, go back to the last checkpoint, and leave out its batches.

        All that a checkpoint has is put back but the place in the data: the global batches that were trained on since
        then are left out of the training, with the last one. The epoch goes on with the batch that comes next, and ends
        when it would have, some steps earlier. Every rank calls it, in the loop, after `step`.

        Args:
            folder: of the checkpoints

        Raises:
            InputError: there is no checkpoint
            CorruptDataError: all are damaged
            ExecutionError: the checkpoint is of an earlier epoch, or was gone back to as often as is allowed
        """
        self._begin_loading()
        step = self.steps - 1
        with find_saved(folder, self.executor.agreement) as saved:
            figures, at = decode(saved.plain["figures"], saved.name), int(saved.plain["steps"])
            rollback = Rollback(step=step, to=at, batches=self.steps - at)
            before = list(itertools.takewhile(lambda one: one.to == at, reversed(self._rolled_back)))
            if len(before) >= MOST_ROLLBACKS:
                raise ExecutionError(
                    f"the loss of step {step} is not a finite number, as after each of the {len(before)} times that "
                    f"the training went back to {saved.name} and left out the batches since: its weights lead there. "
                    "Go on from an older checkpoint, with a lower learning rate, or clip the gradients (Job.clip_norm)",
                    code="loss.rolled-back-too-often",
                    step=step,
                    to=at,
                )
            if len(figures["history"]) != len(self._history):
                raise ExecutionError(
                    f"the loss of step {step} is not a finite number, and the last checkpoint, {saved.name}, is of "
                    "another epoch, so that there is nothing in this one to go back to. Go on from it with "
                    "on_nan=skip",
                    code="loss.rollback-leaves-epoch",
                    step=step,
                    to=at,
                )
            _, notes = self.executor.put_back(saved.plain, saved.entries, partial(fill_from, saved), saved.name)
        self._callbacks.accept_trained()
        self._take_figures(figures)
        self._rolled_back.append(rollback)
        self._log_on(figures.get("log", ""))
        self._notes = tuple(dict.fromkeys((*self._notes, *map(str, saved.passed_over), *notes)))
        return rollback

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint has, whole, in host memory: on rank 0; every rank calls it, between steps.

        Returns:
            On rank 0 "tensors", by names such as "parameter/head.weight" and "optimizer/head.weight/exp_avg", and
            "state", plain values; `torch.save` and `pickle` take it. On the others nothing.

        Raises:
            InputError: a batch was taken and not trained on; or something cannot be kept exactly
        """
        check_stale(self.strategy, saves="session.state_dict()")
        with self._callbacks.together("state_dict"):
            self._check_between_steps()
            taken = self.executor.training.take(self.steps, self._figures(), copy=False)
            tensors = self.executor.training.gather(taken)
        return {"tensors": tensors, "state": taken.plain} if self.rank == 0 else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, perhaps of another plan, as `load_checkpoint` does; every rank calls it, between steps.

        Args:
            state: from `state_dict`; that of rank 0 counts, the others may give an empty one

        Raises:
            InputError: it is no such state; or of another model, data, global batch, seed or optimizer; or this plan
                cannot have it
        """
        self._begin_loading()
        whole = WholeTensors(state, self.executor.agreement)
        self._put_back(whole.plain, whole.entries, whole.fill, whole.name)

    def _begin_loading(self) -> None:
        if self._callbacks.running:
            raise InputError(
                "a training goes on from a state before its first step, or between two steps of the loop: a callback "
                "is called within one",
                code="session.load-in-callback",
            )
        self._finish_saving()

    def _put_back(
        self,
        plain: Mapping[str, Any],
        entries: Sequence[Entry],
        fill: Fill,
        source: str,
        passed_over: tuple[PassedOver, ...] = (),
    ) -> None:
        figures = decode(plain["figures"], source)
        position = figures["position"]
        # Other data are refused before anything is changed; and so is another model, before the place in them is.
        before = self._feed.state_dict()
        self._feed.load_state_dict(position)
        try:
            changed, notes = self.executor.put_back(plain, entries, fill, source)
        except InputError:
            self._feed.load_state_dict(before)
            raise
        if self.executor.training.must_learn(plain):
            # DDP finds its buckets in a step, which is then undone.
            self._take_one_step()
            self.executor.put_back(plain, entries, fill, source)
            self._feed.load_state_dict(position)
        self._callbacks.accept_trained()
        # What callbacks keep may say what the samples are.
        in_place = figures.get("kept_in_modules", {})
        kept = [one for one in figures.get("kept", ()) if one not in in_place]
        anew = not {*self._kept.names()}.difference(in_place)
        kept += self._kept.put_back(in_place)
        self.recovered = Recovered(path=source, step=self.steps, passed_over=passed_over, changed=changed)
        self._compare_data(figures.get("seen"))
        self._take_figures(figures)
        self.stopped = figures["stopped"]
        self._rolled_back = [Rollback(**one) for one in figures.get("rolled_back", ())]
        self._history = [dict(row) for row in figures["history"]]
        self._going_on, self._untrained, self._fetched, self._is_over = True, False, [], False
        if kept and anew:
            notes = (
                *notes,
                f"the job, or its loop, had changed {format_some([*kept])}, which no checkpoint has: here "
                "it is as at the start. What the training needs of it, give as Job.state, or put into a buffer of the "
                "model",
            )
        self._notes = tuple(dict.fromkeys((*self._notes, *notes)))
        # A loop may register them again when it has loaded the checkpoint.
        self._registered = figures.get("registered", {})
        self._log_on(figures.get("log", ""))
        self._index, self._loaded = self._feed.index, self._feed.epoch

    def _take_figures(self, figures: Mapping[str, Any]) -> None:
        """Put back the figures of a checkpoint that go with its weights."""
        # One that was made between two epochs has the sums of the one that had ended.
        began = not figures["position"]["index"]
        self._losses, self._samples = (0.0, 0) if began else (figures["losses"], figures["samples"])
        self._scored, self.carried = figures["scored"], dict(figures["carried"])
        self.executor.skipping = figures.get("skipping", {})

    def _take_one_step(self) -> None:
        recording, self.executor.recording = self.executor.recording, False
        try:
            while True:
                for share in self._feed.shares():
                    self.executor.step(share)
                    return
        finally:
            self.executor.recording = recording

    def _compare_data(self, seen: int | None) -> None:
        """Note that the samples before the place in the data are not those that were trained on."""
        now = self._feed.digest_before()
        differs = seen is not None and now is not None and seen != now
        if self.executor.agreement.first_rank(differs) is not None:
            self._notes += (
                "samples of the last batch before the checkpoint are not those that were trained on: the data set "
                "gives other samples than then, or draws from a generator that it makes, so that this is no longer the "
                "training that was saved",
            )

    def _check_between_steps(self) -> None:
        if self._untrained:
            raise InputError(
                "a batch was taken from the session and not trained on, so that it would be left out when the training "
                "goes on: save after session.step(batch), not before it",
                code="session.saved-before-step",
            )

    def _own_position(self) -> Any:
        return encode(self._feed.state_dict(), "the state of the stream of Job.dataset")

    def _position(self, own: Any) -> Any:
        """Where the data are, as plain JSON, from a rank that reads them; the same on every rank."""
        if not self._feed.streams:
            return own
        told = self.executor.agreement.gather_objects(own, "where the data are")
        return next((one for one in told if one.get("dataset") is not None), told[0])

    def _figures(self) -> dict[str, Any]:
        told = self.executor.agreement.gather_objects(self._feed.digest_before(), "what the data were")
        seen = next((one for one in told if one is not None), None)
        plain, kept = self._kept.plain()
        if self.executor.seen is not None and not self.job.state:
            kept += tuple(one for one in self.executor.seen.carried if one not in {*plain, *kept})
        figures = {
            "losses": self._losses,
            "samples": self._samples,
            "scored": self._scored,
            # A run that a signal has ended goes on.
            "stopped": self.stopped and self.stop_signal is None,
            "history": self._history,
            "seen": seen,
            "skipping": self.executor.skipping,
            "rolled_back": [asdict(one) for one in self._rolled_back],
            "carried": self.carried,
            "log": "" if self._log is None else self._log.place,
            "kept": kept,
            "kept_in_modules": plain,
            "registered": self._kept.registered(),
        }
        with self.executor.agreement.alike("what is carried"):
            own, plain = self._own_position(), encode(figures, "session.carried")
        return {"position": self._position(own), **plain}

    def _saver_of(self, folder: Path, keep: int) -> Saver:
        store = Store(folder)
        if self._saver is None or self._saver.folder != store.folder or self._saver.keep != keep:
            self._finish_saving()
            self._saver = Saver(store, self.executor.agreement, ranks=self.world_size, keep=keep)
        return self._saver

    def _finish_saving(self) -> None:
        if self._saver is not None:
            self._saver.finish()
            self._notes += tuple(self._saver.failures)
            self._saver.failures.clear()

    def timeline(self) -> Timeline:
        """The timeline of the last steps on rank 0; on the others an empty one. Every rank calls it."""
        with self._callbacks.together("timeline"):
            return self.executor.timeline()

    def gradient_noise(self) -> NoiseScale:
        """The gradient noise scale over the steps so far, the same on every rank; every rank calls it.

        Where the optimizer scales gradients, as Adam does, and a rank knows by what, it is that of scaled gradients.

        Raises:
            InputError: the session was not made with `gradient_noise`, or no step has been taken
        """
        with self._callbacks.together("gradient_noise"):
            observations = self.executor.observations()
        return estimate_noise_scale(as_scaled(observations) or observations)

    def close(self) -> None:
        """End the connections of the session; every rank calls it. At the exit of the script it is done anyway.

        Raises:
            SystemExit: a signal has ended the training, and this is the last session of the script: with 128 and the
                number of the signal, unless an exception is on its way
        """
        self._close()
        if self._ends_script and self.stop_signal is not None and not Session._open and sys.exc_info()[1] is None:
            self._say_stopped(self.stop_signal)
            raise SystemExit(exit_code(self.stop_signal))

    def _close_at_exit(self) -> None:
        """As `close`; where that had to be done before the end of the script, nothing else sets its exit code."""
        self._close()
        if self._ends_script and self.stop_signal is not None and not hasattr(sys, "last_value"):
            self._say_stopped(self.stop_signal)
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(exit_code(self.stop_signal))

    def _say_stopped(self, number: int) -> None:
        if self.rank == 0:
            say(
                f"trimaran: {signal_name(number)} ended the training after step {self._steps}, in epoch "
                f"{self._epoch + 1}: all ranks have done the same steps; exit code {exit_code(number)}"
            )

    def _close(self) -> None:
        if self._closed:
            return
        # After an error others may be gone, or be about to do something else than to speak about a save.
        if getattr(sys, "last_value", None) is None:
            self._finish_saving()
        self._closed = True
        self._steps, self._epoch = self.executor.steps, self._feed.epoch
        atexit.unregister(self._close_at_exit)
        self._memory.close()
        self._at_close.close()
        if self._log is not None:
            self._log.close()
        self._callbacks.close()
        self.executor.close()
        Session._open.remove(self)
        if self._owns_world and Session._open:
            Session._open[0]._owns_world = True
        elif self._owns_world:
            leave_world()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()
        if error is None:
            self.close()


@checked_classes
def init(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    record: bool = True,
    gradient_noise: int = 0,
    accept_inexact: bool = False,
    verify: int = 0,
    on_nan: str = "stop",
    hang_timeout: float | None = None,
    log: str | None = None,
) -> Session:
    """Take part in the training of a job.

    The process joins the world that it was started in (torchrun, Slurm, Ray Train), or is alone. It starts no other
    process.

    Args:
        job: what to train
        plan: a plan, or the file of one; None: plain data parallelism over all processes
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients, for `Session.gradient_noise`, in one step out of this
            number (with 5 the run takes 1 to 3 % longer); 0: in none
        accept_inexact: go on where the plan would train something else than one process with the whole batch
        verify: number of first steps to compare with one process, forked from rank 0; steps 0, 1, 2, 4, 8, ... are
            compared in any case, where a plan has several ranks or microbatches, on CPUs
        on_nan: what to do where the loss of a step is not a finite number: "stop" with an error, or "skip" its update
            on every rank; ten such steps in a row are an error too
        hang_timeout: how long a rank may wait for the others in a collective before it ends with an error that says for
            whom it waited, and in what [s]; None: 600. It does not hold for a process group that exists already
        log: tracker to which rank 0 writes metrics, where it is installed: "tensorboard" (in `runs/JOB-TIME`), "wandb"
            or "mlflow"; None: none

    Raises:
        InputError: the plan was made for another job, world or batch, or would train something else; or gradient
            noise cannot be seen under it; or a step cannot be skipped under it
        EnvironmentProblem: this is not Linux, or the world cannot be joined; or the tracker is not installed
        CorruptDataError: the plan file is damaged
    """
    import torch.distributed as dist

    refuse_training("trimaran.init")
    needs_linux("training")
    for name, value in (("gradient_noise", gradient_noise), ("verify", verify)):
        if value < 0:
            raise InputError(f"{name} is a number of steps, 0 for none, got {value}", code="session.negative-steps")
    check_tracker(log)
    check_on_nan(on_nan)
    if on_nan == "rollback":
        raise InputError(
            "on_nan=rollback needs checkpoints, and here your loop makes them: take on_nan=skip, and call "
            "session.roll_back(folder) after a step whose loss is not a finite number",
            code="on-nan.no-checkpoint",
        )
    if hang_timeout is not None and not 0 < hang_timeout < math.inf:
        raise InputError(
            f"hang_timeout is a number of seconds above 0, got {hang_timeout}",
            code="hang-timeout.not-positive",
            hang_timeout=hang_timeout,
        )
    owns_world = not (dist.is_available() and dist.is_initialized())
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    if plan is not None:
        check_has_program(plan)
        job = job_as_planned(plan, job)
    captured = capture_and_look(job)
    world = join_world(timeout_s=TIMEOUT_S if hang_timeout is None else hang_timeout)
    # A look may end sooner on one rank than on another.
    seen = _of_rank_0(captured.graph.behaviour, world)
    # A rehearsal has no data by which the parts of a batch could be compared with the whole.
    if seen is not None and (accept_inexact or MARK in os.environ):
        seen = replace(seen, accepted=True)
    captured = replace(captured, graph=replace(captured.graph, behaviour=seen))
    wanted = Strategy(dp=world.size) if plan is None else plan.strategy
    if wanted.is_stale:
        raise InputError(
            f"{wanted.name} is not the training of one process. "
            "A loop of yours takes one step after the other, and here steps overlap: run "
            "the plan by `trimaran train`, or take a synchronous schedule (--schedule 1f1b)",
            code="session.stale-plan",
            strategy=wanted.name,
        )
    job = weighed(job, seen, splits=splits_batches(wanted))
    check_exact(seen, wanted)
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
    session = Session(
        job,
        strategy,
        program,
        captured,
        world,
        owns_world=owns_world,
        record=record,
        gradient_noise=gradient_noise,
        on_nan="skip" if on_nan == "skip" else "stop",
    )
    session.executor.know(seen)
    if log is not None and MARK not in os.environ:
        folder = f"{file_name(job.name)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        session.log_to(log, given(RUNS) / folder, job.name)
    if verify or (strategy.devices * strategy.microbatches > 1 and not (seen is not None and seen.accepted)):
        session.watch(world, first=verify, tried=False)
    session._begin_loop()
    return session


def _of_rank_0(behaviour: Behaviour | None, world: World) -> Behaviour | None:
    if world.size == 1:
        return behaviour
    import torch
    import torch.distributed as dist

    told = [behaviour]
    dist.broadcast_object_list(told, src=0, device=torch.device(world.device))
    return told[0]
