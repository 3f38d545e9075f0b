"""Estimates made by hand: steps in milliseconds, needs in updates, certain unless said otherwise."""

from tests import builders

from trimaran.convergence.types import Need
from trimaran.planner.choice import simplicity
from trimaran.planner.target_estimates import Contender, TargetEstimate, Training, estimate


def contender(
    *, devices: int = 1, batch: int = 64, step_ms: float = 10.0, spread: float = 1.0, hybrid: bool = False
) -> Contender:
    """A strategy whose step is known within a factor."""
    step_s = step_ms * 1e-3
    cases = (step_s / spread, step_s, step_s * spread)
    strategy = builders.strategy(dp=devices // 2, pp=2) if hybrid else builders.strategy(dp=devices)
    return Contender(
        name=f"{'hybrid' if hybrid else 'dp'}{devices}",
        devices=devices,
        global_batch=batch,
        replicas=devices // 2 if hybrid else devices,
        microbatches=1,
        cases=cases,
        peak_bytes=0,
        simplicity=simplicity(strategy),
        is_hybrid=hybrid,
        origin=builders.candidate(strategy, step_s, (cases[0], cases[2])),
    )


def training(updates: float, spread: float = 1.0, *, steps_per_epoch: float = 100.0) -> Training:
    """So many updates, known within a factor."""
    need = Need(amount=updates, low=updates / spread, high=updates * spread, unit="steps", source="measured: 3 runs")
    return Training(updates=need, epochs=need.scaled(1 / steps_per_epoch, "epochs"), steps_per_epoch=steps_per_epoch)


def timed(
    *,
    devices: int = 1,
    batch: int = 64,
    step_ms: float = 10.0,
    updates: float = 1000.0,
    curve: float = 1.0,
    spread: float = 1.0,
    hybrid: bool = False,
) -> TargetEstimate:
    """A strategy with its training."""
    one = contender(devices=devices, batch=batch, step_ms=step_ms, spread=spread, hybrid=hybrid)
    return estimate(one, training(updates, curve))
