"""Seen in the wild: what keeps one step's state breaks when a graph is walked twice, or when several are alive."""

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, random_delays, record, same_bits
from tests.unit.memory_hooks.plans import MIXED, OFFLOAD, RECOMPUTE
from torch import nn

from trimaran.graph.trace.calls import Recording

RULES = [OFFLOAD, RECOMPUTE, MIXED]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Tanh())]
    return nn.Sequential(*layers)


def batch(seed: int) -> torch.Tensor:
    return torch.randn(16, 24, generator=torch.Generator().manual_seed(seed))


def recorded(model: nn.Module) -> Recording:
    recording = record(lambda: model(batch(0)).square().sum().backward(), model)
    model.zero_grad()
    return recording


@pytest.mark.parametrize("rule", RULES)
def test_a_graph_that_is_retained_can_be_walked_three_times(rule: str) -> None:
    model = network()
    recording = recorded(model)
    loss = model(batch(1)).square().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
    expected = gradients(model)
    model.zero_grad()
    with executing(recording, rule=rule, delay=random_delays(1)) as executor:
        with executor.hooks():
            loss = model(batch(1)).square().sum()
            for _ in range(3):
                loss.backward(retain_graph=True)
        del loss
        assert same_bits(gradients(model), expected)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_gradients(rule: str) -> None:
    model = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Sigmoid())
    recording = recorded(model)

    def penalty() -> None:
        x = batch(2).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    penalty()
    expected = gradients(model)
    model.zero_grad()
    with executing(recording, rule=rule, delay=random_delays(2)) as executor:
        with executor.hooks():
            penalty()
        assert same_bits(gradients(model), expected)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("named", [False, True], ids=["flights_begin_by_themselves", "flights_are_begun"])
def test_one_forward_one_backward_in_turn(named: bool, rule: str) -> None:
    """As in a pipeline two graphs are alive at a time, and the planned order holds in each."""
    model = network().eval()
    recording = recorded(model)

    def forward(index: int) -> torch.Tensor:
        return model(batch(index)).square().sum()

    def run(begin) -> None:  # type: ignore[no-untyped-def]
        alive = {}
        for token in ("F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"):
            index = int(token[1])
            if token[0] == "F":
                begin(index)
                alive[index] = forward(index)
            else:
                alive.pop(index).backward()

    run(lambda _: None)
    expected = gradients(model)
    model.zero_grad()
    with executing(recording, rule=rule, delay=random_delays(3)) as executor:
        with executor.hooks():
            run(lambda _: executor.begin_forward() if named else lambda _: None)
        done = executor.finish_step()
        assert same_bits(gradients(model), expected)
        assert (done.mismatches, done.on_demand) == (0, 0)
        assert done.forward_passes >= 3


@pytest.mark.parametrize("rule", RULES)
def test_gradients_add_up_over_microbatches(rule: str) -> None:
    model = network().eval()
    recording = recorded(model)
    for index in range(3):
        model(batch(index)).square().sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(recording, rule=rule) as executor:
        with executor.hooks():
            for index in range(3):
                model(batch(index)).square().sum().backward()
        assert same_bits(gradients(model), expected)
        done = executor.finish_step()
        assert (done.mismatches, done.on_demand, done.forward_passes) == (0, 0, 2)


@pytest.mark.parametrize("rule", RULES)
def test_only_a_part_of_the_graph_is_walked_then_the_rest(rule: str) -> None:
    """The unpacks come in another order than planned: right, on demand."""
    model = network().eval()
    x = batch(0)

    def both() -> None:
        half = model[:8](x)
        loss = model[8:](half).square().sum()
        inner = half.sin().sum()
        inner.backward(retain_graph=True)
        loss.backward()

    def in_one() -> None:
        half = model[:8](x)
        loss = model[8:](half).square().sum()
        (loss + half.sin().sum()).backward()

    both()
    expected = gradients(model)
    model.zero_grad()
    recording = record(in_one, model)
    model.zero_grad()
    with executing(recording, rule=rule, delay=random_delays(4)) as executor:
        with executor.hooks():
            both()
        assert same_bits(gradients(model), expected)
