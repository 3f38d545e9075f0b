"""Ten questions about data parallelism, put to everything that predicts its step, on equal terms.

The terms: PyTorch of 2024, gradients exchanged by all-reduce, no sharded state, no compression, data that are there, no
measured figure. One function a predictor, which returns the step of all devices [s], or None where it cannot be asked.
The one under times to train has terms of its own, so it is on record, but not compared with the others.

The same questions are put for the memory of a device, on the terms of each software: PyTorch's DDP, and Trimaran's
runtime, which does not copy gradients into buckets. They have the same step.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commands.running import trimaran as command

import trimaran
from trimaran.features.crossover.request import machine_for
from trimaran.features.crossover.steps import Replicas
from trimaran.machine.find import find_machine
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.pricing.kernels.software import Software
from trimaran.report.scaling import ScalingRow
from trimaran_studies.facts.benchmarks import benchmark_of
from trimaran_studies.time_to_train.from_submissions import StepModel
from trimaran_studies.time_to_train.submissions import Submission
from trimaran_studies.validation.measurement import Row, Setup
from trimaran_studies.validation.recipes import Recipe
from trimaran_studies.validation.steps import row_step

AGREEMENT = 0.001
"""How far apart predictors of equal terms may be, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: so many replicas of a network.

    Attributes:
        network: a job
        cluster: a machine of the catalog
        devices: replicas
        local_batch: samples of each
        precision: "fp32", "fp16" or "bf16"
    """

    network: str
    cluster: str
    devices: int
    local_batch: int
    precision: str


QUESTIONS: Mapping[str, Question] = {
    "resnet50 on 64 A100": Question(
        network="resnet50", cluster="dgx-a100:8", devices=64, local_batch=64, precision="bf16"
    ),
    "resnet50 on 8 A100": Question(network="resnet50", cluster="dgx-a100", devices=8, local_batch=64, precision="bf16"),
    "resnet50 on 8 V100": Question(
        network="resnet50", cluster="dgx1-v100", devices=8, local_batch=64, precision="fp16"
    ),
    "vgg16 on 8 V100": Question(network="vgg16", cluster="dgx1-v100", devices=8, local_batch=32, precision="fp32"),
    "vgg16 on 16 V100 and Ethernet": Question(
        network="vgg16", cluster="dgx1-v100:2@ethernet-25g", devices=16, local_batch=32, precision="fp16"
    ),
    "inception_v3 on 256 V100": Question(
        network="inception_v3", cluster="dgx1-v100:32", devices=256, local_batch=64, precision="fp32"
    ),
    "bert:large on 32 A100": Question(
        network="bert:large:sequence=256,guesses=40",
        cluster="dgx-a100:4",
        devices=32,
        local_batch=8,
        precision="bf16",
    ),
    "gnmt on 16 V100": Question(network="gnmt", cluster="dgx2", devices=16, local_batch=32, precision="fp16"),
    "resnet50 on 4 RTX 3090": Question(
        network="resnet50", cluster="4xrtx-3090", devices=4, local_batch=64, precision="fp32"
    ),
    "lenet on 2 V100": Question(network="lenet", cluster="dgx1-v100", devices=2, local_batch=2048, precision="fp32"),
}


def _plan(asked: Question, folder: Path) -> Any:
    """By `trimaran plan`, held to replicas."""
    batch = asked.local_batch * asked.devices
    held = ("--dp", str(asked.devices), "--pp", "1", "--tp", "1", "--zero", "0", "--microbatches", "1")
    kinds = ("--allow", "dp", "--forbid", "hierarchical", "--forbid", "memory", "--forbid", "compiled")
    return _command(folder, "plan", asked, "--software", "pytorch", "--batch", str(batch), *held, *kinds)["chosen"]


def plan_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran plan`, held to replicas."""
    seconds: float = _plan(asked, folder)["step_time_s"]
    return seconds


def plan_bytes(asked: Question, folder: Path) -> int:
    """The same, of memory."""
    return int(_plan(asked, folder)["peak_bytes"])


def _scale(asked: Question, folder: Path) -> Any:
    (row,) = _command(folder, "scale", asked, "--local-batch", str(asked.local_batch))["rows"]
    return row


def scale_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran scale`."""
    seconds: float = _scale(asked, folder)["step_time_s"]
    return seconds


def scale_bytes(asked: Question, folder: Path) -> int:
    """The same, of memory."""
    nbytes: int = _scale(asked, folder)["peak_bytes"]
    return nbytes


@functools.cache
def _api_plan(asked: Question) -> Any:
    """By `trimaran.plan`, held to replicas as the command is."""
    kinds = ("hierarchical", "memory", "compiled")
    pins = trimaran.Pins(dp=asked.devices, pp=1, tp=1, zero=0, microbatches=1, allow=("dp",), forbid=kinds)
    batch = asked.local_batch * asked.devices
    found = trimaran.plan(
        asked.network,
        cluster=asked.cluster,
        devices=asked.devices,
        batch=batch,
        precision=asked.precision,
        pins=pins,
    )
    return found.chosen


def api_plan_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran.plan`."""
    seconds: float = _api_plan(asked).step_time_s
    return seconds


def api_plan_bytes(asked: Question, folder: Path) -> int:
    """The same, of memory."""
    return max(_api_plan(asked).peak_bytes)


@functools.cache
def _api_scale(asked: Question) -> ScalingRow:
    """By `trimaran.predict_scaling`."""
    found = trimaran.predict_scaling(
        asked.network,
        cluster=asked.cluster,
        devices=(asked.devices,),
        local_batch=asked.local_batch,
        precision=asked.precision,
        software="trimaran",
    )
    (row,) = found.rows
    return row


def api_scale_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran.predict_scaling`."""
    return _api_scale(asked).step_time_s


