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

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.units import format_some
from trimaran.base.user_errors import attempted, told, users
from trimaran.graph.behaviour import OptimizerTraits, ScheduleReads
from trimaran.user_code.held_state import HeldState
from trimaran.user_code.model import quiet
from trimaran.user_code.randomness import find_moved, host_states, preserved_randomness

# ---------------------------------------------------------------------------------------------------------------------
# What a loss function of the user's holds: modules and parameters, by the names under which it does


def modules_of(loss: Any) -> list[nn.Module]:
    """The modules that a loss is, or holds: as attributes of what it is bound to, arguments, or in its closure.

    Args:
        loss: of a job

    Example:
        >>> criterion = nn.CrossEntropyLoss()
        >>> modules_of(lambda output, target: criterion(output, target)) == [criterion]
        True
    """
    return list(dict.fromkeys(value for _, value in _held(loss) if isinstance(value, nn.Module)))


def _held(loss: Any) -> Iterator[tuple[str, Any]]:
    """What a function of the user's holds, by the name under which it does."""
    for layer in (loss, getattr(loss, "func", None), getattr(loss, "__wrapped__", None)):
        if layer is None:
            continue
        yield "", layer
        yield "", getattr(layer, "__self__", None)
        yield from _seen_by(layer)
        arguments = getattr(layer, "args", ())
        yield from (("", value) for value in (arguments if isinstance(arguments, tuple) else ()))
        yield from (getattr(layer, "keywords", None) or {}).items()
        if not isinstance(layer, nn.Module) and hasattr(type(layer), "__call__"):  # noqa: B004 - what it is bound to
            yield from (getattr(layer, "__dict__", None) or {}).items()


def _seen_by(function: Any) -> Iterator[tuple[str, Any]]:
    try:
        seen = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    yield from {**seen.nonlocals, **seen.globals}.items()


def parameter_names(loss: Any) -> dict[int, str]:
    """The names of the parameters and tensors that a loss holds, by id.

    Args:
        loss: of a job
    """
    found: dict[int, str] = {}
    for name, value in _held(loss):
        if isinstance(value, nn.Module):
            for path, one in value.named_parameters():
                found.setdefault(id(one), f"{name}.{path}" if name else path)
        elif isinstance(value, Tensor):
            found.setdefault(id(value), name)
    return found


# Gradients grow from step to step, so that what is clipped at any norm is clipped in one of them. Each tensor, and each
# quarter of it, has its largest at another step, so that what is left out by a norm of all is not left out by its own.
_SCALES = (1e-4, 1.0, 1e4, 1.0)
_STEPS = 8
# Large enough for optimizers that treat small tensors in another way than large ones, such as those of 8 bits.
_ELEMENTS = 9216
# An optimizer may clip by a running norm, or have its first preconditioner, after as many. In the first half of them
# gradients keep their signs, as on a slope: those that find their rate (Prodigy, D-Adaptation) raise it there only.
_STEPS_OF_SMALL = 32
_ELEMENTS_OF_SMALL = 64
_TRIED = 10
_SCHEDULED = 3


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

    @overload
    def __getitem__(self, index: int) -> nn.Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> "Trained": ...
    def __getitem__(self, index: int | slice) -> "nn.Parameter | Trained":
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
        f"Job.optimizer of {job.name!r} failed on {len(parameters)} parameters ({_some(parameters)}); it is called "
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


def parts_of_update(job: Job, model: nn.Module) -> dict[str, Any]:
    """What updates a model, by what it is called: its optimizer, made over parameters without values, and the schedule.

    Args:
        job: makes them
        model: whose parameters are trained

    Raises:
        InputError: the job fails to make its optimizer
    """
    with preserved_randomness(model), quiet():
        made = _make_without_values(job, trained_parameters(model)).made
    hooks = [one for name, kept in vars(made).items() if name.startswith("_optimizer_step_") for one in kept.values()]
    return {"the optimizer": made, "a hook on its step": tuple(hooks), "the schedule": job.lr_schedule}


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
    found = 0
    for register in ("register_step_pre_hook", "register_step_post_hook"):
        if not hasattr(optimizer, register):
            continue
        try:
            hooks = getattr(optimizer, register)(_nothing).hooks_dict_ref()
        except AttributeError:
            # A class of torch's whose `__init__` was not called, as wrappers of another optimizer do, takes none.
            continue
        found += len(hooks) - 1
        hooks.clear()
    return found


