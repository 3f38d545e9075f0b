"""Step times of MosaicML's FSDP rows, rehearsed: published tokens a second against those of the rehearsed script.

    python benchmarks/rehearsal/run.py ROWS.csv… [--some 20] [--out results.csv]

Each row is a process of some seconds: rank 0 of all, on this machine's processor; all ranks of FSDP do the same.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trimaran.machine.types import Device, Machine
from trimaran.networks.sizes import find_size
from trimaran.pricing.kernels.software import Software
from trimaran.rehearsal.record import Record, read_record, write_record
from trimaran.rehearsal.time import StepTime, step_time
from trimaran_studies.facts.machine_labels import match_machine

HERE = Path(__file__).parent
MOST_MICROBATCHES = 2
"""A step's microbatches do the same: with more of them two lengths are rehearsed and the rest follows."""


def rows_of(paths: list[Path]) -> list[dict[str, str]]:
    found = []
    for path in paths:
        with path.open(encoding="utf-8") as file:
            found += [
                row
                for row in csv.DictReader(file)
                if "llm-foundry" in row["framework"] and not row["flag"] and "fp8" not in row["precision"]
            ]
    return found


def arguments_of(row: dict[str, str], accumulation: int) -> list[str]:
    size = find_size("mpt", row["model"].lower().removeprefix("mpt-"))
    given = [f"--width={size.width}", f"--layers={size.layers}", f"--heads={size.heads}"]
    given += [f"--sequence={row['seq_len']}", f"--microbatch={row['micro_batch']}", f"--accumulation={accumulation}"]
    given += ["--recompute"] if row["recompute"] == "True" else []
    given += ["--keep-gathered"] if row["zero"] == "SHARD_GRAD_OP" else []
    return given


def rehearse(arguments: list[str], machine: Machine, world: int, folder: Path) -> Record:
    """Rank 0 of all."""
    device: Device = machine.node.device
    request = {
        "script": str(HERE / "mpt.py"),
        "arguments": arguments,
        "rank": 0,
        "world": world,
        "per_node": min(8, world),
        "gpu": {
            "name": device.title,
            "catalog_name": device.name,
            "memory_bytes": 4 * device.memory.nbytes,
            "capability": [9, 0] if device.architecture == "hopper" else [8, 0],
            "multiprocessors": device.multiprocessors,
        },
        "together": [0],
        "meeting": str(folder),
        "record": str(folder / "record"),
        "output": str(folder / "output"),
        "most_steps": 2,
    }
    path = folder / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    command = [sys.executable, "-m", "trimaran.rehearsal.worker", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ, check=False)
    if not (folder / "record").exists():
        raise SystemExit(f"{arguments}: {done.stdout}\n{done.stderr}")
    return read_record(folder / "record")


def kept(arguments: list[str], machine: Machine, world: int, records: Path | None) -> Record:
    """The record, from a folder of them where it has been made before."""
    name = f"{machine.node.device.name} {world} {' '.join(arguments)}".replace("/", "_")
    if records is not None and (records / name).exists():
        return read_record(records / name)
    with tempfile.TemporaryDirectory() as folder:
        record = rehearse(arguments, machine, world, Path(folder))
    if records is not None:
        write_record(records / name, record)
    return record


def predict(row: dict[str, str], records: Path | None = None) -> tuple[float, StepTime, float]:
    """Tokens a second of a rank, the step, and the seconds that it took here."""
    devices, micro = int(row["n_gpus"]), int(row["micro_batch"])
    microbatches = max(1, round(int(row["global_batch"]) / (devices * micro)))
    match = match_machine(row["machine"], row["gpu"], devices=devices, nodes=None)
    assert match is not None, row["machine"]
    software = Software(year=2023.5 if "h100" in row["gpu"] else 2023.0, source="the tables' commits")
    began = time.perf_counter()
    steps = {}
    for accumulation in sorted({min(microbatches, MOST_MICROBATCHES), min(microbatches, MOST_MICROBATCHES - 1)}):
        record = kept(arguments_of(row, accumulation), match.machine, devices, records)
        kinds = dict.fromkeys(range(devices), 0)
        steps[accumulation] = step_time([record], match.machine, kinds=kinds, software=software)
    longest = steps[max(steps)]
    seconds = longest.step.seconds
    if microbatches > MOST_MICROBATCHES:
        each = seconds - steps[min(steps)].step.seconds
        seconds += (microbatches - MOST_MICROBATCHES) * each
    tokens = microbatches * micro * int(row["seq_len"])
    return tokens / seconds, longest, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--some", type=int, default=0, help="only so many rows, evenly taken")
    parser.add_argument("--only", default="", help="part of a row's id or model")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    parser.add_argument("--records", type=Path, help="folder in which records are kept")
    given = parser.parse_args()
    rows = [row for row in rows_of(given.rows) if given.only.lower() in f"{row['row_id']} {row['model']}".lower()]
    if given.some and len(rows) > given.some:
        rows = [rows[place * len(rows) // given.some] for place in range(given.some)]
    results = []
    for row in rows:
        rate, found, here_s = predict(row, given.records)
        value = float(row["value"])
        parts = found.parts
        results.append(
            {
                **{name: row[name] for name in ("row_id", "split", "model", "gpu", "n_gpus", "seq_len", "micro_batch")},
                **{name: row[name] for name in ("global_batch", "zero", "recompute")},
                "published": value,
                "predicted": round(rate, 1),
                "error": round(rate / value - 1.0, 4),
                "low": round(found.step.low / found.step.seconds, 3),
                "high": round(found.step.high / found.step.seconds, 3),
                "mfu": round(found.mfu, 3),
                **{
                    name: round(getattr(parts, f"{name}_s") / parts.seconds, 3)
                    for name in ("compute", "launches", "communication", "slowest")
                },
                "here_s": round(here_s, 1),
            }
        )
        print({name: results[-1][name] for name in results[-1] if name not in ("split", "zero")}, flush=True)
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(results[0]))
            writer.writeheader()
            writer.writerows(results)
    errors = [abs(one["error"]) for one in results]
    inside = sum(one["low"] <= one["predicted"] / one["published"] <= one["high"] for one in results)
    median = statistics.median(errors)
    print(f"{len(errors)} rows: median {median:.1%}, largest {max(errors):.1%}, {inside} in their interval")


if __name__ == "__main__":
    main()
