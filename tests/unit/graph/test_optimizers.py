"""What an optimizer does with its parameters, found out by trying it."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import builders, zoo
from tests.field.seldom import FindsRate
from tests.raising import raises
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from trimaran.base.job import Job
from trimaran.graph.optimizers import Trained, make_schedule, optimizer_traits, trained_parameters
from trimaran.program.refusals import update_obstacle


class Normed(torch.optim.Optimizer):
    """The gradient of each parameter over its norm."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= parameter.grad / parameter.grad.norm()


class OneNorm(torch.optim.SGD):
    """Clips by the norm over all its parameters, which is seldom so large."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 1e4)
        super().step(closure)


class Skipping(torch.optim.SGD):
    """Leaves out a step whose norm, over all its parameters, is above the mean of those before."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        norm = sum(float(one.grad.norm()) for group in self.param_groups for one in group["params"])
        seen = self.param_groups[0].setdefault("seen", norm)
        self.param_groups[0]["seen"] = 0.9 * seen + 0.1 * norm
        if norm <= 1.001 * seen:
            super().step(closure)


class Keeping(torch.optim.SGD):
    """Keeps half of each gradient for the next step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.param_groups[0]["params"]:
            one.grad.mul_(0.5)


class Wrapped(torch.optim.Optimizer):
    """Shares what another optimizer has, and does not call `__init__` of its class."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self.wrapped = wrapped
        self.param_groups, self.state, self.defaults = wrapped.param_groups, wrapped.state, wrapped.defaults

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.wrapped.step()


class Sharp(torch.optim.SGD):
    """Wants a closure, as its signature does not say."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None
        closure()
        super().step()


class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter += torch.randn_like(parameter)


def gpt(optimizer: Callable[[Any], Any], **fields: Any) -> Job:
    return dataclasses.replace(zoo.gpt(), optimizer=optimizer, **fields)


MODEL = zoo.gpt().model()


@pytest.mark.parametrize(
    "kind",
    ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"],
)
def test_optimizers_of_torch_that_treat_every_element_by_itself_are_found(kind: str) -> None:
    traits = optimizer_traits(gpt(getattr(torch.optim, kind)), MODEL)
    assert (traits.class_name, traits.separable, traits.elementwise, traits.reason) == (kind, True, True, "")


@pytest.mark.parametrize("kind", [Normed, torch.optim.Adafactor])
def test_what_needs_whole_parameters_is_found(kind: Any) -> None:
    traits = optimizer_traits(gpt(kind), MODEL)
    assert (traits.separable, traits.elementwise) == (True, False)


class Centred(torch.optim.SGD):
    """Gradients of each row less their mean: rows may be on other ranks, columns may not."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim > 1:
                parameter.grad -= parameter.grad.mean(dim=1, keepdim=True)
        super().step(closure)


def test_what_needs_whole_rows_is_found() -> None:
    traits = optimizer_traits(gpt(lambda parameters: Centred(parameters, lr=0.1)), MODEL)
    assert (traits.separable, traits.elementwise) == (True, False)
    assert "updated differently in parts" in traits.reason


def test_what_looks_across_parameters_is_found() -> None:
    traits = optimizer_traits(gpt(lambda parameters: OneNorm(parameters, lr=0.1)), MODEL)
    assert (traits.separable, traits.elementwise) == (False, False)
    assert "differently alone" in traits.reason


def test_a_step_that_is_left_out_by_a_norm_of_all_looks_across_parameters() -> None:
    job = gpt(lambda parameters: Skipping(parameters, lr=0.1))
    traits = optimizer_traits(job, job.model())
    assert not traits.separable
    assert "differently alone than with others" in traits.reason


class Late(torch.optim.SGD):
    """Clips by the norm of all, or of each parameter, once it has seen 25 of them; it may need large ones."""

    def __init__(self, parameters: Any, *, of_all: bool, needs: int) -> None:
        super().__init__(parameters, lr=0.1)
        self.of_all, self.seen, self.needs = of_all, 0, needs

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen += 1
        parameters = self.param_groups[0]["params"]
        assert all(one.numel() >= self.needs for one in parameters if one.ndim > 1)
        for some in ([parameters] if self.of_all else [[one] for one in parameters]) if self.seen > 25 else ():
            torch.nn.utils.clip_grad_norm_(some, 0.1)
        super().step(closure)