def closure_pattern(optimizer: Any) -> str:
    """What in an optimizer's interface says that its step computes the loss again; empty: nothing.

    Args:
        optimizer: of a job
    """
    if all(callable(getattr(optimizer, name, None)) for name in ("first_step", "second_step")):
        return "first_step() and second_step()"
    own = getattr(type(optimizer), "step", None)
    # A schedule wraps the step of an object, and the wrapper has the signature of the class's.
    needed = _required(optimizer.step) if own is None else _required(own)[1:]
    return f"step({', '.join(needed)})" if needed else ""


def check_closure(optimizer: Any) -> None:
    """Refuse an optimizer whose step computes the loss again.

    Args:
        optimizer: of a job

    Raises:
        InputError: it does
    """
    pattern = closure_pattern(optimizer)
    if pattern:
        raise InputError(
            f"{type(optimizer).__name__} has {pattern}: it computes loss and gradients again within an update, and a "
            "step here runs each microbatch forward and backward once. Use an optimizer whose step() needs no closure, "
            "such as torch.optim.AdamW or SGD, or train in your plain loop",
            code="optimizer.needs-closure",
            optimizer=type(optimizer).__name__,
        )


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
    with preserved_randomness(model), quiet():
        return _find_out(job, model, trained)


def follows_ranks(job: Job, model: nn.Module, traits: OptimizerTraits) -> bool:
    """Whether the job's optimizer or schedule has other options here, among ranks, than where it was tried.

    Args:
        job: makes them
        model: whose parameters are trained; whole
        traits: of the optimizer in one process
    """
    trained = trained_parameters(model)
    if not len(trained):
        return False
    try:
        with preserved_randomness(model), quiet():
            found, _ = _ask_options(job, trained)
    except Exception:  # noqa: BLE001 - as where it asks for a device that is not here
        return False
    return any(
        not same(one.get(key), other.get(key))
        for name, options in traits.options.items()
        for one, other in zip(found.get(name, ()), options, strict=False)
        for key in one.keys() | other.keys()
    )


def differing_option(job: Job, parameters: Trained, traits: OptimizerTraits) -> str:
    """What the job's optimizer would do differently over these parameters than over all; empty: nothing.

    A factory may look at what it is given: at the last layer's number, at shapes, at how many groups there are. So the
    options of each parameter are compared, now and after a few steps of the schedule.

    Args:
        job: makes the optimizer and the schedule
        parameters: that one rank updates, of the shapes that they have there
        traits: of the optimizer over all parameters
    """
    with preserved_randomness(), quiet():
        found, _ = _ask_options(job, parameters)
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


def identity_fault(optimizer: Any, parameters: Trained, traits: OptimizerTraits) -> str:
    """What an optimizer over the user's own parameters holds or sets otherwise than over stand-ins; empty: nothing.

    A factory may know parameters by `id`, or look at their values, of which shards have neither.

    Args:
        optimizer: over the parameters
        parameters: of the user's model
        traits: of the optimizer over stand-ins
    """
    own = _options(optimizer)
    for name, parameter in parameters.named_parameters():
        here, there = own.get(id(parameter)), traits.options.get(name)
        if (here is None) != (there is None) or (here is not None and there and not same(here, there[0])):
            return f"it treats {name} otherwise than another parameter of that name and shape"
    return ""


Named = Sequence[tuple[str, torch.Tensor]]


