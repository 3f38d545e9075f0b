"""Jobs and plans by chance: a model of a few blocks, a batch form, a loss, an optimizer, and kinds of plans for it.

A `Recipe` is plain data, so that a job can be drawn in one process, made in another, and made simpler (`shrink`) while
it still shows what is wrong. The law: a plan trains what its plain loop trains, or is refused before it trains.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.field.cells import COMBINED, DEFECTS, KINDS, Cell, run_entry
from tests.field.entry import Entry, to_training
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, default_collate

from trimaran.base.job import Job

STEPS = 6
TOLERANCE = 1e-9
WIDTH, CLASSES, WORDS = 8, 4, 13
MIXED = (1, 6, 11)
"""Samples whose class is ignored, where classes are: fewer than any batch has samples."""

DRAWING = {"dropout", "noise", "depth", "attention_dropout"}
NORMALIZING = {"batch_norm", "conv_norm", "kept_norm"}

ROWS = (
    "linear", "residual", "layer_norm", "dropout", "noise", "depth", "counter", "average", "in_place", "checkpointed",
    "branch", "again", "tied", "frozen", "gate", "routed", "detached", "split", "constant", "norm_of_weight",
)  # fmt: skip
"""Blocks for anything whose last dim is its features."""

BLOCKS: dict[str, tuple[str, ...]] = {
    "vector": (*ROWS, "batch_norm", "kept_norm"),
    "image": ("conv", "conv_norm", "in_place", "dropout", "noise", "again", "counter", "group_norm", "residual_conv"),
    "tokens": (*ROWS, "lstm", "gru", "attention", "attention_dropout", "encoder", "plain_attention"),
    "graph": (*ROWS, "batch_norm", "edges"),
}

FORMS: dict[str, tuple[str, ...]] = {
    "vector": ("pair", "tuple", "dict", "keys", "own"),
    "image": ("pair", "tuple", "dict", "keys"),
    "tokens": ("pair", "tuple", "dict", "keys", "own"),
    "graph": ("dict", "keys"),
}

LOSSES: dict[str, tuple[str, ...]] = {
    "class": ("mean", "mean", "mean", "sum", "class_weights", "class_weights", "smoothed", "smoothed", "terms", "terms",
              "contrastive", "spread"),
    "ignored": ("mean", "pair", "given", "class_weights", "terms"),
    "numbers": ("mean", "sum", "masked_given", "masked_pair", "masked"),
    "words": ("mean", "pair", "sum", "all_words"),
}  # fmt: skip

EPS = 1e-4
"""Of what is rounding, as the gradient of a bias before a batch norm is, these optimizers would make whole steps."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.8, nesterov=True),
    "sgd_groups": lambda parameters: torch.optim.SGD(grouped(parameters), lr=0.02, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.1, eps=EPS),
    "adamw_groups": lambda parameters: torch.optim.AdamW(grouped(parameters), lr=2e-3, eps=EPS),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=2e-3, amsgrad=True, eps=EPS),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2, eps=EPS),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.5, eps=EPS),
}


