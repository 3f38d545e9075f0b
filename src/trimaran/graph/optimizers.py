"""What a job's optimizer does with its parameters, found out by trying it.

An optimizer is a function of the user's that may do anything. Whether it may update some parameters on one rank and
some on another, or parts of them, is not read off its name: it updates small tensors in the place of the parameters,

    together        all at once
    alone           each by itself         equal: every parameter is updated on its own ("separable")
    in parts        both parts of each     equal too: so is every element ("elementwise")

and what it makes of the options of each parameter is asked without any values, under the true shapes. The user's own
parameters are never stepped, and hooks on the trial's optimizers never fire. What is left out: an optimizer that does
another thing after thousands of steps than in the first 32.
"""

import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.units import format_some
from trimaran.base.user_errors import attempted, summary, told, users
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.user_code.held_state import HeldState, held_directly
from trimaran.user_code.model import quiet
from trimaran.user_code.randomness import preserved_randomness

# ---------------------------------------------------------------------------------------------------------------------
# What a loss function of the user's holds: modules and parameters, by the names under which it does


def modules_of(loss: Any) -> list[nn.Module]:
    """The modules that a loss is, or holds: as attributes of what it is bound to, arguments, or in its closure.

    Args:
        loss: of a job

    Example:
        >>> loss = (lambda criterion: lambda output, target: criterion(output, target))(nn.MSELoss())
        >>> modules_of(loss)
        [MSELoss()]
    """
    return list(dict.fromkeys(_held_by(loss, nn.Module).values()))


def _held_by(loss: Any, *kinds: type) -> dict[str, Any]:
    """What a loss holds of some classes, by its path, with the globals of its file, whichever it uses."""
    # Of a library's function or object, too, what it is bound to, or has in its closure and attributes.
    layers = (loss, getattr(loss, "func", None), getattr(loss, "__wrapped__", None))
    direct = {name: one for layer in layers for name, one in held_directly(layer).items()}
    return HeldState({"the loss": loss, **direct}, undoable=False, files=True).find(*kinds)


# Gradients grow from step to step, so that what is clipped at any norm is clipped in one of them. Each tensor, and each
# quarter of it, has its largest at another step, so that what is left out by a norm of all is not left out by its own.
_SCALES = (1e-4, 1.0, 1e4, 1.0)
# Elements of a tensor, steps, and how many of the first are steady. Large enough for optimizers that treat small
# tensors in another way than large ones, such as those of 8 bits (from 4,096 elements on). And long enough for those
# that clip by a running norm, or have their first preconditioner, after many steps; those that find their rate
# (Prodigy, D-Adaptation) raise it only where gradients keep their signs, as on a slope.
_ELEMENTS, _STEPS, _STEADY = 4200, 32, 16
_TRIED = 10
_SCHEDULED = 3
_CLOSURE = "its step computes the loss again"
_BY_SCHEDULE = "what the schedule makes of the options of"


MarkedTensor = TypeVar("MarkedTensor", bound=torch.Tensor)


class Trained(Sequence[nn.Parameter]):
    """Parameters under the names of the user's model, each once; what `Job.optimizer` is given.

    It iterates over parameters, as `model.parameters()` does, and has `named_parameters()`, as a model has.

    Args:
        named: name and parameter; of a tied weight the first name counts

    Example:
        >>> weight = nn.Parameter(torch.zeros(2, 2))
        >>> trained = Trained([("embedding.weight", weight), ("head.weight", weight)])
        >>> len(trained), [name for name, _ in trained.named_parameters()]
        (1, ['embedding.weight'])
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]] = ()) -> None:
        unique: dict[int, tuple[str, nn.Parameter]] = {}
        for name, parameter in named:
            unique.setdefault(id(parameter), (name, parameter))
        self._named = tuple(unique.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name in the user's model and parameter."""
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self._named)

    def __getitem__(self, index: Any) -> Any:
        return Trained(self._named[index]) if isinstance(index, slice) else self._named[index][1]


