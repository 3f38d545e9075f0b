"""Exports of plans, rehearsed as their targets start them: the shards are those that the plan says."""

import ast
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.features.export import launching, request_for
from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.launching import ExportLaunch, check_network, check_target, launch_of
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import ExportRecipe, ExportStage
from trimaran.features.export.torchtitan import to_torchtitan
from trimaran.features.rehearse.ask import answer, ask
from trimaran.machine.catalog import find_device
from trimaran.planner.analytical.search import program_of
from trimaran.planning.answer.results import Planned
from trimaran.planning.rehearsed import PlanRehearsed, compare_with_plan
from trimaran.planning.requests import PlanRequest, parse_software
from trimaran.pricing.analytical.huggingface_config import shape_of_configuration
from trimaran.pricing.analytical.layers import parameter_count
from trimaran.pricing.analytical.shapes import Experts, gpt_shape
from trimaran.program.strategy import Strategy
from trimaran.report.rehearsal import Rehearsal

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

LLAMA = builders.transformer_shape(
    layers=2, hidden=128, heads=4, kv_heads=2, head_size=32, ffn=256, vocabulary=512, sequence=64
)
GPT = gpt_shape(layers=2, hidden=128, heads=4, vocabulary=512, sequence=64)
EXPERTS = dataclasses.replace(LLAMA, query_key_norm="head", experts=Experts(count=4, active=2, ffn=256))
PARALLEL = dataclasses.replace(LLAMA, parallel=True)
EVERY_LAYER = frozenset({"layers"})
WRITERS = {"pytorch": to_pytorch, "accelerate": to_accelerate, "torchtitan": to_torchtitan}
BLOCK = 512


