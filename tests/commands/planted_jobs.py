"""Small jobs, each with one thing in it that a plan can get wrong."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler, default_collate

from trimaran import Job

WIDTH, CLASSES, WORDS = 6, 4, 11


class Made(Dataset[Any]):
    """Samples that a function makes from their numbers."""

    def __init__(self, make: Callable[[int, torch.Generator], Any], count: int = 64) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        if number >= self.count:
            raise IndexError(number)
        return self.make(number, torch.Generator().manual_seed(number))


def draw(*shape: int, by: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=by)


def pick(most: int, *shape: int, by: torch.Generator) -> Tensor:
    return torch.randint(0, most, shape, generator=by)


def vector(number: int, by: torch.Generator) -> Any:
    return draw(WIDTH, by=by), int(pick(CLASSES, by=by))


def measured(number: int, by: torch.Generator) -> Any:
    return draw(WIDTH, by=by), draw(1, by=by)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def regressor() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))


def job(**options: Any) -> Job:
    given: dict[str, Any] = {
        "model": chain,
        "loss": F.cross_entropy,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        "dataset": lambda: Made(vector),
        "global_batch_size": 8,
    }
    return Job(**given | options)


# Modes


def returned_in_eval() -> Job:
    return job(model=lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).eval())


def part_in_eval() -> Job:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
        model[1].eval()
        return model

    return job(model=make)


class FrozenNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def train(self, mode: bool = True) -> "FrozenNorms":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())


def own_train() -> Job:
    return job(model=FrozenNorms)


# Reductions


class Answer:
    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class Causal(nn.Module):
    """A language model that computes its loss, as those of Hugging Face do."""

    def __init__(self, shifted: bool = True) -> None:
        super().__init__()
        self.embedding, self.head, self.shifted = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), shifted

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Answer:
        logits = self.head(self.embedding(input_ids).cumsum(1))
        shown, wanted = (logits[:, :-1], labels[:, 1:]) if self.shifted else (logits, labels)
        loss = F.cross_entropy(shown.reshape(-1, WORDS), wanted.reshape(-1))
        return Answer(loss, logits)


def labelled(number: int, by: torch.Generator) -> Any:
    words = pick(WORDS, 7, by=by)
    labels = words.clone()
    labels[3 + int(pick(5, by=by)) :] = -100
    return {"input_ids": words, "labels": labels}


def ignored_labels() -> Job:
    return job(model=Causal, loss=None, dataset=lambda: Made(labelled))


def rarely_labelled(number: int, by: torch.Generator) -> Any:
    words = pick(WORDS, 7, by=by)
    labels = words.clone()
    if number == 137:
        labels[4:] = -100
    return {"input_ids": words, "labels": labels}


def rare_ignored_labels() -> Job:
    return job(model=Causal, loss=None, dataset=lambda: Made(rarely_labelled, 200))


def rarest_ignored_labels() -> Job:
    """Beyond the samples that are scanned."""

    def make(number: int, by: torch.Generator) -> Any:
        return rarely_labelled(137 if number == 4321 else 1, by)

    return job(model=Causal, loss=None, dataset=lambda: Made(make, 5000))


def class_weights() -> Job:
    return job(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0])))


def class_weights_in_closure() -> Job:
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
    return job(loss=lambda output, target: F.cross_entropy(output, target, weight=weights))


def rare_class() -> Job:
    """The classes that the first samples have weigh the same."""

    def make(number: int, by: torch.Generator) -> Any:
        return draw(WIDTH, by=by), 3 if number == 77 else int(pick(3, by=by))

    return job(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 1.0, 5.0])), dataset=lambda: Made(make, 200))


def summed() -> Job:
    return job(loss=nn.CrossEntropyLoss(reduction="sum"))


def scaled() -> Job:
    return job(loss=lambda output, target: 128.0 * F.cross_entropy(output, target))


def smoothed() -> Job:
    return job(loss=nn.CrossEntropyLoss(label_smoothing=0.1))


def smoothed_and_weighted() -> Job:
    return job(loss=nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([1.0, 2.0, 0.5, 3.0])))


def contrastive() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        kept = F.normalize(output, dim=1)
        return F.cross_entropy(kept @ kept.T / 0.1, torch.arange(len(kept)).roll(1))

    return job(loss=loss)


def gathering() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        kept = F.normalize(output, dim=1)
        if dist.is_initialized() and dist.get_world_size() > 1:
            kept = torch.cat(torch.distributed.nn.functional.all_gather(kept))
        return F.cross_entropy(kept @ kept.T / 0.1, torch.arange(len(kept)).roll(1))

    return job(loss=loss)


def two_views() -> Job:
    def make(number: int, by: torch.Generator) -> Any:
        x = draw(WIDTH, by=by)
        return (x + 0.1 * draw(WIDTH, by=by), x + 0.1 * draw(WIDTH, by=by)), number

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = chain()

        def forward(self, first: Tensor, second: Tensor) -> Any:
            return self.encoder(first), self.encoder(second)

    def loss(output: Any, target: Tensor) -> Tensor:
        first, second = (F.normalize(one, dim=1) for one in output)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))

    return job(model=Views, loss=loss, dataset=lambda: Made(make))


def by_hand(number: int, by: torch.Generator) -> Any:
    """Words, and importance of each, which the loss thresholds: no tensor of the batch is its weight."""
    return {"ids": pick(WORDS, 5, by=by), "importance": draw(5, by=by)}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids))


def _mean_by_hand(output: Tensor, batch: Any) -> Tensor:
    counted = (batch["importance"] > 0.3).to(output.dtype)
    return (F.cross_entropy(output.mT, batch["ids"].roll(1, 1), reduction="none") * counted).sum() / counted.sum()


class TakesIds(Words):
    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch["ids"])


def mean_by_hand() -> Job:
    return job(model=TakesIds, loss=_mean_by_hand, dataset=lambda: Made(by_hand))


def mean_by_hand_weighed() -> Job:
    return job(
        model=TakesIds,
        loss=_mean_by_hand,
        dataset=lambda: Made(by_hand),
        loss_weight=lambda batch: (batch["importance"] > 0.3).sum(),
    )


def masked(number: int, by: torch.Generator) -> Any:
    """The first samples have no padding."""
    length = 5 if number < 12 else 1 + int(pick(5, by=by))
    return {"ids": pick(WORDS, 5, by=by), "mask": (torch.arange(5) < length).float()}


def late_mask() -> Job:
    def loss(output: Tensor, batch: Any) -> Tensor:
        each = F.cross_entropy(output.mT, batch["ids"].roll(1, 1), reduction="none")
        return (each * batch["mask"]).sum() / batch["mask"].sum()

    return job(model=TakesIds, loss=loss, dataset=lambda: Made(masked))


def rare_mask() -> Job:
    """One sample of 200 has padding."""

    def make(number: int, by: torch.Generator) -> Any:
        return {"ids": pick(WORDS, 5, by=by), "mask": (torch.arange(5) < (2 if number == 150 else 5)).float()}

    def loss(output: Tensor, batch: Any) -> Tensor:
        each = F.cross_entropy(output.mT, batch["ids"].roll(1, 1), reduction="none")
        return (each * batch["mask"]).sum() / batch["mask"].sum()

    return job(model=TakesIds, loss=loss, dataset=lambda: Made(make, 200))


def full_boolean_mask() -> Job:
    """A mask that leaves nothing out in all samples that are read."""

    def make(number: int, by: torch.Generator) -> Any:
        mask = torch.arange(5) < (2 if number == 4321 else 5)
        return {"ids": pick(WORDS, 5, by=by), "labels": pick(WORDS, 5, by=by), "mask": mask}

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output[batch["mask"]], batch["labels"][batch["mask"]])

    return job(model=TakesIds, loss=loss, dataset=lambda: Made(make, 5000))


def boolean_mask() -> Job:
    """A loss over those that a mask selects."""

    def make(number: int, by: torch.Generator) -> Any:
        mask = torch.arange(5) < 1 + int(pick(5, by=by))
        return {"ids": pick(WORDS, 5, by=by), "mask": mask}

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output[batch["mask"]], batch["ids"].roll(1, 1)[batch["mask"]])

    return job(model=TakesIds, loss=loss, dataset=lambda: Made(make))


# Batches


def longest(samples: Sequence[Any]) -> Any:
    ids = nn.utils.rnn.pad_sequence([one[0] for one in samples], batch_first=True)
    return ids, torch.tensor([one[1] for one in samples])


def late_lengths(number: int, by: torch.Generator) -> Any:
    """Samples are of one length at first."""
    length = 4 if number < 20 else 2 + int(pick(6, by=by))
    return 1 + pick(WORDS - 1, length, by=by), int(pick(CLASSES, by=by))


def lengths(number: int, by: torch.Generator) -> Any:
    return 1 + pick(WORDS - 1, 2 + int(pick(6, by=by)), by=by), int(pick(CLASSES, by=by))


class Pooled(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embedding, self.head, self.masked = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES), masked

    def forward(self, ids: Tensor) -> Tensor:
        found = self.embedding(ids)
        if not self.masked:
            return self.head(found.mean(1))
        counted = (ids > 0).unsqueeze(-1).to(found.dtype)
        return self.head((found * counted).sum(1) / counted.sum(1))


def padded_without_mask() -> Job:
    return job(model=lambda: Pooled(False), dataset=lambda: Made(lengths), collate=longest)


def late_padded_without_mask() -> Job:
    return job(model=lambda: Pooled(False), dataset=lambda: Made(late_lengths), collate=longest)


def padded_with_mask() -> Job:
    return job(model=lambda: Pooled(True), dataset=lambda: Made(lengths), collate=longest)


def strings() -> Job:
    def collate(samples: Sequence[Any]) -> Any:
        return {
            "x": torch.stack([one[0] for one in samples]),
            "y": torch.tensor([one[1] for one in samples]),
            "text": [f"sample {one[1]}" for one in samples],
            "nothing": None,
        }

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = chain()

        def forward(self, batch: Any) -> Tensor:
            return self.net(batch["x"])

    return job(model=Takes, loss=lambda output, batch: F.cross_entropy(output, batch["y"]), collate=collate)


def per_box(output: Tensor, target: Any) -> Tensor:
    return (output - target["boxes"].to(output.dtype)).abs().sum(1)


def ragged_targets() -> Job:
    def make(number: int, by: torch.Generator) -> Any:
        return draw(WIDTH, by=by), {"boxes": draw(1 + int(pick(3, by=by)), 4, by=by)}

    def collate(samples: Sequence[Any]) -> Any:
        return torch.stack([one[0] for one in samples]), [one[1] for one in samples]

    def loss(output: Tensor, target: Any) -> Tensor:
        return torch.stack([per_box(*pair).mean() for pair in zip(output, target, strict=True)]).mean()

    return job(loss=loss, dataset=lambda: Made(make), collate=collate)


def ragged_targets_per_box() -> Job:
    def loss(output: Tensor, target: Any) -> Tensor:
        return torch.cat([per_box(*pair) for pair in zip(output, target, strict=True)]).mean()

    return job(loss=loss, dataset=ragged_targets().dataset, collate=ragged_targets().collate)


# Parameters


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def unused_head() -> Job:
    return job(model=Heads)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, 0].mul(3).long().abs() % 6
        result = torch.zeros(len(x), CLASSES, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                result[mask] = expert(x[mask])
        return result + self.gate(x).sum(1, keepdim=True)


def experts() -> Job:
    return job(model=Experts)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids)).mT


def tied() -> Job:
    def make(number: int, by: torch.Generator) -> Any:
        return pick(WORDS, 5, by=by), pick(WORDS, 5, by=by)

    return job(model=Tied, dataset=lambda: Made(make))


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randint(0, 255, (CLASSES, WIDTH), dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.full((CLASSES, 1), 0.01))
        self.low, self.high = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.base.to(self.scale.dtype) - 128) * self.scale
        return F.linear(x, weight) + self.high(self.low(x))


def quantized() -> Job:
    return job(model=Quantized)


class Criterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target) + (output - self.centers[target]).square().mean()


def trained_criterion() -> Job:
    return job(loss=Criterion())


def trained_criterion_held() -> Job:
    criterion = Criterion()
    return job(
        loss=criterion, optimizer=lambda parameters: torch.optim.SGD([*parameters, *criterion.parameters()], lr=0.1)
    )


# Draws and state


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.1 * torch.randn_like(x))


def noisy() -> Job:
    return job(model=Noisy)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if random.random() < 0.5:
                x = x + block(x).relu()
        return self.last(x)


def stochastic_depth() -> Job:
    return job(model=Deep)


class Queue(nn.Module):
    queue: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = chain()
        self.register_buffer("queue", torch.randn(16, CLASSES))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        found = F.normalize(self.encoder(x), dim=1)
        logits = found @ self.queue.T.clone()
        with torch.no_grad():
            start = int(self.place)
            rows = torch.arange(start, start + len(x)) % len(self.queue)
            self.queue[rows] = found.detach()
            self.place[0] = (start + len(x)) % len(self.queue)
        return logits[:, :CLASSES]


def queue() -> Job:
    return job(model=Queue)


def spectral() -> Job:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 8)), nn.ReLU(), nn.Linear(8, CLASSES)
        )

    return job(model=make)


class Penalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = regressor()

    def forward(self, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        value = self.critic(x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return value, slope


def penalty() -> Job:
    def loss(output: Any, target: Tensor) -> Tensor:
        value, slope = output
        return F.mse_loss(value, target) + (slope.norm(dim=1) - 1).square().mean()

    return job(model=Penalized, loss=loss, dataset=lambda: Made(measured))


def hooked() -> Job:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh()), nn.Linear(8, CLASSES))
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        return model

    return job(model=make)


def compiled() -> Job:
    return job(model=lambda: torch.compile(chain(), backend="eager"))


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=True))


def reentrant() -> Job:
    return job(model=Reentrant)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).mul_(2.0)
        return self.net(x)


def in_place() -> Job:
    return job(model=InPlace)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(0))


def centred() -> Job:
    return job(model=Centred)


class Squeezed(nn.Module):
    """A forward that fails on one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        found = self.net(x).squeeze()
        return found[:, :CLASSES]


