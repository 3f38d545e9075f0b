"""The model of a job, and a small batch of its data, with which the model can be looked at.

Looking at a model without leaving a trace.

A capture runs the user's model, traces it and calls its modules on fake tensors. What that changes on the way is put
back: buffers (running statistics), attributes that a forward assigns, train and eval flags, and every random state.

The mode in which a job's model is trained, and how others are entered.

A plain training loop calls `model.train()` before its first step. So does `begin_training`, with what such a loop
leaves to the person who wrote the model:

- a model that its factory returns in evaluation mode, as Hugging Face's `from_pretrained` does, is trained in training
  mode
- a module that overrides `train()`, to keep frozen batch norms in evaluation mode, is asked
- a part that the factory has put in evaluation mode, inside a model that is in training mode, stays there

The user's hooks: kept off while a model is looked at, and which of them a split would lose.

In a segment the leaf modules are the user's own, so their hooks fire. A container such as a block is not called there,
as its parts may lie in several segments: a hook on it would never fire, and a split is refused while there is one.
"""

import functools
import io
import itertools
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from types import MappingProxyType
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.precision import Precision
from trimaran.base.user_errors import users
from trimaran.user_code.batches import cast_batch, copied_sample, move_batch, name_tensors
from trimaran.user_code.datasets import (
    batching_fault,
    check_map_style,
    first_samples,
    is_stream,
    read_sample,
    stream_length,
)
from trimaran.user_code.held_state import HeldState, equal
from trimaran.user_code.randomness import (
    derive_seed,
    find_moved,
    host_states,
    preserved_randomness,
    seed_generators,
    seed_host,
    seeded,
)

MOST_PUT_BACK = 50_000_000
"""Elements of the parameters of which copies are kept, where a `train()` of the user's may write to them."""

HOOKED = threading.Lock()
"""Held while each step of this process is one of a loop within `virtual_memory`: no look can be taken at a job."""

AUTOCAST: Mapping[Precision, torch.dtype] = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})
"""To what the forward of a job is cast, by its precision; others run as they are."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back everything in the model but the values of its parameters, what it keeps elsewhere, and random states.

    Parameters are put back that a `train()` of the user's may write to, as one does that merges adapters.
    """
    own = {id(one): one for part in model.modules() if overrides_train(part) for one in part.parameters()}
    few = sum(one.numel() for one in own.values()) <= MOST_PUT_BACK
    kept = [one for one in own.values() if few and not is_lazy(one) and not one.is_meta]
    parameters = [(one, one.data, one.detach().clone()) for one in kept]
    # A table of positions may be kept in a dict of a module or of a closure, where a trace would leave its own; and a
    # backward of the user's may call another one, which leaves gradients.
    held = HeldState(dict(model.named_modules()))
    buffers = [(tensor, tensor.detach().clone()) for tensor in model.buffers()]
    with preserved_randomness(model):
        try:
            yield
        finally:
            held.put_back()
            with torch.no_grad():
                for tensor, value in buffers:
                    tensor.copy_(value)
                for parameter, data, value in parameters:
                    # Under a trace another tensor may have come into its place, without content.
                    parameter.data = data
                    if not torch.equal(data, value):
                        data.copy_(value)


def overrides_train(module: nn.Module) -> bool:
    """Whether the class of a module has a `train()` of the user's."""
    own = type(module).train
    return own is not nn.Module.train and not type(module).__module__.startswith(("torch.", "transformers."))


def uncompiled() -> AbstractContextManager[Any]:
    """Run what the user has compiled as it is written.

    Under the modes by which a model is looked at, torch's compiler gives up, and would pass over that code ever after.
    """
    # Nothing is compiled where it has not been loaded, and that takes a second.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def has_compiled(root: nn.Module) -> bool:
    """Whether a module, or one inside it, is compiled."""
    return any(
        type(module).__name__ == "OptimizedModule"
        or module._compiled_call_impl is not None
        or hasattr(module, "_torchdynamo_orig_callable")
        for module in root.modules()
    )


