"""Plans of transformers, exported and rehearsed: are memory and step of the target's own training those of the plan?

Each plan is exported to torchtitan, accelerate and plain PyTorch, and what the target itself runs is rehearsed with the
exported files. Memory is compared by parts, and the step with the plan's.

    python benchmarks/rehearsal/exports.py                  # all rows; tens of minutes
    python benchmarks/rehearsal/exports.py --only titan     # those whose name contains it; others keep their figures

Rows of a target that is not installed are left as they are in the result.
"""

import argparse
import dataclasses
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, environment_line, write_document  # noqa: E402

MEMORY, STEP = 0.05, 0.15
"""How far a plan may be from its rehearsal without a word."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A plan and where it is exported to.

    Attributes:
        job: reference
        cluster: of the catalog
        pins: decisions of the plan
        targets: that it is exported to
        batch: sequences of an update; None: the usual one
    """

    job: str
    cluster: str
    pins: Mapping[str, Any]
    targets: tuple[str, ...]
    batch: int | None = None


ALL = ("torchtitan", "accelerate", "pytorch")
ROWS = {
    "8b dp8 zero3 recompute": Row(
        "llama3:8b", "dgx-h100:1", {"dp": 8, "zero": 3, "recompute": "layers", "microbatch": 1}, ALL
    ),
    "8b dp8 zero3": Row("llama3:8b", "dgx-h100:1", {"dp": 8, "zero": 3, "recompute": "none", "microbatch": 1}, ALL),
    "8b dp8 zero2 m2 recompute": Row(
        "llama3:8b", "dgx-h100:1", {"dp": 8, "zero": 2, "recompute": "layers", "microbatch": 1}, ALL, batch=16
    ),
    "8b dp64 zero3": Row(
        "llama3:8b", "dgx-h100:8", {"dp": 64, "zero": 3, "recompute": "none", "microbatch": 1, "shard_ranks": None}, ALL
    ),
    "8b tp2 dp4 zero3": Row(
        "llama3:8b",
        "dgx-h100:1",
        {"dp": 4, "tp": 2, "zero": 3, "recompute": "none", "microbatch": 1, "sequence_parallel": True},
        ("torchtitan", "pytorch"),
    ),
    "8b tp8 dp8 zero3": Row(
        "llama3:8b",
        "dgx-h100:8",
        {"dp": 8, "tp": 8, "zero": 3, "recompute": "none", "microbatch": 2, "sequence_parallel": True},
        ("torchtitan", "pytorch"),
    ),
    "8b pp2 tp2 dp2 zero1": Row(
        "llama3:8b",
        "dgx-h100:1",
        {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "recompute": "layers", "microbatch": 1, "chunks": 1},
        ("pytorch",),
        batch=16,
    ),
    "8b pp2 dp4 recompute": Row(
        "llama3:8b",
        "dgx-h100:1",
        {"dp": 4, "pp": 2, "zero": 1, "recompute": "layers", "microbatch": 1, "chunks": 1},
        ("pytorch",),
        batch=32,
    ),
    "llama2 70b pp4 x10 tp4": Row(
        "llama2:70b",
        "dgx-h100:128",
        {"dp": 64, "pp": 4, "tp": 4, "chunks": 10, "zero": 1, "microbatch": 1, "sequence_parallel": True}
        | {"recompute": "none"},
        ("pytorch",),
        batch=1024,
    ),
    "gpt2 1.5b dp8": Row(
        "gpt2:1.5b",
        "dgx-h100:1",
        {"dp": 8, "zero": 0, "recompute": "none", "microbatch": 4},
        ("accelerate", "pytorch"),
        batch=32,
    ),
    "gpt2 1.5b dp8 zero1 m2": Row(
        "gpt2:1.5b", "dgx-h100:1", {"dp": 8, "zero": 1, "recompute": "none", "microbatch": 2}, ("pytorch",), batch=32
    ),
    "gpt2 1.5b dp8 zero3": Row(
        "gpt2:1.5b",
        "dgx-h100:1",
        {"dp": 8, "zero": 3, "recompute": "none", "microbatch": 4},
        ("accelerate", "pytorch"),
        batch=32,
    ),
    "70b tp8 dp8 zero3 recompute": Row(
        "llama3:70b",
        "dgx-h100:8",
        {"dp": 8, "tp": 8, "zero": 3, "recompute": "layers", "microbatch": 1, "sequence_parallel": True},
        ("torchtitan",),
        batch=16,
    ),
} | {
    f"{name} on 1,024": Row(job, "dgx-h100:128", {}, ALL, batch=1024)
    for name, job in (("llama2 70b", "llama2:70b"), ("qwen3 32b", "qwen3:32b"), ("mixtral 8x7b", "mixtral:8x7b"))
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words, all of which the name of a row and its target contain")
    parser.add_argument("--limit", default="10min", help="of time, after which a rank stops")
    parser.add_argument("--output", type=Path, default=RESULTS / "rehearsal_exports.json")
    options = parser.parse_args()
    kept = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    rows = {(row["plan"], row["target"]): row for row in kept}
    for name, row in ROWS.items():
        for target in row.targets:
            if not all(word in f"{name} to {target}" for word in shlex.split(options.only)):
                continue
            if target == "torchtitan" and importlib.util.find_spec("torchtitan") is None:
                print(f"{name} to {target}: not installed")
                continue
            rows[name, target] = found = {"plan": name, "target": target} | measure(row, target, options.limit)
            print(line(found), flush=True)
            order = {(plan, to): None for plan, one in ROWS.items() for to in one.targets}
            ranked = [rows[key] for key in order if key in rows]
            environment = describe_environment()
            write_document({"schema_version": 1, "environment": environment, "rows": ranked}, options.output)
    print(environment_line(describe_environment()))
    return 0


def measure(row: Row, target: str, limit: str) -> dict[str, Any]:
    """One plan, exported to one target and rehearsed."""
    from trimaran.base.errors import TrimaranError
    from trimaran.cli.plan import rehearse_plan
    from trimaran.features.export import request_for
    from trimaran.planner.pins import Pins
    from trimaran.planning.plan import make_plan
    from trimaran.planning.requests import PlanRequest

    pins = Pins(**{name: value for name, value in row.pins.items() if value is not None})
    request = request_for(row.job, PlanRequest(cluster=row.cluster, pins=pins, batch=row.batch), target)
    head: dict[str, Any] = {
        "software": None if request.software is None else request.software.framework,
        "cluster": row.cluster,
    }
    started_s = time.monotonic()
    try:
        planned = make_plan(row.job, request)
        head |= {"strategy": planned.chosen.name, "batch": planned.global_batch_size}
        stages, world = planned.chosen.strategy.pp, planned.devices
        ranks = ",".join(str(stage * world // stages) for stage in range(stages))  # one of each stage
        found = rehearse_plan(planned, target, ranks=ranks, limit=limit)
    except TrimaranError as error:
        return head | {"refused": str(error)}
    step = found.rehearsal.step
    return head | {
        "verdict": found.rehearsal.verdict,
        "line": found.line,
        "planned_bytes": sum(found.planned_parts.values()),
        "rehearsed_bytes": found.rehearsed_bytes,
        "allocated_bytes": max((one.allocated_bytes for one in found.rehearsal.ranks), default=0),
        "planned_parts": dict(found.planned_parts),
        "rehearsed_parts": dict(found.rehearsed_parts),
        "planned_s": found.planned_s,
        "rehearsed_s": found.rehearsed_s,
        "planned_parts_s": planned.modelled.chosen.parts,
        "rehearsed_parts_s": None if step is None else dict(step.parts_s),
        "kernels_s": dict(found.kernels_s),
        "took_s": time.monotonic() - started_s,
    }


def line(row: Mapping[str, Any]) -> str:
    """A row for people."""
    name = f"{row['plan']} to {row['target']}"
    if "refused" in row:
        return f"{name}: {row['refused']}"
    if not row["rehearsed_bytes"]:
        return f"{name}: {row['line']}"
    parts = ", ".join(
        f"{part} {row['planned_parts'][part] / 2**30:.1f}/{nbytes / 2**30:.1f}"
        for part, nbytes in row["rehearsed_parts"].items()
    )
    memory = row["rehearsed_bytes"] / row["planned_bytes"] - 1
    step = "no step" if row["rehearsed_s"] is None else f"{row['rehearsed_s'] / row['planned_s'] - 1:+.0%}"
    return f"{name} ({row['strategy']}): memory {memory:+.1%} ({parts}); step {step}; {row['verdict']}"


if __name__ == "__main__":
    sys.exit(main())