def squeezed() -> Job:
    return job(model=Squeezed)


class Island(nn.Module):
    """Part of it computes in fp32 whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).float().softmax(-1).to(x.dtype))


def island() -> Job:
    return job(model=Island)


class OnlySingle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + torch.eye(CLASSES)[0] if x.dtype == torch.float32 else self.fail()

    def fail(self) -> Tensor:
        raise TypeError("float32 only")


def only_single() -> Job:
    return job(model=OnlySingle)


class Uncopyable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def uncopyable() -> Job:
    return job(model=Uncopyable)


# Optimizers and feeds


def lbfgs() -> Job:
    return job(optimizer=lambda parameters: torch.optim.LBFGS(parameters))


def holds_another() -> Job:
    other = nn.Parameter(torch.zeros(3))
    return job(optimizer=lambda parameters: torch.optim.SGD([*parameters, other], lr=0.1))


def misses_one() -> Job:
    return job(
        optimizer=lambda parameters: torch.optim.SGD(
            [one for name, one in parameters.named_parameters() if not name.startswith("0.")], lr=0.1
        )
    )


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                update = one.grad
                if update.ndim == 2:
                    update = update / (update.norm() + 1e-7)
                    for _ in range(3):
                        update = 1.5 * update - 0.5 * update @ update.T @ update
                with torch.no_grad():
                    one.sub_(group["lr"] * update)


def muon() -> Job:
    return job(optimizer=Muon)


def plateau() -> Job:
    return job(lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for number in range(64):
            yield vector(number, torch.Generator().manual_seed(number))


def stream() -> Job:
    return job(dataset=Stream)


def weighted_sampler() -> Job:
    return job(
        sampler=lambda dataset, epoch: WeightedRandomSampler(
            [1.0 + number % 3 for number in range(len(dataset))], len(dataset)
        )
    )


def augmented() -> Job:
    """Samples are drawn anew whenever they are read."""

    def make(number: int, by: torch.Generator) -> Any:
        x, y = vector(number, by)
        return x + torch.randn(WIDTH), y

    return job(dataset=lambda: Made(make))


def masked_in_collate() -> Job:
    """Which words are masked is drawn when a batch is made."""

    def make(number: int, by: torch.Generator) -> Any:
        return pick(WORDS - 1, 7, by=by)

    def collate(samples: Sequence[Any]) -> Any:
        words = torch.stack(list(samples))
        chosen = torch.rand(words.shape) < 0.4
        return {"input_ids": words.masked_fill(chosen, WORDS - 1), "labels": words.masked_fill(~chosen, -100)}

    return job(model=lambda: Causal(shifted=False), loss=None, dataset=lambda: Made(make), collate=collate)


class Center(nn.Module):
    """A loss that keeps a moving mean of the outputs."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(CLASSES))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        value = F.cross_entropy(output - self.center, target)
        self.center.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        return value


