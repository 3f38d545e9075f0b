"""Optimizer state on the host: the same parameters, bit for bit, with little of the state on the device at a time."""

import copy
import random
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.memory_hooks.executing import SlowEngine
from torch import nn

from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import HostEngine
from trimaran.memory_hooks.optimizer_state import stream_optimizer_state

STEPS = 5
BUCKET_BYTES = 2048

Make = Callable[[Any], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adam, lr a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


class CountsSteps(torch.optim.SGD):
    """Keeps a counter for a whole group."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] = group["lr"] * 0.9
        return super().step(closure)


class TakesNorm(torch.optim.SGD):
    """Scales by the norm of all gradients."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.stack([grad.norm() for grad in grads]).norm()
            for grad in grads:
                grad.div_(norm)
        return super().step(closure)


class HoldsAnother(torch.optim.SGD):
    """Wraps an optimizer."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        params = list(params)
        super().__init__(params, lr=lr)
        self.inner = torch.optim.Adam(params)


@pytest.fixture
def engine() -> Iterator[HostEngine]:
    """Copies that take a while, each another one."""
    draw = random.Random(0)
    engine = SlowEngine(lambda _: time.sleep(draw.random() * 2e-4))
    yield engine
    engine.close()


@pytest.fixture
def arena() -> Iterator[HostArena]:
    with HostArena(1 << 20) as arena:
        yield arena


def network() -> nn.Module:
    torch.manual_seed(0)
    unused = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    model.add_module("unused", nn.Identity())
    model.extra = unused  # never has a gradient
    model.forward = lambda x: model[4](model[3](model[2](model[1](model[0](x)))))  # type: ignore[method-assign]
    return model


def train(
    make: Make, stream: Callable[[torch.optim.Optimizer], Any] | None, *, groups: bool = False
) -> tuple[list[torch.Tensor], torch.optim.Optimizer, Any]:
    model = network()
    parameters: Any = model.parameters()
    if groups:
        parameters = [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.05},
        ]
    optimizer = make(parameters)
    handle = stream(optimizer) if stream is not None else None
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], optimizer, handle


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("groups", [False, True])
def test_parameters_and_state_equal_the_plain_optimizers(
    name: str, groups: bool, engine: HostEngine, arena: HostArena
) -> None:
    plain, optimizer, _ = train(MAKERS[name], None, groups=groups)

    def stream(streamed: torch.optim.Optimizer) -> Any:
        return stream_optimizer_state(streamed, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)

    found, streamed, handle = train(MAKERS[name], stream, groups=groups)
    assert equal(found, plain)
    assert equal(streamed.state_dict(), optimizer.state_dict())
    handle.close()
    assert equal(streamed.state_dict(), optimizer.state_dict())
    assert arena.use().used_bytes == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (torch.optim.LBFGS, "host-state.cannot-narrow"),
        (torch.optim.SparseAdam, "host-state.partial-update-fails"),
        (CountsSteps, "host-state.partial-update-differs"),
        (TakesNorm, "host-state.partial-update-differs"),
        (HoldsAnother, "host-state.cannot-narrow"),
    ],
)
def test_what_does_not_treat_parameters_one_by_one_is_refused(
    kind: Any, code: str, engine: HostEngine, arena: HostArena
) -> None:
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())
    optimizer = kind(model.parameters())
    with raises(code):
        stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)
    assert equal(dict(model.state_dict()), dict(before))
    assert "step" not in vars(optimizer)


def test_at_most_three_buckets_are_on_the_device(engine: HostEngine, arena: HostArena) -> None:
    """Adam has 2 bytes of state for one of a parameter: the state of 16 parameters of 1 KiB is 32 KiB.

    Buckets of 4 KiB are two parameters each; the probe counts what the engine has allocated and is still alive.
    """
    parameters = [nn.Parameter(torch.ones(256)) for _ in range(16)]
    optimizer = torch.optim.Adam(parameters)
    alive, peak = _count_allocations(engine)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=4096) as handle:
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            assert sum(alive.values()) == 0
        assert handle.host_bytes == 32 * 1024
        assert 4096 < max(peak) <= 3 * 4096  # closing brings all of it back


def _count_allocations(engine: HostEngine) -> tuple[dict[int, int], list[int]]:
    alive: dict[int, int] = {}
    peak: list[int] = []
    allocate = engine.allocate

    def counted(nbytes: int) -> torch.UntypedStorage:
        storage = allocate(nbytes)
        number = len(peak)
        alive[number] = nbytes
        weakref.finalize(storage, alive.pop, number)
        peak.append(sum(alive.values()))
        return storage

    engine.allocate = counted  # type: ignore[method-assign]
    return alive, peak


def test_existing_state_moves_and_comes_back(engine: HostEngine, arena: HostArena) -> None:
    _, optimizer, _ = train(MAKERS["adam"], None)
    before = copy.deepcopy(optimizer.state_dict())
    handle = stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)
    assert handle.host_bytes > 0
    assert equal(optimizer.state_dict(), before)
    handle.close()
    handle.close()
    assert handle.host_bytes == 0
    assert equal(optimizer.state_dict(), before)


def test_a_state_dict_does_not_change_with_the_next_step(engine: HostEngine, arena: HostArena) -> None:
    parameter = nn.Parameter(torch.ones(300))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.5)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES):
        parameter.grad = torch.ones(300)
        optimizer.step()
        saved = optimizer.state_dict()["state"][0]["momentum_buffer"]
        optimizer.step()
        assert saved[0] == 1.0
        assert optimizer.state_dict()["state"][0]["momentum_buffer"][0] == 1.5


def test_loaded_state_is_used(engine: HostEngine, arena: HostArena) -> None:
    """Of two optimizers with the same state, one streamed, the next step gives the same parameters."""
    _, source, _ = train(MAKERS["adamw"], None)
    plain, streamed = (MAKERS["adamw"](network().parameters()) for _ in range(2))
    with stream_optimizer_state(streamed, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES) as handle:
        for optimizer in (plain, streamed):
            optimizer.load_state_dict(copy.deepcopy(source.state_dict()))
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.full_like(parameter, 0.5)
            optimizer.step()
        assert handle.host_bytes > 0
        assert equal(plain.param_groups, streamed.param_groups)


@pytest.mark.parametrize("first", ["scheduler", "stream"])
def test_schedulers_see_no_difference(first: str, engine: HostEngine, arena: HostArena) -> None:
    """Warnings are errors here: a scheduler warns when it does not see the optimizer's steps."""
    rates, results = [], []
    for streams in (False, True):
        parameter = nn.Parameter(torch.ones(300))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

        def stream(optimizer: torch.optim.Optimizer = optimizer, streams: bool = streams) -> None:
            if streams:
                stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)

        if first == "stream":
            stream()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        if first == "scheduler":
            stream()
        for _ in range(3):
            parameter.grad = torch.ones(300)
            optimizer.step()
            scheduler.step()
        rates.append(scheduler.get_last_lr())
        results.append(parameter.detach())
    assert rates[0] == rates[1]
    assert equal(results[0], results[1])


