"""The forms a batch may have, and everything that is done to one.

    (input, target)   used as loss(model(input), target); an input that is a tuple or list is used as model(*input)
    a mapping         used as loss(model(batch), batch); where the keys are arguments of the model's forward, as
                      loss(model(**batch), batch)
    a mapping         with `Job.loss=None`, used as model(**batch).loss
    an object         that is a dataclass or has a method `to`, used as loss(model(batch), batch), or model(batch).loss

Inputs, targets and values may nest tuples, lists, mappings and dataclasses. The tensors that they hold have names:
"input", "target", "input.0", or the keys of the mapping. Whatever else they hold (strings, None, numbers, objects) goes
to the model and the loss as it is; an object that has a method `to`, as graphs of other libraries have, is moved by it.

Where the first dims of all tensors agree, they count samples, and the batch can be sliced. Where they do not (targets
of a detection, nodes of several graphs, ragged bags) only the data set and the collate function can make a batch of
fewer samples.
"""

import copy
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.precision import dtype_name
from trimaran.base.user_errors import asking

_Sample = TypeVar("_Sample")


def SUMMED(batch: Any) -> float:  # noqa: N802 - a value, told apart by identity, of the type of a weight
    """The `Job.loss_weight` of a loss that is a sum over samples, and no mean."""
    return 1.0


FORMS = "a batch is (input, target), a dict, a dataclass, or an object with a method to()"


