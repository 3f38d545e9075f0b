"""Batches of other sizes, under the plan of one of them and under none: gradients equal those of the plain step.

The networks write storages after autograd has packed parts of them: cells of recurrent layers compute their gates in
one storage, one after the other, and each gate has a version of its own.
"""

import random

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTH = 6


class Recurrent(nn.Module):
    """Over sequences, packed to their lengths or padded."""

    def __init__(self, kind: str, *, packed: bool, **options: object) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True, **options)
        self.packed = packed
        self.out = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if not self.packed:
            return self.out(self.cells(x)[0])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=x.shape[1])[0])


class Cell(nn.Module):
    """A loop over time of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        hidden = memory = x.new_zeros(len(x), WIDTH)
        outputs = []
        for part in x.unbind(1):
            hidden, memory = self.cell(part, (hidden, memory))
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class Convolution(nn.Module):
    """With batch norm, and a rectifier in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        return self.norm(self.conv(x.transpose(1, 2))).relu_().transpose(1, 2)


class InPlace(nn.Module):
    """What is packed is made in place, and written in part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2, inplace=True)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        y = self.linear(x).mul_(0.7).tanh_().exp() * 1.5
        y[:, ::2] = y[:, ::2] * 0.5
        return self.dropout(y.sigmoid() * 2)


class Pieces(nn.Module):
    """Pieces of one storage with versions of their own, written one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        one, other, third = self.linear(x).unsafe_chunk(3, -1)
        return one.sigmoid_() * other.tanh_() + third.exp_().clamp(max=3)


class Written(nn.Module):
    """What is packed is written where its version does not show it; autograd takes what is there in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        y = self.linear(x)
        z = y.square().sin().cos()
        y.data.clamp_(-0.1, 0.1)
        return z


PARTS = {
    "packed LSTM": lambda: Recurrent("LSTM", packed=True, num_layers=2),
    "packed GRU": lambda: Recurrent("GRU", packed=True, bidirectional=True),
    "padded LSTM": lambda: Recurrent("LSTM", packed=False, bidirectional=True),
    "padded GRU": lambda: Recurrent("GRU", packed=False, num_layers=2),
    "LSTM cell": Cell,
    "convolution": Convolution,
    "in place": InPlace,
    "pieces": Pieces,
    "written": Written,
}


class Network(nn.Module):
    """One part after the other."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(PARTS[name]() for name in names)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, lengths)
        return x


def batch(rows: int, length: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(1, length + 1, (rows,))
    lengths[0] = length
    return torch.randn(rows, length, WIDTH), lengths


def step(model: nn.Module, inputs: tuple[Tensor, Tensor], seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    model(*inputs).square().mean().backward()
    return gradients(model)


CASES = [(first, rule) for first in PARTS for rule in (None, OFFLOAD, RECOMPUTE, MIXED)]
SOME = [(first, rule) for first, rule in CASES if rule == MIXED or first in ("packed LSTM", "in place")]


@pytest.mark.parametrize(
    ("first", "rule"),
    [
        pytest.param(
            *case, marks=[] if case[1] == MIXED or case[0] in ("packed LSTM", "in place") else pytest.mark.sweep
        )
        for case in CASES
    ],
)
def test_gradients_are_those_of_the_plain_step(first: str, rule: str | None) -> None:
    draw = random.Random(f"{first} {rule}")
    torch.manual_seed(draw.randrange(1000))
    model = Network(first, draw.choice(list(PARTS)))
    planned = batch(6, 7)
    recording = None if rule is None else record(lambda: model(*planned).square().mean().backward(), model)
    with executing(recording, rule=rule or OFFLOAD, delay=random_delays(1), keep=model.parameters()) as executor:
        for seed, (rows, length) in enumerate([(6, 7), (6, 4), (3, 7), (2, 1), (8, 9), (6, 7)]):
            inputs = batch(rows, length)
            expected = step(model, inputs, seed)
            executor.begin_forward(verify=(rows, length) == (6, 7))
            with executor.hooks():
                seen = step(model, inputs, seed)
            assert same_bits(seen, expected), (rows, length)


def test_what_is_needed_is_copied_when_nobody_else_holds_it() -> None:
    """Two gates of one storage: it goes to the host once, with both."""
    x = torch.randn(64, 32, requires_grad=True)

    def run() -> Tensor:
        x.grad = None
        one, other = x.exp().unsafe_chunk(2)
        one.sigmoid_()
        other.tanh_()
        both = one * other
        del one, other
        both.sin().sum().backward()
        assert x.grad is not None
        return x.grad

    expected = run()
    with executing(None) as executor, executor.hooks():
        assert torch.equal(run(), expected)
        done = executor.finish_step()
    assert done.to_host_bytes == done.to_device_bytes > 0
