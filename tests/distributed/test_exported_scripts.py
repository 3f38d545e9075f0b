"""Scripts of plain PyTorch that plans are exported to: run on processes, their losses are those of one process."""

import dataclasses
import functools
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.ports import free_ports
from tests.raising import raises
from torch.nn import functional

from trimaran.features.export import export_plan
from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.launching import launch_of
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import ExportRecipe, ExportStage
from trimaran.graph.capture.capture import capture
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.pricing.analytical.shapes import Experts, gpt_shape
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import program_lines, write_plan

RUNNER = Path(__file__).with_name("exported.py")
JOBS = Path(__file__).with_name("exported_jobs.py")
STEPS = 4

# ---------------------------------------------------------------------------------------------------------------------
# Decoders that the analytical model planned


LLAMA = builders.transformer_shape(
    layers=4, hidden=32, heads=4, kv_heads=2, head_size=8, ffn=64, vocabulary=128, sequence=16
)
GPT = gpt_shape(layers=4, hidden=32, heads=4, vocabulary=128, sequence=16)
QWEN = dataclasses.replace(LLAMA, query_key_norm="head")
MIXTRAL = dataclasses.replace(LLAMA, experts=Experts(count=4, active=2, ffn=48))
MIXED = dataclasses.replace(QWEN, experts=Experts(count=4, active=2, ffn=48, dense_layers=1))
EVERY_LAYER = frozenset({"layers"})


