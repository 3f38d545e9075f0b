"""Commands that answer alike wherever and whenever they run: no clock ends a search, and this machine is one on record.

Forked as `be_command_on_a_slow_machine`, a command sees an hour pass whenever it looks at the clock. Forked as
`be_command_on_record`, it also plans for a recorded machine: a processor, and what jobs cost on it, one file a job in
`costs/`. It measures nothing, and fails where it would start a rank. Costs belong to a job by its name: digests of its
graph and of its operations are those of today, found by position, so that the record outlives a change in how digests
are made.

`python -m tests.golden.record` measures the costs anew: every answer of that machine changes.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.forks.commands import be_command

from trimaran.graph.types import Graph
from trimaran.launch.supervise import launch
from trimaran.machine.detect import Processor, detect_gpus, detect_processor
from trimaran.machine.types import Link
from trimaran.measure.costs import measure_costs
from trimaran.pricing.table_files import decode_table, encode_table
from trimaran.pricing.tables import CostTable

FOLDER = Path(__file__).parent / "costs"
TORCH = "2.13.0"
"""With which the costs were measured: another one may capture other operations."""

PROCESSOR = Processor(name="a recorded processor", cores=4, memory_bytes=16 << 30)


def be_command_on_a_slow_machine(descriptor: int, *arguments: str) -> None:
    """Be a command to which everything seems to take an hour: what a clock would end is ended at once."""
    later = itertools.count(0, 3600)
    clocks = dict.fromkeys(("monotonic", "perf_counter"), lambda: float(next(later)))
    _replace(time, SimpleNamespace(**vars(time) | clocks))
    for clock in (time.monotonic, time.perf_counter):
        _replace(clock, clocks["monotonic"])
    be_command(descriptor, *arguments)


def be_command_on_record(descriptor: int, *arguments: str) -> None:
    """Be such a command on the recorded machine."""
    _move_there(recorded_costs)
    _replace(launch, no_ranks)
    be_command_on_a_slow_machine(descriptor, *arguments)


def recorded_costs(
    make_job: Callable[[], Any], graph: Graph, *, ranks: int, link: Link | None = None, **_: Any
) -> CostTable:
    """What `measure_costs` returned when the job was measured, under the digests of today."""
    path = _path(make_job, ranks, link)
    assert path.exists(), f"nobody recorded {path.name}"
    known = json.loads(path.with_suffix(".graph.json").read_text())
    contents = dict(zip(known["operations"], (op.content for op in graph.ops), strict=True))
    table = decode_table(path.read_bytes(), origin=path.name)
    (step,) = table.steps.values()
    return replace(
        table,
        operations={key._replace(content=contents[key.content]): cost for key, cost in table.operations.items()},
        wholes={key._replace(graph=graph.digest): cost for key, cost in table.wholes.items()},
        steps={graph.digest: step},
    )


def no_ranks(*_: Any, **__: Any) -> None:
    raise AssertionError("a golden answer starts no ranks: what it wants measured is not on record")


def record(descriptor: int, *arguments: str) -> None:
    """Be a command that measures what is not on record, and keeps it."""
    _move_there(partial(_measured, measure_costs))
    be_command(descriptor, *arguments)


def _measured(measure: Callable[..., CostTable], make_job: Callable[[], Any], graph: Graph, **asked: Any) -> CostTable:
    found = measure(make_job, graph, **asked)
    path = _path(make_job, asked["ranks"], asked.get("link"))
    path.write_bytes(encode_table(replace(found, fingerprint=replace(found.fingerprint, torch=TORCH))))
    path.with_suffix(".graph.json").write_text(
        json.dumps({"operations": [op.content for op in graph.ops]}, indent=1) + "\n"
    )
    return found


def _path(make_job: Callable[[], Any], ranks: int, link: Link | None) -> Path:
    source = make_job.__self__  # type: ignore[attr-defined]
    held = "" if link is None else f"-{link.bytes_per_s:g}"
    return FOLDER / f"{source.reference}-{source.global_batch_size or 'own'}-on-{ranks}{held}.json"


def _move_there(costs: Callable[..., CostTable]) -> None:
    _replace(detect_processor, lambda: PROCESSOR)
    _replace(detect_gpus, tuple)
    _replace(measure_costs, costs)


def _replace(thing: Any, other: Any) -> None:
    """Put something in the place of a function or module, under every name that a module of ours has for it."""
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("trimaran"):
            continue
        for name, value in list(vars(module).items()):
            if value is thing:
                setattr(module, name, other)
