"""Steps of a run, repeated as a plain loop in one process, and compared by parameter.

    before ─▶ step of the plan ──────────▶ gradients, weights, buffers, optimizer state, whole on rank 0 (`whole_state`)
       └────▶ the same step in one process ─▶ gradient ──▶ equal within rounding?
                           update by the plan's gradient ─▶ weights, optimizer state ──▶ equal to the last places?

Every step starts from the state of the run, so that rounding does not add up, and an update is judged separately: Adam
divides by the size of a gradient, so that the rounding of a gradient near zero would give a full change of the weight.

**Tolerance of gradients.** With eps of the coarsest type of floating point in a step and the scale S, the sum of the
norms of what the microbatches add to a gradient, the tolerance is the root of eps times S, half of the digits: rounding
is well below it, and a gradient that lacks one of N samples, which is off by about S / N, above it. A gradient that is
nothing but rounding, as of a bias before a norm, comes of terms as large as those of others: there is more for it,
30 eps of the largest S. A trial (`trial.trial`) computes in 64 bits, in which both are 1e-5 or less.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from trimaran.base.errors import ExecutionError, InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.units import format_count, format_seconds
from trimaran.launch.world import World
from trimaran.program.layout import strategy_layout
from trimaran.program.strategy import Strategy
from trimaran.runtime.communication.channels import Agreement
from trimaran.runtime.executor import Executor
from trimaran.runtime.whole_state import Differing, WholeState
from trimaran.trial.plain_loop import BatchGradients, PlainTraining, wide
from trimaran.user_code.randomness import RandomState

# The norm of the rounding of a sum grows with the root of its terms: this is enough for thousands of them.
_ROUNDING = 64
# A norm by which gradients are clipped is summed in another order, so that they differ by some of their last places.
# Adam divides by their size: where one cancels with the mean of those before, the change is small, its error is not.
_CANCELLED = 16
# Of gradients in fp64. Networks that compute a part in fp32 whatever they are given pass too.
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
        later: steps of the training itself that were compared
        reason: why nothing was compared; empty: it was
    """

    steps: int = 0
    tensors: int = 0
    difference: float = 0.0
    limit: float = 0.0
    notes: tuple[str, ...] = ()
    restarted: bool = False
    seconds: float = 0.0
    later: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"not verified: {self.reason}"
        steps = format_count(self.steps, "step") + (" and a restart" if self.restarted else "")
        largest = f"largest difference {self.difference:.1g} (limit {self.limit:.1g})"
        took = f", {format_seconds(self.seconds)}" if self.seconds else ""
        later = f"; {format_count(self.later, 'later step')}" if self.later else ""
        return f"verified: {steps}, {self.tensors} tensors, {largest}{took}{later}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
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


