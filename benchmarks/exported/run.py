"""Are scripts of plain PyTorch as fast, one after the other, as the plans that they were exported from?

Plans a decoder on two ranks by given strategies, exports each as a script, and runs all scripts by turns. Of each pair
of strategies whose predicted steps differ by more than 15 %, the order of the measured steps is compared.

    python benchmarks/exported/run.py
"""

import argparse
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, environment_line, write_document  # noqa: E402

JOB = ROOT / "tests" / "distributed" / "exported_jobs.py"
STRATEGIES = ("dp2", "dp2 zero3", "dp2 m4", "pp2 1f1b m2", "pp2 1f1b m4", "pp2 gpipe m8", "one device")
APART = 0.15
WARM = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS / "exported.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planned = {name: plan(name, Path(folder) / f"plan{number}") for number, name in enumerate(STRATEGIES)}
        steps: dict[str, list[list[float]]] = {name: [] for name, found in planned.items() if found["script"]}
        for _ in range(options.rounds):
            for name, rounds in steps.items():
                rounds.append(run(Path(planned[name]["script"]), planned[name]["ranks"], options.steps))
    rows = []
    for name, rounds in steps.items():
        medians = sorted(statistics.median(found[WARM:]) for found in rounds)
        rows.append(
            {
                "strategy": name,
                "predicted_s": planned[name]["predicted_s"],
                "measured_s": statistics.median(medians),
                "spread": medians[-1] / medians[0] - 1.0,
            }
        )
        print(f"{name:16} {rows[-1]['predicted_s']:.4f} {rows[-1]['measured_s']:.4f} ±{rows[-1]['spread']:.0%}")
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if apart(a["predicted_s"], b["predicted_s"])]
    kept = [pair for pair in pairs if in_order(*pair)]
    environment = describe_environment(devices=2)
    document: dict[str, Any] = {
        "schema_version": 1,
        "environment": environment,
        "rows": rows,
        "refused": {name: found["refused"] for name, found in planned.items() if found["refused"]},
        "pairs": len(pairs),
        "in_order": len(kept),
        "out_of_order": [[a["strategy"], b["strategy"]] for a, b in pairs if not in_order(a, b)],
    }
    write_document(document, options.output)
    print(f"{len(kept)} of {len(pairs)} pairs in the predicted order; {environment_line(environment)}")
    return 0


def apart(one: float, other: float) -> bool:
    return max(one, other) / min(one, other) > 1.0 + APART


def in_order(one: dict[str, float], other: dict[str, float]) -> bool:
    return (one["predicted_s"] < other["predicted_s"]) == (one["measured_s"] < other["measured_s"])


def plan(strategy: str, path: Path) -> dict[str, Any]:
    """Plan by a strategy and export it: prediction [s], script, ranks; or why it cannot be."""
    command = [sys.executable, "-m", "trimaran"]
    done = subprocess.run(
        [*command, "plan", f"{JOB}:wide", "--devices", "2", "--strategy", strategy, "-o", f"{path}.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"script": "", "refused": done.stderr.strip()[-300:]}
    found = json.loads(Path(f"{path}.json").read_text())
    done = subprocess.run(
        [*command, "export", f"{path}.json", "--to", "pytorch", "-o", f"{path}.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"script": "", "refused": done.stderr.strip()[-300:]}
    ranks = found["strategy"].get("dp", 1) * found["strategy"].get("pp", 1)
    return {
        "script": f"{path}.py",
        "refused": "",
        "ranks": ranks,
        "predicted_s": found["prediction"]["step_time_s"],
    }


def run(script: Path, ranks: int, steps: int) -> list[float]:
    """Seconds of each step of a script, as its rank 0 prints them."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), "--steps", str(steps)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{script}: a rank ended with an error")
    return [float(seconds) for seconds in re.findall(r"seconds (\S+)", said[0])]


if __name__ == "__main__":
    sys.exit(main())
