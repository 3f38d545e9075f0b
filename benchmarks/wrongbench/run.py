"""How many of the wrong programs of this folder are found, and how many of the right ones are called wrong.

Each program is verified (`trimaran verify`) and rehearsed (`trimaran rehearse`). Found is a program of which the exit
code is that of ranks that differ; an alarm is the same for a right one. Writes `benchmarks/results/wrongbench.json`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, write_document  # noqa: E402

import trimaran  # noqa: E402

FOLDER = Path(__file__).parent
RESULT = ROOT / "benchmarks" / "results" / "wrongbench.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="only these programs; writes nothing")
    parser.add_argument("--without-rehearsal", action="store_true", help="verify alone")
    parser.add_argument("--table", action="store_true", help="print what was written as a table of Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(RESULT.read_text())["rows"]))
        return
    rows: list[dict[str, Any]] = []
    for pair in json.loads((FOLDER / "truth.json").read_text())["pairs"]:
        name = pair["name"]
        if options.only is not None and name not in options.only:
            continue
        for right in (False, True):
            row = {"name": name, "kind": pair["kind"], "right": right, "world": pair["world"]}
            rows.append(row | judge(name, right, pair["world"], rehearses=not options.without_rehearsal))
            said = rows[-1]
            if said["differences"] and not right:
                said["names_right"] = names_right(said["differences"][0]["parameters"], pair)
            print(
                f"{name:26}{'right' if right else 'wrong':7}{said['verify']:11}{said.get('rehearse', ''):11}"
                f"{said['verify_s']:5.0f} s  {said['headline'][:140]}",
                flush=True,
            )
    tools = ["verify"] if options.without_rehearsal else ["verify", "rehearse", "either"]
    summary = {
        tool: {
            "found": sum(is_told(row, tool) for row in rows if not row["right"]),
            "of": sum(not row["right"] for row in rows),
            "alarms": sum(is_told(row, tool) for row in rows if row["right"]),
        }
        for tool in tools
    }
    print(summary)
    if options.only is None:
        write_document(
            {"schema_version": 1, "environment": describe_environment(), "summary": summary, "rows": rows}, RESULT
        )


def judge(name: str, right: bool, world: int, *, rehearses: bool) -> dict[str, Any]:
    """What is said of a program."""
    script, arguments = FOLDER / "programs" / f"{name}.py", ["--right"] if right else []
    began = time.monotonic()
    found = trimaran.verify(script, arguments, world=world)
    row: dict[str, Any] = {
        "verify": found.verdict,
        "headline": found.headline,
        "differences": [
            {"text": one.text, "parameters": list(one.parameters), "factor": one.factor, "lines": list(one.lines)}
            for one in found.differences
        ],
        "verify_s": round(time.monotonic() - began, 1),
    }
    if rehearses:
        rehearsed = trimaran.rehearse(script, arguments, world=world, per_node=max(1, world // 2))
        row |= {"rehearse": rehearsed.verdict, "rehearsed": rehearsed.headline}
    return row


def names_right(named: list[str], pair: dict[str, Any]) -> bool:
    """Whether the parameters that are named are wrong ones: of the module that is wrong, where that has any."""
    of_module = [name for name in pair["parameters"] if f"{name}.".startswith(f"{pair['module']}.")]
    return set(named) <= set(of_module or pair["parameters"])


def table(rows: list[dict[str, Any]]) -> str:
    """What is said of each pair."""
    lines = ["| program | the wrong one | the right one |", "|---|---|---|"]
    for wrong, right in zip(rows[::2], rows[1::2], strict=True):
        said = wrong["differences"][0]["text"] if wrong["differences"] else wrong["headline"].split(": ", 1)[-1]
        beyond = "" if right["verify"] == "one model" else f": {right['headline'].split(': ', 1)[-1]}"
        lines.append(f"| {wrong['name']} | {said} | {right['verify']}{beyond} |")
    return "\n".join(lines)


def is_told(row: dict[str, Any], tool: str) -> bool:
    """Whether a program is called wrong."""
    told = {"verify": row["verify"] == "differs", "rehearse": row.get("rehearse") in ("disagree", "hang")}
    return told[tool] if tool in told else any(told.values())


if __name__ == "__main__":
    main()
