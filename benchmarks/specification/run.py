"""Requirements of the four studies that only a run can show: their tests, and what a step waits for.

Writes `benchmarks/results/specification.json`, which `reproduce specification` reads. Of some rows nothing is
written, or, with `--write`, these rows alone, each with its date and machine.

    python benchmarks/specification/run.py                    # everything: three and a half minutes on two idle cores
    python benchmarks/specification/run.py --rows A3,D1       # some, printed
    python benchmarks/specification/run.py --rows C6 --write  # some, put in place of what the file has of them
    python benchmarks/specification/run.py --rows stalls      # the steps of `trimaran observe --stalls` alone, printed
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, write_document  # noqa: E402

from trimaran_studies.specification.page import requirements  # noqa: E402

STALLS = "stalls"
STALLED = ("digits-resnet", "text-gpt", "wide")
"""Jobs whose steps are taken apart; those of `digits` are of 2 ms."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="such as A3,D1,stalls; all by default")
    parser.add_argument("--output", type=Path, default=RESULTS / "specification.json")
    parser.add_argument("--write", action="store_true", help="put the rows that are asked for into the file")
    options = parser.parse_args()
    asked = {row.strip() for row in options.rows.split(",") if row.strip()}
    document: dict[str, Any] = {"rows": {}, STALLS: []}
    for requirement in requirements():
        if requirement.tests and (not asked or requirement.id in asked):
            found = run_tests(requirement.tests)
            print(f"{requirement.id}: {found['passed']} passed, {found['failed']} failed", flush=True)
            document["rows"][requirement.id] = found
    if not asked or STALLS in asked:
        document[STALLS] = [stalls_of(job) for job in STALLED]
        for step in document[STALLS]:
            print(f"{step['job']}: {step['unattributed_share']:.1%} of {1e3 * step['step_s']:.1f} ms in no class")
    if asked and options.write:
        kept = json.loads(options.output.read_text(encoding="utf-8"))
        environment = describe_environment(devices=2)
        kept["rows"] |= {row: found | {"environment": environment} for row, found in document["rows"].items()}
        write_document(kept, options.output)
    if not asked:
        document |= {"schema_version": 1, "environment": describe_environment(devices=2)}
        write_document(document, options.output)
    return 0


def run_tests(files: tuple[str, ...]) -> dict[str, Any]:
    """Outcome of files of tests, sweeps included."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}", *files]
        environment = os.environ | {"TRIMARAN_CACHE": folder, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failures = [case.get("name", "") for case in cases if {"failure", "error"} & {part.tag for part in case}]
    skips = [part.get("message", "") for case in cases for part in case if part.tag == "skipped"]
    return {
        "files": list(files),
        "passed": len(cases) - len(failures) - len(skips),
        "failed": len(failures),
        "skipped": len(skips),
        "failures": failures,
        "skips": list(dict.fromkeys(skips)),
    }


def stalls_of(job: str) -> dict[str, Any]:
    """Step of a job on two processes, and the share of it that belongs to no class."""
    command = [
        sys.executable,
        "-m",
        "trimaran",
        "profile",
        job,
        "--stalls",
        "--devices",
        "2",
        "--oversubscribe",
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    way = json.loads(done.stdout)["ways"]["cached"]
    step_s = way["step_time_s"]
    return {"job": job, "step_s": step_s, "unattributed_share": way["shares"]["unattributed"] / step_s}


if __name__ == "__main__":
    sys.exit(main())
