"""A plain PyTorch loop beside a field job, as its practitioner has it: what every plan must equal.

One forward of the whole global batch a step. A job that draws, normalizes over the batch, or whose forward changes
state (`Entry.by_microbatch`) sees the microbatches of a plan instead, replica after replica, each under the seed of its
rank; buffers, and what else a forward changes, go on from those of replica 0. It uses nothing of the runtime but the
order of the samples and the seeds, which it must share with it.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import count, islice
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from tests.field.entry import Entry
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.overrides import TorchFunctionMode
from torch.utils.data import default_collate

from trimaran.base.job import Job
from trimaran.runtime.data.orders import sample_order
from trimaran.user_code.datasets import is_stream
from trimaran.user_code.randomness import derive_seed, host_states, restore_host, seed_generators, seeded


@dataclass(slots=True, kw_only=True)
class Plain:
    """What a run of the plain loop left.

    Attributes:
        losses: by step
        gradients: of the first step, before they are clipped, by the name of the parameter; None: it has none
        first: the `state_dict` after the first step
        weights: the `state_dict` at the end
        state: of the optimizer at the end, by the name of the parameter
        idle: parameters that never had a gradient: some optimizers make a state for them, which nothing changes
        score: the metric at the end; None: there is no evaluation
        averages: of weights, which the job's callback made
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    first: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    score: float | None = None
    averages: dict[str, Tensor] = field(default_factory=dict)


NO_ROWS: Mapping[str, int] = MappingProxyType({})


