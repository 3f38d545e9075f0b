"""A step of a whole network as it ran on one rank, with what its operations, copies and hooks cost there."""

from dataclasses import dataclass

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.graph.trace.types import StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCosts:
    """What a memory plan takes of a rank's time beside stalls and recomputation.

    Attributes:
        tick_s: a pack with its unpack, in the thread that computes [s]
        moving_s_per_byte: the thread that computes, for what goes to the host and comes back: handing over, memory that
            no cache holds [s/byte]
        copying_s_per_byte: the threads that copy, for the same [s/byte]
        cores: of the machine
    """

    tick_s: float = 0.0
    moving_s_per_byte: float = 0.0
    copying_s_per_byte: float = 0.0
    cores: int = 1

    def seconds(self, *, packs: int, moved_bytes: int, ranks: int) -> float:
        """Time that hooks add to a step.

        Where every core has a rank, the threads that copy take their time from the ranks.

        Args:
            packs: of a step
            moved_bytes: that go to the host and come back [bytes]
            ranks: busy on the machine

        Returns:
            The time [s].

        Example:
            100 packs of 10 µs; 1 MB that takes 2 ms of the rank, and 1 ms of copying.

            >>> costs = HookCosts(tick_s=10e-6, moving_s_per_byte=2e-9, copying_s_per_byte=1e-9, cores=2)
            >>> costs.seconds(packs=100, moved_bytes=1_000_000, ranks=1)
            0.003
            >>> costs.seconds(packs=100, moved_bytes=1_000_000, ranks=2)
            0.004
        """
        copying_s_per_byte = self.copying_s_per_byte if ranks >= self.cores else 0.0
        return packs * self.tick_s + moved_bytes * (self.moving_s_per_byte + copying_s_per_byte)


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """What a memory plan is made from.

    Attributes:
        trace: of one microbatch, with its update
        costs: of its operations, and of copies to the host and back
        hooks: what a plan costs beside; nothing on a GPU, whose host runs ahead
    """

    trace: StepTrace
    costs: MemoryCosts
    hooks: HookCosts = HookCosts()
