"""A training job.

A `Job` holds callables and costs nothing until it runs: the model, the optimizer and the data are made on each rank
that needs them. It is the only type with live torch objects in it.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.precision import parse_precision
from trimaran.base.units import MOST_COUNTED

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset


JobPrecision = Literal["fp32", "bf16", "fp16", "fp64"]
"""In which a job may be trained."""

JOB_PRECISIONS: tuple[JobPrecision, ...] = get_args(JobPrecision)
"""Those that the runtime trains in."""


_CALLED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "model": ((), "model=lambda: MyModel(width=64)"),
    "optimizer": (("the parameters",), "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"),
    "dataset": ((), 'dataset=lambda: MyDataset("train")'),
    "evaluation_dataset": ((), 'evaluation_dataset=lambda: MyDataset("test")'),
    "lr_schedule": (
        ("the optimizer",),
        "lr_schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)",
    ),
    "loss": (("the output", "the target"), "loss=torch.nn.functional.cross_entropy"),
    "metric": (
        ("the output", "the target"),
        "metric=lambda output, target: (output.argmax(1) == target).float().mean()",
    ),
    "collate": (("the samples",), "collate=torch.utils.data.default_collate"),
    "sampler": (("the data set", "the epoch"), "sampler=lambda dataset, epoch: range(len(dataset))"),
    "on_step": (("the session", "the step", "the figures"), "on_step=lambda session, step, figures: print(figures)"),
    "on_epoch": (
        ("the session", "the epoch", "the figures"),
        "on_epoch=lambda session, epoch, figures: print(figures)",
    ),
    "loss_weight": (("the batch",), 'loss_weight=lambda batch: (batch["labels"] != -100).sum()'),
}
"""What each callable of a job is called with, and how it is written."""

_MAKERS = frozenset({"model", "optimizer", "dataset", "evaluation_dataset", "lr_schedule"})
"""Those that make something: the thing itself would be shared by all that is made of it."""

_NUMBERS: Mapping[str, tuple[type[Any], str, float, float]] = {
    "global_batch_size": (numbers.Integral, f"an integer from 1 to {MOST_COUNTED:,}", 1, MOST_COUNTED),
    "epochs": (numbers.Integral, f"an integer from 0 to {MOST_COUNTED:,}", 0, MOST_COUNTED),
    "seed": (numbers.Integral, "an integer", -math.inf, math.inf),
    "target": (numbers.Real, "a number", -math.inf, math.inf),
    "clip_norm": (numbers.Real, "a positive number", 5e-324, math.inf),
}

_STATEFUL = ("state_dict", "load_state_dict")

_OTHERWISE = {
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "criterion": "loss",
    "loss_fn": "loss",
    "data": "dataset",
    "train_dataset": "dataset",
    "eval_dataset": "evaluation_dataset",
    "scheduler": "lr_schedule",
    "lr_scheduler": "lr_schedule",
    "num_epochs": "epochs",
    "dtype": "precision",
    "grad_clip": "clip_norm",
    "collate_fn": "collate",
}
"""Names of fields elsewhere."""


def _takes(made: Callable[..., Any], count: int) -> bool:
    """Whether a callable can be called with this number of values."""
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return True  # of C, which does not say
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _brief(value: object) -> str:
    """A value in one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check(name: str, value: Any) -> None:
    """Refuse a field of a wrong kind.

    Raises:
        InputError: with what it is instead, and how it is written
    """
    if name in _CALLED:
        taken, example = _CALLED[name]
        is_made = name in _MAKERS and hasattr(value, "state_dict") and not inspect.isroutine(value)
        if not callable(value) or (is_made and not isinstance(value, type)):
            raise InputError(
                f"Job.{name} must be a callable{' that makes it' if name in _MAKERS else ''}, got {_brief(value)}: "
                f"{'wrap it' if name in _MAKERS else 'write it'}, as in Job({example})",
                code="job.not-callable",
                field=name,
            )
        if not _takes(value, len(taken)) or (name not in _MAKERS and isinstance(value, type)):
            what = f"with {' and '.join(taken)}" if taken else "without arguments"
            raise InputError(
                f"Job.{name} is called {what}, and {_brief(value)} cannot be: wrap it, as in Job({example})",
                code="job.wrong-arguments",
                field=name,
            )
    if name in _NUMBERS:
        kind, what, least, most = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise InputError(f"Job.{name} must be {what}, got {value!r}", value=value)
    if name == "state":
        objects = value if isinstance(value, list | tuple) else [value]
        wrong = [one for one in objects if not all(callable(getattr(one, of, None)) for of in _STATEFUL)]
        if wrong or objects is not value:
            raise InputError(
                f"Job.state must be a list of objects with state_dict() and load_state_dict(state), got "
                f"{_brief(wrong[0] if wrong else value)}",
                code="job.state",
            )
    if name == "drop_last" and not isinstance(value, bool):
        raise InputError(f"Job.drop_last must be True or False, got {value!r}", value=value)
    if name == "name" and not isinstance(value, str):
        raise InputError(f"Job.name must be a text, got {value!r}", value=value)
    if name == "curve" and (not isinstance(value, str) or not value.strip()):
        raise InputError(
            f"Job.curve must be a file of a curve or a name of the catalog, got {value!r}", code="job.bad-curve"
        )