Examined = ComparedStep | WholeState | float
"""What is compared: a step, the state after a restart, the metric of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTensor:
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
        """Whether the difference is rounding."""
        return self.difference <= self.limit  # nothing is below not-a-number


class Verifier:
    """Compares the steps of a run; every rank has one, and calls it alike.

    Args:
        executor: runs the plan
        world: this process's
        examine: compares a step, or the state after a restart, on rank 0

    Attributes:
        verified: what was found so far; on rank 0
    """

    def __init__(self, executor: Executor, world: World, examine: Callable[[Examined], Verified]) -> None:
        self._executor, self._world = executor, world
        self.verified = Verified()
        self._examine = examine

    def step(self, batch: Any, *, epoch: int, index: int, ended: float | None = None) -> float:
        """A training step, compared with that of one process.

        Args:
            batch: this rank's part of the global batch, as `Executor.step` takes it
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
            ended: metric of the epoch that has ended before it

        Returns:
            Mean loss of the global batch, the same on every rank.

        Raises:
            ExecutionError: they differ; on every rank
            InputError: the job cannot be run as one process
        """
        executor = self._executor
        states = executor.agreement.gather_objects(RandomState.of(self._world.device), VERIFYING)
        before = executor.full_state(kinds=("parameter", "buffer", "optimizer"), compare=True)
        loss = executor.step(batch, keep_gradients=True)
        after = executor.full_state(compare=True)
        step = ComparedStep(
            before=before,
            after=after,
            states=states,
            epoch=epoch,
            index=index,
            loss=loss,
            draws=executor.schedule_draws,
            ended=ended,
            follows=executor.follows_metric,
        )
        self.verified = told_by(0, executor.agreement, lambda: self._examine(step))
        return loss

    def compare_restarted(self, executor: Executor) -> None:
        """Compare the state that ranks have that were made anew with that after the last step.

        Args:
            executor: of this rank now

        Raises:
            ExecutionError: they differ; on every rank
        """
        state = executor.full_state(kinds=("parameter", "buffer", "optimizer"), compare=True)
        self.verified = told_by(0, executor.agreement, lambda: self._examine(state))

    def compare_score(self, executor: Executor, dataset: Any) -> None:
        """Evaluate data of one batch, and compare the metric with that of one process.

        Args:
            executor: of this rank now
            dataset: from `first_evaluated`

        Raises:
            ExecutionError: they differ; on every rank
        """
        score = executor.evaluate(dataset)
        self.verified = told_by(0, executor.agreement, lambda: self._examine(score))


VERIFYING = "verifying a step"


def told_by(rank: int, agreement: Agreement, examine: Callable[[], Verified]) -> Verified:
    """Have one rank compare, and all ranks hear what came of it.

    Args:
        rank: compares
        agreement: between all ranks
        examine: compares

    Returns:
        What was found; on the other ranks the reason alone.

    Raises:
        ExecutionError: what it compared differs
    """
    error: BaseException | None = None
    found = Verified()
    if agreement.rank == rank:
        try:
            found = examine()
        except BaseException as raised:  # noqa: BLE001  # it is raised once all ranks know
            error = raised
    own = None if error is None else str(error), found.reason
    said, reason = agreement.gather_objects(own, VERIFYING)[rank]
    if error is not None:
        raise error
    if said is not None:
        raise ExecutionError(
            f"rank {rank} found that the run is not that of one process: {said}", code=DIFFERS, lost_peer=True
        )
    return replace(found, reason=reason)


NOT_OF_ONE = "is not that of one process"


class Examiner:
    """Repeats the steps of a run as one process does, and compares.

    Args:
        job: what is trained
        strategy: how
        device: of this process
        draws: the forward or the loss draws random numbers: a gradient is then computed of the microbatches of the
            plan, and else, but where a batch norm depends on them, of the whole global batch, as a plain loop does
    """

    def __init__(self, job: Job, strategy: Strategy, device: str, *, draws: bool = False) -> None:
        self._job, self._strategy, self._device = job, strategy, device
        self._draws = draws
        self._plain: PlainTraining | None = None
        self._last = WholeState()
        self._compared: list[ComparedTensor] = []
        self._steps = self._tensors = 0
        self._restarted = False
        self._notes: dict[str, None] = {}

    def __call__(self, step: ComparedStep) -> Verified:
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
            restarted=self._restarted,
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

    def _examine(self, step: ComparedStep) -> None:
        strategy = self._strategy
        plain = self.begin()
        if not self._steps:
            self._check_start(plain, step.before)
        check_copies(step.before, self._steps, strategy, "before")
        plain.put(step.before)
        if step.ended is not None:
            plain.end_epoch(step.ended)
        layout = strategy_layout(strategy)
        replicas = [step.states[layout.rank(replica, 0)] for replica in range(strategy.dp)]
        gradients = self._check_gradients(plain, step, replicas)
        self._check_update(plain, step, gradients)
        check_copies(step.after, self._steps, strategy, "after")
        self._last = step.after
        self._steps += 1

    def restarted(self, state: WholeState) -> Verified:
        """See that ranks that were made anew have the state that the last step has left.

        Raises:
            ExecutionError: they have not
        """
        left, found = _by_kind(self._last), _by_kind(state)
        self._judge(
            [_alike(*place, _same(one, found.get(place), exactly=True)) for place, one in left.items()],
            state, "is not what the last step has left, in ranks that go on from its state",
        )  # fmt: skip
        self._restarted = True
        return self._found()

    def scored(self, score: float) -> Verified:
        """Compare the metric of the first batch of the evaluation data.

        Raises:
            ExecutionError: it is another in one process
        """
        # In 32 bits a sample that two classes fit alike may be of either.
        if self._job.precision != "fp64":
            return self._found()
        plain = self.begin()
        plain.put(self._last)
        expected = plain.score()
        # One that fails on the batch is no number in both.
        alike = score == expected or (math.isnan(score) and math.isnan(expected))
        away = 0.0 if alike else abs(score - expected) / max(1.0, abs(expected))
        text = f"it is {score:.9g}, not {expected:.9g}"
        one = ComparedTensor(kind="metric of an evaluation", name="", difference=away, limit=_EXACT, text=text)
        others = "outputs of a sample go by others of its batch, or the metric is no mean and cannot be gathered"
        self._judge([one], self._last, f"{NOT_OF_ONE}: {others}")
        return self._found()

    def _check_start(self, plain: PlainTraining, before: WholeState) -> None:
        own = {name: one.detach().cpu() for name, one in plain.model.named_parameters()}
        found = [
            _alike("initial weight", name, name in before.parameters and torch.equal(tensor, before.parameters[name]))
            for name, tensor in own.items()
        ]
        if not all(one.agrees for one in found) and not plain.is_seeded():
            self._notes["Job.model makes other weights each time, whatever the seed: those of the run were taken"] = (
                None
            )
        else:
            self._judge(found, before, "was not loaded: it is another than the job's factory makes")

    def _check_gradients(
        self, plain: PlainTraining, step: ComparedStep, states: Sequence[RandomState]
    ) -> BatchGradients:
        """The run's gradients and buffers; those of one process."""
        after = step.after
        whole = not (self._draws or plain.mixes_samples)
        # Read once, as a plain loop does: data may keep something of each read.
        batches = (plain.whole_batch if whole else plain.microbatches)(step.epoch, step.index)
        expected = plain.gradients(batches, states[:1] if whole else states, goes_on=True)
        if expected.draws and whole:
            raise InputError("the model draws random numbers that the look at the job did not see")
        if expected.draws and (self._strategy.execution == "compiled" or self._strategy.pp > 1):
            raise InputError(
                f"the model draws random numbers in its forward, and under {self._strategy.name} parts of it draw "
                "other random numbers, which one process cannot repeat: verify with dropout 0, or a plan without "
                "stages (--forbid pp)",
                code="verify.draws",
            )
        if not whole:
            why = "it draws random numbers" if expected.draws else "batch norm depends on the samples of a microbatch"
            self._notes[f"compared with one process over the same microbatches: {why}"] = None
        inexact = inexact_by_choice(self._strategy)
        compared = compare_gradients(after.gradients, expected)
        if inexact:
            largest = max((one.difference for one in compared), default=0.0)
            self._notes[
                f"{inexact}, which is inexact by choice: gradients differ by up to {largest:.1g} of their scale; "
                "updates by them were compared"
            ] = None
        else:
            self._judge(compared, after, NOT_OF_ONE)
        buffers = [
            _compare_values("buffer", name, after.buffers.get(name), one, relative=_root(expected))
            for name, one in expected.buffers.items()
        ]
        norms = [path for path, module in plain.model.named_modules() if isinstance(module, _BatchNorm)]
        buffers += [
            _alike("buffer", name, False, "replicas that begin alike leave other values in it")
            for name in expected.apart
            if name.rpartition(".")[0] not in norms
        ]
        self._judge(buffers, after, NOT_OF_ONE)
        self._tensors = (0 if inexact else len(compared)) + len(buffers)
        self._judge([] if inexact else [compare_losses(step.loss, expected)], after, NOT_OF_ONE)
        return expected

    def _check_update(self, plain: PlainTraining, step: ComparedStep, gradients: BatchGradients) -> None:
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
        self._judge(compared, after, "is not what one process makes of the same gradients")
        self._tensors += len(compared)

    def _judge(self, compared: Sequence[ComparedTensor], state: WholeState, what: str) -> None:
        wrong = [one for one in compared if not one.agrees]
        if wrong:
            raise differing(wrong, self._steps, self._strategy, state.ranks, what)
        self._compared.extend(compared)


