"""The reference scorer: whether a schedule obeys every rule, and when it ends.

It shares nothing with the solvers: it takes the problem, the schedule and the transfers as they are written, and goes
through the rules one by one. The rules, each checked by the function of its number:

1. every node has one forward and one backward, on the same device, as long as the problem says
2. a device runs one of them at a time
3. a tensor crosses to a device once, however many consumers it has there, after the forward that makes it; the sum of
   its gradients crosses back once, after the last backward of those consumers; each as long as its wire takes
4. a link carries one transfer at a time, be they of one wire or of several
5. a forward starts after those of its producers, or their arrival; a backward after its forward, after those of the
   consumers on its device, and after the arrival of the gradients from the others
6. tensors on a device fit its memory at every moment: state always, saved ones from the start of the forward
   to the end of the backward, received ones from the start of the transfer until nothing on the device needs it
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import SolverError
from trimaran.placement.problem import NodeRun, NodeTransfer, PlacementNode, PlacementProblem

_SLACK = 1e-9
"""Share of the step by which times may differ: the rounding of floats, summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Result of the reference scorer for a legal schedule.

    Attributes:
        makespan_s: end of the last run or transfer [s]
        peak_bytes: most that lives on each device at once [bytes]
        busy_s: time for which each device computes [s]
    """

    makespan_s: float
    peak_bytes: tuple[float, ...]
    busy_s: tuple[float, ...]


def check(problem: PlacementProblem, schedule: Sequence[NodeRun], transfers: Sequence[NodeTransfer]) -> Score:
    """Go through all rules.

    Args:
        problem: of the schedule
        schedule: forwards and backwards
        transfers: between devices

    Raises:
        SolverError: a rule is broken; which, by which item, and by how much
    """
    end = max([run.end_s for run in schedule] + [transfer.end_s for transfer in transfers], default=0.0)
    audit = _Audit(problem, schedule, transfers, slack_s=_SLACK * max(end, problem.serial_s))
    audit.runs_are_whole()
    audit.devices_do_one_thing()
    audit.transfers_are_right()
    audit.links_carry_one_thing()
    audit.inputs_are_there()
    peaks = audit.memory_suffices()
    busy = [0.0] * problem.devices
    for run in schedule:
        busy[run.device] += run.end_s - run.start_s
    return Score(makespan_s=end, peak_bytes=peaks, busy_s=tuple(busy))


class _Audit:
    """One schedule under examination."""

    def __init__(
        self,
        problem: PlacementProblem,
        schedule: Sequence[NodeRun],
        transfers: Sequence[NodeTransfer],
        *,
        slack_s: float,
    ) -> None:
        self.problem = problem
        self.schedule = schedule
        self.transfers = transfers
        self.slack_s = slack_s
        self.nodes: Mapping[str, PlacementNode] = {node.name: node for node in problem.nodes}
        self.runs: dict[tuple[str, str], NodeRun] = {}
        self.arrivals: dict[tuple[str, str, int, int], NodeTransfer] = {}
        self.readers: dict[str, list[str]] = {node.name: [] for node in problem.nodes}
        for producer, consumer in problem.edges:
            self.readers[problem.nodes[producer].name].append(problem.nodes[consumer].name)

    def runs_are_whole(self) -> None:
        """Rule 1."""
        for run in self.schedule:
            node = self.nodes.get(run.node)
            if node is None or run.phase not in ("F", "B") or not 0 <= run.device < self.problem.devices:
                raise _broken(
                    f"{run.phase} of {run.node!r} on device {run.device} is not of this problem",
                    code="placement.foreign-run",
                )
            if (run.node, run.phase) in self.runs:
                raise _broken(f"{run.phase} of {run.node} is there twice", code="placement.run-twice")
            self.runs[run.node, run.phase] = run
            self._lasts(f"{run.phase} of {run.node}", run, node.forward_s if run.phase == "F" else node.backward_s)
        for name in self.nodes:
            for phase in ("F", "B"):
                if (name, phase) not in self.runs:
                    raise _broken(f"{phase} of {name} is missing", code="placement.run-missing", node=name)
            if self.runs[name, "F"].device != self.runs[name, "B"].device:
                raise _broken(
                    f"the backward of {name} is not on the device of its forward", code="placement.backward-elsewhere"
                )

    def devices_do_one_thing(self) -> None:
        """Rule 2."""
        for device in range(self.problem.devices):
            self._one_at_a_time(f"device {device}", [run for run in self.schedule if run.device == device])

    def transfers_are_right(self) -> None:
        """Rule 3."""
        for transfer in self.transfers:
            wire = self.problem.wires.get((transfer.source, transfer.target))
            node = self.nodes.get(transfer.node)
            if wire is None or node is None or transfer.phase not in ("F", "B"):
                raise _broken(f"{_what(transfer)}: there is no such wire or node", code="placement.no-such-wire")
            if tuple(transfer.links) != tuple(wire.links):
                raise _broken(
                    f"{_what(transfer)} holds {transfer.links}, its wire is {wire.links}", code="placement.wrong-links"
                )
            nbytes = node.nbytes if transfer.phase == "F" else node.backward_nbytes
            self._lasts(_what(transfer), transfer, wire.latency_s + nbytes / wire.bytes_per_s)
            key = (transfer.node, transfer.phase, transfer.source, transfer.target)
            if key in self.arrivals:
                raise _broken(f"{_what(transfer)} is there twice", code="placement.transfer-twice")
            self.arrivals[key] = transfer
        wanted = set()
        for name, readers in self.readers.items():
            origin = self.runs[name, "F"].device
            for reader in readers:
                there = self.runs[reader, "F"].device
                if there != origin:
                    wanted |= {(name, "F", origin, there), (name, "B", there, origin)}
        if wanted != set(self.arrivals):
            odd = min(wanted ^ set(self.arrivals))
            raise _broken(
                f"the transfer {odd} is {'missing' if odd in wanted else 'read by nothing'}",
                code="placement.wrong-transfers",
            )

    def links_carry_one_thing(self) -> None:
        """Rule 4."""
        held: dict[str, list[NodeTransfer]] = {}
        for transfer in self.transfers:
            for link in transfer.links:
                held.setdefault(link, []).append(transfer)
        for link, transfers in held.items():
            self._one_at_a_time(f"link {link}", transfers)

    def inputs_are_there(self) -> None:
        """Rule 5."""
        for name, readers in self.readers.items():
            forward, backward = self.runs[name, "F"], self.runs[name, "B"]
            self._before(f"B of {name}", backward, forward)
            for reader in readers:
                reads, returns = self.runs[reader, "F"], self.runs[reader, "B"]
                if reads.device == forward.device:
                    self._before(f"F of {reader}", reads, forward)
                    self._before(f"B of {name}", backward, returns)
                    continue
                gone = self.arrivals[name, "F", forward.device, reads.device]
                back = self.arrivals[name, "B", reads.device, forward.device]
                self._before(_what(gone), gone, forward)
                self._before(f"F of {reader}", reads, gone)
                self._before(_what(back), back, returns)
                self._before(f"B of {name}", backward, back)

    def memory_suffices(self) -> tuple[float, ...]:
        """Rule 6; the peaks."""
        lives: list[list[tuple[float, float, float]]] = [[] for _ in range(self.problem.devices)]
        for name, node in self.nodes.items():
            forward, backward = self.runs[name, "F"], self.runs[name, "B"]
            lives[forward.device].append((float("-inf"), float("inf"), node.state_bytes))
            lives[forward.device].append((forward.start_s, backward.end_s, node.saved_bytes))
        for (name, phase, _, target), transfer in self.arrivals.items():
            if phase == "F":
                readers = [reader for reader in self.readers[name] if self.runs[reader, "F"].device == target]
                until = max(self.runs[reader, "B"].end_s for reader in readers)
                lives[target].append((transfer.start_s, until, self.nodes[name].nbytes))
            else:
                lives[target].append((transfer.start_s, self.runs[name, "B"].end_s, self.nodes[name].backward_nbytes))
        peaks = tuple(_peak(live, self.slack_s) for live in lives)
        for device, (peak, memory) in enumerate(zip(peaks, self.problem.memory_bytes, strict=True)):
            if peak > memory * (1 + _SLACK):
                raise _broken(
                    f"device {device} holds {peak:.0f} bytes at once, it has {memory:.0f}",
                    code="placement.too-much-memory",
                )
        return peaks

    def _lasts(self, what: str, item: NodeRun | NodeTransfer, seconds: float) -> None:
        if item.start_s < -self.slack_s or abs(item.end_s - item.start_s - seconds) > self.slack_s:
            raise _broken(
                f"{what} goes from {item.start_s} s to {item.end_s} s, it takes {seconds} s",
                code="placement.wrong-duration",
            )

    def _before(self, what: str, item: NodeRun | NodeTransfer, first: NodeRun | NodeTransfer) -> None:
        if item.start_s < first.end_s - self.slack_s:
            raise _broken(
                f"{what} starts at {item.start_s} s, before {_what(first)} has ended at {first.end_s} s",
                code="placement.too-early",
                item=what,
                first=_what(first),
            )

    def _one_at_a_time(self, where: str, items: Iterable[NodeRun | NodeTransfer]) -> None:
        ordered = sorted(items, key=lambda item: (item.start_s, item.end_s))
        for first, second in itertools.pairwise(ordered):
            if second.start_s < first.end_s - self.slack_s:
                raise _broken(
                    f"{where} has two things to do at {second.start_s} s: {_what(first)} until {first.end_s} s, "
                    f"and {_what(second)}",
                    code="placement.two-at-once",
                    where=where,
                )


def _what(item: NodeRun | NodeTransfer) -> str:
    if isinstance(item, NodeRun):
        return f"{item.phase} of {item.node}"
    return f"transfer {item.phase} of {item.node} from {item.source} to {item.target}"


def _peak(lives: Iterable[tuple[float, float, float]], slack_s: float) -> float:
    """Most bytes alive at once; a tensor that ends where another begins is freed first."""
    events = []
    for start, end, nbytes in lives:
        events.append((start, 1, nbytes))
        events.append((max(end - slack_s, start), 0, -nbytes))
    live = peak = 0.0
    for _, _, change in sorted(events):
        live += change
        peak = max(peak, live)
    return peak


def _broken(message: str, *, code: str, **figures: str) -> SolverError:
    return SolverError(f"the placement breaks its own rules: {message}; please report it", code=code, **figures)
