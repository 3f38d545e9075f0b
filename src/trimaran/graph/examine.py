"""Look at what a job does on real batches of its training data.

The question is always the same: is a batch in parts the whole batch? So parts and whole are both run, and their
gradients compared, by parameter. What a training draws at random or takes from the batch's own statistics differs
between the two for reasons that are no fault of a plan, and is set apart:

    dropout                     does nothing
    batch norm                  normalises by its running statistics
    other draws of torch        are drawn for the whole batch; a part gets those of its samples

A forward that reads values of its tensors, as an `if` does, is tried until parts read something else than the whole:
only then it is seen whether its way through the batch is that of each sample.

What remains are losses that are no mean over the samples, forwards that look across samples, and padding that leaks
into the result. Where parts do not add up as a mean over samples, other weights are tried: elements that are not
ignored, class weights, masks, sizes, sums.

A few samples are the whole data set only if they are chosen: some hundred are read, and those run whose sizes, labels
and masks differ most. Where several weights would still do (all classes in the batch weigh the same, no label is
ignored, the mask is all ones), values that tell them apart are written into the batch. What that shows chooses among
the weights that fit the data; it refuses nothing.

Parts are made by `Job.collate` from their samples, as a rank makes them; by slicing where `Job.collate` draws.
"""

import bisect
import copy
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.testing._internal.distributed.fake_pg import FakeStore

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.precision import dtype_name
from trimaran.base.user_errors import asking, attempted
from trimaran.graph.behaviour import OF_LOSS, TOO_LARGE, Behaviour, Metric, Reduction, Weight
from trimaran.graph.examine_modes import (
    Coupled,
    Draws,
    LossCall,
    Losses,
    Promoting,
    WithoutBatchEffects,
    has_storage,
    span_of,
)
from trimaran.graph.gradients import are_alike, kept_gradient, largest, largest_difference, summed
from trimaran.graph.metrics import EVALUATED, can_gather
from trimaran.graph.optimizers import (
    differing_option,
    modules_of,
    optimizer_traits,
    trained_parameters,
)
from trimaran.user_code.alone import alone, among_ranks, is_one_of_several
from trimaran.user_code.batches import (
    SUMMED,
    are_sliceable,
    call_model,
    cast_batch,
    copied_batch,
    is_sliceable,
    loss_value,
    name_tensors,
    rebuild_batch,
    sample_dims,
    slice_batch,
    slice_dims,
    split_batch,
)
from trimaran.user_code.datasets import describe
from trimaran.user_code.held_state import (
    HOST_GENERATOR_TYPES,
    HeldState,
    Values,
    changed,
    generator_states,
)
from trimaran.user_code.model import (
    MOST_LOOKED_AT,
    SAMPLES,
    Samples,
    begin_training,
    call_waiting,
    count_gradient_hooks,
    device_of,
    differing_sizes,
    hooks_of_user,
    hooks_wait,
    largest_look,
    parts_in_evaluation,
    precision_context,
    quiet,
    uncompiled,
    untouched,
    was_in_evaluation,
)
from trimaran.user_code.randomness import (
    PYTHON_AND_NUMPY,
    find_moved,
    host_states,
    seed_generators,
)

LOOKED_AT = 6
"""Samples of a batch that is looked at: enough for parts of different sizes, few enough for a look."""

SEEDS, MOST_SEEDS = 3, 12
"""Under which a batch is run: always, and where the forward differs between them."""

SCANNED = 256
"""Samples that are read to choose from."""

SCAN_SECONDS = 0.5
"""After this no further sample is read to choose from [s]."""

PLANT_SECONDS = 10.0
"""After this no further weight is told apart [s]: what is chosen should not hang on how busy the machine is."""

MOST_PLANTED = 4
"""Batches with values written into them."""

MOST_FIT = 8
"""Weights that fit the data and are told apart."""

MOST_ELEMENTS = 50_000_000
"""Elements of the parameters of a model that is looked at in fp64, as a copy."""

MOST_FOLLOWED = 5_000_000
"""Elements of the parameters of a model whose parameters are compared before and after a forward."""

TRIED = 24
"""More batches that are looked at where values are read, until parts have read others than the whole."""

TELLING = 3
"""Batches that are enough, if their parts read other values than the whole."""

SECONDS = 2.0
"""After this no further batch is looked at [s of this process, so that what else the machine does changes nothing; the
first batch, with what is loaded for it, does not count]."""

UNLIKELY = 1e-3
"""Chance in a training at which what may happen is not waited for."""

EXACT, PARTLY, ROUNDED = 1e-7, 3e-4, 2e-3
"""Differences that are rounding, of a largest gradient: in fp64, where parts of the model compute in fp32, in fp32."""


@asking("")
def examine(job: Job, model: nn.Module, *, too_large: bool = False) -> Behaviour:
    """Look at a job.

    Args:
        job: the job
        model: its model, which is left as it was
        too_large: do not run it; look at what can be seen without

    Raises:
        InputError: the data cannot be read
    """
    started_s = time.perf_counter()
    # Before the optimizer is tried, for which other models may be made.
    found = replace(_from_model(model), readers=readers_of(job, model), precision=job.precision)
    found = replace(found, optimizer=optimizer_traits(job, model))
    with quiet(), _among_ranks() if dist.group.WORLD is None else alone():
        parameters = trained_parameters(model)
        # It may ask for a device that is not here.
        if attempted("Job.optimizer", lambda: differing_option(job, parameters, found.optimizer), ""):
            found = replace(found, follows_ranks=True)
    if too_large:
        return replace(found, not_looked=TOO_LARGE)
    samples = Samples(job, device_of(model), most=SCANNED, keep=True)
    found = replace(
        _from_batches(found, samples),
        batches=_batch_sizes(job, samples),
        last_unknown=samples.stream and samples.total is None and not job.drop_last,
        readers=(*found.readers, *_reading(model, {"Job.dataset": samples.dataset})),
    )
    with ExitStack() as stack:
        for part in (model, *modules_of(job.loss)):
            stack.enter_context(untouched(part))
        stack.callback(hooks_wait, model.parameters(), wait=False)
        contexts = (quiet(), uncompiled(), torch.enable_grad(), alone())
        for context in contexts:
            stack.enter_context(context)
        begin_training(model)
        try:
            found = _Examination(job, model, samples).look(found)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, capture meets it too and tells it better
            found = replace(found, not_looked=f"it failed on a few samples: {describe(error)}")
    # It may be other than at first only after many reads.
    found = replace(found, data_carries=found.data_carries or samples.differs())
    return replace(found, seconds=time.perf_counter() - started_s)


def _from_model(model: nn.Module) -> Behaviour:
    named = {module: path for path, module in model.named_modules()}
    trained = dict(model.named_parameters(remove_duplicate=False))
    still = [named[part] for part in parts_in_evaluation(model)]
    common = next((one.dtype for one in trained.values() if one.requires_grad), torch.float32)
    dtypes = tuple((dtype_name(one.dtype), name) for name, one in trained.items() if one.dtype != common)
    return Behaviour(
        gradient_hooks=tuple(name for name, one in model.named_parameters() if count_gradient_hooks(one)),
        returned_in_evaluation=was_in_evaluation(model),
        kept_in_evaluation=tuple(one for one in still if not one.startswith(tuple(f"{path}." for path in still))),
        synced=tuple(path or "the model" for module, path in named.items() if isinstance(module, nn.SyncBatchNorm)),
        scripted=tuple(
            path or "the model" for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)
        ),
        overlapping=_overlapping(model),
        renamed=_renamed(model),
        hollow=tuple(name for name, one in trained.items() if one.requires_grad and not one.numel()),
        dtypes=dtypes,
    )


