"""The field's jobs under every kind of plan, beside their plain loops: what is right, refused, or a defect.

Each cell trains 20 steps in fp64 with SGD with momentum, and with AdamW, on ranks of its own with a time limit. Losses,
gradients of the first step, weights after it and at the end, buffers, the optimizer's state and the metric must equal
those of the plain loop to 1e-10, and ranks must have equal copies. Writes `benchmarks/results/matrix.json` and the
table of `docs/jobs.md`; cells that are not run again are kept. Ends with 1 where there is a defect.

    python benchmarks/matrix/run.py --jobs resnet hf_causal --kinds dp2 zero3
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
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
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "jobs.md")
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
    write_page(options.page, merge(before, cells), environment)
    return int(any(cell.verdict in DEFECTS for cell in cells))


def document(cells: Sequence[Cell], environment: dict[str, Any]) -> dict[str, Any]:
    """What is written of some cells."""
    return {"schema_version": 1, "environment": environment, "cells": [asdict(cell) for cell in cells]}


def read_cells(path: Path) -> list[Cell]:
    """The cells of an earlier run; none where there is no file."""
    return [Cell(**cell) for cell in json.loads(path.read_text())["cells"]] if path.exists() else []


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


def write_page(path: Path, cells: Sequence[Cell], environment: dict[str, Any]) -> None:
    """Put the table into the page, between its marks; at the end where it has none.

    Args:
        path: of the page
        cells: of all jobs and kinds
        environment: in which they ran
    """
    lines = [f"| job | {' | '.join(KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
    for name, entry in CATALOG.items():
        found = [worst(cells, name, kind) for kind in KINDS]
        marks = ["" if cell is None else MARKS[cell.verdict] for cell in found]
        lines.append(f"| `{name}`: {entry.note} | {' | '.join(marks)} |")
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.verdict == "refused":
            of = reasons.setdefault((cell.job, cell.detail), [])
            if cell.kind not in of:
                of.append(cell.kind)
    lines += ["", "Why a plan is refused:", ""]
    lines += [f"* `{job}` ({', '.join(kinds)}): {reason}" for (job, reason), kinds in reasons.items()]
    lines += ["", f"{_summary(cells)}. {environment_line(environment)}."]
    before, _, rest = (path.read_text() if path.exists() else HEAD).partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after or chr(10)}")


HEAD = f"""# Jobs of the field

Each row is a job as practitioners write it (`tests/field`), each column a kind of plan on two processes. "=": 20 steps
in fp64 with SGD with momentum and with AdamW give the losses, gradients, weights, buffers, optimizer state and metric
of the plain loop to 1e-10. "refused": an error before the first update, with the reason. Anything else is a defect.
`benchmarks/matrix/run.py` writes the table.

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
