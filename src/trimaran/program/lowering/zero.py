"""Exchanges of replicas over which parameters, gradients or optimizer state are sharded (ZeRO).

zero=1   gradients are added up in buckets, as without; each replica updates its share of the parameters, and hands
         them out after the update: `BC#w<r>` from replica r.
zero=2   parameters are gathered in the first forward of a step, `AG#u<k>`, and kept; the gradients of a unit are
         scattered after its backward, `RS#s<k>`.
zero=3   a unit is gathered before its forward and freed after it; gathered again before its backward, `AG#v<k>`.

Unit 0 is the root: what belongs to no unit of the strategy. It is gathered before the first operation and kept until
the end of the backward. A gather is started when the step arrives at the unit before, so one is always ahead:

    forward     ▒▒ root ████ unit 1 ████████ unit 2 ████████ unit 3 ████████
    gathers     u0      u1           u2               u3
    backward       ████ unit 3 ████████████ unit 2 ████████████ unit 1 ████████
    gathers     v3      v2                  v1
    scatters                   s3                  s2                  s1  s0 ▒▒

Gradients on their way take memory: where a unit is done the backward waits until the scatter before has ended, and at
its end until all have.

Left out: that a library may start two ahead where its device has caught up.

Source:
    `fully_shard` of torch 2.13: gathers in its hooks before forward and backward, scatters after the backward, the root
    keeps its parameters after the forward, `_get_dim0_padded_size`.

Parameters are split over replicas along their first dimension, which is padded so that it divides, as in `fully_shard`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.graph.sharding.fsdp_units import unit_ops, unit_parameters
from trimaran.graph.types import Graph, Op, Parameter
from trimaran.program.gradients import Bucket, owners_by_size
from trimaran.program.lowering.schedules import COMPLETING, FORWARDS, PASSING_BACK
from trimaran.program.lowering.tensor_parallel import sharded_bytes
from trimaran.program.strategy import Strategy
from trimaran.program.types import ComputePoint, Inner, Kind


def padded_bytes(parameters: Sequence[Parameter], replicas: int) -> int:
    """Bytes of parameters whose first dimension has been padded so that it divides.

    Args:
        parameters: of a unit
        replicas: ranks that share them

    Example:
        >>> bias = Parameter(name="bias", shape=(10,), dtype="float32", nbytes=40)
        >>> padded_bytes([bias], 4)  # 12 of 4 bytes
        48
    """
    return sum(replicas * shard_bytes(parameter, replicas) for parameter in parameters)


def shard_bytes(parameter: Parameter, replicas: int) -> int:
    """Bytes of the largest shard of a parameter: it is split along its first dimension.

    Example:
        >>> shard_bytes(Parameter(name="weight", shape=(5, 3), dtype="float32", nbytes=60), 2)  # 3 of 5 rows
        36
    """
    rows = parameter.shape[0] if parameter.shape else 1
    return -(-rows // replicas) * (parameter.nbytes // rows) if rows else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """Parameters that one replica has updated and hands to the others after the update.

    Attributes:
        label: "w<replica>"
        nbytes: of the parameters [bytes]
        root: replica that they come from
        parameters: their names
    """

    label: str
    nbytes: int
    root: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A unit within the operations of a segment.

    Attributes:
        number: 0: the root
        gathered: bytes of the gathered tensor [bytes]
        scattered: bytes of the gradients before they are scattered [bytes]
        first: id of its first operation
        last: id of its last one
        fed: a gradient flows on to what is before it
        returns: a gradient flows back to it
    """

    number: int
    gathered: int
    scattered: int
    first: str
    last: str
    fed: bool
    returns: bool


def bucket_reduction(strategy: Strategy) -> Kind | None:
    """The collective that sums gradient buckets over replicas; None: there are no buckets, units scatter gradients."""
    return Kind.ALL_REDUCE if strategy.zero < 2 else None


def after_update(graph: Graph, ops: Sequence[Op], strategy: Strategy, buckets: Sequence[Bucket]) -> tuple[Handed, ...]:
    """The broadcasts of replicas after the update.

    Whole parameters, or what a rank holds of them, are dealt out, the largest first, each to the replica with the
    fewest bytes so far: an optimizer may need the norm of a whole parameter.

    Args:
        graph: the network
        ops: operations of the segment
        strategy: what was decided
        buckets: of the segment; they say which parameters it updates

    Returns:
        One entry for each replica that updates something; nothing but with zero=1.

    Example:
        >>> from trimaran.graph.types import Graph
        >>> after_update(Graph(name="empty", inputs=(), buffers={}, storages={}), (), Strategy(dp=2, zero=1), ())
        ()
    """
    if strategy.zero != 1 or strategy.dp == 1:
        return ()
    shares = sharded_bytes(graph, strategy)
    sizes = {one.name: shares.get(one.name, one.nbytes) for one in graph.parameters if one.trainable}
    names = dict.fromkeys(name for bucket in buckets for name in bucket.parameters)
    if strategy.segments == 1:
        # Also those that the captured forward does not use: another forward may.
        names |= dict.fromkeys(sizes)
    chosen = owners_by_size([sizes[name] for name in names], range(strategy.dp))
    found = []
    for replica in range(strategy.dp):
        own = tuple(name for name, owner in zip(names, chosen, strict=True) if owner == replica)
        if own:
            nbytes = sum(sizes[name] for name in own)
            found.append(Handed(label=f"w{replica}", nbytes=nbytes, root=replica, parameters=own))
    return tuple(found)


