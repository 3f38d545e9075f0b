"""Public training scripts as they are, each verified as two and as four ranks, and copies with a planted fault.

    python benchmarks/wrongbench/public.py --checkouts DIR [--only TEXT] [--worlds 2 4] [--results FILE.csv]

A checkout is `DIR/owner+name` at the commit of its row. What a row of `public.toml` says:

    name, kind            of the row
    repository, commit    on GitHub
    folder                in which it is run, from the checkout's root
    prepare               shell commands that make its data, run there before; may be missing
    command               of `trimaran verify --world N`: options, "--", the script and its arguments; {world} is N
    environment           variables; may be missing
    worlds                of a script that needs more than two ranks; may be missing
    wrong                 why the script as it is does not train the model of one process, with a factor; may be missing

A planted fault is of a row: `old` becomes `new` in a copy of its script. Gradients are `factor` times ranks to the
`power_of_world` too large; where both are missing, they are no multiple. Right is "one model" of a script, and of a
fault "differs" with its factor to 1 % and a line near the one that was changed; "not known" is no alarm.
"""

import argparse
import csv
import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.rehearsal.strangers import prepared  # noqa: E402

COLUMNS = ("script", "kind", "world", "right", "verdict", "exit", "seconds", "cpu_s", "gradients", "headline")


def verify(
    row: dict[str, Any], folder: Path, world: int, output: Path, fault: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One line of the results."""
    variables = prepared(row, folder, output)
    given = shlex.split(row["command"].replace("{world}", str(world)))
    place, script, line = given.index("--") + 1, None, 0
    if fault is not None:
        whole = folder / given[place]
        text = whole.read_text()
        line = text[: text.index(fault["old"])].count("\n") + 1
        script = whole.with_name(f"planted_{whole.name}")
        script.write_text(text.replace(fault["old"], fault["new"]))
        given[place] = str(script.relative_to(folder))
    command = [sys.executable, "-m", "trimaran", "verify", "--world", str(world), "--output", str(output), *given]
    output.unlink(missing_ok=True)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if script is not None:
        script.unlink()
    found = json.loads(output.read_text()) if output.exists() else {"verdict": "none", "headline": ended.stderr}
    right = {"one model": "yes", "not known": "not known"}.get(found["verdict"], "no")
    if fault is None and "wrong" in row and found["verdict"] == "differs":
        right = is_found(row, world, None, found)
    if fault is not None:
        right = is_found(fault, world, line, found)
    return {
        "script": row["name"] if fault is None else f"{row['name']}: {fault['fault']}",
        "right": right,
        "kind": row["kind"],
        "world": world,
        "verdict": found["verdict"],
        "exit": ended.returncode,
        "seconds": round(seconds, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "gradients": found.get("gradients", ""),
        "headline": found["headline"].replace("\n", " ")[:200],
    }


def is_found(fault: dict[str, Any], world: int, line: int | None, found: dict[str, Any]) -> str:
    """Whether a fault is told with its factor and near its line, if one is known."""
    if found["verdict"] != "differs":
        return "no"
    first = found["differences"][0]
    near = line is None or any(
        f":{number} " in told and Path(told.split(":")[0]).name.startswith("planted_")
        for told in first["lines"]
        for number in range(line - 4, line + 8)
    )
    factor = fault.get("factor", 1) * world ** fault.get("power_of_world", 0)
    if factor != 1 and (first["factor"] is None or abs(first["factor"] / factor - 1) > 0.01):
        return f"no: factor {first['factor']}"
    return "yes" if near else "yes, another line"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--only", action="append", help="rows whose name has this; may be repeated")
    parser.add_argument("--planted", action="store_true", help="planted faults alone")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--kept", type=Path, help="folder in which results are kept as JSON")
    parser.add_argument("--results", type=Path, help="CSV file; rows of other scripts in it are left")
    given = parser.parse_args()
    listed = tomllib.loads((HERE / "public.toml").read_text())
    rows = [row for row in listed["script"] if any(name in row["name"] for name in given.only or [""])]
    cases = [(row, None) for row in rows] * (not given.planted)
    cases += [(row, fault) for fault in listed["planted"] for row in rows if row["name"] == fault["of"]]
    before: dict[tuple[str, str], dict[str, Any]] = {}
    if given.results and given.results.exists():
        with given.results.open(newline="", encoding="utf-8") as file:
            before = {(each["script"], each["world"]): each for each in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as scratch:
        kept = (given.kept or Path(scratch)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for number, (row, fault) in enumerate(cases):
            folder = given.checkouts.resolve() / row["repository"].replace("/", "+") / row["folder"]
            for world in row.get("worlds", given.worlds):
                line = verify(
                    row, folder, world, kept / f"{row['name'].replace(' ', '-')}-{number}-{world}.json", fault
                )
                before[line["script"], str(world)] = line
                print(
                    f"{line['script']:32}{world:2} {line['verdict']:10}{line['seconds']:6} s {line['cpu_s']:6} s  "
                    f"{line['headline']}",
                    flush=True,
                )
                if given.results:
                    with given.results.open("w", newline="", encoding="utf-8") as file:
                        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                        writer.writeheader()
                        writer.writerows(before.values())


if __name__ == "__main__":
    main()
