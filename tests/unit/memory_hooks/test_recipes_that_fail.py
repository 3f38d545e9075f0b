"""A recipe that does not give the same bits is found in the verified step, whose gradients are right all the same."""

from collections.abc import Mapping

import pytest
import torch
from tests import builders
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from tests.unit.memory_hooks.plans import RECOMPUTE, plan_by_rule
from torch import nn

from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import HostEngine
from trimaran.memory_hooks.recompute import repeat
from trimaran.memory_hooks.recompute_check import differs
from trimaran.program.memory import RecomputeRecipe


def test_a_recipe_that_is_off_by_one_bit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)),
        torch.randn(64, 32),
    )

    def step() -> None:
        model.zero_grad()
        model(x).square().sum().backward()

    step()
    expected = gradients(model)
    recording = record(step, model)
    plan = plan_by_rule(recording.trace, RECOMPUTE)
    bad = plan.moved[-1]

    def off_by_a_bit(
        recipe: RecomputeRecipe, sources: Mapping[int, torch.UntypedStorage]
    ) -> Mapping[int, torch.UntypedStorage]:
        made = repeat(recording, recipe, sources)
        if recipe.storage == bad:
            made[bad][5] ^= 1
        return made

    with monkeypatch.context() as patched, executing(recording, plan) as executor:
        patched.setattr(executor._residence, "_repeat", off_by_a_bit)
        executor.begin_forward(verify=True)
        with executor.hooks():
            step()
        assert executor.finish_step().failed_recipes == (bad,)
        assert same_bits(gradients(model), expected)
    with executing(recording, plan) as executor:
        executor.begin_forward(verify=True)
        with executor.hooks():
            step()
        assert executor.finish_step().failed_recipes == ()


@pytest.mark.parametrize(("place", "expected"), [(0, True), (100, True), (None, False)])
def test_bytes_are_compared_in_chunks(place: int | None, expected: bool) -> None:
    """160 bytes in chunks of 64: a difference in the first or the second chunk is found."""
    real = torch.arange(40.0)
    made = real.clone()
    with HostArena(4096) as arena:
        engine = HostEngine()
        slot = arena.allocate(160)
        engine.save(real.untyped_storage(), slot).wait()
        if place is not None:
            made.view(torch.uint8)[place] ^= 1
        view = builders.view(shape=(40,))
        assert differs(made.untyped_storage(), slot, 0, [view], chunk_bytes=64) is expected
        engine.close()


def test_bytes_between_the_views_may_differ_and_nans_are_equal() -> None:
    real = torch.arange(40.0)
    real[4] = float("nan")
    made = real.clone()
    made[1::2] = -1.0
    even = builders.view(shape=(20,), stride=(2,))
    all_of_them = builders.view(shape=(40,))
    with HostArena(4096) as arena:
        engine = HostEngine()
        slot = arena.allocate(160)
        engine.save(real.untyped_storage(), slot).wait()
        assert not differs(made.untyped_storage(), slot, 0, [even])
        assert differs(made.untyped_storage(), slot, 0, [even, all_of_them])
        engine.close()
