"""Known remedies for what limits a step, and what each is predicted to save.

`explain`, `profile --stalls`, `observe` and `scale` give advice by the same type, ranked by the same figure, so that
their advice can be compared. A remedy says what to do in one sentence, who does it, how its gain was computed, and what
that takes for granted: a gain without its arithmetic is an opinion. `CATALOGUE` lists all remedies that are known.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.errors import InputError

Actor = Literal["plan", "script", "network"]
"""Actors: an option of Trimaran ("plan"), the training script, or the designer of the network."""

Method = Literal["re-simulated", "estimated", "rule"]
"""How a gain was found: the changed step simulated again, arithmetic on measured parts, or a rule without figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRemedy:
    """An entry of the catalogue.

    Attributes:
        text: what it does
        needs: what it needs, or costs in addition to time
        actor: who acts
    """

    text: str
    needs: str
    actor: Actor


CATALOGUE: Mapping[str, KnownRemedy] = {
    "load-ahead": KnownRemedy(
        text="load the next batches in worker processes while this one computes",
        needs="cores and memory of the host",
        actor="plan",
    ),
    "keep-workers": KnownRemedy(
        text="keep worker processes from one epoch to the next", needs="memory of the host", actor="script"
    ),
    "keep-samples": KnownRemedy(
        text="keep samples in the host's memory after their first read",
        needs="memory of the host for all samples, and samples that repeat",
        actor="plan",
    ),
    "split-reads": KnownRemedy(
        text="let each rank read its own share of the batch", needs="nothing more", actor="plan"
    ),
    "copy-ahead": KnownRemedy(
        text="copy the next microbatch to the device while this one computes",
        needs="page-locked memory of the host",
        actor="plan",
    ),
    "more-workers": KnownRemedy(
        text="load in more worker processes", needs="cores and memory of the host", actor="plan"
    ),
    "faster-decoding": KnownRemedy(
        text="decode samples in less time", needs="smaller or decoded samples, or a faster library", actor="script"
    ),
    "more-host-cores": KnownRemedy(
        text="load on more cores of the host", needs="hosts with more cores", actor="script"
    ),
    "faster-storage": KnownRemedy(
        text="read samples from a faster disk", needs="a faster disk, or samples in memory", actor="script"
    ),
    "compress-gradients": KnownRemedy(
        text="send gradients in fewer bytes", needs="opt-in: gradients lose precision", actor="plan"
    ),
    "16-bit-messages": KnownRemedy(
        text="send gradients and activations in 16 bits",
        needs="training that tolerates 16-bit precision",
        actor="script",
    ),
    "accumulate": KnownRemedy(
        text="exchange gradients once in several passes",
        needs="training that converges with a larger batch",
        actor="script",
    ),
    "bucket-size": KnownRemedy(text="exchange gradients in other buckets", needs="nothing more", actor="plan"),
    "more-microbatches": KnownRemedy(
        text="split the batch into more microbatches", needs="a batch that divides", actor="plan"
    ),
    "longer-pipeline-step": KnownRemedy(
        text="train with a larger batch in more microbatches",
        needs="training that converges with a larger batch",
        actor="script",
    ),
    "other-schedule": KnownRemedy(
        text="run the pipeline by another schedule", needs="memory for its microbatches under way", actor="plan"
    ),
    "larger-batch": KnownRemedy(
        text="train with a larger batch",
        needs="memory, and training that converges with a larger batch",
        actor="script",
    ),
    "compile": KnownRemedy(
        text="compile the network", needs="time to compile, and shapes that do not change", actor="script"
    ),
    "fused-optimizer": KnownRemedy(
        text="update all parameters in one kernel", needs="an optimizer with a fused form", actor="script"
    ),
    "seldom-metrics": KnownRemedy(
        text="reduce and read metrics once in several steps",
        needs="metrics that nothing in training waits for",
        actor="script",
    ),
    "even-batches": KnownRemedy(
        text="give each rank the same number of samples in each step", needs="padding or bucketing", actor="script"
    ),
    "even-ranks": KnownRemedy(
        text="give the slowest rank less to do", needs="a rank that stays the slowest", actor="script"
    ),
    "split-tensor": KnownRemedy(
        text="split a large tensor into one for each device", needs="a changed network", actor="network"
    ),
    "smaller-layer": KnownRemedy(
        text="give a layer fewer weights",
        needs="a changed network, whose accuracy is not predicted",
        actor="network",
    ),
    "join-tensors": KnownRemedy(
        text="exchange small tensors as one", needs="a communication library that joins them", actor="script"
    ),
    "merge-kernels": KnownRemedy(
        text="merge small kernels into others", needs="a compiler, or a changed network", actor="script"
    ),
    "recompute": KnownRemedy(
        text="recompute activations of a module in the backward", needs="time for its forward once more", actor="script"
    ),
    "shard-state": KnownRemedy(
        text="shard what replicas keep twice over them", needs="collectives for what is sharded", actor="script"
    ),
    "smaller-microbatch": KnownRemedy(
        text="train with smaller microbatches",
        needs="more of them for the same batch",
        actor="script",
    ),
    "fewer-threads": KnownRemedy(
        text="give processes as many threads as there are cores", needs="a variable of the environment", actor="script"
    ),
    "growing-segments": KnownRemedy(
        text="let segments of the allocator grow",
        needs="expandable_segments:True, and no sharing of memory by IPC",
        actor="script",
    ),
    "shorter-sequence": KnownRemedy(
        text="train on shorter sequences", needs="data for which less context is enough", actor="script"
    ),
    "8-bit-optimizer": KnownRemedy(
        text="keep the optimizer's moments in 8 bits", needs="training that tolerates 8-bit moments", actor="script"
    ),
    "more-devices": KnownRemedy(text="train on more devices", needs="devices, and links between them", actor="plan"),
    "larger-device": KnownRemedy(text="train on devices with more memory", needs="such devices", actor="plan"),
    "fewer-pins": KnownRemedy(text="leave the strategy to the plan", needs="nothing more", actor="plan"),
    "offload": KnownRemedy(
        text="keep memory that is seldom used on the host", needs="memory of the host, and time to copy", actor="script"
    ),
    "offload-state": KnownRemedy(
        text="keep the optimizer's state on the host and update there",
        needs="memory of the host, and time of its cores",
        actor="script",
    ),
    "chunked-loss": KnownRemedy(
        text="compute head and loss in chunks, so that the scores of all tokens are never there at once",
        needs="time for the head once more, and a loss that is a sum over tokens",
        actor="script",
    ),
}
"""All remedies that are known, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One known remedy, applied to one job.

    Attributes:
        id: its entry in `CATALOGUE`
        limiter: what it acts on, such as "loader" or "exchange"
        name: in a few words, such as "load in 2 workers"
        action: what to do, one sentence
        predicted_gain: share of the time of a step, or of an epoch where that is made best, that it saves, below 1;
            where it changes the batch, of the time per sample; negative: it would cost
        gain_interval: of it, (low, high): 90 %, or the least and the most over low, median and high costs
        method: how the gain was found
        basis: the figures that the gain is made of
        assumption: what was assumed
        setting: the figures in the name, by name, such as {"workers": 2}, for programs
        at: the set-up that it is about, by name, such as {"devices": 8}, where there are several
    """

    derived: ClassVar = ("needs", "actor")
    id: str
    limiter: str
    name: str
    action: str
    predicted_gain: Real
    gain_interval: tuple[Real, Real]
    method: Method
    basis: str
    assumption: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)
    at: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high = self.gain_interval
        if not low <= self.predicted_gain <= high < 1:
            raise InputError(
                f'remedy "{self.name}": expected low ≤ gain ≤ high < 1, got {low} ≤ {self.predicted_gain} ≤ {high}',
                code="remedy.bad-range",
                remedy=self.name,
            )
        if self.id not in CATALOGUE:
            raise InputError(
                f'remedy "{self.name}": no remedy is called "{self.id}"', code="remedy.unknown", remedy=self.name
            )

    @property
    def needs(self) -> str:
        """What it needs, or costs in addition to time."""
        return CATALOGUE[self.id].needs

    @property
    def actor(self) -> Actor:
        """Who acts."""
        return CATALOGUE[self.id].actor


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHelp:
    """A remedy for a lack of memory, played on the record of a rank.

    Attributes:
        rank: global
        name: in a few words
        action: what to do, one sentence
        saves_bytes: of what is reserved at the peak [bytes]
        reserved_bytes: at the peak with it [bytes]
        fits: whether the device has room then, with the most of NCCL's buffers, and the host too
        basis: the figures that it is made of
        assumption: what was assumed
        id: its entry in `CATALOGUE`; "" in documents of earlier versions
        step_time_s: step with it; None: not known [s]
        host_bytes: on the host with it, of all ranks of a node [bytes]
        refused: why the host has no room; "" where it has
    """

    rank: Count
    name: str
    action: str
    saves_bytes: Real
    reserved_bytes: Count
    fits: bool
    basis: str
    assumption: str
    id: str = ""
    step_time_s: Positive | None = None
    host_bytes: Count = 0
    refused: str = ""


