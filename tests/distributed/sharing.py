"""Jobs whose tensors are shared by ranks, and what ranks do with them in the tests."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.distributed.test_recording import sent
from tests.distributed.training import full_batch, take_steps
from tests.forks.server import may_capture
from tests.unit.planning.written_decoders import Decoder, Written
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.networks.alexnet_overfeat_vgg import AlexNet
from trimaran.networks.bert import BertForQuestions
from trimaran.networks.gpt import Gpt2
from trimaran.networks.llama import Llama
from trimaran.networks.sizes import TransformerSize
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import chosen_regions, find_classifier_shards, find_shards
from trimaran.program.strategy import Strategy
from trimaran.program.types import COLLECTIVES, Kind
from trimaran.runtime.executor import Executor

SMALL = TransformerSize(width=16, layers=2, heads=4, dense=32, vocabulary=21, positions=8, kv_heads=2)
STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: a job of this module, and a strategy whose shards are found; in two stages, the cut is in the middle."""

    job: str
    strategy: Strategy
    sequence: bool = False

    @property
    def name(self) -> str:
        return f"{self.job} {self.strategy.name}{' sequences' if self.sequence else ''}"

    def fit(self, graph: Graph) -> Strategy:
        strategy = self.strategy
        if strategy.tp > 1:
            shards = find_shards(graph, strategy.tp, sequence=self.sequence, layers=True)
        else:
            shards = find_classifier_shards(graph, strategy.dp)
        strategy = dataclasses.replace(strategy, shards=shards)
        return strategy if strategy.pp == 1 else dataclasses.replace(strategy, boundaries=(_middle(graph, strategy),))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rank saw: losses, weights at the end (on rank 0), the metric before and after a load of those weights,
    and the collectives of one step, by kind and bytes, as the program has them and as they were."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    scores: tuple[float, float]
    planned: Counter[tuple[str, int]]
    done: Counter[tuple[str, int]]
    styles: frozenset[str]


def share_all(world: World, cases: list[Case], folder: str) -> list[Found]:
    """Run all cases in one world."""
    found = []
    for number, case in enumerate(cases):
        job = globals()[case.job]()
        made, initial = capture_once(case.job)
        made.model.load_state_dict(initial)
        found.append(_share(world, job, case, made, Path(folder) / f"{number}.safetensors"))
    return found


@functools.cache
def capture_once(job: str) -> tuple[Capture, dict[str, torch.Tensor]]:
    """A job of this module captured, once in this process and in those that are forked from it, and initial weights."""
    made = capture(globals()[job]())
    return made, {name: tensor.clone() for name, tensor in made.model.state_dict().items()}


def capture_jobs(cases: list[Case]) -> None:
    """Capture what cases need, before their ranks are forked from this process."""
    for case in cases if may_capture() else ():
        capture_once(case.job)


def _share(world: World, job: Job, case: Case, made: Capture, path: Path) -> Found:
    strategy = case.fit(made.graph)
    batch = full_batch(job.global_batch_size, strategy)
    program = lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None)
    evaluation = lower_evaluation(made.graph, strategy, batch=batch)
    executor = Executor(job, strategy, program, evaluation, world, capture=made)
    losses = take_steps(executor, STEPS)
    weights = executor.weights()
    executor.save(path)
    before = executor.evaluate(job.dataset())
    share = next(iter(executor.feed().shares()))
    with counted() as done:
        executor.step(share)
    executor.load(path)
    after = executor.evaluate(job.dataset())
    executor.close()
    # Replicas hand out their buffers by data type, which is no matter of shares.
    kinds = COLLECTIVES - {Kind.BROADCAST}
    planned = Counter((str(i.kind), sent(i)) for i in program.ranks[world.rank] if i.kind in kinds)
    # Whether a rank has a request: asked of all ranks beside the step, where losses are added up apart; in no program.
    planned["AR", 4] += strategy.tp > 1
    styles = frozenset(str(shard.style) for shard in strategy.shards)
    return Found(losses=losses, weights=weights, scores=(before, after), planned=planned, done=done, styles=styles)