def class_name(module: nn.Module) -> str:
    """The name of the class of a module as the user knows it: FSDP2 puts another one before it.

    Args:
        module: of the user's

    Example:
        >>> class_name(nn.Linear(1, 1))
        'Linear'
    """
    return next(one.__name__ for one in type(module).__mro__ if not one.__module__.startswith("torch.distributed.fsdp"))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch and the user's model say while the model is looked at: what matters becomes a note.

    Where `torch.export` fails it also prints the graph that it has so far.
    """
    before = logging.root.manager.disable
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def precision_context(job: Job, device: torch.device) -> Any:
    """What the forward of a job runs in: autocast for bf16 and fp16, nothing otherwise."""
    lower = AUTOCAST.get(job.precision)
    return nullcontext() if lower is None else torch.autocast(device.type, dtype=lower)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model: that of its first parameter or buffer."""
    return next((tensor.device for tensor in _tensors(model)), torch.device("cpu"))


def _tensors(model: nn.Module | None) -> Iterator[Tensor]:
    if model is not None:
        yield from model.parameters()
        yield from model.buffers()


def begin_training(model: nn.Module) -> nn.Module:
    """Put a model that its factory has just made into the mode in which it is trained.

    Args:
        model: changed in place

    Returns:
        The model.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout())
        >>> _ = model[1].eval()
        >>> [part.training for part in begin_training(model)]
        [True, False]
        >>> [part.training for part in begin_training(model.eval())]
        [True, True]
    """
    _RETURNED_IN_EVALUATION.setdefault(model, not model.training)
    kept = parts_in_evaluation(model)
    model.train()
    for part in kept:
        part.training = False
    return model


_RETURNED_IN_EVALUATION: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()


def was_in_evaluation(model: nn.Module) -> bool:
    """Whether a model was in evaluation mode when `begin_training` saw it first."""
    return _RETURNED_IN_EVALUATION.get(model, not model.training)


def parts_in_evaluation(model: nn.Module) -> list[nn.Module]:
    """The modules that are in evaluation mode inside a model that is in training mode; none where the whole is not."""
    return [part for part in model.modules() if not part.training] if model.training else []


def enter_mode(model: nn.Module, *, training: bool) -> None:
    """Put a model into one of its modes, where somebody else puts it back afterwards.

    Args:
        model: changed in place
        training: the mode in which it is trained, where parts of it may be in evaluation mode; else evaluation mode
    """
    if training:
        begin_training(model)
    else:
        model.eval()


SAMPLES = 3  # torch.export takes the sizes 0 and 1 for constants, and what is shown must also hold for one sample less

MOST_LOOKED_AT = 24
"""Samples of a batch that is looked at, where fewer fail."""


MOST_DRAWN = 1_000_000
"""Indices of a sampler that are counted."""

DRAWN_SECONDS = 0.5
"""After this the order of no further epoch is counted [s of this process]."""


def make_model(job: Job) -> nn.Module:
    """The model of a job as every rank makes it: under the job's seed, in the job's precision, in training mode.

    Random states are put back, so that making a model does not change what follows.

    Raises:
        InputError: the factory failed, or made something else
    """
    with preserved_randomness():
        seed_generators(job.seed)
        model = _call(job, "model")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Job.model must make a torch.nn.Module; it made a {type(model).__name__}", code="model.not-a-module"
        )
    lazy = [name for name, one in model.named_parameters() if isinstance(one, nn.UninitializedParameter)]
    if lazy:
        raise InputError(
            f"the parameter {lazy[0]} is lazy and has no size yet: in Job.model, run the model once on a batch of "
            "zeros before it is returned",
            code="model.lazy",
            parameter=lazy[0],
        )
    if {id(one) for one in model.parameters()} != {id(one) for _, one in model.named_parameters()}:
        raise InputError(
            "parameters() of the model gives others than named_parameters(), by which parameters are told here: leave "
            "both as they are, and choose in Job.optimizer, or call requires_grad_(False) on what is not trained",
            code="model.own-parameters",
        )
    held = (*model.named_parameters(), *model.named_buffers())
    sparse = [name for name, one in held if str(one.layout).startswith("torch.sparse")]
    if sparse:
        raise InputError(
            f"{sparse[0]} of the model is sparse, and only dense tensors are captured: keep it dense, or its rows, "
            "columns and values in buffers, and multiply by gathering and index_add",
            code="model.sparse",
            name=sparse[0],
        )
    wrapped = [type(one).__name__ for one in model.modules() if type(one).__name__ in _EXCHANGING]
    if wrapped:
        raise InputError(
            f"Job.model wraps a module in {wrapped[0]}, which exchanges gradients, and so do the ranks that train the "
            "job: return the module itself",
            code="model.exchanges-gradients",
        )
    return cast_model(job, begin_training(model))


