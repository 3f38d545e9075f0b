"""A graph as a table, for people and for golden files."""

from collections.abc import Iterable, Sequence

from trimaran.graph.types import Affine, Graph, Op, TensorSpec

COLUMNS = (
    "operation",
    "kind",
    "makes",
    "parameters",
    "FLOP",
    "backward FLOP",
    "bytes",
    "backward bytes",
    "keeps",
    "cut",
)


def format_graph(graph: Graph) -> str:
    """A graph as a table: one line an operation, sizes as expressions in the batch size `B`.

    `keeps` counts each storage once, at the first operation that saves it; `parameters` counts each tensor at every
    operation that uses it. A cross in the last column: the model may be cut after this operation.

    Args:
        graph: the graph

    Returns:
        Lines with a line break at the end.
    """
    lines = [
        f"{graph.name}: {graph.precision}, {len(graph.ops)} operations, "
        f"{sum(_count(parameter.shape) for parameter in graph.parameters)} parameters, "
        f"keeps {format_affine(sum(graph.storages.values(), Affine()))} bytes, {len(graph.cuts)} cuts, "
        f"digest {graph.digest}"
    ]
    lines += [
        f"{'target' if spec.name in graph.targets else 'input'} {spec.name}: {format_spec(spec)}"
        for spec in graph.inputs
    ]
    lines += [f"note: {note}" for note in graph.notes]
    return "\n".join([*lines, "", *_columns([COLUMNS, *_rows(graph)])]) + "\n"


def format_affine(value: Affine) -> str:
    """A quantity that grows with the batch.

    Example:
        >>> format_affine(Affine(8.0, 2.5)), format_affine(Affine(0.0, 1.0)), format_affine(Affine())
        ('2.5*B + 8', 'B', '0')
    """
    if not value.per_sample:
        return f"{value.fixed:g}" if value.fixed != int(value.fixed) else str(int(value.fixed))
    factor = f"{int(value.per_sample)}" if value.per_sample == int(value.per_sample) else f"{value.per_sample:g}"
    product = "B" if factor == "1" else f"{factor}*B"
    if not value.fixed:
        return product
    return f"{product} {'+' if value.fixed > 0 else '-'} {format_affine(Affine(abs(value.fixed)))}"


def format_spec(spec: TensorSpec) -> str:
    """The shape and dtype of a tensor.

    Example:
        >>> format_spec(TensorSpec(name="x", shape=("B", 3), dtype="float32", nbytes=Affine(0.0, 12.0)))
        '[B, 3] float32'
    """
    return f"[{', '.join(str(size) for size in spec.shape)}] {spec.dtype}"


def _rows(graph: Graph) -> Iterable[tuple[str, ...]]:
    parameters = {parameter.name: _count(parameter.shape) for parameter in graph.parameters}
    seen: set[str] = set()
    for op in graph.ops:
        kept = [graph.storages[name] for name in op.saved if name not in seen]
        seen.update(op.saved)
        yield (
            op.id,
            op.target,
            _made(op),
            str(sum(parameters[name] for name in op.parameters) or ""),
            format_affine(op.flops),
            format_affine(op.backward_flops),
            format_affine(op.bytes_moved),
            format_affine(op.backward_bytes_moved),
            format_affine(sum(kept, Affine())),
            "x" if op.id in graph.cuts else "",
        )


def _made(op: Op) -> str:
    return "; ".join(format_spec(spec) for spec in op.outputs)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
