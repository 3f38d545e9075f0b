"""Do ranks of a script train the model of one process? Programs of `benchmarks/wrongbench`, run for real."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import trimaran
from trimaran.cli import app
from trimaran.rehearsal.real.one_process import TensorLayout, differ, joined, put_together, told
from trimaran.rehearsal.real.watch import TensorShare, Unmatched, named_weights, paths_of_all

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "wrongbench" / "programs"

PAIRS = {
    "ddp_module_call": ("another one on each rank", None),
    "loss_all_reduced": ("× that of one process", 2.0),
    "fsdp_ignored": ("another one on each rank", None),
    "sampler_seed": ("samples that another one reads too", None),
}
"""By program of two ranks: what is said of the wrong one, and its factor."""


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_is_found_where_it_is_and_its_right_twin_is_not_called_wrong(name: str) -> None:
    said, factor = PAIRS[name]
    wrong = trimaran.verify(PROGRAMS / f"{name}.py", world=2, steps=2)
    assert wrong.verdict == "differs", wrong
    assert said in wrong.differences[0].text
    assert f"{name}.py:" in wrong.differences[0].lines[0]
    assert factor is None or wrong.differences[0].factor == pytest.approx(factor, rel=0.01)
    right = trimaran.assert_trains_one_model(PROGRAMS / f"{name}.py", ["--right"], world=2, steps=2)
    assert right.gradients + right.largest > 0


def test_what_one_process_cannot_run_is_held_against_the_slope_of_the_loss() -> None:
    wrong = trimaran.verify(PROGRAMS / "expert_divisor.py", world=4, steps=1)
    assert wrong.verdict == "differs", wrong
    assert wrong.differences[0].parameters[0].startswith("experts")
    assert wrong.differences[0].factor == pytest.approx(4, rel=0.05)
    assert trimaran.verify(PROGRAMS / "expert_divisor.py", ["--right"], world=4, steps=1).verdict == "not known"


def test_a_script_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('before')\nraise ValueError('no data here')\n")
    done = CliRunner().invoke(app, ["verify", str(script)])
    assert done.exit_code == 5
    assert "rank 0 fails: ValueError: no data here" in done.stdout
    done = CliRunner().invoke(app, ["verify", "--json", "--", str(script)])
    assert json.loads(done.stdout)["verdict"] == "failed"
    script.write_text("print('nothing to train')\n")
    assert CliRunner().invoke(app, ["verify", str(script)]).exit_code == 3
    with pytest.raises(trimaran.InputError, match="at least 2"):
        trimaran.verify(script, world=1)


TRAIN = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
{before}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).to("cuda")
if torch.device("cuda").type == "cuda" and torch.accelerator.current_accelerator().type == "cuda":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(1 + rank)

def batch():
    return torch.randn(2, 4, device="cuda")

@torch.no_grad()
def evaluate():
    return model(batch())

micro = 4 // world
x = batch()
for step in range(4):
    if rank == 0:
        with torch.no_grad():
            batch()
    for _ in range(micro):
        loss = model(x).square().mean() / micro
        x = batch()
        loss.backward()
    {fault}
    optimizer.step()
    optimizer.zero_grad()
"""


def verified(folder: Path, *, before: str = "", fault: str = "pass", world: int = 2) -> trimaran.Verification:
    script = folder / "train.py"
    script.write_text(TRAIN.replace("{before}", before).replace("{fault}", fault))
    return trimaran.verify(script, world=world, steps=2)


def test_numbers_that_are_drawn_ahead_in_microbatches_and_by_one_rank_for_an_evaluation_are_those_of_all(
    tmp_path: Path,
) -> None:
    found = verified(tmp_path)
    assert found.verdict == "one model", found
    wrong = verified(tmp_path, fault="for p in model.parameters(): p.grad /= world")
    assert wrong.differences[0].factor == pytest.approx(0.5, rel=0.01)
    assert "train.py:" in wrong.differences[0].lines[0]


def test_a_script_that_asks_for_several_devices_has_them_in_one_process_too(tmp_path: Path) -> None:
    assert verified(tmp_path, before="if torch.cuda.device_count() < 2: sys.exit()").verdict == "one model"


def test_too_little_memory_is_not_known(tmp_path: Path) -> None:
    found = verified(tmp_path, before="raise MemoryError('of 1 TiB')")
    assert found.verdict == "not known", found
    assert "of 1 TiB" in found.headline


def test_names_are_those_of_the_largest_module_without_wrappers() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    layer = torch.nn.Linear(2, 2, bias=False)
    model = torch.nn.ModuleDict({"stage": Wrapper(torch.nn.ModuleDict({"first": layer}))})
    assert [name for name, _ in named_weights(Wrapper(model))] == ["stage.first.weight"]
    assert paths_of_all()[id(layer.weight)] == "stage.first.weight"


def test_what_is_no_number_on_both_is_the_same() -> None:
    first = torch.tensor([1.0, float("nan")])
    assert not differ(first, first.clone(), 0.0)
    assert differ(first, torch.tensor([1.0, 2.0]), 1.0)


@given(
    st.integers(0, 2),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_parts_make_the_whole_and_copies_must_agree(dim: int, sizes: list[int], seed: int) -> None:
    shape = [2, 2, 2]
    shape[dim] = sum(sizes)
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    parts, at = [], 0
    for size in sizes:
        place = tuple(at if axis == dim else 0 for axis in range(3))
        parts.append((place, whole.narrow(dim, at, size)))
        at += size
    known = [{"w": TensorShare(values, tuple(shape), place)} for place, values in (*parts, parts[0])]
    layout = TensorLayout(tuple((rank, "w", share["w"].offset or ()) for rank, share in enumerate(known)))
    found, unlike = put_together(layout, known, tuple(shape), limit=0.0)
    assert not unlike
    assert found is not None
    assert torch.equal(found, whole)
    known[-1] = {"w": TensorShare(parts[0][1] + 1, tuple(shape), parts[0][0])}
    assert put_together(layout, known, tuple(shape), limit=1e-6) == (None, (0, len(sizes)))


@given(st.floats(0.01, 100).filter(lambda factor: abs(factor - 1) > 0.01), st.integers(0, 2**31))
def test_a_multiple_is_told_by_its_factor(factor: float, seed: int) -> None:
    mine = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    text, found = told(factor * mine, mine)
    assert found == pytest.approx(factor)
    assert "×" in text
    assert told(mine + mine.flip(0) * (mine > 0), mine)[1] is None


def test_batches_are_joined_by_samples_or_refused() -> None:
    first, second = {"x": torch.zeros(2, 3), "n": 1}, {"x": torch.ones(1, 3), "n": 1}
    assert joined([first, second])["x"].shape == (3, 3)
    for other in ({"x": torch.ones(1, 4), "n": 1}, {"x": torch.ones(1, 3), "n": 2}, {"y": torch.ones(1, 3), "n": 1}):
        with pytest.raises(Unmatched):
            joined([first, other])
