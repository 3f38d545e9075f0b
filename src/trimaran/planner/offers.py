"""What a network offers to a plan: operations to shard, units to gather, branches to place."""

from trimaran.graph import Graph
from trimaran.graph.units import sharding_units
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.shapes import Offers
from trimaran.program.shards import find_classifier_shards, find_shards
from trimaran.program.types import Shard


def offers_of(graph: Graph, *, devices: int, pins: Pins = NO_PINS) -> Offers:
    """What a network offers on up to that many devices.

    Args:
        graph: the job's
        devices: most ranks that may take part
        pins: what is not used is not looked for
    """
    tensor: dict[int, tuple[Shard, ...]] = {}
    classifier: dict[int, tuple[Shard, ...]] = {}
    for ranks in range(2, devices + 1):
        if "tp" not in pins.forbid and (shards := find_shards(graph, ranks, layers=pins.tp is not None)):
            tensor[ranks] = shards
        if "sharded" not in pins.forbid and (shards := find_classifier_shards(graph, ranks)):
            classifier[ranks] = shards
    return Offers(
        tensor=tensor,
        classifier=classifier,
        units=sharding_units(graph),
        branches="placement" not in pins.forbid and has_branches(graph),
        stages=len(graph.cuts) + 1,
    )


def has_branches(graph: Graph) -> bool:
    """Whether two operations can run side by side.

    Example:
        >>> from trimaran.graph import Op, TensorSpec, Affine
        >>> def op(name, *inputs):
        ...     spec = TensorSpec(name=name, shape=("B",), dtype="float32", nbytes=Affine(0, 4))
        ...     return Op(id=name, target="Linear", inputs=inputs, outputs=(spec,))
        >>> chain = Graph(name="chain", inputs=(), ops=(op("a", "x"), op("b", "a")), buffers={}, storages={})
        >>> fork = Graph(name="fork", inputs=(), ops=(op("a", "x"), op("b", "x")), buffers={}, storages={})
        >>> has_branches(chain), has_branches(fork)
        (False, True)
    """
    makers = {spec.name: op.id for op in graph.ops for spec in op.outputs}
    before: dict[str, set[str]] = {}
    for number, op in enumerate(graph.ops):
        reached: set[str] = set()
        for name in op.inputs:
            if name in makers:
                reached |= before[makers[name]] | {makers[name]}
        before[op.id] = reached
        # Each operation of a chain follows all that are listed before it.
        if len(reached) < number:
            return True
    return False
