"""Memory of a network of ours on one device, from its trace: no closed form where a trace can be had."""

from dataclasses import replace

from trimaran.errors import InputError
from trimaran.networks.names import canonical_network
from trimaran.program.memory import KEEP_ALL
from trimaran.session.jobs import resolve
from trimaran.session.memory.tracing import JobTracer
from trimaran.session.validation.blobs import blob_bytes
from trimaran.session.validation.types import Row
from trimaran.simulator.memory import live_bytes


def blobs_of(row: Row) -> int:
    """What Caffe would log as required for data [bytes]."""
    network, batch = _asked(row)
    # Its OpenCL port is given images without a layer that makes them.
    images = "greentea" not in row.fields.get("framework", "").lower()
    # Benchmarks of 2015 ran GoogLeNet without batch norm.
    reference = "googlenet-2014" if network == "googlenet" else network
    return blob_bytes(reference, batch=batch, images=images)


def traced_peak(row: Row) -> int:
    """Live bytes of a training step at their peak, everything kept [bytes]."""
    network, batch = _asked(row)
    length = row.fields.get("seq_len")
    job = resolve(f"{network}{',' if ':' in network else ':'}sequence={int(float(length))}" if length else network)
    half = any(word in row.fields.get("precision", "").lower() for word in ("16", "amp", "mixed"))
    tracer = JobTracer(replace(job, precision="bf16" if half else "fp32"))
    return live_bytes(tracer.trace(batch), KEEP_ALL).peak


def _asked(row: Row) -> tuple[str, int]:
    model = row.fields.get("model", "")
    network = canonical_network(model)
    if network is None:
        raise InputError(f"{model}: no network of ours", model=model)
    count = row.fields.get("batch_per_gpu") or row.fields.get("micro_batch")
    if not count:
        raise InputError(f"row {row.row_id}: batch_per_gpu: missing", row=row.row_id)
    return network, int(float(count))
