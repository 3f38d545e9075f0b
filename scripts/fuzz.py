"""Mutated files into everything that reads a file: no foreign exception, no hang, no call, no more than 2 GB.

    python scripts/fuzz.py --inputs 100000 --seed 1
    python scripts/fuzz.py --inputs 5000 --reader plan --reader "cost table"
    python scripts/fuzz.py --inputs 20000 --foreign
    python scripts/fuzz.py --reproduce plan 1 3418 --out input.json

`--inputs` is the number over all readers. `--foreign` is of checkpoints of others, in no more than 1 GiB. The exit code
is 1 where anything was found.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzz.campaign import FOREIGN_BYTES, MOST_BYTES, Count, made_input, run
from tests.fuzz.readers import FOREIGN, READERS


def plain(count: Count) -> dict[str, object]:
    """A count as JSON data."""
    return asdict(dataclasses.replace(count, kinds=Counter())) | {"kinds": dict(count.kinds)}


def main() -> int:
    """Run a campaign, or write one input of one."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--inputs", type=int, default=10_000, help="over all readers")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--reader", action="append", choices=sorted(READERS), help="only this one; may be repeated")
    arguments.add_argument("--foreign", action="store_true", help="only checkpoints of others, in 1 GiB")
    arguments.add_argument("--reproduce", nargs=3, metavar=("READER", "SEED", "NUMBER"), help="write one input")
    arguments.add_argument("--out", type=Path, help="of --reproduce the input, else the counts as JSON")
    asked = arguments.parse_args()
    if asked.reproduce:
        reader, seed, number = asked.reproduce
        content = made_input(reader, int(seed), int(number))
        (asked.out or Path(READERS[reader].file_name)).write_bytes(content)
        return 0
    readers = asked.reader or list(FOREIGN if asked.foreign else READERS)
    most_bytes = FOREIGN_BYTES if asked.foreign else MOST_BYTES
    started = time.monotonic()
    inputs = -(-asked.inputs // len(readers))
    counts = run(readers, inputs, seed=asked.seed, workers=asked.workers, say=True, most_bytes=most_bytes)
    whole = Count()
    for count in counts.values():
        for name in ("inputs", "accepted", "refused", "foreign", "hangs", "memory", "calls"):
            setattr(whole, name, getattr(whole, name) + getattr(count, name))
    print(  # noqa: T201
        f"{len(readers)} readers, {whole.inputs} inputs, {whole.foreign} foreign exceptions, {whole.hangs} hangs, "
        f"{whole.memory} out of memory, {whole.calls} calls, {time.monotonic() - started:.0f} s"
    )
    if asked.out:
        asked.out.write_text(json.dumps({name: plain(count) for name, count in counts.items()}, indent=1))
    return 1 if whole.bad else 0


if __name__ == "__main__":
    sys.exit(main())
