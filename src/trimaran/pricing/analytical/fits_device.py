"""Whether a strategy fits the memory of a device: what a rank needs, from least to most.

    needs    the peak of the rank (`memory.py`)
             buffers of the library of collectives: of each group of ranks that it connects
             fragments of the allocator: a share of what is allocated and freed in a step
    fits     the most that it needs is there
    with     so does the most that it needs with less kept for a parameter
    not sure the usual need is there but not the most, and keeping less without rounding does not make it sure
    unfit    the usual need is more than there is, whatever the training program keeps for a parameter

A training program says little of what it keeps. Megatron sums gradients in 32 bits unless told otherwise, and NeMo's
recipes for performance tell it otherwise; the optimizer may keep 16 bits of its copy. So a strategy whose usual
bookkeeping does not fit is judged with the leaner ones too (`LEANER`), the exact one first.

Leaner types make no step faster: with a little more memory a strategy would keep 32 bits and exchange them, and a plan
must not be slower for having more memory. Types that a user asks for are priced.

Source:
    NVIDIA, NCCL documentation, environment variables: NCCL_BUFFSIZE is 4 MiB for each channel and direction. A channel
    has another 4.7 MiB for the protocol LL128 and 0.5 MiB for LL (src/include/device.h); there are 8 to 32 channels.
    Guo et al., "GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training with Virtual
    Memory Stitching", ASPLOS 2024, for fragments: none where segments can grow (PyTorch's `expandable_segments`), 15 %
    of memory in the mean of trainings that combine LoRA, recomputation and offloading. How many there are in a plain
    training is not known; 0 to 10 % are taken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_toml
from trimaran.base.precision import Precision
from trimaran.base.units import format_bytes, format_span
from trimaran.machine.types import Device
from trimaran.pricing.analytical.layers import AttentionKernel, Eager
from trimaran.pricing.analytical.memory import Bookkeeping, RankMemory, largest_rank
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import Degrees, GradientType, OptimizerState

# ---------------------------------------------------------------------------------------------------------------------
# What a training program keeps


_MIB = 2**20

_PRODUCTS = 32 * _MIB
"""Workspace of the library of products: PyTorch's default on Hopper and later, ":4096:8" [bytes]."""

_PRODUCTS_BEFORE = 8 * _MIB + 128 * 1024
"""Of the same before Hopper: PyTorch's default ":4096:2:16:8" [bytes]."""

_EARLY = frozenset({"volta", "turing", "pascal", "maxwell", "kepler", "ampere", "ada"})

WHOLE: frozenset[Precision] = frozenset({"fp32", "tf32"})
"""Precisions in which parameters have 32 bits: they need no copy."""


def workspace_bytes(*, before_hopper: bool, fixed: bool = False, engine: bool = True) -> int:
    """Workspaces of products: two of cuBLAS's callers and Transformer Engine's own; without it four of cuBLAS's.

    Args:
        before_hopper: the device is of an architecture before it
        fixed: a configuration has the larger one of cuBLAS there too
        engine: products are Transformer Engine's

    Example:
        >>> workspace_bytes(before_hopper=False) // 2**20
        96
    """
    product = _PRODUCTS if fixed or not before_hopper else _PRODUCTS_BEFORE
    return 2 * product + (4 * _MIB if before_hopper else 32 * _MIB) if engine else 4 * product


