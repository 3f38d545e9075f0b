"""A rank with all that decides its instructions."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.program.cut import Cut
from trimaran.program.homes import bucket_homes
from trimaran.program.inner import Axis
from trimaran.program.layout import Layout
from trimaran.program.nodes import across_nodes, within_node
from trimaran.program.rows import Row
from trimaran.program.types import Instruction, Kind, Strategy, Sync
from trimaran.timeline import COMMUNICATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank, with all that decides its instructions.

    Attributes:
        layout: which rank holds what
        replica: its replica
        row: number of its row
        shard: its number among the ranks that share the tensors of its row
        plan: what its row does
        cut: the graph, cut
        strategy: how replicas stay alike, and what they share
    """

    layout: Layout
    replica: int
    row: int
    shard: int = 0
    plan: Row
    cut: Cut
    strategy: Strategy

    @property
    def rank(self) -> int:
        """Its number."""
        return self.layout.rank(self.replica, self.row, self.shard)

    @property
    def replicas(self) -> tuple[int, ...]:
        """The ranks that hold the same as this one, itself included."""
        return self.layout.replicas(self.row, self.shard)

    @property
    def within(self) -> tuple[int, ...]:
        """Those of the replicas that are on its node."""
        return within_node(self.replicas, self.strategy.nodes, self.rank)

    @property
    def across(self) -> tuple[int, ...]:
        """Those of the replicas that have its place on other nodes, itself included."""
        return across_nodes(self.replicas, self.strategy.nodes, self.rank)

    @property
    def alike(self) -> tuple[int, ...]:
        """The ranks of all rows and replicas that have its shard: those of one row count the same samples."""
        return self.layout.everyone[self.shard :: self.layout.tp]

    @property
    def norm(self) -> tuple[int, ...]:
        """The ranks over which the gradients of the whole model are spread: rows and shards of a replica, or homes."""
        if self.strategy.sync == "p2p":
            return self.replicas
        if self.strategy.zero >= 2 or (self.strategy.shards and self.strategy.tp == 1):
            return self.layout.everyone
        return self.layout.replica(self.replica)

    @property
    def axes(self) -> dict[Axis, tuple[int, ...]]:
        """The ranks of each axis of collectives inside steps."""
        return {"shards": self.layout.shards(self.replica, self.row), "replicas": self.replicas}

    @property
    def reduction(self) -> Kind:
        """What has ended when gradients are added up."""
        return _LAST[self.strategy.sync]

    def homes(self, segment: int) -> Mapping[str, int]:
        """Where each bucket of a segment is updated, by its label; everywhere where it is not here."""
        if self.strategy.sync != "p2p" or self.layout.dp == 1:
            return {}
        return bucket_homes(self.plan.buckets[segment], self.replicas)


_LAST: Mapping[Sync, Kind] = {
    "all-reduce": Kind.ALL_REDUCE,
    "p2p": Kind.REDUCE,
    "hierarchical": Kind.ALL_GATHER,
}


def collective(
    place: Place,
    label: str,
    *,
    group: tuple[int, ...],
    nbytes: int,
    after: tuple[str, ...] = (),
    segment: int | None = None,
    kind: Kind = Kind.ALL_REDUCE,
    root: int | None = None,
) -> Instruction:
    """A collective of a rank, which is no part of a step of compute.

    Args:
        place: the rank
        label: of the collective
        group: its ranks
        nbytes: of the tensor on each rank [bytes]
        after: what it waits for
        segment: that it concerns; None: no one segment
        kind: what is done
        root: where a broadcast starts or a reduce ends; None: at the first of the group
    """
    return Instruction(
        kind=kind,
        rank=place.rank,
        segment=segment,
        stream=COMMUNICATION,
        group=group,
        root=root,
        label=label,
        nbytes=nbytes,
        after=after,
    )