def _overlapping(model: nn.Module) -> tuple[str, ...]:
    """A trained parameter and another tensor that has some of its elements, by name; empty: none has."""
    # Objects of one parameter are one: a tied weight is moved as such.
    tensors = {id(one): (name, one) for name, one in (*model.named_buffers(), *model.named_parameters())}
    for path, module in model.named_modules():
        # A hook may make one anew before each forward, as that of spectral norm does.
        own = vars(module).items() if not module._forward_pre_hooks else ()
        held = {f"{path}.{name}".lstrip("."): one for name, one in own if isinstance(one, Tensor)}
        tensors |= {id(one): (name, one) for name, one in held.items() if id(one) not in tensors}
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, one in tensors.values():
        if has_storage(one):
            by_storage.setdefault(one.untyped_storage().data_ptr(), []).append((name, one))
    for sharing in by_storage.values():
        for (first, one), (second, other) in itertools.combinations(sharing, 2):
            if any(each.requires_grad and each.is_leaf for each in (one, other)) and _share_elements(one, other):
                return tuple(sorted((first, second)))
    return ()


def _renamed(model: nn.Module) -> tuple[str, ...]:
    """Entries of the `state_dict` that hooks make of parameters and buffers, under other names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    names, known = {name for name, _ in named}, {id(one) for _, one in named}
    with torch.enable_grad():
        state = model.state_dict(keep_vars=True)
    return tuple(
        name
        for name, one in state.items()
        if name not in names and isinstance(one, Tensor) and (id(one) in known or one.grad_fn is not None)
    )


def _share_elements(one: Tensor, other: Tensor) -> bool:
    """Whether an element of one storage is in both tensors."""
    (begin, end), (other_begin, other_end) = map(span_of, (one, other))
    if end <= other_begin or other_end <= begin:
        return False
    if one.element_size() != other.element_size():
        return True
    places = torch.arange(one.untyped_storage().nbytes() // one.element_size())
    own, others = (places.as_strided(each.shape, each.stride(), each.storage_offset()) for each in (one, other))
    return bool(torch.isin(own, others).any())


_READERS = ("loss", "lr_schedule", "metric", "sampler", "collate")


def readers_of(job: Job, model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Fields of a job, other than the data, that hold modules or parameters of the model, each with the first.

    Args:
        job: has them
        model: the user's, as it was made last
    """
    return _reading(model, {f"Job.{name}": getattr(job, name) for name in _READERS})


