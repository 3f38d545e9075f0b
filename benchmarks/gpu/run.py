"""The built-in jobs on one GPU: predicted against measured, and the runtime against a loop written by hand.

Each job at its own batch and at one 8 times as large, eager and then compiled. Costs are measured, the step of one
device is simulated, then run. Writes its result after every case, and stops by itself when its time is over.

    PYTHONPATH=src python3 benchmarks/gpu/run.py --out DIRECTORY

`--device cpu` runs the same code where there is no GPU.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.gpu.clock import BUDGET_S, Clock, OutOfTimeError  # noqa: E402
from benchmarks.gpu.table import HEADER, LEGEND, row  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.gpu.cases import Effort

    from trimaran.graph.types import Graph
    from trimaran.jobs.resolve import JobSource
    from trimaran.program.strategy import Execution

LARGER = 8
PACKAGES = {"torch": "torch", "numpy": "numpy", "msgspec": "msgspec", "safetensors": "safetensors"}
DATA_PACKAGES = {"sklearn": "scikit-learn"}
"""What the jobs on digits read their images from; by the name that Python imports."""

ON_DIGITS = ("digits", "digits-resnet", "wide")


def missing_packages(names: dict[str, str]) -> list[str]:
    """Those of some packages that this Python does not have."""
    return [package for module, package in names.items() if importlib.util.find_spec(module) is None]


def bring(packages: Sequence[str]) -> str:
    """How to bring packages to a machine without a network."""
    return (
        f"missing: {', '.join(packages)}. Put their wheels into a folder, then\n"
        f"    python3 -m pip install --no-index --find-links FOLDER {' '.join(packages)}"
    )


def main() -> None:
    options = parse_options()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # A compiled model is measured at two batch sizes; each must be compiled for itself, as in a run that has one.
    os.environ["TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES"] = "0"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    missing = missing_packages(PACKAGES)
    if missing:
        sys.exit(bring(missing))
    with tempfile.TemporaryDirectory(prefix="trimaran-gpu-") as cache:
        os.environ["TRIMARAN_CACHE"] = cache
        Benchmark(options, Clock(options.budget)).run()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for gpu.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", nargs="+", help="built-in jobs; all by default")
    parser.add_argument("--larger", type=int, default=LARGER, help="factor of the second batch; 1: only the first")
    parser.add_argument("--executions", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds after which nothing new is started")
    parser.add_argument("--quick", action="store_true", help="a few steps of each case, to try the benchmark itself")
    return parser.parse_args()


class Benchmark:
    """All cases, one after another, with what is written and printed of them.

    Args:
        options: of the command line
        clock: says when to stop
    """

    def __init__(self, options: argparse.Namespace, clock: Clock) -> None:
        import torch
        from benchmarks.environment import describe_environment

        from trimaran.jobs.resolve import BUILT_IN

        if options.device == "cuda" and not torch.cuda.is_available():
            sys.exit(f"torch {torch.__version__} sees no GPU: use --device cpu to try the benchmark without one")
        torch.set_num_threads(1)
        self._clock = clock
        self._device = "cuda:0" if options.device == "cuda" else "cpu"
        self._options = options
        self._path: Path = options.out / "gpu.json"
        self._jobs: list[str] = options.jobs or list(BUILT_IN)
        self._graphs: dict[str, Graph] = {}
        self._document: dict[str, Any] = {
            "schema_version": 1,
            "environment": describe_environment(),
            "options": {name: value for name, value in vars(options).items() if name != "out"},
            "cases": [],
            "skipped": [],
            "elapsed_s": 0.0,
        }

    def run(self) -> None:
        """Every case that there is time for."""
        from benchmarks.environment import environment_line

        print(environment_line(self._document["environment"]))
        missing = missing_packages(DATA_PACKAGES)
        if missing:
            print(bring(missing))
        print("\n" + HEADER, flush=True)
        try:
            with self._clock.gives_up():
                for execution in self._options.executions:
                    for name in self._jobs:
                        self._run_job(name, execution, missing if name in ON_DIGITS else [])
        except OutOfTimeError:
            self._skip("what was under way", "the time was over")
        self._write()
        print(LEGEND)
        for entry in self._document["skipped"]:
            print(f"skipped: {entry['case']}: {entry['reason']}")
        print(f"{self._clock.elapsed_s:.0f} s; written to {self._path}")

    def _run_job(self, name: str, execution: "Execution", missing: Sequence[str]) -> None:
        from benchmarks.gpu.cases import FULL, QUICK, run_case, steps_fit

        from trimaran.jobs.resolve import JobSource
        from trimaran.machine.detect import detect_machine
        from trimaran.measure.costs import measure_costs
        from trimaran.planner.candidates import PricedJob, evaluate
        from trimaran.program.strategy import Strategy

        case = f"{name}, {execution}"
        if missing:
            return self._skip(case, f"its data need {', '.join(missing)}")
        if not self._clock.allows(f"measure {execution}"):
            return self._skip(case, "no time left")
        source = JobSource(reference=name)
        job, graph = source.make(), self._graph(source)
        sizes = sorted({job.global_batch_size, job.global_batch_size * self._options.larger})
        sizes = [size for size in sizes if steps_fit(job, size)]
        try:
            with self._clock.timed(f"measure {execution}"):
                table = measure_costs(source.make, graph, ranks=1, batches=sizes, executions=[execution])
        except Exception as error:  # noqa: BLE001 the other jobs still have something to say
            return self._skip(case, f"measuring failed: {_line(error)}")
        for batch in sizes:
            if not self._clock.allows(f"run {execution}"):
                self._skip(f"{case}, batch {batch}", "no time left")
                continue
            clip = job.clip_norm is not None
            priced = PricedJob(graph=graph, table=table, cluster=detect_machine(1).allocate(), batch=batch, clip=clip)
            candidate = evaluate(Strategy(execution=execution), priced)
            effort: Effort = QUICK if self._options.quick else FULL
            run = JobSource(reference=name, global_batch_size=batch).make
            self._attempt(
                f"{case}, batch {batch}",
                lambda: run_case(run(), graph, candidate, device=self._device, effort=effort),  # noqa: B023 called now
                job=name,
                execution=execution,
            )
        return None

    def _attempt(self, case: str, run: Callable[[], dict[str, Any]], *, job: str, execution: str) -> None:
        try:
            with self._clock.timed(f"run {execution}"):
                found = run()
        except Exception as error:  # noqa: BLE001 the other cases still have something to say
            return self._skip(case, f"failed: {_line(error)}")
        self._document["cases"].append({"job": job, **found})
        self._write()
        print(row({"job": job, **found}), flush=True)
        return None

    def _graph(self, source: "JobSource") -> "Graph":
        from trimaran.graph.capture.capture import capture

        if source.reference not in self._graphs:
            self._graphs[source.reference] = capture(source.make()).graph
        return self._graphs[source.reference]

    def _skip(self, case: str, reason: str) -> None:
        self._document["skipped"].append({"case": case, "reason": reason})
        self._write()

    def _write(self) -> None:
        from benchmarks.environment import write_document

        self._document["elapsed_s"] = self._clock.elapsed_s
        write_document(self._document, self._path)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