def stateful_loss() -> Job:
    return job(loss=Center())


class Spread(nn.Module):
    """A forward that fails on fewer samples, or on more."""

    def __init__(self, least: int, most: int = 1000) -> None:
        super().__init__()
        self.net, self.least, self.most = chain(), least, most

    def forward(self, x: Tensor) -> Tensor:
        if not self.least <= len(x) <= self.most:
            raise ValueError(f"a spread needs {self.least} samples and takes {self.most}")
        return self.net(x)


def needs_two() -> Job:
    """A batch of which a rank has one sample."""
    return job(model=lambda: Spread(2), global_batch_size=2)


def needs_two_of_eight() -> Job:
    return job(model=lambda: Spread(2))


def needs_eight() -> Job:
    """More than a look begins with."""
    return job(model=lambda: Spread(8), global_batch_size=16)


def needs_sixteen() -> Job:
    """Parts of the largest batch that is looked at are too small."""
    return job(model=lambda: Spread(16), global_batch_size=32)


def takes_six() -> Job:
    """Parts work where the whole batch does not."""
    return job(model=lambda: Spread(1, 6))


def loss_needs_four() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if len(output) < 4:
            raise ValueError("a loss of four samples")
        return F.cross_entropy(output, target)

    return job(loss=loss, global_batch_size=16)


def collates_two() -> Job:
    def collate(samples: Sequence[Any]) -> Any:
        _, _ = samples[:2]
        return default_collate(samples)

    return job(collate=collate)


def cancelling() -> Job:
    """A loss that is nearly zero."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output * (target.unsqueeze(1) - 1.5)).mean()

    return job(loss=loss)


def plain() -> Job:
    return job()


def countless() -> Job:
    return job(dataset=lambda: Made(vector, 10**12))
