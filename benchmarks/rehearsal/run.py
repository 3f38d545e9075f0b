"""Step times of MosaicML's FSDP rows: published tokens a second, and those of a script that is rehearsed for each row.

    python benchmarks/rehearsal/run.py [ROWS.csv …] [--some 20] [--records FOLDER]

Nothing is fitted here and nothing is calibrated. Each row takes a minute: rank 0 is rehearsed, as all ranks
of FSDP do the same, with one microbatch and with two; further ones take what the second takes.
"""

import argparse
import csv
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from environment import describe_environment, write_result

from trimaran.machine.types import Machine
from trimaran.networks.sizes import find_size
from trimaran.pricing.kernels.software import Software
from trimaran.rehearsal.launch import run_ranks
from trimaran.rehearsal.record import Record, read_record, write_record
from trimaran.rehearsal.request import Gpu, RankRequest
from trimaran.rehearsal.time import StepTime, step_time
from trimaran_studies.facts.machine_labels import match_machine

HERE = Path(__file__).parent
MICROBATCHES = 2
"""So many are rehearsed at most."""

COLUMNS = (
    "row_id", "split", "line", "model", "gpu", "machine", "n_gpus", "seq_len", "micro_batch", "global_batch", "zero",
    "recompute",
)  # fmt: skip


def rows_of(paths: list[Path]) -> list[dict[str, str]]:
    """Rows in 16 bits without a known slip."""
    found = []
    for path in paths:
        with path.open(encoding="utf-8") as file:
            found += [row for row in csv.DictReader(file) if "llm-foundry" in row.get("framework", "llm-foundry")]
    return [row for row in found if not row.get("flag") and "fp8" not in row.get("precision", "")]


def arguments_of(row: dict[str, str], microbatches: int) -> list[str]:
    size = find_size("mpt", row["model"].lower().removeprefix("mpt-"))
    given = [f"--width={size.width}", f"--layers={size.layers}", f"--heads={size.heads}"]
    given += [f"--sequence={row['seq_len']}", f"--microbatch={row['micro_batch']}", f"--accumulation={microbatches}"]
    given += ["--recompute"] if row["recompute"] == "True" else []
    given += ["--keep-gathered"] if row["zero"] == "SHARD_GRAD_OP" else []
    return given


def rehearse(arguments: list[str], machine: Machine, world: int, folder: Path) -> Record:
    """Rank 0 of all, whose memory has no end: whether a row fits is not the question here."""
    device = machine.node.device
    capability = (9, 0) if device.architecture == "hopper" else (8, 0)
    request = RankRequest(
        script=str(HERE / "mpt.py"),
        arguments=tuple(arguments),
        rank=0,
        world=world,
        per_node=min(8, world),
        gpu=Gpu(device.title, device.name, 8 * device.memory.nbytes, capability, device.multiprocessors),
        together=(0,),
        meeting=str(folder),
        record=str(folder / "record"),
        output=str(folder / "output"),
        most_steps=2,
    )
    (found,) = run_ranks([request], folder=folder)
    if found.record.end.how not in ("finished", "steps"):
        raise SystemExit(f"{arguments}: {found.printed}")
    return found.record


def record_of(arguments: list[str], machine: Machine, world: int, records: Path | None) -> Record:
    """The record, from a folder of them where it has been made before."""
    name = f"{machine.node.device.name} {world} {' '.join(arguments)}".replace("/", "_")
    if records is not None and (records / name).exists():
        return read_record(records / name)
    with tempfile.TemporaryDirectory() as folder:
        record = rehearse(arguments, machine, world, Path(folder))
    if records is not None:
        write_record(records / name, record)
    return record


def predict(row: dict[str, str], records: Path | None) -> tuple[float, StepTime]:
    """Tokens a second of a rank, and the step of the largest number of microbatches that was rehearsed."""
    devices, micro = int(row["n_gpus"]), int(row["micro_batch"])
    asked = max(1, round(int(row["global_batch"]) / (devices * micro)))
    match = match_machine(row["machine"], row["gpu"], devices=devices, nodes=None)
    assert match is not None, row["machine"]
    # The tables of A100 came in the spring of 2023, those of H100 half a year later.
    software = Software(year=2023.5 if "h100" in row["gpu"] else 2023.0, source="the tables' commits")
    steps = {}
    for count in {min(asked, MICROBATCHES), min(asked, MICROBATCHES - 1)}:
        record = record_of(arguments_of(row, count), match.machine, devices, records)
        steps[count] = step_time([record], match.machine, kinds=dict.fromkeys(range(devices), 0), software=software)
    longest = steps[max(steps)]
    seconds = longest.step.seconds
    seconds += max(0, asked - MICROBATCHES) * (seconds - steps[min(steps)].step.seconds)
    return asked * micro * int(row["seq_len"]) / seconds, longest


def case(row: dict[str, str], records: Path | None) -> dict[str, Any]:
    predicted, found = predict(row, records)
    published, parts = float(row.get("value") or row["tokens_per_s"]), found.parts
    shares = {name: getattr(parts, f"{name}_s") / parts.seconds for name in ("compute", "launches", "communication")}
    return {
        **{name: row[name] for name in COLUMNS},
        "tokens_per_s": published,
        "predicted_tokens_per_s": round(predicted, 1),
        "error": round(predicted / published - 1.0, 4),
        "interval": [round(found.step.seconds / end, 3) for end in (found.step.high, found.step.low)],
        "mfu": round(found.mfu, 3),
        "shares": {name: round(share, 3) for name, share in shares.items()},
    }


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    errors = sorted(abs(each["error"]) for each in cases)
    inside = [
        each["interval"][0] <= each["tokens_per_s"] / each["predicted_tokens_per_s"] <= each["interval"][1]
        for each in cases
    ]
    return {
        "rows": len(cases),
        "median": round(statistics.median(errors), 4),
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "bias": round(statistics.median(each["error"] for each in cases), 4),
        "in_interval": sum(inside),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", type=Path, default=[HERE / "rows.csv"])
    parser.add_argument("--some", type=int, default=0, help="only so many rows, evenly taken")
    parser.add_argument("--only", default="", help="part of a row's id or model")
    parser.add_argument("--records", type=Path, help="folder in which records are kept")
    given = parser.parse_args()
    rows = [row for row in rows_of(given.rows) if given.only.lower() in f"{row['row_id']} {row['model']}".lower()]
    if given.some and len(rows) > given.some:
        rows = [rows[place * len(rows) // given.some] for place in range(given.some)]
    cases = []
    for row in rows:
        cases.append(case(row, given.records))
        each = cases[-1]
        print(
            f"{each['row_id']} {each['split']:9} {each['model']:8} {each['gpu']:9} x{each['n_gpus']:>3} "
            f"{each['seq_len']:>5} {each['tokens_per_s']:>8.0f} {each['predicted_tokens_per_s']:>8.0f} "
            f"{each['error']:+6.1%}",
            flush=True,
        )
    splits = {name: [each for each in cases if each["split"] == name] for name in ("calibrate", "dev")}
    found = {name: summary(each) for name, each in splits.items() if each}
    print(json.dumps(found, indent=1))
    if not given.only and not given.some:
        document = {"schema_version": 1, "environment": describe_environment(), "summary": found, "cases": cases}
        write_result(document, "rehearsal")


if __name__ == "__main__":
    main()
