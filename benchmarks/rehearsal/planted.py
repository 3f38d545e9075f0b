"""Faults planted in public training scripts: each is found at its line.

    python benchmarks/rehearsal/planted.py --checkouts DIR [--only TEXT]

`planted.toml` says of each what is inserted after which line of which script, the verdicts that are right and the lines
of which one has to be told. A rehearsal has its default steps; where its report suggests `--steps N` and the fault was
not found, it is rehearsed again with these.
"""

import argparse
import json
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from strangers import HERE, rehearse


def told(answer: dict[str, Any], file: str) -> set[int]:
    """Lines of the script that the first trouble names."""
    return {int(line) for line in re.findall(rf"{re.escape(file)}:(\d+)", json.dumps(answer.get("troubles", [])[:1]))}


def tried(fault: dict[str, Any], row: dict[str, Any], checkouts: Path, scratch: Path) -> tuple[bool, str]:
    """Whether a planted fault is found, and what was said."""
    repository = row["repository"].replace("/", "+")
    copy = Path(shutil.copytree(checkouts / repository, scratch / repository, symlinks=True, dirs_exist_ok=True))
    folder = copy / row["folder"]
    script = folder / fault["file"]
    lines = script.read_text().splitlines(keepends=True)
    script.write_text(
        "".join([*lines[: fault["after"]], *(f"{line}\n" for line in fault["insert"]), *lines[fault["after"] :]])
    )
    steps = ""
    for again in range(2):
        answer = rehearse(
            {**row, "command": f"{steps} {fault.get('command', row['command'])}"}, folder, scratch / f"{again}.json"
        )
        if answer["verdict"] in fault["verdicts"] and told(answer, fault["file"]) & set(fault["lines"]):
            return True, f"{steps} {answer['headline']}".strip()
        suggested = re.search(r"--steps \d+", json.dumps(answer.get("notes", [])))
        if suggested is None:
            break
        steps = suggested[0]
    return False, f"{answer['headline']} lines {sorted(told(answer, fault['file']))}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--only", default="", help="kinds that have this text")
    given = parser.parse_args()
    rows = {
        row["name"]: row
        for path in sorted(HERE.glob("strangers*.toml"))
        for row in tomllib.loads(path.read_text())["script"]
    }
    faults = [
        each for each in tomllib.loads((HERE / "planted.toml").read_text())["fault"] if given.only in each["kind"]
    ]
    found = 0
    for fault in faults:
        with tempfile.TemporaryDirectory() as scratch:
            is_found, said = tried(fault, rows[fault["script"]], given.checkouts.resolve(), Path(scratch))
        found += is_found
        print(f"{fault['kind']:22} {fault['script']:28} {'found' if is_found else 'MISSED':7} {said}", flush=True)
    print(f"{found} of {len(faults)} found")


if __name__ == "__main__":
    main()