def split_batch(
    batch: Any, *, own_loss: bool = False, model: nn.Module | None = None
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The arguments of the model, and what the loss is given besides the model's output.

    Args:
        batch: a batch
        own_loss: the model computes its loss (`Job.loss` is None), so a mapping is spread over its keyword arguments
        model: it is called with the batch; a mapping whose keys are arguments of its forward is spread over them

    Returns:
        Positional arguments, keyword arguments, second argument of the loss and of the metric.

    Raises:
        InputError: a batch of another form

    Example:
        >>> split_batch(("x", "y"))
        (('x',), {}, 'y')
        >>> split_batch({"ids": 1}, own_loss=True)
        ((), {'ids': 1}, {'ids': 1})
    """
    if isinstance(batch, Mapping):
        spread = own_loss or (model is not None and takes_keys(model, batch))
        return ((), dict(batch), batch) if spread else ((batch,), {}, batch)
    if _is_object(batch):
        return (batch,), {}, batch
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)} parts" if isinstance(batch, tuple | list) else ""
        raise InputError(
            f"{FORMS}; collate made a {type(batch).__name__}{size}: let Job.collate make one of these",
            code="batch.bad-structure",
        )
    if own_loss:
        raise InputError(
            "with Job.loss=None a batch is a dict, used as model(**batch); collate made a pair", code="batch.not-a-dict"
        )
    inputs, target = batch
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}, target


def takes_keys(model: nn.Module, batch: Mapping[Any, Any]) -> bool:
    """Whether the keys of a mapping are arguments of a model's forward.

    Args:
        model: the user's
        batch: a mapping

    Example:
        >>> class Scaled(nn.Module):
        ...     def forward(self, values, scale=1.0):
        ...         return values * scale
        >>> takes_keys(Scaled(), {"values": 1, "scale": 2}), takes_keys(Scaled(), {"values": 1, "other": 2})
        (True, False)
    """
    named, further = _parameters_of(model)
    return any(key in named for key in batch) and (further or all(key in named for key in batch))


_FORWARDS: "weakref.WeakKeyDictionary[nn.Module, tuple[frozenset[str], bool]]" = weakref.WeakKeyDictionary()


def _parameters_of(model: nn.Module) -> tuple[frozenset[str], bool]:
    """Names that the forward of a model takes, and whether it takes others too."""
    known = _FORWARDS.get(model)
    if known is None:
        try:
            parameters = inspect.signature(model.forward).parameters.values()
        except (TypeError, ValueError):
            parameters = {}.values()
        known = (
            frozenset(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)),
            any(one.kind is one.VAR_KEYWORD for one in parameters),
        )
        _FORWARDS[model] = known
    return known


def call_model(job: Job, model: nn.Module, batch: Any) -> Any:
    """The model's output for a batch."""
    arguments, keywords, _ = split_batch(batch, own_loss=job.loss is None, model=model)
    with asking("the forward", model):
        return model(*arguments, **keywords)


def compute_loss(job: Job, output: Any, batch: Any, *, samples: int | None = None) -> tuple[Tensor, float | Tensor]:
    """The loss of a batch as a sum and a weight, so that shares of a batch add up.

    Args:
        job: the job
        output: what the model returned
        batch: the batch that it was given
        samples: of the batch; None: they are counted

    Returns:
        `(loss * n, n)` for a loss that is a mean over n samples; `(loss * w, w)` where `Job.loss_weight` gives w;
        `(sum, weight)` as the job's loss returned them.

    Raises:
        InputError: not a floating scalar tensor, or no gradient in it although gradients are on
    """
    weigh = None if job.loss_weight is SUMMED else job.loss_weight
    # Before the loss, which may write to its target.
    given: Any = None if weigh is None else weigh(batch)
    value = loss_value(job, output, batch)
    if isinstance(value, tuple) and len(value) == 2:
        total, weight = value
        _check_loss(total)
        if not isinstance(weight, int | float) and not (isinstance(weight, Tensor) and weight.dim() == 0):
            raise InputError(
                f"a loss returns a scalar or (sum, weight); here weight is {_describe(weight)}", code="loss.bad-weight"
            )
        if isinstance(weight, Tensor) and weight.requires_grad:
            raise InputError(
                "the weight of a loss that returns (sum, weight) has a gradient, and sums of parts are divided by it "
                "after their backward: detach it, or, where it is to be trained, return a scalar",
                code="loss.weight-has-gradient",
            )
        return total, weight
    _check_loss(value)
    if weigh is not None:
        return value * given, given
    samples = count_samples(batch) if samples is None else samples
    return value * samples, float(samples)


def is_sliceable(batch: Any, samples: int) -> bool:
    """Whether the first dims of all tensors of a batch count its samples, and it holds nothing else but plain values.

    Args:
        batch: a batch
        samples: of which it was made

    Example:
        >>> is_sliceable((torch.zeros(4, 2), torch.zeros(4)), 4), is_sliceable((torch.zeros(2, 2), ["a", "b"]), 2)
        (True, False)
    """
    others: list[Any] = []
    sizes = {tensor.shape[0] if tensor.dim() else -1 for tensor in name_tensors(batch, others).values()}
    plain = all(value is None or isinstance(value, bool | int | float) for value in others)
    return plain and sizes == {samples}


def are_sliceable(batch: Any, fewer: Any, samples: int) -> bool:
    """Whether batches can be sliced, as two of them show: `is_sliceable`, and without lists of a value a sample.

    Args:
        batch: a batch
        fewer: one of the same samples without the last
        samples: of which the batch was made

    Example:
        >>> batch, fewer = ({"x": torch.zeros(size), "length": [1] * size, "pair": [8, 8]} for size in (3, 2))
        >>> are_sliceable(batch, fewer, 3), are_sliceable({**batch, "length": 1}, {**fewer, "length": 1}, 3)
        (False, True)
    """
    found = ((batch, samples), (fewer, samples - 1))
    return all(is_sliceable(*one) for one in found) and not all(_has_list(*one) for one in found)


def _has_list(value: Any, length: int) -> bool:
    """Whether there is a list of a length without tensors in a part of a batch."""
    if isinstance(value, Mapping) or _is_dataclass(value):
        return any(_has_list(part, length) for part in _fields_of(value).values())
    if not isinstance(value, tuple | list):
        return False
    is_plain = not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
    return (is_plain and len(value) == length) or any(_has_list(part, length) for part in value)


def count_samples(batch: Any) -> int:
    """Number of samples of a batch: the first dim of its tensors.

    Raises:
        InputError: no tensors, or tensors that disagree

    Example:
        >>> count_samples((torch.zeros(4, 2), torch.zeros(4)))
        4
    """
    sizes = {name: tensor.shape[0] if tensor.dim() else None for name, tensor in name_tensors(batch).items()}
    if not sizes:
        raise InputError(f"{FORMS} of tensors; this one holds none")
    if len(set(sizes.values())) > 1 or None in sizes.values():
        listed = ", ".join(f"{name}: {'no dim' if size is None else size}" for name, size in sizes.items())
        raise InputError(
            f"the first dim of every tensor of a batch counts its samples, so they must agree; here {listed}",
            code="batch.sizes-differ",
            sizes=sizes,
        )
    size = next(iter(sizes.values()))
    return 0 if size is None else size


class WholeBatches:
    """A `Job.collate` that is not seen to leave out samples, which parts of a batch would count nevertheless.

    Args:
        collate: the job's

    Example:
        >>> pair = torch.zeros(2), torch.zeros(())
        >>> WholeBatches(lambda samples: tuple(map(torch.stack, zip(*samples))))([pair] * 3)[0].shape
        torch.Size([3, 2])
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        """A batch of some samples.

        Raises:
            ValueError: it has fewer
        """
        asked = len(samples)
        batch = self.collate(samples)
        sizes = {tensor.shape[0] if tensor.dim() else -1 for tensor in name_tensors(batch).values()}
        if len(sizes) == 1 and 0 <= (left := sizes.pop()) < asked:
            raise ValueError(
                f"it left out {asked - left} of {asked} samples, and of those that were looked at before the training "
                "none: parts of a batch would count with wrong weights. Leave such samples out of the data set "
                "(torch.utils.data.Subset), choose them in Job.collate itself, as in [one for one in samples if ...], "
                "or use one device without microbatches"
            )
        return batch


def slice_batch(batch: Any, start: int, stop: int) -> Any:
    """The samples `start` to `stop - 1` of a batch, as a batch."""
    return map_tensors(batch, lambda tensor: tensor[start:stop])


def join_batches(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The batch that has some batches as its slices; None: there is none.

    Args:
        parts: batches
        sizes: samples of each

    Example:
        >>> parts = [{"x": torch.zeros(2), "count": 7}, {"x": torch.ones(1), "count": 7}]
        >>> join_batches(parts, [2, 1])
        {'x': tensor([0., 0., 1.]), 'count': 7}
        >>> join_batches([parts[0], {**parts[1], "count": 8}], [2, 1]) is None
        True
    """
    others: list[list[Any]] = [[] for _ in parts]
    named = [name_tensors(part, plain) for part, plain in zip(parts, others, strict=True)]
    shapes = [{name: (one.shape[1:], one.dtype) for name, one in tensors.items()} for tensors in named]
    if (
        not all(map(is_sliceable, parts, sizes))
        or any(one != shapes[0] for one in shapes)
        or others != others[:1] * len(parts)
    ):
        return None
    return rebuild_batch(parts[0], {name: torch.cat([tensors[name] for tensors in named]) for name in named[0]})


def sample_dims(batch: Any, fewer: Any, samples: int) -> list[int] | None:
    """The dim of each tensor of a batch that counts its samples; None: not each has one, or it holds objects.

    Args:
        batch: a batch
        fewer: one of the same samples without the last
        samples: of which the batch was made

    Example:
        >>> sample_dims((torch.zeros(5, 4, 2), torch.zeros(4)), (torch.zeros(5, 3, 2), torch.zeros(3)), 4)
        [1, 0]
    """
    others: list[Any] = []
    found, smaller = name_tensors(batch, others), name_tensors(fewer)
    if list(found) != list(smaller) or not all(isinstance(one, bool | int | float | None) for one in others):
        return None
    dims = []
    for tensor, less in zip(found.values(), smaller.values(), strict=True):
        sizes = enumerate(zip(tensor.shape, less.shape, strict=False))
        dims.append(next((dim for dim, both in sizes if both == (samples, samples - 1)), -1))
    return None if -1 in dims else dims


def slice_dims(batch: Any, dims: list[int], start: int, stop: int) -> Any:
    """As `slice_batch`, along the dims that count samples.

    Args:
        batch: a batch
        dims: of each tensor, from `sample_dims`
        start: first sample
        stop: the sample after the last
    """
    own = iter(dims)
    return map_tensors(batch, lambda tensor: tensor.narrow(next(own), start, stop - start))


def name_tensors(batch: Any, others: list[Any] | None = None) -> dict[str, Tensor]:
    """The tensors of a batch by name, in a fixed order.

    Args:
        batch: a batch
        others: receives what is no tensor

    Raises:
        InputError: a batch of another form

    Example:
        >>> list(name_tensors(((torch.zeros(2), torch.zeros(2)), torch.zeros(2))))
        ['input.0', 'input.1', 'target']
    """
    found: dict[str, Tensor] = {}

    def keep(value: Any) -> Any:
        if others is not None:
            others.append(value)
        return value

    map_tensors(batch, lambda tensor: tensor, found, other=keep)
    return found


def rebuild_batch(like: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A batch of the form of `like` that holds other tensors.

    Args:
        like: a batch
        tensors: by the names that `name_tensors(like)` gives
    """
    names = iter(name_tensors(like))
    return map_tensors(like, lambda _: tensors[next(names)])


def copied_batch(batch: Any) -> Any:
    """A batch with copies of the tensors, for a forward that may write to it, or put entries into it."""
    if isinstance(batch, dict) and all(isinstance(one, Tensor) for one in batch.values()):
        return {name: one.clone() for name, one in batch.items()}
    return map_tensors(batch, torch.clone)


def copied_sample(sample: _Sample) -> _Sample:
    """A deep copy. Of a tensor that is part of a larger one, as a row of all the data is, that part is copied alone."""
    tensors = [one for one in pytree.tree_leaves(sample) if isinstance(one, Tensor) and not one.requires_grad]
    plain = [one for one in tensors if type(one) is Tensor]
    dense = [one for one in plain if one.layout is torch.strided and not one.is_nested]
    copies = {id(one): one.clone() for one in dense if one.untyped_storage().nbytes() > one.nbytes}
    for one in tensors:
        # torch's own copies subclasses only where they say how.
        if type(one) is not Tensor and type(one).__deepcopy__ is Tensor.__deepcopy__:
            copies[id(one)] = one.clone()
            vars(copies[id(one)]).update(copy.deepcopy(vars(one)))
    return copy.deepcopy(sample, copies)


def move_batch(batch: Any, device: torch.device | str) -> Any:
    """The batch on a device."""

    def move(value: Any) -> Any:
        return value.to(device) if callable(getattr(value, "to", None)) else value

    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True), other=move)


def cast_batch(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating tensors in another dtype; integers and booleans stay."""
    return map_tensors(batch, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def map_tensors(
    batch: Any,
    change: Callable[[Tensor], Tensor],
    found: dict[str, Tensor] | None = None,
    *,
    other: Callable[[Any], Any] | None = None,
) -> Any:
    """A batch of the same form whose tensors are `change` of the given ones.

    Args:
        batch: a batch
        change: called once for each tensor, in the order of `name_tensors`
        found: receives every tensor by its name, before the change
        other: called once for each value that is no tensor; None: they stay

    Raises:
        InputError: a batch of another form
    """
    visit = _Visit(change, found if found is not None else {}, other)
    if isinstance(batch, Mapping) or _is_object(batch):
        return visit(batch, "")
    split_batch(batch)
    return visit(batch[0], "input"), visit(batch[1], "target")


class _Visit:
    """Goes through the parts of a batch."""

    def __init__(
        self, change: Callable[[Tensor], Tensor], found: dict[str, Tensor], other: Callable[[Any], Any] | None
    ) -> None:
        self._change, self._found, self._other = change, found, other

    def __call__(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            self._found[name] = value
            return self._change(value)
        if isinstance(value, Mapping) or _is_dataclass(value):
            fields = _fields_of(value)
            return _same_fields(
                value, {key: self(part, f"{name}.{key}" if name else str(key)) for key, part in fields.items()}
            )
        if isinstance(value, tuple | list):
            return _same_kind(value, [self(part, f"{name}.{index}") for index, part in enumerate(value)])
        return value if self._other is None else self._other(value)


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _is_object(value: Any) -> bool:
    """Whether a batch is an object of the user's, as graphs of other libraries are."""
    return _is_dataclass(value) or (
        callable(getattr(value, "to", None)) and not isinstance(value, tuple | list | Tensor)
    )


def _fields_of(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, Mapping) else {one.name: getattr(value, one.name) for one in fields(value)}


def _same_fields(value: Any, parts: dict[Any, Any]) -> Any:
    """A mapping or a dataclass with other values: of the same class, whose methods and properties a model may use."""
    if type(value) is dict:
        return parts
    made = copy.copy(value)
    for key, part in parts.items():
        if isinstance(made, Mapping):
            made[key] = part  # type: ignore[index]
        else:
            object.__setattr__(made, key, part)
    return made


def _same_kind(value: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    if isinstance(value, list):
        return parts
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def loss_value(job: Job, output: Any, batch: Any) -> Any:
    """What the job's loss returns for a batch, or the model's where it computes it.

    Args:
        job: the job
        output: what the model returned
        batch: the batch that it was given

    Raises:
        InputError: the model computes the loss, and returns none; or a label is none of the classes
    """
    _, _, expected = split_batch(batch, own_loss=job.loss is None)
    if job.loss is not None:
        try:
            with asking("Job.loss", job.loss):
                return job.loss(output, expected)
        except (IndexError, RuntimeError):
            check_labels(output, expected)
            raise
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise InputError(
            f"with Job.loss=None the model returns an object with a loss; it returned a {type(output).__name__} "
            "without one: give the batch its labels, or give Job.loss",
            code="loss.model-returns-none",
        )
    return loss


def check_labels(output: Any, expected: Any) -> None:
    """Refuse labels that are none of the classes of an output, where a loss has failed.

    Args:
        output: of the model, with classes in its second dim
        expected: labels; -100 counts as none

    Raises:
        InputError: the first of them, with its sample
    """
    plain = type(output) is Tensor and type(expected) is Tensor and not output.is_meta
    if not plain or output.dim() != expected.dim() + 1 or output.dim() < 2 or expected.is_floating_point():
        return
    classes = output.shape[1]
    for place in ((expected != -100) & ((expected < 0) | (expected >= classes))).nonzero()[:1]:
        raise InputError(
            f"sample {int(place[0])} of a batch of Job.dataset has the label {int(expected[tuple(place)])}, and the "
            f"model's output has {classes} classes: labels are 0 to {classes - 1}, or -100 where none counts",
            code="loss.label-out-of-range",
        )


def _check_loss(value: Any) -> None:
    if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
        raise InputError(
            "a loss is a floating scalar tensor, the mean over the samples, or (sum, weight); "
            f"it is {_describe(value)}: reduce it, for example with .mean()",
            code="loss.not-a-scalar",
        )
    if torch.is_grad_enabled() and not value.requires_grad:
        raise InputError(
            "the loss does not depend on a parameter that is trained, so there is nothing to train",
            code="loss.nothing-to-train",
        )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {dtype_name(value.dtype)}"
    return f"a {type(value).__name__}"
