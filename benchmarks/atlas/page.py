"""The atlas as a page: a table a machine, from the cells that `run.py` keeps."""

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from textwrap import fill
from typing import Any

from trimaran.features.crossover.candidates import LARGEST

Cell = Mapping[str, Any]

_HEAD = """# Atlas: where does model parallelism pay?

{networks} networks on {machines} machines, 8 to 1,024 devices, workers of two and of four devices: predicted by
`trimaran crossover` ([crossover](scaling.md#where-a-hybrid-begins-to-pay)),
written by `benchmarks/atlas/run.py` on {date}; not measured.

- **b**: local batch of paper mode, the usual one of the network. **SU²**, **SU⁴**: speedup of the best worker of two or
  four devices over one device at that batch; pipelines, placements and sharded operations are searched.
- **needs**: T(b) / T(b/M), what a worker must exceed for a shorter step than data parallelism has with the same global
  batch, exchanges apart.
- **paper mode**: fixed local batch, no exchange. With a curve, the number of devices from which on a hybrid is ahead.
  Without one, how many times the epochs M times the batch must take.
- **ours**: local batch free, predicted exchange. With a curve, the number of devices likewise. Without, "B = x at n":
  x samples are the largest batch at which, on n devices, the hybrid's step is shorter than that of data parallelism
  with the same batch; at smaller ones it may not be. x below n says that there are fewer samples than devices. "never":
  at no batch and on no number of devices; "more samples/s at n": on n devices, the most here, it does more samples a
  second with a batch that is no larger than the best of data parallelism.
- **exchange**: share of a data-parallel step on 256 devices that the exchange of gradients adds, at its best batch.
"""

_TAIL = """
## Why

{why}

Curves of the catalog that are used: {curves}.
For all other networks the ratio of epochs is named that would be needed; whether a network has it is not known:
`crossover --measure` measures it. "No device holds it":
data parallelism needs sharded state or classifiers there, which
are not among its ways on this page, nor where BigLSTM, which is mostly classifier, is best divided.

Batch norm sees the samples of a microbatch in a pipeline, and those of a device under data parallelism; what that does
to accuracy is not in these figures. A worker's exchange is taken to be that of all gradients over all devices.
"""


def write_page(document: Mapping[str, Any], path: Path, *, order: Sequence[str]) -> None:
    """Write the page.

    Args:
        document: of `run.py`
        path: of the page
        order: keys of cells
    """
    cells: dict[str, Cell] = {key: document["cells"][key] for key in order if key in document["cells"]}
    machines = list(dict.fromkeys(key.split(" on ")[1] for key in cells))
    networks = list(dict.fromkeys(cell["job"] for cell in cells.values()))
    parts = [
        _HEAD.format(
            networks=len(networks), machines=len(machines), date=document["environment"].get("date", "no date")
        )
    ]
    for machine in machines:
        held = [cell for key, cell in cells.items() if key.split(" on ")[1] == machine]
        parts.append(f"\n## {machine}: {held[0]['device']}, {held[0]['precision']}\n\n{_table(held)}\n")
    curved = sorted({cell["curve"]["name"] for cell in cells.values() if cell["curve"]})
    why = "\n".join(fill(f"- {line}", 120, subsequent_indent="  ") for line in findings(list(cells.values())))
    parts.append(_TAIL.format(why=why, curves=", ".join(curved) or "none"))
    path.write_text("".join(parts), encoding="utf-8")


def _table(cells: Sequence[Cell]) -> str:
    lines = [
        "| network | b | SU² | needs | SU⁴ | needs | paper mode | ours | exchange | curve |",
        "|---|---:|---:|---:|---:|---:|---|---|---:|---|",
    ]
    lines += [_line(cell) for cell in cells]
    return "\n".join(lines)


def _line(cell: Cell) -> str:
    by = {(one["basis"], one["model_parallel_width"]): one for one in cell["crossings"]}
    words = [cell["job"], str(cell["local_batch_size"])]
    for width in (2, 4):
        one = by["ours", width]
        needed = one["needed_speedup"]
        words += [f"{one['worker']['speedup']:.2f}", "" if needed is None else f"{needed:.2f}"]
    words += [
        _paper(cell, by),
        _ours(cell, by),
        _exchange(by["ours", 2]),
        cell["curve"]["name"] if cell["curve"] else "",
    ]
    return f"| {' | '.join(words)} |"


def _paper(cell: Cell, by: Mapping[tuple[str, int], Cell]) -> str:
    if cell["curve"]:
        return _earliest(by, "paper")
    # The ratio for a doubling of the batch, so that widths compare.
    width = min((2, 4), key=lambda each: (each / by["paper", each]["worker"]["speedup"]) ** (1 / log2(each)))
    one = by["paper", width]
    if one["worker"]["speedup"] <= 1.0:
        return "never"
    return f"E({width}B) > {width / one['worker']['speedup']:.2f} E(B)"