def _told(kind: "type[Job]") -> "type[Job]":
    """The class, whose fields that are unknown, missing or of a wrong kind are told before any is used."""
    made = kind.__init__
    known = {one.name: one for one in fields(kind)}

    @functools.wraps(made)
    def checked(job: Any, *args: Any, **given: Any) -> None:
        for name, value in given.items():
            if name not in known:
                hint = f'; did you mean "{_OTHERWISE[name]}"?' if name in _OTHERWISE else did_you_mean(name, known)
                raise InputError(f'Job has no field "{name}"{hint}', code="job.unknown-field", field=name)
            if value is not None or (known[name].default is MISSING and name != "loss"):
                _check(name, value)
        lacking = [name for name, one in known.items() if name not in given and one.default is MISSING]
        if args or lacking:
            raise InputError(
                f"Job takes {', '.join(name for name, one in known.items() if one.default is MISSING)} and more, "
                f"each by its name{'; missing: ' if lacking else ''}{', '.join(lacking)}",
                code="job.missing-fields",
                fields=lacking,
            )
        made(job, **given)

    kind.__init__ = checked  # type: ignore[method-assign,assignment]
    return kind


@_told
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job.

    A batch, as `collate` makes it from a list of samples, is one of
    `(input, target)`, used as `loss(model(input), target)` (`input` may be a tuple, used as `model(*input)`);
    a dict, used as `loss(model(batch), batch)`; where its keys are arguments of the model's forward, as
    `loss(model(**batch), batch)`; with `loss=None` as `model(**batch).loss`, as Hugging Face models have it; a
    dataclass, or an object with a method `to`, used as `loss(model(batch), batch)`, or `model(batch).loss`.
    Other values of a batch than tensors (strings, None, objects) go to the model and the loss as they are.

    A plan trains what one process trains, or is refused, for jobs that keep six points: `model`, `optimizer` and
    `dataset` make the same thing on every rank under `seed`; the loss is a mean over samples, or says its weight; what
    must survive a restart is in the model, the optimizer, the schedule or `state`; callbacks go by the step and the
    metrics, and use `session.model` only where it is whole; data are a `Dataset`, or a stream, which resumes by
    `state_dict`; a metric is computed over gathered outputs, or where they are too large, over parts.

    Attributes:
        model: makes the model; called after the seed is set, so that every rank makes the same one
        loss: a scalar that is a mean over the samples of a batch, or `(sum, weight)` where it is another mean; None for
            a model that returns an object with `.loss`
        optimizer: makes the optimizer from its argument, which iterates over parameters as `model.parameters()` does
            and has `named_parameters()` as a model has, with the names of the model under every plan. It is called
            several times: on each rank with what that rank updates, and with small stand-ins while a plan is made and
            before training; hooks that it registers on the optimizer fire in training only
        dataset: makes the training data: map-style, or an `IterableDataset`
        global_batch_size: samples of one update, over all ranks
        evaluation_dataset: makes the data of `evaluate`; None: there is no evaluation
        metric: `(output, target)` (or `(output, batch)`) to any figure (accuracy, F1, an area under a curve), higher
            is better, computed over all outputs of an evaluation at once where they are no more than 1 GiB
        collate: list of samples to batch; None: torch's default. It makes each part of a batch, and what it draws is
            drawn for each part
        lr_schedule: makes the schedule from the optimizer; stepped once an update. One whose step needs a metric
            (`ReduceLROnPlateau`) is stepped once an epoch, with the metric of the evaluation (`mode="max"`), or the
            mean loss of the epoch where there is none
        epochs: passes over the training data
        target: stop when the metric reaches this
        precision: "fp32"; "bf16", which is autocast over fp32 weights; "fp16", autocast with a gradient scaler, for
            one device, replicas and zero=1; or "fp64"
        clip_norm: largest global norm of the gradients; None: no clipping
        seed: of initial weights, of the order of samples, and of dropout
        drop_last: leave out the last, smaller batch of an epoch
        name: for people and for run directories
        curve: how much training each batch needs to the target: a file of `trimaran crossover --measure`, or
            a name of the catalog; None: not known
        sampler: the order of an epoch: from the data set and the number of the epoch, from 0, to indices, as
            `torch.utils.data.Sampler` iterates them; None: a random permutation under the seed
        on_step: called on every rank after each training step with the `Session`, the number of the step from 0, and
            `{"loss": float}`; never while a plan is made; what it may change is in docs/runtime.md
        on_epoch: called on every rank after each epoch with the `Session`, the number of the epoch from 0, and
            `{"loss": float}`, with "metric" where there is an evaluation
        loss_weight: from a batch, what its loss is a mean over, where that is not its samples: for a loss over tokens
            `lambda batch: (batch["labels"] != -100).sum()`; None: found out, from a few batches of the training data
        state: objects with `state_dict` and `load_state_dict`, such as an average of the weights that `on_step` keeps:
            a checkpoint has their states, which are the same on every rank, and a training that goes on gives them back

    Raises:
        InputError: a field is missing, unknown, of a wrong kind or out of range
    """

    model: "Callable[[], nn.Module]"
    loss: Callable[..., Any] | None
    optimizer: "Callable[[Any], Optimizer]"
    dataset: "Callable[[], Dataset[Any]]"
    global_batch_size: int
    evaluation_dataset: "Callable[[], Dataset[Any]] | None" = None
    metric: Callable[[Any, Any], float] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    lr_schedule: "Callable[[Optimizer], LRScheduler] | None" = None
    epochs: int = 1
    target: float | None = None
    precision: JobPrecision = "fp32"
    clip_norm: float | None = None
    seed: int = 0
    drop_last: bool = False
    name: str = field(default="job")
    curve: str | None = None
    sampler: "Callable[[Any, int], Iterable[int]] | None" = None
    on_step: "Callable[[Any, int, dict[str, float]], None] | None" = None
    on_epoch: "Callable[[Any, int, dict[str, float]], None] | None" = None
    loss_weight: Callable[[Any], Any] | None = None
    state: Sequence[Any] = ()

    def __post_init__(self) -> None:
        precision = parse_precision(self.precision, known=JOB_PRECISIONS, what="Job.precision")
        object.__setattr__(self, "precision", precision)
