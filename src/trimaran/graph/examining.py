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

Parts are made by `Job.collate` of their own samples, as a rank makes them, not by slicing.
"""

import copy
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.errors import InputError
from trimaran.graph.batches import SUMMED, call_model, cast_batch, is_sliceable, name_tensors, slice_batch, split_batch
from trimaran.graph.behaviour import Behaviour, Reduction, Weight
from trimaran.graph.data_faults import describe
from trimaran.graph.hooks import has_user_hooks, without_user_hooks
from trimaran.graph.optimizers import optimizer_traits
from trimaran.graph.sample import SAMPLES, Samples, differing_sizes
from trimaran.graph.training_mode import begin_training, parts_in_evaluation, was_in_evaluation
from trimaran.graph.untouched import device_of, precision_context, quiet, untouched
from trimaran.graph.verify import host_generators
from trimaran.job import Job

LOOKED_AT = 6
"""Samples of a batch that is looked at: enough for parts of different sizes, few enough for a look."""

SCANNED = 256
"""Samples whose targets are read for values that a loss ignores."""

MOST_ELEMENTS = 50_000_000
"""Elements of the parameters of a model that is looked at in fp64, as a copy."""

TRIED = 24
"""More batches that are looked at where values are read, until parts have read others than the whole."""

TELLING = 3
"""So many batches, of which parts read other values than the whole, are enough."""

SECONDS = 2.0
"""After this no further batch is looked at [s of this process, so that what else the machine does changes nothing; the
first batch, with what is loaded for it, does not count]."""

EXACT, PARTLY, ROUNDED = 1e-7, 1e-4, 2e-3
"""Differences that are rounding, of a largest gradient: in fp64, where parts of the model compute in fp32, in fp32."""

MOST_CLASSES = 4096


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
    found = replace(_from_model(model), optimizer=optimizer_traits(job, model), precision=job.precision)
    if too_large:
        return replace(found, not_looked="the model is too large to run here")
    samples = Samples(job, device_of(model), most=SCANNED)
    found = replace(_from_batches(found, samples), batches=_batch_sizes(job, samples))
    with quiet(), untouched(model), without_user_hooks(model), torch.enable_grad():
        begin_training(model)
        try:
            found = _Examination(job, model, samples).look(found)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, capture meets it too and tells it better
            found = replace(found, not_looked=f"it failed on a few samples: {describe(error)}")
    return replace(found, seconds=time.perf_counter() - started_s)


def look_at_gathering(job: Job, model: nn.Module, behaviour: Behaviour, rank: int) -> Behaviour:
    """See what a loss that gathers gives on two ranks, in a world of two; both call it.

    Args:
        job: the job
        model: its model, which is left as it was
        behaviour: what was seen without the other rank
        rank: of this process
    """

    def sum_up(tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    samples = Samples(job, device_of(model), most=SCANNED)
    with quiet(), untouched(model), without_user_hooks(model), torch.enable_grad():
        begin_training(model)
        examination = _Examination(job, model, samples)
        try:
            difference = examination.difference_when_gathered(rank, sum_up)
        except RuntimeError:
            # Parts that do not fit together: nothing that could be trained.
            difference = math.inf
    return replace(behaviour, replicas=difference, tolerance=max(behaviour.tolerance, examination.tolerance))


def _from_model(model: nn.Module) -> Behaviour:
    named = {module: path for path, module in model.named_modules()}
    trained = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    tied = [name for name, one in trained.items() if first.setdefault(id(one), name) != name]
    dtypes: dict[str, str] = {}
    common = next((one.dtype for one in trained.values() if one.requires_grad), torch.float32)
    for name, one in trained.items():
        if one.dtype != common:
            dtypes.setdefault(str(one.dtype).removeprefix("torch."), name)
    return Behaviour(
        returned_in_evaluation=was_in_evaluation(model),
        kept_in_evaluation=tuple(_outermost(named[part] for part in parts_in_evaluation(model))),
        own_train=tuple(path or "the model" for module, path in named.items() if _overrides_train(module)),
        batch_norms=tuple(path for module, path in named.items() if _follows_batches(module)),
        hooked=tuple(path or "the model" for module, path in named.items() if has_user_hooks(module)),
        tied=tuple(tied),
        dtypes=tuple(dtypes.items()),
        compiled=any(type(module).__name__ == "OptimizedModule" for module in named),
    )


def _overrides_train(module: nn.Module) -> bool:
    own = type(module).train
    return own is not nn.Module.train and not type(module).__module__.startswith(("torch.", "transformers."))


def _follows_batches(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and module.track_running_stats


def _outermost(paths: Iterator[str]) -> Iterator[str]:
    last: str | None = None
    for path in paths:
        if last is None or not path.startswith(f"{last}."):
            yield path
            last = path


def _from_batches(found: Behaviour, samples: Samples) -> Behaviour:
    """What batches hold, and of which sizes."""
    batch = samples.batch(range(SAMPLES))
    others: list[Any] = []
    name_tensors(batch, others)
    return replace(
        found,
        sliceable=is_sliceable(batch, SAMPLES),
        others=tuple(dict.fromkeys(type(value).__name__ for value in others)),
        sizes=differing_sizes(samples),
    )


def _batch_sizes(job: Job, samples: Samples) -> tuple[int, ...]:
    """Samples of a global batch, and of the last of an epoch where it is smaller; of a stream that is not known."""
    count = samples.total
    if count is None or job.drop_last or job.sampler is not None:
        return (job.global_batch_size,)
    last = count % job.global_batch_size
    return (*((job.global_batch_size,) if count >= job.global_batch_size else ()), *((last,) if last else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What a batch gave.

    Attributes:
        value: of the loss
        weight: that the loss returned beside it
        gradients: of each parameter that is trained; None: it has none
        buffers: afterwards, those of batch norms apart
        path: of operations
        read: values of tensors that decide, in order
    """

    value: float
    weight: float | None
    gradients: list[Tensor | None]
    buffers: list[Tensor]
    path: int
    read: tuple[int | bool, ...]


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
        self.draws = self.host_draws = self.uncoupled = self.inner = self.mixed = self.communicated = False
        self.reads = False
        self._calls: list[_LossCall] = []
        self._prepare(double=True)

    @property
    def tolerance(self) -> float:
        """The largest difference that is rounding, in what was run so far."""
        return ROUNDED if not self._double else PARTLY if self.mixed else EXACT

    def _prepare(self, *, double: bool) -> None:
        elements = sum(parameter.numel() for parameter in self._model.parameters())
        self._work, self._double, self.mixed = self._model, False, False
        if double and elements <= MOST_ELEMENTS:
            try:
                self._work = copy.deepcopy(self._model).double()
                self._double = True
            except Exception:  # noqa: BLE001 - a model that cannot be copied is looked at where it is
                self._work = self._model
        self._trained = [one for one in self._work.parameters() if one.requires_grad]
        self._names = [name for name, one in self._work.named_parameters() if one.requires_grad]
        norms = {id(one) for part in self._work.modules() if _is_norm(part) for one in part.buffers(recurse=False)}
        self._buffers = {name: one for name, one in self._work.named_buffers() if id(one) not in norms}
        self._initial = [one.detach().clone() for one in self._buffers.values()]

    def look(self, found: Behaviour) -> Behaviour:
        """Add what is seen."""
        most = min(self._samples.count, max(2, min(LOOKED_AT, self._job.global_batch_size)))
        numbers = list(self._groups(most))
        try:
            splits = [self._split(numbers[0])]
        except InputError:
            raise
        except Exception:
            if not self._double:
                raise
            # Something in it is fp32 for good.
            self._prepare(double=False)
            splits = [self._split(numbers[0])]
        started_s = time.process_time()
        for group in numbers[1:]:
            if time.process_time() - started_s < SECONDS:
                splits.append(self._split(group))
        for number, group in enumerate(self._tried(most)):
            told = sum(split.reads_other for split in splits)
            if not self.reads or told >= TELLING or time.process_time() - started_s > SECONDS:
                break
            # Training changes the weights, and with them what is read.
            moved = self._moved_weights(number) if self._double and number >= TRIED // 2 else nullcontext()
            with moved:
                splits.append(self._split(group, 1))
        self._calls = _losses_called(self._job, self._work, splits[0].whole)
        self._put_back()
        tolerance = self.tolerance
        found = replace(found, tolerance=tolerance, **self._seen(splits))
        reduction, weight, apart, in_turn = self._reduction(splits, tolerance)
        padded = False
        if reduction == "batch" and self._gathers(splits[0].whole):
            reduction, apart = "gathers", 0.0
        elif max(apart, in_turn) > tolerance and found.sizes and found.sliceable:
            padded = self._holds_when_sliced(splits[0], tolerance)
        return replace(
            found,
            reduction=reduction,
            weight=weight,
            replicas=None if reduction == "gathers" else apart,
            microbatches=in_turn,
            padded=padded,
            draws=self.draws,
            host_draws=self.host_draws,
            inner_backward=self.inner,
            least=self._least() if found.batch_norms else 1,
        )

    def _least(self) -> int:
        """2 where a batch of one sample fails in training and one of two does not; else 1."""
        try:
            with torch.no_grad():
                call_model(self._job, self._work, self._batch([0, 1]))
                try:
                    call_model(self._job, self._work, self._batch([0]))
                except ValueError:
                    return 2
        except Exception:  # noqa: BLE001 - it fails for another reason, which the training meets too
            return 1
        return 1

    def _groups(self, size: int) -> Iterator[list[int]]:
        """Samples of the batches that are looked at: first those whose targets ignore most unevenly, then others."""
        count = self._samples.count
        drawn = random.Random(self._job.seed)
        yield list(range(size))
        yield sorted(drawn.sample(range(count), size))
        yield list(range(count - size, count))

    def _tried(self, most: int) -> Iterator[list[int]]:
        """Samples of more batches, of which some have few: these read what is rare."""
        drawn = random.Random(self._job.seed + 1)
        for number in range(TRIED):
            yield drawn.sample(range(self._samples.count), most if number % 2 else 2)

    @contextmanager
    def _moved_weights(self, number: int) -> Iterator[None]:
        """The copy of the model with weights that are elsewhere, by about as much as they differ from each other."""
        generator = torch.Generator().manual_seed(self._job.seed + number)
        before = [one.detach().clone() for one in self._trained]
        with torch.no_grad():
            for one in self._trained:
                scale = float(one.std()) if one.numel() > 1 else 0.1
                noise = torch.randn(one.shape, generator=generator, dtype=torch.float64)
                one.add_(noise.to(device=one.device, dtype=one.dtype), alpha=scale * (1 + number % 3))
        try:
            yield
        finally:
            with torch.no_grad():
                for one, value in zip(self._trained, before, strict=True):
                    one.copy_(value)

    def _split(self, numbers: list[int], first: int | None = None) -> _Split:
        first = max(1, (len(numbers) * 2 + 1) // 3) if first is None else first
        groups = [numbers[:first], numbers[first:]] if len(numbers) > 1 else [numbers]
        whole, parts = self._batch(numbers), [self._batch(group) for group in groups]
        drawn = _Draws()
        run = self._pass(whole, drawn)
        starts = [0, *itertools.accumulate(map(len, groups))]
        bounds = [(start, stop, len(numbers)) for start, stop in itertools.pairwise(starts)]
        apart, in_turn = [], []
        for part, bound in zip(parts, bounds, strict=True):
            self._put_back()
            apart.append(self._pass(part, drawn, bound))
        if any(not _same(one, other) for one, other in zip(self._initial, run.buffers, strict=True)):
            self._put_back()
            in_turn = [self._pass(part, drawn, bound) for part, bound in zip(parts, bounds, strict=True)]
        self._put_back()
        return _Split(
            whole=whole, parts=parts, sizes=[len(group) for group in groups], run=run, apart=apart,
            in_turn=in_turn or apart,
        )  # fmt: skip

    def _batch(self, numbers: Sequence[int]) -> Any:
        batch = self._samples.batch(numbers)
        return cast_batch(batch, torch.float64) if self._double else batch

    def _put_back(self) -> None:
        with torch.no_grad():
            for buffer, value in zip(self._buffers.values(), self._initial, strict=True):
                buffer.copy_(value)

    def _pass(self, batch: Any, drawn: "_Draws", bound: tuple[int, int, int] | None = None, seed: int = 0) -> _Pass:
        """Forward, loss and backward."""
        job, model = self._job, self._work
        saved = [one.grad for one in self._trained]
        for one in self._trained:
            one.grad = None
        torch.manual_seed(job.seed + seed)
        random.seed(job.seed + seed)
        numpy.random.seed((job.seed + seed) % 2**32)  # noqa: NPY002 - a forward of the user's draws from this one
        hosts = host_generators()
        coupled = _Coupled(drawn, bound)
        # The copy is fp64; where it is looked at as it is, so is its precision.
        context = nullcontext() if self._double else precision_context(job, device_of(model))
        try:
            with _without_batch_effects(), coupled, _noting_inner_backwards(self), context:
                output = call_model(job, model, batch)
                value = _loss_value(job, output, batch)
            total, weight = value if isinstance(value, tuple) else (value, None)
            if isinstance(total, Tensor) and total.requires_grad:
                total.backward()
            gradients = [None if one.grad is None else _dense(one.grad) for one in self._trained]
        finally:
            for one, gradient in zip(self._trained, saved, strict=True):
                one.grad = gradient
        self.draws |= coupled.drew
        self.uncoupled |= coupled.lost
        self.communicated |= coupled.communicated
        self.mixed |= coupled.mixed
        self.reads |= coupled.reads
        self.host_draws |= host_generators() != hosts
        return _Pass(
            value=float(total),
            weight=None if weight is None else float(weight),
            gradients=gradients,
            buffers=[one.detach().clone() for one in self._buffers.values()],
            path=hash(tuple(coupled.operations)),
            read=tuple(coupled.read),
        )

    def _seen(self, splits: list[_Split]) -> dict[str, Any]:
        """What does not depend on how the loss is reduced."""
        passes = [one for split in splits for one in (split.run, *split.apart)]
        have = [[one.gradients[place] is not None for one in passes] for place in range(len(self._names))]
        changed = [
            name
            for name, *values in zip(self._buffers, self._initial, *(one.run.buffers for one in splits), strict=True)
            if any(not _same(value, values[0]) for value in values[1:])
        ]
        path = []
        if len({split.run.path for split in splits}) > 1 or any(split.reads_other for split in splits):
            path.append("data")
        seeds = [self._pass(splits[0].whole, _Draws(), seed=seed).path for seed in range(1, 4)]
        self._put_back()
        if any(one != splits[0].run.path for one in seeds):
            path.append("seed")
        return {
            "unused": tuple(name for name, one in zip(self._names, have, strict=True) if not any(one)),
            "varying": tuple(name for name, one in zip(self._names, have, strict=True) if any(one) and not all(one)),
            "buffers": tuple(changed),
            "path": tuple(path),
        }

    def _reduction(self, splits: list[_Split], tolerance: float) -> tuple[Reduction, Weight | None, float, float]:
        """How the loss is reduced, and how far parts are from the whole by it: apart, and in turn."""
        finite = [split for split in splits if math.isfinite(split.run.value) and len(split.parts) > 1]
        if not finite:
            return "unknown", None, 0.0, 0.0
        best: tuple[Reduction, Weight | None, float, float] | None = None
        for reduction, weight in self._hypotheses(finite):
            try:
                apart = max(self._difference(split, split.apart, reduction, weight) for split in finite)
            except (RuntimeError, KeyError, IndexError):
                continue
            in_turn = apart
            if any(split.in_turn is not split.apart for split in finite):
                in_turn = max(self._difference(split, split.in_turn, reduction, weight) for split in finite)
            if best is None or apart < best[2]:
                best = reduction, weight, apart, in_turn
            if apart <= tolerance:
                break
        if best is None:
            return "unknown", None, 0.0, 0.0
        if best[2] > tolerance:
            first = next(iter(self._hypotheses(finite)))
            apart = max(self._difference(split, split.apart, *first) for split in finite)
            return "batch", None, apart, max(apart, best[3])
        # Buffers are no sign of how the loss is reduced.
        changed = max(self._buffers_apart(split, split.apart) for split in finite)
        changed_in_turn = max(self._buffers_apart(split, split.in_turn) for split in finite)
        return best[0], best[1], max(best[2], changed), max(best[3], changed_in_turn)

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
        ignoring = [one for one in found if one.measure == "count" and one.ignored in ignored]
        scanned = [self._batch(group) for group in self._scanned()] if ignoring else []
        for one in ignoring:
            # A loss that may ignore is a mean over what it does not ignore, also where a batch has nothing to ignore.
            if any(self._ignores(one, batch) for batch in scanned):
                yield "weight", one
        yield "mean", None
        yield "sum", None
        for one in found:
            yield "weight", one

    def _scanned(self) -> Iterator[list[int]]:
        count = min(self._samples.count, SCANNED)
        size = min(16, count)
        started_s = time.process_time()
        for start in range(0, count - size + 1, size):
            yield list(range(start, start + size))
            if time.process_time() - started_s > SECONDS / 2:
                return

    @staticmethod
    def _ignores(weight: Weight, batch: Any) -> bool:
        tensor = name_tensors(batch).get(weight.tensor)
        return tensor is not None and bool(torch.isin(tensor, torch.tensor([weight.ignored])).any())

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

    def _difference(self, split: _Split, passes: list[_Pass], reduction: Reduction, weight: Weight | None) -> float:
        """How far parts, put together, are from the whole: loss and gradients."""
        scales, whole_scale = self._scales(split, passes, reduction, weight)
        used = [(scale, one) for scale, one in zip(scales, passes, strict=True) if scale]
        value = math.fsum(scale * one.value for scale, one in used)
        expected = split.run.value * whole_scale
        worst = abs(value - expected) / max(abs(expected), 1e-6) if math.isfinite(value) else math.inf
        largest = max((float(one.abs().max()) for one in split.run.gradients if one is not None and one.numel()),
                      default=0.0)  # fmt: skip
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
            total = torch.stack(have).sum(0)
            scale = float(gradient.abs().max()) * whole_scale
            floor = largest * whole_scale * (1e-6 if self._double else 1e-2)
            difference = float((total - gradient * whole_scale).abs().max())
            worst = max(worst, difference / max(scale + floor, 1e-30) if math.isfinite(difference) else math.inf)
        return worst

    def _buffers_apart(self, split: _Split, passes: list[_Pass]) -> float:
        """1 where parts leave other buffers than the whole, else 0."""
        ends = passes[-1:] if passes is split.in_turn and passes is not split.apart else passes
        pairs = (pair for one in ends for pair in zip(one.buffers, split.run.buffers, strict=True))
        return 0.0 if all(_same(*pair, tolerance=self.tolerance) for pair in pairs) else 1.0

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

    def _gathers(self, batch: Any) -> bool:
        """Whether the forward or the loss communicates where there are several ranks."""
        if dist.is_initialized():
            return self.communicated
        # Two ranks of which one is pretended, and messages that nobody sends.
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        coupled = _Coupled(_Draws(), None)
        try:
            with _without_batch_effects(), coupled, torch.no_grad():
                _loss_value(self._job, call_model(self._job, self._work, batch), batch)
        except Exception:  # noqa: BLE001 - what was gathered holds nothing
            return coupled.communicated
        finally:
            dist.destroy_process_group()
            self._put_back()
        return coupled.communicated

    def difference_when_gathered(self, rank: int, sum_up: Callable[[Tensor], object]) -> float:
        """How far two real ranks, each with half of a batch and a loss that gathers, are from one with the whole.

        Args:
            rank: of this process, 0 or 1
            sum_up: adds a tensor up over the ranks, in place
        """
        half = max(1, min(LOOKED_AT, self._samples.count) // 2)
        numbers = list(range(2 * half))
        drawn = _Draws()
        with _pretending_to_be_alone():
            run = self._pass(self._batch(numbers), drawn)
        self._put_back()
        own = slice(rank * half, (rank + 1) * half)
        part = self._pass(self._batch(numbers[own]), drawn, (own.start, own.stop, 2 * half))
        gradients: list[Tensor | None] = []
        for one, whole in zip(part.gradients, run.gradients, strict=True):
            total = torch.zeros_like(whole) if whole is not None else None
            if total is not None:
                total += 0.5 * (one if one is not None else 0.0)
                sum_up(total)
            gradients.append(total)
        value = torch.tensor(0.5 * part.value, dtype=torch.float64)
        sum_up(value)
        summed = replace(part, gradients=gradients, value=float(value), buffers=run.buffers)
        split = _Split(whole=None, parts=[None], sizes=[1], run=run, apart=[summed], in_turn=[summed])
        return self._difference(split, [summed], "mean", None)

    def _holds_when_sliced(self, split: _Split, tolerance: float) -> bool:
        """Whether parts that were padded with the whole add up, by some reduction."""
        starts = [0, *itertools.accumulate(split.sizes)]
        parts = [slice_batch(split.whole, start, stop) for start, stop in itertools.pairwise(starts)]
        drawn = _Draws()
        run = self._pass(split.whole, drawn)
        passes = []
        for part, (start, stop) in zip(parts, itertools.pairwise(starts), strict=True):
            self._put_back()
            passes.append(self._pass(part, drawn, (start, stop, starts[-1])))
        self._put_back()
        sliced = _Split(whole=split.whole, parts=parts, sizes=split.sizes, run=run, apart=passes, in_turn=passes)
        return self._reduction([sliced], tolerance)[2] <= tolerance


@contextmanager
def _pretending_to_be_alone() -> Iterator[None]:
    """For code that asks torch.distributed before it gathers."""
    asked = dist.is_initialized
    dist.is_initialized = lambda: False
    try:
        yield
    finally:
        dist.is_initialized = asked


def _is_label(name: str) -> bool:
    return any(word in name.lower() for word in ("label", "target"))


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _dense(gradient: Tensor) -> Tensor:
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach().clone()


def _same(one: Tensor, other: Tensor, tolerance: float = 0.0) -> bool:
    if one.shape != other.shape:
        return False
    if not tolerance or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(other.abs().max()) if other.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=0.0, atol=tolerance * scale, equal_nan=True))


