"""Memory of divided transformers in published tables: those of a paper on recomputation, and of runs on Jean Zay."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.costs.transformers.activations import layer_activations
from trimaran.costs.transformers.division import Division, Recomputed
from trimaran.costs.transformers.rank_memory import Bookkeeping, RankMemory, largest_rank, rank_memory
from trimaran.costs.transformers.shapes import gpt_shape
from trimaran.session.validation.model_parallel_shapes import named_shape
from trimaran.session.validation.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRun:
    """A run of Korthikanti et al., 2022, table 3: layers, hidden size, heads, degrees and microbatch."""

    layers: int
    hidden: int
    heads: int
    pipeline: int
    chunks: int
    microbatch: int
    batch: int


_PAPER: Mapping[str, PaperRun] = {
    "22b": PaperRun(layers=48, hidden=6144, heads=64, pipeline=1, chunks=1, microbatch=4, batch=4),
    "175b": PaperRun(layers=96, hidden=12288, heads=96, pipeline=8, chunks=3, microbatch=1, batch=64),
    "530b": PaperRun(layers=105, hidden=20480, heads=128, pipeline=35, chunks=3, microbatch=1, batch=280),
    "1t": PaperRun(layers=128, hidden=25600, heads=160, pipeline=64, chunks=1, microbatch=1, batch=512),
}

_MODES: Mapping[str, tuple[bool, frozenset[Recomputed]]] = {
    "none": (False, frozenset()),
    "seq": (True, frozenset()),
    "sel": (False, frozenset({"attention"})),
    "seqsel": (True, frozenset({"attention"})),
    "full": (False, frozenset({"layers"})),
}
"""Names of a run's techniques: the residual stream divided, and what is computed again."""

_DRIVER_BYTES = 2_000_000_000
"""What a device's own tool counts beyond tensors: a context, libraries' code and buffers of collectives. Assumed."""


def paper_figure(row: Row) -> float | None:
    """What a row of the paper's figures should say, in its unit; None where it is none of them."""
    size = re.search(r"(\d+[bt])\b", row.fields.get("model", "").lower())
    run = _PAPER.get(size.group(1)) if size else None
    mode = row.fields.get("recompute") or row.fields.get("precision") or ""
    if run is None or mode not in _MODES:
        return None
    shape = gpt_shape(layers=run.layers, hidden=run.hidden, heads=run.heads, vocabulary=51200, sequence=2048)
    metric = row.fields.get("metric", "")
    if "relative" in metric:
        kept = [
            layer_activations(shape, _division(run, *_MODES[which]), attention="unfused").kept
            for which in (mode, "none")
        ]
        return 100.0 * kept[0] / kept[1]
    rank = rank_memory(shape, _division(run, *_MODES[mode]), bookkeeping=Bookkeeping(attention="unfused"))
    figures = {"par_opt": rank.state, "act": rank.activations, "total": rank.peak, "opt": rank.optimizer}
    nbytes = figures.get(metric)
    return None if nbytes is None else nbytes / 2**30


def _division(run: PaperRun, divided: bool, recomputed: frozenset[Recomputed]) -> Division:
    return Division(
        tensor=8,
        pipeline=run.pipeline,
        chunks=run.chunks,
        microbatch=run.microbatch,
        microbatches=max(1, run.batch // run.microbatch),
        sequence_parallel=divided,
        recomputed=recomputed,
    )


def script_rank(row: Row) -> RankMemory | None:
    """The rank that needs most in a run of the Jean Zay tables; None where the row does not say enough.

    The scripts train in fp16 with layers computed again. Apart from weights, gradients and Adam's state, a 32-bit copy
    of gradients stands from the first update on.

    Source:
        bigscience-workshop/bigscience: experiments/gpt2.md, tr3m-1B3.md, tr8-104B.md and the scripts that they name.
    """
    fields = row.fields
    deep = "tr3m" in fields.get("source_path", "") or "tr8" in fields.get("source_path", "")
    sequence = 2048 if deep else 1024
    shape = named_shape(fields.get("model", ""), sequence=sequence, source="bigscience")
    counts = {key: int(float(fields[key])) for key in ("n_gpus", "pp", "dp") if fields.get(key)}
    if shape is None or len(counts) < 3:
        return None
    tensor = int(float(fields.get("tp") or 0)) or max(1, counts["n_gpus"] // (counts["pp"] * counts["dp"]))
    batch = int(float(fields.get("global_batch") or 1024))
    # The table's column of microbatches is right where its columns of batch and accumulation agree.
    said = [int(part) for part in fields.get("config", "").split("|") if part.isdigit()]
    microbatch = int(float(fields.get("micro_batch") or 1))
    steps = next((count for count in said if count * microbatch * counts["dp"] == batch), 0)
    if not steps and 256 in said:
        microbatch = max(1, batch // (256 * counts["dp"]))
    division = Division(
        tensor=tensor,
        pipeline=counts["pp"],
        data=counts["dp"],
        microbatch=microbatch,
        microbatches=max(1, batch // (microbatch * counts["dp"])),
        recomputed=frozenset({"layers"}),
    )
    keeping = Bookkeeping(gradient_bytes=6, attention="unfused", workspace_bytes=_DRIVER_BYTES)
    return largest_rank(shape, division, bookkeeping=keeping)
