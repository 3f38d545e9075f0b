"""What a step that was measured would be if its batches came another way.

How samples are read and prepared is as it was seen in the steps; what a hand-over from a worker or a cache takes was
measured after them. The bounds are those of `costs.fed_step`, by which plans are made too.
"""

from dataclasses import dataclass, replace

from trimaran.costs import Cost
from trimaran.costs.fed_step import load, period
from trimaran.costs.sample_costs import SampleCosts
from trimaran.measure.sampled import sample_costs
from trimaran.measure.stalls.splits import Split
from trimaran.program.feeding import Feeding
from trimaran.session.stalls.evidence import Evidence

_HOW = "the steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """A step and its samples.

    Attributes:
        samples: what they take, as the steps that count saw it
        microbatch: samples of one
        microbatches: of a rank's step
        readers: ranks that read
        late_s: what ranks wait for others that wait for data [s]
        work_s: processor time of a step of all ranks, their loading left out [s]; 0 where devices of their own compute
        cores: that workers and these ranks share
    """

    samples: SampleCosts
    microbatch: int
    microbatches: int
    readers: int
    late_s: float
    work_s: float
    cores: int

    @property
    def one_s(self) -> float:
        """Reading and preparing of a rank's step [s]."""
        return self.microbatches * self.microbatch * (self.samples.read.seconds + self.samples.prepare.seconds)

    def taken_s(self, feeding: Feeding) -> float:
        """What a rank's own thread spends on the batches of a step [s].

        Args:
            feeding: how they are loaded
        """
        return self.microbatches * load(self.samples, feeding, microbatch=self.microbatch).seconds

    def least_s(self, feeding: Feeding) -> float:
        """The step below which none comes, whatever the ranks do [s].

        Args:
            feeding: how batches are loaded
        """
        return period(
            self.samples,
            feeding,
            microbatch=self.microbatch,
            microbatches=self.microbatches,
            readers=self.readers,
            busy_s=self.work_s + (self.readers * self.taken_s(feeding) if self.work_s else 0.0),
            cores=self.cores,
        ).seconds

    def step_s(self, split: Split, feeding: Feeding) -> float:
        """What a step would be [s].

        Args:
            split: of the step as it is
            feeding: how batches would be loaded
        """
        rest_s = split.step_s - split.loading_s - min(self.late_s, split.synchronization)
        return max(rest_s + self.taken_s(feeding), self.least_s(feeding))


def fed_step(evidence: Evidence) -> Fed | None:
    """The step that was measured; None where its samples were not looked at.

    Args:
        evidence: what was measured
    """
    runs = evidence.findings.runs
    sampled = [run.sampled for run in runs if run.reads and run.sampled is not None]
    if not sampled:
        return None
    strategy, own = evidence.strategy, evidence.own
    microbatch = max(1, evidence.samples // (strategy.dp * strategy.microbatches))
    each = strategy.microbatches * microbatch
    read, prepare = _seen(own.read_s / each), _seen(own.prepared_s / each)
    seen = replace(sample_costs(sampled, how=_HOW), read=read, read_again=read, prepare=prepare, batch=_seen(0.0))
    # Workers' time is none of the ranks' own.
    loading_s = 0.0 if strategy.feeding.workers else own.prepared_s * len(sampled)
    return Fed(
        samples=seen,
        microbatch=microbatch,
        microbatches=strategy.microbatches,
        readers=len(sampled),
        late_s=own.late_s,
        work_s=0.0 if evidence.on_device else max(0.0, own.busy_s - loading_s),
        cores=max(1, evidence.cores - len(runs)) if evidence.on_device else evidence.cores,
    )


def _seen(seconds: float) -> Cost:
    return Cost(seconds, seconds, seconds, f"measured: {_HOW}")