@pytest.mark.parametrize("needs", [0, 100])
@pytest.mark.parametrize("of_all", [True, False])
def test_what_looks_at_norms_after_a_warm_up_is_found(of_all: bool, needs: int) -> None:
    traits = optimizer_traits(gpt(lambda parameters: Late(parameters, of_all=of_all, needs=needs)), MODEL)
    assert (traits.separable, traits.elementwise) == (not of_all, False)


def test_a_rate_that_is_found_for_all_parameters_is_seen_to_look_across_them() -> None:
    traits = optimizer_traits(gpt(FindsRate), MODEL)
    assert (traits.separable, traits.elementwise) == (False, False)
    assert "differently alone" in traits.reason


def test_a_wrapper_that_does_not_call_the_init_of_its_class_is_tried() -> None:
    job = gpt(lambda parameters: Wrapped(torch.optim.SGD(parameters, lr=0.1)))
    traits = optimizer_traits(job, job.model())
    assert traits.separable
    assert traits.elementwise
    assert not traits.hooked


def test_options_that_depend_on_what_else_is_given_are_found() -> None:
    """Rates that grow with the place of a parameter among those that were given."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [one], "lr": 0.1 * n / len(parameters)} for n, one in enumerate(parameters)])

    traits = optimizer_traits(gpt(make), MODEL)
    assert not traits.separable
    assert "options" in traits.reason


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Sharp])
def test_a_closure_is_found_by_the_signature_or_by_trying(kind: Any) -> None:
    assert optimizer_traits(gpt(kind), MODEL).needs_closure


def test_gradients_that_are_kept_after_an_update_are_refused() -> None:
    traits = optimizer_traits(gpt(lambda parameters: Keeping(parameters, lr=0.1)), MODEL)
    assert traits.keeps_gradients
    assert "zero_grad of Keeping" in update_obstacle(builders.strategy(), traits)
    assert not optimizer_traits(gpt(lambda parameters: torch.optim.SGD(parameters, lr=0.1)), MODEL).keeps_gradients


def test_random_numbers_hooks_and_what_is_left_out_are_found() -> None:
    fired = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = Noisy([one for name, one in parameters.named_parameters() if name != "position"], lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: fired.append(1))
        return optimizer

    before = torch.random.get_rng_state()
    traits = optimizer_traits(gpt(make), MODEL)
    assert (traits.draws, traits.hooked, traits.missing, fired) == (True, True, ("position",), [])
    assert torch.equal(before, torch.random.get_rng_state())


def test_parameters_that_were_not_given_are_named_and_never_stepped() -> None:
    scale = nn.Parameter(torch.ones(2))
    before = [one.clone() for one in MODEL.parameters()]
    own = optimizer_traits(gpt(lambda parameters: torch.optim.SGD(MODEL.parameters(), lr=0.1)), MODEL)
    assert own.extra == tuple(name for name, _ in MODEL.named_parameters())
    assert own.foreign == ()
    other = optimizer_traits(gpt(lambda parameters: torch.optim.SGD([*parameters, scale], lr=0.1)), MODEL)
    assert other.extra == other.foreign == ("a tensor of shape (2,)",)
    assert all(torch.equal(*pair) for pair in zip(before, MODEL.parameters(), strict=True))


def test_a_model_that_a_step_knows_is_found_and_never_written_to() -> None:
    model = MODEL

    class Follows(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for one in model.parameters():
                one.add_(1.0)

    class FollowsGlobal(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for one in MODEL.parameters():
                one.add_(1.0)

    before = [one.detach().clone() for one in MODEL.parameters()]
    known = optimizer_traits(gpt(lambda parameters: Follows(parameters, lr=0.1)), MODEL)
    in_global = optimizer_traits(gpt(lambda parameters: FollowsGlobal(parameters, lr=0.1)), MODEL)
    assert all(torch.equal(*pair) for pair in zip(before, MODEL.parameters(), strict=True))
    assert "the model" in known.extra
    assert "that it was not given" in update_obstacle(builders.strategy(dp=2, zero=1), known)
    assert "it could not be tried" in update_obstacle(builders.strategy(dp=2, zero=1), in_global)


def test_every_parameter_is_given_once_with_its_first_name() -> None:
    """The output layer of this network is its embedding."""
    trained = trained_parameters(MODEL)
    names = [name for name, _ in trained.named_parameters()]
    assert names == [name for name, _ in MODEL.named_parameters()]
    assert "head.weight" not in names
    assert len(trained) == len(list(trained)) == len(names)
    assert torch.optim.AdamW(trained.named_parameters()).state_dict()["param_groups"][0]["param_names"] == names
    assert [name for name, _ in trained[1:3].named_parameters()] == names[1:3]


def test_what_a_job_makes_instead_of_an_optimizer_or_a_schedule_is_named() -> None:
    with raises("optimizer.not-an-optimizer", match=r"\b1\b", type="list"):
        optimizer_traits(gpt(lambda parameters: [torch.optim.SGD(parameters, lr=0.1)]), MODEL)
    with raises("optimizer.cannot-make", match="KeyError.*'nothing'"):
        optimizer_traits(gpt(lambda parameters: dict(parameters.named_parameters())["nothing"]), MODEL)
    optimizer = torch.optim.SGD(Trained(MODEL.named_parameters()), lr=0.1)

    class Odd:
        def step(self, epoch: int) -> None: ...

    with raises("schedule.step-takes-epoch", match="Job.lr_schedule"):
        make_schedule(gpt(torch.optim.SGD, lr_schedule=lambda optimizer: Odd()), optimizer)


def test_a_schedule_that_follows_a_metric_is_told_from_one_that_follows_updates() -> None:
    schedules = (lambda one: ReduceLROnPlateau(one, mode="max"), lambda one: LambdaLR(one, lambda update: 1.0))
    found = [optimizer_traits(gpt(torch.optim.SGD, lr_schedule=one), MODEL).needs_metric for one in schedules]
    assert found == [True, False]


def test_a_schedule_by_the_largest_loss_is_refused_where_nothing_is_scored() -> None:
    """It would lower the rate as long as the loss falls."""
    optimizer = torch.optim.SGD(Trained(MODEL.named_parameters()), lr=0.1)
    job = gpt(torch.optim.SGD, lr_schedule=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max"))
    assert make_schedule(dataclasses.replace(job, evaluation_dataset=job.dataset, metric=accuracy), optimizer)
    with raises("schedule.max-of-loss", match="mean loss"):
        make_schedule(dataclasses.replace(job, metric=None), optimizer)


def test_a_schedule_by_the_least_metric_is_refused() -> None:
    """The default of torch: it lowered the rate as long as the accuracy rose, without a word."""
    optimizer = torch.optim.SGD(Trained(MODEL.named_parameters()), lr=0.1)
    job = gpt(torch.optim.SGD, lr_schedule=ReduceLROnPlateau)
    assert make_schedule(dataclasses.replace(job, metric=None), optimizer)
    with raises("schedule.min-of-metric", match="higher is better"):
        make_schedule(dataclasses.replace(job, evaluation_dataset=job.dataset, metric=accuracy), optimizer)


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(-1) == target).double().mean())


class ByWhat:
    """A rate by a figure of what its optimizer has, which it keeps from 0."""

    def __init__(self, optimizer: Any, figure: Callable[[Any], float]) -> None:
        self.optimizer, self.figure = optimizer, figure

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.figure(self.optimizer))


def held(optimizer: Any) -> Any:
    return [one for group in optimizer.param_groups for one in group["params"]]


COUNTED = [0]


@pytest.mark.parametrize(
    ("figure", "shared", "draws"),
    [
        (lambda made: sum(float(one.detach().norm()) for one in held(made)), False, False),
        (lambda made: sum(float(one["momentum_buffer"].sum()) for one in made.state.values()), False, False),
        (lambda made: len(held(made)), False, False),
        (lambda made: float(held(made)[7].detach().norm()), False, False),
        (lambda made: abs(float(held(made)[0].detach()[9, 5])), False, False),
        (lambda made: sum(float(one.grad.norm()) for one in held(made) if one.grad is not None), False, False),
        (lambda made: COUNTED.__setitem__(0, COUNTED[0] + 1) or COUNTED[0], True, False),
        (lambda made: random.random(), True, True),
        (lambda made: time.perf_counter(), True, True),
    ],
)  # fmt: skip
def test_what_a_schedule_reads_of_its_optimizer_is_found(figure: Any, shared: bool, draws: bool) -> None:
    job = gpt(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
              lr_schedule=lambda optimizer: ByWhat(optimizer, figure))  # fmt: skip
    traits = optimizer_traits(job, MODEL)
    assert (traits.separable, traits.schedule_draws) == (shared, draws)
    # Where it fails on some of the parameters, more is not known.
    assert traits.schedule_reads == ("options of" in traits.reason)
    for zero in (1, 3) if traits.schedule_reads or shared else (1,):
        assert (update_obstacle(builders.strategy(dp=2, zero=zero), traits) == "") == (shared and not draws)
    assert (update_obstacle(builders.strategy(dp=2), traits) == "") == (not draws)
    assert update_obstacle(builders.strategy(), traits) == ""


class Ratio(torch.optim.SGD):
    """The step of each tensor by the ratio of its norm and that of its gradient (LARS)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in held(self):
            one.sub_(one.grad * (0.1 * one.norm() / one.grad.norm()))


