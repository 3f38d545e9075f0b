"""What a search found, for programs: the same keys for this machine and for those that are not at hand."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trimaran.graph import Graph
from trimaran.planner import Candidate, Search
from trimaran.planner.baselines import Baseline
from trimaran.planner.prices import PinPrice
from trimaran.program import Strategy, segment_ops


def search_document(
    found: Search, *, one_device_s: float | None = None, prices: Iterable[PinPrice] = ()
) -> dict[str, Any]:
    """What was chosen from, without the candidates themselves.

    Args:
        found: the search
        one_device_s: time on one device, where the search does not know it [s]
        prices: of the pins

    Returns:
        `runners_up` and `pareto` (names), `baselines` (names), `references` (by role, with reasons), `rejected_counts`,
        `pins`, `search`.
    """
    base_s = one_device(found) if one_device_s is None else one_device_s
    return {
        "runners_up": [_brief(one, base_s) for one in found.candidates if one is not found.chosen],
        "pareto": [candidate.strategy.name for candidate in found.pareto],
        "baselines": [candidate.strategy.name for candidate in found.references],
        "references": [_reference(entry, base_s) for entry in found.baselines],
        "rejected_counts": dict(Counter(str(entry.cause) for entry in found.rejected)),
        "pins": [
            {
                "pin": entry.pin,
                "without": None if entry.without is None else entry.without.strategy.name,
                "without_step_time_s": None if entry.without is None else entry.without.step_time_s,
                "price": entry.price,
                "to_target": entry.to_target,
            }
            for entry in prices
        ],
        "search": {
            "seconds": found.seconds,
            "gap": found.gap,
            "bound_s": found.bound_s,
            "is_complete": found.is_complete,
        },
    }


def chosen_document(graph: Graph, found: Search, *, one_device_s: float | None = None) -> dict[str, Any]:
    """What the plan says beside its candidate: degrees, speedup, gap, and where operations run.

    Args:
        graph: the job's
        found: the search
        one_device_s: time on one device, where the search does not know it [s]
    """
    strategy = found.chosen.strategy
    base_s = one_device(found) if one_device_s is None else one_device_s
    return {
        "degrees": degrees(strategy),
        "speedup": None if base_s is None else base_s / found.chosen.step_time_s,
        "gap": found.gap,
        "bound_s": found.bound_s,
        "placement": placement_document(graph, strategy),
    }


def one_device(found: Search) -> float | None:
    """Time of a step on one device [s]; None where it fits in no way."""
    plain = [one for one in (*found.candidates, *found.references) if one.strategy.devices == 1]
    return min((one.step_time_s for one in plain), default=None)


def degrees(strategy: Strategy) -> dict[str, int | str | None]:
    """The figures of a strategy.

    Example:
        >>> degrees(Strategy(dp=2))["dp"]
        2
    """
    return {
        "dp": strategy.dp,
        "pp": strategy.pp,
        "tp": strategy.tp,
        "zero": strategy.zero,
        "microbatches": strategy.microbatches,
        "chunks": strategy.chunks,
        "schedule": strategy.schedule,
        "sync": strategy.sync,
        "execution": strategy.execution,
        "bucket_bytes": strategy.bucket_bytes,
        "compression": None if strategy.compression is None else strategy.compression.name,
    }


def placement_document(graph: Graph, strategy: Strategy) -> dict[str, int]:
    """The row of a replica that runs each part of the network.

    Args:
        graph: the job's
        strategy: with boundaries or parts

    Returns:
        For each module all of whose operations run on one row, the row; where a module is spread, for each of its
        modules or operations.
    """
    row = {op.id: row for ops, row in zip(segment_ops(graph, strategy), strategy.rows, strict=True) for op in ops}
    paths = {op.id: _path(op.id, op.module) for op in graph.ops}
    return dict(_collapsed(paths, row, depth=1))


def _path(name: str, module: str) -> tuple[str, ...]:
    """The modules around an operation, outermost first, and the operation itself."""
    owner = name.partition("@")[0] if "." in name else module
    return (*(part for part in owner.split(".") if part), f"\0{name}")


def _collapsed(paths: Mapping[str, tuple[str, ...]], row: Mapping[str, int], depth: int) -> Iterable[tuple[str, int]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, path in paths.items():
        groups.setdefault(path[:depth], []).append(name)
    for prefix, names in groups.items():
        rows = {row[name] for name in names}
        if len(rows) == 1:
            yield (names[0] if prefix[-1].startswith("\0") else ".".join(prefix)), rows.pop()
        else:
            yield from _collapsed({name: paths[name] for name in names}, row, depth + 1)


def _reference(entry: Baseline, base_s: float | None) -> dict[str, Any]:
    found = {"role": entry.role, "reason": entry.reason}
    if entry.candidate is None:
        return found | {"strategy": None, "step_time_s": None, "speedup": None}
    return found | _brief(entry.candidate, base_s)


def _brief(candidate: Candidate, base_s: float | None) -> dict[str, Any]:
    return {
        "strategy": candidate.strategy.name,
        "step_time_s": candidate.step_time_s,
        "speedup": None if base_s is None else base_s / candidate.step_time_s,
        "peak_bytes": max(candidate.peak_bytes, default=0),
    }
