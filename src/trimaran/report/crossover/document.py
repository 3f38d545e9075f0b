"""A crossover for programs: plain data in seconds and samples."""

from dataclasses import asdict
from typing import Any

from trimaran.report.crossover.study import Crossing, Crossover, Row, Way, Worker


def crossover_document(found: Crossover) -> dict[str, Any]:
    """The crossover as plain data; intervals are `[low, high]`, null where a hybrid is ahead at no count."""
    curve = found.curve
    return {
        "job": found.job,
        "cluster": found.cluster,
        "device": found.device,
        "precision": found.precision,
        "software": found.software,
        "local_batch_size": found.local_batch,
        "devices": list(found.counts),
        "curve": None if curve is None else asdict(curve) | {"range": list(curve.range)},
        "crossings": [_crossing(crossing, is_known=curve is not None) for crossing in found.crossings],
        "notes": list(found.notes),
    }


def _crossing(crossing: Crossing, *, is_known: bool) -> dict[str, Any]:
    return {
        "model_parallel_width": crossing.width,
        "basis": crossing.basis,
        "crossover_devices": crossing.devices,
        "crossover_interval": list(crossing.interval),
        "share_never": crossing.never if is_known else None,
        "reason": crossing.reason,
        "worker": worker_document(crossing.worker),
        "needed_speedup": crossing.needed_speedup,
        "sensitivity": [
            {"change": entry.change, "crossover_devices": entry.devices} for entry in crossing.sensitivities
        ],
        "rows": [_row(row, is_known=is_known) for row in crossing.rows],
    }


def worker_document(worker: Worker) -> dict[str, Any]:
    """Model parallelism inside a worker."""
    return {
        "devices": worker.width,
        "batch_size": worker.batch,
        "strategy": worker.strategy,
        "speedup": worker.speedup,
        "speedup_interval": list(worker.interval),
        "speedup_links_half": worker.slow_links,
        "speedup_links_double": worker.fast_links,
    }


def _row(row: Row, *, is_known: bool) -> dict[str, Any]:
    return {
        "devices": row.devices,
        "speedup_over_dp": row.speedup if is_known else None,
        "speedup_interval": list(row.interval) if is_known else None,
        "likely": row.likely if is_known else None,
        "equal_batch_limit": row.equal_batch_limit,
        "needed_epoch_ratio": row.needed_epoch_ratio,
        "data_parallel": way_document(row.data),
        "hybrid": way_document(row.hybrid),
    }


def way_document(way: Way) -> dict[str, Any]:
    """One way to train."""
    return {
        "devices": way.devices,
        "workers": way.workers,
        "model_parallel_width": way.width,
        "local_batch_size": way.local_batch,
        "global_batch_size": way.global_batch,
        "step_time_s": way.step_s,
        "worker_alone_s": way.alone_s,
        "time_to_accuracy_s": way.time_s,
    }