def recipe(**settings: Any) -> ExportRecipe:
    """Of microbatches of one sequence, in bf16, on the decoder like Llama."""
    shape, pp = settings.pop("shape", LLAMA), settings.get("pp", 1)
    settings = {"microbatches": 1, "precision": "bf16", "job": "tiny", "sequence_length": 64} | settings
    even = (ExportStage(modules=(), layers=shape.layers // pp),) * pp
    batch = settings.get("dp", 1) * settings["microbatches"]
    stages = even if pp > 1 else ()
    return ExportRecipe(global_batch_size=batch, microbatch=1, stages=stages, shape=shape, **settings)


def launched(found: ExportRecipe, target: str) -> ExportLaunch:
    return launch_of(found, WRITERS[target](found), steps=2)


def rehearsed(folder: Path, launch: ExportLaunch, ranks: str) -> Rehearsal:
    for name, text in launch.files.items():
        (folder / name).write_text(text)
    script = folder / launch.script
    question = ask(script, launch.arguments, world=launch.ranks, ranks=ranks, steps=2, alloc_conf=launch.allocator)
    found = answer(question).rehearsal
    assert found.verdict in ("fits", "not sure"), str(found)  # not sure: it compiles
    assert all(rank.steps == 2 for rank in found.ranks), str(found)
    return found


def check_state(parts: Mapping[str, int], parameters: float, *, blocks: int) -> None:
    """Parameters of 4 bytes and two moments of the optimizer, each in blocks of 512 bytes, are what a rank holds."""
    for purpose, each in (("parameter", 4), ("optimizer", 8)):
        assert each * parameters <= parts[purpose] <= each * parameters + 3 * blocks * BLOCK, (purpose, parts)


# Each with the ranks that share the parameters of a stage, and those that are rehearsed.
EXPORTS = {
    "pytorch zero3 tp2 sequence recompute": (
        recipe(dp=4, tp=2, zero=3, sequence_parallel=True, recomputed=EVERY_LAYER, recompute="full"),
        "pytorch",
        "0",
    ),
    "pytorch fewer experts than ranks": (recipe(dp=8, zero=3, shape=EXPERTS), "pytorch", "0"),
    "accelerate gpt": (recipe(dp=2, shape=GPT, microbatches=2), "accelerate", "0"),
}
MORE_EXPORTS = {
    "pytorch zero1 m2 pp2": (recipe(dp=2, pp=2, zero=1, microbatches=2), "pytorch", "0,2"),
    "accelerate zero3 recompute": (recipe(dp=8, zero=3, recompute="full"), "accelerate", "0"),
    "pytorch zero2 m2": (recipe(dp=4, zero=2, microbatches=2), "pytorch", "0"),
    "pytorch zero0": (recipe(dp=2), "pytorch", "0"),
    "pytorch gpt zero3": (recipe(dp=4, zero=3, shape=GPT), "pytorch", "0"),
    "pytorch hsdp": (recipe(dp=4, zero=3, shard_ranks=2), "pytorch", "0"),
    "accelerate zero2 m2": (recipe(dp=4, zero=2, microbatches=2), "accelerate", "0"),
    "accelerate on 16": (recipe(dp=16, zero=3), "accelerate", "0,8"),
    "accelerate one": (recipe(), "accelerate", "0"),
}


def check(folder: Path, export: tuple[ExportRecipe, str, str]) -> None:
    found, target, ranks = export
    told = rehearsed(folder, launched(found, target), ranks)
    shape = found.shape
    assert shape is not None
    whole = parameter_count(shape)
    shards = (found.shard_ranks or found.dp) if found.zero else 1
    norms = 2 * shape.layers + 1  # every tensor-parallel rank has the scales of norms
    each = [rank.parts_bytes for rank in told.ranks]
    if found.pp == 1:
        count = (whole - norms * shape.hidden) / found.tp / shards + norms * shape.hidden / shards
        check_state(each[0], count, blocks=15 * shape.layers + 10)
    else:
        stage = {name: sum(parts[name] for parts in each) for name in ("parameter", "optimizer")}
        check_state(stage, whole / shards, blocks=15 * shape.layers + 10)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_trains_with_the_shards_of_its_plan(tmp_path: Path, name: str) -> None:
    check(tmp_path, EXPORTS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", MORE_EXPORTS)
def test_more_exports_train_with_the_shards_of_their_plans(tmp_path: Path, name: str) -> None:
    check(tmp_path, MORE_EXPORTS[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"dp": 8, "zero": 3, "recompute": "full", "recomputed": EVERY_LAYER},
        {"dp": 2, "tp": 2, "zero": 2, "sequence_parallel": True, "microbatches": 2},
    ],
)
def test_torchtitan_trains_by_its_whole_configuration(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("torchtitan", reason="torchtitan is not installed: pip install '.[targets]'")
    found = recipe(job="llama3:8b", **settings)
    launch = launched(found, "torchtitan")
    # The network that torchtitan tries things with, in place of one that takes half a minute.
    small = {name: text.replace('("8B")', '("debugmodel")') for name, text in launch.files.items()}
    told = rehearsed(tmp_path, ExportLaunch(files=small, script=launch.script, arguments=(), ranks=launch.ranks), "0")
    parts = told.ranks[0].parts_bytes
    assert parts["optimizer"] == pytest.approx(2 * parts["parameter"], rel=0.02)


@pytest.mark.parametrize(
    "settings", [{"dp": 8, "zero": 3}, {"dp": 4, "zero": 2, "ep": 2, "expert_tp": 1, "shape": "experts"}]
)
def test_torchtitan_trains_a_decoder_of_its_parts(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("torchtitan", reason="torchtitan is not installed: pip install '.[targets]'")
    shape = EXPERTS if "shape" in settings else LLAMA
    found = recipe(**{**settings, "shape": shape})
    told = rehearsed(tmp_path, launched(found, "torchtitan"), "0")
    each = 4 * parameter_count(shape) / found.dp
    assert told.ranks[0].parts_bytes["parameter"] == pytest.approx(each, rel=0.1)


# ---------------------------------------------------------------------------------------------------------------------
# plan --rehearse


CONFIGURATION = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def plan(folder: Path, *options: str) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGURATION))
    words = ("plan", str(path), "--cluster", "dgx-h100:1", "--devices", "2", "--sequence", "128", "--dp", "2")
    return CliRunner().invoke(app, [*words, *options])


def test_a_plan_is_shown_with_the_verdict_of_its_rehearsal(tmp_path: Path) -> None:
    done = plan(tmp_path, "--zero", "3", "--software", "fsdp:2025", "--rehearse", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["rehearsed"]
    assert found["verdict"] == "fits"
    assert found["line"].startswith("rehearsed by pytorch: ")
    assert found["planned_parts"].keys() == found["rehearsed_parts"].keys()
    whole = parameter_count(shape_of_configuration(CONFIGURATION, sequence=128, source="").shape)
    assert found["rehearsed_parts"]["optimizer"] == pytest.approx(8 * whole / 2, rel=0.1)
    assert found["rehearsed_s"] > 0


def test_a_plan_without_room_is_shown_with_a_neighbour_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def rehearse(planned: Planned, target: str, *, strategy: Strategy | None = None, **_: Any) -> PlanRehearsed:
        """Only where whole layers are recomputed a rank has room."""
        taken = strategy or planned.chosen.strategy
        asked.append(taken.name)
        fits = "layers" in taken.recomputed
        found = Rehearsal(
            verdict="fits" if fits else "out of memory",
            headline="",
            script=[],
            world=2,
            cluster="",
            device="",
            per_node=8,
            memory_bytes=2**36,
            ranks=[],
            troubles=[],
            remedies=[],
            agreement="",
            collectives=[],
            step=None,
            invented=[],
            notes=[],
            printed=[],
            took_s=0.0,
        )
        return compare_with_plan(planned, target, found)

    monkeypatch.setattr("trimaran.cli.plan.rehearse_plan", rehearse)
    done = plan(tmp_path, "--zero", "0", "--recompute", "none", "--batch", "4", "--software", "fsdp:2025", "--rehearse")
    assert done.exit_code == 3, done.output
    assert "out of memory" in done.stdout
    assert "with whole layers recomputed (dp2" in done.stdout
    assert [("recompute" in name) for name in asked] == [False] * (len(asked) - 1) + [True]
    assert "zero3" in asked[1]


@pytest.mark.parametrize(("target", "chunks"), [("pytorch", 1), ("torchtitan", 8)])
def test_a_plan_that_is_rehearsed_is_of_what_runs_it(target: str, chunks: int) -> None:
    asked = request_for("llama3:8b", PlanRequest(cluster="dgx-h100:1"), target)
    assert asked.software is not None
    device = find_device("h100")
    told = program_of(device, "bf16", asked.software)
    assert told.eager is not None
    assert (told.framework, told.eager.loss_chunks) == ("fsdp", chunks)
    megatron = PlanRequest(cluster="dgx-h100:1", software=parse_software("megatron:2025"))
    assert request_for("llama3:8b", megatron, target).software == megatron.software


def test_a_schedule_of_torch_takes_the_microbatches_of_torchtitan() -> None:
    """The step of torch 2.13 splits a batch; the script hands on what is split already."""
    script = Path(launching.__file__).parent / "scripts" / "torchtitan_run.py.jinja"
    tree = ast.parse(script.read_text().replace("{{ steps }}", "1"))
    wanted: list[ast.stmt] = [
        one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "taking_parts"
    ]
    names: dict[str, Any] = {"Any": Any, "Callable": Callable}
    exec(compile(ast.Module(body=wanted, type_ignores=[]), "run", "exec"), names)  # noqa: S102

    class Schedule:
        def _split_inputs(self, args: Any, named: Any) -> Any:
            raise AssertionError("split again")

        def step(self, *args: Any, target: Any = None, **named: Any) -> Any:
            return self._split_inputs(args, named), target

    Schedule.step = names["taking_parts"](Schedule.step)  # type: ignore[method-assign]
    inputs, targets = Schedule().step(arg_mbs=[(1,), (2,)], kwarg_mbs=[{}, {}], target_mbs=[3, 4])
    assert (inputs, targets) == (([(1,), (2,)], [{}, {}]), [3, 4])
    inputs, targets = Schedule().step(arg_mbs=None, kwarg_mbs=[{}, {}], target_mbs=None)
    assert (inputs, targets) == (([(), ()], [{}, {}]), None)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--rehearse", "--to", "megatron"), "export.no-rehearsal", "in the repository of Megatron-LM"),
        (("--rehearse", "--to", "nemo"), "export.no-rehearsal", "choose one of"),
        (("--to", "nemo"), "export.unknown-target", "torchtitan"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_before_it_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: str, words: str
) -> None:
    monkeypatch.setattr("trimaran.cli.views.plans.make_plan", None)
    done = plan(tmp_path, *options, "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert words in error["message"]


def test_a_plan_of_this_machine_is_not_rehearsed() -> None:
    done = CliRunner().invoke(app, ["plan", "digits", "--rehearse"])
    assert done.exit_code == 2
    assert "--cluster" in done.output


def test_networks_that_a_target_lacks_are_refused() -> None:
    with raises("export.no-rehearsal") as caught:
        check_network("mixtral", PARALLEL, "pytorch")
    assert "parallel blocks" in str(caught.value)
    with raises("export.no-rehearsal") as caught:
        check_network("mixtral", PARALLEL, "accelerate")
    assert "Mixtral and GPT-2" in str(caught.value)
    check_network("tiny", LLAMA, "accelerate")
    check_network("tiny", LLAMA, "pytorch")
    with raises("export.no-rehearsal"):
        check_target("megatron")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"tp": 2}, "loaded from a checkpoint"), ({"cp": 2}, "forbid cp")],
)
def test_layouts_that_accelerate_lacks_are_refused(settings: dict[str, int], reason: str) -> None:
    with raises("export.no-rehearsal") as caught:
        launched(recipe(**settings), "accelerate")
    assert reason in str(caught.value)