_EXCHANGING = ("DistributedDataParallel", "FullyShardedDataParallel")


def cast_model(job: Job, model: nn.Module) -> nn.Module:
    """The model in the job's precision: fp64 converts it in place; bf16 is autocast, which keeps fp32 weights."""
    return model.double() if job.precision == "fp64" else model


class Samples:
    """Samples of the training data of a job, of which batches are made.

    Args:
        job: the job
        device: where batches are wanted
        most: samples of a stream that are read
        keep: a sample is read once, so that it is the same in every batch although reading draws
        least: samples that can be asked for, some of them twice where the data has fewer

    Attributes:
        count: number of samples that can be asked for
        dataset: the training data; of a stream its first samples
        stream: the training data is a stream
        total: number of samples of the data set; None: the data is a stream of which not all were read

    Raises:
        InputError: the data cannot be made, or has no samples
    """

    def __init__(
        self,
        job: Job,
        device: torch.device | str = "cpu",
        *,
        most: int = 2 * SAMPLES,
        keep: bool = False,
        least: int = SAMPLES,
    ) -> None:
        self._job, self._device, self._keep = job, device, keep
        self._kept: dict[int, Any] = {}
        self._first: dict[int, list[Any]] = {}
        self.moves = False
        with preserved_randomness():
            dataset = _call(job, "dataset")
            self.stream = is_stream(dataset)
            self.total: int | None = None
            if self.stream:
                said = stream_length(dataset)
                # It may count how often it is gone through, and be the one that is trained on.
                held = HeldState({"the data": dataset})
                dataset = first_samples(dataset, most)
                held.put_back()
                self.total = len(dataset) if len(dataset) < most else said
            else:
                check_map_style(dataset)
                self.total = len(dataset)
        # A collate function may count its calls: those of a look are none of the training.
        self._held = HeldState({} if job.collate is None else {"Job.collate": job.collate})
        self.dataset = dataset
        if not len(dataset):
            raise InputError("the data set has no samples", code="dataset.too-few-samples", samples=0)
        # Of one or two, which somebody trains to see that the loss falls, a batch has some twice.
        self.count = max(len(dataset), least)

    def epochs(self) -> tuple[int, ...]:
        """How many samples epochs have: with a sampler those that are soon drawn; empty: it is not known."""
        if self._job.sampler is None or self.stream:
            return () if self.total is None else (self.total,)
        return tuple(dict.fromkeys(count for count, _ in self._sampled))

    @property
    def epoch_batches(self) -> list[Any]:
        """The same batch in each epoch: a sampler may tell the data set the epoch, by which that gives others."""
        return [] if self._job.sampler is None or self.stream else [batch for _, batch in self._sampled]

    @functools.cached_property
    def _sampled(self) -> list[tuple[int, Any]]:
        """Of each epoch that is soon drawn by a sampler the number of samples, and a batch of the first ones."""
        found: list[tuple[int, Any]] = []
        sampler: Any = self._job.sampler
        started_s = time.process_time()
        # It may tell the data set its epoch, by which that augments.
        held = HeldState({"the data": self.dataset, "Job.sampler": self._job.sampler})
        for epoch in range(self._job.epochs):
            with seeded(derive_seed(self._job.seed, "sampler", epoch)):
                try:
                    count = sum(1 for _ in itertools.islice(sampler(self.dataset, epoch), MOST_DRAWN))
                    found.append((count, self.batch(range(SAMPLES), keep=False)))
                except Exception:  # noqa: BLE001 - said where the order is drawn
                    break
            if time.process_time() - started_s > DRAWN_SECONDS:
                break
        held.put_back()
        return found

    def batch(self, numbers: Sequence[int], *, keep: bool | None = None) -> Any:
        """A batch as `Job.collate` makes it, in the job's precision; no random state moves.

        Args:
            numbers: of the samples
            keep: in place of that of all batches

        Raises:
            InputError: a sample cannot be read, or they cannot be collated
        """
        keep = self._keep if keep is None else keep
        with preserved_randomness():
            samples = [self._sample(number) if keep else self._drawn(number) for number in numbers]
            try:
                batch = _collated(self._job, samples, numbers)
            finally:
                self._held.put_back()
        nested = [name for name, tensor in name_tensors(batch).items() if tensor.is_nested]
        if nested:
            raise InputError(
                f'"{nested[0]}" is a nested tensor, and batches are made of plain ones: let Job.collate give a list of '
                "tensors, or pad them, and nest them in the forward",
                code="batch.nested",
                tensor=nested[0],
            )
        batch = cast_batch(batch, torch.float64) if self._job.precision == "fp64" else batch
        return move_batch(batch, self._device)

    def carries(self) -> bool:
        """Whether the data set keeps something of a read, which the next gives: asked before any sample is read.

        A sample that is read again under the same seeds differs, or is drawn when it is read first and kept.
        """
        if self.stream:
            return False
        with preserved_randomness():
            drew = self._draws_reading(self.count - 1)
            kept = drew and not self._draws_reading(self.count - 1)
        self._first = {number: self._compared(number) for number in (0, self.count - 1)}
        return kept or self._collate_carries() or self.differs()

    def _collate_carries(self) -> bool:
        """Whether two batches of the same samples differ under the same seeds."""
        numbers = (0, self.count - 1)

        def batched() -> list[Any]:
            seed_host(self._job.seed)
            return _tensors_and_numbers(_collated(self._job, [self._drawn(number) for number in numbers], numbers))

        try:
            with preserved_randomness():
                if self._job.collate is None or _alike(first := copied_sample(batched()), batched()):
                    return False
                self._held.put_back()
                self.moves = not _alike(first, batched())
                return True
        except Exception:  # noqa: BLE001 whoever trains on the samples says what is wrong with them
            return False
        finally:
            self._held.put_back()

    def _draws_reading(self, number: int) -> bool:
        """Whether a generator moves when a sample is read: one that is kept as it was drawn first does so once."""
        seed_host(self._job.seed)
        before = host_states()
        self._read(number)
        return bool(find_moved(before))

    def differs(self) -> bool:
        """Whether a sample that is read now differs from what it was when that was asked first."""
        return any(not _alike(first, self._compared(number)) for number, first in self._first.items())

    def _compared(self, number: int) -> list[Any]:
        with preserved_randomness():
            return copied_sample(_tensors_and_numbers(self._drawn(number)))

    def read_together(self) -> bool:
        """Whether `__getitems__` gives other samples for several numbers than `__getitem__` for each."""
        fetch = getattr(self.dataset, "__getitems__", None)
        numbers = sorted({0, self.count // 2, self.count - 1})
        if fetch is None or self.stream:
            return False
        with preserved_randomness():
            seed_host(self._job.seed)
            before = host_states()
            alone = copied_sample([_tensors_and_numbers(self._read(number)) for number in numbers])
            if find_moved(before):
                # What draws is read one by one.
                return False
            try:
                numbers = [number % len(self.dataset) for number in numbers]
                together = [_tensors_and_numbers(one) for one in fetch(numbers)]
            except Exception:  # noqa: BLE001 whoever trains on the samples says what is wrong with them
                return False
        return list(map(len, together)) != list(map(len, alone)) or not _alike(alone, together)

    def collate_draws(self, numbers: Sequence[int]) -> bool:
        """Whether a batch that is made twice of the same samples differs.

        Args:
            numbers: of samples that are kept
        """
        with preserved_randomness():
            first, second = (
                name_tensors(_collated(self._job, [self._sample(number) for number in numbers], numbers))
                for _ in range(2)
            )
        return not _alike(first, second)

    def leaves_out_none(self) -> bool:
        """Whether `Job.collate` leaves out a sample that is None, as of a file that could not be read."""
        numbers = range(min(2, self.count))
        with preserved_randomness():
            samples = [self._sample(number) for number in numbers]
            try:
                tensors = name_tensors(_collated(self._job, [*samples, None], numbers))
            except InputError:
                return False
        return bool(tensors) and all(one.dim() and len(one) == len(samples) for one in tensors.values())

    def _sample(self, number: int) -> Any:
        if number not in self._kept:
            self._kept[number] = self._drawn(number)
        try:
            # Its tensors may get into a batch as they are, and be written to.
            return copied_sample(self._kept[number])
        except Exception:  # noqa: BLE001 - whatever it is, the samples of most data sets can be copied
            return self._kept[number]

    def _read(self, number: int) -> Any:
        return read_sample(self.dataset, number % len(self.dataset))

    def _drawn(self, number: int) -> Any:
        """A sample that is the same in every batch, and on every rank, although reading it may draw."""
        seed_host(hash((self._job.seed, number)) % 2**32)
        return self._read(number)


def _tensors_and_numbers(sample: Any) -> list[Any]:
    """What of a sample can be compared."""
    kinds = torch.Tensor | numpy.ndarray | int | float
    return [one for one in pytree.tree_leaves(sample) if isinstance(one, kinds)]


def _alike(one: Any, other: Any) -> bool:
    """Whether the tensors, arrays and numbers of two samples are the same."""
    leaves, others = _tensors_and_numbers(one), _tensors_and_numbers(other)
    return len(leaves) == len(others) and all(map(equal, leaves, others))


def differing_sizes(samples: Samples) -> tuple[str, ...]:
    """The tensors that differ in more than their first dim between batches of equally many samples.

    Args:
        samples: of which batches are made

    Raises:
        InputError: a sample cannot be read, or they cannot be collated
    """
    starts = sorted({0, max(0, samples.count // 2 - SAMPLES), samples.count - SAMPLES})
    batches = [*(samples.batch(range(start, start + SAMPLES)) for start in starts), *samples.epoch_batches]
    shapes = [{name: tensor.shape[1:] for name, tensor in name_tensors(batch).items()} for batch in batches]
    names = dict.fromkeys(name for one in shapes for name in one)
    return tuple(name for name in names if len({one.get(name) for one in shapes}) > 1)


def largest_look(job: Job, samples: Samples) -> int:
    """Samples of the largest batch that a job is looked at with: where fewer fail, twice as many are tried."""
    return min(samples.count, job.global_batch_size, MOST_LOOKED_AT)


def sample_batch(job: Job, device: torch.device | str = "cpu") -> Any:
    """A batch of the first samples of the training data, in the job's precision.

    Raises:
        InputError: the data cannot be made, indexed or collated, or has too few samples
    """
    return Samples(job, device).batch(range(SAMPLES))


def _collated(job: Job, samples: list[Any], numbers: Sequence[int]) -> Any:
    own = job.collate is not None
    with users(
        "Job.collate",
        job.collate,
        said=lambda error: batching_fault(error, samples, numbers, own=own).error("dataset.collate-fails"),
    ):
        return (job.collate or default_collate)(samples)


def _call(job: Job, name: str) -> Any:
    with users(f"Job.{name}", getattr(job, name)):
        return getattr(job, name)()


KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


_GRADIENT_KINDS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def count_gradient_hooks(parameter: Tensor) -> int:
    """How many hooks are on the gradient of a parameter."""
    # Properties of torch that hold nothing until a hook is there.
    return sum(len(getattr(parameter, kind, None) or ()) for kind in _GRADIENT_KINDS)


class OnWhole:
    """A hook on the gradient of a parameter that waits for the whole gradient; torch calls it with each part."""

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self.hook = hook

    def __call__(self, _: Any) -> None:
        """Wait."""


def hooks_wait(parameters: Iterable[Tensor], *, wait: bool = True) -> None:
    """Let the hooks on gradients wait for `call_waiting`, as backwards of parts of a batch give parts of a gradient."""
    for hooks in (getattr(one, kind, None) or {} for one in parameters for kind in _GRADIENT_KINDS):
        plain = {key: hook.hook if isinstance(hook, OnWhole) else hook for key, hook in hooks.items()}
        hooks.update({key: OnWhole(hook) for key, hook in plain.items()} if wait else plain)


def call_waiting(parameters: Iterable[Tensor]) -> None:
    """Call the hooks that wait, as the backward of a whole batch does.

    Example:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> _ = weight.register_hook(lambda gradient: gradient.clamp(max=1.0))
        >>> hooks_wait([weight])
        >>> (weight * 0.75).sum().backward(), (weight * 0.75).sum().backward()
        (None, None)
        >>> call_waiting([weight])
        >>> weight.grad
        tensor([1., 1.])
    """
    for one in parameters:
        if one.grad is None:
            continue
        of_gradient, of_parameter = (getattr(one, kind, None) or {} for kind in _GRADIENT_KINDS)
        for waiting in [hook for hook in of_gradient.values() if isinstance(hook, OnWhole)]:
            given = waiting.hook(one.grad)
            if given is not None:
                one.grad = given
        for waiting in [hook for hook in of_parameter.values() if isinstance(hook, OnWhole)]:
            waiting.hook(one)


def has_user_hooks(module: nn.Module) -> bool:
    """Whether someone other than torch itself hooked the forward or backward of this module."""
    return bool(hooks_of_user(module))


def hooks_of_user(module: nn.Module) -> list[Any]:
    """The hooks on the forward and backward of this module that are not torch's."""
    return [hook for kind in KINDS for hook in getattr(module, kind, {}).values() if not _of_torch(hook)]


Hooks = list[tuple[dict[int, Any], dict[int, Any]]]
"""The hooks of modules, by kind, and what they were."""


def hooks_now(model: nn.Module) -> Hooks:
    """All hooks of a model as they are.

    Args:
        model: the user's
    """
    found = (getattr(module, kind, None) for module in model.modules() for kind in KINDS)
    return [(hooks, dict(hooks)) for hooks in found if hooks is not None]


def put_hooks_back(saved: Hooks) -> None:
    """Put on modules the hooks that they had, and take off others.

    Args:
        saved: as `hooks_now` found them
    """
    for hooks, before in saved:
        if hooks.keys() != before.keys():
            hooks.clear()
            hooks.update(before)


@contextmanager
def without_user_hooks(model: nn.Module) -> Iterator[None]:
    """Take the user's hooks off; those by which torch computes a weight (weight and spectral norm) stay."""
    saved = hooks_now(model)
    try:
        for hooks, _ in saved:
            for key in [key for key, hook in hooks.items() if not _of_torch(hook)]:
                del hooks[key]
        yield
    finally:
        put_hooks_back(saved)


def modules_with_lost_hooks(model: nn.Module, called: set[str]) -> list[str]:
    """Paths of the modules whose hooks cannot fire when only some modules are called.

    Args:
        model: the user's model
        called: paths of the modules that a segment calls; what lies inside them runs as ever
    """
    lost = []
    for path, module in model.named_modules():
        inside = any(path == leaf or path.startswith(f"{leaf}.") for leaf in called)
        if not inside and has_user_hooks(module):
            lost.append(path)
    return lost


def _of_torch(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)
    defined = getattr(hook, "__module__", None) or type(hook).__module__
    return defined.startswith("torch.")