class Preconditioned(torch.optim.SGD):
    """Matrices by the roots of sums of outer products, from the twentieth step on (Shampoo)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in (one for one in held(self) if one.ndim == 2):
            state = self.state[one]
            state["count"] = state.get("count", 0) + 1
            state["left"] = state.get("left", 0) + one.grad @ one.grad.T
            if state["count"] >= 20:
                values, vectors = torch.linalg.eigh(state["left"])
                one.grad = vectors @ torch.diag(values.clamp(min=1e-6) ** -0.5) @ vectors.T @ one.grad
        super().step(closure)


class Slow(torch.optim.SGD):
    """Every fifth step goes to a mean with slow copies, which lie in the state, or in an attribute (Lookahead)."""

    def __init__(self, parameters: Any, *, in_state: bool) -> None:
        super().__init__(parameters, lr=0.1)
        self.slow: dict[Any, Any] | None = None if in_state else {one: one.detach().clone() for one in held(self)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        group = self.param_groups[0]
        group["count"] = group.get("count", 0) + 1
        for one in held(self):
            slow = self.state[one].setdefault("slow", one.clone()) if self.slow is None else self.slow[one]
            if group["count"] % 5 == 0:
                one.copy_(slow.lerp_(one, 0.5))


class Averaged(torch.optim.SGD):
    """A running mean of iterates, whose weight is counted by the group (schedule-free)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        group["count"] = group.get("count", 0) + 1
        for one in held(self):
            fast = self.state[one].setdefault("fast", one.clone())
            one.lerp_(fast.sub_(one.grad, alpha=0.1), 1 / group["count"])


