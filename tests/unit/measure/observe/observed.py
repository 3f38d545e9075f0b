"""Records as observed processes write them, from figures in milliseconds."""

from collections.abc import Mapping, Sequence
from typing import Any

from trimaran_watch.ledger import COLUMNS, COUNTS, KINDS

from trimaran.measure.observe.records import ProcessRecord, parse_record

FACTS: dict[str, Any] = {
    "pid": 1,
    "host": "here",
    "cores": 4,
    "threads": 1,
    "batch_nbytes": 1000,
    "compiled": False,
    "other_optimizers": False,
    "model": {
        "name": "Net",
        "device": "cpu",
        "parameter_nbytes": 400,
        "gradient_nbytes": 400,
        "gradient_dtypes": ["float32"],
        "fsdp": False,
        "ddp": None,
    },
    "optimizer": {"name": "SGD", "fused": False, "foreach": False, "state_nbytes": 0},
    "loader": None,
    "memory": {"peak_nbytes": 2**20, "device_peak_nbytes": None, "device_reserved_nbytes": None},
}


def make_record(
    steps: Sequence[Mapping[str, float]], *, rank: int = 0, world: int = 1, again: Any = None, **facts: Any
) -> ProcessRecord:
    """A record.

    Args:
        steps: one mapping a step, from kinds to time [ms] and from counts to numbers, "cpu" of the process [ms];
            what is left out is 0, but one forward a step, and a processor for all of it
        rank: in the group
        world: ranks of the group
        again: the model timed again
        facts: that differ from `FACTS`
    """
    rows, end, cpu = [], 0, 0
    for number, step in enumerate(steps):
        times = [round(1e6 * step.get(kind, 0)) for kind in KINDS]
        end += sum(times)
        cpu += round(1e6 * step["cpu"]) if "cpu" in step else sum(times)
        rows.append([number, end, cpu, *times, *(round(step.get(name, name == "forwards")) for name in COUNTS)])
    plain = {
        "schema_version": 1,
        "rank": rank,
        "world": world,
        "steps": len(rows),
        "columns": list(COLUMNS),
        "rows": rows,
        "again": again,
        **FACTS,
        **facts,
    }
    return parse_record(plain, source="test")
