"""Checkpoints in the formats of others and back, bit for bit, under several plans; DCP by torch's own programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests import builders
from tests.distributed.exchanging import Begun, begin_each, load_by_dcp, refuse_each, save_by_dcp, save_each
from tests.distributed.jobs import make_job
from tests.distributed.training import Run
from tests.forks.client import launch

from trimaran.checkpoint_files.content import same_bits
from trimaran.checkpoint_files.exports import write_export
from trimaran.graph.optimizers import trained_parameters
from trimaran.program.strategy import Strategy
from trimaran.runtime.checkpoint.weights import open_weights
from trimaran.runtime.whole_state import WholeState

strategy = builders.strategy
JOB = "gpt_exchanged"
UNITS = ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
FORMATS = {"safetensors": "m.safetensors", "pt": "m.pt", "dcp": "dcp", "huggingface": "hf"}


def run(plan: Strategy) -> Run:
    return Run(job=JOB, strategy=plan, steps=3)


ONE = run(strategy())
TWO = [
    run(strategy(dp=2, zero=3, units=UNITS)),
    run(strategy(dp=2, zero=1, bucket_bytes=512)),
    run(strategy(pp=2, microbatches=2, schedule="1f1b")),
    run(strategy(tp=2)),
]
Saved = dict[str, tuple[dict[str, torch.Tensor], WholeState]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exchanged")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Saved:
    """Checkpoints of each plan, and what one process would have; exported to each format."""
    found: Saved = {}
    for ranks, runs in ((1, [ONE]), (2, TWO)):
        by_rank = launch(
            save_each, (runs, str(folder)), ranks=ranks, captured=[JOB], log_dir=folder / f"logs{ranks}", device="cpu"
        )
        found |= {one.name: state for one, state in zip(runs, by_rank[0], strict=True)}
    for name in found:
        with open_weights(folder / name) as content:
            for to, target in FORMATS.items():
                write_export(
                    content,
                    folder / f"{name} out" / target,
                    to,  # type: ignore[arg-type]
                    optimizer=to in ("pt", "dcp"),
                    shard_bytes=20_000,
                )
    return found


def assert_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], where: str) -> None:
    assert found.keys() == expected.keys(), where
    assert [name for name, one in expected.items() if not same_bits(found[name].cpu(), one)] == [], where


def assert_same_state(found: Any, expected: WholeState, where: str) -> None:
    """The state of an optimizer by names, as torch has it."""
    assert found.keys() == expected.optimizer.keys(), where
    for name, kept in expected.optimizer.items():
        assert_same(found[name], kept, f"{where}, {name}")


def options_of(state: WholeState, name: str) -> Mapping[str, Any]:
    """Hyperparameters of a parameter."""
    (group,) = (one for one in state.groups if name in one.names)
    return group.options


def of_one_process() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    job = make_job(JOB)
    model = job.model()
    return model, job.optimizer(trained_parameters(model))


def test_the_job_has_what_makes_it_hard(saved: Saved) -> None:
    weights, state = saved[ONE.name]
    assert weights["head.weight"].dtype == torch.bfloat16
    assert state.aliases["head.weight"] == "token.weight"
    assert ("scale" in weights, "shift" in weights, "shift" in state.buffers) == (True, False, True)
    assert len(state.groups) > 1


def test_files_of_weights_have_the_state_dict(saved: Saved, folder: Path) -> None:
    for name, (weights, _) in saved.items():
        assert_same(load_file(folder / f"{name} out" / "m.safetensors"), weights, name)


def test_a_file_of_torch_loads_into_model_and_optimizer(saved: Saved, folder: Path) -> None:
    """By `weights_only=True`; the optimizer's state goes by numbers, in the order of one process."""
    for name, (weights, state) in saved.items():
        found = torch.load(folder / f"{name} out" / "m.pt", weights_only=True)
        assert_same(found["model"], weights, name)
        assert found["model"]["head.weight"].data_ptr() == found["model"]["token.weight"].data_ptr()
        model, optimizer = of_one_process()
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        names = {id(one): key for key, one in model.named_parameters()}
        kept = {names[id(one)]: value for one, value in optimizer.state.items()}
        assert_same_state(kept, state, name)
        for group in optimizer.param_groups:
            for own in group["params"]:
                options = options_of(state, names[id(own)])
                assert {key: repr(group[key]) for key in options} == {key: repr(one) for key, one in options.items()}