class _Recorder(TorchDispatchMode):
    """Writes down what torch.distributed is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("c10d.").partition(".")[0]
        if name == "allreduce_":
            self.seen["AR", sum(tensor.nbytes for tensor in args[0])] += 1
        elif name == "_allgather_base_":
            self.seen["AG", args[0].nbytes] += 1
        elif name == "_reduce_scatter_base_":
            self.seen["RS", args[1].nbytes] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[tuple[str, int]]]:
    """The collectives that are begun meanwhile, by kind and bytes as a program counts them."""
    recorder = _Recorder()
    with recorder:
        yield recorder.seen


def _middle(graph: Graph, strategy: Strategy) -> str:
    """The place to cut nearest to the middle that is in no region."""
    place = {op.id: number for number, op in enumerate(graph.ops)}
    spans = [
        sorted(place[name] for name in (*region.columns, *region.inside, *region.rows))
        for region in chosen_regions(graph, strategy)
    ]
    cuts = [cut for cut in graph.split_points if not any(span[0] <= place[cut] < span[-1] for span in spans)]
    return min(cuts, key=lambda cut: abs(place[cut] - len(graph.ops) / 2))


def _job(name: str, model: Any, data: TensorDataset, loss: Any, metric: Any, **options: Any) -> Job:
    return Job(
        name=name,
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
        dataset=lambda: data,
        metric=metric,
        global_batch_size=8,
        precision="fp64",
        clip_norm=0.5,
        **options,
    )


def _tokens() -> TensorDataset:
    drawn = torch.randint(0, SMALL.vocabulary, (24, 9), generator=torch.Generator().manual_seed(3))
    return TensorDataset(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())


def _images(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(
        torch.randn(22, 3, size, size, generator=generator), torch.randint(0, 4, (22,), generator=generator)
    )


def _token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _token_accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(-1) == target).double().mean())


def _class_accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(1) == target).double().mean())


def gpt() -> Job:
    """Fused queries, keys and values; a vocabulary that no number of ranks divides, tied to the head."""

    def model() -> nn.Module:
        return Gpt2(width=16, heads=4, blocks=2, vocabulary=SMALL.vocabulary, length=8, dropout=0.0)

    return _job("gpt", model, _tokens(), _token_loss, _token_accuracy)


def llama() -> Job:
    """Four heads of queries and two of keys and values; gated layers; a head of its own."""
    return _job("llama", lambda: Llama(SMALL), _tokens(), _token_loss, _token_accuracy)


def head_norms() -> Job:
    """Norms of the heads of queries and keys, whose scales every rank has whole."""

    def model() -> nn.Module:
        size = Written("qwen3", width=16, inner=32, layers=2, heads=4, kv_heads=2, words=21, head_norm=True)
        decoder = Decoder(size)
        for block in decoder.blocks:
            block.head_norms = nn.ModuleList(nn.RMSNorm(4) for _ in range(2))
            block.norm1, block.norm2 = nn.RMSNorm(16), nn.RMSNorm(16)
        decoder.norm = nn.RMSNorm(16)
        return decoder

    return _job("head_norms", model, _tokens(), _token_loss, _token_accuracy)


class _Questions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = BertForQuestions(SMALL, dropout=0.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.net(tokens, (tokens > SMALL.vocabulary // 2).long())


def bert() -> Job:
    """Norms behind sums; a head of two scores, which nobody shares."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten() % 2)

    return _job("bert", _Questions, _tokens(), loss, lambda output, target: _token_accuracy(output, target % 2))


def encoder() -> Job:
    """torch's own encoder layer, which is called as one operation."""

    def model() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(SMALL.vocabulary, 16), layer, nn.Linear(16, SMALL.vocabulary))

    return _job("encoder", model, _tokens(), _token_loss, _token_accuracy)