def bookkeeping_of(
    precision: Precision,
    device: Device,
    *,
    attention: AttentionKernel = "flash2",
    keeps_weight_gradients: bool = False,
    eager: Eager | None = None,
    frozen: bool = False,
) -> Bookkeeping:
    """What Megatron keeps in a precision, or PyTorch's FSDP.

    In 32 bits a parameter, its gradient and two moments have 4 bytes each. In 8 bits the parameter stays in bf16, and
    products keep a copy of it and the transposed copy for the backward, and their inputs in 8 bits; scales and maxima
    of tensors are a few bytes. FSDP shards parameters in 32 bits, which need no copy, and gathers them in 16; the loss
    of PyTorch has logarithms of logits, their gradients and those of the logits at once, in 32 bits each.

    Args:
        precision: of products
        device: of a rank
        attention: kind of kernel
        keeps_weight_gradients: of the weights of products one gradient of each shape stays
        eager: by modules of PyTorch under FSDP, with its policy of mixed precision; None: by Megatron's
        frozen: only few weights are trained, which are added to the others (LoRA)

    Source:
        NVIDIA/Megatron-LM, docs, "distributed optimizer": 18 bytes a parameter with fp32 gradients, 16 in fp32;
        NVIDIA/TransformerEngine, transformer_engine/pytorch/module/linear.py: weights in 8 bits are kept through all
        microbatches of a step; pytorch/pytorch, torch/distributed/fsdp/_fully_shard (`MixedPrecisionPolicy`).

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> for precision in ("bf16", "fp32", "fp8"):
        ...     keeping = bookkeeping_of(precision, find_device("h100"))
        ...     print(precision, keeping.weight_bytes + keeping.gradient_bytes + keeping.optimizer_bytes)
        bf16 18
        fp32 16
        fp8 20
    """
    usual = Bookkeeping(
        attention=attention,
        workspace_bytes=workspace_bytes(before_hopper=device.generation in _EARLY),
        keeps_weight_gradients=keeps_weight_gradients,
        frozen=frozen,
    )
    if precision in WHOLE:
        return replace(
            usual,
            weight_bytes=4,
            optimizer_bytes=8,
            has_copy=False,
            logit_bytes=8 if eager is None else 12,
            element_bytes=4,
            product_input_bytes=4,
            eager=eager,
        )
    if eager is not None and eager.narrow:
        return replace(usual, gradient_bytes=2, optimizer_bytes=4, has_copy=False, logit_bytes=12, eager=eager)
    if eager is not None:
        sharded = replace(
            usual,
            weight_bytes=4,
            optimizer_bytes=8,
            has_copy=False,
            gathered_bytes=2,
            logit_bytes=12,
            eager=eager,
        )
        return replace(sharded, product_input_bytes=1) if precision == "fp8" else sharded
    if precision == "fp8":
        return replace(usual, weight_bytes=4, gathered_bytes=2, product_input_bytes=1)
    return usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaner:
    """What a training program may keep in place of the usual.

    Attributes:
        words: for people
        gradients: their type; None: as before
        optimizer_state: what Adam keeps; None: as before
    """

    words: str
    gradients: GradientType | None = None
    optimizer_state: OptimizerState | None = None


LEANER: tuple[Leaner, ...] = (
    Leaner(words="16-bit remainders of parameters in the optimizer", optimizer_state="remainders"),
    Leaner(words="bf16 gradients", gradients="bf16"),
    Leaner(words="bf16 gradients and 16-bit remainders", gradients="bf16", optimizer_state="remainders"),
    Leaner(
        words="bf16 gradients and the precision-aware optimizer", gradients="bf16", optimizer_state="precision-aware"
    ),
)
"""In the order in which it is tried: what rounds nothing, what rounds gradients, then moments."""

ROUNDING = frozenset({"bf16-moments", "precision-aware", "adam-8bit"})
"""What an optimizer keeps with rounded moments."""

Some = TypeVar("Some", bound=Degrees)


def leaner(degrees: Some, keeping: Bookkeeping) -> Iterator[tuple[Leaner, Some]]:
    """The same strategy with less kept, as far as it does not say what is kept.

    Args:
        degrees: of a strategy
        keeping: of the training program; where it has no copy of parameters, there are no remainders of one

    Example:
        >>> [one.words for one, _ in leaner(Degrees(zero=1, optimizer_state="fp32"), Bookkeeping())]
        ['bf16 gradients']
    """
    if not keeping.has_copy:
        return  # in 32 bits there is nothing to round
    for one in LEANER:
        said = (one.gradients and degrees.gradients) or (one.optimizer_state and degrees.optimizer_state)
        # Megatron has remainders in the optimizer that is sharded over replicas.
        if not said and (one.optimizer_state is None or degrees.zero > 0):
            yield (
                one,
                replace(
                    degrees,
                    gradients=one.gradients or degrees.gradients,
                    optimizer_state=one.optimizer_state or degrees.optimizer_state,
                ),
            )


