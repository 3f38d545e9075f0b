"""Gradients summed within nodes and then across them, against one sum over all: simulated and emulated.

Ranks sit on emulated nodes: fast links within each, a slow one from each to the others, real messages on both, compute
as pauses. Every strategy is run with each size of buckets that makes a difference, and the best of each kind of sum is
compared. Prints a table and writes `benchmarks/results/hierarchical.json`, setting by setting; of settings that are not
run, the rows that are there stay.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, environment_line, write_result  # noqa: E402

from trimaran.features.emulation import emulate  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.planner.space import bucket_sizes  # noqa: E402
from trimaran.planning.emulated import EmulatedJob, prepare_emulation  # noqa: E402
from trimaran.planning.requests import parse_link  # noqa: E402
from trimaran.program.strategy import Strategy  # noqa: E402

NAME = "hierarchical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A job on emulated nodes.

    Attributes:
        job: reference of a built-in job
        devices: on all nodes together
        nodes: that they are dealt to
        link: what the links of ranks are held to
        uplink: what the links between nodes are held to
    """

    job: str
    devices: int
    nodes: int
    link: str
    uplink: str


SETTINGS = (
    Setting(job="wide", devices=4, nodes=2, link="1Gb/s", uplink="200Mb/s"),
    Setting(job="text-gpt", devices=4, nodes=2, link="1Gb/s", uplink="200Mb/s"),
    Setting(job="text-gpt", devices=8, nodes=2, link="1Gb/s", uplink="200Mb/s"),
)


def main() -> None:
    """Run the settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="emulated steps of each plan")
    parser.add_argument("--setting", type=int, help="only this one, from 0")
    arguments = parser.parse_args()
    environment = describe_environment()
    print(environment_line(environment))
    chosen = SETTINGS if arguments.setting is None else SETTINGS[arguments.setting : arguments.setting + 1]
    for setting in chosen:
        found = run_setting(setting, steps=arguments.steps)
        rows = [row for row in _kept() if any(row[name] != value for name, value in asdict(setting).items())] + found
        write_result({"schema_version": 1, "environment": environment, "rows": rows}, NAME)
    errors = [abs(row["error"]) for row in _kept()]
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")


def _kept() -> list[dict[str, Any]]:
    path = RESULTS / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def run_setting(setting: Setting, *, steps: int) -> list[dict[str, Any]]:
    """Both kinds of sum in a setting, each with every size of buckets."""
    emulated = prepare_emulation(
        JobSource(reference=setting.job),
        devices=setting.devices,
        link=parse_link(setting.link),
        nodes=setting.nodes,
        uplink=parse_link(setting.uplink),
    )
    rows = [
        _row(setting, emulated, strategy, steps=steps)
        for size in bucket_sizes(emulated.graph)
        for strategy in (
            Strategy(dp=setting.devices, bucket_bytes=size),
            Strategy(dp=setting.devices, bucket_bytes=size, sync="hierarchical", nodes=setting.nodes),
        )
    ]
    best = {
        sync: min((row for row in rows if row["sync"] == sync), key=lambda row: row["measured_s"])
        for sync in ("all-reduce", "hierarchical")
    }
    plain, levels = best["all-reduce"], best["hierarchical"]
    told, seen = (levels[kind] / plain[kind] for kind in ("predicted_s", "measured_s"))
    print(f"{setting.job:10} {setting.devices} on {setting.nodes}: in levels {seen:.2f} of plain, {told:.2f} predicted")
    return rows


def _row(setting: Setting, emulated: EmulatedJob, strategy: Strategy, *, steps: int) -> dict[str, Any]:
    found = emulate(emulated, strategy, steps=steps)
    print(
        f"{setting.job:10} {strategy.name:32} {found.predicted_s * 1e3:8.1f} ms simulated "
        f"{found.measured_s * 1e3:8.1f} ms emulated {found.error:+7.1%}",
        flush=True,
    )
    return {
        **asdict(setting),
        "strategy": strategy.name,
        "sync": strategy.sync,
        "predicted_s": found.predicted_s,
        "measured_s": found.measured_s,
        "error": found.error,
    }


if __name__ == "__main__":
    main()