def mlp() -> Job:
    """Two pairs of layers, with activations in place; batches of 8 from 22 samples: the last one of 6."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(48, 32),
            nn.ReLU(inplace=True),
            nn.Linear(32, 32),
            nn.ReLU(inplace=True),
            nn.Linear(32, 16),
            nn.GELU(),
            nn.Linear(16, 4),
        )

    return _job("mlp", model, _images(4), functional.cross_entropy, _class_accuracy)


def one_pair() -> Job:
    """A pair of layers, and behind it what nobody shares."""

    def model() -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4)]
        return nn.Sequential(*layers, nn.Tanh(), nn.LayerNorm(4), nn.Softplus(), nn.LayerNorm(4))

    return _job("one_pair", model, _images(4), functional.cross_entropy, _class_accuracy)


def alexnet() -> Job:
    """Convolutions, then a big classifier; batches of 8 from 22 samples: the last one of 6."""

    def model() -> nn.Module:
        return AlexNet(classes=4, width=0.03125, dropout=0.0)

    return _job("alexnet", model, _images(64), functional.cross_entropy, _class_accuracy)


class _Drawing(nn.Module):
    """Draws of all kinds for features that are split; some tensors lie in memory in another order than their dims."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SMALL.vocabulary, 16)
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)
        self.second, self.last = nn.Linear(16, 24), nn.Linear(24, 16)
        self.drops = nn.ModuleList([nn.Dropout(0.2, inplace=True), nn.Dropout1d(0.2), nn.AlphaDropout(0.1)])
        self.head = nn.Linear(16, SMALL.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embed(tokens)
        inner = self.inner(states)
        for drop in self.drops:
            inner = drop(inner)
        inner = functional.dropout(inner.transpose(0, 1), 0.2, self.training).transpose(0, 1)
        states = states + self.outer(inner * (1 + 0.1 * torch.randn_like(inner)))
        second = functional.dropout1d(self.second(states.transpose(0, 1)).transpose(1, 2), 0.2).transpose(1, 2)
        second = second * torch.empty_like(second).bernoulli_(0.9) + 0.1 * torch.rand_like(second)
        return self.head(functional.dropout(states + self.last(second).transpose(0, 1), 0.1))


def drawing() -> Job:
    """Draws by element and by channel, which is the split dimension or not."""
    return _drawn("drawing", _Drawing)


def _drawn(name: str, model: Any, data: TensorDataset | None = None) -> Job:
    # Functional draws do not end in evaluation mode.
    data = data or _tokens()
    loss = functional.cross_entropy if name == "drawn_alexnet" else _token_loss
    return _job(name, model, data, loss, lambda output, target: 0.0)


def drawn_gpt() -> Job:
    """Dropout of attention and of the stream between regions."""
    return _drawn("drawn_gpt", lambda: Gpt2(width=16, heads=4, blocks=2, vocabulary=21, length=8, dropout=0.2))


class _Attending(nn.Module):
    """Sequences first, as torch's layers have them by default, and heads whose weights could be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SMALL.vocabulary, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2)
        self.second = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.2, batch_first=True, norm_first=True)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, SMALL.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.layer(self.embed(tokens).transpose(0, 1)).transpose(0, 1)
        states = self.second(states)
        return self.head(self.drop(self.attention(states, states, states)[0]))


def attending() -> Job:
    return _drawn("attending", _Attending)


def drawn_alexnet() -> Job:
    return _drawn("drawn_alexnet", lambda: AlexNet(classes=4, width=0.03125, dropout=0.3), _images(64))


class _Channels(nn.Module):
    """No pair of layers: norms read all channels, groups are normalized together, and a layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 7, 3, padding="same"), nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4)
        self.norm, self.group = nn.BatchNorm2d(7), nn.GroupNorm(2, 16)
        self.mixed, self.up = nn.Conv2d(7, 8, 1, bias=False), nn.ConvTranspose2d(16, 6, 2, stride=2)
        self.tables = nn.ConvTranspose2d(6, 6, 1, groups=2)
        self.twice, self.out = nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states = self.mixed(functional.relu(self.norm(self.first(images)), inplace=True)).relu_()
        states = self.tables(self.up(self.group(self.deep(states)))).mean(-1).flatten(1)
        states = self.twice(functional.normalize(self.twice(states), dim=-1))
        return self.out(functional.normalize(states, dim=-1))


def channels() -> Job:
    """Convolutions, of 7 channels one, in groups others, and transposed ones; batches of 8 from 22 samples."""
    return _job("channels", _Channels, _images(4), functional.cross_entropy, _class_accuracy)