def api_scale_bytes(asked: Question, folder: Path) -> int:
    """The same, of memory."""
    return _api_scale(asked).peak_bytes


def _replicas(asked: Question) -> Replicas:
    """The replicas that `trimaran crossover` holds hybrids against."""
    _, machine = machine_for(asked.cluster, asked.devices)
    return Replicas(DataParallelJob(reference=asked.network, machine=machine, precision=asked.precision))


def crossover_s(asked: Question, folder: Path) -> float | None:
    """By the replicas that `trimaran crossover` holds hybrids against."""
    replicas = _replicas(asked)
    added = replicas.exchange(asked.local_batch, asked.devices)
    return replicas.alone_s(asked.local_batch) + added.added_s(1.0)


def crossover_bytes(asked: Question, folder: Path) -> int:
    """The same, of memory."""
    return _replicas(asked).job.memory_at(asked.local_batch, asked.devices).peak_bytes


def validate_s(asked: Question, folder: Path) -> float | None:
    """By what `python -m trimaran_studies validate` asks of a published row."""
    machine = find_machine(asked.cluster)
    setup = Setup(
        network=asked.network,
        options={},
        local_batch=asked.local_batch,
        precision=asked.precision,
        machine=machine,
        device=machine.node.device.name,
        devices=asked.devices,
        nodes=machine.nodes,
        software=Software(),
        sync="nccl",
        real_data=None,
    )
    recipe = Recipe(network=asked.network, software=Software())
    return row_step(_row("dp_step_time"), setup, recipe, anchor_s=None).seconds


def time_to_train_s(asked: Question, folder: Path) -> float | None:
    """By the step under times to train: in 16 bits only, captured and fused, gradients in 16 bits, as submitters do."""
    if asked.precision == "fp32":
        return None
    machine = find_machine(asked.cluster)
    submission = Submission(
        row=_row("time_to_train"),
        submitter="",
        software="pytorch",
        round="v3.0",
        benchmark=asked.network,
        kind=machine.node.device.name,
        devices=asked.devices,
        batch=asked.local_batch * asked.devices,
        minutes=1.0,
        logged=None,
        open=False,
        machine=machine,
        known=True,
    )
    return StepModel(submission, benchmark_of(asked.network, submission.version)).step(1.0).seconds


PREDICTORS: Mapping[str, Callable[[Question, Path], float | None]] = {
    "plan": plan_s,
    "scale": scale_s,
    "api plan": api_plan_s,
    "api scale": api_scale_s,
    "crossover": crossover_s,
    "validate": validate_s,
    "time_to_train": time_to_train_s,
}


def one_device_bytes(network: str, cluster: str, *, batch: int, precision: str) -> dict[str, int]:
    """Memory of a step on one device: by `memory`, with the workspace that its figures leave out, and by the others."""
    machine = find_machine(cluster)
    device = machine.node.device.name
    asked = {"batch": batch, "precision": precision}
    alone = trimaran.estimate_memory(network, device=device, largest_batch=False, **asked).estimate
    pins = trimaran.Pins(dp=1, pp=1, tp=1, zero=0, microbatches=1, forbid=("memory", "compiled"))
    planned = trimaran.plan(network, cluster=cluster, devices=1, pins=pins, **asked).chosen
    (row,) = trimaran.predict_scaling(network, cluster=cluster, devices=(1,), **asked).rows
    return {
        "memory": alone.keep.peak_bytes + alone.workspace_bytes,
        "plan": max(planned.peak_bytes),
        "scale": row.peak_bytes,
    }


MEMORY: Mapping[str, Mapping[str, Callable[[Question, Path], int]]] = {
    "pytorch": {"plan": plan_bytes, "scale": scale_bytes, "crossover": crossover_bytes},
    "trimaran": {"api plan": api_plan_bytes, "api scale": api_scale_bytes},
}
"""By software: who says how much memory a device needs, as its framework's allocator counts it [bytes]."""


UNLIKE = frozenset({"time_to_train"})
"""Predictors on terms of their own."""


def apart(said: Mapping[str, float | None] | Mapping[str, int]) -> float:
    """How much longer, or larger, the largest answer on equal terms is than the smallest, as a share."""
    known = [seconds for who, seconds in said.items() if seconds is not None and who not in UNLIKE]
    return max(known) / min(known) - 1


@functools.cache
def _command(folder: Path, name: str, asked: Question, *options: str) -> Any:
    where = ("--cluster", asked.cluster, "--devices", str(asked.devices), "--precision", asked.precision)
    done = command(name, asked.network, *where, *options, "--json", cwd=folder, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def _row(family: str) -> Row:
    """A row of which nothing is known but its set-up."""
    return Row(row_id="question", family=family, fields={}, measured=1.0, unit="s", anchor=None)
