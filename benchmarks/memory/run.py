"""Training in less memory than it takes: memory virtualization against what others offer, on one GPU.

Every pair of a case and an arm runs in a process of its own. Its row is written as soon as it is known, and an arm that
runs out of memory is a row as well. Stops by itself when its time is over, and goes on where it stopped.

    PYTHONPATH=src python3 benchmarks/memory/run.py --subset first --minutes 8 --out DIRECTORY
    PYTHONPATH=src python3 benchmarks/memory/run.py --resume DIRECTORY/memory.rows.jsonl

`--device cpu --quick` runs narrow networks through the same code where there is no GPU; its times say nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.gpu.run import bring, missing_packages  # noqa: E402
from benchmarks.memory.cases import ARMS, CASES, ORACLE, SUBSETS, Arm, Case, cells, reduce  # noqa: E402
from benchmarks.memory.processes import Process, start  # noqa: E402
from benchmarks.memory.rows import Rows  # noqa: E402
from benchmarks.memory.table import HEADER, LEGEND, line, summary  # noqa: E402

PACKAGES = {"torch": "torch", "numpy": "numpy", "scipy": "scipy", "msgspec": "msgspec", "safetensors": "safetensors"}
CELL_S = 150.0
"""A pair that takes longer is given up [s]."""


def main() -> None:
    options = parse_options()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["OMP_NUM_THREADS"] = "1"
    # An allocator that grows its segments fragments least; without a fixed workspace, products of matrices differ.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    missing = missing_packages(PACKAGES)
    if missing:
        sys.exit(bring(missing))
    run(options)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=default, help="folder for memory.json and memory.rows.jsonl")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--subset", choices=tuple(SUBSETS), default="first")
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], help="instead of a subset")
    parser.add_argument(
        "--arms", nargs="+", choices=[arm.name for arm in ARMS], help="beside the oracle; all by default"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="after so long everything has ended")
    parser.add_argument("--resume", type=Path, nargs="?", const=Path(), help="rows of an earlier run; those of --out")
    parser.add_argument("--quick", action="store_true", help="narrow networks and a few steps, to try the benchmark")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Every pair that there is time for, one after another."""
    from benchmarks.environment import environment_line, write_document

    deadline_s = time.monotonic() + 60 * options.minutes
    environment = described()
    if options.device == "cuda" and environment["gpu"] is None:
        sys.exit(f"torch {environment['torch']} sees no GPU: use --device cpu --quick to try the benchmark without one")
    path: Path = options.out / "memory.rows.jsonl"
    rows = Rows(path, resume=path if options.resume == Path() else options.resume)
    print(environment_line(environment), "\n\n" + HEADER, sep="", flush=True)
    for row in rows.all:
        print(line(row), flush=True)
    left = [pair for pair in chosen(options) if not rows.has(*pair)]
    left_out = work(left, rows, options, deadline_s)
    document = {
        "schema_version": 1,
        "environment": environment,
        "options": {name: value for name, value in vars(options).items() if name not in ("out", "resume")},
        "rows": rows.all,
        "left_out": [f"{case.name}, {arm.name}" for case, arm in left_out],
    }
    write_document(document, options.out / "memory.json")
    print(LEGEND, summary(rows.all), sep="\n")
    if left_out:
        print(f"no time for {len(left_out)} pairs: go on with --resume {path}")
    print(f"written to {options.out / 'memory.json'}")


def described() -> dict[str, Any]:
    """The environment, found out by another process: one that has looked at the GPU holds memory of it."""
    say = "import json; from benchmarks.environment import describe_environment as d; print(json.dumps(d()))"
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", say],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def chosen(options: argparse.Namespace) -> list[tuple[Case, Arm]]:
    """The pairs that were asked for, in order."""
    names = options.cases or SUBSETS[options.subset]
    cases = [reduce(case) if options.quick else case for case in CASES if case.name in names]
    arms = [arm for arm in ARMS if options.arms is None or arm.name in options.arms]
    return list(cells(cases, arms))


def work(
    left: list[tuple[Case, Arm]], rows: Rows, options: argparse.Namespace, deadline_s: float
) -> list[tuple[Case, Arm]]:
    """Run pairs; while one computes, the next already imports what it needs.

    Returns:
        Those that there was no time for.
    """
    following: Process | None = None
    for number, (case, arm) in enumerate(left):
        remaining_s = deadline_s - time.monotonic()
        if remaining_s < (5.0 if options.quick else 15.0):
            if following is not None:
                following.stop()
            return left[number:]
        process = following or start(case, arm, device=options.device, quick=options.quick)
        following = None
        oracle = rows.find(case, ORACLE)
        if arm.name != ORACLE and (oracle is None or oracle["status"] != "ok"):
            process.stop()
            row: dict[str, Any] = {"status": "failed", "error": "the oracle has no result to compare with"}
        else:
            process.go(oracle)
            if number + 1 < len(left):
                following = start(*left[number + 1], device=options.device, quick=options.quick)
            row = process.result(timeout_s=min(CELL_S, remaining_s))
        print(line(rows.add(case, arm, row)), flush=True)
    return []


if __name__ == "__main__":
    main()
