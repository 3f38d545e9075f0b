"""Trainings of two to four ranks that are broken at random: nothing may be lost, and nothing left behind.

    python scripts/soak.py --faults 60 --seed 1
    python scripts/soak.py --hours 8 --out soak.json
    python scripts/soak.py --faults 10 --kind "full disk" --plan dp2
    python scripts/soak.py --out both.json --add one.json --add other.json

Each training is compared with an undisturbed one of the same plan: losses and weights bit for bit, figures of epochs,
steps done again, processes and files left behind. What a training with a problem wrote stays in `--folder`. The exit
code is 1 where there was one. Full disks are small file systems in memory, which only root can mount.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.environment import describe_environment
from tests.soak.campaign import HANG_S, KINDS, PLANS, SAVE_EVERY, Campaign, Result
from tests.soak.jobs import STEPS


def main() -> int:
    """Run a campaign."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--faults", type=int, default=0, help="that are planted at least")
    arguments.add_argument("--hours", type=float, default=0.0, help="for which trainings are begun")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be repeated")
    arguments.add_argument("--plan", action="append", choices=sorted(PLANS), help="only this one; may be repeated")
    arguments.add_argument("--folder", type=Path, help="of all files; default: a temporary one")
    arguments.add_argument("--out", type=Path, help="the result as JSON")
    arguments.add_argument("--add", action="append", type=Path, help="count this result too; without --faults alone")
    asked = arguments.parse_args()
    result, seconds, started = Result(), 0.0, time.monotonic()
    for path in asked.add or ():
        document = json.loads(path.read_text())
        result.add(Result.of(document))
        seconds += document["seconds"]

    def write(found: Result) -> None:
        """What was found so far: a soak of hours may be ended at any moment."""
        whole = Result()
        whole.add(result)
        whole.add(found)
        if asked.out:
            document = {
                "schema_version": 1,
                "environment": describe_environment(devices=4),
                "steps_of_a_training": STEPS,
                "save_every": SAVE_EVERY,
                "hang_timeout_s": HANG_S,
                "seconds": seconds + time.monotonic() - started,
                **whole.document(),
            }
            asked.out.write_text(json.dumps(document, indent=1) + "\n")
        if found.faults:
            last = [one for one in found.faults if one.training == found.faults[-1].training]
            kinds = ", ".join(one.kind for one in last)
            print(f"{time.strftime('%H:%M:%S')} {last[0].plan}: {kinds}", flush=True)  # noqa: T201
        for problem in found.problems:
            print(f"    {problem}", flush=True)  # noqa: T201

    folder = None
    if asked.faults or asked.hours or not asked.add:
        folder = (asked.folder or Path(tempfile.mkdtemp(prefix="trimaran-soak-"))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(folder, asked.seed, plans=asked.plan or tuple(PLANS), kinds=asked.kind or KINDS)
        found = campaign.run(faults=asked.faults or (0 if asked.hours else 50), hours=asked.hours, after_each=write)
    else:
        found = Result()
        write(found)
    result.add(found)
    for row in result.table():
        print("  ".join(f"{name} {value}" for name, value in row.items()))  # noqa: T201
    print(  # noqa: T201
        f"{len(result.faults)} faults in {result.trainings} trainings, {result.redone} steps done again, goodput "
        f"{result.goodput:.0%}, {len(result.problems)} problems"
    )
    for problem in result.problems:
        print(f"    {problem}")  # noqa: T201
    if folder is not None and not result.problems and asked.folder is None:
        shutil.rmtree(folder)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
