"""Three questions about pipelines and two about transformers on many devices, put to everything that answers them.

A pipeline is simulated: by `plan` and `explain`, for a plan in a file, as workers of `crossover`, and through the API.
Parallel degrees of a transformer are priced by the analytical model: by `plan`, `explain`, the API, and by what
`validate` asks of a published row that names the same degrees. One function an asker, which returns the step of all
devices [s], or None where it cannot be asked.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commands.running import trimaran as command

import trimaran
from trimaran.features.crossover.steps import Workers
from trimaran.planning.requests import PlanRequest
from trimaran.program.strategy import Schedule
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import answer_model_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Replicas of a pipeline.

    Attributes:
        network: a job
        cluster: a machine of the catalog
        devices: in use
        batch: samples of a step
        stages: of each replica
        schedule: of them
        microbatches: of a replica
        strategy: all of it by name, where a schedule leaves more open
    """

    network: str
    cluster: str
    devices: int
    batch: int
    stages: int
    schedule: Schedule
    microbatches: int
    strategy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Parallel degrees of a transformer.

    Attributes:
        network: a published decoder
        row: what a published row calls it
        cluster: a machine of the catalog
        devices: in use
        batch: sequences of a step
        sequence: tokens of each
        tp: ranks that share a layer
        pp: stages
        chunks: parts of the layers on each stage
        microbatch: sequences
    """

    network: str
    row: str
    cluster: str
    devices: int
    batch: int
    sequence: int
    tp: int
    pp: int
    chunks: int
    microbatch: int


Question = Pipeline | Degrees

QUESTIONS: Mapping[str, Question] = {
    "gnmt in two stages, 1f1b": Pipeline(
        network="gnmt", cluster="dgx1-v100", devices=2, batch=128, stages=2, schedule="1f1b", microbatches=2
    ),
    "gnmt in two stages, gpipe, eight devices": Pipeline(
        network="gnmt", cluster="dgx1-v100-32gb", devices=8, batch=512, stages=2, schedule="gpipe", microbatches=4
    ),
    "gnmt in two stages of four parts, two nodes": Pipeline(
        network="gnmt",
        cluster="dgx1-v100:2",
        devices=16,
        batch=1024,
        stages=2,
        schedule="interleaved",
        microbatches=2,
        strategy="dp8 pp2 interleaved x4 m2",
    ),
    "llama2:70b on 512 H100": Degrees(
        network="llama2:70b",
        row="LLAMA2-70B",
        cluster="dgx-h100:64",
        devices=512,
        batch=1024,
        sequence=4096,
        tp=4,
        pp=4,
        chunks=5,
        microbatch=1,
    ),
    "gpt3:175b on 128 H100": Degrees(
        network="gpt3:175b",
        row="GPT3-175B",
        cluster="dgx-h100:16",
        devices=128,
        batch=256,
        sequence=2048,
        tp=8,
        pp=8,
        chunks=6,
        microbatch=2,
    ),
}


def plan_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran plan`, held to the strategy; the plan is kept in a file."""
    chosen = _command(folder, "plan", asked, "-o", _file(asked))["chosen"]
    if isinstance(asked, Degrees):
        degrees = chosen["degrees"]
        assert (degrees["chunks"], degrees["microbatch_size"]) == (asked.chunks, asked.microbatch)
    seconds: float = chosen["step_time_s"]
    return seconds


def explain_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran explain`, which searches again."""
    if not _is_explained(asked):
        return None
    seconds: float = _command(folder, "explain", asked)["plan"]["step_time_s"]
    return seconds


def file_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran explain` of the file that `plan` wrote."""
    if isinstance(asked, Degrees) or not _is_explained(asked):
        return None
    seconds: float = _run(folder, "explain", _file(asked), "--cluster", asked.cluster)["plan"]["step_time_s"]
    return seconds


def api_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran.plan`."""
    seconds: float = _planned(asked).chosen.step_time_s
    return seconds