def zero_collectives(
    graph: Graph, ops: Sequence[Op], strategy: Strategy, *, kind: Kind, first: bool, last: bool
) -> tuple[Inner, ...]:
    """The gathers and scatters inside one step of compute.

    Args:
        graph: the network
        ops: operations of the segment
        strategy: what was decided
        kind: of the step
        first: it is the first microbatch of this kind
        last: it completes the gradients of the segment

    Returns:
        Gathers in the order in which they are issued, then scatters in theirs.
    """
    if strategy.zero < 2 or strategy.dp == 1 or not ops:
        return ()
    units = _units(graph, ops, strategy)
    if kind in FORWARDS:
        return _forward(units, ops) if strategy.zero == 3 or first or kind == Kind.EVALUATE else ()
    gathers = _backward_gathers(units, ops) if strategy.zero == 3 and kind in PASSING_BACK else []
    scatters = _scatters(units, ops) if kind in COMPLETING else []
    return (*gathers, *scatters)


def _units(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> list[_Unit]:
    """The root, and the units that have operations here; without those that have no parameters."""
    places = unit_ops(ops, strategy.units)
    owned = unit_parameters(graph, strategy.units)
    used = {name for op in ops for name in op.parameters}
    whole = strategy.segments == 1
    made = {spec.name: spec for op in ops for spec in op.outputs}
    found = []
    for unit in ("", *places):
        held = [parameter for parameter in owned[unit] if parameter.name in used or whole]
        if not held:
            continue
        positions = places[unit] if unit else range(len(ops))
        inner = [ops[position] for position in positions]
        names = {spec.name for op in inner for spec in op.outputs}
        read = {name for op in inner for name in op.inputs} - names
        trained = [parameter for parameter in held if parameter.trainable and parameter.name in used]
        found.append(
            _Unit(
                number=strategy.units.index(unit) + 1 if unit else 0,
                gathered=padded_bytes(held, strategy.dp),
                scattered=padded_bytes(trained, strategy.dp),
                first=inner[0].id,
                last=inner[-1].id,
                fed=bool(unit) and any(made[name].requires_grad for name in read if name in made),
                returns=any(spec.requires_grad for op in inner for spec in op.outputs),
            )
        )
    return found


def _forward(units: Sequence[_Unit], ops: Sequence[Op]) -> tuple[Inner, ...]:
    found = []
    start = ComputePoint(op=ops[0].id, before=True)
    for unit in units:
        wait = ComputePoint(op=unit.first if unit.number else ops[0].id, before=True)
        found.append(_gather(f"u{unit.number}", unit.gathered, start, wait))
        start = wait
    return tuple(found)


def _backward_gathers(units: Sequence[_Unit], ops: Sequence[Op]) -> list[Inner]:
    found = []
    # The last operation is the loss where the segment has it: the gradient of the model's output is there after it.
    # A root without parameters starts nothing.
    start = ComputePoint(op=ops[-1].id) if units and not units[0].number else None
    for unit in reversed(units):
        if not unit.number:
            continue
        wait = ComputePoint(op=unit.last, before=True) if unit.returns else None
        begin = start or wait
        if begin:
            # The one ahead is gathered even if no gradient comes back to it.
            found.append(_gather(f"v{unit.number}", unit.gathered, begin, wait))
        start = wait
    return found


def _scatters(units: Sequence[_Unit], ops: Sequence[Op]) -> list[Inner]:
    # Where no gradient flows on, nothing tells when a unit is done but the end of the backward.
    order = [unit for unit in reversed(units) if unit.number and unit.fed]
    order += [unit for unit in units if not (unit.number and unit.fed)]
    end = ComputePoint(op=ops[0].id)
    found = [
        Inner(
            label=f"s{unit.number}",
            kind=Kind.REDUCE_SCATTER,
            axis="replicas",
            nbytes=unit.scattered,
            start=ComputePoint(op=unit.first) if unit.number and unit.fed else end,
        )
        for unit in order
        if unit.scattered
    ]
    # What is sent takes memory: a scatter has ended before the next one starts, and the last before the backward ends.
    waits = [*(inner.start for inner in found[1:]), end]
    return [replace(inner, wait=wait) for inner, wait in zip(found, waits, strict=False)]


def _gather(label: str, nbytes: int, start: ComputePoint, wait: ComputePoint | None) -> Inner:
    return Inner(label=label, kind=Kind.ALL_GATHER, axis="replicas", nbytes=nbytes, start=start, wait=wait)
