"""Hierarchical all-reduces of gradient buckets: reduce-scatter within nodes, all-reduce across, all-gather within.

    backward    ████████ b0 ████████ b1 ▒▒ ▒▒▒▒▒▒▒▒▒▒▒ U
    within               RS b0       RS b1    AG b0   AG b1     one group, one order on all its members
    across                 AR b0 ═══════ AR b1 ═══════          a chain starts it when a scatter has ended

A gather is started when the backward has ended and the rank has waited for the sum across nodes. Buckets whose number
of elements the ranks of the node do not divide are padded with zeros, which costs two copies of them.

In its first step DDP makes other buckets than the program has. Where some parameters have no gradient it may have more
of them in every step, two under one label. They are summed too, and those that no instruction gathers are gathered
before the gradients are used.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch

from trimaran.program.layout import shard_bytes
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import Chain, Channels, Group, InFlight
from trimaran.runtime.record import RunRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scattered:
    """A bucket whose shards are being summed.

    Attributes:
        instruction: its reduce-scatter
        flat: its gradients
        padded: the same, with as many elements as the ranks of the node divide; `flat` itself where they do
        shard: what this rank has of the sum
    """

    instruction: Instruction
    flat: torch.Tensor
    padded: torch.Tensor
    shard: torch.Tensor


class HierarchicalSums:
    """Hierarchical all-reduces of buckets.

    Args:
        across: this rank, and the ranks with the same local rank on other nodes
        channels: communicate
        chain: starts the sums across nodes
        in_flight: communication under way
        recorder: writes down what happens
    """

    def __init__(
        self, across: Group, *, channels: Channels, chain: Chain, in_flight: InFlight, recorder: RunRecorder
    ) -> None:
        self._across = across
        self._channels = channels
        self._chain = chain
        self._in_flight = in_flight
        self._recorder = recorder
        self._scattered: dict[str, list[_Scattered]] = {}

    def start(self, instruction: Instruction, flat: torch.Tensor) -> None:
        """Sum a bucket within the node, and then its shards across nodes.

        Args:
            instruction: the reduce-scatter of the bucket
            flat: its gradients; the sums replace them after the gather
        """
        ranks = len(instruction.group)
        start = self._recorder.stamp()
        padded = _padded(flat, ranks)
        shard = padded.new_empty(padded.numel() // ranks)
        scatter = self._channels.reduce_scatter(shard, padded, instruction.group)
        ended = self._in_flight.add_following(
            replace(instruction, kind=Kind.ALL_REDUCE, group=self._across),
            scatter,
            partial(self._channels.all_reduce, shard, self._across),
            [shard],
            chain=self._chain,
            nbytes=shard_bytes(flat.nbytes, ranks),
        )
        self._in_flight.add(instruction, [ended], [padded, shard], start=start, nbytes=flat.nbytes)
        begun = _Scattered(instruction=instruction, flat=flat, padded=padded, shard=shard)
        self._scattered.setdefault(instruction.label, []).append(begun)

    def gather(self, instruction: Instruction) -> None:
        """Gather the sums of a bucket; does nothing where this step had no such bucket.

        Args:
            instruction: the all-gather of the bucket
        """
        for found in self._scattered.pop(instruction.label, ()):
            self._gather(found, instruction)

    def settle(self) -> None:
        """Gather the sums of buckets that are not in the program, as those of DDP's first step."""
        for label in list(self._scattered):
            for found in self._scattered.pop(label):
                self._gather(found, replace(found.instruction, kind=Kind.ALL_GATHER, after=()))

    def forget(self) -> None:
        """Drop all, after a failure."""
        self._scattered.clear()

    def _gather(self, found: _Scattered, instruction: Instruction) -> None:
        self._in_flight.wait(found.instruction.token)
        self._in_flight.wait(replace(found.instruction, kind=Kind.ALL_REDUCE).token)
        start = self._recorder.stamp()
        work = self._channels.all_gather(found.padded, found.shard, instruction.group)
        buffers = [found.padded, found.shard]
        pending = self._in_flight.add(
            instruction, [work], buffers, start=start, nbytes=found.flat.nbytes, blocking=True
        )
        if found.padded is not found.flat:
            pending.finish = partial(_copy_back, found.flat, found.padded)


def _padded(flat: torch.Tensor, ranks: int) -> torch.Tensor:
    """A flat tensor with as many elements as ranks divide; itself where they do."""
    left = -flat.numel() % ranks
    return torch.cat([flat, flat.new_zeros(left)]) if left else flat


def _copy_back(flat: torch.Tensor, padded: torch.Tensor) -> None:
    flat.copy_(padded[: flat.numel()])