def test_a_folder_of_hugging_face_has_tied_weights_once(saved: Saved, folder: Path) -> None:
    for name, (weights, _) in saved.items():
        made = folder / f"{name} out" / "hf"
        index = json.loads((made / "model.safetensors.index.json").read_text())
        files = sorted({*index["weight_map"].values()})
        assert len(files) > 2
        assert files == [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
        found = {key: one for file in files for key, one in load_file(made / file).items()}
        assert found.keys() == index["weight_map"].keys() == weights.keys() - {"head.weight"}
        assert_same(found | {"head.weight": found["token.weight"]}, weights, name)
        assert index["metadata"]["total_size"] == sum(one.nbytes for one in found.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_loads_a_directory_of_dcp(ranks: int, saved: Saved, folder: Path, tmp_path: Path) -> None:
    """Into a model of torch alone, with FSDP2, by `dcp.load` of `get_state_dict`."""
    paths = [str(folder / f"{name} out" / "dcp") for name in saved]
    by_rank = launch(load_by_dcp, (JOB, paths), ranks=ranks, captured=[], log_dir=tmp_path / "logs", device="cpu")
    for (name, (weights, state)), (model, optimizer) in zip(saved.items(), by_rank[0], strict=True):
        assert_same(model, weights, name)
        assert_same_state(optimizer["state"], state, name)
        for group in optimizer["param_groups"]:
            for own in group["params"]:
                options = options_of(state, own)
                assert (group["lr"], group["weight_decay"]) == (options["lr"], options["weight_decay"])


def begin(begun: list[tuple[Run, str, bool]], tmp_path: Path) -> list[Begun]:
    ranks = begun[0][0].strategy.devices
    logs = tmp_path / f"logs{ranks}"
    found: list[list[Begun]] = launch(begin_each, (begun,), ranks=ranks, captured=[JOB], log_dir=logs, device="cpu")
    return found[0]


@pytest.mark.timeout(240)
def test_every_plan_begins_from_every_format(saved: Saved, folder: Path, tmp_path: Path) -> None:
    """Weights, and the optimizer's state where the format has it: also of a checkpoint that is not gone on from."""
    source = TWO[2].name
    out = folder / f"{source} out"
    weights, state = saved[source]
    paths = [*(str(out / target) for target in FORMATS.values()), str(folder / source)]
    for runs in ([ONE], TWO):
        begun = [(one, path, Path(path).name not in ("m.safetensors", "hf")) for one in runs for path in paths]
        found = begin(begun, tmp_path)
        losses: dict[str, set[str]] = {}
        for (one, path, optimizer), now in zip(begun, found, strict=True):
            where = f"{one.name} from {path}"
            assert_same(now.weights, weights, where)
            if optimizer:
                assert_same_state(now.state.optimizer, state, where)
            else:
                assert not any(now.state.optimizer.values()), where
            losses.setdefault(one.name, set()).add(now.loss)
        # The same plan from the same weights: the same first loss, in bits.
        assert {name: len(one) for name, one in losses.items()} == {one.name: 1 for one in runs}


def test_a_directory_of_dcp_that_two_processes_wrote(tmp_path: Path) -> None:
    """Under the names of torch's helpers, under one more name, with a flattened optimizer, and the weights alone."""
    logs = tmp_path / "logs"
    by_rank = launch(save_by_dcp, (JOB, str(tmp_path)), ranks=2, captured=[], log_dir=logs, device="cpu")
    weights, optimizer = by_rank[0]
    assert len(list((tmp_path / "both").glob("*.distcp"))) == 2
    begun = [(ONE, str(tmp_path / name), name != "weights") for name in ("both", "inner", "flat", "weights")]
    for (_, path, with_optimizer), now in zip(begun, begin(begun, tmp_path), strict=True):
        assert_same(now.weights, weights, path)
        if with_optimizer:
            assert now.state.optimizer.keys() == optimizer["state"].keys()
            for name, kept in optimizer["state"].items():
                assert_same(now.state.optimizer[name], kept, f"{path}, {name}")


def test_what_does_not_fit_is_refused_on_every_rank_and_changes_nothing(
    saved: Saved, folder: Path, tmp_path: Path
) -> None:
    weights, _ = saved[ONE.name]
    out = folder / f"{ONE.name} out"
    full = torch.load(out / "m.pt", weights_only=True)
    other = tmp_path / "sgd.pt"
    model, _ = of_one_process()
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    sgd.step()
    torch.save({"model": weights, "optimizer": sgd.state_dict()}, other)
    narrow = tmp_path / "narrow.pt"
    torch.save({"model": {name: one.double() for name, one in weights.items()}, "optimizer": full["optimizer"]}, narrow)
    paths = [str(other), str(narrow), str(out / "m.safetensors")]
    expected = ["weights.other-groups", "weights.other-dtypes", "weights.no-optimizer"]
    by_rank = launch(refuse_each, (TWO[0], paths), ranks=2, captured=[JOB], log_dir=tmp_path / "logs", device="cpu")
    assert by_rank == [[(code, True) for code in expected]] * 2