class Trial:
    """An optimizer that updates small tensors in the place of parameters, and what it did to them.

    Args:
        make: the optimizer, over the tensors; hooks on its step are taken off
        starts: the tensors; they are copied
        schedule: makes one of it; None: there is none

    Attributes:
        values: of each tensor, after each step
        options: of each tensor, at first and after each step of the schedule; None where the optimizer does not hold it
        drew: random numbers were drawn

    Raises:
        Exception: whatever the optimizer raises; so does `take`
    """

    def __init__(
        self, make: Callable[[Trained], Any], starts: Named, schedule: Callable[[Any], Any] | None = None
    ) -> None:
        self.named = [(name, marked(nn.Parameter(start.detach().clone()), start)) for name, start in starts]
        self.optimizer = make(Trained(self.named))
        self.schedule = None if schedule is None else schedule(self.optimizer)
        without_hooks(self.optimizer)
        own = {id(parameter) for _, parameter in self.named}
        if any(id(held) not in own for group in self.optimizer.param_groups for held in group["params"]):
            raise InputError("it holds parameters that it was not given")
        for group in self.optimizer.param_groups if self.schedule is None else ():
            # A schedule may be what gives it a rate.
            if isinstance(group.get("lr"), float | int) and not group["lr"]:
                group["lr"] = 1e-2
        self.values: list[tuple[torch.Tensor, ...]] = []
        self.options: list[list[Mapping[str, Any] | None]] = []
        self.drew = False
        self._note_options()

    def take(
        self,
        gradients: Sequence[Sequence[torch.Tensor]],
        *,
        closure: Callable[[], Any] | None = None,
        forgotten: bool = True,
        step: Callable[[], Any] | None = None,
        apart: bool = False,
    ) -> "Trial":
        """A step by each of some gradients; a schedule that comes to its end ends them.

        Args:
            gradients: of each step, one a tensor
            closure: given to each step; None: nothing is
            forgotten: they are, before the schedule is stepped
            step: in the place of the optimizer's
            apart: one tensor after the other, the first group narrowed to it
        """
        gpus = sorted({one.device.index for _, one in self.named if one.is_cuda})
        # `torch.manual_seed` would seed other GPUs, too.
        for generator in (torch.default_generator, *(torch.cuda.default_generators[index] for index in gpus)):
            generator.manual_seed(0)
        before, on_gpus = host_states(), [torch.cuda.get_rng_state(index) for index in gpus]
        parameters, update = [one for _, one in self.named], step or self.optimizer.step
        for of_step in gradients:
            for parameter, gradient in zip(parameters, of_step, strict=True):
                parameter.grad = gradient.clone()
            for one in parameters if apart else ():
                self.optimizer.param_groups[0]["params"] = [one]
                update()
            if apart:
                self.optimizer.param_groups[0]["params"] = parameters
            else:
                update(*(() if closure is None else (closure,)))
            self.values.append(tuple(parameter.detach().clone() for parameter in parameters))
            for parameter in parameters if forgotten and self.schedule is not None else ():
                parameter.grad = None
            try:
                if self.schedule is not None:
                    self.schedule.step(*((1.0,) if takes_metric(self.schedule) else ()))
            except Exception:
                if len(self.options) == 1:
                    raise
                break  # the run tells where
            self._note_options()
        self.drew = bool(find_moved(before)) or not same(on_gpus, [torch.cuda.get_rng_state(one) for one in gpus])
        return self

    def states(self) -> list[dict[Any, Any]]:
        """What the optimizer keeps of each tensor."""
        return [dict(self.optimizer.state.get(parameter, {})) for _, parameter in self.named]

    def keeps_gradients(self) -> bool:
        """Whether its own `zero_grad` leaves gradients that are not zero."""
        if getattr(type(self.optimizer), "zero_grad", None) in (None, torch.optim.Optimizer.zero_grad):
            return False
        self.optimizer.zero_grad()
        return any(one.grad is not None and bool(one.grad.count_nonzero()) for _, one in self.named)

    def _note_options(self) -> None:
        held = _options(self.optimizer)
        self.options.append([held.get(id(parameter)) for _, parameter in self.named])


