"""What pages are made of: documents as the commands write them, and the folder of a run."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests import builders
from tests.unit.program.test_plan_file import GRAPH
from tests.unit.rehearsal.test_page import made as rehearsal
from tests.unit.report import test_converging, test_scaling_table
from tests.unit.report.crossover.test_report import crossed
from tests.unit.report.runs import measured, predicted
from tests.unit.report.test_files import REPORT

from trimaran.base.remedies import Remedy
from trimaran.base.timeline import Timeline
from trimaran.convergence.files import doubling_ratios, find_curve
from trimaran.program.json_files import to_plain
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import CandidateRow, Plan, program_lines, write_plan
from trimaran.report.convergence_curve import CurveCatalog, study_curve
from trimaran.report.memory import (
    Holder,
    LeastMemory,
    LiveCurve,
    MemoryEstimate,
    PolicyFigures,
    Usage,
)
from trimaran.report.observation import Observation, ObservedRank
from trimaran.report.run_report import write_report
from trimaran.report.timelines import write_timeline

GIB = 2**30
HOSTILE = "</script><script>alert(1)</script><img src=http://x/>\x1b[2J\u202e'\"&"
"""A name that a file may hold: it closes elements, loads, moves a cursor and turns the direction of writing."""


def remedy(name: str = "compile the model") -> Remedy:
    """A remedy that saves a tenth."""
    return Remedy(
        id="larger-batch",
        limiter="launches",
        name=name,
        action=f"Wrap it: {name}.",
        predicted_gain=0.1,
        gain_interval=(-0.02, 0.2),
        method="estimated",
        basis="by hand",
    )


def memory_estimate(name: str = "vgg16") -> MemoryEstimate:
    """A step of 3 GiB that fits 2 GiB with a plan."""
    usage = Usage(peak_bytes=3 * GIB, mean_bytes=GIB, time_mean_bytes=GIB, bare_peak_bytes=GIB, bare_mean_bytes=GIB)
    policies = {
        policy: PolicyFigures(
            fits=policy == "ours",
            **asdict(usage) | {"peak_bytes": GIB if policy == "ours" else 3 * GIB},
            step_time_s=1.1 if policy == "ours" else 1.0,
            slowdown=0.1 if policy == "ours" else 0.0,
            to_host_bytes=GIB,
            to_device_bytes=GIB,
            host_peak_bytes=GIB,
            recomputed_bytes=0,
            recompute_s=0.0,
            stall_s=0.1,
        )
        for policy in ("none", "all", "ours")
    }
    return MemoryEstimate(
        job=name,
        local_batch_size=64,
        device="GPU of 2 GiB",
        precision="fp32",
        source="by hand",
        budget_bytes=2 * GIB,
        weight_bytes=GIB // 2,
        optimizer_bytes=GIB // 2,
        gradient_bytes=GIB // 2,
        kept_s=1.0,
        keep=usage,
        minimum_memory_bytes=GIB,
        minimum_memory=LeastMemory(at="conv2", held_by=(Holder(name="conv2", role="weight", nbytes=GIB),)),
        lower_bound_s=1.0,
        offload_lower_bound_s=1.0,
        bottleneck="copies",
        policy="ours",
        policies=policies,
        live_bytes=LiveCurve(
            seconds=(0.4, 0.4, 0.2),
            phases=("FP", "BP", "WU"),
            kept_bytes=(GIB, 3 * GIB, GIB),
            plan_bytes=(GIB, 2 * GIB, GIB),
        ),
    )


def observation(name: str = "Net") -> Observation:
    """Two ranks of a script."""
    parts = {"loading": 0.01, "forward": 0.02, "backward": 0.04, "other": 0.03}
    ranks = [ObservedRank(rank=n, samples=8.0, peak_bytes=GIB, parts_s=parts) for n in range(2)]
    return Observation(
        model=name,
        device="cpu",
        step_time_s=0.1,
        interval_s=(0.09, 0.12),
        steps=20,
        backwards=1.0,
        left_out={"slow": 1},
        parts_s=parts,
        ranks=ranks,
        memory_bytes={"parameters": GIB},
        launch_bound=None,
        limiter="compute",
        doubt=None,
        remedies=[remedy(name)],
        unseen=[f"what {name} reads"],
    )


def studies(name: str = "") -> dict[str, dict[str, Any]]:
    """A document of each study, as its command writes it.

    Args:
        name: of the job, the script and the like; "": a plain one
    """
    scaled = test_scaling_table.study(test_scaling_table.row(0.5, devices=1), test_scaling_table.row(0.6, devices=8))
    crossover, converged, rehearsed = crossed(), test_converging.found(), rehearsal()
    curve = study_curve("resnet50", find_curve("resnet50"), (2048,))
    if name:
        scaled = replace(scaled, job=name, notes=(name,), advice=(remedy(name),))
        crossover = replace(crossover, job=name, notes=(name,))
        converged = replace(converged, job=name, warnings=(name,))
        rehearsed = replace(rehearsed, script=[name], headline=name, notes=[name], agreement=name)
        curve = replace(curve, name=name, task=name, warnings=(name,))
    estimate = memory_estimate(name or "vgg16")
    return {
        "plan": plan_answer(name or "llama2:70b"),
        "scale": to_plain(scaled),
        "crossover": to_plain(crossover),
        "curve": to_plain(curve),
        "curve --list": to_plain(CurveCatalog(curves=(curve,), ratios=doubling_ratios())),
        "converge": to_plain(converged),
        "memory": to_plain(estimate),
        "rehearse": to_plain(rehearsed),
        "observe": {"exit_code_of_command": 0} | to_plain(observation(name or "Net")),
    }


def plan_answer(name: str = "llama2:70b") -> dict[str, Any]:
    """What `plan --json` prints of a plan of degrees: two stages of 30 and 20 GiB, a baseline 1.5 times as slow."""
    chosen = {
        "strategy": "dp2 pp2 m4",
        "degrees": {"dp": 2, "pp": 2, "tp": 1, "cp": 1},
        "step_time_s": 2.0,
        "interval_s": [1.8, 2.2],
        "peak_bytes": 30 * GIB,
        "peak_bytes_by_rank": [30 * GIB],
        "limiter": name,
        "parts_s": {"compute": 1.5, "idle stages": 0.25, "exchanges between replicas": 0.25},
        "mfu": 0.5,
        "tokens_per_s": 4096.0,
        "need_bytes": {"least": 28 * GIB, "usual": 29 * GIB, "most": 30 * GIB},
        "pareto": True,
    }
    stages = [
        {
            "stage": n,
            "layers": [[2 * n, 2 * n + 2]],
            "peak_bytes": (30 - 10 * n) * GIB,
            "state_bytes": 10 * GIB,
            "activation_bytes": (15 - 10 * n) * GIB,
            "buffer_bytes": 5 * GIB,
        }
        for n in range(2)
    ]
    traffic = {"kind": "dp", "members": 2, "nodes": 2, "cards": 1, "sharing": 1, "uplinks": 0.0}
    layout = {"stages": stages, "device_order": [{"axis": "pp", "size": 2}], "traffic": [traffic]}
    slower = {
        "strategy": "dp4 zero3",
        "degrees": {"dp": 4, "pp": 1, "tp": 1, "cp": 1},
        "step_time_s": 3.0,
        "interval_s": [2.7, 3.3],
        "peak_bytes": 35 * GIB,
        "peak_bytes_by_rank": [35 * GIB],
        "parts_s": {"compute": 1.5, "idle stages": 0.0, "exchanges between replicas": 1.5},
        "pareto": False,
    }
    return {
        "job": name,
        "cluster": "dgx-h100:1",
        "machine": name,
        "device": "NVIDIA H100 SXM5 80 GB",
        "devices": 4,
        "link": None,
        "global_batch_size": 8,
        "precision": "bf16",
        "software": "megatron:2025",
        "objective": "throughput",
        "notes": [name],
        "sequence": 4096,
        "memory_limit_bytes": 40 * GIB,
        "expert_loads": [
            {
                "imbalance": load,
                "reached": load,
                "step_time_s": 2.0 * load,
                "interval_s": [load, 3.0 * load],
                "peak_bytes": 30 * GIB,
                "fits": load < 2,
                "planned": load == 1.0,
            }
            for load in (1.0, 2.0)
        ],
        "candidates": [chosen, slower],
        "front": [chosen | {"devices": 4}],
        "chosen": chosen | {"gap": 0.1, "layout": layout},
        "baseline": slower,
        "rejected": [],
        "rejected_counts": {"does not fit the memory of a device": 12},
        "references": [{"role": "ddp", "reason": "needs 100 GB", "strategy": None, "step_time_s": None}],
        "rule": name,
    }


def write_study(path: Path, document: dict[str, Any]) -> Path:
    """A document in a file, as `--json` prints it."""
    path.write_text(json.dumps({"schema_version": 1} | document))
    return path


def small_plan(name: str = "digits") -> Plan:
    """A plan of two stages with a program, and candidates on one and two devices."""
    chosen = builders.strategy(pp=2, boundaries=(GRAPH.split_points[0],), schedule="1f1b")
    prediction = builders.prediction(step_time_s=9.0, interval_s=(8.5, 9.5), peak_bytes=(150, 260))
    alone = builders.prediction(step_time_s=16.0, interval_s=(15.0, 17.0), peak_bytes=(400,))
    data = builders.prediction(step_time_s=10.0, interval_s=(9.0, 12.0), peak_bytes=(400, 400))
    return builders.plan(
        job=name,
        strategy=chosen,
        premises=builders.premises(
            graph_digest="1", global_batch_size=8, devices=("one core",) * 2, memory_bytes=(1000,) * 2
        ),
        prediction=prediction,
        candidates=(
            CandidateRow(strategy=chosen, verdict="chosen", prediction=prediction, limiter=name, pareto=True),
            CandidateRow(strategy=builders.strategy(dp=2), verdict="baseline", prediction=data),
            CandidateRow(strategy=builders.strategy(), verdict="runner-up", prediction=alone, pareto=True),
            CandidateRow(strategy=builders.strategy(dp=2, zero=3), verdict="rejected", reason=name),
        ),
        program=program_lines(lower(GRAPH, chosen, batch=8)),
    )


def write_run(folder: Path, *, name: str = "digits", status: str = "finished", reason: str = "") -> Path:
    """The folder of a run of two ranks, as `trimaran train` leaves it."""
    folder.mkdir(parents=True)
    run = {
        "schema_version": 1,
        "trimaran": "0.1.0",
        "python": "3.11.7",
        "status": status,
        "job": name,
        "strategy": "pp2 1f1b",
        "command": f"trimaran train '{name}' --devices 2",
        "started_at": "2026-11-22T20:59:27+0000",
    }
    (folder / "run.json").write_text(json.dumps(run | ({"reason": reason} if reason else {})))
    write_plan(folder / "plan.json", small_plan(name))
    live = [[(0.0, 100), (2.0, 150), (8.0, 100)], [(0.0, 200), (4.0, 260)]]
    write_timeline(folder / "predicted.json", Timeline(predicted(), live))
    write_timeline(folder / "measured.json", measured(6))
    write_report(folder / "report.json", replace(REPORT, job=name, notes=(name,), environment={"torch": name}))
    epochs = [{"epoch": n, "loss": 2.0 / n, "accuracy": 0.4 + 0.1 * n, "seconds": 1.5} for n in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(epoch)}\n" for epoch in epochs))
    return folder