_ADVICE = (
    ". Either the job does other things on other ranks than in one process, or the plan is run wrongly: then take "
    "another plan (--forbid), and report this"
)


def differing(
    wrong: Sequence[ComparedTensor],
    step: int,
    strategy: Strategy,
    ranks: Mapping[str, tuple[int, ...]],
    what: str,
) -> ExecutionError:
    """The error that names the first of the tensors that differ.

    Args:
        wrong: they, in the order of the model
        step: its number
        strategy: how it was taken
        ranks: that have each tensor
        what: is wrong with it
    """
    # The loss has no name.
    first = min(wrong, key=lambda one: not one.name)
    modules = {_owner(one.name) for one in wrong if one.name}
    others = "" if len(modules) < 2 else f", the first of {len(modules)} modules that differ"
    figures = f"difference {first.difference:.2g}, limit {first.limit:.2g}" if first.limit else ""
    detail = "; ".join(part for part in (first.text, figures) if part)
    own = ranks.get(first.name, ())
    place = f" It belongs to the module {_owner(first.name)}{others}, on {_ranks(own)}." if first.name else ""
    return ExecutionError(
        f"step {step}: the {first.kind}{f' of {first.name}' if first.name else ''} {what}"
        f"{f' ({detail})' if detail else ''}.{place} The plan is {strategy.name}{_ADVICE}",
        code=DIFFERS,
        step=step,
        module=_owner(first.name),
        parameter=first.name,
        kind=first.kind,
        difference=first.difference,
        limit=first.limit,
        ranks=own,
    )