def recipe(**settings: Any) -> ExportRecipe:
    """Of a batch of 8 sequences on the decoder like Llama, in fp32."""
    shape = settings.pop("shape", LLAMA)
    dp, count = settings.get("dp", 1), settings.get("microbatches", 1)
    segments = settings.get("pp", 1) * settings.get("chunks", 1)
    even = [ExportStage(modules=(), layers=shape.layers // segments)] * segments
    return ExportRecipe(
        job="tiny",
        global_batch_size=8,
        microbatch=8 // (dp * count),
        stages=settings.pop("stages", tuple(even) if segments > 1 else ()),
        shape=shape,
        **settings,
    )


UNEVEN = (ExportStage(modules=(), layers=1), ExportStage(modules=(), layers=3))
PLANS = {
    "dp2 zero3": recipe(dp=2, zero=3),
    "dp2 zero2 m2": recipe(dp=2, zero=2, microbatches=2),
    "tp2 sequence": recipe(tp=2, sequence_parallel=True),
    "pp2 1f1b m4": recipe(pp=2, microbatches=4),
    "recompute m2": recipe(microbatches=2, recomputed=EVERY_LAYER),
    "pp2 dp2 zero1 recompute": recipe(pp=2, dp=2, zero=1, microbatches=2, recomputed=EVERY_LAYER),
    "tp2 dp2 zero3": recipe(tp=2, dp=2, zero=3, recomputed=frozenset({"attention"})),
    "hsdp 2x2": recipe(dp=4, zero=3, shard_ranks=2),
}
MORE_PLANS = {
    "dp2 zero1 m4": recipe(dp=2, zero=1, microbatches=4),
    "dp2 m2": recipe(dp=2, microbatches=2),
    "tp2": recipe(tp=2),
    "pp2 gpipe m2 uneven": recipe(pp=2, microbatches=2, schedule="gpipe", stages=UNEVEN),
    "pp2 interleaved x2 m4": recipe(pp=2, chunks=2, microbatches=4, schedule="interleaved"),
    "pp2 recompute:1": recipe(pp=2, microbatches=2, recomputed=EVERY_LAYER, recompute_layers=1),
    "tp2 pp2 sequence": recipe(tp=2, pp=2, microbatches=2, sequence_parallel=True),
    "pp2 dp2 in another order": recipe(pp=2, dp=2, microbatches=2, rank_order=("tp", "cp", "pp", "dp")),
    "hsdp 2x2 zero1 m2": recipe(dp=4, zero=1, shard_ranks=2, microbatches=2),
    "gpt tp2 dp2 sequence zero1": recipe(shape=GPT, tp=2, dp=2, zero=1, sequence_parallel=True),
    "qwen tp2": recipe(shape=QWEN, tp=2),
    "qwen tp2 dp2 zero3 sequence": recipe(shape=QWEN, tp=2, dp=2, zero=3, sequence_parallel=True),
    "mixed pp2 dp2 zero2": recipe(shape=MIXED, pp=2, dp=2, zero=2, microbatches=2),
    "pp2 dp2 zero3": recipe(pp=2, dp=2, zero=3, microbatches=2),
    "gpt dp2 zero3 recompute": recipe(shape=GPT, dp=2, zero=3, recomputed=EVERY_LAYER),
}

ADAM = """torch.optim.AdamW(
        [{"params": group} for group in groups.values()], lr=RATE, betas=(0.9, 0.95), fused=fused
    )"""
SGD = 'torch.optim.SGD([{"params": group} for group in groups.values()], lr=1.0, momentum=0.9)'


def by_sgd(found: ExportRecipe) -> str:
    """The script with an optimizer by which a gradient of the wrong scale is another training; Adam's is not."""
    text = to_pytorch(found).text
    assert ADAM in text
    return text.replace(ADAM, SGD)


def run_scripts(folder: Path, scripts: Mapping[str, tuple[int, str]]) -> dict[str, list[float]]:
    """The losses of scripts, each of so many ranks, all run by the same processes one after the other."""
    jobs = []
    for number, (ranks, text) in enumerate(scripts.values()):
        path = folder / f"script{number}.py"
        path.write_text(text)
        jobs.append(f"{ranks}={path}")
    run_ranks(jobs, ranks=max(ranks for ranks, _ in scripts.values()), steps=STEPS)
    found = {name: (folder / f"script{number}.out").read_text() for number, name in enumerate(scripts)}
    return {name: [float(loss) for loss in re.findall(r"loss (\S+)", text)] for name, text in found.items()}


def run_ranks(jobs: Sequence[str], *, ranks: int, steps: int) -> None:
    """Run scripts, each given as "<ranks>=<path>", one after the other by the same processes on CPUs."""
    port = free_ports(len(jobs))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["ACCELERATE_USE_CPU"] = "true"
    started = [
        subprocess.Popen(
            [sys.executable, str(RUNNER), str(rank), str(steps), str(port), *jobs],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(said)[-4000:]


def plain_losses(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], torch.Tensor],
    clip_norm: float | None = None,
) -> list[float]:
    """Losses of a plain loop over whole batches, in this process."""
    losses = []
    for step in range(STEPS):
        found = loss(step)
        optimizer.zero_grad()
        found.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        losses.append(found.item())
    return losses


def decoder_losses(folder: Path, found: ExportRecipe, *, adam: bool = False) -> list[float]:
    """Losses of the network of a script, whole in this process."""
    path = folder / "reference.py"
    path.write_text(to_pytorch(recipe(shape=found.shape)).text)
    script = runpy.run_path(str(path))
    model = script["Segment"](0, script["initialize"])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    if adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=script["RATE"], betas=(0.9, 0.95))

    def loss(step: int) -> torch.Tensor:
        tokens = script["read_tokens"](step)
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return plain_losses(model, optimizer, loss)


def check_decoders(folder: Path, plans: Mapping[str, ExportRecipe]) -> None:
    losses = run_scripts(folder, {name: (found.devices, by_sgd(found)) for name, found in plans.items()})
    for name, found in plans.items():
        assert losses[name] == pytest.approx(decoder_losses(folder, found), rel=1e-5), name
        assert abs(losses[name][-1] / losses[name][0] - 1) > 1e-3, f"{name}: nothing was learned that could differ"


@pytest.mark.sweep
def test_losses_of_decoders_are_those_of_one_process(tmp_path: Path) -> None:
    check_decoders(tmp_path, PLANS)


@pytest.mark.sweep
def test_losses_of_more_decoders_are_those_of_one_process(tmp_path: Path) -> None:
    check_decoders(tmp_path, MORE_PLANS)


def test_experts_and_norms_of_queries_and_keys_train_as_one_process_does(tmp_path: Path) -> None:
    plans = {"mixtral": recipe(shape=MIXTRAL, dp=2, zero=3, microbatches=2, recomputed=EVERY_LAYER)}
    check_decoders(tmp_path, plans | {"qwen": recipe(shape=QWEN, tp=2, sequence_parallel=True)})


@pytest.mark.sweep
def test_losses_by_the_optimizer_of_the_script_are_those_of_one_process(tmp_path: Path) -> None:
    plans = {name: PLANS[name] for name in ("tp2 dp2 zero3", "pp2 1f1b m4")}
    losses = run_scripts(tmp_path, {name: (found.devices, to_pytorch(found).text) for name, found in plans.items()})
    for name, found in plans.items():
        assert losses[name] == pytest.approx(decoder_losses(tmp_path, found, adam=True), rel=1e-5), name


# ---------------------------------------------------------------------------------------------------------------------
# accelerate


END = "    # The model goes before its groups"
TOLD = """    total = sum(each.detach().double().sum() for each in model.parameters()).item()
    print(f"{accelerator.num_processes} {type(model).__name__} {torch.distributed.get_backend()} {total!r}")
"""


@pytest.mark.sweep
def test_an_accelerate_export_trains_two_steps_on_gloo(tmp_path: Path) -> None:
    """As replicas: accelerate shards on GPUs alone, which a rehearsal stands for (`rehearsal/test_exports.py`)."""
    found = recipe(dp=2, microbatches=2)
    launch = launch_of(found, to_accelerate(found), steps=2)
    for name, text in launch.files.items():
        assert name != "train.py" or END in text
        (tmp_path / name).write_text(text.replace(END, TOLD + END))
    run_ranks([f"2={tmp_path / launch.script}"], ranks=2, steps=2)
    first, second = ((tmp_path / f"trimaran_run{end}").read_text().splitlines() for end in (".out", ".1.out"))
    assert [line.split()[:2] for line in first[:2]] == [["step", "0"], ["step", "1"]]
    assert first[-1].startswith("2 DistributedDataParallel gloo ")
    assert first[-1] == second[-1], "replicas differ"


# ---------------------------------------------------------------------------------------------------------------------
# Jobs of the user's


@functools.cache
def captured(reference: str) -> Graph:
    return capture(JobSource(reference=reference).make()).graph


def exported(folder: Path, function: str, **settings: Any) -> tuple[int, str]:
    """Ranks and script of a plan of a job, by way of a plan file; its stages are split in front of `blocks.2`."""
    reference = f"{JOBS}:{function}"
    graph = captured(reference)
    if settings.get("pp", 1) > 1:
        last = max(number for number, op in enumerate(graph.ops) if op.module.startswith("blocks.1"))
        cuts = [cut for cut in graph.split_points if cut in {op.id for op in graph.ops[: last + 1]}]
        settings |= {"boundaries": (cuts[-1],), "schedule": "1f1b"}
    if settings.get("zero", 0) >= 2:
        settings["units"] = tuple(f"blocks.{number}" for number in range(4))
    strategy = builders.strategy(**settings)
    plan = builders.plan(
        job=reference,
        strategy=strategy,
        premises=builders.premises(
            graph_digest=graph.digest,
            global_batch_size=16,
            devices=("cpu",) * strategy.devices,
            memory_bytes=(2**34,) * strategy.devices,
        ),
        prediction=builders.prediction(step_time_s=1.0, interval_s=(0.9, 1.1)),
        program=program_lines(lower(graph, strategy, batch=16)),
    )
    write_plan(folder / "plan.json", plan)
    return strategy.devices, export_plan(folder / "plan.json", "pytorch").text


def job_losses(folder: Path, function: str) -> list[float]:
    path = folder / "reference.py"
    path.write_text(exported(folder, function)[1])
    script = runpy.run_path(str(path))
    job = script["load_job"]()
    batches = script["read_batches"](job)
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(script["Parameters"]([model]))

    def loss(_: int) -> torch.Tensor:
        inputs, targets = next(batches)
        found: torch.Tensor = job.loss(model(inputs), targets)
        return found

    return plain_losses(model, optimizer, loss, job.clip_norm)


def check_jobs(folder: Path, function: str, plans: Mapping[str, Mapping[str, Any]]) -> None:
    scripts = {name: exported(folder, function, **settings) for name, settings in plans.items()}
    losses, expected = run_scripts(folder, scripts), job_losses(folder, function)
    for name, found in losses.items():
        assert found == pytest.approx(expected, rel=1e-5), name


@pytest.mark.sweep
def test_losses_of_a_job_are_those_of_one_process(tmp_path: Path) -> None:
    check_jobs(tmp_path, "decoder", {"dp2 m2": {"dp": 2, "microbatches": 2}, "dp2 zero3": {"dp": 2, "zero": 3}})


@pytest.mark.sweep
def test_losses_of_a_job_in_stages_are_those_of_one_process(tmp_path: Path) -> None:
    plans = {
        "pp2 1f1b m4": {"pp": 2, "microbatches": 4},
        "pp2 dp2 m2": {"pp": 2, "dp": 2, "microbatches": 2},
        "pp2 dp2 zero1 m2": {"pp": 2, "dp": 2, "microbatches": 2, "zero": 1},
    }
    check_jobs(tmp_path, "decoder", plans)


@pytest.mark.sweep
def test_losses_of_a_clipped_job_are_those_of_one_process(tmp_path: Path) -> None:
    check_jobs(tmp_path, "clipped", {"dp2": {"dp": 2}, "dp2 zero2 m2": {"dp": 2, "zero": 2, "microbatches": 2}})


# ---------------------------------------------------------------------------------------------------------------------
# What scripts cannot do


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cp": 2, "dp": 1}, "context"),
        ({"shape": MIXTRAL, "tp": 2}, "experts are whole"),
        ({"tp": 8}, "heads 4"),
        ({"precision": "fp16"}, "fp16"),
        ({"pp": 2, "schedule": "zero-bubble"}, "zero-bubble"),
        ({"shape": GPT, "pp": 2}, "also the head"),
        ({"recomputed": frozenset({"norms"})}, "norms"),
        ({"offload": True}, "host"),
        ({"gradients": "bf16"}, "bf16"),
        ({"global_batch_size": 9}, "batch of 9"),
    ],
)
def test_what_a_script_cannot_do_is_refused(settings: dict[str, Any], reason: str) -> None:
    with raises("export.not-expressible") as caught:
        to_pytorch(dataclasses.replace(recipe(), **settings))
    assert reason in str(caught.value)


def test_parts_of_a_job_that_only_trimaran_splits_are_refused(tmp_path: Path) -> None:
    with raises("export.not-expressible") as caught:
        exported(tmp_path, "clipped", pp=2, microbatches=2)
    assert "clipped" in str(caught.value)


def test_a_schedule_that_follows_a_metric_is_refused(tmp_path: Path) -> None:
    """The script has no evaluation, and called the schedule without a metric after its first step."""
    with raises("export.not-expressible", match="follows a metric"):
        exported(tmp_path, "on_a_plateau", dp=2)
