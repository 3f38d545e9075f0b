"""Costs on a GPU: every one is there, positive, and of that device."""

from pathlib import Path

import pytest
import torch
from tests import zoo
from tests.gpu.running import DEVICE, ON_GPU, zoo_job

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.calibration.devices import open_clock
from trimaran.measure.costs import measure_costs
from trimaran.measure.whole_model import BatchSupply, WholeModel, make_stage
from trimaran.runtime.precision import place_model


@pytest.mark.timeout(300)
def test_costs_are_measured_on_the_gpu_and_positive() -> None:
    source = JobSource(reference=f"{Path(zoo.__file__)}:lstm")
    graph = capture(source.make()).graph
    table = measure_costs(source.make, graph, ranks=1, batches=[8, 32])
    assert table.fingerprint.kind == ("cuda" if ON_GPU else "cpu")
    assert {key.content for key in table.operations} == {op.content for op in graph.ops}
    for points in table.operations.values():
        assert set(points) == {8, 32}
        assert all(cost.forward.seconds > 0 for cost in points.values())
    for points in table.wholes.values():
        for whole in points.values():
            assert min(whole.forward.low, whole.backward.low, whole.evaluation.low) > 0
    (step,) = table.steps.values()
    assert step.load[8].seconds > 0
    assert step.update.at(tensors=5, nbytes=10_000).seconds > 0


@pytest.mark.parametrize("name", ["cnn", "unet", "lstm", "gpt"])
def test_the_whole_model_runs_as_a_segment(name: str) -> None:
    """Masks and states that the graph makes are made on the GPU."""
    job = zoo_job(name)
    made = capture(job)
    place_model(made.model, precision=job.precision, device=DEVICE)
    world = World(device=DEVICE)
    stage = make_stage(job, made, world, "graph", "eager")
    times = WholeModel(job, stage, BatchSupply(job, job.dataset(), 8, DEVICE), 8, open_clock(world), DEVICE).run(2)
    assert set(times) == {"load", "forward", "backward", "evaluation"}
    assert all(seconds > 0 for phase in times.values() for seconds in phase)


@pytest.mark.cuda_only
def test_batches_are_loaded_into_page_locked_memory_first() -> None:
    """So that the copy to the GPU runs beside the host, in a measurement as in a run."""
    job = zoo_job("cnn")
    loader = BatchSupply(job, job.dataset(), 8, DEVICE)
    batch = loader.load()
    assert all(tensor.device == torch.device(DEVICE) for tensor in batch)
    assert next(loader._loaded).microbatch(0)[0].is_pinned()
