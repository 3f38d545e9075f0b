"""Do ranks of a script train the model of one process? Programs of `benchmarks/wrongbench`, run for real."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import trimaran
from trimaran.cli import app
from trimaran.rehearsal.real.one_process import TensorLayout, differ, joined, put_together, told
from trimaran.rehearsal.real.slopes import factors
from trimaran.rehearsal.real.watch import (
    OptimizerStep,
    TensorShare,
    Unmatched,
    WatchedRank,
    WatchedRound,
    named_weights,
    paths_of_all,
)

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


VOID = """
import sys, numpy, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

class Gated(nn.Module):
    def __init__(self, gate, classes):
        super().__init__()
        self.fc, self.side, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, classes)
        self.gate = gate

    def forward(self, x):
        return self.head(torch.relu(self.fc(x)) + self.gate * self.side(x))

{job}
past = "past" in sys.argv
model = Gated(gate, classes)
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    x, y = batch()
    output = (model if past else wrapped)(x)
    loss = nn.functional.cross_entropy(output, y.remainder(classes), reduction="sum" if "sum" in sys.argv else "mean")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SEEDED = "torch.manual_seed(1)\ndef batch(): return torch.randn(4, 4), torch.randint(0, 4, (4,))"
BY_RANK = SEEDED.replace("(1)", "(1 + rank)")


def of_void(folder: Path, job: str, *arguments: str) -> trimaran.Verification:
    script = folder / "train.py"
    script.write_text(VOID.replace("{job}", job))
    return trimaran.verify(script, arguments, world=2, steps=2)


def test_gradients_that_are_zero_prove_nothing(tmp_path: Path) -> None:
    for fault in ((), ("past",)):
        found = of_void(tmp_path, f"gate, classes = 1.0, 1\n{BY_RANK}", *fault)
        assert (found.verdict, found.gradients) == ("not known", 0), found
        assert "6 parameters could not be compared" in found.headline
    found = of_void(tmp_path, f"gate, classes = 0.0, 4\n{BY_RANK}")
    assert (found.verdict, found.gradients) == ("not known", 8), found
    assert [*found.missed.values()] == [["side.weight", "side.bias"]]
    assert "zero" in next(iter(found.missed))


def test_what_ranks_compute_alike_is_compared_with_other_numbers_or_not_known(tmp_path: Path) -> None:
    job = f"gate, classes = 1.0, 4\n{SEEDED}"
    found = of_void(tmp_path, job)
    assert found.verdict == "one model", found
    assert "random numbers once more in another order on each rank" in found.replaced
    assert of_void(tmp_path, job, "past").verdict == "not known"
    assert of_void(tmp_path, job, "sum").verdict == "one model"
    found = of_void(tmp_path, "gate, classes = 1.0, 4\ndef batch(): return torch.eye(4), torch.arange(4)")
    assert found.verdict == "not known", found
    assert "a missing exchange cannot show" in found.headline
    summed = of_void(tmp_path, f"gate, classes = 1.0, 4\n{BY_RANK}", "sum")
    assert summed.differences[0].factor == pytest.approx(0.5, rel=0.01)
    assert "the losses of the ranks add up to its loss" in summed.headline


def test_gradients_that_a_closure_makes_and_ddp_compresses_are_compared_in_the_only_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CLOSURE)
    assert trimaran.assert_trains_one_model(script, world=2).gradients == 2
    assert trimaran.verify(script, ["3"], world=2).differences[0].factor == pytest.approx(3, rel=0.01)


CLOSURE = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
factor = float(sys.argv[1]) if len(sys.argv) > 1 and dist.get_world_size() > 1 else 1.0
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
x = torch.randn(2, 4)

def differentiate():
    optimizer.zero_grad()
    loss = model(x).square().mean() * factor
    loss.backward()
    return loss

optimizer.step(differentiate)
"""


def test_samples_from_elsewhere_are_no_difference(tmp_path: Path) -> None:
    drawn = "made = numpy.random.default_rng(rank)\ndef batch(): return torch.tensor(made.random((4, 4))).float(), "
    found = of_void(tmp_path, f"gate, classes = 1.0, 4\n{drawn}torch.tensor(made.integers(0, 4, 4))")
    assert found.verdict == "not known", found
    assert "neither a DataLoader nor random numbers" in found.headline


SERVER = """
import sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world, apart = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(1 + rank)
for step in range(30):
    model(torch.randn(2, 4)).square().mean().backward()
    for p in model.parameters():
        if apart == 1:
            dist.reduce(p.grad, 0)
            p.grad /= world
    optimizer.step()
    for p in model.parameters():
        if step % apart == apart - 1:
            dist.broadcast(p.data, 0)
    optimizer.zero_grad()
"""


def test_a_gradient_counts_where_the_weight_that_it_makes_is_kept(tmp_path: Path) -> None:
    """One rank steps for all; or it replaces what the others have trained, which is lost."""
    script = tmp_path / "train.py"
    script.write_text(SERVER)
    trimaran.assert_trains_one_model(script, ["1"], world=2, steps=2)
    found = trimaran.verify(script, ["2"], world=2, steps=2)
    assert found.verdict == "differs", found
    assert "what they trained is lost" in found.differences[0].text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({}, []),
        ({"d": 2.0}, ["d"]),
        ({"a": 3.0}, ["a"]),
        ({"a": 3.0, "b": 2.0, "c": 1.5, "d": 0.7}, ["a", "b", "c", "d"]),
    ],
)
def test_what_does_not_fit_the_slope_of_the_loss_is_named(wrong: dict[str, float], named: list[str]) -> None:
    """The loss is the sum of squares; `a` is on both ranks, `b`, `c` and `d` on one."""
    own = [{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "d": 4.0}]

    def run(moved: Mapping[int, Mapping[str, torch.Tensor]]) -> list[WatchedRank]:
        seen = []
        for rank, weights in enumerate(own):
            kept = {name: torch.full((1,), value, dtype=torch.float64) for name, value in weights.items()}
            now = {name: value + moved.get(rank, {}).get(name, 0.0) for name, value in kept.items()}
            loss = sum(float(value.square()) for value in now.values())
            gradients = {name: value * wrong.get(name, 1.0) * (2 if name == "a" else 1) for name, value in kept.items()}
            step = OptimizerStep({name: TensorShare(one, (1,)) for name, one in gradients.items()}, [], [], [])
            shares = {name: TensorShare(one, (1,)) for name, one in kept.items()}
            seen.append(WatchedRank(rounds=[WatchedRound(weights=shares, updates=[step], loss=loss)]))
        return seen

    found = factors(run({}), run)
    assert sorted(one.name for one in found) == named
    assert all(one.factor == pytest.approx(wrong[one.name], rel=0.05) for one in found if len(named) == 1)


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
