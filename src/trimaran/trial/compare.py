"""The first steps of a run, repeated as a plain loop in one process on rank 0, and compared by parameter.

    before ─▶ step of the plan ──────────▶ gradients, weights, buffers, optimizer state, whole on rank 0 (`whole_state`)
       └────▶ the same step in one process ─▶ gradient ──▶ equal within rounding?
                           update by the plan's gradient ─▶ weights, optimizer state ──▶ equal to the last places?

Every step starts from the state of the run, so that rounding does not add up, and an update is judged separately: Adam
divides by the size of a gradient, so that the rounding of a gradient near zero would give a full change of the weight.

**Tolerance of gradients.** One process in fp64 shows, for all jobs, whether the microbatches of the plan are the global
batch. It finds a loss that is no mean, whatever the precision of the run, to `_EXACT` of the scale S, the sum of the
norms of what the microbatches add. The run itself is compared with one process over the same microbatches in the
precision of the job, which rounds as the run does except for the order of sums. The effect of that depends on the
network, and is measured: the gradient is computed again with every weight moved up or down, at random, by the mean
change of rounding, and the tolerance is

    _SPREAD x the largest change seen + _ROUNDING x eps x S

with eps of the parameters. Where ranks compute by other operations than the user's (shares of tensors, compiled ones),
eps is that of the compute dtype.

A gradient that lacks one of N samples is off by about S / N. In 16 bits that may be less than the tolerance: a trial
(`trial.trial`) compares in 64.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from trimaran.base.errors import ExecutionError, InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.units import format_count, format_seconds
from trimaran.launch.world import World
from trimaran.program.layout import strategy_layout
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.whole_state import Differing, WholeState
from trimaran.trial.plain_loop import Gradients, PlainTraining, wide
from trimaran.user_code.alone import alone
from trimaran.user_code.randomness import RandomState

# The norm of the rounding of a sum grows with the root of its terms: this is enough for thousands of them.
_ROUNDING = 64
# A norm by which gradients are clipped is summed in another order, so that they differ by some of their last places.
# Adam divides by their size: where one cancels with the mean of those before, the change is small, its error is not.
_CANCELLED = 16
# Root mean square of the rounding of a number, in its last places: uniform between -1/2 and 1/2.
_ROUNDED = 12**-0.5
# Two samples of what moving weights does; the largest of many is a few times that.
_SPREAD = 16
_SAMPLES = 2
# Of microbatches against one forward, in fp64. Networks that compute a part in fp32 whatever they are given pass too.
_EXACT = 1e-5


DIFFERS = "verify.differs"
"""Code of an error that says that a run is not that of one process."""


FAILS_ALONE = "verify.fails-alone"
"""Code of an error that says that one process cannot take a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification found, where all agreed.

    Attributes:
        steps: that were compared
        tensors: that were compared in each: gradients, weights, buffers, optimizer state
        difference: of the tensor that came nearest to its limit, relative to its scale
        limit: of that tensor, relative to its scale
        notes: what was compared in another way than usual, and why
        restarted: after them the state was put into ranks that were made anew, which have it bit for bit
        seconds: that it took, where it was done before the training [s]
        reason: why nothing was compared; empty: it was
    """

    steps: int = 0
    tensors: int = 0
    difference: float = 0.0
    limit: float = 0.0
    notes: tuple[str, ...] = ()
    restarted: bool = False
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"not verified: {self.reason}"
        steps = format_count(self.steps, "step") + (" and a restart" if self.restarted else "")
        largest = f"largest difference {self.difference:.1g} (limit {self.limit:.1g})"
        took = f", {format_seconds(self.seconds)}" if self.seconds else ""
        return f"verified: {steps}, {self.tensors} tensors, {largest}{took}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a run, as it is compared.

    Attributes:
        before: parameters, buffers and optimizer state before it
        after: the same after it, with the gradients
        states: of the generators of each rank before it
        epoch: number of the epoch, from 0
        index: number of the global batch in it, from 0
        loss: mean of the global batch
        draws: the schedule draws
        ended: metric of the epoch that has ended before it, where the schedule follows one
        follows: the schedule is stepped at the end of an epoch
        fresh: the weights are those that the job's factory makes
    """

    before: WholeState
    after: WholeState
    states: Sequence[RandomState]
    epoch: int
    index: int
    loss: float = math.nan
    draws: bool = False
    ended: float | None = None
    follows: bool = False
    fresh: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A tensor of the run, compared with that of one process.

    Attributes:
        kind: for people, such as "gradient"
        name: of the parameter or buffer
        difference: relative to the scale
        limit: of that
        text: what is wrong with it, where the difference is larger than `limit`
    """

    kind: str
    name: str
    difference: float
    limit: float
    text: str = ""

    @property
    def agrees(self) -> bool:
        return self.difference <= self.limit  # nothing is below not-a-number


class Verifier:
    """Compares the steps of a run; every rank has one, and calls it alike.

    Args:
        executor: runs the plan
        job: what is trained
        strategy: how
        world: this process's
        examine: compares a step, or the state after a restart, on rank 0; None: here, in a region where the user's code
            is told of no ranks

    Attributes:
        fresh: the weights are still those that the job's factory makes; may be set before the first step
        verified: what was found so far; on rank 0

    Raises:
        InputError: the job cannot be run as one process
    """

    def __init__(
        self,
        executor: Executor,
        job: Job,
        strategy: Strategy,
        world: World,
        examine: Callable[[Step | WholeState], Verified] | None = None,
    ) -> None:
        if job.precision == "fp16":
            raise InputError(
                "a run in fp16 skips steps whose gradients are too large for it, which one process would do elsewhere: "
                'verify the plan with Job.precision="bf16" or "fp32"'
            )
        self._executor, self._world = executor, world
        self.fresh = True
        self.verified = Verified()
        self._examiner = Examiner(job, strategy, world.device) if examine is None else None
        self._given = examine

    def step(
        self, batch: Any, *, epoch: int, index: int, samples: int | None = None, ended: float | None = None
    ) -> float:
        """A training step, compared with that of one process.

        Args:
            batch: this rank's part of the global batch, as `Executor.step` takes it
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
            samples: of the global batch, where `batch` is no `Share`
            ended: metric of the epoch that has ended before it

        Returns:
            Mean loss of the global batch, the same on every rank.

        Raises:
            ExecutionError: they differ; on every rank
            InputError: the job cannot be run as one process
        """
        executor = self._executor
        states = executor.agreement.gather_objects(RandomState.of(self._world.device), "verifying a step")
        before = executor.full_state(kinds=("parameter", "buffer", "optimizer"), compare=True)
        loss = executor.step(batch, samples=samples, keep_gradients=True)
        after = executor.full_state(compare=True)
        step = Step(
            before=before,
            after=after,
            states=states,
            epoch=epoch,
            index=index,
            loss=loss,
            draws=executor.schedule_draws,
            ended=ended,
            follows=executor.follows_metric,
            fresh=self.fresh,
        )
        self._tell(executor, lambda: self._examine(step))
        return loss

    def compare_restarted(self, executor: Executor) -> None:
        """Compare the state that ranks have that were made anew with that after the last step.

        Args:
            executor: of this rank now

        Raises:
            ExecutionError: they differ; on every rank
        """
        state = executor.full_state(kinds=("parameter", "buffer", "optimizer"), compare=True)
        self._tell(executor, lambda: self._given(state))  # type: ignore[misc]

    def _tell(self, executor: Executor, examine: Callable[[], Verified]) -> None:
        """Have rank 0 compare, and all ranks hear what came of it."""
        error: BaseException | None = None
        if self._world.rank == 0:
            try:
                self.verified = examine()
            except BaseException as raised:  # noqa: BLE001  # it is raised once all ranks know
                error = raised
        own = None if error is None else str(error), self.verified.reason
        said, reason = executor.agreement.gather_objects(own, "verifying a step")[0]
        self.verified = replace(self.verified, reason=reason)
        if error is not None:
            raise error
        if said is not None:
            raise ExecutionError(
                f"rank 0 found that the run is not that of one process: {said}", code=DIFFERS, lost_peer=True
            )

    def _examine(self, step: Step) -> Verified:
        if self._examiner is None:
            return self._given(step)  # type: ignore[misc]
        return _apart(partial(self._examiner, step), self._world.device)

    def close(self) -> None:
        """Close the plain loop."""
        if self._examiner is not None:
            self._examiner.close()


class Examiner:
    """Repeats the steps of a run as one process does, and compares.

    Args:
        job: what is trained
        strategy: how
        device: of this process
        exact: the run is one that is thrown away, in 64 or 32 bits: one process computes each gradient once, as a
            plain loop does, of the whole global batch but where it depends on its parts
        draws: the forward or the loss draws random numbers
    """

    def __init__(self, job: Job, strategy: Strategy, device: str, *, exact: bool = False, draws: bool = False) -> None:
        self._job, self._strategy, self._device = job, strategy, device
        self._exact, self._draws = exact, draws
        self._plain: PlainTraining | None = None
        self._last = WholeState()
        self._compared: list[_Compared] = []
        self._steps = self._tensors = 0
        self._notes: dict[str, None] = {}

    def __call__(self, step: Step) -> Verified:
        """Compare a step.

        Args:
            step: of the run

        Returns:
            What was found in all steps so far.

        Raises:
            ExecutionError: they differ
            InputError: the job cannot be run as one process
        """
        random = RandomState.of(self._device)
        try:
            self._examine(step)
        except TrimaranError:
            raise
        except Exception as error:
            raise self._cannot_run(error) from error
        finally:
            random.restore(self._device)
        return self._found()

    def _found(self) -> Verified:
        # Where a gradient is nothing but rounding, such as that of a bias before a batch norm, there is no limit to it.
        judged = [one for one in self._compared if one.limit < 1]
        nearest = max(judged, key=lambda one: one.difference / one.limit if one.limit else 0.0, default=None)
        return Verified(
            steps=self._steps,
            tensors=self._tensors,
            difference=0.0 if nearest is None else nearest.difference,
            limit=0.0 if nearest is None else nearest.limit,
            notes=tuple(self._notes),
        )

    def _cannot_run(self, error: Exception) -> ExecutionError:
        lines = str(error).strip().splitlines()
        return ExecutionError(
            f"step {self._steps}: one process, without a process group and without variables of ranks, cannot take the "
            f"step: {type(error).__name__}: {lines[0] if lines else ''}. A job is written as for one process: let it "
            "ask for no rank, or first whether there is a group (torch.distributed.is_initialized)",
            code=FAILS_ALONE,
            step=self._steps,
        )

    def close(self) -> None:
        """Close the plain loop."""
        if self._plain is not None:
            self._plain.close()
            self._plain = None

    def begin(self) -> PlainTraining:
        """Make the plain loop, where that has not been done.

        Raises:
            InputError: the job cannot be run as one process
        """
        if self._plain is None:
            strategy = self._strategy
            self._plain = PlainTraining(
                self._job, replicas=strategy.dp, microbatches=strategy.microbatches, device=self._device
            )
        return self._plain

    def runs(self) -> bool:
        """Whether a step runs in one process, in the precision of the job; random numbers and Python's state move."""
        try:
            plain = self.begin()
            plain.gradients(plain.whole_batch(0, 0), [RandomState.of(self._device)])
        except Exception:  # noqa: BLE001  # what else is wrong with it is told where it is compared
            return False
        return True

    def _examine(self, step: Step) -> None:
        strategy = self._strategy
        plain = self.begin()
        if not self._steps and step.fresh:
            self._check_start(plain, step.before)
        self._check_copies(step.before, "before")
        plain.put(step.before)
        if step.ended is not None:
            plain.end_epoch(step.ended)
        layout = strategy_layout(strategy)
        replicas = [step.states[layout.rank(replica, 0)] for replica in range(strategy.dp)]
        gradients = self._check_gradients(plain, step, replicas)
        self._check_update(plain, step, gradients)
        self._check_copies(step.after, "after")
        self._last = step.after
        self._steps += 1

    def restarted(self, state: WholeState) -> Verified:
        """See that ranks that were made anew have the state that the last step has left.

        Raises:
            ExecutionError: they have not
        """
        pairs: list[tuple[str, str, Any, Any]] = [
            ("weight", name, one, state.parameters.get(name)) for name, one in self._last.parameters.items()
        ]
        pairs += [("buffer", name, one, state.buffers.get(name)) for name, one in self._last.buffers.items()]
        pairs += [
            (f'optimizer\'s "{key}"', name, one, state.optimizer.get(name, {}).get(key))
            for name, kept in self._last.optimizer.items()
            for key, one in kept.items()
        ]
        options = {name: group.options for group in state.groups for name in group.names}
        pairs += [
            (f'option "{key}"', name, one, options.get(name, {}).get(key))
            for group in self._last.groups
            for name in group.names
            for key, one in group.options.items()
            if isinstance(one, int | float)
        ]
        wrong = [
            _alike(kind, name, False)
            for kind, name, one, other in pairs
            if not (torch.equal(one, other) if torch.is_tensor(one) and torch.is_tensor(other) else _same(one, other))
        ]
        if wrong:
            self._fail(wrong, (), state, "is not what the last step has left, in ranks that go on from its state")
        return replace(self._found(), restarted=True)

    def _check_start(self, plain: PlainTraining, before: WholeState) -> None:
        own = {name: one.detach().cpu() for name, one in plain.model.named_parameters()}
        found = [
            _alike("initial weight", name, name in before.parameters and torch.equal(tensor, before.parameters[name]))
            for name, tensor in own.items()
        ]
        wrong = [one for one in found if not one.agrees]
        if wrong and not plain.is_seeded():
            self._notes["Job.model makes other weights each time, whatever the seed: those of the run were taken"] = (
                None
            )
        elif wrong:
            self._fail(
                wrong,
                [name.rpartition(".")[0] for name in own],
                before,
                "was not loaded: it is another than the job's factory makes",
            )

    def _check_copies(self, state: WholeState, when: str) -> None:
        if not state.differing:
            return
        order = {name: place for place, name in enumerate(state.parameters)}
        first: Differing = min(state.differing, key=lambda one: order.get(one.name, len(order)))
        what = f'the optimizer\'s "{first.key}" of ' if first.key else ""
        raise ExecutionError(
            f"step {self._steps}: {what}{first.name} in the module {_owner(first.name)} is another on "
            f"{_ranks(first.ranks)} than on rank {first.first}, {when} the step: copies must stay alike. "
            f"The plan is {self._strategy.name}{_ADVICE}",
            code=DIFFERS,
            step=self._steps,
            module=_owner(first.name),
            parameter=first.name,
            kind=first.kind,
            ranks=first.ranks,
        )

    def _check_gradients(self, plain: PlainTraining, step: Step, states: Sequence[RandomState]) -> Gradients:
        """The run's gradients and buffers; those of one process."""
        after = step.after
        whole = self._exact and not (self._draws or plain.mixes_samples)
        # Read once, as a plain loop does: data may keep something of each read.
        batches = (plain.whole_batch if whole else plain.microbatches)(step.epoch, step.index)
        expected = plain.gradients(batches, states[:1] if whole else states, goes_on=self._exact)
        coarse = self._strategy.tp > 1 or bool(self._strategy.shards) or self._strategy.execution == "compiled"
        if expected.draws and whole:
            raise InputError("the model draws random numbers that the look at the job did not see")
        if expected.draws and (self._strategy.execution == "compiled" or self._strategy.pp > 1):
            raise InputError(
                f"the model draws random numbers in its forward, and under {self._strategy.name} parts of it draw "
                "other random numbers, which one process cannot repeat: verify with dropout 0, or a plan without "
                "stages (--forbid pp)",
                code="verify.draws",
            )
        if expected.draws or plain.mixes_samples:
            why = "it draws random numbers" if expected.draws else "batch norm depends on the samples of a microbatch"
            self._notes[f"compared with one process over the same microbatches: {why}"] = None
        elif not self._exact:
            self._check_microbatches(plain, batches, states, expected.order, after, step.epoch, step.index)
        moved: list[Gradients] = []
        if not self._exact:
            place = _eps(torch.bfloat16) if coarse and self._job.precision == "bf16" else _finest(plain)
            moved = [plain.gradients(batches, states, moved=_ROUNDED * place, seed=seed) for seed in range(_SAMPLES)]
        inexact = _inexact_by_choice(self._strategy)
        compared = [
            _compare_exactly(name, after.gradients.get(name), expected)
            if self._exact
            else _compare_gradient(name, after.gradients.get(name), expected, moved)
            for name in expected.of
        ]
        compared += [
            _Compared(kind="gradient", name=name, difference=math.inf, limit=0.0, text="in one process it has none")
            for name, one in after.gradients.items()
            if name not in expected.of and bool(one.any())
        ]
        if inexact:
            largest = max((one.difference for one in compared), default=0.0)
            self._notes[
                f"{inexact}, which is inexact by choice: gradients differ by up to {largest:.1g} of their scale; "
                "updates by them were compared"
            ] = None
        else:
            self._judge(compared, expected.order, after, "is not that of one process")
        buffers = [
            _compare_values(
                "buffer",
                name,
                after.buffers.get(name),
                one,
                [two.buffers[name] for two in moved],
                relative=_exact_limit(expected) if self._exact else None,
            )
            for name, one in expected.buffers.items()
        ]
        self._judge(buffers, expected.order, after, "is not that of one process")
        self._tensors = (0 if inexact else len(compared)) + len(buffers)
        if (
            self._exact
            and not inexact
            and not abs(step.loss - expected.loss) <= _exact_limit(expected) * max(1.0, abs(expected.loss))
        ):
            raise ExecutionError(
                f"step {self._steps}: the loss is {step.loss:.9g}, and that of one process {expected.loss:.9g}. "
                f"The plan is {self._strategy.name}{_ADVICE}",
                code=DIFFERS,
                step=self._steps,
                kind="loss",
            )
        return expected

    def _check_microbatches(
        self,
        plain: PlainTraining,
        batches: Sequence[Sequence[Any]],
        states: Sequence[RandomState],
        order: Sequence[str],
        after: WholeState,
        epoch: int,
        index: int,
    ) -> None:
        """The microbatches add up to the global batch, in fp64."""
        try:
            parts = plain.gradients(batches, states, exact=True)
            whole = plain.gradients(plain.whole_batch(epoch, index), states[:1], exact=True)
        except (RuntimeError, TypeError, ValueError) as error:
            self._notes[
                f"the network does not run in fp64 ({str(error).splitlines()[0][:120]}), so that microbatches were not "
                "compared with one forward of the global batch"
            ] = None
            return
        compared = [
            _Compared(
                kind="gradient",
                name=name,
                difference=_ratio(_distance(parts.of[name], one), parts.scale[name]) if name in parts.of else 1.0,
                limit=_EXACT + _ratio(_EXACT**2 * max(parts.scale.values()), parts.scale.get(name, 0.0)),
                text=f"summed over microbatches{_times(parts.of.get(name), one)}",
            )
            for name, one in whole.of.items()
        ]
        wrong = [one for one in compared if not one.agrees]
        if wrong:
            self._fail(
                wrong,
                order,
                after,
                "is not that of one forward of the whole global batch, also in one process in fp64: the loss is no "
                "mean over samples, or samples depend on each other. Let Job.loss return (sum, weight), or take one "
                "replica and one microbatch",
            )

    def _check_update(self, plain: PlainTraining, step: Step, gradients: Gradients) -> None:
        """Weights and optimizer state after an update by the run's own gradients."""
        before, after = step.before, step.after
        rates = {name: group.options for group in before.groups for name in group.names}
        if drawn := step.draws:
            plain.take_options(rates)
            self._notes["the schedule draws random numbers: options of the optimizer were taken, not compared"] = None
        plain.update({name: one for name, one in after.gradients.items() if name in gradients.of}, follows=step.follows)
        parameters = dict(plain.model.named_parameters())
        compared = [
            _compare_weight(name, after.parameters.get(name), one.detach().cpu(), before.parameters[name])
            for name, one in parameters.items()
        ]
        rates = {name: group.options for group in after.groups for name in group.names}
        if plain.optimizer is not None:
            names = {id(parameter): name for name, parameter in parameters.items()}
            for group in plain.optimizer.param_groups:
                for parameter in group["params"]:
                    name = names[id(parameter)]
                    compared.extend(() if drawn else _compare_options(name, rates.get(name, {}), group))
                    state = plain.optimizer.state.get(parameter, {})
                    compared.extend(
                        _compare_state(name, after.optimizer.get(name, {}), state, before.optimizer.get(name, {}))
                    )
        self._judge(compared, gradients.order, after, "is not what one process makes of the same gradients")
        self._tensors += len(compared)

    def _judge(self, compared: Sequence[_Compared], order: Sequence[str], state: WholeState, what: str) -> None:
        wrong = [one for one in compared if not one.agrees]
        if wrong:
            self._fail(wrong, order, state, what)
        self._compared.extend(compared)

    def _fail(self, wrong: Sequence[_Compared], order: Sequence[str], state: WholeState, what: str) -> None:
        places = {path: place for place, path in enumerate(dict.fromkeys(order))}
        first = min(wrong, key=lambda one: _place(one.name, places))
        modules = {_owner(one.name) for one in wrong}
        others = "" if len(modules) == 1 else f", the first of {len(modules)} modules that differ"
        figures = f"difference {first.difference:.2g}, limit {first.limit:.2g}" if first.limit else ""
        detail = "; ".join(part for part in (first.text, figures) if part)
        ranks = state.ranks.get(first.name, ())
        raise ExecutionError(
            f"step {self._steps}: the {first.kind} of {first.name} {what}{f' ({detail})' if detail else ''}. "
            f"It belongs to the module {_owner(first.name)}{others}, on {_ranks(ranks)}. "
            f"The plan is {self._strategy.name}{_ADVICE}",
            code=DIFFERS,
            step=self._steps,
            module=_owner(first.name),
            parameter=first.name,
            kind=first.kind,
            difference=first.difference,
            limit=first.limit,
            ranks=ranks,
        )


