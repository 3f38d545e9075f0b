"""How near the planned feed comes to what compute, reads and cores allow, and how right its prediction is.

Data sets that are slow in a known way (`jobs.py`), each planned and run: by the plan's feeding, in line, with the same
batch again and again (nothing loaded), and by hand with torch's default DataLoader; in blocks that take turns. Prints
the table of the README and writes `benchmarks/results/feed.json`.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402
from benchmarks.feed.ranks import time_feeds  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.planner.pins import Pins  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import PlanRequest  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402

JOBS = ROOT / "benchmarks" / "feed" / "jobs.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job on so many ranks, and the share of the bound that its planned feed is to reach; None: it is shown only."""

    job: str
    ranks: int
    wanted: float | None


CASES = (
    Case(job="reading_large", ranks=2, wanted=0.95),
    Case(job="reading", ranks=2, wanted=0.95),
    Case(job="reading_small", ranks=2, wanted=None),
    Case(job="reading", ranks=1, wanted=0.95),
    Case(job="decoding", ranks=2, wanted=0.90),
    Case(job="decoding", ranks=1, wanted=0.90),
    Case(job="decoding_again", ranks=2, wanted=None),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each way")
    parser.add_argument("--block", type=float, default=0.8, help="length of a block [s]")
    parser.add_argument("--cases", nargs="*", default=None, help="only these, such as reading-2")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "feed.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    print(
        "| data set | ranks | planned | in line | default DataLoader | nothing loaded | bound | reached | wanted "
        "| predicted | error |\n" + "|" + "---|" * 11
    )
    names = [f"{case.job}-{case.ranks}" for case in CASES]
    rows = _known_rows(options.output) if options.cases is not None else {}
    for name, case in zip(names, CASES, strict=True):
        if options.cases is not None and name not in options.cases:
            continue
        rows[name] = run_case(case, rounds=options.rounds, block_s=options.block, cores=environment["cores"])
        print(format_row(rows[name]), flush=True)
        kept = [rows[one] for one in names if one in rows]
        write_document({"schema_version": 1, "environment": environment, "cases": kept}, options.output)
    print(environment_line(environment))


def _known_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run, where only some cases are run again."""
    if not path.exists():
        return {}
    return {f"{row['job']}-{row['ranks']}": row for row in json.loads(path.read_text())["cases"]}


def run_case(case: Case, *, rounds: int, block_s: float, cores: int) -> dict[str, Any]:
    """Plan and run one case.

    Args:
        case: which
        rounds: blocks of each way
        block_s: length of a block [s]
        cores: of this machine
    """
    source = JobSource(reference=f"{JOBS}:{case.job}")
    planned = make_plan(source, PlanRequest(devices=case.ranks, execution="eager", pins=Pins(dp=case.ranks))).simulated
    strategy = planned.plan.strategy
    evaluation = lower_evaluation(planned.graph, strategy, batch=planned.job.global_batch_size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (source, strategy, planned.chosen.program, evaluation, rounds, block_s)
        results = launch(time_feeds, arguments, ranks=case.ranks, log_dir=folder)
    times: dict[str, list[float]] = results[0]["times"]
    seconds = {way: statistics.median(blocks) for way, blocks in times.items()}
    # Reads are as many at once as there are workers; the work of all ranks and workers goes over all cores.
    decode_s = 0.0 if strategy.feeding.cached else sum(result["decode_s"] for result in results)
    work_s = case.ranks * seconds["synthetic"] + decode_s
    bound_s = max(seconds["synthetic"], work_s / cores)
    predicted_s, measured_s = planned.chosen.step_time_s, seconds["planned"]
    return {
        **asdict(case),
        "strategy": strategy.name,
        "reasons": list(planned.search.feeding) if planned.search else [],
        "step_time_s": seconds,
        "spread_s": {way: _quartiles(blocks) for way, blocks in times.items()},
        "decode_s": results[0]["decode_s"],
        "bound_s": bound_s,
        "reached": bound_s / measured_s,
        "predicted_s": predicted_s,
        "interval_s": list(planned.chosen.interval_s),
        "error": predicted_s / measured_s - 1.0,
    }


def _quartiles(blocks: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(blocks, n=4) if len(blocks) > 1 else (blocks[0],) * 3
    return [low, high]


def format_row(row: dict[str, Any]) -> str:
    """A row of the README's table."""
    times = {way: f"{seconds * 1e3:.1f} ms" for way, seconds in row["step_time_s"].items()}
    wanted = "–" if row["wanted"] is None else f"{row['wanted']:.0%}"
    return (
        f"| {row['job']} | {row['ranks']} | {times['planned']} ({row['strategy']}) | {times['in line']} "
        f"| {times['default']} | {times['synthetic']} | {row['bound_s'] * 1e3:.1f} ms | {row['reached']:.1%} "
        f"| {wanted} | {row['predicted_s'] * 1e3:.1f} ms | {row['error']:+.1%} |"
    )


if __name__ == "__main__":
    main()
