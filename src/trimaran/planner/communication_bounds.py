"""Lower bounds on communication from totals alone: nothing is split, lowered or simulated.

Over slow links communication decides which strategies are worth a look, and bounds of compute see none of it.
What is known before stages are split:

    inner      collectives of a tensor-parallel group, which its ranks wait for: all of the network's in each microbatch
    exchange   a row with a share s of the network exchanges a share s of the gradients; the shares add up to 1

    step >= M · inner / K + compute                                       a rank waits, so these add up on its lane
    step >= the transfers of a group, one after the other                 for the row with the largest share
    step >= the time of the bytes on a link, however they share it        for the mean of any set of links

A link that groups of several rows share has at least the load of the row that loads it least. A sum of several buckets
takes at least as long as one of their bytes together: a call has a latency, and large calls are the quickest a byte.

Left out: messages between stages, whose bytes depend on the split; latencies on links; and that some of the exchange
can only start when a backward has ended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trimaran.machine.types import Allocation
from trimaran.planner.candidates import PricedJob
from trimaran.pricing.machine_transfers import device_order
from trimaran.pricing.program import called_transfer
from trimaran.pricing.transfers import collectives_at_once
from trimaran.pricing.types import Transfer
from trimaran.program.layout import Layout, across_nodes, shard_bytes, within_node
from trimaran.program.lowering.tensor_parallel import own_parameters, sharded_bytes, tensor_collectives
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind

_Ends = NDArray[np.float64]
"""A time where all costs are low, at their median, and high [s]."""

_Group = tuple[int, ...]

_NONE: _Ends = np.zeros(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Lower bounds on the communication of a step.

    Attributes:
        forward_s: collectives inside the forward of a microbatch, of the whole network, that ranks wait for [s]
        backward_s: the same of its backward [s]
        step_s: the busiest link, or the busiest group, in a step [s]
    """

    forward_s: _Ends
    backward_s: _Ends
    step_s: _Ends

    @property
    def ends(self) -> list[tuple[float, float, float]]:
        """The three at each end of the intervals [s]."""
        return list(zip(self.forward_s.tolist(), self.backward_s.tolist(), self.step_s.tolist(), strict=True))


NO_TRAFFIC = Traffic(forward_s=_NONE, backward_s=_NONE, step_s=_NONE)
"""Of one device, or where nothing is known."""


