"""Seen in the wild: someone outside of autograd holds a storage, so that offloading it copies and frees nothing."""

import torch
from tests.unit.memory_hooks.executing import executing, record
from tests.unit.memory_hooks.plans import plan_of, recipes_of

from trimaran.memory_hooks.accountant import Accountant
from trimaran.program.memory import Decision, MemoryPlan

held: list[torch.Tensor] = []


def step(hold: bool) -> None:
    made = torch.ones(256, 16, requires_grad=True).exp()
    if hold:
        held.append(made.detach())
    loss = made.sin().sum()
    del made
    loss.backward()
    held.clear()


def test_what_someone_outside_holds_is_named_and_not_copied_back() -> None:
    recording = record(lambda: step(False))
    with executing(recording) as executor:
        with executor.hooks():
            step(True)
        done = executor.finish_step()
        (name,) = done.ineffective
        assert "storage" in name
        assert done.to_device_bytes == 0
        with executor.hooks():
            step(False)
        done = executor.finish_step()
        assert done.ineffective == ()
        assert done.to_device_bytes == 4 * 256 * 16


def test_it_is_right_although_the_plan_thought_it_gone() -> None:
    """Recomputing is spared too, and memory does not hold it twice."""
    recording = record(lambda: step(False))
    recipes = recipes_of(recording.trace)
    recording_plan = next(
        storage for storage in recording.trace.movable if storage.number in recipes and storage.nbytes == 4 * 256 * 16
    )
    plan: MemoryPlan = plan_of(recording.trace, {recording_plan.number: Decision.RECOMPUTE}, recipes)
    peaks = []
    for hold in (True, False):
        with executing(recording, plan) as executor:
            with Accountant() as accountant, executor.hooks():
                step(hold)
            assert executor.finish_step().recomputations == (0 if hold else 1)
        peaks.append(accountant.peak_bytes)
    assert peaks[0] <= peaks[1] + 4 * 256 * 16
