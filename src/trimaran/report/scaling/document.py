"""A scaling study for programs: plain data in bytes, seconds and samples."""

from dataclasses import asdict
from typing import Any

from trimaran.report.scaling.study import ScalingRow, ScalingStudy


def study_document(study: ScalingStudy) -> dict[str, Any]:
    """The study as plain data."""
    return {
        "job": study.job,
        "cluster": study.cluster,
        "device": study.device,
        "precision": study.precision,
        "software": study.software,
        "mode": study.mode,
        "source": study.source,
        "rows": [row_document(row) for row in study.rows],
        "advice": [
            {
                "devices": advice.row.step.devices,
                "batch_per_device": advice.row.step.batch_per_device,
                "sync": advice.row.step.sync,
                "change": advice.change,
                "reason": advice.reason,
                "gain": advice.gain,
            }
            for advice in study.advice
        ],
        "notes": list(study.notes),
    }


def row_document(row: ScalingRow) -> dict[str, Any]:
    """One set-up."""
    step = row.step
    return {
        "devices": step.devices,
        "batch_per_device": step.batch_per_device,
        "sync": step.sync,
        "samples_per_s": row.samples_per_s,
        "interval": [row.low, row.high],
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "fp_bp_s": step.fp_bp_s,
        "wu_s": step.wu_s,
        "wu_exposed_s": step.wu_exposed_s,
        "limiter": row.limiter,
        "peak_bytes": row.peak_bytes,
        "fits": row.fits,
        "nodes": row.nodes,
        "step_s": step.step.seconds,
        "forward_s": step.forward_s,
        "backward_s": step.backward_s,
        "communication_s": step.communication_s,
        "exposed_communication_s": step.exposed_communication_s,
        "hidden_communication_s": step.communication_s - step.exposed_communication_s,
        "update_s": step.update_s,
        "overhead_s": step.overhead_s,
        "feeding_s": step.feeding_s,
        "own_peak_bytes": row.own_peak_bytes,
        "card_bytes": row.card_bytes,
        "exposed": [asdict(layer) for layer in step.exposed],
    }