_ADVICE = (
    ". Either the job does other things on other ranks than in one process, or the plan is run wrongly: then take "
    "another plan (--forbid), and report this"
)


def _apart(examine: Callable[[], Verified], device: str) -> Verified:
    """Run it as in one process, and in another thread: tools that watch the training thread's do not see it."""

    def run() -> Verified:
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        with alone():
            return examine()

    with ThreadPoolExecutor(1, "verification") as thread:
        return thread.submit(run).result()


def _inexact_by_choice(strategy: Strategy) -> str:
    """What a strategy does to gradients that one process does not, as it was asked to; empty: nothing."""
    if strategy.compression is not None and strategy.dp > 1:
        return f"gradients are compressed by {strategy.compression.name}"
    if strategy.codec is not None and not strategy.codec.is_exact:
        return f"what is offloaded is rounded by {strategy.codec.name}"
    return ""


def _compare_gradient(
    name: str, found: torch.Tensor | None, expected: Gradients, moved: Sequence[Gradients]
) -> _Compared:
    one, scale = expected.of[name], expected.scale[name]
    if found is None:
        text = "there is none"
        return _Compared(kind="gradient", name=name, difference=1.0 if scale else 0.0, limit=0.0, text=text)
    spread = max(_distance(other.of[name], one) for other in moved)
    # What is nothing but rounding comes of terms as large as elsewhere.
    limit = _SPREAD * spread + _eps(one.dtype) * (_ROUNDING * scale + max(expected.scale.values()))
    if expected.half:
        limit += _ROUNDING * _eps(torch.bfloat16) * scale
    return _Compared(
        kind="gradient",
        name=name,
        difference=_ratio(_distance(found, one), scale),
        limit=_ratio(limit, scale),
        text=_times(found, one).strip(),
    )


