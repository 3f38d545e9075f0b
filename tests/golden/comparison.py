"""Answers in the form in which they are kept, and where two differ.

Figures are compared to `TOLERANCE`; strategies and words of up to three exactly; of longer text only its figures, so
that wording is free. What a clock says is left out, and digests of what was measured.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRITE = os.environ.get("TRIMARAN_GOLDEN") == "write"
"""Whether answers are written, and not compared."""

TOLERANCE = 1e-7
"""Of figures, relative. Fits by least squares end where the next step gains too little, and processors whose sums are
rounded in another order end some 1e-8 apart."""

NOTHING = 1e-12
"""Figures below it are sums that would be zero without rounding."""

DIGITS = 12
"""Significant digits that are kept."""

WIDTH = 160
"""Of a line [characters]."""

LEFT_OUT = frozenset({"seconds", "trace_s", "planning_s", "costs_digest", "graph_digest", "command"})
"""Clocks, digests, and the question with its paths."""

MOST = 20
"""Entries of `LISTED` that are kept, with the number of all: the best stand first."""

LISTED = frozenset({"candidates", "runners_up", "rejected", "alternatives", "schedule"})

STRATEGIES = frozenset({"strategy", "front", "baselines"})
"""What is said under these is compared exactly, however long."""

_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def kept(answer: Any) -> Any:
    """An answer without what changes from run to run, its figures rounded, its runs of equal values counted."""
    if isinstance(answer, dict):
        if "front" in answer and "candidates" in answer:
            answer = answer | {"front": _named(answer["front"], answer["candidates"])}
        return {key: kept(_first(key, value)) for key, value in answer.items() if key not in LEFT_OUT}
    if isinstance(answer, list):
        if len(answer) > 2 and all(one == answer[0] for one in answer):
            return {"each": kept(answer[0]), "count": len(answer)}
        return [kept(one) for one in answer]
    return float(f"{answer:.{DIGITS}g}") if isinstance(answer, float) else answer


def _named(rows: list[Any], listed: list[Any]) -> list[Any]:
    """Rows, those that are listed in full elsewhere by their names alone."""
    return [" at ".join(map(str, (row["strategy"], *_batch(row)))) if row in listed else row for row in rows]


def _batch(row: dict[str, Any]) -> list[int]:
    return [row["global_batch_size"]] if "global_batch_size" in row else []


def _first(key: str, value: Any) -> Any:
    if key in LISTED and isinstance(value, list) and len(value) > MOST:
        return [*value[:MOST], f"{len(value)} in all"]
    return value


def written(answer: Any, indent: str = "") -> str:
    """An answer as JSON; what fits into a line stands in one."""
    line = json.dumps(answer, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(answer, dict | list):
        return line
    deeper = indent + " "
    if isinstance(answer, list):
        return "[\n" + ",\n".join(deeper + written(one, deeper) for one in answer) + f"\n{indent}]"
    entries = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {written(one, deeper)}" for key, one in answer.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def differences(kept_one: Any, found: Any, where: str = "") -> Iterator[str]:
    """What differs between what is kept and what was found, a line each."""
    if isinstance(kept_one, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*kept_one, *found]):
            if key not in found:
                yield f"{where}/{key}: gone"
            elif key not in kept_one:
                yield f"{where}/{key}: new"
            else:
                yield from differences(kept_one[key], found[key], f"{where}/{key}")
    elif isinstance(kept_one, list) and isinstance(found, list):
        if len(kept_one) != len(found):
            yield f"{where}: {len(kept_one)} entries, now {len(found)}"
        for number, (one, other) in enumerate(zip(kept_one, found, strict=False)):
            yield from differences(one, other, f"{where}/{number}")
    elif not _same(kept_one, found, exact=not STRATEGIES.isdisjoint(where.split("/")[-2:])):
        yield f"{where}: {kept_one!r}, now {found!r}"


def _same(one: Any, other: Any, *, exact: bool) -> bool:
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=NOTHING) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, str) and isinstance(other, str) and not exact and len(one.split()) > 3:
        return _FIGURE.findall(one) == _FIGURE.findall(other)
    return type(one) is type(other) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check(path: Path, answer: Any, *, part: str | None = None) -> None:
    """Hold an answer against the one in a file; where golden files are written, write it there.

    Args:
        path: of the file
        answer: as `kept` gives it
        part: of the file that it is; None: all
    """
    if WRITE:
        before = {} if part is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(answer if part is None else before | {part: answer}) + "\n", encoding="utf-8")
    whole = json.loads(path.read_text(encoding="utf-8"))
    found = list(differences(whole if part is None else whole[part], json.loads(json.dumps(answer))))
    assert not found, f"{path.name}: {len(found)} differences\n" + "\n".join(found[:20])
