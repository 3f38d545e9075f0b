"""How fast things run beside each other: compute lanes and links as fluid resources.

Every running task has work left and a rate, the seconds of work that it does a second.

- Compute on a lane runs at rate 1, or `1 / interference.compute` while bytes of a transfer or a copy of its rank flow.
- A transfer or a copy whose bytes flow runs at rate `1 / k`, where k is the largest number of flows on one of its
  links, itself included; while compute runs on any of its ranks it is slower by `interference.communication` on top.

Compute is what occupies the compute lane of a rank: the stream "compute", and with `host_blocks` the stream "host" too.
Latencies and what runs on other streams neither slow anything down nor are slowed down.

Changes of the same instant are collected and rates follow from what runs at its end: compute that starts as other
compute ends leaves the flows beside it alone.
"""

from trimaran.costs.types import Interference
from trimaran.errors import InputError


class Resources:
    """What runs on which lane and flows on which link.

    Args:
        ranks: number of ranks
        links: number of links
        interference: slowdowns of compute and communication side by side

    Attributes:
        interferes: whether compute and communication slow each other down at all
        changed: running tasks whose rate may have changed since the engine last asked

    Raises:
        InputError: a factor that is not positive
    """

    def __init__(self, *, ranks: int, links: int, interference: Interference) -> None:
        if not (interference.compute > 0.0 and interference.communication > 0.0):
            raise InputError(
                f"factors of interference must be positive, got {interference}", code="simulator.bad-interference"
            )
        self.interferes = interference.compute != 1.0 or interference.communication != 1.0
        self._compute = interference.compute
        self._communication = interference.communication
        self._computing: list[int | None] = [None] * ranks
        self._flowing: list[set[int]] = [set() for _ in range(ranks)]
        self._on_link: list[set[int]] = [set() for _ in range(links)]
        self._flows: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._on_rank: dict[int, int] = {}
        self.changed: set[int] = set()

    def start_compute(self, task: int, rank: int) -> None:
        """Occupy the lane of a rank."""
        self._computing[rank] = task
        self._on_rank[task] = rank
        self.changed.add(task)
        if self._communication != 1.0:
            self.changed |= self._flowing[rank]

    def end_compute(self, task: int) -> None:
        """Leave the lane."""
        rank = self._on_rank.pop(task)
        self._computing[rank] = None
        self.changed.discard(task)
        if self._communication != 1.0:
            self.changed |= self._flowing[rank]

    def start_flow(self, task: int, flow: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        """Let bytes flow between ranks over links."""
        self._flows[task] = flow
        for link in flow[1]:
            self._on_link[link].add(task)
        for rank in flow[0]:
            self._flowing[rank].add(task)
        self.changed.add(task)
        self._touch(flow)

    def end_flow(self, task: int) -> None:
        """Bytes have arrived."""
        flow = self._flows.pop(task)
        for link in flow[1]:
            self._on_link[link].remove(task)
        for rank in flow[0]:
            self._flowing[rank].remove(task)
        self.changed.discard(task)
        self._touch(flow)

    def _touch(self, flow: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        for link in flow[1]:
            self.changed |= self._on_link[link]
        if self._compute != 1.0:
            for rank in flow[0]:
                task = self._computing[rank]
                if task is not None:
                    self.changed.add(task)

    def rate(self, task: int) -> float:
        """Seconds of work that a running task does a second, beside what runs now."""
        flow = self._flows.get(task)
        if flow is None:
            return 1.0 / self._compute if self._flowing[self._on_rank[task]] else 1.0
        slowdown = 1.0
        for link in flow[1]:
            slowdown = max(slowdown, float(len(self._on_link[link])))
        if self._communication != 1.0 and any(self._computing[rank] is not None for rank in flow[0]):
            slowdown *= self._communication
        return 1.0 / slowdown