def _loss_value(job: Job, output: Any, batch: Any) -> Any:
    if job.loss is not None:
        return job.loss(output, split_batch(batch)[2])
    value = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if value is None:
        raise InputError(f"with Job.loss=None the model returns an object with .loss; it returned {type(output)}")
    return value


class _Draws:
    """What was drawn for a whole batch, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[Tensor]]] = []
        self.taken: dict[tuple[int, int], int] = {}
        """Of each draw, and each of its tensors: how much of it earlier parts have got."""


class _Coupled(TorchDispatchMode):
    """Keeps what is drawn for a whole batch, or gives a part of it to a part of the batch.

    Args:
        draws: filled by the whole, read by the parts
        bound: start, stop and samples of the whole, for a part; None: this is the whole
    """

    def __init__(self, draws: _Draws, bound: tuple[int, int, int] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws, self._bound, self._next = draws, bound, 0
        self.drew = self.lost = self.mixed = self.communicated = self.reads = False
        self.operations: list[str] = []
        self.read: list[int | bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(func))
        self.communicated |= func.namespace in ("c10d", "_c10d_functional", "c10d_functional")
        result = func(*args, **(kwargs or {}))
        self.mixed |= isinstance(result, Tensor) and result.is_floating_point() and result.dtype is not torch.float64
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reads = True
            if isinstance(result, bool | int):
                self.read.append(result)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drew = True
            made = [one for one in (result if isinstance(result, tuple | list) else [result]) if _is_drawn(one)]
            if self._bound is None:
                self._draws.made.append((str(func), [one.detach().clone() for one in made]))
            else:
                self._take(str(func), made)
        return result

    def _take(self, name: str, made: list[Tensor]) -> None:
        place, self._next = self._next, self._next + 1
        if place >= len(self._draws.made) or self._draws.made[place][0] != name:
            self.lost = True
            return
        for number, (one, whole) in enumerate(zip(made, self._draws.made[place][1], strict=False)):
            part = self._part(one, whole, (place, number))
            if part is None:
                self.lost = True
            else:
                one.copy_(part)

    def _part(self, one: Tensor, whole: Tensor, key: tuple[int, int]) -> Tensor | None:
        """What a part gets of a draw: along the dim of the samples what is theirs, along others the beginning."""
        if one.shape == whole.shape:
            return whole
        if one.dim() != whole.dim() or self._bound is None:
            return None
        start, stop, samples = self._bound
        part: Tensor | None = None
        for dim in range(one.dim()):
            size, most = one.shape[dim], whole.shape[dim]
            if size == most:
                continue
            if size > most:
                return None
            if part is not None:
                # Padded to a shorter length than the whole.
                part = part.narrow(dim, 0, size)
                continue
            each, rest = divmod(most, samples)
            if not rest and size == each * (stop - start):
                begin = start * each
            else:
                # Nodes of graphs, or what else there are more or fewer of in every sample, one sample after the other.
                begin = self._draws.taken.get(key, 0) if start else 0
                self._draws.taken[key] = begin + size
                if begin + size > most:
                    return None
            part = whole.narrow(dim, begin, size)
        return part


def _is_drawn(value: Any) -> bool:
    return isinstance(value, Tensor)


_DROPOUTS = frozenset(
    {
        "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_",
        "feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout",
    }
)  # fmt: skip


class _WithoutBatchEffects(TorchFunctionMode):
    """Dropout does nothing, and batch norm uses its running statistics."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "batch_norm":
            return _normalised(args, kwargs)
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def _normalised(args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Batch norm by running statistics, whichever of its two signatures was called."""
    names = ["input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"]
    if len(args) > 3 and (args[3] is None or isinstance(args[3], Tensor)) and len(args) >= 8:
        # torch.batch_norm has the weight and the bias first.
        names = ["input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn"]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, mean, variance = given["input"], given.get("running_mean"), given.get("running_var")
    mean = torch.zeros(x.shape[1], dtype=x.dtype, device=x.device) if mean is None else mean
    variance = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) if variance is None else variance
    with torch._C.DisableTorchFunction():
        return nn.functional.batch_norm(
            x, mean, variance, given.get("weight"), given.get("bias"), False, 0.0, given.get("eps", 1e-5)
        )


@contextmanager
def _without_batch_effects() -> Iterator[None]:
    with _WithoutBatchEffects():
        yield


@contextmanager
def _noting_inner_backwards(examination: _Examination) -> Iterator[None]:
    """Note whether gradients are computed inside."""
    grad = torch.autograd.grad

    def noted(*args: Any, **kwargs: Any) -> Any:
        examination.inner = True
        return grad(*args, **kwargs)

    torch.autograd.grad = noted
    try:
        yield
    finally:
        torch.autograd.grad = grad


@dataclass(frozen=True, slots=True, kw_only=True)
class _LossCall:
    """A loss of torch's that takes a mean over classes."""

    ignored: int
    table: tuple[float, ...] = field(default=())


class _Losses(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_LossCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("cross_entropy", "nll_loss"):
            given = {**dict(zip(("input", "target", "weight", "size_average", "ignore_index"), args, strict=False)),
                     **kwargs}  # fmt: skip
            weight = given.get("weight")
            table = tuple(weight.tolist()) if isinstance(weight, Tensor) and weight.numel() <= MOST_CLASSES else ()
            self.calls.append(_LossCall(ignored=given.get("ignore_index", -100), table=table))
        return func(*args, **kwargs)


def _losses_called(job: Job, model: nn.Module, batch: Any) -> list[_LossCall]:
    """The losses of torch's that are called with class weights or values that they ignore."""
    mode = _Losses()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(mode)
        _loss_value(job, call_model(job, model, batch), batch)
    return list(dict.fromkeys(mode.calls))