def grouped(parameters: Any) -> list[dict[str, Any]]:
    """No decay for biases and norms, as practitioners have it."""
    named = list(parameters.named_parameters())
    decayed = [one for name, one in named if not name.endswith("bias")]
    rest = [one for name, one in named if name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 5e-3}]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A job and the kinds of plans for it.

    Attributes:
        modality: what a sample is: "vector", "image", "tokens", "graph"
        blocks: of the model, by name, in order
        form: of a batch
        ragged: tokens are padded to the longest of their batch
        strings: a batch that is a dict also holds names and None
        target: "class", "ignored" where some classes do not count, "numbers", "words": one for each token
        loss: how it is reduced
        optimizer: by name
        schedule: the learning rate changes
        unused: a head that no forward calls
        in_evaluation: the factory returns the model in evaluation mode
        last_kept: a block is kept in evaluation mode: "" by nobody, "factory", or "train", the model's own `train()`
        samples: of the training data
        batch: samples of a global batch
        drop_last: leave out the last, smaller batch
        clip: norm to which gradients are clipped; 0: none
        seed: of the job
        kinds: of plans
    """

    modality: str = "vector"
    blocks: tuple[str, ...] = ("linear",)
    form: str = "pair"
    ragged: bool = False
    strings: bool = False
    target: str = "class"
    loss: str = "mean"
    optimizer: str = "sgd"
    schedule: bool = False
    unused: bool = False
    in_evaluation: bool = False
    last_kept: str = ""
    samples: int = 20
    batch: int = 8
    drop_last: bool = False
    clip: float = 0.0
    seed: int = 0
    kinds: tuple[str, ...] = ("one",)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    modality = draw(st.sampled_from(("vector", "tokens", "image", "vector", "tokens", "graph")))
    form = draw(st.sampled_from(FORMS[modality]))
    targets = ("class", "class", "ignored", "numbers", *(("words", "words") if modality == "tokens" else ()))
    target = draw(st.sampled_from(targets))
    ragged, strings = modality == "tokens" and draw(st.booleans()), form in ("dict", "keys") and draw(st.booleans())
    blocks = tuple(draw(st.lists(st.sampled_from(BLOCKS[modality]), min_size=1, max_size=4)))
    # Ranks that share a tensor draw for their parts of it: as one process would by chance only.
    kinds = [kind for kind in (*KINDS, *COMBINED) if kind != "tp2" or not _draws(blocks)]
    if (ragged or strings or modality == "graph") and draw(st.sampled_from((True, True, True, False))):
        # Such models cannot be divided, which need not be seen so often.
        kinds = [kind for kind in kinds if "pp" not in kind and kind not in ("tp2", "placed")]
    return Recipe(
        modality=modality,
        blocks=blocks,
        form=form,
        ragged=ragged,
        strings=strings,
        target=target,
        loss=draw(
            st.sampled_from([one for one in LOSSES[target] if form != "own" or one not in ("pair", "masked_pair")])
        ),
        optimizer=draw(st.sampled_from(tuple(OPTIMIZERS))),
        schedule=draw(st.booleans()),
        unused=draw(st.sampled_from((False, False, False, True))),
        in_evaluation=draw(st.sampled_from((False, False, False, True))),
        last_kept=draw(st.sampled_from(("", "", "", "factory", "train"))),
        samples=draw(st.integers(17, 24)),
        batch=draw(st.integers(5, 8)),
        # A batch in which nothing counts has no mean.
        drop_last=target == "ignored" or draw(st.booleans()),
        clip=draw(st.sampled_from((0.0, 0.0, 0.3))),
        seed=draw(st.integers(0, 9)),
        kinds=tuple(draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=2, unique=True))),
    )


def _draws(blocks: tuple[str, ...]) -> bool:
    return bool(DRAWING & set(blocks)) or blocks[0] == "again"


def draw_recipes(count: int) -> list[Recipe]:
    """Different recipes, the same every time."""
    found: dict[tuple[str, ...], Recipe] = {}

    @settings(
        max_examples=12 * count + 20, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(recipes())
    def keep(recipe: Recipe) -> None:
        # What is drawn is often the one before with a change or two.
        found.setdefault(recipe.kinds, recipe)

    keep()
    return list(found.values())[:count]


class Data(Dataset[Any]):
    """Samples of which every number follows from the index."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __len__(self) -> int:
        return self.recipe.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        recipe, generator = self.recipe, torch.Generator().manual_seed(index)
        sample: dict[str, Any] = {"side": torch.randn(3, generator=generator)}
        if recipe.modality == "vector":
            sample["x"] = torch.randn(6, generator=generator)
        elif recipe.modality == "image":
            sample["x"] = torch.randn(2, 6, 6, generator=generator)
        elif recipe.modality == "tokens":
            sample["x"] = torch.randint(1, WORDS, (3 + index % 4 if recipe.ragged else 5,), generator=generator)
        else:
            nodes = 2 + index % 4
            sample["x"] = torch.randn(nodes, 6, generator=generator)
            sample["edges"] = torch.randint(nodes, (2, nodes + 1), generator=generator)
        if recipe.target in ("class", "ignored"):
            ignored = recipe.target == "ignored" and index in MIXED
            sample["y"] = torch.tensor(-100 if ignored else int(torch.randint(CLASSES, (), generator=generator)))
        elif recipe.target == "numbers":
            # The last says whether the sample counts.
            sample["y"] = torch.cat([torch.randn(CLASSES, generator=generator), torch.tensor([float(index % 5 != 3)])])
        else:
            sample["y"] = torch.randint(CLASSES, sample["x"].shape, generator=generator)
            sample["y"][0] = -100 if index % 3 == 0 else sample["y"][0]
        return sample