def _reading(model: nn.Module, fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    named = [(name or "the model", one) for name, one in (*model.named_modules(), *model.named_parameters())]
    names = {id(one): name for name, one in named}
    held = {field: HeldState({field: one}, undoable=False).parts() for field, one in fields.items()}
    firsts = {field: next((names[id(one)] for one in parts if id(one) in names), "") for field, parts in held.items()}
    return tuple((field, name) for field, name in firsts.items() if name)


def _from_batches(found: Behaviour, samples: Samples) -> Behaviour:
    """What batches hold, and of which sizes."""
    carries = samples.carries()
    batch = samples.batch(range(SAMPLES))
    others: list[Any] = []
    name_tensors(batch, others)
    return replace(
        found,
        # A first dim that is another one, such as time, may be as long by chance.
        sliceable=are_sliceable(batch, samples.batch(range(SAMPLES - 1)), SAMPLES),
        others=tuple(dict.fromkeys(type(value).__name__ for value in others)),
        sizes=differing_sizes(samples),
        stream=samples.stream,
        data_carries=carries,
        moved="Job.collate" if samples.moves else "",
        read_together=not carries and samples.read_together(),
    )


def _batch_sizes(job: Job, samples: Samples) -> tuple[int, ...]:
    """Samples of a global batch, and of the last of an epoch where it is smaller; of a long stream not known."""
    batch, counts = job.global_batch_size, samples.epochs()
    lasts = () if job.drop_last else sorted({count % batch for count in counts} - {0})
    return (*((batch,) if not counts or max(counts) >= batch else ()), *lasts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What a batch gave.

    Attributes:
        value: of the loss
        weight: that the loss returned with it
        gradients: of each parameter that is trained; None: it has none
        buffers: afterwards, those of batch norms apart
        path: of operations
        read: values of tensors that decide, in order
        states: of the generator of each draw, before it
    """

    value: float
    weight: float | None
    gradients: list[Tensor | None] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    path: int = 0
    read: tuple[int | bool, ...] = ()
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A batch and its parts."""

    whole: Any
    parts: list[Any]
    sizes: list[int]
    run: _Pass
    apart: list[_Pass]
    """Each from the buffers that the whole began with."""
    in_turn: list[_Pass]
    """Each from the buffers that the one before has left."""

    @property
    def reads_other(self) -> bool:
        """A part read other values than the whole."""
        return any(one.read != self.run.read for one in self.apart)


class _Examination:
    """Runs a job on batches and on their parts."""

    def __init__(self, job: Job, model: nn.Module, samples: Samples) -> None:
        self._job, self._model, self._samples = job, model, samples
        self._started_s = time.process_time()
        self.reads = False
        self.own = self.generates = False
        self._ends: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.draws = self.host_draws = self.uncoupled = self.mixed = False
        self.written: set[str] = set()
        # Draws that begin in the same state whatever the seed; and those that a part of the batch has other shapes of.
        self._restarted: set[int] = set()
        self._parted: set[int] = set()
        self.part_failed = ""
        self._failing: tuple[tuple[int, str], ...] = ()
        self._calls: list[LossCall] = []
        self._collate_draws = False
        # What is drawn in a loop over samples is drawn alike for each, so that a part draws what the whole does.
        self._draws_alike = False
        self._scanned: list[dict[tuple[str, str], float]] = []
        self._left_out: list[int] = []
        # Losses of the first batch, once more.
        self._again: list[float] = []
        self._read: list[int] = []
        self._of_loss = modules_of(job.loss)
        self._prepare(double=True)

    @property
    def tolerance(self) -> float:
        """The largest difference that is rounding, in what was run so far."""
        return ROUNDED if not self._double else PARTLY if self.mixed else EXACT

    def _prepare(self, *, double: bool) -> None:
        elements = sum(parameter.numel() for parameter in self._model.parameters())
        self._work, self._double, self.mixed = self._model, False, False
        if double and elements <= MOST_ELEMENTS:
            # One that cannot be copied is looked at where it is.
            with suppress(Exception):
                self._work = copy.deepcopy(self._model).double()
        # A loss that reads the model must see the one that runs, and so must a forward that was put into a module.
        if self._work is not self._model and self._reaches_model(self._work):
            self._work = self._model
        self._double = self._work is not self._model or (
            double and all(one.dtype is torch.float64 for one in self._model.parameters())
        )
        hooks_wait((*self._model.parameters(), *self._work.parameters()))
        self._trained = [one for one in self._work.parameters() if one.requires_grad]
        self._known = {name for name, _ in self._work.named_parameters()}
        self._names = [name for name, one in self._work.named_parameters() if one.requires_grad]
        norms = {id(one) for part in self._work.modules() if _is_norm(part) for one in part.buffers(recurse=False)}
        self._buffers = {name: one for name, one in self._work.named_buffers() if id(one) not in norms}
        # A forward may keep an average of weights, or weights of another network that follow these.
        if elements <= MOST_FOLLOWED:
            self._buffers |= dict(self._work.named_parameters())
        for part in self._of_loss:
            met = {*norms, *map(id, self._buffers.values())}
            self._buffers |= {f"{OF_LOSS}{name}": one for name, one in part.named_buffers() if id(one) not in met}
        # A forward may put another tensor in the place of a buffer.
        met = {id(one) for one in self._buffers.values()}
        self._places = [(part, name, one) for part in (*self._work.modules(), *self._of_loss)
                        for name, one in part._buffers.items() if id(one) in met]  # fmt: skip
        self._initial = [one.detach().clone() for one in self._buffers.values()]
        # A first forward may put hooks on its parts, and keep that it has, as models of Hugging Face do.
        self._held_state = HeldState(_holders(self._job, self._work))

    def _reaches_model(self, work: nn.Module) -> bool:
        """Whether a copy of the model, a hook on it, or the loss holds parts of the model itself."""
        own = {id(one) for one in (*self._model.modules(), *self._model.parameters())}
        return any(id(one) in own for one in HeldState(_holders(self._job, work), undoable=False, files=True).parts())

    def look(self, found: Behaviour) -> Behaviour:
        """Add what is seen."""
        most = min(self._samples.count, max(2, min(LOOKED_AT, self._job.global_batch_size)))
        first = list(range(min(most, SAMPLES)))
        while True:
            began_s = time.perf_counter()
            try:
                called = Losses()
                self._value(self._batch(first), WithoutBatchEffects(), called)
                self._calls = list(dict.fromkeys(called.calls))
                break
            except InputError:
                raise
            except Exception:
                if not self._double and 2 * len(first) > largest_look(self._job, self._samples):
                    raise
                # Something in it is fp32 for good, or it needs more samples.
                if not self._double:
                    first = list(range(2 * len(first)))
                self._prepare(double=not self._double)
        most = max(most, len(first))
        each_s = (time.perf_counter() - began_s) / len(first)
        # A forward, and twice as much for the backward, of the whole and again of its parts.
        if 6 * each_s * most > SECONDS:
            most = len(first)
        made = [name for name, _ in self._work.named_parameters() if name not in self._known]
        if made:
            raise InputError(
                f"the forward makes the parameter {made[0]}, which no optimizer has, and ranks would draw it each for "
                "itself: make it in Job.model, or run the model once there before it is returned",
                code="model.grows",
                parameter=made[0],
            )
        self._put_back()
        self._started_s = time.process_time()
        self._failing = self._failing_sizes(found.batches, each_s)
        self._collate_draws = self._samples.collate_draws(first)
        try:
            splits = self._splits(most)
        except InputError:
            raise
        except Exception:
            if not self._double:
                raise
            self._prepare(double=False)
            splits = self._splits(most)
        while self.part_failed and most < (largest := largest_look(self._job, self._samples)):
            # Few samples may be too few.
            most, self.part_failed = min(2 * most, largest), ""
            splits = self._splits(most)
        splits += self._told(splits, most)
        _check_weights(splits)
        metric, tolerance = self._metric(), self.tolerance
        found = replace(found, tolerance=tolerance, **self._seen(splits))
        if self._is_moved(splits[0]):
            found = replace(found, moved="the forward or the loss")
        carried, of_samples = self._carried(splits[0])
        found = replace(found, carried=carried, carried_of_samples=of_samples)
        reduction, weight, apart, in_turn = self._reduction(splits, tolerance)
        without = self._without_weight(weight or self._job.loss_weight)
        if without is not None:
            reduction, weight, apart, in_turn = self._reduction([*splits, without], tolerance)
        if reduction == "batch" and (self.draws or self.host_draws):
            splits, (reduction, weight, apart, in_turn) = self._drawn_alike(splits, tolerance)
        self._failing += self._emptied(found.batches)
        if weight is not None:
            each = float(weight(splits[0].whole)) / sum(splits[0].sizes)
            weight = replace(weight, typical=each if math.isfinite(each) and each > 0.0 else 1.0)
        padded = False
        communicates = self._on_ranks(self._batch(range(SAMPLES)))
        # A forward may gather what it keeps in a buffer, and the loss nothing.
        if communicates == "gathers":
            reduction, weight, apart = "gathers", None, 0.0
        elif max(apart, in_turn) > tolerance and found.sizes and found.sliceable:
            padded = self._holds_when_sliced(splits[0], tolerance)
        return replace(
            found,
            reduction=reduction,
            mixed_at=self._mixed_at(splits) if reduction == "batch" and not padded else "",
            logs_over_ranks=communicates == "logs",
            follows_ranks=found.follows_ranks or communicates == "follows",
            weight=weight,
            replicas=None if reduction == "gathers" else apart,
            microbatches=in_turn,
            padded=padded,
            draws=self.draws,
            own_generator=self.generates,
            restarts=bool(self._restarted & self._parted),
            holds_generator=self.own,
            host_draws=self.host_draws,
            part_failed=self.part_failed,
            failing=self._failing,
            left_out=len(self._left_out),
            metric=metric,
            collate_draws=self._collate_draws,
            not_looked=f"it failed on {self.part_failed}" if reduction == "unknown" and self.part_failed
            else found.not_looked,
        )  # fmt: skip

    def _drawn_alike(
        self, splits: list[_Split], tolerance: float
    ) -> tuple[list[_Split], tuple[Reduction, Weight | None, float, float]]:
        """How the loss of the same batches is reduced where each sample of a loop draws what the others draw.

        That stays so for what is run later, where it makes a loss of the losses of parts.
        """
        self._draws_alike = True
        with self._unnoted():
            runs = [self._run(one.whole, one.parts, one.sizes) for one in splits]
        found = self._reduction(runs, tolerance)
        if found[0] not in ("batch", "unknown"):
            return runs, found
        self._draws_alike = False
        return splits, self._reduction(splits, tolerance)

    def _metric(self) -> Metric:
        """How the metric of an evaluation is computed."""
        job, make = self._job, self._job.evaluation_dataset
        if job.metric is None or make is None:
            return ""
        try:
            data = Samples(replace(job, dataset=make), device_of(self._work), most=EVALUATED, keep=True, least=1)
            self._work.eval()
            now = zip(self._buffers.items(), self._initial, strict=True)
            self.written |= {name for (name, one), value in now if name in self._known and not are_alike(one, value)}
            count = min(EVALUATED, data.count)
            made = [self._evaluated(data.batch(range(some))) for some in dict.fromkeys((count, -(-count // 2), 1))]
            return "gathered" if can_gather(made, samples=data.total) else "mean"
        except Exception:  # noqa: BLE001 - what fails in an evaluation is told there
            return ""
        finally:
            self._put_back()

    def _evaluated(self, batch: Any) -> tuple[Any, Any]:
        """Output and target of a batch."""
        batch = cast_batch(batch, torch.float64) if self._double else batch
        with torch.no_grad(), self._promoting(), WithoutBatchEffects(), Coupled(Draws(), None):
            output = call_model(self._job, self._work, batch)
        return output, split_batch(batch, own_loss=self._job.loss is None)[2]

    def _without_weight(self, weigh: Any) -> _Split | None:
        """A batch of which a part has samples alone that do not count; None: there are none, or all count.

        In a mean over what counts, nothing remains of such a part. Where the loss has more terms, they would be lost.
        """
        if weigh is None or weigh is SUMMED or (isinstance(weigh, Weight) and weigh.measure in ("size", "samples")):
            return None
        zero: list[int] = []
        rest: list[int] = []
        started_s = time.process_time()
        try:
            for number in self._read:
                counts = float(weigh(self._samples.batch([number], keep=False))) > 0.0
                (rest if counts else zero).append(number)
                late = time.process_time() - started_s > SCAN_SECONDS
                if late or (len(zero) > 1 and len(rest) > 1):
                    break
        except Exception:  # noqa: BLE001 - as of a weight that needs several samples
            return None
        if not zero or not rest:
            return None
        failed = self.part_failed
        split = self._split([*zero[:2], *rest[:4]], len(zero[:2]))
        self.part_failed = failed
        return split if len(split.parts) > 1 else None

    def _emptied(self, batches: Sequence[int]) -> tuple[tuple[int, str], ...]:
        """Sizes of parts of which `Job.collate` may leave out every sample, and make no batch."""
        left, total = len(self._left_out), self._samples.total
        if not left:
            return ()
        read = left + len(self._scanned)
        sizes = {batch // parts for batch in batches for parts in range(2, batch + 1)}
        failing = []
        for size in sorted(sizes - {size for size, _ in self._failing}):
            number = (total or read) / size * self._job.epochs
            if (read == total and size > left) or (left / read) ** size * number < UNLIKELY:
                break
            how = f"Job.collate leaves out {left} of {read} samples, and of a part it may leave out all: leave them out"
            failing.append((size, f"{how} of the data set (torch.utils.data.Subset)"))
        return tuple(failing)

    def _splits(self, size: int) -> list[_Split]:
        splits: list[_Split] = []
        for number, group in enumerate(self._groups(size)):
            if splits and (self.part_failed or time.process_time() - self._started_s > SECONDS):
                break
            # Two thirds and one third, which are even numbers of six samples; then halves: what pairs samples differs.
            try:
                split = self._split(group, size // 2 if number and size > 2 else None)
            except InputError:
                raise
            except Exception as error:
                if self._double or len(group) <= size:
                    raise
                # Few samples work where a whole batch does not.
                self._failing = (*self._failing, (len(group), describe(error)))
                self._put_back()
                split = self._split(group[-size:], size // 2)
            if not number and self.part_failed:
                self.part_failed = ""
                split = self._split(group, size // 2)
            elif self.part_failed:
                self.part_failed = ""
                split = self._split(group[-size:])
            splits.append(split)
        return splits

    def _told(self, splits: Sequence[_Split], most: int) -> list[_Split]:
        """More batches, where values are read, until parts have read others than the whole."""
        more: list[_Split] = []
        for group in self._tried(most):
            told = sum(split.reads_other for split in (*splits, *more))
            late = time.process_time() - self._started_s > SECONDS
            if not self.reads or told >= TELLING or self.part_failed or late:
                break
            more.append(self._split(group, 1))
        # A part of one sample may fail where those that a plan makes do not.
        self.part_failed = "" if splits and len(splits[0].parts) > 1 else self.part_failed
        return [split for split in more if len(split.parts) > 1]

    def _failing_sizes(self, batches: Sequence[int], each_s: float) -> tuple[tuple[int, str], ...]:
        """Sizes of parts that fail in training, each with how; where the smallest does not, no other is tried.

        A whole batch is tried too, where that is soon done.

        Args:
            batches: sizes of whole ones
            each_s: what a forward takes for a sample [s]
        """
        most = min(MOST_LOOKED_AT, self._samples.count, self._job.global_batch_size - 1)
        sizes = sorted({batch // parts for batch in batches for parts in range(1, batch + 1)})
        failing: list[tuple[int, str]] = []
        whole = [size for size in batches[:1] if most < size <= self._samples.count and each_s * size < SECONDS]
        for size in (*sizes[: bisect.bisect_right(sizes, most)], *whole):
            if size > 1 and size not in whole and not failing:
                continue
            try:
                batch = self._batch(range(size))
                self._value(batch)
            except Exception as error:  # noqa: BLE001 - whatever a forward or a loss needs more samples for
                failing.append((size, describe(error)))
            self._put_back()
        return tuple(failing)

    def _tried(self, most: int) -> Iterator[list[int]]:
        """Samples of more batches, of which some have few: these read what is rare."""
        drawn = random.Random(self._job.seed + 1)
        for number in range(TRIED):
            yield drawn.sample(range(self._samples.count), most if number % 2 or self._failing else 2)

    def _groups(self, size: int) -> Iterator[list[int]]:
        """Samples of the batches that are looked at: first those that differ most, then others."""
        count = self._samples.count
        drawn = random.Random(self._job.seed)
        self._left_out = []
        numbers, self._scanned = self._scan(drawn)
        self._read = numbers
        yield self._unlike(numbers, size, drawn)
        yield sorted(drawn.sample(range(count), size))
        yield list(range(count - size, count))

    def _scan(self, drawn: random.Random) -> tuple[list[int], list[dict[tuple[str, str], float]]]:
        """Read samples from all over the data set, and note what a loss may treat in its own way."""
        count = self._samples.count
        order = list(range(count)) if count <= SCANNED else drawn.sample(range(count), SCANNED)
        drawn.shuffle(order)
        numbers: list[int] = []
        noted: list[dict[tuple[str, str], float]] = []
        started_s = time.process_time()
        for number in order:
            try:
                batch = self._samples.batch([number], keep=False)
            except InputError:
                # A collate function may need several samples, or leave out this one.
                if self._leaves_out(number, numbers or order):
                    self._left_out.append(number)
                    continue
                if not noted:
                    break
                raise
            if self._job.collate is not None and is_sliceable(batch, 0):
                self._left_out.append(number)
                continue
            numbers.append(number)
            noted.append(self._note(batch))
            if time.process_time() - started_s > SCAN_SECONDS:
                break
        return numbers, noted

    def _leaves_out(self, number: int, others: Sequence[int]) -> bool:
        """Whether `Job.collate` makes a batch without a sample of which alone it makes none."""
        others = [one for one in others if one != number][:SAMPLES]
        if self._job.collate is None or not others:
            return False
        try:
            tensors = name_tensors(self._samples.batch([number, *others], keep=False))
        except InputError:
            return False
        sizes = {len(one) if one.dim() else -1 for one in tensors.values()}
        return len(sizes) == 1 and 0 < next(iter(sizes)) <= len(others)

    def _note(self, batch: Any) -> dict[tuple[str, str], float]:
        ignored = torch.tensor(sorted({-100, *(call.ignored for call in self._calls)}))
        tables = [call.table for call in self._calls if call.table]
        noted: dict[tuple[str, str], float] = {}
        for name, tensor in name_tensors(batch).items():
            tensor = tensor.detach().cpu()
            noted["size", name] = float(tensor.numel())
            if not tensor.numel() or tensor.is_complex():
                continue
            if tensor.is_floating_point():
                low, high = (float(one) for one in tensor.aminmax())
                if low >= 0.0 and high <= 1.0:
                    noted["sum", name] = float(tensor.sum(dtype=torch.float64))
                continue
            noted["sum", name] = float(tensor.sum(dtype=torch.float64))
            if tensor.dtype is torch.bool:
                continue
            noted["ignored", name] = float(torch.isin(tensor, ignored.to(tensor.dtype)).sum())
            for table in tables:
                if int(tensor.min()) >= 0 and int(tensor.max()) < len(table):
                    noted["table", name] = float(torch.tensor(table)[tensor.long()].sum())
        return noted

    def _unlike(self, numbers: list[int], size: int, drawn: random.Random) -> list[int]:
        """Samples that differ most, the first of them on one side."""
        kinds = ("ignored", "table", "size", "sum")
        keys = sorted({key for one in self._scanned for key in one}, key=lambda key: (kinds.index(key[0]), key[1]))
        high, low = [], []
        for key in keys:
            have = [(one[key], number) for one, number in zip(self._scanned, numbers, strict=True) if key in one]
            if len({value for value, _ in have}) > 1:
                high.append(max(have)[1])
                low.append(min(have)[1])
        wanted = list(dict.fromkeys(itertools.chain.from_iterable(zip(high, low, strict=True))))[:size]
        others = (number for number in range(self._samples.count) if number not in wanted)
        rest = itertools.islice(others, size - len(wanted))
        firsts = [number for number in wanted if number in high]
        return [*firsts, *rest, *(number for number in wanted if number not in high)]

    def _split(self, numbers: list[int], first: int | None = None) -> _Split:
        first = max(1, (len(numbers) * 2 + 1) // 3) if first is None else first
        groups = [numbers[:first], numbers[first:]] if len(numbers) > 1 else [numbers]
        whole = self._batch(numbers)
        dims = None
        if self._collate_draws and len(numbers) > 1:
            dims = sample_dims(whole, self._batch(numbers[:-1]), len(numbers))
        sizes = [len(group) for group in groups]
        if dims is not None:
            parts = [slice_dims(whole, dims, start, stop) for start, stop, _ in _bounds(sizes)]
        else:
            parts = [self._batch(group) for group in groups]
        return self._run(whole, parts, sizes)

    def _sliced(self, whole: Any, sizes: list[int]) -> _Split:
        """The same, of parts that are slices of it."""
        return self._run(whole, [slice_batch(whole, start, stop) for start, stop, _ in _bounds(sizes)], sizes)

    def _run(self, whole: Any, parts: list[Any], sizes: list[int]) -> _Split:
        """The whole, and its parts: apart, and in turn."""
        drawn = Draws(sizes)
        run = self._pass(whole, drawn)
        bounds = _bounds(sizes)
        apart, in_turn = [], []
        try:
            for part, bound in zip(parts, bounds, strict=True):
                self._put_back()
                apart.append(self._pass(part, drawn, bound))
            drew = any(before != after for before, after in self._ends.items())
            if drew or not all(map(are_alike, self._initial, run.buffers)):
                self._put_back()
                in_turn = [self._pass(part, drawn, bound) for part, bound in zip(parts, bounds, strict=True)]
        except Exception as error:  # noqa: BLE001 - a forward that needs more samples: told, not known
            size = sizes[min(len(apart), len(sizes) - 1)]
            self.part_failed = f"{size} of {sum(sizes)} samples: {describe(error)}"
            parts, apart, in_turn = [whole], [run], []
        self._put_back()
        return _Split(
            whole=whole, parts=parts, sizes=sizes if len(parts) > 1 else [sum(sizes)], run=run, apart=apart,
            in_turn=in_turn or apart,
        )  # fmt: skip

    def _batch(self, numbers: Sequence[int]) -> Any:
        batch = self._samples.batch(numbers)
        return cast_batch(batch, torch.float64) if self._double else batch

    def _value(self, batch: Any, *modes: AbstractContextManager[Any], seed: int = 0) -> Any:
        """The loss of a copy of a batch, to which a forward may write, under modes."""
        seed_generators(self._job.seed + seed)
        with ExitStack() as stack:
            for mode in (self._promoting(), *modes):
                stack.enter_context(mode)
            given = copied_batch(batch)
            return loss_value(self._job, call_model(self._job, self._work, given), given)

    def _versions(self) -> dict[str, tuple[int, int]]:
        return {name: (one._version, one.data_ptr()) for name, one in self._work.named_parameters()}

    def _put_back(self) -> None:
        self._put_buffers_back()
        self._held_state.put_back()

    def _put_buffers_back(self) -> None:
        for part, name, one in self._places:
            part._buffers[name] = one
        with torch.no_grad():
            for buffer, value in zip(self._buffers.values(), self._initial, strict=True):
                buffer.copy_(value)

    def _buffers_now(self) -> list[Tensor]:
        now = {id(one): part._buffers.get(name) for part, name, one in self._places}
        return [one if (put := now.get(id(one))) is None else put for one in self._buffers.values()]

    def _mixed_at(self, splits: Sequence[_Split]) -> str:
        """The first line at which something of the batch is not made of that of its parts; empty: not known."""
        split = next((one for one in splits if one.reads_other), splits[0])
        drawn = Draws(split.sizes)
        kept: list[list[tuple[str, Any, str]]] = []
        try:
            for batch, bound in zip((split.whole, *split.parts), (None, *_bounds(split.sizes)), strict=True):
                coupled = Coupled(drawn, bound, keeps=True)
                self._value(batch, WithoutBatchEffects(), coupled)
                self._put_back()
                kept.append(coupled.kept)
        except Exception:  # noqa: BLE001 - one of the parts failed before, or gradients are computed inside
            return ""
        finally:
            self._put_back()
        runs: Iterator[tuple[tuple[str, Any, str], ...]] = zip(*kept, strict=False)
        for (name, whole, place), *parts in runs:
            if any(one[0] != name for one in parts):
                return ""
            found = [one for _, one, _ in parts]
            made = self._is_made_of(found, whole, split.sizes) if isinstance(whole, Tensor) else {*found} == {whole}
            if place and not made:
                return place
        return ""

    def _is_made_of(self, parts: Sequence[Tensor], whole: Tensor, sizes: Sequence[int]) -> bool:
        """Whether a tensor is those of parts one after the other, or their sum or mean, or the same as each."""
        if all(one.shape == whole.shape for one in parts):
            if all(are_alike(one, whole, self.tolerance) for one in parts) or not whole.is_floating_point():
                return True
            mean = sum(one * (size / sum(sizes)) for one, size in zip(parts, sizes, strict=True))
            return any(isinstance(one, Tensor) and are_alike(one, whole, self.tolerance) for one in (mean, sum(parts)))
        dims = [dim for dim in range(whole.dim()) if all(one.dim() == whole.dim() for one in parts)
                and sum(one.shape[dim] for one in parts) == whole.shape[dim]]  # fmt: skip
        for dim in dims:
            others = [[size for place, size in enumerate(one.shape) if place != dim] for one in (whole, *parts)]
            if all(one == others[0] for one in others):
                joined = torch.cat(list(parts), dim)
                return joined.dtype == whole.dtype and are_alike(joined, whole, self.tolerance)
        return False

    @contextmanager
    def _unnoted(self) -> Iterator[None]:
        """Passes inside leave no note, and everything as it was."""
        noted = {name: copy.copy(getattr(self, name)) for name in _NOTED}
        try:
            yield
        finally:
            for name, one in noted.items():
                setattr(self, name, one)
            self._put_back()

    def _is_moved(self, split: _Split) -> bool:
        """Whether the same batch gives another loss although all that is known was put back, and the same is drawn."""
        samples = sum(split.sizes)
        # On a host the same operations give the same bits.
        tolerance = EXACT if device_of(self._work).type == "cpu" else self.tolerance

        def run(drawn: Draws, bound: tuple[int, int, int] | None = None) -> float:
            value = self._pass(split.whole, drawn, bound).value
            self._put_back()
            return value

        # More than once: what goes in a circle may be where it was. Other seeds are none where nothing is drawn.
        drawing = self.draws or self.host_draws or len(self._again) < 2
        again = [run(Draws()) for _ in range(2)] if drawing else self._again
        if all(_near(value, split.run.value, tolerance) for value in again) or self.uncoupled:
            return False
        # What a generator of torch's gave, which goes on from where it is, is given once more.
        drawn = Draws()
        return not (_near(run(drawn), run(drawn, (0, samples, samples)), tolerance) or self.uncoupled)

    def _carried(self, split: _Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Values in Python that a second pass over the same batch changes once more; those others by other samples."""
        drawn, samples, of_part = Draws(split.sizes), sum(split.sizes), split.sizes[0]

        def kept(batch: Any, bound: tuple[int, int, int] | None) -> Values:
            self._pass(batch, drawn, bound)
            # What follows a buffer, such as a weight that is divided by its norm, is not carried in Python.
            self._put_buffers_back()
            return self._held_state.values()

        first, second = kept(split.whole, None), kept(split.whole, (0, samples, samples))
        self._put_back()
        other = kept(split.parts[0], (0, of_part, samples))
        self._put_back()
        carried = changed(first, second, self._alike)
        return tuple(carried), tuple(one for one in changed(first, other, self._alike) if one in carried)

    def _pass(
        self,
        batch: Any,
        drawn: Draws,
        bound: tuple[int, int, int] | None = None,
        seed: int = 0,
    ) -> _Pass:
        """Forward, loss and backward."""
        seed_generators(self._job.seed + seed)
        hosts = host_states(PYTHON_AND_NUMPY)
        own = list(self._held_state.find(*HOST_GENERATOR_TYPES).values())
        began = generator_states(own)
        alike = self._job.seed + seed if self._draws_alike else None
        coupled = Coupled(drawn, bound, alike=alike)
        versions = self._versions()
        # The copy is fp64; where it is looked at as it is, so is its precision.
        context = nullcontext() if self._double else precision_context(self._job, device_of(self._work))
        self._forget_gradients()
        value = self._value(batch, WithoutBatchEffects(coupled), coupled, coupled.on_hosts(), context, seed=seed)
        total, weight = value if isinstance(value, tuple) else (value, None)
        if isinstance(total, Tensor) and total.requires_grad:
            # Checkpointed activations are computed again, and draw again: as in the forward, which a function of
            # torch's that is called under these modes would leave.
            with self._promoting(), WithoutBatchEffects(), coupled, coupled.on_hosts():
                _engine_run_backward(
                    (total,), (torch.ones_like(total),), False, False, (), allow_unreachable=True,
                    accumulate_grad=True,
                )  # fmt: skip
        gradients = [None if one.grad is None else kept_gradient(one.grad) for one in self._trained]
        ended = generator_states(own)
        self.own |= coupled.own or ended != began
        # From the same state a part draws less than the whole, unless it draws for the batch.
        self.generates |= coupled.generates or self._ends.setdefault(began, ended) != ended
        self._parted |= coupled.parted
        self.draws |= coupled.drew
        self.uncoupled |= coupled.lost
        self.mixed |= coupled.mixed
        self.reads |= coupled.reads
        self.host_draws |= bool(find_moved(hosts))
        # A value that already is what the forward would make of it is one that it writes all the same.
        self.written |= {name for name, one in self._versions().items() if one != versions.get(name, one)}
        return _Pass(
            value=float(total),
            weight=None if weight is None else float(weight),
            gradients=gradients,
            buffers=[one.detach().clone() for one in self._buffers_now()],
            path=hash(tuple(coupled.operations)),
            read=tuple(coupled.read),
            states=tuple(coupled.states),
        )

    def _promoting(self) -> Any:
        return Promoting() if self._double else nullcontext()

    def _seen(self, splits: list[_Split]) -> dict[str, Any]:
        """What does not depend on how the loss is reduced."""
        passes = [one for split in splits for one in (split.run, *split.apart)]
        changed = [
            name
            for place, name in enumerate(self._buffers)
            if any(not are_alike(one.run.buffers[place], self._initial[place]) for one in splits)
        ]
        parameters = dict(self._work.named_parameters())
        # A loop over samples goes on longer where there are more.
        alike = [split for split in splits if sum(split.sizes) == sum(splits[0].sizes)]
        seeds: list[_Pass] = []
        for seed in range(1, MOST_SEEDS + 1):
            # Where the forward goes other ways, more of them are wanted.
            enough = seed > SEEDS and all(one.path == splits[0].run.path for one in seeds)
            if not enough and time.process_time() - self._started_s < SECONDS:
                seeds.append(self._pass(splits[0].whole, Draws(), seed=seed))
                self._put_back()
        for one in seeds:
            again = zip(splits[0].run.states, one.states, strict=False)
            self._restarted |= {place for place, (first, other) in enumerate(again) if first == other != 0}
        passes += seeds
        self._again = [one.value for one in seeds]
        have = [[one.gradients[place] is not None for one in passes] for place in range(len(self._names))]
        return {
            "unused": tuple(name for name, one in zip(self._names, have, strict=True) if not any(one)),
            "varying": tuple(name for name, one in zip(self._names, have, strict=True) if any(one) and not all(one)),
            "buffers": tuple(name for name in changed if name not in parameters),
            "written": tuple(name for name in parameters if name in changed or name in self.written),
            "branches": len({one.run.path for one in alike}) > 1 or any(one.reads_other for one in splits),
        }

    def _reduction(self, splits: list[_Split], tolerance: float) -> tuple[Reduction, Weight | None, float, float]:
        """How the loss is reduced, and how far parts are from the whole by it: apart, and in turn."""
        finite = [split for split in splits if math.isfinite(split.run.value) and len(split.parts) > 1]
        if not finite:
            return "unknown", None, 0.0, 0.0
        fitting: list[tuple[Reduction, Weight | None, float, float]] = []
        first: tuple[float, float] | None = None
        known: dict[tuple[float, ...], tuple[float, float, float]] = {}
        for reduction, weight in self._hypotheses(finite):
            try:
                scales = self._all_scales(finite, reduction, weight)
                if scales not in known:
                    known[scales] = self._differences(finite, reduction, weight, None if first is None else tolerance)
            except (RuntimeError, KeyError, IndexError):
                continue
            gradients, apart, in_turn = known[scales]
            if first is None:
                first = apart, in_turn
            if gradients <= tolerance:
                same = any(self._all_scales(finite, *one[:2]) == scales for one in fitting)
                if same and (weight is None or self._planted(finite[0], weight) is None):
                    continue
                fitting.append((reduction, weight, apart, in_turn))
                if len(fitting) == MOST_FIT:
                    break
        if first is None:
            return "unknown", None, 0.0, 0.0
        if not fitting:
            return "batch", None, first[0], max(first)
        return self._told_apart(fitting, finite[0], tolerance)

    def _all_scales(self, splits: list[_Split], reduction: Reduction, weight: Weight | None) -> tuple[float, ...]:
        found: list[float] = []
        for split in splits:
            scales, whole = self._scales(split, split.apart, reduction, weight)
            found += [*scales, whole]
        return tuple(float(f"{one:.9g}") for one in found)

    def _differences(
        self, splits: list[_Split], reduction: Reduction, weight: Weight | None, limit: float | None
    ) -> tuple[float, float, float]:
        """Of gradients, parts apart; with buffers, apart and in turn. Above a limit not all is compared."""
        gradients = 0.0
        for split in splits:
            gradients = max(gradients, self._difference(split, split.apart, reduction, weight, limit))
            if limit is not None and gradients > limit:
                return gradients, gradients, gradients
        apart = max([gradients, *(self._buffer_difference(split, split.apart) for split in splits)])
        in_turn = apart
        if any(split.in_turn is not split.apart for split in splits):
            in_turn = max(
                max(
                    self._difference(split, split.in_turn, reduction, weight, limit),
                    self._buffer_difference(split, split.in_turn),
                )
                for split in splits
            )
        return gradients, apart, in_turn

    def _told_apart(
        self, fitting: list[tuple[Reduction, Weight | None, float, float]], split: _Split, tolerance: float
    ) -> tuple[Reduction, Weight | None, float, float]:
        """The one that still fits when values that the batch has not are written into it."""
        if len(fitting) == 1 or not is_sliceable(split.whole, sum(split.sizes)):
            return fitting[0]
        planted: list[_Split] = []
        for _, weight, *_ in fitting:
            late = time.process_time() - self._started_s > PLANT_SECONDS
            if weight is None or len(planted) == MOST_PLANTED or late:
                continue
            whole = self._planted(split, weight)
            if whole is None:
                continue
            try:
                found = self._sliced(whole, split.sizes)
            except Exception:  # noqa: BLE001 - such a value cannot be there
                self._put_back()
                continue
            if math.isfinite(found.run.value) and len(found.parts) > 1:
                planted.append(found)
        for one in fitting:
            try:
                if all(self._difference(found, found.apart, one[0], one[1]) <= tolerance for found in planted):
                    return one
            except (RuntimeError, KeyError, IndexError):
                continue
        return fitting[0]

    def _planted(self, split: _Split, weight: Weight) -> Any:
        """The batch with values by which this weight is told apart from others; None: there are none to plant."""
        tensors = name_tensors(split.whole)
        if not tensors[weight.tensor].dim():
            return None
        tensor = tensors[weight.tensor].clone(memory_format=torch.contiguous_format)
        first = tensor[0].reshape(-1) if tensor.dim() > 1 else tensor[:1]
        half = first[len(first) // 2 :]
        if weight.measure == "count" and weight.ignored is not None:
            several, seen = len(first) > 1, any(one.get(("ignored", weight.tensor)) for one in self._scanned)
            declared = weight.ignored in {call.ignored for call in self._calls}
            # One label a sample that is never ignored in all that was read: a class.
            unread = len(self._scanned) < self._samples.count
            if not declared or not (seen or (several and unread)):
                return None
            half.fill_(weight.ignored)
        elif weight.measure == "table":
            order = torch.tensor(weight.table).argsort()
            if weight.table[int(order[0])] == weight.table[int(order[-1])]:
                return None
            first.fill_(int(order[-1]))
            tensor[-1:].fill_(int(order[0]))
        elif weight.measure == "sum":
            if not bool(((tensor == 0) | (tensor == 1)).all()):
                return None
            half.fill_(0)
        else:
            return None
        return rebuild_batch(split.whole, {**tensors, weight.tensor: tensor})

    def _hypotheses(self, splits: list[_Split]) -> Iterator[tuple[Reduction, Weight | None]]:
        if splits[0].run.weight is not None:
            yield "pair", None
            return
        if self._job.loss_weight is not None:
            yield "given", None
            return
        # The loss says what it ignores; among tensors that would do, labels are meant.
        found = sorted(self._weights(splits[0].whole), key=lambda one: not _is_label(one.tensor))
        ignored = {call.ignored for call in self._calls}
        for one in found:
            # A loss that may ignore is a mean over what it does not ignore, also where a batch has nothing to ignore.
            seen = any(noted.get(("ignored", one.tensor)) for noted in self._scanned)
            if one.measure == "count" and one.ignored in ignored and seen:
                yield "weight", one
        if self._may_leave_out() and (names := self._named_by_samples(splits[0].whole)):
            yield "weight", Weight(tensor=names[0], measure="samples")
        yield "mean", None
        yield "sum", None
        for one in found:
            yield "weight", one

    def _may_leave_out(self) -> bool:
        """Whether `Job.collate` leaves out samples: it has, or leaves out None."""
        return bool(self._left_out) or (self._job.collate is not None and self._samples.leaves_out_none())

    @staticmethod
    def _named_by_samples(batch: Any) -> list[str]:
        """The tensors of a batch, where they all have the same first dim."""
        tensors = name_tensors(batch)
        sizes = {one.shape[0] if one.dim() else -1 for one in tensors.values()}
        return list(tensors) if len(sizes) == 1 and -1 not in sizes else []

    def _weights(self, batch: Any) -> Iterator[Weight]:
        calls = self._calls
        for name, tensor in name_tensors(batch).items():
            if not tensor.numel():
                continue
            integer = not tensor.is_floating_point() and not tensor.is_complex()
            if integer and tensor.dtype is not torch.bool:
                for ignored in dict.fromkeys((*(one.ignored for one in calls), -100, 0)):
                    for shifted in (False, True) if tensor.dim() > 1 else (False,):
                        yield Weight(tensor=name, measure="count", shifted=shifted, ignored=ignored)
                        for call in calls:
                            if call.table and call.ignored == ignored:
                                yield Weight(
                                    tensor=name, measure="table", shifted=shifted, ignored=ignored, table=call.table
                                )
            if not tensor.is_complex() and float(tensor.min()) >= 0.0:
                yield Weight(tensor=name, measure="sum")
            yield Weight(tensor=name, measure="size")
            if tensor.dim() > 1:
                yield Weight(tensor=name, measure="size", shifted=True)

    def _difference(
        self,
        split: _Split,
        passes: list[_Pass],
        reduction: Reduction,
        weight: Weight | None,
        limit: float | None = None,
    ) -> float:
        """How far parts, put together, are from the whole: loss and gradients; more than a limit is enough."""
        scales, whole_scale = self._scales(split, passes, reduction, weight)
        used = [(scale, one) for scale, one in zip(scales, passes, strict=True) if scale]
        value = math.fsum(scale * one.value for scale, one in used)
        expected = split.run.value * whole_scale
        # Parts may cancel.
        size = max([abs(expected), *(abs(scale * one.value) for scale, one in used), 1e-6])
        worst = abs(value - expected) / size if math.isfinite(value) else math.inf
        if limit is not None and worst > limit:
            return worst
        most = max((largest(one) for one in split.run.gradients if one is not None), default=0.0)
        for place, gradient in enumerate(split.run.gradients):
            parts = [(scale, one.gradients[place]) for scale, one in used]
            have = [scale * one for scale, one in parts if one is not None]
            if gradient is None or not have:
                # No gradient, and one that is zero, are told apart by the update.
                if (gradient is None) != (not have):
                    worst = max(worst, 1.0)
                continue
            if not gradient.numel():
                continue
            scale = largest(gradient) * whole_scale
            floor = most * whole_scale * (1e-6 if self._double and not self.mixed else 1e-2)
            difference = largest_difference(summed(have), gradient * whole_scale)
            worst = max(worst, difference / max(scale + floor, 1e-30) if math.isfinite(difference) else math.inf)
        return worst

    def _buffer_difference(self, split: _Split, passes: list[_Pass]) -> float:
        """1 where buffers end with other values than after the whole, else 0."""
        ends = passes[-1:] if passes is split.in_turn and passes is not split.apart else passes
        pairs = [pair for one in ends for pair in zip(one.buffers, split.run.buffers, strict=True)]
        return 0.0 if all(are_alike(*pair, tolerance=self.tolerance) for pair in pairs) else 1.0

    def _scales(
        self, split: _Split, passes: list[_Pass], reduction: Reduction, weight: Weight | None
    ) -> tuple[list[float], float]:
        """By what the parts are multiplied before they are added up, and by what the whole is."""
        if reduction == "sum" or self._job.loss_weight is SUMMED:
            return [1.0] * len(passes), 1.0
        if reduction == "mean":
            return [size / sum(split.sizes) for size in split.sizes], 1.0
        if reduction == "pair":
            total = math.fsum(one.weight or 0.0 for one in passes)
            return [1.0 / total if total else 0.0] * len(passes), 1.0 / (split.run.weight or math.nan)
        weigh: Callable[[Any], Any] = weight if weight is not None else self._job.loss_weight  # type: ignore[assignment]
        weights = [float(weigh(part)) for part in split.parts]
        total = math.fsum(weights)
        return [one / total if total else 0.0 for one in weights], 1.0

    def _on_ranks(self, batch: Any) -> Literal["", "follows", "logs", "gathers"]:
        """What forward and loss do where there are several ranks: communicate, or something else than alone.

        What nothing that is trained hears of is a log: values, gradients and buffers are the same where ranks send
        other figures.
        """
        drawn = Draws()

        def run(coupled: Coupled, context: AbstractContextManager[None]) -> list[Tensor]:
            seed_generators(self._job.seed)
            try:
                with context, self._promoting(), WithoutBatchEffects(), coupled:
                    given = copied_batch(batch)
                    value = loss_value(self._job, call_model(self._job, self._work, given), given)
                    value = value[0] if isinstance(value, tuple) else value
                    gradients = self._hooked_gradients(value) if value.requires_grad else []
                return [value.detach(), *gradients, *(one.detach().clone() for one in self._buffers_now())]
            finally:
                self._put_back()

        runs = list[list[Tensor]]()
        # Two figures, as what is counted may be clamped.
        for others in (None, 0, 1000):
            coupled = Coupled(drawn, (0, SAMPLES, SAMPLES) if runs else None, others=others)
            try:
                runs.append(run(coupled, _among_ranks()))
            except Exception:  # noqa: BLE001 - as where it asks for a device that is not here; what is gathered is empty
                return "gathers" if coupled.communicated else ""
            if not coupled.communicated:
                try:
                    alone = run(Coupled(drawn, (0, SAMPLES, SAMPLES)), nullcontext())
                except Exception:  # noqa: BLE001 - a hook may ask for ranks where there are none
                    return "follows"
                return "" if all(map(self._alike, runs[0], alone)) else "follows"
        first, *figures = runs
        return "logs" if all(all(map(are_alike, first, one)) for one in figures) else "gathers"

    def _hooked_gradients(self, value: Tensor) -> list[Tensor]:
        """Gradients of what is trained, as the hooks on them leave those of a whole batch; a copy has no hooks."""
        own = [one for one in self._model.parameters() if one.requires_grad]
        self._forget_gradients()
        value.backward()
        for one, copied in zip(own, self._trained, strict=True):
            if one is not copied and copied.grad is not None:
                one.grad = copied.grad.to(one.dtype)
        call_waiting(own)
        return [torch.zeros(()) if one.grad is None else kept_gradient(one.grad) for one in own]

    def _forget_gradients(self) -> None:
        """Before a pass; those of before the look are put back with all else."""
        held = [one for part in self._of_loss for one in part.parameters()]
        for one in (*self._trained, *self._model.parameters(), *held):
            one.grad = None

    def _alike(self, one: Tensor, other: Tensor) -> bool:
        return are_alike(one, other, tolerance=self.tolerance)

    def _holds_when_sliced(self, split: _Split, tolerance: float) -> bool:
        """Whether parts that were padded with the whole add up, by some reduction."""
        with self._unnoted():
            sliced = self._sliced(split.whole, split.sizes)
        return len(sliced.parts) > 1 and self._reduction([sliced], tolerance)[2] <= tolerance


def _check_weights(splits: Sequence[_Split]) -> None:
    """Refuse a second value of a loss that is no weight, such as an accuracy: the first would be divided by it.

    Raises:
        InputError: that of a batch is smaller than that of a part of it
    """
    for split in splits:
        of_whole, of_parts = split.run.weight, [one.weight or 0.0 for one in split.apart]
        if of_whole is not None and of_whole < max(of_parts) * (1 - EXACT):
            raise InputError(
                f"Job.loss returns two values, (sum, weight), of which the first is divided by the second, and here "
                f"that is {of_whole:.4g} for {sum(split.sizes)} samples and {max(of_parts):.4g} for some of them, so "
                "that it is no weight: return the loss alone, and an accuracy from Job.metric",
                code="loss.not-a-weight",
            )


_NOTED = (
    "reads", "own", "generates", "draws", "host_draws", "uncoupled", "mixed", "part_failed",
    "written", "_ends", "_parted", "_restarted",
)  # fmt: skip
"""What passes note of the job."""


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of each part of a batch its first sample, the one behind its last, and how many the batch has."""
    starts = [0, *itertools.accumulate(sizes)]
    return [(start, stop, starts[-1]) for start, stop in itertools.pairwise(starts)]


def _near(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(1.0, abs(other)) or not math.isfinite(other)


def _holders(job: Job, model: nn.Module) -> dict[str, Any]:
    """What may keep values in Python, by what it is called."""
    named = {path or "the model": module for path, module in model.named_modules()}
    hooks = {
        f"a hook of {path}{f' ({number})' if number else ''}": hook
        for path, module in named.items()
        for number, hook in enumerate(hooks_of_user(module))
    }
    of_loss = {
        f"{path or 'module'} of the loss": part
        for one in modules_of(job.loss)
        for path, part in one.named_modules()
        if part not in named.values()
    }
    return {**named, **hooks, **of_loss, "the loss": job.loss}


@contextmanager
def _among_ranks() -> Iterator[None]:
    """Tell who asks that this is the second of two ranks; what is sent between them nobody sends."""
    if is_one_of_several():
        with among_ranks():
            yield
        return
    told = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    before = {name: os.environ.get(name) for name in told}
    # torch puts the rank before each line of what an exception says, and leaves that for good.
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        dist.destroy_process_group()
        sys.excepthook = hook


def _is_label(name: str) -> bool:
    return any(word in name.lower() for word in ("label", "target"))


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