# ---------------------------------------------------------------------------------------------------------------------
# What a rank needs, and what there is


COMMUNICATOR_BYTES = (8 * 4 * _MIB, 32 * 9 * _MIB)
"""Least and most of the buffers of one group of ranks [bytes]."""

_FRAGMENTS = (0.0, 0.1)
"""Least and most of fragments, as a share of what is allocated and freed in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Memory of a device that a user wants to stay free, in place of assumed buffers and fragments.

    Attributes:
        share: of the device's memory [0..1]
        nbytes: of it [bytes]
    """

    share: float = 0.0
    nbytes: int = 0

    @property
    def text(self) -> str:
        """As the command line has it."""
        return f"{100.0 * self.share}%" if self.share else f"{self.nbytes}B" if self.nbytes else "0"

    def left(self, device_bytes: int) -> int:
        """What is left of a device's memory [bytes].

        Example:
            >>> Reserve(share=0.1).left(1000), Reserve(nbytes=300).left(1000)
            (900, 700)
        """
        return int(device_bytes * (1.0 - self.share)) - self.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRange:
    """What a rank needs.

    Attributes:
        least: with the smallest buffers and without fragments [bytes]
        usual: between the two [bytes]
        most: with the largest buffers and the most fragments [bytes]
    """

    least: int
    usual: int
    most: int


def with_buffers(
    memory: RankMemory, degrees: Degrees, *, reserve: Reserve | None = None, usual: bool = False
) -> RankMemory:
    """The memory of a rank with buffers of collectives and fragments of the allocator, the most that is assumed.

    Args:
        memory: of the rank, without them
        degrees: whose groups of ranks each have buffers
        reserve: stays free for them, so none are counted; None: not said
        usual: the middle of what is assumed, not the most
    """
    if reserve is not None:
        return memory
    (_, buffers), (_, share) = COMMUNICATOR_BYTES, _FRAGMENTS
    if usual:
        buffers, share = sum(COMMUNICATOR_BYTES) // 2, sum(_FRAGMENTS) / 2
    moved = memory.activations + memory.transient
    return memory._replace(buffers=_groups(degrees) * buffers, fragments=int(share * moved))


MemoryKind = Literal["allocated", "reserved", "nvidia-smi"]
"""What a figure of memory is of: tensors (`max_memory_allocated`); what the allocator holds for them
(`max_memory_reserved`), with fragments; what a device's tool shows, with buffers of collectives and the context too."""


def memory_of_kind(
    memory: RankMemory,
    degrees: Degrees,
    kind: MemoryKind,
    device: Device,
    *,
    keeping: Bookkeeping,
    reserved: float | None = None,
) -> int:
    """The memory of a rank as a figure of a kind says it, at most what the device has [bytes].

    Args:
        memory: of the rank, without buffers and fragments
        degrees: whose groups of ranks each have buffers
        kind: of the figure
        device: of the rank
        keeping: of the training program: streams of FSDP2 hold what others cannot take
        reserved: above tensors, as a share of them, by streams of FSDP2; None: as fitted
    """
    if kind == "allocated":
        return memory.peak
    usual = with_buffers(memory, degrees, usual=True)
    share = memory_figures()["reserved"] if reserved is None else reserved
    held = memory.peak + (usual.fragments if keeping.eager is None else int(share * memory.peak))
    # An allocator that finds no more on the device gives back what it does not use.
    held = max(memory.peak, min(held, device.memory.reported_bytes - device.memory.context_bytes))
    return held if kind == "reserved" else held + usual.buffers + device.memory.context_bytes