def collate(recipe: Recipe, samples: list[dict[str, Any]]) -> Any:
    if recipe.modality == "graph":
        sizes = torch.tensor([len(one["x"]) for one in samples])
        starts = (sizes.cumsum(0) - sizes).tolist()
        batch = {key: torch.stack([one[key] for one in samples]) for key in ("y", "side")}
        batch["x"] = torch.cat([one["x"] for one in samples])
        batch["edges"] = torch.cat([one["edges"] + start for one, start in zip(samples, starts, strict=True)], 1)
        batch["of"] = torch.repeat_interleave(torch.arange(len(samples)), sizes)
    elif recipe.ragged:
        batch = {"side": torch.stack([one["side"] for one in samples])}
        batch["x"] = pad_sequence([one["x"] for one in samples], batch_first=True)
        ys = [one["y"] for one in samples]
        batch["y"] = (
            pad_sequence(ys, batch_first=True, padding_value=-100)
            if ys[0].dim() and ys[0].dtype is torch.int64
            else torch.stack(ys)
        )
    else:
        batch = default_collate(samples)
    if recipe.form == "pair":
        return batch["x"], batch["y"]
    if recipe.form == "tuple":
        return (batch["x"], batch["side"]), batch["y"]
    if recipe.strings:
        batch = {**batch, "names": [f"sample {number}" for number in range(len(samples))], "nothing": None}
    return batch


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        return h + self.inner(h)


class Noise(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h) if self.training else h


class Depth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h if self.training and random.random() < 0.5 else h + self.inner(h)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return h


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor

    def forward(self, h: Tensor) -> Tensor:
        h = h - self.mean
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(h.flatten(0, -2).mean(0), 0.1)
        return h


class InPlace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        h = h * 1.5
        h += 0.1
        return functional.relu_(h)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.inner, h, use_reentrant=False)  # type: ignore[no-any-return]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.low(h) if h.sum() < 0 else self.high(h)  # type: ignore[no-any-return]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, h: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(h)))  # type: ignore[no-any-return]


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(0.3))

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(self.amount) + self.amount


class Routed(nn.Module):
    """Each row goes to one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, h: Tensor) -> Tensor:
        result = torch.zeros_like(h)
        chosen = h[..., 0] > 0
        for side, expert in enumerate(self.experts):
            rows = chosen == bool(side)
            if rows.any():
                result[rows] = expert(h[rows])
        return h + result


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.inner(h.detach())  # type: ignore[no-any-return]


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH // 2, WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH // 2)

    def forward(self, h: Tensor) -> Tensor:
        left, right = h.chunk(2, -1)
        return torch.cat([self.left(right), self.right(left) * left], -1)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH), persistent=False)
        self.scale: Tensor

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


class LastOf(nn.Module):
    """What a recurrent module returns first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h)[0]  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.inner(h, h, h, need_weights=False)[0]  # type: ignore[no-any-return]


class PlainAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        batch, length, _ = h.shape
        q, k, v = self.qkv(h).view(batch, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))  # type: ignore[no-any-return]


