"""Steps of a training that waits for torch's `DataLoader`, with 0 to 4 workers, and how right they are predicted.

Data sets that are slow in a known way (`ranks.py`), on one process and on two that share the host; loaders with other
numbers of workers, and a batch that is there already, take turns. The row of one process with one worker gives the rate
of a loader; the others are predicted from it by the model of `trimaran scale`, as `validate --family feeding`
does. Writes the rows (`src/trimaran_studies/published/loaders.csv`), the blocks behind them with their environment
(`benchmarks/results/loaders.json`), and prints the table of the README.
"""

import argparse
import csv
import json
import math
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from benchmarks.environment import RESULTS, describe_environment, environment_line, write_result  # noqa: E402
from benchmarks.loaders.ranks import DATA, SlowData, time_loaders  # noqa: E402

from trimaran_studies.validation.measured_loaders import (  # noqa: E402
    LoaderStep,
    answer_measured_loaders,
    loader_lines,
    measured_steps,
)
from trimaran_studies.validation.validate import scored  # noqa: E402

ROWS = ROOT / "src" / "trimaran_studies" / "published" / "loaders.csv"
WORKERS = (0, 1, 2, 3, 4)
RANKS = (1, 2)
BATCH = 16

COUNTED = 0.6
"""Share of the blocks of a loader that count: those in which other programs took the least of the usable cores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each loader")
    parser.add_argument("--block", type=float, default=0.7, help="length of a block [s]")
    parser.add_argument("--data", nargs="*", default=[data.name for data in DATA], help="only these data sets")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    environment = describe_environment(devices=max(RANKS)) | {"cores": cores}
    known = [case for case in known_cases() if case["loader"] not in options.data]
    cases: list[dict[str, Any]] = []
    for data in [one for one in DATA if one.name in options.data]:
        for ranks in RANKS:
            found = measure(data, ranks, rounds=options.rounds, block_s=options.block)
            cases += [case_of(data, ranks, workers, found, cores) for workers in WORKERS]
            print(*(f"{case['loader']} {case['ranks']} {case['workers']}: {case['step_s'] * 1e3:.1f} of "
                    f"{case['ready_step_s'] * 1e3:.1f} ms, others {case['others']:.0%}, blocks {case['blocks']}"
                    for case in cases[-len(WORKERS):]), sep="\n", flush=True)  # fmt: skip
    order = [data.name for data in DATA]
    cases = sorted([*known, *cases], key=lambda case: order.index(case["loader"]))
    write_result({"schema_version": 1, "environment": environment, "cases": cases}, "loaders")
    write_rows(cases, environment)
    print_table()
    print(environment_line(environment))


def print_table() -> None:
    """Print the table of the README from the rows that come with Trimaran."""
    steps = measured_steps()
    predicted = {answer.row.row_id: answer.predicted for answer in answer_measured_loaders(steps)}
    print("| data set | processes | data ready |" + "".join(f" {count} workers |" for count in WORKERS))
    print("|---" * (3 + len(WORKERS)) + "|")
    for name, ranks in dict.fromkeys((step.loader, step.ranks) for step in steps):
        own = [step for step in steps if (step.loader, step.ranks) == (name, ranks)]
        cells = [f"{1e3 * step.step_s:.0f} ({_cell(step, predicted[step.row_id])})" for step in own]
        print(f"| {name} | {ranks} | {1e3 * own[0].ready_step_s:.1f} | " + " | ".join(cells) + " |")
    print(*loader_lines(scored(answer) for answer in answer_measured_loaders(steps)), sep="\n")


def _cell(step: LoaderStep, seconds: float | None) -> str:
    return "fitted" if seconds is None else f"{1e3 * seconds:.0f}, {seconds / step.step_s - 1:+.0%}"


def known_cases() -> list[dict[str, Any]]:
    """Cases of an earlier run, where only some data sets are measured again."""
    path = RESULTS / "loaders.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["cases"] if path.exists() else []
    return found


def measure(data: SlowData, ranks: int, *, rounds: int, block_s: float) -> dict[int | None, list[tuple[float, float]]]:
    """Blocks of steps with each number of workers; None stands for a batch that is there already.

    Args:
        data: the slow data set
        ranks: processes of the training
        rounds: blocks of each
        block_s: about how long a block takes [s]
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, folder, data, WORKERS, BATCH, rounds, block_s)
        processes = [context.Process(target=time_loaders, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"{data.name}: a rank ended with {[process.exitcode for process in processes]}")
        found: dict[int | None, list[tuple[float, float]]] = torch.load(Path(folder, "blocks.pt"))
    return found


def case_of(
    data: SlowData, ranks: int, workers: int, found: dict[int | None, list[tuple[float, float]]], cores: int
) -> dict[str, Any]:
    """A loader, its median step, and the median step of a batch that is there.

    Args:
        data: the slow data set
        ranks: processes of the training
        workers: of each
        found: blocks
        cores: of the host that may be used
    """
    step_s, others, blocks = _median(found[workers])
    ready_s, _, _ = _median(found[None])
    own = asdict(data)
    return {
        "loader": own.pop("name"),
        **own,
        "ranks": ranks,
        "workers": workers,
        "local_batch": BATCH,
        "cores": cores,
        "step_s": step_s,
        "ready_step_s": ready_s,
        "others": others,
        "blocks": blocks,
        "step_blocks_s": [seconds for seconds, _ in found[workers]],
        "step_blocks_others": [share for _, share in found[workers]],
        "ready_blocks_s": [seconds for seconds, _ in found[None]],
        "ready_blocks_others": [share for _, share in found[None]],
    }


def _median(blocks: list[tuple[float, float]]) -> tuple[float, float, int]:
    """Median step of the blocks that count [s], the median share of others in them, and their number."""
    quiet = sorted(blocks, key=lambda block: block[1])[: math.ceil(COUNTED * len(blocks))]
    return statistics.median(one for one, _ in quiet), statistics.median(share for _, share in quiet), len(quiet)


_COLUMNS = ("loader", "wait_s", "side", "disk_s", "ranks", "workers", "local_batch", "cores", "step_s", "ready_step_s")


def write_rows(cases: list[dict[str, Any]], environment: dict[str, Any]) -> None:
    """Write the rows that come with Trimaran.

    Args:
        cases: measured
        environment: of all
    """
    with ROWS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row_id", *_COLUMNS, "processor", "torch", "date"))
        for case in cases:
            name = f"{case['loader']}-{case['ranks']}-{case['workers']}"
            cells = [f"{value:.6g}" if isinstance(value, float) else value for value in map(case.get, _COLUMNS)]
            writer.writerow((name, *cells, environment["processor"], environment["torch"], environment["date"]))


if __name__ == "__main__":
    main()
