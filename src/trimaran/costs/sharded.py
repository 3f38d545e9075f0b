"""What one rank of a tensor-parallel group computes and keeps of each operation.

An operation inside a sharded region does its share of the work on its share of the tensors; one outside is done whole
by every rank. A share of a kernel takes its share of the time. Left out: that no kernel is shorter than the call that
starts it, so that small operations gain less than their share.
"""

from trimaran.graph.types import Graph, Op
from trimaran.program.shards import chosen_regions, chosen_stream, share_of
from trimaran.program.types import Strategy


class Shares:
    """The shares of one rank, by operation.

    Args:
        graph: the network
        strategy: what is sharded
    """

    def __init__(self, graph: Graph, strategy: Strategy) -> None:
        self._compute: dict[str, float] = {}
        self._saved: dict[str, float] = {}
        if strategy.tp == 1:
            return
        parts = dict.fromkeys(chosen_stream(graph, strategy).ops, 1 / strategy.tp)
        self._compute |= parts
        self._saved |= parts
        for region in chosen_regions(graph, strategy):
            share = share_of(region, strategy.tp)
            self._compute |= dict.fromkeys((*region.columns, *region.inside), share)
            self._saved |= dict.fromkeys(region.inside, share)
            if region.kind != "embedding":
                # A lookup reads as many rows as before; those of other ranks are zeros.
                self._compute |= dict.fromkeys(region.rows, share)
                self._saved |= dict.fromkeys(set(region.rows) - set(region.columns), share)

    def compute(self, op: Op) -> float:
        """The part of an operation's work that a rank does [0..1]."""
        return self._compute.get(op.id, 1.0)

    def saved(self, op: Op) -> float:
        """The part that a rank keeps of what an operation keeps for its backward [0..1]."""
        return self._saved.get(op.id, 1.0)