class Edges(nn.Module):
    """Set by the model before each forward: which node is a neighbour of which."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        return h + torch.zeros_like(h).index_add(0, target, self.inner(h)[source])


def make_block(name: str) -> nn.Module:
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()),
        "residual": lambda: Residual(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        ),
        "layer_norm": lambda: nn.LayerNorm(WIDTH),
        "dropout": lambda: nn.Dropout(0.2),
        "noise": Noise,
        "depth": Depth,
        "counter": Counter,
        "average": Average,
        "in_place": InPlace,
        "checkpointed": Checkpointed,
        "branch": Branch,
        "tied": Tied,
        "frozen": lambda: frozen,
        "gate": Gate,
        "routed": Routed,
        "detached": Detached,
        "split": Split,
        "constant": Constant,
        "norm_of_weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
        "batch_norm": lambda: nn.BatchNorm1d(WIDTH),
        "kept_norm": lambda: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=None))),
        "conv": lambda: nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(inplace=True)),
        "conv_norm": lambda: nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH)),
        "group_norm": lambda: nn.GroupNorm(2, WIDTH),
        "residual_conv": lambda: Residual(nn.Conv2d(WIDTH, WIDTH, 1)),
        "lstm": lambda: LastOf(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
        "gru": lambda: LastOf(nn.GRU(WIDTH, WIDTH, batch_first=True)),
        "attention": lambda: Attention(0.0),
        "attention_dropout": lambda: Attention(0.2),
        "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True),
        "plain_attention": PlainAttention,
        "edges": Edges,
    }
    return makers[name]()


class Model(nn.Module):
    """A stem, the blocks, and a head for what is wanted."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        if recipe.modality == "tokens":
            self.stem: nn.Module = nn.Embedding(WORDS, WIDTH, padding_idx=0 if recipe.ragged else None)
        else:
            self.stem = nn.Conv2d(2, WIDTH, 3, padding=1) if recipe.modality == "image" else nn.Linear(6, WIDTH)
        blocks: list[nn.Module] = []
        for name in recipe.blocks:
            blocks.append(
                blocks[-1] if name == "again" and blocks else make_block(name if name != "again" else "dropout")
            )
        self.blocks = nn.ModuleList(blocks)
        self.side = nn.Linear(3, WIDTH) if recipe.form != "pair" else None
        self.head = nn.Linear(WIDTH, CLASSES)
        if recipe.unused:
            self.unused = nn.Linear(WIDTH, 2)

    def compute(self, x: Tensor, side: Tensor | None, edges: Tensor | None, of: Tensor | None) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, edges) if isinstance(block, Edges) else block(h)
        if self.recipe.modality == "image":
            h = h.mean((2, 3))
        elif self.recipe.modality == "graph":
            assert of is not None
            assert side is not None
            h = h.new_zeros(side.shape[0], WIDTH).index_add(0, of, h)
        elif self.recipe.modality == "tokens" and self.recipe.target != "words":
            known = (x != 0).unsqueeze(-1)
            h = (h * known).sum(1) / known.sum(1)
        if side is not None and self.side is not None:
            shift = self.side(side)
            h = h + (shift.unsqueeze(1) if h.dim() == 3 else shift)
        return self.head(h)  # type: ignore[no-any-return]


class OfTensors(Model):
    def forward(self, x: Tensor, side: Tensor | None = None) -> Tensor:
        return self.compute(x, side, None, None)


class OfBatch(Model):
    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.compute(batch["x"], batch["side"], batch.get("edges"), batch.get("of"))


class OfKeys(Model):
    def forward(
        self,
        x: Tensor,
        side: Tensor,
        y: Tensor | None = None,
        edges: Tensor | None = None,
        of: Tensor | None = None,
        names: Any = None,
        nothing: Any = None,
    ) -> Any:
        output = self.compute(x, side, edges, of)
        if self.recipe.form != "own":
            return output
        return SimpleNamespace(loss=loss_of(self.recipe, output, y), logits=output)