def measured_share(memory: RankMemory, nbytes: float, counted: float) -> float:
    """Activations and what comes and goes as measured, by what they are as modelled: weights and state are known.

    Args:
        memory: of the rank, as modelled
        nbytes: of it, as measured [bytes]
        counted: the same figure as modelled, of the same kind [bytes]

    Example:
        Of 10 bytes 4 move; 12 were measured.

        >>> memory = RankMemory(stage=0, weights=6, gradients=0, optimizer=0, activations=3, transient=1, workspace=0)
        >>> measured_share(memory, 12, 10)
        1.5
    """
    moved = memory.activations + memory.transient
    return max(_LEAST_SHARE, 1.0 + (nbytes - counted) * memory.peak / counted / moved) if moved else 1.0


_LEAST_SHARE = 0.1
"""A measurement below the state of a rank is of another state: nothing more is learned from it."""


def memory_figures() -> Mapping[str, float]:
    """What is reserved above tensors, and widths of figures of memory, as fitted (`constants.toml`)."""
    found: Mapping[str, float] = packaged_toml("trimaran.pricing.analytical", "constants.toml")["memory"]
    return found


def need_of(memory: RankMemory, degrees: Degrees) -> MemoryRange:
    """The interval of what a rank needs.

    Args:
        memory: with buffers and fragments; without any where a reserve is left for them
        degrees: whose groups of ranks each have buffers

    Example:
        Two groups, of tensors and of replicas, have at least 32 MiB each and at most 288; 100 MiB come and go:

        >>> memory = RankMemory(
        ...     stage=0, weights=0, gradients=0, optimizer=0, activations=100 * 2**20, transient=0, workspace=0
        ... )
        >>> need = need_of(with_buffers(memory, Degrees(tp=2, dp=2)), Degrees(tp=2, dp=2))
        >>> need.least // 2**20, need.usual // 2**20, need.most // 2**20
        (164, 425, 686)
    """
    if not memory.fragments:
        return MemoryRange(least=memory.peak, usual=memory.peak, most=memory.peak)
    known, moved = memory.peak - memory.buffers - memory.fragments, memory.activations + memory.transient
    least, most = (
        known + _groups(degrees) * each + int(share * moved)
        for each, share in zip(COMMUNICATOR_BYTES, _FRAGMENTS, strict=True)
    )
    return MemoryRange(least=least, usual=(least + most) // 2, most=most)


def _groups(degrees: Degrees) -> int:
    """Groups of ranks that a rank is in; each has a communicator."""
    return sum(count > 1 for count in (degrees.tp, degrees.cp, degrees.dp * degrees.cp, degrees.pp, degrees.ep))


Verdict = Literal["fits", "fits with", "not sure", "does not fit"]
"""Of the memory of a device. "fits with": where less is kept for a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """Whether a strategy fits.

    Attributes:
        verdict: see `Verdict`
        need: of the rank that needs most; of "fits with" with the lever [bytes]
        room: that a device has for it [bytes]
        lever: what is kept in place of the usual; "" where nothing is
    """

    verdict: Verdict
    need: MemoryRange
    room: int
    lever: str = ""

    @property
    def words(self) -> str:
        """The verdict in a phrase.

        Example:
            >>> need = MemoryRange(least=60 * 2**30, usual=62 * 2**30, most=64 * 2**30)
            >>> DeviceFit(verdict="fits", need=need, room=79 * 2**30).words
            'fits: 62.0 GiB (60.0 GiB to 64.0 GiB) of 79.0 GiB'
            >>> DeviceFit(verdict="not sure", need=need, room=63 * 2**30, lever="bf16 gradients").words
            'may not fit, with bf16 gradients: 62.0 GiB (60.0 GiB to 64.0 GiB) of 63.0 GiB'
        """
        usual, least, most, room = (
            format_bytes(nbytes) for nbytes in (self.need.usual, self.need.least, self.need.most, self.room)
        )
        said = "may not fit," if self.verdict == "not sure" else self.verdict.removesuffix(" with")
        said = f"{said} with {self.lever}" if self.lever else said.removesuffix(",")
        return f"{said}: {usual} ({format_span(least, most)}) of {room}"


def judge_fit(
    shape: TransformerShape,
    degrees: Degrees,
    *,
    keeping: Bookkeeping,
    device_bytes: int,
    reserve: Reserve | None = None,
) -> DeviceFit:
    """Whether the rank that needs most fits a device.

    Args:
        shape: the network
        degrees: of it
        keeping: what the training program keeps, as far as the strategy does not say it
        device_bytes: that a job may use [bytes]
        reserve: stays free; None: not said, so buffers and fragments are counted

    Returns:
        The verdict, of what `admitted` takes: where that does not fit, of the strategy as it is.

    Example:
        A network of 8 billion parameters on one device of 80 GB has 18 bytes for each. Where two ranks share its layers
        and four replicas the optimizer's state, a rank has 2 + 4 + 12 / 4 for each of 4 billion:

        >>> from trimaran.pricing.analytical.shapes import decoder_of
        >>> shape = decoder_of("llama3:8b", 4096)
        >>> judge_fit(shape, Degrees(), keeping=Bookkeeping(), device_bytes=80 * 10**9).verdict
        'does not fit'
        >>> judge_fit(shape, Degrees(tp=2, dp=4, zero=1), keeping=Bookkeeping(), device_bytes=80 * 10**9).verdict
        'fits'
    """
    room = device_bytes if reserve is None else reserve.left(device_bytes)
    for lenient in (False, True):
        taken, memory = admitted(shape, degrees, keeping=keeping, room=room, reserve=reserve, lenient=lenient)
        need = need_of(memory, taken)
        if memory.peak > room:
            continue
        lever = next((one.words for one, strategy in leaner(degrees, keeping) if strategy == taken), "")
        verdict: Verdict = "not sure" if lenient else "fits with" if lever else "fits"
        return DeviceFit(verdict=verdict, need=need, room=room, lever=lever)
    return DeviceFit(verdict="does not fit", need=need, room=room)


def admitted(
    shape: TransformerShape,
    degrees: Some,
    *,
    keeping: Bookkeeping,
    room: float,
    reserve: Reserve | None = None,
    lenient: bool = False,
) -> tuple[Some, RankMemory]:
    """A strategy that surely fits, as it is or with less kept for a parameter, and the memory of its largest rank.

    Args:
        shape: the network
        degrees: of a strategy
        keeping: of the training program
        room: that a device has [bytes]
        reserve: stays free besides; None: not said, so buffers and fragments are counted
        lenient: the usual need counts, not the most; and moments of the optimizer may be rounded to 16 bits too

    Returns:
        The strategy as it is, where it fits or nothing helps; else with the first types with which it fits.
    """
    own = with_buffers(largest_rank(shape, degrees, bookkeeping=keeping), degrees, reserve=reserve, usual=lenient)
    # What the leanest types save on this rank; the largest one then needs no less.
    spared = own.gradients * (1.0 - 2.0 / keeping.gradient_bytes) + own.optimizer * (0.5 if lenient else 1.0 / 6.0)
    if own.peak <= room or own.peak - spared > room:
        return degrees, own
    for one, strategy in leaner(degrees, keeping):
        if one.optimizer_state in ROUNDING and not lenient:
            break
        rank = largest_rank(shape, strategy, bookkeeping=keeping)
        memory = with_buffers(rank, strategy, reserve=reserve, usual=lenient)
        if memory.peak <= room:
            return strategy, memory
    return degrees, own


def check_reserve(reserve: Reserve, device_bytes: int) -> None:
    """Refuse a reserve that leaves nothing of a device.

    Args:
        reserve: of the user
        device_bytes: that a job may use [bytes]

    Raises:
        InputError: with the figures
    """
    if reserve.left(device_bytes) <= 0:
        raise InputError(
            f"--reserve leaves nothing of {format_bytes(device_bytes)} that a job may use of a device: take less",
            code="memory.reserve-takes-all",
            device_bytes=device_bytes,
        )