def _ours(cell: Cell, by: Mapping[tuple[str, int], Cell]) -> str:
    if not any(by["ours", width]["rows"] for width in (2, 4)):
        return "no device holds it"
    if cell["curve"]:
        return _earliest(by, "ours")
    ahead = [width for width in (2, 4) if _does_more(by["ours", width])]
    if not ahead:
        return _limits(by, cell["local_batch_size"])
    return f"more samples/s at {by['ours', ahead[0]]['rows'][-1]['devices']}, M = {ahead[0]}"


def _does_more(one: Cell) -> bool:
    """Whether on the most devices it does more samples a second with a batch that is no larger."""
    if not one["rows"]:
        return False
    last = one["rows"][-1]
    limit = last["equal_batch_limit"]
    return bool(limit) and last["needed_epoch_ratio"] <= 1.0 and limit <= last["data_parallel"]["global_batch_size"]


def _limits(by: Mapping[tuple[str, int], Cell], base: int) -> str:
    """The largest batches at which it has the shorter step, on the fewest and on the most devices."""
    limits = {
        row["devices"]: max(row["equal_batch_limit"] or 0, _limit(by["ours", 4], row["devices"]))
        for row in by["ours", 2]["rows"]
    }
    held = [devices for devices, limit in limits.items() if limit]
    if not held:
        return "never"
    told = sorted({held[0], held[-1]})
    if all(limits[devices] >= LARGEST * base * devices // 2 for devices in told):
        return "at every batch that was tried"
    return ", ".join(f"B = {limits[devices]:,} at {devices}" for devices in told)


def _earliest(by: Mapping[tuple[str, int], Cell], basis: str) -> str:
    found = [(by[basis, width]["crossover_devices"], width) for width in (2, 4)]
    known = [(devices, width) for devices, width in found if devices is not None]
    if not known:
        return "never"
    devices, width = min(known)
    low, high = by[basis, width]["crossover_interval"]
    ends = f" ({_count(low)} to {_count(high)})" if low != high else ""
    return f"from {devices}, M = {width}{ends}"


def _count(devices: int | None) -> str:
    return "never" if devices is None else str(devices)


def _limit(one: Cell, devices: int) -> int:
    return max((row["equal_batch_limit"] or 0 for row in one["rows"] if row["devices"] == devices), default=0)


def _exchange(one: Cell) -> str:
    rows = [row for row in one["rows"] if row["devices"] == 256] or one["rows"][-1:]
    if not rows:
        return ""
    data = rows[0]["data_parallel"]
    return f"{1 - data['worker_alone_s'] / data['step_time_s']:.0%}"


def findings(cells: Sequence[Cell]) -> list[str]:
    """What the cells have in common, counted."""
    ours = [(cell, one) for cell in cells for one in cell["crossings"] if one["basis"] == "ours"]
    two = [one for _, one in ours if one["model_parallel_width"] == 2 and one["needed_speedup"] is not None]
    short = sum(one["worker"]["speedup"] < one["needed_speedup"] for one in two)
    none = sum(all(row["equal_batch_limit"] is None for row in one["rows"]) for _, one in ours if one["rows"])
    paying = [(cell["job"], one) for cell, one in ours if _pays(one)]
    lines = [
        f"In {short} of {len(two)} cells a worker of two devices is slower than T(b) / T(b/2) asks for: halving the "
        "batch of a device costs less than dividing its network.",
        f"In {none} of {len(ours)} cases (a cell and a width) data parallelism with the same global batch has the "
        "shorter step at every batch and every number of devices.",
    ]
    names = sorted({name for name, _ in paying})
    if names:
        most = max(row["equal_batch_limit"] / row["devices"] for _, one in paying for row in one["rows"] if _full(row))
        lines.append(
            "With at least one sample for each device, a hybrid has the shorter step at the same batch somewhere for "
            f"{', '.join(names)}; nowhere with more than {most:g} samples a device. Much of a step does not shrink "
            "with the batch there (launches of kernels, weights read and updated), and dividing the network divides "
            "it. Compiled steps and CUDA graphs, which launch faster, are not in this page."
        )
    else:
        lines.append("With at least one sample for each device, no hybrid has the shorter step at the same batch.")
    return lines


def _pays(one: Cell) -> bool:
    return any(_full(row) for row in one["rows"])


def _full(row: Cell) -> bool:
    return (row["equal_batch_limit"] or 0) >= row["devices"]