def _compare_exactly(name: str, found: torch.Tensor | None, expected: Gradients) -> _Compared:
    """In a precision in which rounding is far below any difference that means something."""
    one, scale = expected.of[name], expected.scale[name]
    # What is nothing but rounding comes of terms as large as elsewhere.
    scale += 1e-2 * max(expected.scale.values())
    away = float(wide(one).norm()) if found is None else _distance(found, one)
    text = "there is none" if found is None else _times(found, one).strip()
    limit = _exact_limit(expected)
    return _Compared(kind="gradient", name=name, difference=_ratio(away, scale), limit=limit, text=text)


def _exact_limit(expected: Gradients) -> float:
    """Largest difference by rounding: the root of that of the coarsest part, between none of the digits and all."""
    return _EXACT if expected.coarsest == torch.float64 else _eps(expected.coarsest) ** 0.5


def _compare_values(
    kind: str,
    name: str,
    found: torch.Tensor | None,
    expected: torch.Tensor,
    others: Sequence[torch.Tensor] = (),
    relative: float | None = None,
) -> _Compared:
    """Tensors of which numbers may differ by a few of their last places, and by what moving weights does to them."""
    if found is None or found.shape != expected.shape:
        return _Compared(kind=kind, name=name, difference=math.inf, limit=0.0, text="it is missing")
    # A mask has infinite entries, which have no difference.
    if not (expected.is_floating_point() or expected.is_complex()) or torch.equal(found, expected):
        return _alike(kind, name, torch.equal(found, expected))
    scale = max(float(wide(expected).norm()), *(float(wide(other).norm()) for other in others), 1e-300)
    spread = max((_distance(other, expected) for other in others), default=0.0)
    limit = _SPREAD * spread / scale + _ROUNDING * _eps(expected.dtype) if relative is None else relative
    return _Compared(kind=kind, name=name, difference=_distance(found, expected) / scale, limit=limit)


