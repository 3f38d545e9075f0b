"""Seen in the wild: storages known by their address are taken for each other when the address is used again."""

import torch
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from torch import nn


class Branches(nn.Module):
    """A transposed view, and storages of one size that follow each other at one address."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x @ self.weight).tanh()
            x = x.t() @ x
        return x.sin().sum()


def test_storages_that_follow_each_other_at_one_address_are_told_apart() -> None:
    """Each one is let go at once, so that its memory is used again by the next of the same size."""
    model, x = Branches(), torch.randn(32, 32)
    model(x).backward()
    expected = gradients(model)
    model.zero_grad()
    recording = record(lambda: model(x).backward(), model)
    for recorded in (recording, None):
        with executing(recorded, keep=model.parameters()) as executor:
            for _ in range(2):
                model.zero_grad()
                with executor.hooks():
                    model(x).backward()
                assert same_bits(gradients(model), expected)
                done = executor.finish_step()
                assert done.to_host_bytes > 0
                assert done.mismatches == 0


def test_another_storage_at_the_place_of_a_planned_one_is_no_match() -> None:
    """Two packs of one storage in the recording; in the step they are two storages of the same look."""
    x = torch.randn(64, 8, requires_grad=True)

    def step(apart: bool) -> torch.Tensor:
        made = x.exp()
        again = made.clone() + 1 if apart else made
        (gradient,) = torch.autograd.grad((made.sin() * again.cos()).sum(), x)
        return gradient

    expected = step(True)
    recording = record(lambda: step(False))
    with executing(recording, held=True) as executor:
        with executor.hooks():
            assert torch.equal(step(True), expected)
        assert executor.finish_step().mismatches == 1
