"""How good and how quick plans of decoders are: the gap to the exhaustive answer, time and memory at every size.

Three questions are small enough that every strategy on every number of devices is priced. The search answers each with
limits of 1, 3 and 10 s of work, and the gap is how much longer its step is than the best of all. Then `trimaran plan`
runs in a process of its own from 8 to 16,384 devices; its processor time and its largest memory are noted. Last, what
each kind of work takes here, from which the constants of work in `planner/analytical/search.py` come.

Prints the tables of the README and writes `benchmarks/results/answers.json`.
"""

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_result  # noqa: E402

from trimaran.machine.find import find_machine  # noqa: E402
from trimaran.planner.analytical.candidates import (  # noqa: E402
    AnalyticalModel,
    AnalyticalProblem,
    groups,
    members,
)
from trimaran.planner.analytical.search import (  # noqa: E402
    BOUNDED_S,
    MEASURED_S,
    PRICED_S,
    search_degrees,
    transformer_problem,
)
from trimaran.pricing.analytical.shapes import decoder_of  # noqa: E402
from trimaran.program.strategy import Strategy  # noqa: E402

GRIDS = (
    ("gpt2:1.5b", "dgx-a100:2", 100),
    ("llama2:7b", "dgx-h100:2", 96),
    ("llama2:13b", "dgx-h100:3@ethernet-25g", 60),
)
LIMITS_S = (1.0, 3.0, 10.0)
SIZES = (1, 2, 9, 100, 512, 2048)
JOBS = ("gpt2:1.5b", "llama2:70b")
SEQUENCE = 2048


def problem_of(network: str, cluster: str, batch: int) -> AnalyticalProblem:
    """One of the questions."""
    shape = decoder_of(network, SEQUENCE)
    if shape is None:
        raise SystemExit(f"{network} is no decoder")
    return transformer_problem(shape, find_machine(cluster), batch=batch)


def every_strategy(problem: AnalyticalProblem) -> Iterable[tuple[AnalyticalModel, Strategy]]:
    """All that can be built, on every number of devices, with what prices them."""
    for devices in range(1, problem.devices + 1):
        model = AnalyticalModel(problem=replace(problem, devices=devices))
        for group in groups(model.problem, Counter()):
            for strategy in members(model.problem, group):
                yield model, strategy


def gaps() -> list[dict[str, Any]]:
    """The gap of the search to the exhaustive answer, at each limit."""
    rows = []
    for network, cluster, batch in GRIDS:
        problem = problem_of(network, cluster, batch)
        count, best_s, name = 0, float("inf"), ""
        began_s = time.process_time()
        for model, strategy in every_strategy(problem):
            count += 1
            fitting = model.admitted(strategy)
            if fitting[1].peak <= problem.memory_limit:
                found = model.price(strategy, fitting)
                if found.step_time_s < best_s:
                    best_s, name = found.step_time_s, found.name
        row = {
            "job": network,
            "cluster": cluster,
            "batch": batch,
            "strategies": count,
            "exhaustive_s": best_s,
            "strategy": name,
            "enumerated_in_s": time.process_time() - began_s,
        }
        for limit_s in LIMITS_S:
            began_s = time.process_time()
            answer = search_degrees(replace(problem, time_limit_s=limit_s))
            row[f"gap_at_{limit_s:g}_s"] = answer.chosen.step_time_s / best_s - 1.0
            row[f"complete_at_{limit_s:g}_s"] = answer.is_complete
            row[f"taken_at_{limit_s:g}_s"] = time.process_time() - began_s
        rows.append(row)
        print(row, flush=True)
    return rows


def sizes() -> list[dict[str, Any]]:
    """Processor time and memory of whole commands."""
    rows = []
    for job in JOBS:
        for nodes in SIZES:
            command = [sys.executable, "-m", "trimaran", "plan", job, "--cluster", f"dgx-h100:{nodes}"]
            command += ["--batch", str(max(64, 32 * nodes)), "--json"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=dict(os.environ))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            rows.append(
                {
                    "job": job,
                    "devices": 8 * nodes,
                    "answered": done.returncode == 0,
                    "refused": done.stderr.strip().splitlines()[-1] if done.returncode else "",
                    "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                    # The largest of all children so far: it says that none took more.
                    "largest_bytes": after.ru_maxrss * 1024,
                }
            )
            print(rows[-1], flush=True)
    return rows


def works() -> dict[str, float]:
    """What a bound, an account of memory and a price take here [s]."""
    problem = problem_of("llama2:13b", "dgx-h100:16", 256)
    model = AnalyticalModel(problem=problem)
    leaders = list(groups(problem, Counter()))
    some = [strategy for group in leaders for strategy in members(problem, group)]
    return {
        "bounded_s": _each(model.bound, leaders),
        "measured_s": _each(model.admitted, some),
        "priced_s": _each(lambda one: model.price(one, model.admitted(one)), some) - _each(model.admitted, some),
        "bounded_constant_s": BOUNDED_S,
        "measured_constant_s": MEASURED_S,
        "priced_constant_s": PRICED_S,
    }


def _each(call: Callable[[Strategy], object], strategies: list[Strategy]) -> float:
    began_s = time.process_time()
    for strategy in strategies:
        call(strategy)
    return (time.process_time() - began_s) / len(strategies)


def main() -> None:
    """Measure, print, write."""
    environment = describe_environment()
    print(environment_line(environment))
    document = {"schema_version": 1, "environment": environment, "gaps": gaps(), "sizes": sizes(), "works": works()}
    write_result(document, "answers")


if __name__ == "__main__":
    main()
