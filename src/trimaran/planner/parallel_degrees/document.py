"""A search over divisions as plain data and as lines for people: degrees, layers, memory and time of every part."""

from trimaran.planner.parallel_degrees.problem import (
    Baseline,
    DivisionSearch,
    DivisionTask,
    PricedDivision,
    degrees,
    memory_limit,
)
from trimaran.pricing.analytical.memory import rank_memory
from trimaran.pricing.analytical.stages import Division, stage_chunks


def division_document(found: DivisionSearch) -> dict[str, object]:
    """A search as one object."""
    task = found.task
    return {
        "devices": task.devices,
        "global_batch_size": task.batch,
        "sequence": task.shape.sequence,
        "precision": task.program.precision,
        "memory_limit_bytes": memory_limit(task),
        "chosen": {**priced_document(found.chosen), **_layout(task, found.chosen.division)},
        "runners_up": [priced_document(each) for each in found.runners_up],
        "pareto": [priced_document(each) for each in found.pareto],
        "baselines": {each.name: _baseline(found, each) for each in found.baselines},
        "rejected_counts": dict(found.rejected),
        "search": {
            "seconds": found.seconds,
            "priced": found.priced,
            "complete": found.complete,
            "bound_s": found.bound_s,
            "gap": found.gap,
        },
    }


def priced_document(priced: PricedDivision) -> dict[str, object]:
    """A division with what it costs, as one object."""
    step, memory = priced.step, priced.memory
    return {
        "strategy": {"name": priced.name, "degrees": degrees(priced.division)},
        "devices": priced.devices,
        "step_time_s": priced.seconds,
        "interval_s": [priced.low, priced.high],
        "mfu": priced.utilization,
        "time": {
            "compute_s": step.compute_s,
            "tensor_s": step.tensor_s,
            "pipeline_s": step.bubble_s,
            "data_s": step.data_s,
            "update_s": step.update_s,
        },
        "peak_bytes": memory.peak,
        "peak_stage": memory.stage,
    }


def _layout(task: DivisionTask, division: Division) -> dict[str, object]:
    """Layers and memory of each stage, and how ranks are numbered."""
    stages = []
    for stage in range(division.pp):
        chunks = stage_chunks(task.shape, division, stage)
        memory = rank_memory(task.shape, division, stage=stage, bookkeeping=task.bookkeeping)
        stages.append(
            {
                "stage": stage,
                "layers": [[chunk.start, chunk.stop] for chunk in chunks],
                "peak_bytes": memory.peak,
                "state_bytes": memory.state,
                "activation_bytes": memory.activations + memory.transient,
            }
        )
    axes = (("tp", division.tp), ("cp", division.cp), ("dp", division.dp), ("pp", division.pp))
    return {
        "stages": stages,
        # Neighbours first: what talks most sits closest.
        "device_order": [{"axis": name, "size": size} for name, size in axes],
    }


def _baseline(found: DivisionSearch, baseline: Baseline) -> dict[str, object]:
    if baseline.priced is None:
        return {"step_time_s": None, "reason": baseline.reason}
    slower = baseline.priced.seconds / found.chosen.seconds
    return {**priced_document(baseline.priced), "times_the_chosen_step": slower}