def test_a_gradient_scaler_sees_no_difference(engine: HostEngine, arena: HostArena) -> None:
    """The second of four gradients is infinite: that step is skipped."""
    results = []
    for streams in (False, True):
        parameter = nn.Parameter(torch.ones(300))
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        if streams:
            stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), 2.0, 3.0):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append([parameter.detach(), scaler.get_scale(), optimizer.state_dict()])
    assert equal(results[0], results[1])


def test_hooks_run_once_a_step_and_a_closure_once(engine: HostEngine, arena: HostArena) -> None:
    parameters = [nn.Parameter(torch.ones(1024)) for _ in range(4)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> torch.Tensor:
        calls.append("closure")
        optimizer.zero_grad()
        loss = sum(parameter.square().sum() for parameter in parameters)
        loss.backward()  # type: ignore[union-attr]
        return loss  # type: ignore[return-value]

    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES):
        loss = optimizer.step(closure)  # type: ignore[arg-type]
    assert calls == ["before", "closure", "after"]
    assert float(loss.detach()) == 4096.0  # type: ignore[union-attr]
    assert float(parameters[3][0].detach()) == pytest.approx(0.8)  # 1 - 0.1 * 2


def test_a_step_that_fails_leaves_everything_in_its_place(engine: HostEngine, arena: HostArena) -> None:
    parameters = [nn.Parameter(torch.ones(1024)) for _ in range(4)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES):
        optimizer.step()
        optimizer.param_groups[0]["momentum"] = "much"
        with pytest.raises(TypeError):
            optimizer.step()
        assert len(optimizer.param_groups[0]["params"]) == 4
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.step()
    momenta = [float(state["momentum_buffer"][0]) for state in optimizer.state.values()]
    assert momenta == [pytest.approx(1.9)] * 4


def test_parameters_added_later_are_updated(engine: HostEngine, arena: HostArena) -> None:
    first, second = (nn.Parameter(torch.ones(512)) for _ in range(2))
    optimizer = torch.optim.Adam([first], lr=0.1)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES) as handle:
        optimizer.add_param_group({"params": [second]})
        for parameter in (first, second):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert handle.host_bytes == 2 * 2 * 512 * 4
    assert float(second[0].detach()) == pytest.approx(0.9)


def test_state_that_the_user_threw_away_is_not_brought_back(engine: HostEngine, arena: HostArena) -> None:
    parameter = nn.Parameter(torch.zeros(512))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
    handle = stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)
    for _ in range(2):
        optimizer.state.clear()
        parameter.grad = torch.ones(512)
        optimizer.step()
    assert float(parameter[0].detach()) == -2.0
    optimizer.state.clear()
    handle.close()
    assert not optimizer.state
    assert arena.use().used_bytes == 0


def test_a_replaced_step_is_refused(engine: HostEngine, arena: HostArena) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1)
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign,assignment]
    with raises("host-state.step-replaced"):
        stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES)


def test_buckets_need_a_size(engine: HostEngine, arena: HostArena) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1)
    with raises("host-state.empty-buckets", nbytes=0):
        stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=0)


def test_a_trial_leaves_the_generators_as_they_were_and_seeds_no_gpu(
    engine: HostEngine, arena: HostArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.manual_seed` would seed every GPU for good, also one that is not in use yet."""
    seeded: list[int] = []
    optimizer = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    with stream_optimizer_state(optimizer, engine=engine, arena=arena, bucket_bytes=BUCKET_BYTES):
        assert torch.equal(torch.get_rng_state(), before)
    assert not seeded