def check_copies(state: WholeState, step: int, strategy: Strategy, when: str) -> None:
    """See that ranks that have copies of a tensor have the same.

    Args:
        state: in which they were compared
        step: its number
        strategy: how it is taken
        when: "before" or "after"

    Raises:
        ExecutionError: they have not
    """
    if not state.differing:
        return
    order = {name: place for place, name in enumerate(state.ranks)}
    first: Differing = min(state.differing, key=lambda one: order.get(one.name, len(order)))
    what = f'the optimizer\'s "{first.key}" of ' if first.key else ""
    raise ExecutionError(
        f"step {step}: {what}{first.name} in the module {_owner(first.name)} is another on "
        f"{_ranks(first.ranks)} than on rank {first.first}, {when} the step: copies must stay alike. "
        f"The plan is {strategy.name}{_ADVICE}",
        code=DIFFERS,
        step=step,
        module=_owner(first.name),
        parameter=first.name,
        kind=first.kind,
        ranks=first.ranks,
    )


def inexact_by_choice(strategy: Strategy) -> str:
    """What a strategy does to gradients that one process does not, as it was asked to; empty: nothing."""
    if strategy.compression is not None and strategy.dp > 1:
        return f"gradients are compressed by {strategy.compression.name}"
    if strategy.codec is not None and not strategy.codec.is_exact:
        return f"what is offloaded is rounded by {strategy.codec.name}"
    return ""


def compare_gradients(found: Mapping[str, torch.Tensor], expected: BatchGradients) -> list[ComparedTensor]:
    """Each gradient of a run, and that of one process.

    Args:
        found: the run's, by name
        expected: those of one process
    """
    compared = [_compare_gradient(name, found.get(name), expected) for name in expected.of]
    compared += [
        ComparedTensor(kind="gradient", name=name, difference=math.inf, limit=0.0, text="in one process it has none")
        for name, one in found.items()
        if name not in expected.of and bool(one.any())
    ]
    return compared


def compare_losses(found: float, expected: BatchGradients) -> ComparedTensor:
    """The loss of a step of a run, and that of one process.

    Args:
        found: the run's
        expected: of one process
    """
    away = abs(found - expected.loss) / max(1.0, abs(expected.loss))
    text = f"it is {found:.9g}, not {expected.loss:.9g}"
    return ComparedTensor(kind="loss", name="", difference=away, limit=_root(expected), text=text)


def _compare_gradient(name: str, found: torch.Tensor | None, expected: BatchGradients) -> ComparedTensor:
    one, root = expected.of[name], _root(expected)
    # What is nothing but rounding comes of terms as large as elsewhere.
    scale = expected.scale[name] + max(1e-2, 30 * root) * max(expected.scale.values())
    away = float(wide(one).norm()) if found is None else distance(found, one)
    compared = ComparedTensor(kind="gradient", name=name, difference=_ratio(away, scale), limit=root)
    if compared.agrees:
        return compared
    return replace(compared, text="there is none" if found is None else _times(found, one).strip())


