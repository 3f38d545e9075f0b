"""Split, pre-load and compress on this machine, one at a time, over links that are free and held to a rate.

The same as `reproduce feeding --real`, with the figures kept: `benchmarks/results/feeding.json`. About five
minutes. Links are held to a rate by root only; without, those cases are left out and it is said.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, write_result  # noqa: E402

from trimaran_studies.reproduce.input_pipeline_real import (  # noqa: E402
    LINKS,
    RANKS,
    STEPS,
    TriedFeeding,
    tried_document,
    tried_lines,
    try_feeding,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", help='some of "reads,wire"')
    parser.add_argument("--links", default=",".join(LINKS), help='rates such as "free,1Gb/s"')
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    found = try_feeding(jobs=options.jobs, links=options.links.split(","), steps=options.steps)
    print(markdown(found))
    document = {"schema_version": 1, "environment": describe_environment(devices=RANKS), **tried_document(found)}
    print(f"written to {write_result(document, 'feeding')}")


def markdown(found: TriedFeeding) -> str:
    """The table of the README."""
    lines = [
        "| job | links | against | remedy | step | saved | 90 % | predicted | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found.rows:
        low, high = row.interval
        saved = ("", "")
        if row.remedy != "none":
            saved = f"{100 * row.saved:.0f} %", f"{100 * low:.0f} to {100 * high:.0f}"
        predicted = ("", "")
        if row.predicted_s is not None and row.error is not None:
            predicted = f"{1e3 * row.predicted_s:.1f} ms", f"{100 * row.error:+.0f} %"
        links = row.machine.partition(", ")[2]
        lines.append(
            f"| {row.network} | {links} | {row.baseline} | {row.remedy} | {1e3 * row.step_s:.1f} ms | {saved[0]} "
            f"| {saved[1]} | {predicted[0]} | {predicted[1]} |"
        )
    return "\n".join([*lines, "", *tried_lines(found)]) + "\n"


if __name__ == "__main__":
    main()