@dataclass(slots=True, kw_only=True)
class TrafficBounds:
    """Lower bounds on the communication of the strategies of a job; each shape is looked at once.

    Attributes:
        job: with its costs and devices
    """

    job: PricedJob
    _orders: dict[tuple[int, int, int], Allocation] = field(default_factory=dict)
    _inners: dict[tuple[object, ...], tuple[_Ends, _Ends]] = field(default_factory=dict)
    _steps: dict[tuple[object, ...], _Ends] = field(default_factory=dict)
    _held: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    def of(self, strategy: Strategy) -> Traffic:
        """Lower bounds of a strategy.

        Args:
            strategy: with or without boundaries; of owners, stale pipelines and measured links nothing is known
        """
        if strategy.devices == 1 or strategy.sync == "p2p" or strategy.is_stale:
            return NO_TRAFFIC
        if self.job.cluster.machine.node.measured or collectives_at_once(self.job.table, self.job.cluster) > 1:
            return NO_TRAFFIC
        shape = (strategy.dp, strategy.pp, strategy.tp, bool(strategy.shards))
        samples = self.job.batch // (strategy.dp * strategy.microbatches)
        repeated = strategy.microbatches if strategy.zero == 3 else 1
        exchange = (*shape, strategy.zero, repeated, strategy.sync, strategy.nodes, strategy.compression)
        layout = Layout(dp=strategy.dp, width=strategy.pp, rows=tuple(range(strategy.pp)), tp=strategy.tp)
        if (*shape, samples) not in self._inners:
            self._inners[*shape, samples] = self._inner(strategy, layout, samples)
        if exchange not in self._steps:
            self._steps[exchange] = self._step(strategy, layout)
        forward, backward = self._inners[*shape, samples]
        return Traffic(forward_s=forward, backward_s=backward, step_s=self._steps[exchange])

    def _step(self, strategy: Strategy, layout: Layout) -> _Ends:
        cluster = self._ordered(strategy)
        loads = _Loads(strategy.pp)
        for kind, nbytes, times, rows in self._exchanges(strategy, layout):
            for row, groups in enumerate(rows):
                for group in groups:
                    loads.exchange(row, group, self._collective(kind, nbytes, group, cluster), times)
        return loads.least()

    def _ordered(self, strategy: Strategy) -> Allocation:
        """The devices in the order of the ranks of a strategy."""
        shape = (strategy.dp, strategy.pp, strategy.tp)
        if shape not in self._orders:
            order = device_order(self.job.cluster, strategy, self.job.graph, batch=self.job.batch)
            self._orders[shape] = self.job.cluster.ordered(order)
        return self._orders[shape]

    def _collective(self, kind: Kind, nbytes: int, group: _Group, cluster: Allocation) -> Transfer:
        item = Instruction(kind=kind, rank=group[0], group=group, nbytes=nbytes)
        return called_transfer(item, self.job.table, cluster)

    def _inner(self, strategy: Strategy, layout: Layout, samples: int) -> tuple[_Ends, _Ends]:
        """Collectives inside the forward and the backward of a microbatch, by the quickest of their groups [s]."""
        if not strategy.shards:
            return _NONE, _NONE
        # Regions lie within stages, so all stages together have those of the whole network.
        whole = replace(strategy, pp=1, chunks=1, boundaries=())
        cluster = self._ordered(strategy)
        groups = [layout.replicas(0)]
        if strategy.tp > 1:
            groups = [layout.shards(replica, row) for replica in range(strategy.dp) for row in range(strategy.pp)]
        quickest: _Group | None = None
        found = []
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            sizes: dict[tuple[Kind, int], int] = {}
            for inner in tensor_collectives(self.job.graph, self.job.graph.ops, whole, samples=samples, kind=kind):
                sizes[inner.kind, inner.nbytes] = sizes.get((inner.kind, inner.nbytes), 0) + 1
            total = _NONE
            for (how, nbytes), count in sizes.items():
                if quickest is None:
                    quickest = min(groups, key=lambda one: _ends(self._collective(how, nbytes, one, cluster))[1])
                total = total + count * _ends(self._collective(how, nbytes, quickest, cluster))
            found.append(total)
        return found[0], found[1]

    def _exchanges(
        self, strategy: Strategy, layout: Layout
    ) -> Iterable[tuple[Kind, int, int, Sequence[Sequence[_Group]]]]:
        """Collectives over replicas as if one row had all of the network.

        Yields:
            What is done, with how many bytes, how often, and between which groups of each row.
        """
        if strategy.dp == 1 or (strategy.compression is not None and strategy.compression.method == "powersgd"):
            return
        weights, gradients = self._bytes_of(strategy)
        if strategy.compression is not None:
            gradients //= 2
        rows = [[layout.replicas(row, shard) for shard in range(strategy.tp)] for row in range(strategy.pp)]
        if strategy.sync == "hierarchical":
            replicas = layout.replicas(0)
            within = list(dict.fromkeys(within_node(replicas, strategy.nodes, rank) for rank in replicas))
            across = list(dict.fromkeys(across_nodes(replicas, strategy.nodes, rank) for rank in replicas))
            yield Kind.REDUCE_SCATTER, gradients, 1, [within]
            yield Kind.ALL_REDUCE, shard_bytes(gradients, len(within[0])), 1, [across]
            yield Kind.ALL_GATHER, gradients, 1, [within]
        elif strategy.zero < 2:
            yield Kind.ALL_REDUCE, gradients, 1, rows
            if strategy.zero == 1:
                # The owners hand out one after the other; all of them together at least as one would.
                yield Kind.BROADCAST, gradients, 1, rows
        else:
            # The units; the root, which is gathered once, may hold anything.
            once = strategy.zero == 2
            yield Kind.ALL_GATHER, weights, 1, rows
            yield Kind.REDUCE_SCATTER, gradients, 1 if once else strategy.microbatches, rows

    def _bytes_of(self, strategy: Strategy) -> tuple[int, int]:
        """Weights that a rank holds and exchanges if it has the whole network, and gradients [bytes]."""
        key = (strategy.tp, strategy.dp if strategy.tp == 1 and strategy.shards else 0)
        if key not in self._held:
            shares, own = sharded_bytes(self.job.graph, strategy), own_parameters(self.job.graph, strategy)
            held = [(one, shares.get(one.name, one.nbytes)) for one in self.job.graph.parameters if one.name not in own]
            gradients = sum(nbytes for one, nbytes in held if one.trainable)
            self._held[key] = sum(nbytes for _, nbytes in held), gradients
        return self._held[key]


class _Loads:
    """Loads of links and groups.

    Args:
        rows: stages of a replica
    """

    def __init__(self, rows: int) -> None:
        self._exchanged: list[dict[str, _Ends]] = [{} for _ in range(rows)]
        self._groups: list[dict[_Group, _Ends]] = [{} for _ in range(rows)]

    def exchange(self, row: int, group: _Group, transfer: Transfer, times: int) -> None:
        """A collective of a group as if its row had all of the network."""
        whole = times * _ends(transfer)
        self._groups[row][group] = self._groups[row].get(group, _NONE) + whole
        flow = whole * transfer.flow_share
        for link in transfer.links:
            self._exchanged[row][link] = self._exchanged[row].get(link, _NONE) + flow

    def least(self) -> _Ends:
        """The busiest link, or group, at least [s]."""
        return np.maximum(self._least_of_groups(), self._least_of_links())

    def _least_of_groups(self) -> _Ends:
        """Shares of rows that make the largest of their groups smallest are inverse to what a whole would take."""
        if not all(self._groups):
            return _NONE
        slowest = np.array([np.max(list(groups.values()), axis=0) for groups in self._groups])
        return np.where(slowest.min(axis=0) > 0.0, 1.0 / (1.0 / np.maximum(slowest, 1e-30)).sum(axis=0), 0.0)

    def _least_of_links(self) -> _Ends:
        names = dict.fromkeys(link for row in self._exchanged for link in row)
        if not names:
            return _NONE
        rows = np.array([[row.get(link, _NONE) for link in names] for row in self._exchanged])
        # The mean of any set of links is a bound; tried are those of the most loaded ones.
        busiest = np.argsort(-rows.mean(axis=0)[:, 1], kind="stable")
        numbers = np.arange(1, len(names) + 1)[:, None]
        sums = np.cumsum(rows[:, busiest], axis=1).min(axis=0)
        return np.asarray((sums / numbers).max(axis=0))


def _ends(transfer: Transfer) -> _Ends:
    return np.array(transfer.ends)