class Parameters:
    """What `Job.optimizer` is promised: an iterable of parameters that also tells their names.

    Args:
        model: whose
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __iter__(self) -> Iterator[nn.Parameter]:
        return self._model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._model.named_parameters()


def train_plainly(
    entry: Entry, job: Job, steps: int, *, replicas: int = 1, microbatches: int = 1, rows: Mapping[str, int] = NO_ROWS
) -> Plain:
    """Train for some steps in a plain loop.

    Args:
        entry: says what is the loop's own
        job: its job, perhaps with another optimizer
        steps: of training
        replicas: of the plan; jobs by microbatch see their shares
        microbatches: of each replica
        rows: of the operations of the graph, by name, which draw from the generators of their rows
    """
    # One of its own: callbacks keep things.
    on_step, on_epoch = copy.deepcopy((job.on_step, job.on_epoch))
    job = replace(job, on_step=on_step, on_epoch=on_epoch)
    seed_generators(job.seed)
    model = entry.recomputed() if any(rows.values()) and entry.recomputed is not None else job.model()
    model = model.double() if job.precision == "fp64" else model
    entry.modes(model)
    optimizer: Any = job.optimizer(Parameters(model))  # type: ignore[arg-type]
    schedule: Any = job.lr_schedule(optimizer) if job.lr_schedule else None
    shape = (replicas, microbatches, rows) if entry.by_microbatch else (1, 1, NO_ROWS)
    loop = _Loop(entry, job, model, *shape)
    found = Plain(idle=set() if entry.own_step is not None else {name for name, _ in model.named_parameters()})
    sums: dict[int, list[float]] = {}
    session = SimpleNamespace(
        model=model, optimizer=optimizer, evaluate=lambda: loop.evaluate(job.evaluation_dataset())
    )  # type: ignore[misc]
    for epoch, indices in _batches(loop, job, steps):
        if epoch - 1 in sums:
            loss, samples = sums.pop(epoch - 1)
            if isinstance(schedule, ReduceLROnPlateau):
                schedule.step(loss / samples)
            if job.on_epoch is not None:
                job.on_epoch(session, epoch - 1, {"loss": loss / samples})
                entry.modes(model)
        if entry.own_step is not None:
            found.losses.append(entry.own_step(model, optimizer, loop.load(epoch, indices)).item())
            found.first = found.first or _copied(model)
            continue
        found.losses.append(loop.add_gradients(epoch, indices))
        found.idle -= {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        if not found.gradients:
            found.gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        of_epoch = sums.setdefault(epoch, [0.0, 0.0])
        of_epoch[0] += found.losses[-1] * len(indices)
        of_epoch[1] += len(indices)
        if schedule is not None and not isinstance(schedule, ReduceLROnPlateau):
            schedule.step()
        if job.on_step is not None:
            job.on_step(session, len(found.losses) - 1, {"loss": found.losses[-1]})
        found.first = found.first or _copied(model)
    found.weights = _copied(model)
    averages = getattr(job.on_step, "averages", None)
    found.averages = averages() if averages else {}
    if isinstance(optimizer, torch.optim.Optimizer):
        found.state = {
            name: dict(optimizer.state[parameter])
            for name, parameter in model.named_parameters()
            if parameter in optimizer.state
        }
    if job.evaluation_dataset is not None and job.metric is not None:
        found.score = loop.evaluate(job.evaluation_dataset())
    return found


class _Rows(TorchFunctionMode):
    """Operations of other rows than the first draw from the generators of their rows.

    Operations are told by their names in the graph: a leaf module's path, or that of a function, numbered by call.

    Args:
        model: whose
        rows: of all operations, by name
        seed: of the job
        replica: that they are rows of
    """

    def __init__(self, model: nn.Module, rows: Mapping[str, int], seed: int, replica: int) -> None:
        super().__init__()
        self.rows = rows
        self.streams = {}
        for row in sorted(set(self.rows.values()) - {0}):
            seed_generators(derive_seed(seed, "rank", replica, row))
            self.streams[row] = host_states()
        self.calls: Counter[str] = Counter()
        self.inside = 0
        self.hooks = []
        paths = {name.partition("@")[0] for name in self.rows}
        for path, module in model.named_modules():
            if path in paths:
                self.hooks.append(module.register_forward_pre_hook(lambda *_, path=path: self._enter(path, "@")))
                self.hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        self.left: list[tuple[int, Any] | None] = []
        self.active = False

    def __enter__(self) -> Any:
        self.calls.clear()
        self.active = True
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.active = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self.inside or name not in _DRAWING:
            return func(*args, **(kwargs or {}))
        self._enter(name, "_")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._leave()

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _enter(self, name: str, mark: str) -> None:
        # Hooks of the rows of other replicas are on the same model.
        if not self.active:
            return
        number = self.calls[name]
        self.calls[name] += 1
        operation = f"{name}{mark}{number}" if number else name
        if mark == "@" and operation not in self.rows:
            # A module that the model has under two names is one of functions, the second time.
            self.left.append(None)
            return
        row = self.rows.get(operation, 0)
        self.left.append((row, host_states()))
        self.inside += 1
        if row:
            restore_host(self.streams[row])

    def _leave(self) -> None:
        if not self.active:
            return
        entered = self.left.pop()
        if entered is None:
            return
        row, outside = entered
        self.inside -= 1
        if row:
            self.streams[row] = host_states()
            restore_host(outside)


_DRAWING = (
    "dropout",
    "scaled_dot_product_attention",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "randint",
    "bernoulli",
    "multinomial",
)


class _Loop:
    """Forward and backward of global batches."""

    def __init__(
        self, entry: Entry, job: Job, model: nn.Module, replicas: int, microbatches: int, rows: Mapping[str, int]
    ) -> None:
        self.entry, self.job, self.model = entry, job, model
        self.replicas, self.microbatches = replicas, microbatches
        self.dataset: Any = made_data(job)
        self.streams = []
        for replica in range(replicas):
            seed_generators(derive_seed(job.seed, "rank", replica, 0))
            self.streams.append(host_states())
        self.rows = [_Rows(model, rows, job.seed, replica) for replica in range(replicas)] if any(rows.values()) else []

    def load(self, epoch: int, indices: Sequence[int], dataset: Any = None) -> Any:
        """A batch; what a data set draws depends on the epoch and the sample alone."""
        seed = derive_seed(self.job.seed, "samples", epoch)
        samples = []
        for index in indices:
            with seeded(derive_seed(seed, index)):
                samples.append((self.dataset if dataset is None else dataset)[index])
        with seeded(derive_seed(seed, "collate", next(iter(indices)))):
            return self._cast((self.job.collate or default_collate)(samples))

    def add_gradients(self, epoch: int, indices: list[int]) -> float:
        """The mean loss of a global batch, whose gradients are added to those of the model."""
        parts = max(1, min(self.microbatches, len(indices) // self.replicas))
        shares = [
            [self.load(epoch, part.tolist()) for part in share.tensor_split(parts)]
            for share in torch.tensor(indices).tensor_split(self.replicas)
            if len(share)
        ]
        weights = [[self._weight(batch, len(indices)) for batch in share] for share in shares]
        divisor = sum(map(sum, weights)) if not self.entry.summed else 1.0
        before = [one.detach().clone() for one in self._carried()]
        after: list[Tensor] = []
        total = 0.0
        for replica, share in enumerate(shares):
            if replica:
                self._set_carried(before)
            restore_host(self.streams[replica])
            for batch, weight in zip(share, weights[replica], strict=True):
                with self._drawing(replica):
                    loss = self._loss(batch, weight) * (weight / divisor)
                if not weight:
                    # A part in which nothing counts: its mean is 0 / 0, and it is no part of the sum.
                    continue
                loss.backward()
                total += loss.item()
            self.streams[replica] = host_states()
            after = after or [one.detach().clone() for one in self._carried()]
        self._set_carried(after)
        return total

    def _drawing(self, replica: int) -> Any:
        return self.rows[replica] if self.rows else nullcontext()

    def evaluate(self, dataset: Any) -> float:
        """The metric of a data set as one batch."""
        for rows in self.rows:
            rows.close()
        dataset = list(dataset) if is_stream(dataset) else dataset
        batch = self.load(0, range(len(dataset)), dataset)
        self.model.eval()
        with torch.no_grad():
            output = self._call(batch)
        return float(self.job.metric(output, batch if _is_one(batch) else batch[1]))  # type: ignore[misc]

    def _loss(self, batch: Any, weight: float) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.job.precision == "bf16"):
            output = self._call(batch)
            if self.job.loss is None:
                return output.loss  # type: ignore[no-any-return]
            value = self.job.loss(output, batch if _is_one(batch) else batch[1])
        return value[0] / max(weight, 1) if isinstance(value, tuple) else value

    def _call(self, batch: Any) -> Any:
        if (self.job.loss is None or self.entry.spread) and isinstance(batch, Mapping):
            return self.model(**batch)
        if _is_one(batch):
            return self.model(batch)
        inputs = batch[0]
        return self.model(*inputs) if isinstance(inputs, tuple | list) else self.model(inputs)

    def _weight(self, batch: Any, samples: int) -> float:
        if self.entry.summed:
            return 1.0
        if self.entry.weight is not None:
            return self.entry.weight(batch)
        return float(_first(batch).shape[0]) if self.entry.by_microbatch else float(samples)

    def _carried(self) -> list[Tensor]:
        """What a forward may change: buffers, and parameters that are not trained."""
        frozen = [one for one in self.model.parameters() if not one.requires_grad]
        return [*self.model.buffers(), *frozen]

    def _set_carried(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for one, value in zip(self._carried(), values, strict=True):
                one.copy_(value)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.double() if value.is_floating_point() and self.job.precision == "fp64" else value
        if type(value) is dict:
            return {key: self._cast(part) for key, part in value.items()}
        if isinstance(value, Mapping) or is_dataclass(value):
            cast: Any = copy.copy(value)
            entries = cast if isinstance(value, Mapping) else vars(cast)
            for key, part in list(entries.items()):
                entries[key] = self._cast(part)
            return cast
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._cast(part) for part in value))
        return type(value)(self._cast(part) for part in value) if isinstance(value, tuple | list) else value


def made_data(job: Job) -> Any:
    """The training data of a job; what they draw when they are made follows from its seed."""
    with seeded(derive_seed(job.seed, "dataset")):
        return job.dataset()


def _batches(loop: _Loop, job: Job, steps: int) -> Iterator[tuple[int, list[int]]]:
    if is_stream(loop.dataset):
        yield from islice(_streamed(loop, job, loop.dataset), steps)
        return
    step = epoch = 0
    while True:
        if job.sampler is not None:
            with seeded(derive_seed(job.seed, "sampler", epoch)):
                order = list(job.sampler(loop.dataset, epoch))
        else:
            order = sample_order(len(loop.dataset), seed=job.seed, epoch=epoch).tolist()
        for start in range(0, len(order), job.global_batch_size):
            indices = order[start : start + job.global_batch_size]
            if job.drop_last and len(indices) < job.global_batch_size:
                continue
            yield epoch, indices
            step += 1
            if step == steps:
                return
        epoch += 1


def _streamed(loop: _Loop, job: Job, stream: Any) -> Iterator[tuple[int, list[int]]]:
    """Global batches of a stream, by the positions of their samples in the epoch; what it draws is seeded by batch."""
    for epoch in count():
        if callable(sets := getattr(stream, "set_epoch", None)):
            sets(epoch)
        items: Any = None
        start = 0
        for number in count():
            with seeded(derive_seed(job.seed, "stream", epoch, number)):
                items = iter(stream) if items is None else items
                found = list(islice(items, job.global_batch_size))
            if found and not (job.drop_last and len(found) < job.global_batch_size):
                loop.dataset = dict(enumerate(found, start))
                yield epoch, list(loop.dataset)
            start += len(found)
            if len(found) < job.global_batch_size:
                break


def _is_one(batch: Any) -> bool:
    """Whether model and loss get all of a batch, in the place of a pair."""
    return not isinstance(batch, tuple | list)


def _first(value: Any) -> Tensor:
    while not isinstance(value, Tensor):
        value = value if isinstance(value, Mapping | tuple | list) else vars(value)
        value = next(iter(value.values() if isinstance(value, Mapping) else value))
    return value


def _gradient(parameter: nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    return gradient.to_dense().clone() if gradient.is_sparse else gradient.clone()


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
