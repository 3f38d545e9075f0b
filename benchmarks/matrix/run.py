"""The field's jobs under every kind of plan, beside their plain loops: what is right, refused, or a defect.

Each cell trains 20 steps in fp64 with SGD with momentum, and with AdamW, on ranks of its own with a time limit. Losses,
gradients of the first step, weights after it and at the end, buffers, the optimizer's state and the metric must equal
those of the plain loop to 1e-10, and ranks must have equal copies. Writes `benchmarks/results/matrix.json` and the
table of `docs/job_matrix.md`; cells that are not run again are kept. Ends with 1 where there is a defect.

    python benchmarks/matrix/run.py --jobs resnet hf_causal --kinds dp2 zero3
    python benchmarks/matrix/run.py --jobs          # the page alone, from the cells that are kept
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Container, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, environment_line, write_document  # noqa: E402
from tests.field.catalog import CATALOG  # noqa: E402
from tests.field.cells import DEFECTS, KINDS, OPTIMIZERS, STEPS, Cell, run_job  # noqa: E402

MARKS = {"equal": "=", "refused": "refused", "different": "**differs**", "error": "**error**", "hang": "**hangs**"}
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", default=list(CATALOG), choices=list(CATALOG), metavar="JOB")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--processes", type=int, default=2, help="jobs at a time")
    parser.add_argument("--output", type=Path, default=RESULTS / "matrix.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "job_matrix.md")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    before = read_cells(options.output)
    cells: list[Cell] = []
    with ProcessPoolExecutor(options.processes) as pool:
        asked = [pool.submit(cells_of, name, options.kinds, options.optimizers, options.steps) for name in options.jobs]
        for job in asked:
            cells += job.result()
            print(_line(cells[-1].job, cells, options.kinds), flush=True)
            write_document(document(merge(before, cells), environment), options.output)
    for cell in cells:
        if cell.verdict in DEFECTS:
            print(f"{cell.verdict:9} {cell.job} {cell.kind} {cell.optimizer}: {cell.detail}")
    print(_summary(cells))
    for kind, (equal, jobs) in exactly(cells or before).items():
        print(f"{kind:8} trained exactly: {equal} of {jobs}")
    write_page(options.page, merge(before, cells), environment if options.jobs else read_environment(options.output))
    return int(any(cell.verdict in DEFECTS for cell in cells))


def document(cells: Sequence[Cell], environment: dict[str, Any]) -> dict[str, Any]:
    """What is written of some cells."""
    return {"schema_version": 1, "environment": environment, "cells": [asdict(cell) for cell in cells]}


def read_cells(path: Path) -> list[Cell]:
    """The cells of an earlier run; none where there is no file."""
    return [Cell(**cell) for cell in json.loads(path.read_text())["cells"]] if path.exists() else []


def read_environment(path: Path) -> dict[str, Any]:
    """In which the cells of an earlier run ran."""
    found: dict[str, Any] = json.loads(path.read_text())["environment"]
    return found


def merge(before: Sequence[Cell], after: Sequence[Cell]) -> list[Cell]:
    """Cells of the catalog, in its order; those of the later run where both have them."""
    found = {(cell.job, cell.kind, cell.optimizer): cell for cell in (*before, *after)}
    order = list(CATALOG)
    return sorted((cell for cell in found.values() if cell.job in CATALOG), key=lambda cell: order.index(cell.job))


def cells_of(name: str, kinds: Sequence[str], optimizers: Sequence[str], steps: int) -> list[Cell]:
    """All cells of a job, in a process of the pool."""
    return list(run_job(name, kinds, optimizers, steps=steps))


def worst(cells: Sequence[Cell], job: str, kind: str) -> Cell | None:
    """Of the cells of a job and a kind the one that tells most: a defect, or a refusal."""
    order = ("error", "hang", "different", "refused", "equal")
    found = [cell for cell in cells if (cell.job, cell.kind) == (job, kind)]
    return min(found, key=lambda cell: order.index(cell.verdict), default=None)


def _line(job: str, cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    found = [worst(cells, job, kind) for kind in kinds]
    marks = [f"{kind} {'-' if cell is None else cell.verdict}" for kind, cell in zip(kinds, found, strict=True)]
    return f"{job:24} {', '.join(marks)}"


def _summary(cells: Sequence[Cell]) -> str:
    counts = Counter(cell.verdict for cell in cells)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in MARKS)


def exactly(cells: Sequence[Cell]) -> dict[str, tuple[int, int]]:
    """For each kind, how many jobs it trains exactly with every optimizer, and of how many.

    Args:
        cells: of any jobs and kinds
    """
    jobs = [name for name in CATALOG if any(cell.job == name for cell in cells)]
    found = {kind: [worst(cells, job, kind) for job in jobs] for kind in KINDS}
    ran = {kind: [cell for cell in of if cell is not None] for kind, of in found.items()}
    return {kind: (sum(cell.verdict == "equal" for cell in of), len(of)) for kind, of in ran.items() if of}


def reasons(cells: Sequence[Cell], verdicts: Container[str]) -> dict[str, dict[str, list[str]]]:
    """Each reason once, without what differs from cell to cell, with its jobs and their kinds.

    Args:
        cells: of all jobs and kinds
        verdicts: of the cells that count
    """
    found: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell.verdict in verdicts:
            kinds = found.setdefault(_general(cell), {}).setdefault(cell.job, [])
            if cell.kind not in kinds:
                kinds.append(cell.kind)
    return found


def _general(cell: Cell) -> str:
    """The reason of a cell, without its strategy, its figures, and what others of the same cause say."""
    reason = cell.detail.replace(f"'{cell.job}'", "the job")
    name = re.escape(cell.job)
    for pattern, put in (
        (rf"^{name} |(?<=of ){name}(?= can be)", "the network "),
        (r"  +", " "),
        (r"the parameter \S+ is a scalar", "a parameter is a scalar"),
        (r"writes to the parameter \S+,", "writes to a parameter,"),
        (r"each forward changes \S+ by", "each forward changes a buffer by"),
        (r"a part of \S+ is updated", "a part of one is updated"),
        (r"^.* (would train something else than|cannot train) this job: ", ""),
        (r"\. To train it all the same: .*", ""),
        (r" by up to \S+ of the largest", ""),
        (r"; torch\.export could not trace it: .*", ""),
        (r"^no pair of layers of the network can be shared: .*: ", "no pair of layers can be shared: "),
        (r"under \S+( zero\d)? a rank", "a rank"),
        (r"a budget of .*? is below the floor of this step, .*", "the budget is below the floor of this step"),
        (r"^after \d+ steps: ", ""),
        (r"^(in microbatches|on several ranks) ", ""),
        (r" (in microbatches|on several ranks) (gradients differ|a step)", r" \2"),
        (
            r'^"(\w+)" has shape \(.*?\); the model was captured with \[.*?\]',
            r'"\1" has another shape from batch to batch',
        ),
    ):
        reason = re.sub(pattern, put, reason)
    return reason


def write_page(path: Path, cells: Sequence[Cell], environment: dict[str, Any]) -> None:
    """Put the table into the page, between its marks; at the end where it has none.

    Args:
        path: of the page
        cells: of all jobs and kinds
        environment: in which they ran
    """
    lines = [f"| job | {' | '.join(KINDS)} | what is particular |", f"|---|{':-:|' * len(KINDS)}---|"]
    for name, entry in CATALOG.items():
        found = [worst(cells, name, kind) for kind in KINDS]
        marks = ["" if cell is None else MARKS[cell.verdict] for cell in found]
        lines.append(f"| `{name}` | {' | '.join(marks)} | {entry.note} |")
    counts = exactly(cells)
    lines.append(
        f"| trained exactly | {' | '.join('{} of {}'.format(*counts.get(kind, (0, 0))) for kind in KINDS)} | |"
    )
    lines += ["", "Why a plan is refused:", "", *_listed(reasons(cells, ("refused",)))]
    if defects := reasons(cells, DEFECTS):
        lines += ["", "Defects, which are known and not yet repaired:", "", *_listed(defects)]
    lines += ["", "How a user gets on where a job is refused:", ""]
    for name, entry in CATALOG.items():
        if entry.way_out:
            other = CATALOG.get(entry.way_out.split(",")[0])
            lines.append(f"* `{name}`: " + (f"`{other.name}`, {other.note}" if other else entry.way_out))
    lines += ["", f"{_summary(cells)}. {environment_line(environment)}."]
    for commit, jobs in environment.get("other_commits", {}).items():
        lines.append(f"Of commit {commit[:10]}: {', '.join(f'`{job}`' for job in jobs)}.")
    before, _, rest = (path.read_text() if path.exists() else HEAD).partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after or chr(10)}")


def _listed(found: dict[str, dict[str, list[str]]]) -> list[str]:
    return [
        f"* {reason}: " + ", ".join(f"`{job}` ({' '.join(kinds)})" for job, kinds in jobs.items())
        for reason, jobs in found.items()
    ]


HEAD = f"""# Jobs of the field

Each row is a job as practitioners write it (`tests/field`), each column a kind of plan on two processes. "=": 20 steps
in fp64 with SGD with momentum and with AdamW give the losses, gradients, weights, buffers, optimizer state and metric
of the plain loop to 1e-10. "refused": an error before the first update, with the reason and the way out; what a
callback does is seen when it is called first, after the first step. Anything else is a defect. Ranks train by
`Session`, as in `trimaran train` and under `trimaran.init`. `benchmarks/matrix/run.py` writes the table. Two jobs are
held to less: `hf_t5`, whose loss is fp32 whatever its weights are, to 1e-6, and `bf16` to 20 %, which shows gross
faults alone.

The plain loop is one process that does one forward of the whole global batch. For jobs with batch norm, draws or state
that a forward changes, it is one process over the microbatches of the plan, each under the seed of its rank. Columns:
one device; "m2", two microbatches of gradients added up; "dp2", two replicas, with "zero1" to "zero3" sharded and with
"p2p" at homes; "pp2", two stages with two microbatches; "tp2", shared tensors; "placed", operations dealt out to two
rows; "memory", one device in 90 % of its memory.

{BEGIN}
{END}
"""


if __name__ == "__main__":
    sys.exit(main())
