"""The measurements that a job needs, and those that are missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph
from trimaran.pricing.gradient_compression import coding_keys, reduce_key
from trimaran.pricing.tables import CostTable, CurveKey, Form, OperationKey, WholeKey
from trimaran.pricing.transfers import HOST_COLLECTIVE, HOST_RECEIVE, HOST_SEND, QUEUED, SEND
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Execution
from trimaran.program.types import Kind

MOST_BATCHES = 6
"""Batch sizes that are measured; costs are so nearly fixed + per sample that the others are interpolated."""

MOST_COMPILED_BATCHES = 2
"""Of a compiled model: each batch size is compiled anew, which takes longer than all the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """The whole model in one form and execution at one batch size."""

    form: Form
    execution: Execution
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Missing measurements.

    Attributes:
        passes: batch sizes at which operations are measured [samples]
        wholes: runs of the whole model, with the loading of its data
        update: the update and the clipping
        curves: transfers by size
        interference: kinds of transfer during which compute is measured
        between: what is between instructions
        encodings: compressions of gradients
        samples: what samples of the data set take, apart by what it waits for
    """

    passes: tuple[int, ...] = ()
    wholes: tuple[WholeRun, ...] = ()
    update: bool = False
    curves: tuple[CurveKey, ...] = ()
    interference: tuple[str, ...] = ()
    between: bool = False
    encodings: tuple[Compression, ...] = ()
    samples: bool = False

    @property
    def nothing(self) -> bool:
        """Whether everything is known.

        Example:
            >>> Wanted().nothing, Wanted(passes=(8,)).nothing
            (True, False)
        """
        return self == Wanted()


def find_missing(
    table: CostTable,
    graph: Graph,
    *,
    job: str,
    ranks: int,
    batches: Iterable[int],
    executions: Sequence[Execution],
    reduces: bool = False,
    gathers: bool = False,
    compressions: Sequence[Compression] = (),
    samples: bool = False,
) -> Wanted:
    """The measurements that a table lacks for a job.

    Args:
        table: what is known
        graph: the job's
        job: digest of the job, under which its update and load are kept
        ranks: that are busy at the same time
        batches: sizes of microbatches that plans may have [samples]
        executions: "eager", "compiled"
        reduces: gradients may be reduced to their owners
        gathers: parameters may be sharded: gathered, their gradients scattered
        compressions: ways in which gradients may be sent
        samples: the input pipeline may be chosen
    """
    sizes = choose_batches(batches)
    contents = {op.content for op in graph.ops}
    step = table.steps.get(job)
    unloaded = {size for size in sizes if step is None or size not in step.load}
    # Loading is measured with runs on all ranks, so these are run again where it is not known.
    wholes = [
        WholeRun(form=form, execution=execution, batch=size)
        for execution in executions
        for form in forms(graph, ranks=ranks, execution=execution)
        for size in (sizes if execution == "eager" else choose_batches(sizes, most=MOST_COMPILED_BATCHES))
    ]
    return Wanted(
        passes=tuple(
            size
            for size in sizes
            if any(size not in table.operations.get(OperationKey(content, "eager"), {}) for content in contents)
        ),
        wholes=tuple(
            run
            for run in wholes
            if run.batch not in table.wholes.get(WholeKey(graph.digest, run.form, run.execution), {})
            or (run.form == ("replicated" if ranks > 1 else "module") and run.batch in unloaded)
        ),
        update=step is None,
        curves=tuple(
            key
            for key in (
                *wanted_curves(ranks, on_cpu=table.fingerprint.kind == "cpu", reduces=reduces, gathers=gathers),
                *_reduced_in_16_bits(compressions, ranks),
            )
            if key not in table.curves
        ),
        interference=tuple(
            kind for kind in (str(Kind.ALL_REDUCE), SEND) if ranks > 1 and kind not in table.interference
        ),
        between=table.between is None and table.fingerprint.kind == "cpu",
        encodings=tuple(
            method
            for method in compressions
            if ranks > 1 and any(key not in table.curves for key in coding_keys(method))
        ),
        samples=samples and (step is None or step.samples is None),
    )


def _reduced_in_16_bits(compressions: Sequence[Compression], ranks: int) -> tuple[CurveKey, ...]:
    found = (reduce_key(method, size) for method in compressions for size in _group_sizes(ranks))
    return tuple(key for key in found if key is not None)


def _group_sizes(ranks: int) -> list[int]:
    return [size for size in range(2, ranks + 1) if size <= 4 or ranks % size == 0]


def choose_batches(batches: Iterable[int], *, most: int = MOST_BATCHES) -> tuple[int, ...]:
    """Some of the batch sizes, the smallest and the largest among them, the others evenly spread.

    Example:
        >>> choose_batches([64, 1, 2, 4, 8, 16, 32], most=4)
        (1, 4, 16, 64)
        >>> choose_batches([8, 4, 8])
        (4, 8)
    """
    sizes = sorted(set(batches))
    if len(sizes) <= most:
        return tuple(sizes)
    step = (len(sizes) - 1) / (most - 1)
    return tuple(sizes[round(number * step)] for number in range(most))


def forms(graph: Graph, *, ranks: int, execution: Execution) -> tuple[Form, ...]:
    """The forms in which plans for a number of ranks run the model.

    Args:
        graph: the job's; where it cannot be split there are no segments
        ranks: that may take part
        execution: "eager" or "compiled"; of the latter, one form stands for all, as compiling takes so long
    """
    if ranks == 1:
        return ("module",)
    if execution != "eager":
        return ("replicated",)
    return ("module", "replicated", "graph") if graph.split_points else ("module", "replicated")


def wanted_curves(
    ranks: int, *, on_cpu: bool = True, reduces: bool = False, gathers: bool = False
) -> tuple[CurveKey, ...]:
    """The transfers that programs on a number of local ranks use.

    Args:
        ranks: on this machine
        on_cpu: a rank's thread computes, so that its time for transfers counts
        reduces: gradients may be reduced to their owners
        gathers: parameters may be sharded: gathered, their gradients scattered

    Example:
        >>> wanted_curves(1)
        ()
        >>> [f"{key.kind} {key.ranks}" for key in wanted_curves(3)]
        ['SEND 2', 'AR 2', 'AR 3', 'BC 2', 'BC 3', 'SEND host 2', 'RECV host 2', 'AR host 2']
    """
    if ranks < 2:
        return ()
    sizes = _group_sizes(ranks)
    kinds = [str(Kind.ALL_REDUCE), str(Kind.BROADCAST)]
    if reduces:
        kinds += [f"{kind}{QUEUED}" for kind in (Kind.BROADCAST, Kind.REDUCE)]
    if gathers:
        kinds += [str(Kind.ALL_GATHER), str(Kind.REDUCE_SCATTER)]
    collectives = [CurveKey(kind, size) for kind in kinds for size in sizes]
    hosts = [CurveKey(kind, 2) for kind in (HOST_SEND, HOST_RECEIVE, HOST_COLLECTIVE) if on_cpu]
    return (CurveKey(SEND, 2), *collectives, *hosts)