def stand_ins(
    parameters: Trained, names: Iterable[str], *, elements: int = _ELEMENTS, steps: int = _STEPS, steady: int = 0
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
    scales: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}

    def draw(like: torch.Tensor, step: int | None) -> torch.Tensor:
        side = max(2, int(elements ** (1 / max(1, like.ndim))))
        shape = [min(size, side) for size in like.shape]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if step is not None:
            key = tuple(shape), step % len(_SCALES)
            scales[key] = scales[key] if key in scales else _scales(*key)
            drawn = drawn * scales[key]
        return marked(drawn.to(like.device), like)

    chosen = [(name, by_name[name]) for name in names]
    starts = [(name, draw(like, None)) for name, like in chosen]
    pairs = [(like, start) for (_, like), (_, start) in zip(chosen, starts, strict=True)]
    return starts, [
        [
            draw(like, None).copysign_(start) if step < steady else draw(like, step + place)
            for place, (like, start) in enumerate(pairs)
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


def try_steps(
    job: Job, starts: Named, gradients: Sequence[Sequence[torch.Tensor]], *, closure: Callable[[], Any] | None = None
) -> Trial:
    """Let the job's optimizer update tensors, as `Trial.take`."""
    return Trial(partial(make_optimizer, job), starts).take(gradients, closure=closure)


def try_longer(
    job: Job, parameters: Trained, names: Iterable[str]
) -> tuple[Named, list[list[torch.Tensor]], Trial | None]:
    """Let the job's optimizer take more steps over smaller tensors: those, their gradients, and what came of it.

    Args:
        job: makes the optimizer
        parameters: which tensors stand for
        names: of those that are wanted
    """
    for elements in (_ELEMENTS_OF_SMALL, _ELEMENTS):
        small, later = stand_ins(
            parameters, names, elements=elements, steps=_STEPS_OF_SMALL, steady=_STEPS_OF_SMALL // 2
        )
        # It is the user's, and may need larger tensors.
        with suppress(Exception):
            return small, later, try_steps(job, small, later)
    return [], [], None


def unchanged(starts: Named, trial: Trial) -> bool:
    """Whether a trial has changed nothing, as where hooks on the user's own parameters update them.

    Args:
        starts: what was tried
        trial: of it
    """
    return all(torch.equal(one, start.to(one)) for one, (_, start) in zip(trial.values[-1], starts, strict=True))


def equal_values(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> bool:
    """Whether tensors in fp64 are equal, but for the order of sums."""
    return all(
        torch.equal(*pair) or torch.allclose(*pair, rtol=1e-9, atol=1e-12, equal_nan=True)
        for pair in zip(found, expected, strict=True)
    )


def _find_out(job: Job, model: nn.Module, trained: Trained) -> OptimizerTraits:
    options, optimizer = _ask_options(job, trained)
    hooked = without_hooks(optimizer) > 0
    held = {id(one): one for group in optimizer.param_groups for one in group["params"]}
    names = {id(one): name for name, one in model.named_parameters()}
    of_loss = {key: f"{name} of the loss" for key, name in parameter_names(job.loss).items()}
    phantoms = {id(one) for one in optimizer.given}
    others = [one for key, one in held.items() if key not in phantoms]
    extra = tuple({**of_loss, **names}.get(id(one), f"a tensor of shape {tuple(one.shape)}") for one in others)
    foreign = tuple(name for name, one in zip(extra, others, strict=True) if id(one) not in names)
    # Its step may reach the model by a name, and would write to it also while it is tried.
    parts = {id(one): name or "the model" for name, one in (*model.named_modules(), *model.named_parameters())}
    reached = HeldState({"the optimizer": optimizer.made}, undoable=False).parts()
    extra = (*extra, *(parts[id(one)] for one in reached if id(one) in parts))
    missing = tuple(name for name, _ in trained.named_parameters() if name not in options)
    common: dict[str, Any] = {
        "class_name": type(optimizer.made).__name__,
        "hooked": hooked,
        "needs_metric": optimizer.needs_metric,
        "extra": extra,
        "foreign": foreign,
        "missing": missing,
        "options": options,
    }
    unlike: dict[str, Any] = {"separable": False, "elementwise": False}
    if closure_pattern(optimizer.made):
        return OptimizerTraits(**common, **unlike, needs_closure=True, reason="its step computes the loss again")
    if extra:
        return OptimizerTraits(**common, **unlike, reason=f"it holds {format_some(extra)}, which it was not given")
    tried = _representatives(trained, options)
    if not tried:
        return OptimizerTraits(**common)
    starts, gradients = stand_ins(trained, tried)
    try:
        together = try_steps(job, starts, gradients)
    except Exception as error:  # noqa: BLE001 it is the user's
        if _runs_with_closure(job, starts, gradients):
            return OptimizerTraits(**common, **unlike, needs_closure=True, reason="its step computes the loss again")
        return OptimizerTraits(**common, **unlike, tried=tried, reason=f"it could not be tried ({_line(error)})")
    reads = _read_by_schedule(job, trained, list(options), tried)
    keeps = together.keeps_gradients()
    common |= {"draws": together.drew, "keeps_gradients": keeps, "tried": tried, "schedule_reads": reads}
    if unchanged(starts, together):
        return OptimizerTraits(**common, **unlike, reason="its step changes nothing, given gradients")
    reason = _difference(job, starts, gradients, together, [[number] for number in range(len(starts))])
    small, later, longer = ([], [], None) if reason else try_longer(job, trained, tried)
    if longer is not None:
        reason = _difference(job, small, later, longer, [[number] for number in sorted({0, len(small) - 1})])
    if reason:
        return OptimizerTraits(**common, **unlike, reason=f"it looks across parameters: {reason}")
    reason = _difference_in_parts(job, starts, gradients, together)
    if longer is not None and not reason:
        reason = _difference_in_parts(job, small, later, longer)
    return OptimizerTraits(**common, elementwise=not reason, reason=reason)


def _read_by_schedule(job: Job, trained: Trained, names: Sequence[str], tried: Sequence[str]) -> ScheduleReads:
    """What the job's schedule sets options by: gradients, other tensors of what it is given, their number, or chance.

    Args:
        job: of the schedule
        trained: parameters
        names: of those that the optimizer holds
        tried: names of some that stand for all of them
    """
    if job.lr_schedule is None:
        return ""

    def along(named: Named, steps: Sequence[Sequence[torch.Tensor]], *, forgotten: bool = True) -> list[Any] | None:
        # One that counts its calls counts from where it was.
        held = HeldState({"optimizer": job.optimizer, "schedule": job.lr_schedule})
        try:
            return _along_schedule(job, named, steps, forgotten=forgotten)
        finally:
            held.put_back()

    def half(one: torch.Tensor) -> torch.Tensor:
        return one[: 1 + len(one) // 2] if one.ndim else one

    starts, gradients = stand_ins(trained, names)
    others = (
        [(name, marked(2.0 * one, one)) for name, one in starts],
        [[3.0 * one for one in step] for step in gradients],
    )
    halves = (
        [(name, marked(half(one), one)) for name, one in starts],
        [[half(one) for one in step] for step in gradients],
    )
    places = [place for place, name in enumerate(names) if name in tried]
    fewer = [starts[place] for place in places], [[step[place] for place in places] for step in gradients]
    try:
        together = along(starts, gradients)
        if together is None:
            return ""
        if not same(together, along(starts, gradients, forgotten=False)):
            return "gradients" if same(together, along(starts, gradients)) else "chance"
        some = [[one[place] for place in places] for one in together]
        for (named, steps), expected in ((others, together), (halves, together), (fewer, some)):
            if (found := along(named, steps)) is not None and not same(found, expected):
                return "parameters"
    except Exception:  # noqa: BLE001 - it is the user's; what fails on these tensors reads them, or counts them
        return "parameters"
    return ""


def _along_schedule(
    job: Job, starts: Named, gradients: Sequence[Sequence[torch.Tensor]], *, forgotten: bool
) -> list[Any] | None:
    """The options of each tensor, at first and after each step of the schedule; None: the optimizer fails on them."""
    try:
        trial = Trial(partial(make_optimizer, job), starts, partial(make_schedule, job))
    except InputError:
        return None
    try:
        return trial.take(() if takes_metric(trial.schedule) else gradients, forgotten=forgotten).options
    except Exception:
        if len(trial.values) == len(trial.options):
            raise
        return None  # its step may need all parameters


class _Asked:
    """An optimizer that was made over parameters without values, and what came of it."""

    def __init__(self, made: Any, given: Trained) -> None:
        self.made, self.given = made, given
        self.param_groups = made.param_groups
        self.needs_metric = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)


def _ask_options(job: Job, parameters: Trained) -> tuple[dict[str, tuple[Mapping[str, Any], ...]], _Asked]:
    """Options of each parameter by name, at first and along the schedule; nothing has values."""
    # A factor of a schedule may count its calls.
    held = HeldState({"optimizer": job.optimizer, "schedule": job.lr_schedule})
    try:
        return _asked_options(job, parameters)
    finally:
        held.put_back()


def _asked_options(job: Job, parameters: Trained) -> tuple[dict[str, tuple[Mapping[str, Any], ...]], _Asked]:
    asked = _make_without_values(job, parameters)
    first = _options(asked.made)
    try:
        schedule = make_schedule(job, asked.made)
    except InputError:
        # It may read values.
        asked = _make_over_zeros(job, parameters)
        first = _options(asked.made)
        schedule = make_schedule(job, asked.made)
    names = {id(phantom): name for name, phantom in asked.given.named_parameters()}
    found: dict[str, list[Mapping[str, Any]]] = {names[key]: [one] for key, one in first.items() if key in names}
    if schedule is not None:
        asked.needs_metric = takes_metric(schedule)
        for _ in range(0 if asked.needs_metric else _SCHEDULED):
            now = _options(asked.made)
            for key, name in names.items():
                if key in now:
                    found[name].append(now[key])
            try:
                schedule.step()
            except Exception:  # noqa: BLE001 it has come to its end; the run tells where
                break
    return {name: tuple(along) for name, along in found.items()}, asked


def _make_without_values(job: Job, parameters: Trained) -> _Asked:
    """The job's optimizer over parameters of the true shapes, which take no memory."""

    def on_meta(like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device="meta")

    try:
        given = Trained((name, marked(nn.Parameter(on_meta(one)), one)) for name, one in parameters.named_parameters())
        return _Asked(make_optimizer(job, given), given)
    except InputError:
        # Some forms, such as fused ones, ask for the device.
        return _make_over_zeros(job, parameters)


def _make_over_zeros(job: Job, parameters: Trained) -> _Asked:
    """The same over parameters of which each has one zero in all its places."""

    def expanded(like: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)

    given = Trained((name, marked(nn.Parameter(expanded(one)), one)) for name, one in parameters.named_parameters())
    return _Asked(make_optimizer(job, given), given)


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
    with quiet():
        asked = _make_without_values(job, parameters)
    names = {id(one): name for name, one in asked.given.named_parameters()}
    groups = asked.made.param_groups
    named = any("param_names" in group for group in groups)
    return tuple(tuple(names[id(one)] for one in group["params"] if id(one) in names) for group in groups), named


def _options(optimizer: Any) -> dict[int, Mapping[str, Any]]:
    """The options of each parameter's group, by the parameter's id."""
    found: dict[int, Mapping[str, Any]] = {}
    for group in optimizer.param_groups:
        options = {key: _frozen(value) for key, value in group.items() if key not in ("params", "param_names")}
        found.update((id(parameter), options) for parameter in group["params"])
    return found


def _frozen(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


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


def _difference(
    job: Job,
    starts: Named,
    gradients: Sequence[Sequence[torch.Tensor]],
    together: Trial,
    shares: Sequence[Sequence[int]],
) -> str:
    """What differs where shares of the tensors are updated each by themselves; empty: nothing."""
    for share in shares:
        names = ", ".join(starts[number][0] for number in share)
        try:
            apart = try_steps(job, [starts[n] for n in share], [[step[n] for n in share] for step in gradients])
        except Exception as error:  # noqa: BLE001 it is the user's
            return f"it fails on {names} alone ({_line(error)})"
        for place, number in enumerate(share):
            if not same(apart.options[0][place], together.options[0][number]):
                return f"the options of {names} are others when it is given alone"
            if not equal_values(
                (values[place] for values in apart.values), (values[number] for values in together.values)
            ):
                return f"{names} is updated differently alone than with others"
    return ""


def _difference_in_parts(job: Job, starts: Named, gradients: Sequence[Sequence[torch.Tensor]], together: Trial) -> str:
    """What differs where two parts of each tensor are updated by themselves; empty: nothing."""
    # Ranks that share a layer have rows of its weights, or columns.
    columns = any(one.ndim > 1 for _, one in starts)
    for dim, second in itertools.product((0, 1) if columns else (0,), (False, True)):

        def part(tensor: torch.Tensor, second: bool = second, dim: int = dim) -> torch.Tensor:
            split = dim if tensor.ndim > dim else 0
            if not tensor.ndim or tensor.shape[split] < 2:
                return tensor
            # Not in the middle: blocks of a few hundred elements would begin there too.
            first = max(1, tensor.shape[split] * 2 // 5 - 1)
            bounds = (first, tensor.shape[split] - first) if second else (0, first)
            return marked(tensor.narrow(split, *bounds), tensor)

        try:
            apart = try_steps(
                job, [(name, part(one)) for name, one in starts], [[part(one) for one in step] for step in gradients]
            )
        except Exception as error:  # noqa: BLE001 it is the user's
            return f"it fails on a part of a parameter ({_line(error)})"
        for number, (name, _) in enumerate(starts):
            if not same(apart.options[0][number], together.options[0][number]):
                return f"the options of {name} are others when it is given a part of it"
            if not equal_values(
                (values[number] for values in apart.values), (part(values[number]) for values in together.values)
            ):
                return f"a part of {name} is updated differently than the whole"
    return ""


def _runs_with_closure(job: Job, starts: Named, gradients: Sequence[Sequence[torch.Tensor]]) -> bool:
    closed = partial(torch.zeros, (), requires_grad=True)
    runs = partial(try_steps, job, starts, gradients, closure=closed)
    return attempted("Job.optimizer", lambda: isinstance(runs(), Trial), False)


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a call must give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in another language
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in variadic]


def same(one: Any, other: Any) -> bool:
    """Whether two options or states are equal, bit for bit; functions are, where they are of one type."""
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


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _some(parameters: Trained) -> str:
    names = [name for name, _ in parameters.named_parameters()]
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


def _nothing(*arguments: Any) -> None:
    """A hook that does nothing."""