class Blocks(torch.optim.SGD):
    """Of large tensors the gradient is rounded to 8 bits, by the largest of each 100 elements."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in (one for one in held(self) if one.numel() >= 1000):
            for block in one.grad.view(-1).split(100):
                scale = block.abs().max() / 127
                block.div_(scale).round_().mul_(scale)
        super().step(closure)


@pytest.mark.parametrize(
    ("make", "separable", "elementwise", "resumes"),
    [
        (lambda p: Ratio(p, lr=0.1), True, False, True),
        (lambda p: Preconditioned(p, lr=0.1), True, False, True),
        (lambda p: torch.optim.Muon([one for one in p if one.ndim == 2]), True, False, True),
        (lambda p: OneNorm(p, lr=0.1), False, False, True),
        (lambda p: Slow(p, in_state=True), True, True, True),
        (lambda p: Slow(p, in_state=False), True, True, False),
        (lambda p: Averaged(p, lr=0.1), True, True, True),
        (lambda p: Blocks(p, lr=0.1), True, False, True),
        (torch.optim.Adafactor, True, False, True),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), True, True, True),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_one_trial_says_what_an_optimizer_may_be_given_and_whether_it_goes_on(
    make: Any, separable: bool, elementwise: bool, resumes: bool, warm: bool
) -> None:
    """Also under a schedule whose rate is nothing in every step of the trial."""
    schedule = (lambda optimizer: LambdaLR(optimizer, lambda step: float(step > 99))) if warm else None
    traits = optimizer_traits(gpt(make, lr_schedule=schedule), MODEL)
    assert (traits.separable, traits.elementwise) == (separable, elementwise)
    assert (traits.forgets == "") == resumes


def test_what_is_kept_of_small_tensors_is_told() -> None:
    traits = optimizer_traits(gpt(torch.optim.AdamW), MODEL)
    for shape, state in traits.kept.values():
        assert {key: (one.is_meta, one.shape) for key, one in state.items()} == {
            "step": (True, ()), "exp_avg": (True, shape), "exp_avg_sq": (True, shape)
        }  # fmt: skip


def test_strategies_are_refused_by_what_was_found() -> None:
    across = optimizer_traits(gpt(lambda parameters: OneNorm(parameters, lr=0.1)), MODEL)
    whole = optimizer_traits(gpt(Normed), MODEL)
    assert not update_obstacle(builders.strategy(dp=2), across)
    assert "cannot be split" in update_obstacle(builders.strategy(pp=2), across)
    assert not update_obstacle(builders.strategy(pp=2), whole)
    assert "needs whole parameters" in update_obstacle(builders.strategy(tp=2), whole)
