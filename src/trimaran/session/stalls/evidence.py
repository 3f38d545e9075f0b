"""What advice on stalls is computed from, and how a gain comes by its interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from trimaran.graph import Graph
from trimaran.measure.observe.parts import figure_interval
from trimaran.measure.stalls.findings import StallFindings, WayFindings
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.splits import Split
from trimaran.measure.stalls.steps import Way
from trimaran.program.types import Strategy

_Step = TypeVar("_Step")

# Of a step that is nearly all saved, something is left.
_MOST = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What advice is computed from.

    Attributes:
        findings: what was measured
        way: the way that counts
        strategy: what was run
        graph: of the job
        samples: of a global batch
        cores: that all ranks share
        memory_bytes: of the host that is free [bytes]
        on_device: batches are copied to devices of their own
    """

    findings: StallFindings
    way: Way
    strategy: Strategy
    graph: Graph
    samples: int
    cores: int
    memory_bytes: int
    on_device: bool

    @property
    def own(self) -> WayFindings:
        """The steps that count."""
        return self.findings.ways[self.way]

    @property
    def reader(self) -> RankRun:
        """The first rank that reads data."""
        return next((run for run in self.findings.runs if run.reads), self.findings.runs[0])


class Gain(TypedDict):
    """What a remedy saves, as arguments of `Remedy`."""

    predicted_gain: float
    gain_interval: tuple[float, float]


def gain(evidence: Evidence, saved: Callable[[Split], float]) -> Gain:
    """The share of the step that a remedy saves, with its 90 % interval.

    Args:
        evidence: what was measured
        saved: time that it saves of a step [s]
    """
    own = evidence.own
    return gain_between(lambda split: saved(split) / split.step_s, own.mean, own.blocks)


def gain_between(share: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step]) -> Gain:
    """The share of the step that a remedy saves, with its 90 % interval.

    One block of steps says nothing of how far blocks are apart: a gain may then as well be none, or all, and a loss
    may be larger by as much.

    Args:
        share: that it saves of a step, or of what else sums up steps
        mean: of all blocks
        blocks: of consecutive steps
    """
    found, low, high = figure_interval(share, mean, blocks)
    found = min(found, _MOST)
    if found and len(blocks) < 2:
        low, high = (0.0 if found > 0 else found - _MOST), _MOST
    return {"predicted_gain": found, "gain_interval": (min(low, found), min(max(high, found), _MOST))}