LOSS_PARTS = 8
"""Chunks of a loss that is computed in chunks; torchtune's `CEWithChunkedOutputLoss` has as many."""

LOSS_ACTION = (
    f"Compute head and loss in {LOSS_PARTS} chunks of the tokens, each in torch.utils.checkpoint, or by a fused linear "
    "cross-entropy."
)
LOSS_ASSUMPTION = "the loss is a sum over tokens; a chunk's scores are computed again in the backward."


def rank_memory_helps(helps: Iterable[MemoryHelp]) -> tuple[MemoryHelp, ...]:
    """Remedies for a lack of memory: those that are enough first, then by the step with them, then by what they save.

    Example:
        >>> about = {"rank": 0, "action": "", "basis": "", "assumption": "", "reserved_bytes": 1}
        >>> slow = MemoryHelp(name="offload", saves_bytes=9, fits=True, step_time_s=3.0, **about)
        >>> quick = MemoryHelp(name="recompute", saves_bytes=8, fits=True, step_time_s=2.0, **about)
        >>> small = MemoryHelp(name="chunks", saves_bytes=1, fits=False, step_time_s=1.0, **about)
        >>> [one.name for one in rank_memory_helps([small, slow, quick])]
        ['recompute', 'offload', 'chunks']
    """

    def order(one: MemoryHelp) -> tuple[bool, float, float, str]:
        return not one.fits, math.inf if one.step_time_s is None else one.step_time_s, -one.saves_bytes, one.name

    return tuple(sorted(helps, key=order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change of a request for which nothing fits, and what the same planner finds then.

    Attributes:
        id: its entry in `CATALOGUE`; of several changes at once that of the first
        name: in a few words
        options: of the command that are other then, by name without dashes; None: left out
        strategy: that is planned then, by its name
        devices: in use
        global_batch_size: samples of a step
        step_time_s: of it [s]
        tokens_per_s: trained on, of all devices [1/s]; None: the samples have none
        peak_bytes: of the rank that needs most [bytes]
    """

    id: str
    name: str
    options: Mapping[str, str | int | Sequence[str] | None]
    strategy: str
    devices: int
    global_batch_size: int
    step_time_s: float
    tokens_per_s: float | None
    peak_bytes: int


def rank_remedies(remedies: Iterable[Remedy]) -> list[Remedy]:
    """Remedies by predicted gain, largest first; of equal ones the surer first, then by name.

    Example:
        >>> saves = {"action": "", "basis": "", "limiter": "loader", "method": "estimated", "id": "load-ahead"}
        >>> small = Remedy(name="pin", predicted_gain=0.1, gain_interval=(0.0, 0.2), **saves)
        >>> large = Remedy(name="workers", predicted_gain=0.4, gain_interval=(0.3, 0.5), **saves)
        >>> [remedy.name for remedy in rank_remedies([small, large])]
        ['workers', 'pin']
    """
    return sorted(remedies, key=lambda remedy: (-remedy.predicted_gain, -remedy.gain_interval[0], remedy.name))
