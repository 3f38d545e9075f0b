"""Public training scripts, rehearsed as they are, next to what was counted by hand before.

    python benchmarks/rehearsal/strangers.py --checkouts DIR [LIST.toml …] [--only TEXT] [--results FILE.csv]

    python benchmarks/rehearsal/strangers.py --checkouts DIR --count [--only TEXT]   # prints the counts

A checkout is `DIR/owner+name` at the commit of its row. What a row says:

    name                  of the row
    repository, commit    on GitHub
    folder                in which it is run, from the checkout's root
    prepare               shell commands that make its data, run there before; may be missing
    command               of `trimaran rehearse --world 8`: options of it, "--", the script and its arguments
    environment           variables; may be missing
    needs                 packages beside torch
    model                 Python, run in the folder with `meta` as the default device: leaves parameters of rank 0 as
                          `model`, a module or tensors
    states                Python: tensors of the optimizer's state by trained parameter, or a list of all on the device
    exchange              Python: bytes by operation in a step, of `trained`, `elements` and `gradients` (bytes); DDP's
                          `dict(all_reduce=gradients)` where there is none
    parameter_bytes       least and most of these, without buffers: each rounded up to the allocator's blocks of 512
                          bytes, with a rest of less than 1 MiB where it is larger than that [bytes]
    optimizer_bytes       of the state on the device, in the same way [bytes]
    exchanged             by operation, what rank 0 exchanges in a step: whole tensors, before they are scattered or
                          after they are gathered; counted by hand [bytes]
    verdict               that is right: "fits", "out of memory", "disagree", "hang", "not trained", "failed" for its
                          own fault or a package that is not there; missing: not judged
    why                   how it was counted, and why a verdict other than "fits" is right

Nothing of what is rehearsed makes these counts: they are of plain torch, and by hand.
"""

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COUNT = """
import sys, torch
sys.path.insert(0, "")
with torch.device("meta"):
{model}
def blocks(tensors):
    sizes = [-(-each.numel() * each.element_size() // 512) * 512 for each in tensors]
    return [sum(sizes), sum(sizes) + sum(2**20 for size in sizes if size > 2**20)]
tensors = list(model.parameters()) if isinstance(model, torch.nn.Module) else list(model)
trained = [each for each in tensors if each.requires_grad]
states = {states}
print("parameter_bytes =", blocks(tensors))
print("optimizer_bytes =", blocks(states if isinstance(states, list) else trained * states))
elements = sum(each.numel() for each in trained)
gradients = sum(each.numel() * each.element_size() for each in trained)
exchanged = {exchange}
print("exchanged =", "{{ " + ", ".join(f"{{name}} = {{nbytes}}" for name, nbytes in exchanged.items()) + " }}")
"""
"""The caching allocator rounds to blocks of 512 bytes; one above 1 MiB may also keep a rest of less than 1 MiB."""

DDP = "dict(all_reduce=gradients)"

COLUMNS = (
    "script", "command", "ended", "verdict", "right", "reason", "parameter_bytes", "optimizer_bytes", "exchanged",
)  # fmt: skip


def count(row: dict[str, Any], folder: Path) -> str:
    """Bytes of parameters and of the optimizer's state, of plain torch."""
    lines = "\n".join(f"    {line}" for line in row["model"].strip().splitlines())
    program = COUNT.format(model=lines, states=row.get("states", 0), exchange=row.get("exchange", DDP))
    variables = {**os.environ, **{name: str(value) for name, value in row.get("environment", {}).items()}}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    return ended.stdout if ended.returncode == 0 else f"# {ended.stderr.strip()[-500:]}"


def prepared(row: dict[str, Any], folder: Path, output: Path) -> dict[str, str]:
    """Make the data of a row, and give the variables with which it is run."""
    variables = {**os.environ, **{name: str(value) for name, value in row.get("environment", {}).items()}}
    variables["STRANGERS"] = str(HERE)  # where strangers_data.py is
    variables["HF_DATASETS_CACHE"] = str(output.with_suffix(""))  # which knows data by their name: another row's, too
    if "prepare" in row:
        made = folder / ".prepared"  # of the row before, whose data may have the same names
        if not made.exists() or made.read_text() != row["prepare"]:
            path = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
            subprocess.run(row["prepare"], shell=True, check=True, cwd=folder, env={**variables, "PATH": path})
            made.write_text(row["prepare"])
    return variables


