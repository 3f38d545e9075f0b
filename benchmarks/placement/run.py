"""Placements of large networks: how good they are after how long, or after how much work.

Inception-v3 as PipeDream profiled it, and the large networks of `tests/placement_networks.py`, on two devices joined by
25 GB/s each way. Each is placed with every budget: wall time (`--limits`), or work that does not depend on the machine
(`--work`), on as many cores as are asked for (`--cores`). Prints a table and writes `benchmarks/results/placement.json`
(speedup, bound and gap, HEFT's time, how busy the machine was before and after). Each row has its date and commit: of
what is not run, the rows that are there stay.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, environment_line, write_result  # noqa: E402
from tests import placement_networks as networks  # noqa: E402

from trimaran.features.placement import profiled_problem  # noqa: E402
from trimaran.graph.profiled import ProfiledGraph, read_profiled  # noqa: E402
from trimaran.placement.solve import place  # noqa: E402

NAME = "placement"
INCEPTION = ROOT / "tests" / "published" / "graphs" / "inception_v3.json"
BUILT = {
    "nas-cells": networks.nas_cells,
    "dense-net": networks.dense_net,
    "nested-u-net": networks.nested_u_net,
    "translation": networks.translation,
    "two-towers": networks.two_towers,
    "nas-cells-5000": lambda: networks.nas_cells(74, batch=16),
}
GRAPHS = ("inception-v3", *BUILT)


def main() -> None:
    """Place the graphs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="which of them")
    parser.add_argument("--limits", default="5,15,60,300", help="wall time for each [s]; empty: none")
    parser.add_argument("--work", default="", help="work for each, in seconds of a usual core [s]; empty: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=2, help="that it may use; 0: all")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    budgets = [("time_limit_s", float(amount)) for amount in options.limits.split(",") if amount]
    budgets += [("work_s", float(amount)) for amount in options.work.split(",") if amount]
    environment = describe_environment()
    print(environment_line(environment))
    place(networks.on_two(networks.nas_cells(1)), work_s=0.01)  # what searches is compiled here, once on a machine
    path = RESULTS / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.graphs.split(","):
        graph = read_profiled(INCEPTION) if name == "inception-v3" else BUILT[name]()
        for kind, amount in budgets:
            row = placed(name, graph, kind, amount, options.seed)
            row |= {key: environment[key] for key in ("date", "commit", "processor")}
            print(
                f"{name:16} {row['operations']:5} {kind} {amount:5g}  HEFT {row['heft']:.3f}  {row['speedup']:.4f}  "
                f"gap {row['gap']:.2%}  {row['wall_s']:.1f} s, of {row['cores']} cores {row['core_s']:.1f} s, "
                f"load {row['load_before']:.1f} to {row['load_after']:.1f}",
                flush=True,
            )
            key = (name, kind, amount, options.seed)
            rows = [other for other in rows if (other["graph"], other["budget"], other["amount"], other["seed"]) != key]
            rows.append(row)
            write_result({"schema_version": 1, "environment": environment, "rows": rows}, NAME)


def placed(name: str, graph: ProfiledGraph, kind: str, amount: float, seed: int) -> dict[str, Any]:
    """One placement, with what it took."""
    latency_s = 0.0 if name == "inception-v3" else 5e-6
    problem = profiled_problem(graph, devices=2, bytes_per_s=25e9, latency_s=latency_s)
    load, began, core = os.getloadavg()[0], time.monotonic(), time.process_time()
    answer = place(
        problem,
        seed=seed,
        work_s=amount if kind == "work_s" else None,
        time_limit_s=amount if kind == "time_limit_s" else None,
        began=began,
    )
    return {
        "graph": name,
        "operations": len(graph.nodes),
        "budget": kind,
        "amount": amount,
        "seed": seed,
        "speedup": answer.speedup,
        "serial_s": answer.serial_s,
        "makespan_s": answer.makespan_s,
        "bound_s": answer.bound_s,
        "heft_s": answer.heft_s,
        "gap": answer.gap,
        "heft": answer.serial_s / answer.heft_s if answer.heft_s else None,
        "work_s": answer.work_s,
        "searches": answer.searches,
        "wall_s": time.monotonic() - began,
        "core_s": time.process_time() - core,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