def _root(expected: BatchGradients) -> float:
    """Largest difference by rounding: the root of that of the coarsest part, between none of the digits and all."""
    return _EXACT if expected.coarsest == torch.float64 else eps(expected.coarsest) ** 0.5


def _compare_values(
    kind: str,
    name: str,
    found: torch.Tensor | None,
    expected: torch.Tensor,
    relative: float | None = None,
) -> ComparedTensor:
    """Tensors of which numbers may differ by a few of their last places, or by a part of their norm."""
    if found is None or found.shape != expected.shape:
        return ComparedTensor(kind=kind, name=name, difference=math.inf, limit=0.0, text="it is missing")
    # A mask has infinite entries, which have no difference.
    if not (expected.is_floating_point() or expected.is_complex()) or torch.equal(found, expected):
        return _alike(kind, name, torch.equal(found, expected))
    scale = max(float(wide(expected).norm()), 1e-300)
    limit = _ROUNDING * eps(expected.dtype) if relative is None else relative
    return ComparedTensor(kind=kind, name=name, difference=distance(found, expected) / scale, limit=limit)


def _compare_weight(
    name: str, found: torch.Tensor | None, expected: torch.Tensor, before: torch.Tensor
) -> ComparedTensor:
    """Element by element: a few last places of the weight and of the largest change, more of that of the element."""
    if found is None:
        return ComparedTensor(kind="weight", name=name, difference=math.inf, limit=0.0, text="it is missing")
    if not found.numel() or torch.equal(found, expected):
        return ComparedTensor(kind="weight", name=name, difference=0.0, limit=eps(expected.dtype))
    exact, moved = wide(expected), (wide(expected) - wide(before)).abs()
    step = float(moved.max())
    places = 4 * exact.abs().maximum(wide(before).abs()) + _ROUNDING * moved + _CANCELLED * step
    allowed = eps(expected.dtype) * places
    excess = (wide(found) - exact).abs() / (allowed + torch.finfo(torch.float64).tiny)
    text = f"it has changed by up to {float((wide(found) - wide(before)).abs().max()):.3g}, not {step:.3g}"
    limit = 4 * eps(expected.dtype)
    return ComparedTensor(kind="weight", name=name, difference=limit * float(excess.max()), limit=limit, text=text)


def _compare_state(
    name: str, found: Mapping[str, Any], expected: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[ComparedTensor]:
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
            yield ComparedTensor(
                kind=kind, name=name, difference=plain.difference, limit=plain.limit * room, text=plain.text
            )


def _compare_options(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[ComparedTensor]:
    for key, value in expected.items():
        if isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool) and key in found:
            yield _alike(f'option "{key}"', name, _same(value, found[key]), f"it is {found[key]}, not {value}")


def _alike(kind: str, name: str, same: bool, text: str = "") -> ComparedTensor:
    """What is equal or not, with a text for where it is not."""
    return ComparedTensor(kind=kind, name=name, difference=0.0 if same else 1.0, limit=0.0, text="" if same else text)


def _by_kind(state: WholeState) -> dict[tuple[str, str], Any]:
    """All that a state has, by its kind in words and the name of the parameter or buffer."""
    return {
        **{("weight", name): one for name, one in state.parameters.items()},
        **{("buffer", name): one for name, one in state.buffers.items()},
        **{(f'optimizer\'s "{key}"', name): one for name, kept in state.optimizer.items() for key, one in kept.items()},
        **{
            (f'option "{key}"', name): one
            for group in state.groups
            for name in group.names
            for key, one in group.options.items()
            if isinstance(one, int | float)
        },
    }


def _same(one: Any, other: Any, *, exactly: bool = False) -> bool:
    if exactly and isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (int, float, torch.Tensor)) and isinstance(other, (int, float, torch.Tensor)):
        first, second = float(one), float(other)
        return abs(first - second) <= 1e-6 * abs(first) or first == second
    return type(one) is type(other)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference of two tensors."""
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


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}" if ranks else "no rank"


def eps(dtype: torch.dtype) -> float:
    """Distance from 1 to the next number of a type of floating point."""
    return torch.finfo(dtype).eps
