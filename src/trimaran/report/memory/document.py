"""A memory estimate for programs: plain data, sizes in bytes and times in seconds."""

from dataclasses import asdict
from typing import Any

from trimaran.report.memory.estimate import MemoryEstimate, PolicyFigures


def memory_document(estimate: MemoryEstimate) -> dict[str, Any]:
    """The figures for programs; storages and curve are left to `storage_documents` and the trace file."""
    plan, batches = estimate.plan, estimate.largest_batch
    return {
        "job": estimate.job,
        "batch": estimate.batch,
        "device": estimate.device,
        "precision": estimate.precision,
        "source": estimate.source,
        "card_bytes": estimate.card_bytes,
        "context_bytes": estimate.context_bytes,
        "budget_bytes": estimate.budget_bytes,
        "fits": plan.fits,
        "fits_without_help": estimate.fits_without_help,
        "keep_peak_bytes": estimate.keep.peak_bytes,
        "keep_mean_bytes": estimate.keep.mean_bytes,
        "keep": asdict(estimate.keep),
        "weight_bytes": estimate.weight_bytes,
        "optimizer_bytes": estimate.optimizer_bytes,
        "gradient_bytes": estimate.gradient_bytes,
        "floor_bytes": estimate.floor_bytes,
        "floor": {"at": estimate.floor_at, "held_by": [asdict(holder) for holder in estimate.floor_held_by]},
        "kept_s": estimate.kept_s,
        "plan": {"policy": estimate.policy, "kept_bytes": estimate.kept_bytes} | _policy_document(plan),
        "bound_s": estimate.bound_s,
        "offload_bound_s": estimate.offload_bound_s,
        "ratio_to_limit": estimate.ratio_to_limit,
        "decides": estimate.decides,
        "policies": {line.name: _policy_document(line) for line in estimate.policies},
        "largest_batch": None if batches is None else batches.with_plan,
        "largest_batch_without_help": None if batches is None else batches.without_help,
        "largest_batch_at_floor": None if batches is None else batches.at_floor,
        "largest_batch_slowdown_limit": None if batches is None else batches.slowdown_limit,
        "split": None if estimate.split is None else asdict(estimate.split),
        "trace_s": estimate.trace_s,
        "planning_s": estimate.planning_s,
    }


def storage_documents(estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """What becomes of each storage, for programs."""
    return [asdict(line) for line in estimate.storages]


def _policy_document(line: PolicyFigures) -> dict[str, Any]:
    return {
        "fits": line.fits,
        **asdict(line.usage),
        "step_time_s": line.step_time_s,
        "slowdown": line.slowdown,
        "to_host_bytes": line.to_host_bytes,
        "to_device_bytes": line.to_device_bytes,
        "recomputed_bytes": line.recomputed_bytes,
        "recompute_s": line.recompute_s,
        "stall_s": line.stall_s,
        "note": line.note,
    }