def api_explain_s(asked: Question, folder: Path) -> float | None:
    """By `trimaran.explain` of that plan."""
    if not _is_explained(asked):
        return None
    return trimaran.explain(_planned(asked)).explanation.chosen.candidate.step_time_s


def crossover_s(asked: Question, folder: Path) -> float | None:
    """By the workers of `trimaran crossover`: of their best strategy, which is interleaved for this network."""
    if not isinstance(asked, Pipeline) or asked.schedule != "interleaved":
        return None
    workers = Workers(asked.network, PlanRequest(cluster=asked.cluster), asked.batch * asked.stages // asked.devices)
    return workers.step_s(asked.stages, workers.base_batch, asked.devices)


def validate_s(asked: Question, folder: Path) -> float | None:
    """By what `python -m trimaran_studies validate` asks of a published row."""
    if not isinstance(asked, Degrees):
        return None
    fields = {
        "source_repo": "NVIDIA/NeMo",
        "model": asked.row,
        "precision": "BF16",
        "machine": "DGX-H100",
        "gpu": "DGX-H100",
        "n_gpus": asked.devices,
        "global_batch": asked.batch,
        "seq_len": asked.sequence,
        "tp": asked.tp,
        "pp": asked.pp,
        "micro_batch": asked.microbatch,
        "config": f"vp={asked.chunks}",
    }
    row = Row(
        row_id="question",
        family="mp_step_time",
        fields={name: str(value) for name, value in fields.items()},
        measured=1.0,
        unit="s",
        anchor=None,
    )
    return answer_model_parallel(row).predicted


ASKERS: Mapping[str, Callable[[Question, Path], float | None]] = {
    "plan": plan_s,
    "explain": explain_s,
    "plan file": file_s,
    "api plan": api_s,
    "api explain": api_explain_s,
    "crossover": crossover_s,
    "validate": validate_s,
}


def _is_explained(asked: Question) -> bool:
    """Whether it is put to `explain`: it searches once more without each pin, which takes long on many devices."""
    return isinstance(asked, Degrees) or asked.devices == 2


def _planned(asked: Question) -> trimaran.Planned:
    if isinstance(asked, Pipeline) and asked.strategy:
        return trimaran.plan(
            asked.network, cluster=asked.cluster, devices=asked.devices, batch=asked.batch, strategy=asked.strategy
        )
    if isinstance(asked, Pipeline):
        pins = trimaran.Pins(
            dp=asked.devices // asked.stages,
            pp=asked.stages,
            tp=1,
            zero=0,
            microbatches=asked.microbatches,
            schedule=asked.schedule,
            forbid=("hierarchical", "placement"),
        )
    else:
        pins = trimaran.Pins(
            tp=asked.tp, pp=asked.pp, zero=1, chunks=asked.chunks, microbatch=asked.microbatch, forbid=("cp", "memory")
        )
    return trimaran.plan(asked.network, cluster=asked.cluster, devices=asked.devices, batch=asked.batch, pins=pins)


def _command(folder: Path, name: str, asked: Question, *options: str) -> Any:
    held: tuple[object, ...]
    if isinstance(asked, Pipeline) and asked.strategy:
        held = ("--strategy", asked.strategy)
    elif isinstance(asked, Pipeline):
        held = ("--dp", asked.devices // asked.stages, "--pp", asked.stages, "--tp", 1, "--zero", 0)
        held += ("--microbatches", asked.microbatches, "--schedule", asked.schedule)
        held += ("--forbid", "hierarchical", "--forbid", "placement")
    else:
        held = ("--tp", asked.tp, "--pp", asked.pp, "--zero", 1, "--forbid", "memory", "--cp", 1)
        held += ("--vp", asked.chunks, "--micro-batch", asked.microbatch)
    where = ("--cluster", asked.cluster, "--devices", asked.devices, "--batch", asked.batch)
    return _run(folder, name, asked.network, *where, *held, *options)


def _run(folder: Path, *words: object) -> Any:
    done = command(*map(str, words), "--json", cwd=folder, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def _file(asked: Question) -> str:
    return f"{asked.network.replace(':', '-')}-{asked.devices}.json"
