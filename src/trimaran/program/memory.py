"""The memory plan: for each storage that autograd packs, keep, offload or recompute, and at which tick what happens.

A plan is a list of steps keyed to the ticks of a `StepTrace`. At a tick its steps are done first, in order; then the
tick itself (the tensor is packed or given back). The tokens are those of a program:

    OFF s    start to copy storage s to the host; the copy runs behind the operations issued so far
    DEL s    wait, in the stream of the operations, until the copy has ended; then let go of the device's memory
    PRE s    take device memory for s and start to copy it back
    RE s     recompute s by its recipe; what the recipe reads is on the device by then (earlier steps see to it)

Reading s at an unpack waits for its PRE, in the stream of the operations. A storage is released for good when its last
unpack has been served and the last recipe that reads it has run. So how much memory is used at a moment follows from
the plan alone, whatever the clocks say; a late copy costs time, never memory.

    DEL s of a storage to recompute has no copy to wait for. A storage with no steps is kept, as autograd does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimaran.base.errors import InputError
from trimaran.program.types import Kind

MEMORY_KINDS = frozenset({Kind.OFFLOAD, Kind.RELEASE, Kind.PREFETCH, Kind.RECOMPUTE})


class Decision(StrEnum):
    """Where a storage is between its last use in the forward and its first in the backward."""

    KEEP = "keep"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRecipe:
    """How to recompute a storage.

    Attributes:
        storage: that is recomputed
        ops: moments of the operations to run again, in order
        sources: storages that they read and do not make; packed ones must be on the device, parameters and buffers are
        duration_s: time of the operations [s]
    """

    storage: int
    ops: tuple[int, ...]
    sources: tuple[int, ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStep:
    """One thing that happens at a tick.

    Attributes:
        moment: of the tick, in the trace
        kind: `OFF`, `DEL`, `PRE` or `RE`
        storage: which
    """

    moment: int
    kind: Kind
    storage: int

    @property
    def token(self) -> str:
        """Short form.

        Example:
            >>> MemoryStep(moment=12, kind=Kind.OFFLOAD, storage=7).token
            '12:OFF7'
        """
        return f"{self.moment}:{self.kind}{self.storage}"


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """A memory plan of one step.

    Attributes:
        policy: who decided, such as "trimaran", "vdnn_all"
        budget_bytes: peak that it must keep [bytes]; None: as much as there is
        decisions: by storage; what is missing is kept
        steps: ordered by moment, then as they are done
        recipes: by storage, for those that are recomputed
        reasons: by storage, why, in a few words
        waits: by storage, a tick between its PRE and its first unpack at which the operations already wait for the end
            of the copy. Only policies that synchronise at ends of layers have it; it changes times, not memory
        codecs: by offloaded storage, the codec of its copies; what is missing goes as it is
    """

    policy: str
    budget_bytes: int | None
    decisions: Mapping[int, Decision]
    steps: tuple[MemoryStep, ...]
    recipes: Mapping[int, RecomputeRecipe]
    reasons: Mapping[int, str]
    waits: Mapping[int, int] = field(default_factory=dict)
    codecs: Mapping[int, str] = field(default_factory=dict)

    def of(self, storage: int) -> Decision:
        """The decision on a storage."""
        return self.decisions.get(storage, Decision.KEEP)

    @property
    def moved(self) -> tuple[int, ...]:
        """Storages that are offloaded or recomputed, ascending."""
        return tuple(sorted(number for number, decision in self.decisions.items() if decision != Decision.KEEP))


KEEP_ALL = MemoryPlan(policy="none", budget_bytes=None, decisions={}, steps=(), recipes={}, reasons={})
"""Ordinary autograd."""


# ---------------------------------------------------------------------------------------------------------------------
# How offloaded bytes may be coded on their way


SPARSE, BF16 = "sparse", "bf16"
CODECS = (SPARSE, BF16)
LOSSLESS = frozenset({SPARSE})
EXACTNESS: Mapping[str, str] = {
    SPARSE: "exact",
    BF16: "not exact: it rounds what comes back, so gradients differ",
}
"""What each does to the bits that come back, in words."""

SPARSE_RATIO = 1.7
"""How many times fewer bytes what comes after a ReLU has, where nothing else is known."""

BF16_RATIO = 2.0
"""The same of fp32 values that are rounded to bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """A codec that a user names.

    Attributes:
        name: "sparse" or "bf16"
        ratio: how many times fewer bytes what it codes has
    """

    name: str
    ratio: float

    @property
    def text(self) -> str:
        """As a user writes it.

        Example:
            >>> parse_codec("sparse").text, parse_codec("sparse:2.6").text, parse_codec("bf16").text
            ('sparse', 'sparse:2.6', 'bf16')
        """
        usual = self.ratio == (BF16_RATIO if self.name == BF16 else SPARSE_RATIO)
        return self.name if usual else f"{self.name}:{self.ratio:g}"

    @property
    def is_exact(self) -> bool:
        """Whether bits come back as they were."""
        return self.name in LOSSLESS


def parse_codec(text: str) -> CodecChoice:
    """A codec as a user writes it.

    Args:
        text: "sparse", "sparse:2.6" with how many times fewer bytes there are after a ReLU, or "bf16"

    Raises:
        InputError: there is no such codec, or a ratio that is not above 1

    Example:
        >>> parse_codec("sparse:2.6").ratio, parse_codec("bf16").is_exact
        (2.6, False)
    """
    name, _, ratio = text.strip().partition(":")
    try:
        value = float(ratio) if ratio else (BF16_RATIO if name == BF16 else SPARSE_RATIO)
    except ValueError:
        value = math.nan
    if name not in CODECS or not 1.0 < value < math.inf or (name == BF16 and ratio):
        raise InputError(
            f'codec: expected "sparse", "sparse:2.6" (how many times fewer bytes) or "bf16" (rounds, so gradients '
            f'differ), got "{text}"',
            code="codec.unknown",
            codec=text,
        )
    return CodecChoice(name=name, ratio=value)


def check_codec_runs(codec: CodecChoice | None, *, on_gpu: bool) -> None:
    """Refuse to run a codec where copies cannot be coded.

    Args:
        codec: that is asked for; None: none
        on_gpu: whether the copies are those of a GPU

    Raises:
        InputError: a codec on a GPU, whose copy engine does not code
    """
    if codec is not None and on_gpu:
        raise InputError(
            f'codec="{codec.name}" is for steps on a CPU: the copy engines of a GPU move bytes as they are. Leave '
            "the codec out; `trimaran memory --codec` and `trimaran plan --cluster NAME --codec` say what coding would "
            "be worth there",
            code="virtual-memory.codec-on-gpu",
            codec=codec.name,
        )