def marked(tensor: MarkedTensor, like: torch.Tensor) -> MarkedTensor:
    """A tensor in the place of another one, with what a user has written on that, for an optimizer to read.

    Args:
        tensor: a part of the other, or a stand-in
        like: it may have attributes, such as `weight.no_decay = True`

    Example:
        >>> weight = nn.Parameter(torch.zeros(2, 2))
        >>> weight.no_decay = True
        >>> marked(nn.Parameter(torch.zeros(1)), weight).no_decay
        True
    """
    vars(tensor).update({name: one for name, one in vars(like).items() if name != "_is_param"})
    return tensor


def trained_parameters(model: nn.Module) -> Trained:
    """The parameters of a model that are trained, with their names.

    Args:
        model: the user's
    """
    return Trained((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def named_in(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Trained:
    """Parameters under their names in a model.

    Args:
        model: the user's; it holds them now
        parameters: some of this optimizer's
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return Trained((names[id(parameter)], parameter) for parameter in parameters)


def make_optimizer(job: Job, parameters: Trained) -> Any:
    """The job's optimizer over some parameters.

    Args:
        job: makes it
        parameters: what it is given

    Raises:
        InputError: the job fails to make it, or makes something else
    """
    failed = (
        f"Job.optimizer of {job.name!r} failed on {len(parameters)} parameters "
        f"({format_some([name for name, _ in parameters.named_parameters()])}); it is called "
        "with those that one rank updates, also while a plan is made"
    )
    cannot = "optimizer.cannot-make"
    with users("Job.optimizer", job.optimizer, said=lambda error: InputError(f"{failed}: {told(error)}", code=cannot)):
        optimizer: Any = job.optimizer(parameters)
    if isinstance(optimizer, list | tuple | dict):
        raise InputError(
            f"Job.optimizer made a {type(optimizer).__name__} of {len(optimizer)}, and a job has one optimizer: give "
            "parameter groups to one, or where each has its loss, as in a GAN, make a job and a session of "
            "each in one script (examples/gan.py)",
            code="optimizer.not-an-optimizer",
            type=type(optimizer).__name__,
        )
    if not callable(getattr(optimizer, "step", None)) or not isinstance(getattr(optimizer, "param_groups", None), list):
        raise InputError(
            f"Job.optimizer of {job.name!r} must make a torch.optim.Optimizer, with step() and param_groups; it made a "
            f"{type(optimizer).__name__}. Where that holds several, with a loss each, make a job and a session of each "
            "in one script (examples/gan.py)"
        )
    return optimizer


def optimizer_without_values(job: Job, model: nn.Module) -> Any:
    """The job's optimizer over parameters of the true shapes, which take no memory.

    Args:
        job: makes it
        model: whose parameters are trained

    Raises:
        InputError: the job fails to make it
    """
    with _trying(job, model):
        return _asked(job, trained_parameters(model)).optimizer


def written_options(optimizer: Any) -> str:
    """The options of each group of an optimizer, the same text for the same options.

    Args:
        optimizer: any of torch
    """
    groups = [
        sorted((name, repr(value)) for name, value in group.items() if name != "params")
        for group in optimizer.param_groups
    ]
    return repr(groups)


def make_schedule(job: Job, optimizer: Any) -> Any:
    """The job's schedule of an optimizer; None: it has none.

    Args:
        job: makes it
        optimizer: whose rates it sets

    Raises:
        InputError: the job fails to make it, or its step wants what nobody can give
    """
    if job.lr_schedule is None:
        return None
    failed = f"Job.lr_schedule of {job.name!r} failed"
    with users("Job.lr_schedule", job.lr_schedule, said=lambda error: InputError(f"{failed}: {told(error)}")):
        schedule: Any = job.lr_schedule(optimizer)
    is_scored = job.metric is not None and job.evaluation_dataset is not None
    mode = getattr(schedule, "mode", "") if takes_metric(schedule) else ""
    if is_scored and mode == "min":
        raise InputError(
            f'the schedule {type(schedule).__name__} of Job.lr_schedule has mode="min" (torch\'s default), and follows '
            "Job.metric, where higher is better, so that it would lower the rate as long as the metric rises: take "
            'mode="max"; to follow a loss of the evaluation, let Job.metric return minus that loss, and take '
            'mode="max", threshold_mode="abs"; to follow the mean loss of each epoch, leave out Job.evaluation_dataset',
            code="schedule.min-of-metric",
        )
    if not is_scored and mode == "max":
        raise InputError(
            f'the schedule {type(schedule).__name__} of Job.lr_schedule has mode="max", and without Job.metric and '
            "Job.evaluation_dataset it follows the mean loss of each epoch, which it would take to get worse as it "
            'falls: give both, or take mode="min"',
            code="schedule.max-of-loss",
        )
    return schedule


def takes_metric(schedule: Any) -> bool:
    """Whether a schedule's step needs a metric, as that of `ReduceLROnPlateau` does.

    Args:
        schedule: of a job

    Raises:
        InputError: it needs something else, or there is no step

    Example:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> takes_metric(ReduceLROnPlateau(optimizer)), takes_metric(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        (True, False)
    """
    step = getattr(schedule, "step", None)
    if not callable(step):
        raise InputError(f"Job.lr_schedule must make a schedule with step(), it made a {type(schedule).__name__}")
    if isinstance(schedule, ReduceLROnPlateau):
        return True
    needed = _required(step)
    if not needed:
        return False
    if len(needed) == 1 and needed[0].startswith("metric"):
        return True
    raise InputError(
        f"the schedule {type(schedule).__name__} of Job.lr_schedule has a step({', '.join(needed)}), and a schedule is "
        "stepped once an update, as step(), or once an epoch, as step(metric): take one of torch.optim.lr_scheduler",
        code="schedule.step-takes-epoch",
    )


def without_hooks(optimizer: Any) -> int:
    """Take all hooks off an optimizer's step, so that it can be measured.

    Args:
        optimizer: that is not the one that trains

    Returns:
        How many there were.
    """
    # A class of torch's whose `__init__` was not called, as wrappers of another optimizer do, has none.
    hooks = [vars(optimizer).get(f"_optimizer_step_{when}_hooks", {}) for when in ("pre", "post")]
    found = sum(map(len, hooks))
    for one in hooks:
        one.clear()
    return found


def optimizer_traits(job: Job, model: nn.Module) -> OptimizerTraits:
    """Find out what a job's optimizer does with the parameters of its model.

    The job's optimizer and its schedule are made several times. Takes milliseconds, and changes nothing.

    Args:
        job: makes the optimizer and the schedule
        model: whose parameters are trained; whole

    Raises:
        InputError: the job fails to make its optimizer or its schedule
    """
    trained = trained_parameters(model)
    if not len(trained):
        return OptimizerTraits()
    with _trying(job, model) as put_back:
        return _find_out(job, model, trained, put_back)


@contextmanager
def _trying(job: Job, model: nn.Module | None = None) -> Iterator[Callable[[], None]]:
    """Put back what is drawn, and what the functions that make an optimizer and a schedule hold, as counts of calls."""
    held = HeldState({"optimizer": job.optimizer, "schedule": job.lr_schedule})
    with preserved_randomness(model), quiet():
        try:
            yield held.put_back
        finally:
            held.put_back()


def differing_option(job: Job, parameters: Trained, traits: OptimizerTraits) -> str:
    """What the job's optimizer would do differently over these parameters, or here, than where it was tried; or empty.

    A factory may look at what it is given, at the last layer's number, at shapes, at how many groups there are, or at
    the number of ranks. So the options of each parameter are compared, now and after a few steps of the schedule.

    Args:
        job: makes the optimizer and the schedule
        parameters: that one rank updates, of the shapes that they have there
        traits: of the optimizer over all parameters
    """
    with _trying(job):
        found = _asked(job, parameters).options
    for name, _ in parameters.named_parameters():
        here, there = found.get(name), traits.options.get(name)
        if (here is None) != (there is None):
            holds = "holds" if here is not None else "does not hold"
            return f"it {holds} {name} when it is given {len(parameters)} of the parameters, unlike when given all"
        for one, other in zip(here or (), there or (), strict=False):
            for key in one.keys() | other.keys():
                if not same(one.get(key), other.get(key)):
                    return (
                        f"{key} of {name} is {one.get(key)!r} when it is given {len(parameters)} parameters "
                        f"of one rank, and {other.get(key)!r} when it is given all"
                    )
    return ""


Named = Sequence[tuple[str, torch.Tensor]]
Options = Mapping[str, Any]


class Trial:
    """An optimizer that updates small tensors in the place of parameters, and what it did to them.

    Args:
        make: the optimizer, over the tensors; hooks on its step are taken off
        starts: the tensors; they are copied
        schedule: makes one of it; None: there is none

    Attributes:
        given: the tensors
        values: of each tensor, at first and after each step
        options: of each tensor by name, at first; then those that each step of the schedule has changed

    Raises:
        Exception: whatever the optimizer raises; so does `take`
    """

    def __init__(
        self, make: Callable[[Trained], Any], starts: Named, schedule: Callable[[Any], Any] | None = None
    ) -> None:
        self.given = Trained((name, marked(nn.Parameter(start.detach().clone()), start)) for name, start in starts)
        self.optimizer = make(self.given)
        self.schedule = None if schedule is None else schedule(self.optimizer)
        without_hooks(self.optimizer)
        self.values = [self._copies()]
        self.options = [_options(self.optimizer, self.given)]

    def take(
        self,
        gradients: Sequence[Sequence[torch.Tensor]],
        *,
        closure: Callable[[], Any] | None = None,
        step: Callable[[], Any] | None = None,
    ) -> "Trial":
        """A step by each of some gradients, and one of the schedule, until that comes to its end.

        Args:
            gradients: of each step, one a tensor
            closure: given to each step; None: nothing is
            step: in the place of the optimizer's
        """
        update = step or self.optimizer.step
        for of_step in gradients:
            for parameter, gradient in zip(self.given, of_step, strict=True):
                parameter.grad = gradient.clone()
            # A schedule may begin, or stay for long, without a rate.
            idle = [one for one in self.optimizer.param_groups if isinstance(one.get("lr"), float | int)]
            idle = [one for one in idle if not one["lr"]]
            for group in idle:
                group["lr"] = 1e-2
            update(*(() if closure is None else (closure,)))
            for group in idle:
                group["lr"] = 0.0
            self.values.append(self._copies())
            self._follow()
        return self

    def states(self) -> list[dict[Any, Any]]:
        """What the optimizer keeps of each tensor."""
        return [dict(self.optimizer.state.get(one, {})) for one in self.given]

    def keeps_gradients(self) -> bool:
        """Whether its own `zero_grad` leaves gradients that are not zero."""
        # torch's wraps the step of a class whose `__init__` has not called that of torch.
        if getattr(type(self.optimizer), "zero_grad", None) in (None, torch.optim.Optimizer.zero_grad):
            return False
        self.optimizer.zero_grad()
        return any(one.grad is not None and bool(one.grad.count_nonzero()) for one in self.given)

    def go_on_from(self, other: "Trial") -> None:
        """Take over what another trial over the same tensors keeps, as from a checkpoint: state and groups alone."""
        packed = copy.deepcopy(other.optimizer.state_dict())
        self.optimizer.load_state_dict({key: packed[key] for key in ("state", "param_groups")})
        for own, theirs in zip(self.given, other.given, strict=True):
            for key, value in other.optimizer.state.get(theirs, {}).items():
                # torch gives state the dtype of its parameter, which not all of it has.
                if isinstance(value, torch.Tensor) and self.optimizer.state[own][key].dtype != value.dtype:
                    self.optimizer.state[own][key] = value.clone()
        if self.schedule is not None and other.schedule is not None:
            self.schedule.load_state_dict(copy.deepcopy(other.schedule.state_dict()))

    def _copies(self) -> list[torch.Tensor]:
        return [one.detach().clone() for one in self.given]

    def _follow(self) -> None:
        if self.schedule is None:
            return
        before = _options(self.optimizer, self.given)
        try:
            self.schedule.step(*((1.0,) if takes_metric(self.schedule) else ()))
        except Exception:
            if len(self.options) == 1:
                raise
            self.schedule = None  # the run tells where
        self.options.append(
            {
                name: {key: one for key, one in now.items() if not same(one, before[name].get(key))}
                for name, now in _options(self.optimizer, self.given).items()
            }
        )


def stand_ins(
    parameters: Trained, names: Iterable[str], *, elements: int, steps: int, steady: int = 0
) -> tuple[Named, list[list[torch.Tensor]]]:
    """Small tensors in fp64 in the place of parameters, the same on every rank, and gradients of some steps.

    Args:
        parameters: whose number of dims, size up to a limit and device they have
        names: of those that are wanted
        elements: about how many a tensor has at most
        steps: how many
        steady: of as many of the first ones gradients are of one size, with the signs that the tensors have at first
    """
    generator = torch.Generator().manual_seed(0)
    by_name = dict(parameters.named_parameters())
    # For as long as this takes: tensors of it are no part of a training.
    scales = functools.cache(_scales)

    def draw(like: torch.Tensor, step: int | None = None) -> torch.Tensor:
        side = max(2, int(elements ** (1 / max(1, like.ndim))))
        shape = tuple(min(size, side) for size in like.shape)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return marked((drawn if step is None else drawn * scales(shape, step)).to(like.device), like)

    starts = [(name, draw(by_name[name])) for name in names]
    return starts, [
        [
            draw(start).copysign_(start) if step < steady else draw(start, step + place)
            for place, (_, start) in enumerate(starts)
        ]
        for step in range(steps)
    ]


def _scales(shape: tuple[int, ...], step: int) -> torch.Tensor:
    """What the gradient of a tensor is multiplied by: another number in each half of the first dim and of the second.

    Example:
        >>> _scales((2, 2), 0).tolist(), float(_scales((), 1))
        ([[0.0001, 10000.0], [1.0, 1.0]], 1.0)
    """
    quarter = torch.zeros((), dtype=torch.long)
    for dim, size in enumerate(shape[:2]):
        half = (torch.arange(size) >= size / 2).long() * (dim + 1)
        quarter = quarter.unsqueeze(-1) + half
    quarter = quarter.reshape([*shape[:2], *(1 for _ in shape[2:])])
    return torch.tensor(_SCALES, dtype=torch.float64)[(quarter + step) % len(_SCALES)]


def _find_out(job: Job, model: nn.Module, trained: Trained, put_back: Callable[[], None]) -> OptimizerTraits:
    asked = _asked(job, trained)
    hooked = without_hooks(asked.optimizer) > 0
    names = {id(one): name for name, one in model.named_parameters()}
    held = _held_by(job.loss, nn.Module, Tensor).items()
    of_loss = {id(one): name for name, one in held} | {
        id(one): f"{path} of {name}" for name, part in held if isinstance(part, nn.Module)
        for path, one in part.named_parameters()
    }  # fmt: skip
    given = {id(one) for one in asked.given}
    others = [one for group in asked.optimizer.param_groups for one in group["params"] if id(one) not in given]
    extra = [{**of_loss, **names}.get(id(one), f"a tensor of shape {tuple(one.shape)}") for one in others]
    # Its step may reach the model by a name, and would write to it also while it is tried.
    parts = {id(one): name or "the model" for name, one in (*model.named_modules(), *model.named_parameters())}
    reached = HeldState({"the optimizer": asked.optimizer}, undoable=False).parts()
    found = OptimizerTraits(
        class_name=type(asked.optimizer).__name__,
        separable=False,
        elementwise=False,
        hooked=hooked,
        needs_metric=asked.needs_metric,
        extra=(*extra, *(parts[id(one)] for one in reached if id(one) in parts)),
        foreign=tuple(name for name, one in zip(extra, others, strict=True) if id(one) not in names),
        missing=tuple(name for name, _ in trained.named_parameters() if name not in asked.options),
        options=asked.options,
    )
    halves = all(callable(getattr(asked.optimizer, name, None)) for name in ("first_step", "second_step"))
    if halves or _required(getattr(type(asked.optimizer), "step", None))[1:]:
        return replace(found, needs_closure=True, reason=_CLOSURE)
    if found.extra:
        return replace(found, reason=f"it holds {format_some(found.extra)}, which it was not given")
    tried = _representatives(trained, asked.options)
    if not tried:
        return replace(found, separable=True, elementwise=True)
    with _unwritable(model):
        return _try(job, found, trained, tried, put_back)


@contextmanager
def _unwritable(model: nn.Module) -> Iterator[None]:
    """A step that reaches the model, as by a global, raises where it writes to it."""
    kept = [(one, one.data) for one in model.parameters() if type(one.data) is Tensor and one.data.dim()]
    for one, data in kept:
        one.data = data.new_zeros(()).expand(data.shape)
    try:
        yield
    finally:
        for one, data in kept:
            one.data = data


def _try(
    job: Job, found: OptimizerTraits, trained: Trained, tried: Sequence[str], put_back: Callable[[], None]
) -> OptimizerTraits:
    schedule = None if job.lr_schedule is None else partial(make_schedule, job)

    def begin(starts: Named) -> Trial:
        put_back()
        return Trial(partial(make_optimizer, job), starts, schedule)

    starts, gradients = stand_ins(trained, tried, elements=_ELEMENTS, steps=_STEPS, steady=_STEADY)
    try:
        whole = begin(starts).take(gradients)
    except Exception as error:  # noqa: BLE001 it is the user's
        needs = _runs_with_closure(begin, starts, gradients)
        reason = _CLOSURE if needs else f"it could not be tried ({summary(error)})"
        return replace(found, needs_closure=needs, reason=reason)
    again = begin(starts).take(gradients)
    found = replace(
        found,
        draws=not _alike(again.values, whole.values),
        schedule_draws=not same(again.options, whole.options),
        keeps_gradients=again.keeps_gradients(),
        kept={name: (one.shape, _forms(state)) for (name, one), state in zip(starts, whole.states(), strict=True)},
    )
    if found.draws or found.schedule_draws:
        return replace(found, separable=True, elementwise=True)
    found = replace(found, forgets=_forgotten(begin, starts, gradients))
    if same(whole.values[0], whole.values[-1]):
        return replace(found, reason="its step changes nothing, given gradients")
    case, each = _Case(starts, gradients, whole), range(len(tried))
    alone = (_difference(begin, case, [number], None, "alone than with others") for number in each)
    across = next(filter(None, alone), "")
    # Ranks that share a layer have rows of its weights, or columns.
    shares = (partial(_part, *of) for of in itertools.product((0, 1), (False, True)))
    in_parts = (_difference(begin, case, each, share, "in parts than as a whole") for share in shares)
    split = across or next(filter(None, in_parts), "")
    reason = f"it looks across parameters: {across}" if across else split
    return replace(
        found, separable=not across, elementwise=not split, reason=reason, schedule_reads=_BY_SCHEDULE in reason
    )


class _Case(NamedTuple):
    """Tensors, their gradients, and what came of them together."""

    starts: Named
    gradients: list[list[torch.Tensor]]
    whole: Trial


def _difference(
    begin: Callable[[Named], Trial],
    case: _Case,
    numbers: Sequence[int],
    part: Callable[[torch.Tensor], torch.Tensor] | None,
    how: str,
) -> str:
    """What differs where some of the tensors are updated by themselves, or parts of them; empty: nothing."""
    take = part or (lambda tensor: tensor)
    names = [case.starts[number][0] for number in numbers]
    try:
        apart = begin([(name, take(case.starts[number][1])) for name, number in zip(names, numbers, strict=True)])
        apart.take([[take(step[number]) for number in numbers] for step in case.gradients])
    except Exception as error:  # noqa: BLE001 it is the user's
        return f"it fails on {format_some(names)} {how} ({summary(error)})"
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        here, there = ([options.get(name) for options in trial.options] for trial in (apart, case.whole))
        if not same(here, there):
            return f"{_BY_SCHEDULE if same(here[:1], there[:1]) else 'the options of'} {name} are others {how}"
        if not _alike([[one[place]] for one in apart.values], [[take(one[number])] for one in case.whole.values]):
            return f"{name} is updated differently {how}"
    return ""


def _part(dim: int, second: bool, tensor: torch.Tensor) -> torch.Tensor:
    split = dim if tensor.ndim > dim else 0
    if not tensor.ndim or tensor.shape[split] < 2:
        return tensor
    # Not in the middle: blocks of a few hundred elements would begin there too.
    first = max(1, tensor.shape[split] * 2 // 5 - 1)
    return marked(tensor.narrow(split, *((first, tensor.shape[split] - first) if second else (0, first))), tensor)


def _forgotten(begin: Callable[[Named], Trial], starts: Named, gradients: list[list[torch.Tensor]]) -> str:
    """What an optimizer and a schedule that are put back do otherwise than without a break; empty: nothing."""
    # Whatever else fails, the training meets it too and tells it better.
    with suppress(Exception):
        # One step, so that a count that is lost is off in any period.
        first = begin(starts).take(gradients[:1])
        second = begin([*first.given.named_parameters()])
        try:
            second.go_on_from(first)
        except Exception as error:  # noqa: BLE001 it is the user's
            return f"load_state_dict() with the state and the groups of small tensors raised {summary(error)}"
        for trial in (first, second):
            trial.take(gradients * 2)
        if not same(first.options[2:], second.options[1:]):
            return "the schedule sets other options than without a break"
        if not _alike(first.values[1:], second.values):
            return "small tensors are updated otherwise than without a break"
    return ""


def _forms(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """What is kept of a tensor; tensors without their values."""
    return {
        key: torch.empty_like(one, device="meta") if isinstance(one, torch.Tensor) else one
        for key, one in state.items()
    }


def _runs_with_closure(
    begin: Callable[[Named], Trial], starts: Named, gradients: Sequence[Sequence[torch.Tensor]]
) -> bool:
    closure = partial(torch.zeros, (), requires_grad=True)
    return attempted("Job.optimizer", lambda: bool(begin(starts).take(gradients, closure=closure)), False)


def _alike(found: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether tensors in fp64 change alike in each step, but for the order of sums."""
    steps = zip(itertools.pairwise(found), itertools.pairwise(expected), strict=True)
    return all(
        torch.equal(one, other)
        or torch.allclose(
            one - old,
            other - former,
            rtol=1e-6,
            atol=1e-13 * (1 + float(other.abs().nan_to_num(0.0, 0.0).max())),
            equal_nan=True,
        )
        for (olds, now), (formers, then) in steps
        for old, one, former, other in zip(olds, now, formers, then, strict=True)
    )


class _OptionsAsked(NamedTuple):
    """An optimizer over parameters without values, and the options of each by name, at first and along the schedule."""

    optimizer: Any
    given: Trained
    options: dict[str, tuple[Options, ...]]
    needs_metric: bool


def _asked(job: Job, parameters: Trained) -> _OptionsAsked:
    """The job's optimizer over parameters of the true shapes, which take no memory."""

    def over(empty: Callable[[torch.Tensor], torch.Tensor]) -> _OptionsAsked:
        given = Trained((name, marked(nn.Parameter(empty(one)), one)) for name, one in parameters.named_parameters())
        optimizer = make_optimizer(job, given)
        along = [_options(optimizer, given)]
        schedule = make_schedule(job, optimizer)
        needs_metric = schedule is not None and takes_metric(schedule)
        with suppress(Exception):  # it has come to its end; the run tells where
            for _ in range(0 if schedule is None or needs_metric else _SCHEDULED):
                along.append(_options(optimizer, given))
                schedule.step()
        options = {name: tuple(one[name] for one in along if name in one) for name in along[0]}
        return _OptionsAsked(optimizer, given, options, needs_metric)

    try:
        return over(lambda like: torch.empty(like.shape, dtype=like.dtype, device="meta"))
    except InputError:
        # Some forms, such as fused ones, ask for the device, and a schedule for values: one zero in all places.
        return over(lambda like: torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape))


def parameter_groups(job: Job, parameters: Trained) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """The groups that the optimizer of one process has, each the names of its parameters in its order.

    Args:
        job: makes the optimizer
        parameters: all that are trained

    Returns:
        The groups; and whether the optimizer was given names, which its `state_dict` has then.

    Raises:
        InputError: the job fails to make it over parameters without values
    """
    with _trying(job):
        asked = _asked(job, parameters)
    names = {id(one): name for name, one in asked.given.named_parameters()}
    groups = asked.optimizer.param_groups
    named = any("param_names" in group for group in groups)
    return tuple(tuple(names[id(one)] for one in group["params"] if id(one) in names) for group in groups), named


def _options(optimizer: Any, parameters: Trained) -> dict[str, Options]:
    """The options of the groups of parameters, by their names; of those that it does not hold there are none."""
    names = {id(one): name for name, one in parameters.named_parameters()}
    return {
        names[id(parameter)]: {
            key: one.detach().clone() if isinstance(one, torch.Tensor) else one
            for key, one in group.items()
            if key not in ("params", "param_names")
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) in names
    }


def _representatives(parameters: Trained, options: Mapping[str, tuple[Mapping[str, Any], ...]]) -> tuple[str, ...]:
    """Parameters that stand for all: the first and the last of each number of dims, form of options and attributes."""
    kinds: dict[object, list[str]] = {}
    for name, parameter in parameters.named_parameters():
        if name in options:
            forms = tuple(sorted((key, str(one)) for key, one in options[name][0].items() if _is_form(one)))
            kinds.setdefault((parameter.ndim, forms, tuple(vars(parameter))), []).append(name)
    ends = [dict.fromkeys((names[0], names[-1])) for names in kinds.values()]
    return tuple(name for names in ends for name in names)[:_TRIED]


def _is_form(option: Any) -> bool:
    """Whether an option says how, not how much."""
    return option is None or isinstance(option, bool | str)


def _required(function: Any) -> list[str]:
    """Names of the arguments that a call must give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in another language
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in variadic]


def same(one: Any, other: Any) -> bool:
    """Whether two options or states are equal, bit for bit; functions are, where they are of one type."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        if not both or one.shape != other.shape:
            return False
        return one.is_meta or other.is_meta or bool(torch.equal(one, other.to(one.device)))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    # What says nothing of its value, such as a function, is taken for equal where it is of one type.
    return type(one) is type(other) and (callable(one) or bool(one == other))
