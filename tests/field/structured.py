"""Tables, graphs, speech, experts: batches and networks whose form depends on the data."""

from typing import Any

import torch
from tests.field.entry import Family
from tests.field.vision import CLASSES, classify
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from trimaran.base.job import Job

STRUCTURED = Family("structured")
SAMPLES = 30


def generator_of(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(index)


class Clicks(Dataset[Any]):
    """Numbers, and as many categories as each user has."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = generator_of(index)
        categories = torch.randint(23, (1 + index % 5,), generator=generator)
        return torch.randn(6, generator=generator), categories, torch.tensor(float(index % 2))


def bag_up(samples: list[Any]) -> dict[str, Tensor]:
    numbers, categories, labels = zip(*samples, strict=True)
    lengths = torch.tensor([0, *(len(one) for one in categories[:-1])])
    return {
        "dense": torch.stack(numbers),
        "indices": torch.cat(categories),
        "offsets": lengths.cumsum(0),
        "labels": torch.stack(labels),
    }


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.bags = nn.EmbeddingBag(23, 8, mode="sum")
        self.top = nn.Sequential(nn.Linear(17, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        dense, sparse = self.bottom(batch["dense"]), self.bags(batch["indices"], batch["offsets"])
        return self.top(torch.cat([dense, sparse, (dense * sparse).sum(1, keepdim=True)], 1)).squeeze(1)


@STRUCTURED.entry("bags of categories: indices of all samples in one tensor, with offsets")
def dlrm() -> Job:
    return classify(
        "dlrm",
        Dlrm,
        loss=lambda output, batch: functional.binary_cross_entropy_with_logits(output, batch["labels"]),
        dataset=Clicks,
        collate=bag_up,
    )


class Molecules(Dataset[Any]):
    """Graphs of several sizes."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator, nodes = generator_of(index), 3 + index % 4
        edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
        return {
            "x": torch.randn(nodes, 5, generator=generator),
            "edge_index": edges,
            "y": torch.tensor(index % CLASSES),
        }


def join_graphs(graphs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """As libraries for graphs do: nodes one after the other, edges with the numbers that these have."""
    sizes = torch.tensor([len(graph["x"]) for graph in graphs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    return {
        "x": torch.cat([graph["x"] for graph in graphs]),
        "edge_index": torch.cat([graph["edge_index"] + start for graph, start in zip(graphs, starts, strict=True)], 1),
        "batch": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "y": torch.stack([graph["y"] for graph in graphs]),
    }


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x, (source, target) = batch["x"], batch["edge_index"]
        for layer in (self.first, self.second):
            x = layer(x)
            x = functional.relu(x + torch.zeros_like(x).index_add(0, target, x[source]))
        graphs = batch["y"].shape[0]
        return self.head(x.new_zeros(graphs, x.shape[1]).index_add(0, batch["batch"], x))


@STRUCTURED.entry("graphs joined to one: nodes of all, edges by number, and which node is of which graph")
def graphs() -> Job:
    return classify(
        "graphs",
        GraphNet,
        loss=lambda output, batch: functional.cross_entropy(output, batch["y"]),
        dataset=Molecules,
        collate=join_graphs,
    )


class Speech(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = generator_of(index)
        words = torch.randint(1, 6, (2 + index % 3,), generator=generator)
        return torch.randn(10 + index % 4, 5, generator=generator), words


def pad_speech(samples: list[Any]) -> dict[str, Tensor]:
    sounds, words = zip(*samples, strict=True)
    return {
        "features": pad_sequence(list(sounds), batch_first=True),
        "feature_lengths": torch.tensor([len(one) for one in sounds]),
        "labels": pad_sequence(list(words), batch_first=True),
        "label_lengths": torch.tensor([len(one) for one in words]),
    }


class Recognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 8, batch_first=True)
        self.head = nn.Linear(8, 6)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.gru(batch["features"])[0]).log_softmax(-1)


def ctc(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return functional.ctc_loss(
        output.transpose(0, 1), batch["labels"], batch["feature_lengths"], batch["label_lengths"], zero_infinity=True
    )


@STRUCTURED.entry("CTC with lengths of inputs and of labels, padded to the longest")
def speech() -> Job:
    return classify("speech", Recognizer, loss=ctc, dataset=Speech, collate=pad_speech)


class Experts(nn.Module):
    """Each sample goes to two of six experts; experts that nobody asks do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 6, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 12)) for _ in range(6))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = x
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                rows, place = mask.nonzero(as_tuple=True)
                out = out.index_add(0, rows, expert(x[rows]) * shares[rows, place, None])
        return self.head(out)


def points() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, 12, generator=generator_of(0)), torch.arange(SAMPLES) % CLASSES)


@STRUCTURED.entry("mixture of experts: top 2 of 6, `if mask.any()`, so that an expert may have no gradient")
def experts() -> Job:
    return classify("experts", Experts, dataset=points)


class Tasks(Dataset[Any]):
    """Samples of two tasks, of which a batch may have one alone."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(12, generator=generator_of(index))
        return {"x": x, "task": torch.tensor(int(index % 8 == 0)), "y": torch.tensor(index % CLASSES)}


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(16, CLASSES) for _ in range(2))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.body(batch["x"])
        out = x.new_zeros(len(x), CLASSES)
        for number, head in enumerate(self.heads):
            mine = batch["task"] == number
            if mine.any():
                out[mine] = head(x[mine])
        return out


@STRUCTURED.entry("two heads, of which a batch may use one alone")
def multi_task() -> Job:
    return classify(
        "multi_task", MultiTask, loss=lambda output, batch: functional.cross_entropy(output, batch["y"]), dataset=Tasks
    )


class Halting(nn.Module):
    """A step is repeated until every sample has halted; as often as the hardest of the batch needs."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(12, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        running = torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
        for _ in range(6):
            if not running.any():
                break
            x = torch.where(running, torch.tanh(self.step(x)), x)
            running = running & (x.abs().mean(1, keepdim=True) > 0.3)
        return self.head(x)


@STRUCTURED.entry("early exit: how deep it is depends on values")
def early_exit() -> Job:
    return classify("early_exit", Halting, dataset=points)


class SparseWords(nn.Module):
    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8, sparse=sparse)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1))


def bags_of_words() -> TensorDataset:
    return TensorDataset(torch.randint(40, (SAMPLES, 5), generator=generator_of(1)), torch.arange(SAMPLES) % CLASSES)


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@STRUCTURED.entry("an embedding with sparse gradients", own_optimizer=True, way_out="dense_embedding")
def sparse_embedding() -> Job:
    return classify("sparse_embedding", SparseWords, optimizer=plain_sgd, dataset=bags_of_words)


@STRUCTURED.entry("the same with sparse=False", own_optimizer=True)
def dense_embedding() -> Job:
    return classify("dense_embedding", lambda: SparseWords(sparse=False), optimizer=plain_sgd, dataset=bags_of_words)


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.temperature


@STRUCTURED.entry("a learned temperature: a parameter of no dims")
def temperature() -> Job:
    return classify("temperature", Tempered, dataset=points)


class Pairs(Dataset[Any]):
    """Samples that are lists: two inputs, two targets."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[Any]:
        generator = generator_of(index)
        return [
            [torch.randn(6, generator=generator), torch.randn(4, generator=generator)],
            [torch.randn(2, generator=generator), index % CLASSES],
        ]


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 8), nn.Linear(4, 8)
        self.value, self.kind = nn.Linear(8, 2), nn.Linear(8, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> list[Tensor]:
        x = torch.tanh(self.left(left) + self.right(right))
        return [self.value(x), self.kind(x)]


@STRUCTURED.entry("samples that are pairs of lists; two outputs")
def pairs_of_lists() -> Job:
    def loss(output: list[Tensor], target: list[Tensor]) -> Tensor:
        return functional.mse_loss(output[0], target[0]) + functional.cross_entropy(output[1], target[1])

    return classify("pairs_of_lists", TwoTowers, loss=loss, dataset=Pairs)
