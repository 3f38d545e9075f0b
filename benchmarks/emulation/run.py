"""Simulated against emulated: plans of 4 to 8 ranks on however few cores there are.

For each job and number of devices the costs are measured, then each plan is simulated, and run with simulated compute
and real messages on links that are held to a rate. Prints a table and writes `benchmarks/results/emulation.json`.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_result  # noqa: E402

from trimaran.features.emulation import emulate  # noqa: E402
from trimaran.graph.sharding.fsdp_units import sharding_units  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.planner.problem import Problem, split_for  # noqa: E402
from trimaran.planning.emulated import EmulatedJob, prepare_emulation  # noqa: E402
from trimaran.planning.requests import parse_link  # noqa: E402
from trimaran.program.strategy import Strategy  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A job on so many simulated devices.

    Attributes:
        job: reference of a built-in job
        devices: how many
        link: what the links are held to
        strategies: what is run, without boundaries and units
    """

    job: str
    devices: int
    link: str
    strategies: tuple[Strategy, ...]


SMALLEST_UNIT = 2**16
"""Smaller than what plans take, so that these small networks have units, and gathers beside compute [bytes]."""

SETTINGS = (
    Setting(
        job="text-gpt",
        devices=4,
        link="1Gb/s",
        strategies=(
            Strategy(dp=4),
            Strategy(dp=2, pp=2, schedule="1f1b", microbatches=4),
            Strategy(pp=4, schedule="gpipe", microbatches=8),
            Strategy(dp=4, zero=3),
        ),
    ),
    Setting(
        job="digits-resnet",
        devices=8,
        link="1Gb/s",
        strategies=(
            Strategy(dp=8),
            Strategy(dp=4, pp=2, schedule="1f1b", microbatches=4),
            Strategy(dp=2, pp=4, schedule="zero-bubble", microbatches=8),
            Strategy(dp=2, pp=2, chunks=2, schedule="interleaved", microbatches=4),
        ),
    ),
)


def main() -> None:
    """Run all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="emulated steps of each plan")
    arguments = parser.parse_args()
    environment = describe_environment()
    print(environment_line(environment))
    rows = [row for setting in SETTINGS for row in run_setting(setting, steps=arguments.steps)]
    errors = [abs(row["error"]) for row in rows]
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")
    write_result({"schema_version": 1, "environment": environment, "rows": rows}, "emulation")


def run_setting(setting: Setting, *, steps: int) -> list[dict[str, Any]]:
    """Each plan of a setting, simulated and emulated."""
    emulated = prepare_emulation(
        JobSource(reference=setting.job), devices=setting.devices, link=parse_link(setting.link)
    )
    rows = []
    for uncut in setting.strategies:
        strategy = split_for(uncut, _problem(emulated))
        if strategy.zero >= 2:
            strategy = replace(strategy, units=sharding_units(emulated.graph, min_bytes=SMALLEST_UNIT))
        found = emulate(emulated, strategy, steps=steps)
        rows.append(
            {
                "job": setting.job,
                "devices": setting.devices,
                "link": setting.link,
                "strategy": strategy.name,
                "predicted_s": found.predicted_s,
                "measured_s": found.measured_s,
                "error": found.error,
            }
        )
        print(
            f"{setting.job:14} {strategy.name:24} {found.predicted_s * 1e3:8.1f} ms simulated "
            f"{found.measured_s * 1e3:8.1f} ms emulated {found.error:+7.1%}",
            flush=True,
        )
    return rows


def _problem(emulated: EmulatedJob) -> Problem:
    return Problem(
        graph=emulated.graph,
        table=emulated.table,
        cluster=emulated.cluster,
        batch=emulated.job.global_batch_size,
        devices=emulated.cluster.size,
    )


if __name__ == "__main__":
    main()