class KeptBlock:
    """A `train()` of the model's own, which keeps the last block in evaluation mode."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)  # type: ignore[misc]
        self.blocks[-1].eval()  # type: ignore[attr-defined]
        return self


def make_model(recipe: Recipe) -> nn.Module:
    base = {"pair": OfTensors, "tuple": OfTensors, "dict": OfBatch}.get(recipe.form, OfKeys)
    made = type("Kept", (KeptBlock, base), {}) if recipe.last_kept == "train" else base
    model: Any = made(recipe)
    if recipe.last_kept == "train":
        model.train()
    if recipe.last_kept == "factory":
        model.blocks[-1].eval()
    return model.eval() if recipe.in_evaluation else model  # type: ignore[no-any-return]


TABLE = (0.5, 1.0, 2.0, 3.0)


def loss_of(recipe: Recipe, output: Any, y: Any) -> Any:
    """The loss of a batch."""
    kind = recipe.loss
    if recipe.target == "numbers":
        squared = (output - y[:, :-1]).square().mean(1)
        counts = y[:, -1]
        if kind.startswith("masked"):
            total, count = (squared * counts).sum(), counts.sum()
            return (total, count) if kind == "masked_pair" else total / count.clamp(min=1)
        return squared.sum() if kind == "sum" else squared.mean()
    scores, y = (output.flatten(0, 1), y.flatten()) if recipe.target == "words" else (output, y)
    entropy = functional.cross_entropy
    if kind == "pair":
        return entropy(scores, y, reduction="sum"), (y != -100).sum()
    if kind == "all_words":
        return entropy(scores, y, reduction="none").mean()
    if kind == "sum":
        return entropy(scores, y, reduction="sum")
    if kind == "class_weights":
        return entropy(scores, y, weight=scores.new_tensor(TABLE))
    if kind == "smoothed":
        return entropy(scores, y, label_smoothing=0.1)
    if kind == "terms":
        return entropy(scores, y) + 0.1 * scores.square().mean()
    if kind == "contrastive":
        unit = functional.normalize(scores, dim=1)
        return entropy(unit @ unit.T, torch.arange(len(unit), device=unit.device)) + entropy(scores, y)
    if kind == "spread":
        return entropy(scores, y) + scores.var(0, unbiased=False).mean()
    return entropy(scores, y)


def target_of(batch: Any) -> Tensor:
    return batch["y"] if isinstance(batch, dict) else batch[1]  # type: ignore[no-any-return]


def weight_of(recipe: Recipe, batch: Any) -> float:
    """What the mean of the loss is over."""
    y = target_of(batch)
    if recipe.loss == "class_weights":
        return math.fsum(TABLE[label] for label in y.flatten().tolist() if label >= 0)
    if recipe.loss.startswith("masked"):
        return float(y[:, -1].sum())
    if recipe.loss == "all_words":
        return float(y.numel())
    if recipe.target in ("ignored", "words"):
        return float((y != -100).sum())
    return float(len(y))


def make_entry(recipe: Recipe) -> Entry:
    """The job of a recipe, with its plain loop.

    Args:
        recipe: of the job
    """

    def modes(model: Any) -> None:
        to_training(model)
        if recipe.last_kept == "factory" and not recipe.in_evaluation:
            model.blocks[-1].eval()

    def job() -> Job:
        own = recipe.form == "own"
        return Job(
            name="drawn",
            model=lambda: make_model(recipe),
            loss=None
            if own
            else lambda output, given: loss_of(recipe, output, given["y"] if isinstance(given, dict) else given),
            optimizer=OPTIMIZERS[recipe.optimizer],
            dataset=lambda: Data(recipe),
            collate=partial(collate, recipe),
            global_batch_size=recipe.batch,
            lr_schedule=(lambda one: torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.7)) if recipe.schedule else None,
            precision="fp64",
            clip_norm=recipe.clip or None,
            drop_last=recipe.drop_last,
            seed=recipe.seed,
            epochs=9,
            loss_weight=(lambda batch: weight_of(recipe, batch)) if recipe.loss.endswith("given") else None,
        )

    return Entry(
        name="drawn",
        family="random",
        job=job,
        note="drawn",
        own_optimizer=True,
        by_microbatch=_draws(recipe.blocks) or bool(NORMALIZING & set(recipe.blocks)),
        spread=recipe.form == "keys",
        summed=recipe.loss == "sum",
        weight=partial(weight_of, recipe),
        modes=modes,
        tolerance=TOLERANCE,
    )


def cells_of(recipe: Recipe, *, steps: int = STEPS) -> list[Cell]:
    """What came of a recipe under each of its kinds."""
    return list(run_entry(make_entry(recipe), recipe.kinds, ("own",), steps=steps))


def is_defect(recipe: Recipe) -> Cell | None:
    """The first cell that is neither equal nor refused."""
    return next((cell for cell in cells_of(recipe) if cell.verdict in DEFECTS), None)


def shrink(recipe: Recipe) -> Iterator[tuple[Recipe, Cell]]:
    """Ever simpler recipes with a defect of the same verdict; nothing where there is none.

    Args:
        recipe: that shows one
    """
    found = is_defect(recipe)
    if found is None:
        return
    yield (recipe := dataclasses.replace(recipe, kinds=(found.kind,))), found
    smaller = True
    while smaller:
        smaller = False
        for simpler in _simpler(recipe):
            cell = is_defect(simpler)
            if cell is not None and cell.verdict == found.verdict:
                yield simpler, cell
                recipe, smaller = simpler, True
                break


def _simpler(recipe: Recipe) -> Iterator[Recipe]:
    if len(recipe.blocks) > 1:
        for place in range(len(recipe.blocks)):
            yield dataclasses.replace(recipe, blocks=recipe.blocks[:place] + recipe.blocks[place + 1 :])
    plain = Recipe()
    for field in dataclasses.fields(Recipe):
        if field.name in ("modality", "kinds", "blocks", "target", "samples", "seed"):
            continue
        value = getattr(plain, field.name)
        if field.name == "form" and recipe.modality == "graph":
            value = "dict"
        if field.name == "drop_last" and recipe.target == "ignored":
            continue
        if getattr(recipe, field.name) != value:
            simpler = dataclasses.replace(recipe, **{field.name: value})
            if not simpler.strings or simpler.form in ("dict", "keys"):
                yield simpler
