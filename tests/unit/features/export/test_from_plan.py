"""From the plan of a job to what other runtimes are told."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises

from trimaran.features.export import export_plan
from trimaran.features.export.recipe import recipe_of_plan, stages_of
from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import Plan, program_lines, write_plan
from trimaran.program.strategy import Strategy


@pytest.fixture(scope="module")
def graph():
    return capture(JobSource(reference="text-gpt").make()).graph


def plan_of(graph, strategy: Strategy, batch: int) -> Plan:
    return builders.plan(
        job="text-gpt",
        strategy=strategy,
        premises=builders.premises(
            graph_digest=graph.digest,
            global_batch_size=batch,
            devices=("cpu",) * strategy.devices,
            memory_bytes=(2**34,) * strategy.devices,
        ),
        prediction=builders.prediction(step_time_s=1.0, interval_s=(0.9, 1.1)),
        program=program_lines(lower(graph, strategy, batch=batch)),
    )


def test_every_unit_is_in_one_stage_and_layers_are_counted(graph):
    middle = graph.split_points[len(graph.split_points) // 2]
    stages = stages_of(graph, graph.parts((middle,)))
    units = [unit for stage in stages for unit in stage.modules]
    assert len(units) == len(set(units))
    blocks = {op.module.split(".")[1] for op in graph.ops if op.module.startswith("blocks.")}
    assert sum(stage.layers for stage in stages) == len(blocks)


def test_a_cut_through_a_layer_is_named(graph):
    inside = next(cut for cut in graph.split_points if cut.startswith("blocks.1."))
    stages = stages_of(graph, graph.parts((inside,)))
    assert all(stage.split == ("blocks.1",) for stage in stages)


def test_a_pipeline_keeps_its_figures(graph):
    strategy = builders.strategy(dp=2, pp=2, boundaries=(graph.split_points[3],), schedule="1f1b", microbatches=4)
    recipe = recipe_of_plan(plan_of(graph, strategy, 32), graph, clip_norm=1.0)
    assert (recipe.devices, recipe.microbatch, recipe.microbatches) == (4, 4, 4)
    assert recipe.sequence_length == graph.inputs[0].shape[1]
    assert recipe.beyond == ()


def test_what_only_trimaran_runs_is_said(graph):
    strategy = builders.strategy(dp=2, memory_bytes=2**30, sync="p2p")
    beyond = " ".join(recipe_of_plan(plan_of(graph, replace(strategy, memory_bytes=None), 32), graph).beyond)
    assert "owners of gradient buckets" in beyond


@pytest.mark.parametrize(
    "target", ["torchtitan", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("megatron", "accelerate"))]
)
def test_a_plan_file_is_exported(graph, tmp_path: Path, target):
    path = tmp_path / "plan.json"
    write_plan(path, plan_of(graph, builders.strategy(dp=2), 32))
    exported = export_plan(path, target)
    assert exported.target == target
    assert "text-gpt" in exported.text


def test_unknown_targets_are_refused(tmp_path: Path):
    with raises("export.unknown-target"):
        export_plan(tmp_path / "plan.json", "deepspeed")


def test_a_plan_of_another_model_is_refused(graph, tmp_path: Path):
    plan = plan_of(graph, builders.strategy(dp=2), 32)
    path = tmp_path / "plan.json"
    write_plan(path, replace(plan, premises=replace(plan.premises, graph_digest="0123456789abcdef")))
    with raises("plan.outdated"):
        export_plan(path, "megatron")
