"""Random jobs under random plans, beside their plain loops: what is right, refused, or a defect.

Draws models of a few blocks, batch forms, losses, optimizers, batch sizes and kinds of plans (`tests/field/drawn.py`);
the same every time. Each trains six steps in fp64 on ranks of its own with a time limit; losses, gradients of the first
step, weights, buffers and the optimizer's state must equal those of the plain loop to 1e-9. Ends with 1 where there is
a defect, or where fewer than 60 % were trained.

    python benchmarks/matrix/random_jobs.py --examples 200
    python benchmarks/matrix/random_jobs.py --only 17 --shrink
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.field.cells import DEFECTS, Cell
from tests.field.drawn import cells_of, draw_recipes, shrink

LEAST_TRAINED = 0.6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of examples")
    parser.add_argument("--processes", type=int, default=2, help="jobs at a time")
    parser.add_argument("--shrink", action="store_true", help="make those with a defect simpler")
    options = parser.parse_args()
    recipes = dict(enumerate(draw_recipes(options.examples)))
    chosen = {number: recipes[number] for number in options.only} if options.only else recipes
    cells: list[Cell] = []
    defects = []
    with ProcessPoolExecutor(options.processes) as pool:
        asked = {number: pool.submit(cells_of, recipe) for number, recipe in chosen.items()}
        for number, one in asked.items():
            found = one.result()
            cells += found
            print(f"{number:4} {', '.join(f'{cell.kind} {cell.verdict}' for cell in found)}", flush=True)
            for cell in found:
                if cell.verdict in DEFECTS:
                    defects.append(number)
                    print(f"     {cell.kind}: {cell.detail}\n     {chosen[number]}", flush=True)
    print(summary(cells))
    if options.shrink:
        for number in dict.fromkeys(defects):
            for recipe, cell in shrink(chosen[number]):
                print(f"{number:4} {cell.verdict} {cell.detail}\n     {recipe}", flush=True)
    trained = sum(cell.verdict == "equal" for cell in cells)
    return int(bool(defects) or trained < LEAST_TRAINED * len(cells))


def summary(cells: list[Cell]) -> str:
    """Counts, and how often each reason was given."""
    counts = Counter(cell.verdict for cell in cells)
    reasons = Counter(reason_of(cell) for cell in cells if cell.verdict == "refused")
    lines = [", ".join(f"{counts[verdict]} {verdict}" for verdict in ("equal", "refused", *DEFECTS))]
    lines += [f"{count:6} {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def reason_of(cell: Cell) -> str:
    """A reason without its plan and figures."""
    text = cell.detail.partition("this job: ")[2] or cell.detail
    return text.split(":")[0].split(";")[0][:110]


if __name__ == "__main__":
    sys.exit(main())