def _compare_weight(name: str, found: torch.Tensor | None, expected: torch.Tensor, before: torch.Tensor) -> _Compared:
    """Element by element: a few last places of the weight and of the largest change, more of that of the element."""
    if found is None:
        return _Compared(kind="weight", name=name, difference=math.inf, limit=0.0, text="it is missing")
    if not found.numel() or torch.equal(found, expected):
        return _Compared(kind="weight", name=name, difference=0.0, limit=_eps(expected.dtype))
    exact, moved = wide(expected), (wide(expected) - wide(before)).abs()
    step = float(moved.max())
    places = 4 * exact.abs().maximum(wide(before).abs()) + _ROUNDING * moved + _CANCELLED * step
    allowed = _eps(expected.dtype) * places
    excess = (wide(found) - exact).abs() / (allowed + torch.finfo(torch.float64).tiny)
    text = f"it has changed by up to {float((wide(found) - wide(before)).abs().max()):.3g}, not {step:.3g}"
    limit = 4 * _eps(expected.dtype)
    return _Compared(kind="weight", name=name, difference=limit * float(excess.max()), limit=limit, text=text)


def _compare_state(
    name: str, found: Mapping[str, Any], expected: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[_Compared]:
    for key in dict.fromkeys((*expected, *found)):
        kind = f'optimizer\'s "{key}"'
        one, other = expected.get(key), found.get(key)
        if not isinstance(one, torch.Tensor) or not one.dim():
            yield _alike(kind, name, _same(one, other), f"it is {other}, not {one}")
        else:
            earlier = [value for value in [before.get(key)] if isinstance(value, torch.Tensor)]
            own = one.detach().cpu()
            found_own = other if isinstance(other, torch.Tensor) else None
            plain = _compare_values(kind, name, found_own, own)
            # A moment may cancel: its rounding is relative to what it was as well.
            room = max([1.0, *(float(wide(value).norm()) / max(float(wide(own).norm()), 1e-300) for value in earlier)])
            yield _Compared(
                kind=kind, name=name, difference=plain.difference, limit=plain.limit * room, text=plain.text
            )


def _compare_options(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[_Compared]:
    for key, value in expected.items():
        if isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool) and key in found:
            yield _alike(f'option "{key}"', name, _same(value, found[key]), f"it is {found[key]}, not {value}")


def _alike(kind: str, name: str, same: bool, text: str = "") -> _Compared:
    """What is equal or not, with a text for where it is not."""
    return _Compared(kind=kind, name=name, difference=0.0 if same else 1.0, limit=0.0, text="" if same else text)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float, torch.Tensor)) and isinstance(other, (int, float, torch.Tensor)):
        first, second = float(one), float(other)
        return abs(first - second) <= 1e-6 * abs(first) or first == second
    return type(one) is type(other)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((wide(one) - wide(other)).norm())


def _ratio(difference: float, scale: float) -> float:
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)


def _times(found: torch.Tensor | None, expected: torch.Tensor) -> str:
    """In words, where one is a multiple of the other."""
    if found is None or not float(expected.norm()):
        return ""
    one, other = wide(found).reshape(-1), wide(expected).reshape(-1)
    factor = float(one @ other / (other @ other))
    alike = float((one - factor * other).norm()) <= 1e-3 * float(other.norm())
    return f" it is {factor:.4g} times that" if alike else ""


def _owner(name: str) -> str:
    return name.rpartition(".")[0] or "the model itself"


def _place(name: str, places: Mapping[str, int]) -> tuple[int, str]:
    path = name.rpartition(".")[0]
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path, len(places)), name


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}" if ranks else "no rank"


def _finest(plain: PlainTraining) -> float:
    dtypes = {one.dtype for one in plain.model.parameters() if one.is_floating_point()}
    return max((_eps(dtype) for dtype in dtypes), default=0.0)


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
