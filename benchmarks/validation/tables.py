"""Prints the tables of docs/validation.md and of the README from what `python -m trimaran_studies validate` says now.

    python benchmarks/validation/tables.py

Two to four minutes on two cores the first time, one afterwards.
"""

from collections.abc import Callable, Mapping, Sequence

from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import Anchor
from trimaran_studies.validation.scores import Score, Scored, by_family, by_group, score
from trimaran_studies.validation.validate import answer_rows, scored

FAMILIES = (
    "single_gpu_time",
    "dp_throughput",
    "dp_step_time",
    "mp_throughput",
    "mp_step_time",
    "collectives",
    "peak_memory",
)


def main() -> None:
    anchored, bare = (_scored(anchor) for anchor in ("single", "none"))
    print("| rows that nothing was fitted on | count | median | 80 % below | inside | score | ±25 % |")
    print("|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        _line(family, _held_out(anchored[family]))
    _line("dp_throughput, --anchor none", _held_out(bare["dp_throughput"]))
    for name in ("setting", "source", "machine"):
        print(f"\n| data parallel, by {name} | count | median | 80 % below | inside | score | ±25 % | rules |")
        print("|---|---|---|---|---|---|---|---|")
        for key, rows in list(by_group(_held_out(anchored["dp_throughput"]), name).items())[:20]:
            _line(key, rows, rules=True)


def _scored(anchor: Anchor) -> Mapping[str, Sequence[Scored]]:
    quiet: Callable[[str, int, int], None] = print_nothing
    return by_family([scored(found) for found in answer_rows(published_rows(), anchor, progress=quiet)])


def print_nothing(what: str, done: int, total: int) -> None:
    pass


def _held_out(rows: Sequence[Scored]) -> Sequence[Scored]:
    return by_group(rows, "use").get("dev", rows)


def _line(name: str, rows: Sequence[Scored], *, rules: bool = False) -> None:
    found: Score | None = score(rows)
    if found is None:
        return
    cells = [
        f"{found.answered:,}",
        f"{100 * found.median:.1f} %",
        f"{100 * found.p80:.0f} %",
        f"{100 * (found.coverage or 0):.0f} %",
        f"{found.interval_score or 0:.2f}",
        f"{found.constant_score:.2f}",
    ]
    if rules:
        pairs = found.baselines.items()
        cells.append(", ".join(f"{rule} {100 * middle:.1f}/{100 * upper:.0f}" for rule, (middle, upper) in pairs))
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