def rehearse(row: dict[str, Any], folder: Path, output: Path) -> dict[str, Any]:
    """The result of a rehearsal as it wrote it; what it printed where it wrote none."""
    variables = prepared(row, folder, output)
    given = shlex.split(row["command"])
    options = [] if "--world" in given else ["--world", "8"]
    command = [sys.executable, "-m", "trimaran", "rehearse", *options, "--json", "--output", str(output), *given]
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if output.exists():
        return {"status": ended.returncode, **json.loads(output.read_text())}
    return {"status": ended.returncode, "verdict": "none", "headline": (ended.stderr or ended.stdout).strip()}


def exchanged(found: dict[str, Any]) -> dict[str, int]:
    """Bytes by operation that rank 0 exchanges in a step, in groups of more than one."""
    sums: dict[str, int] = {}
    for each in found.get("collectives", ()):
        if each["rank"] == 0 and each["ranks"] > 1 and each["nbytes"]:
            sums[each["operation"]] = sums.get(each["operation"], 0) + each["nbytes"]
    return sums


def parts_of(found: dict[str, Any]) -> dict[str, int]:
    """Bytes that rank 0 keeps from step to step, by purpose; of one that ends before, those at its peak."""
    ranks = (rank["kept_bytes"] or rank["parts_bytes"] for rank in found.get("ranks", ()) if rank["rank"] == 0)
    return next(map(dict, ranks), {})


def differences(row: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is not as it was counted."""
    parts = parts_of(found)
    told = []
    for name in ("parameter", "optimizer"):
        counted, seen = row.get(f"{name}_bytes"), parts.get(name, 0)
        if counted is not None and not counted[0] <= seen <= counted[1]:
            told.append(f"{name} {seen}, counted {counted[0]}")
    if "exchanged" in row and exchanged(found) != row["exchanged"]:
        told.append(f"exchanged {exchanged(found)}, counted {row['exchanged']}")
    if "verdict" in row and found["verdict"] != row["verdict"]:
        told.append(f"verdict {found['verdict']}, right is {row['verdict']}")
    return told


def case(row: dict[str, Any], checkouts: Path, kept: Path) -> dict[str, Any]:
    """One line of the results."""
    folder = checkouts / row["repository"].replace("/", "+") / row["folder"]
    found = rehearse(row, folder, kept / f"{row['name'].replace(' ', '-').replace('/', '-')}.json")
    parts = parts_of(found)
    told = differences(row, found)
    is_judged = {"parameter_bytes", "exchanged", "verdict"} & row.keys()
    return {
        "script": row["name"],
        "command": row["command"],
        "ended": found["verdict"] not in ("none", "failed") or found["verdict"] == row.get("verdict"),
        "verdict": found["verdict"],
        "right": "no" if told else "yes" if is_judged else "not judged",
        "reason": "; ".join(told) or found["headline"].splitlines()[0].replace(f"{checkouts}/", "")[:200],
        "parameter_bytes": parts.get("parameter", ""),
        "optimizer_bytes": parts.get("optimizer", ""),
        "exchanged": json.dumps(exchanged(found)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("lists", nargs="*", type=Path, help="default: all strangers*.toml of this folder")
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--only", action="append", help="rows whose name has this; may be repeated")
    parser.add_argument("--count", action="store_true", help="print the counts of plain torch; rehearse nothing")
    parser.add_argument("--kept", type=Path, help="folder in which results of rehearsals are kept")
    parser.add_argument("--results", type=Path, help="CSV file; rows of other scripts in it are left")
    given = parser.parse_args()
    lists = given.lists or sorted(HERE.glob("strangers*.toml"))
    rows = [row for path in lists for row in tomllib.loads(path.read_text())["script"]]
    rows = [row for row in rows if any(name in row["name"] for name in given.only or [""])]
    if given.count:
        for row in rows:
            if "model" in row:
                folder = given.checkouts / row["repository"].replace("/", "+") / row["folder"]
                print(f"# {row['name']}\n{count(row, folder)}", flush=True)
        return
    before: dict[str, dict[str, Any]] = {}
    if given.results and given.results.exists():
        with given.results.open(newline="", encoding="utf-8") as file:
            before = {each["script"]: each for each in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as scratch:
        kept = (given.kept or Path(scratch)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for row in rows:
            found = case(row, given.checkouts.resolve(), kept)
            before[found["script"]] = found
            print(f"{found['script']:40} {found['verdict']:10} {found['right']:10} {found['reason']}", flush=True)
            if given.results:
                with given.results.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(before.values())
    print(f"{sum(str(found['ended']) == 'True' for found in before.values())} of {len(before)} reach a verdict")


if __name__ == "__main__":
    main()
