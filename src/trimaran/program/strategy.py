"""Strategy: what was decided, before it is lowered to a program."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, parse_bytes, whole_number
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, Compression, parse_compression
from trimaran.program.memory import CodecChoice, parse_codec

# ---------------------------------------------------------------------------------------------------------------------
# How a rank gets its batches: what was decided of it


MOST_WORKERS, MOST_AHEAD = 4096, 4096
"""Of each rank, in a plan that is run: sixteen workers for each core of a host of 256, and as many batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """How the ranks that read data get their microbatches. What a step trains on does not depend on it.

    Attributes:
        workers: processes of each rank that load while it trains; 0: its own thread loads
        ahead: microbatches that each worker has ready or under way; with workers only
        pinned: batches are put where a GPU can fetch them; without a GPU nothing is
        copies_ahead: microbatches that are on their way to the device before they are asked for
        cached: samples stay in the memory of the host after their first read, for all ranks of it

    Raises:
        InputError: a figure out of range
    """

    workers: int = 0
    ahead: int = 2
    pinned: bool = True
    copies_ahead: int = 0
    cached: bool = False

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("ahead", 1), ("copies_ahead", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"Feeding.{name} must be an integer of at least {least}, got {value!r}", value=value)

    @property
    def name(self) -> str:
        """Short form for names of strategies; empty for the default.

        Example:
            >>> Feeding().name, Feeding(workers=4, cached=True).name, Feeding(copies_ahead=1).name
            ('', 'w4 cached', 'c1')
        """
        parts = (
            f"w{self.workers}" if self.workers else "",
            f"a{self.ahead}" if self.workers and self.ahead != 2 else "",
            f"c{self.copies_ahead}" if self.copies_ahead else "",
            "cached" if self.cached else "",
        )
        return " ".join(part for part in parts if part)


def check_planned(feeding: Feeding, *, source: str) -> None:
    """Refuse what no host bears, before a run starts as many processes.

    Args:
        feeding: of a plan that was read
        source: of the plan

    Raises:
        InputError: more workers, or batches ahead, than that
    """
    for name, most in (("workers", MOST_WORKERS), ("ahead", MOST_AHEAD), ("copies_ahead", MOST_AHEAD)):
        value = getattr(feeding, name)
        if value > most:
            raise InputError(
                f"{source}: strategy.feeding.{name} is {value}, and a rank has at most {most}: take fewer, "
                "or plan again",
                code="strategy.too-many-workers",
                source=source,
                value=value,
                most=most,
            )


IN_LINE = Feeding()
"""Each rank's own thread loads, when a batch is needed."""

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "pipedream", "dualpipe", "dualpipev"]
"""Order of compute in a pipeline. "interleaved": several segments a stage, dealt in turn. "zero-bubble": backwards are
split into I and W, and the W fill what would be idle (ZB-H1). "pipedream": 1F1B without flushes, with weight stashing;
gradients are those of earlier weights, so it is taken only where a user names it. "dualpipe": microbatches enter from
both ends, and each rank holds two stages; "dualpipev": the same of stages that are folded, without a second copy. Both
are priced by the analytical model and have no program."""

PROGRAM_SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble", "pipedream")
"""Those that a program can have."""

STALE = "stale: not the training of one process"
"""What is said of a strategy with `Strategy.is_stale` wherever one is shown."""

Execution = Literal["eager", "compiled"]
Sync = Literal["all-reduce", "p2p", "hierarchical"]
"""How replicas stay alike. "all-reduce": gradients are summed on every rank, and every rank updates everything. "p2p":
each bucket has an owner, which sums its gradients, updates its weights, and hands them out. "hierarchical": summed on
every rank, within each node and then across nodes."""

ShardStyle = Literal["column", "row", "vocabulary", "sequence"]
"""How the parameters of an operation lie on the ranks of a tensor-parallel group.

"column": by output features, input whole, output split; "row": by input features, input split, output summed;
"vocabulary": an embedding or a classifier by entries of the vocabulary; "sequence": whole parameters, activations split
along the sequence (norms, dropouts). What has no style is computed whole by every rank.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some operations of the network that run as one segment.

    Attributes:
        ops: their ids, in the order of the graph
        row: the rank of a replica that runs them
    """

    ops: tuple[str, ...]
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """How one operation with parameters is sharded.

    Attributes:
        op: id of the operation
        style: how its parameters lie on the ranks of the group
    """

    op: str
    style: ShardStyle


ZeroStage = Literal[0, 1, 2, 3]
"""What is sharded over the replicas: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too."""


Recomputed = Literal["layers", "attention", "feed_forward", "norms", "activations", "up_projections", "second_products"]
"""What the backward of a transformer recomputes: whole layers; attention's probabilities; a feed-forward network
between its input and its output; outputs of norms; outputs of activation functions; up projections of latent
attention; every second product and all that is neither a product nor attention (torchtitan's "selective")."""


GradientType = Literal["fp32", "bf16"]
"""Of the gradients that microbatches add into and replicas exchange. Megatron has "fp32" in training with bf16 unless
told otherwise; with `grad_reduce_in_fp32=False` (NeMo's performance recipes) gradients are "bf16"."""

OptimizerState = Literal["fp32", "remainders", "bf16-moments", "precision-aware", "adam-8bit"]
"""What Adam keeps for a parameter that computes in 16 bits.

"fp32": a copy of the parameter and two moments in 32 bits. "remainders": of the copy only the 16 bits that the bf16
parameter lacks, so nothing is rounded. "bf16-moments": both moments in bf16. "precision-aware": both of these, as
Megatron's precision-aware optimizer with `--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16`. "adam-8bit": moments in 8 bits
with a scale for each block of 256.
"""

_GRADIENT_WORDS: dict[str, GradientType] = {f"{kind}-gradients": kind for kind in get_args(GradientType)}
_OPTIMIZER_WORDS: dict[str, OptimizerState] = {
    "fp32-optimizer" if kind == "fp32" else kind: kind for kind in get_args(OptimizerState)
}

SELECTIVE: frozenset[Recomputed] = frozenset({"attention"})
"""Megatron's selective recomputation: attention's core, which is large and cheap (Korthikanti et al., 2022, section
5)."""


Axis = Literal["tp", "cp", "dp", "pp"]
"""A kind of parallel degree by which ranks are numbered."""

RANK_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
"""The usual order in which ranks have the devices: those that share tensors are nearest, stages farthest apart. It is
the default of Megatron-LM ("tp-cp-ep-dp-pp"): ranks with different experts stand where replicas do."""


def read_rank_order(text: str, *, option: str = "--rank-order") -> tuple[Axis, ...]:
    """An order of ranks as it is written, the nearest first.

    Args:
        text: such as "tp,cp,dp,pp", or "tp-cp-ep-dp-pp" as Megatron-LM has it; degrees that it leaves out are 1
        option: that it was given to, for the message

    Raises:
        InputError: an unknown word, a word twice, or "ep" elsewhere than before "dp"

    Source:
        NVIDIA/Megatron-LM, megatron/core/parallel_state.py, `initialize_model_parallel(order=...)`.

    Example:
        >>> read_rank_order("tp-cp-ep-dp-pp"), read_rank_order("tp,pp,dp")
        (('tp', 'cp', 'dp', 'pp'), ('tp', 'pp', 'dp'))
    """
    words = [word.strip().lower() for word in re.split(r"[,\s-]+", text.strip())]
    unknown = [word for word in words if word not in (*RANK_ORDER, "ep")]
    if unknown or len(set(words)) < len(words):
        what = f'"{unknown[0]}" is no kind of degree' if unknown else "a kind of degree is named twice"
        raise InputError(
            f'{option} "{text}": {what}; expected an order of tp, cp, dp and pp, the nearest ranks first, such as '
            f'"{",".join(RANK_ORDER)}"',
            code="rank-order.malformed",
            value=text,
        )
    if "ep" in words and words[words.index("ep") + 1 : words.index("ep") + 2] != ["dp"]:
        raise InputError(
            f'{option} "{text}": ranks with different experts are replicas that stand next to each other, so "ep" '
            'comes right before "dp", or is left out',
            code="rank-order.experts-apart",
            value=text,
        )
    return tuple(axis for word in words for axis in RANK_ORDER if axis == word)


def missing_from_order(order: tuple[Axis, ...], sizes: Mapping[Axis, int]) -> tuple[Axis, ...]:
    """Kinds of degrees above 1 that an order leaves out.

    Example:
        >>> missing_from_order(("tp", "pp", "dp"), {"tp": 8, "cp": 2, "dp": 1, "pp": 4})
        ('cp',)
    """
    return tuple(axis for axis in RANK_ORDER if axis not in order and sizes[axis] > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Parallel degrees, and how layers and the batch are split.

    A program runs `dp`, `pp` and `tp`. What follows `zero` only the analytical model chooses (`pricing/analytical/`);
    a strategy with a program leaves it at its defaults.

    Attributes:
        dp: data-parallel replicas
        pp: rows of a replica: pipeline stages, or the ranks of a placement
        tp: ranks that share the tensors of a row
        chunks: segments of each pipeline stage; more than one where the schedule is interleaved
        microbatches: microbatches of a replica's share of the global batch; with one stage: gradient accumulation
        zero: what is sharded over the replicas: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too
        cp: ranks that share each sequence
        ep: ranks that hold different experts
        expert_tp: ranks that share each expert; None: those that share a layer
        gradients: their type; None: as the training program keeps them
        optimizer_state: what Adam keeps; None: as the training program does
        microbatch: sequences that a rank computes at once; a program has the shares of its batch instead
        sequence_parallel: what ranks of `tp` would all hold (norms, dropout, the residual stream) is sharded too
        recomputed: what the backward recomputes
        segment_layers: layers of each segment, in order, `pp * chunks` of them; empty: as even as can be
        microbatch_group: microbatches that a segment computes before the next one; 0: the number of stages
        recompute_layers: first layers of each segment that are recomputed, with "layers"; None: all
        shard_ranks: of the ranks of `dp * cp`, those that share one copy of sharded state ("HSDP"); None: all of them
        ulysses: ranks of `cp` exchange heads for parts of the sequence; else they gather keys and values
        tensor_overlap: exchanges of `tp` overlap products, by buffers of a whole stream; None: as the program does
        offload: the optimizer's state is in the memory of the host, which updates it
        schedule: order of forwards and backwards in a pipeline; with one stage it is microbatch by microbatch
        rank_order: kinds of degrees by which ranks have the devices, the nearest first; the others are 1
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    chunks: int = 1
    microbatches: int = 1
    zero: ZeroStage = 0
    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    gradients: GradientType | None = None
    optimizer_state: OptimizerState | None = None
    microbatch: int = 1
    sequence_parallel: bool = False
    recomputed: frozenset[Recomputed] = frozenset()
    segment_layers: tuple[int, ...] = ()
    microbatch_group: int = 0
    recompute_layers: int | None = None
    shard_ranks: int | None = None
    ulysses: bool = False
    tensor_overlap: bool | None = None
    offload: bool = False
    schedule: Schedule = "gpipe"
    rank_order: tuple[Axis, ...] = RANK_ORDER

    @property
    def devices(self) -> int:
        """Ranks that take part."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks that share each expert."""
        return self.tp if self.expert_tp is None else self.expert_tp

    @property
    def expert_data(self) -> int:
        """Replicas of each expert."""
        return self.dp * self.tp * self.cp // (self.ep * self.expert_ranks) or 1

    @property
    def state_ranks(self) -> int:
        """Ranks that share one copy of sharded state.

        Example:
            >>> Degrees(dp=16, cp=2).state_ranks, Degrees(dp=16, cp=2, shard_ranks=8).state_ranks
            (32, 8)
        """
        return self.dp * self.cp if self.shard_ranks is None else self.shard_ranks

    @property
    def expert_state_ranks(self) -> int:
        """The same of experts: their replicas are in as many groups."""
        return self.expert_data * self.state_ranks // (self.dp * self.cp) or 1


def devices_of_ranks(degrees: Degrees) -> tuple[int, ...]:
    """The device of each rank by `Degrees.rank_order`, where ranks are numbered in the usual order.

    Args:
        degrees: of the ranks

    Raises:
        InputError: a degree above 1 that the order leaves out

    Example:
        Two ranks a layer, two stages, two replicas; stages next to each other: replica 1 of the first stage (ranks 2
        and 3) has devices 4 and 5.

        >>> devices_of_ranks(Degrees(tp=2, pp=2, dp=2, rank_order=("tp", "pp", "dp")))
        (0, 1, 4, 5, 2, 3, 6, 7)
    """
    sizes: dict[Axis, int] = {"tp": degrees.tp, "cp": degrees.cp, "dp": degrees.dp, "pp": degrees.pp}
    missing = missing_from_order(degrees.rank_order, sizes)
    if missing:
        raise InputError(
            f"the order of ranks {'-'.join(degrees.rank_order)} leaves {missing[0]} out, which is {sizes[missing[0]]}: "
            "add it to the order",
            code="rank-order.incomplete",
            order=degrees.rank_order,
            missing=missing,
        )
    stride, step = dict.fromkeys(RANK_ORDER, 0), 1
    for axis in degrees.rank_order:
        stride[axis], step = step, step * sizes[axis]
    found = [0]
    for axis in RANK_ORDER:
        found = [number + index * stride[axis] for index in range(sizes[axis]) for number in found]
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(Degrees):
    """What was decided.

    Ranks are laid out so that what talks most sits closest: rank = (replica * pp + row) * tp + shard.

    Segments are either a chain, split at `boundaries`, of which row `s % pp` has segment `s` (with `chunks` > 1 a row
    has several); or any directed acyclic graph of `parts`, which says the row of each.

    Attributes:
        boundaries: last operation of every segment of a chain but the last (`Graph.split_points`): pp * chunks - 1
        parts: segments of a placement, in an order in which their forwards can run; empty: the segments are a chain
        backward_order: order of the backwards of a placement, by segment number; empty: that of the forwards, reversed
        bucket_bytes: size at which a bucket of gradients is sent [bytes]; 1: every parameter by itself
        execution: segments as they are, or each through torch.compile
        memory_bytes: memory in which a rank's step is made to fit by offloading and recomputing [bytes]; None: all that
            autograd saves is kept
        codec: may code what is offloaded within `memory_bytes`, where that is faster; None: bytes go as they are
        sync: how replicas stay alike; "p2p" and "hierarchical" are for whole networks (pp=1)
        nodes: that replicas are spread over, as many on each, in the order of ranks; counts with sync "hierarchical"
        units: modules that are gathered and freed as one, with zero=3 (or their gradients scattered, with 2); in the
            order of the forward
        shards: how operations are sharded over the ranks of a tensor-parallel group (tp > 1); or over the replicas
            (tp = 1): the replicas then gather each other's samples before the first of them, and every replica holds
            its share of these operations only
        device_order: number of the device of each rank; empty: rank r has device r
        compression: what gradients lose on their way between replicas; None: nothing. Only if the user opts in
        feeding: how ranks get their batches
    """

    boundaries: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    backward_order: tuple[int, ...] = ()
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    execution: Execution = "eager"
    memory_bytes: int | None = None
    codec: CodecChoice | None = None
    sync: Sync = "all-reduce"
    nodes: int = 1
    units: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()
    device_order: tuple[int, ...] = ()
    compression: Compression | None = None
    feeding: Feeding = IN_LINE

    def __hash__(self) -> int:
        """By the figures in which strategies of a search differ most: it asks for it very often."""
        counts = self.dp, self.pp, self.tp, self.cp, self.ep, self.chunks, self.microbatches
        return hash((*counts, self.zero, self.recompute_layers, self.boundaries))

    @property
    def is_stale(self) -> bool:
        """Whether gradients are those of earlier weights, which is not the training of one process.

        Example:
            >>> Strategy(pp=2, schedule="pipedream").is_stale, Strategy(pp=2, schedule="1f1b").is_stale
            (True, False)
        """
        return self.schedule == "pipedream" and self.pp > 1 and not self.parts

    @property
    def splits_sequences(self) -> bool:
        """Whether each rank of `tp` has a part of every sequence of what they would all hold.

        Example:
            >>> Strategy(tp=2, shards=(Shard(op="norm", style="sequence"),)).splits_sequences
            True
        """
        return self.sequence_parallel or any(shard.style == "sequence" for shard in self.shards)

    @property
    def segments(self) -> int:
        """Segments of the network."""
        return len(self.parts) or len(self.boundaries) + 1

    @property
    def rows(self) -> tuple[int, ...]:
        """For each segment, the row that has it.

        Example:
            >>> Strategy(pp=2, chunks=2, boundaries=("a", "b", "c"), schedule="interleaved").rows
            (0, 1, 0, 1)
        """
        if self.parts:
            return tuple(part.row for part in self.parts)
        return tuple(segment % self.pp for segment in range(self.segments))

    @property
    def name(self) -> str:
        """Short form for tables.

        Example:
            >>> Strategy(dp=2).name, Strategy(pp=2, boundaries=("conv2",), schedule="1f1b", microbatches=4).name
            ('dp2', 'pp2 1f1b m4')
            >>> Strategy(dp=2, microbatches=2, bucket_bytes=2**20).name
            'dp2 m2 b1MiB'
            >>> Strategy(dp=2, sync="p2p", bucket_bytes=1).name
            'dp2 p2p b1B'
            >>> Strategy(dp=4, sync="hierarchical", nodes=2).name
            'dp4 hierarchical'
            >>> Strategy(memory_bytes=12 * 2**30).name
            'one device in 12.0 GiB'
            >>> Strategy(memory_bytes=12 * 2**30, codec=parse_codec("sparse")).name
            'one device in 12.0 GiB codec:sparse'
            >>> Strategy(tp=2, shards=(Shard(op="norm", style="sequence"),)).name
            'tp2 sp'
            >>> Strategy(dp=2, pp=2, tp=4, schedule="interleaved", chunks=2, microbatches=8).name
            'dp2 pp2 interleaved x2 tp4 m8'
            >>> Strategy(pp=4, schedule="pipedream").name
            'pp4 pipedream stale'
            >>> Strategy(dp=8, zero=3).name, Strategy(pp=2, parts=(Part(ops=("a",), row=0),)).name
            ('dp8 zero3', 'placed on 2')
            >>> Strategy(dp=4, pp=2, cp=2, schedule="1f1b", zero=1, recomputed=frozenset({"layers"})).name
            'dp4 pp2 1f1b cp2 zero1 recompute'
            >>> Strategy(dp=2, compression=Compression(method="bf16"), feeding=Feeding(workers=2)).name
            'dp2 bf16 w2'
            >>> Strategy(dp=8, zero=1, gradients="bf16", optimizer_state="remainders").name
            'dp8 zero1 bf16-gradients remainders'
            >>> Strategy(dp=8, tp=4, ep=8, expert_tp=1, zero=1, shard_ranks=4, microbatch=2).name
            'dp8 tp4 ep8 etp1 zero1 hsdp4 mb2'
            >>> Strategy(pp=2, schedule="1f1b", recomputed=frozenset({"layers"}), recompute_layers=4).name
            'pp2 1f1b recompute:4'
            >>> Strategy(pp=4, schedule="1f1b", segment_layers=(3, 4, 4, 3)).name
            'pp4 1f1b layers:3+2*4+3'
        """
        parts = []
        if self.dp > 1:
            parts.append(f"dp{self.dp}")
        if self.parts:
            parts.append(f"placed on {self.pp}")
        elif self.pp > 1:
            parts.append(f"pp{self.pp} {self.schedule}{f' x{self.chunks}' if self.chunks > 1 else ''}")
            if self.is_stale:
                parts.append("stale")
        if self.tp > 1:
            # The analytical model splits sequences with every tp, where it is not told otherwise.
            parts.append(f"tp{self.tp}{' sp' if self.shards and self.splits_sequences else ''}")
        if self.cp > 1:
            parts.append(f"cp{self.cp}{' ulysses' if self.ulysses else ''}")
        if self.ep > 1:
            parts.append(f"ep{self.ep}")
        if self.expert_tp not in (None, self.tp):
            parts.append(f"etp{self.expert_tp}")
        if not parts:
            parts.append("one device")
        if self.dp > 1 and self.sync != "all-reduce":
            parts.append(self.sync)
        if self.zero:
            parts.append(f"zero{self.zero}")
        if self.shard_ranks is not None:
            parts.append(f"hsdp{self.shard_ranks}")
        if self.shards and self.tp == 1:
            parts.append("sharded classifier")
        if self.microbatches > 1:
            parts.append(f"m{self.microbatches}")
        if self.microbatch > 1:
            parts.append(f"mb{self.microbatch}")
        if self.dp > 1 and self.bucket_bytes != DEFAULT_BUCKET_BYTES:
            parts.append(f"b{_round_size(self.bucket_bytes)}")
        if self.compression is not None:
            parts.append(self.compression.name)
        if self.execution != "eager":
            parts.append(self.execution)
        parts += self._words
        if self.rank_order != RANK_ORDER:
            parts.append(f"order={'-'.join(self.rank_order)}")
        if self.memory_bytes is not None:
            parts.append(f"in {format_bytes(self.memory_bytes)}")
        if self.codec is not None:
            parts.append(f"codec:{self.codec.text}")
        if self.feeding.name:
            parts.append(self.feeding.name)
        return " ".join(parts)

    @property
    def _words(self) -> list[str]:
        """Of its name, those of what only the analytical model chooses, from recomputation on."""
        found = []
        if "layers" in self.recomputed:
            found.append("recompute" if self.recompute_layers is None else f"recompute:{self.recompute_layers}")
        elif self.recomputed:
            found.append(f"recompute:{'+'.join(sorted(self.recomputed))}")
        if self.segment_layers:
            found.append(f"layers:{_written_layers(self.segment_layers)}")
        if self.microbatch_group:
            found.append(f"group{self.microbatch_group}")
        if self.tensor_overlap is not None:
            found.append("tp-overlap" if self.tensor_overlap else "no-tp-overlap")
        found += [word for word, kind in _GRADIENT_WORDS.items() if kind == self.gradients]
        found += [word for word, kind in _OPTIMIZER_WORDS.items() if kind == self.optimizer_state]
        return [*found, "offload"] if self.offload else found


def _written_layers(layers: tuple[int, ...]) -> str:
    """Layers of segments, equal neighbours once.

    Example:
        >>> _written_layers((1, 2, 2, 2, 1)), _read_layers("1+3*2+1", "")
        ('1+3*2+1', (1, 2, 2, 2, 1))
    """
    runs = [(len(list(alike)), count) for count, alike in itertools.groupby(layers)]
    return "+".join(f"{number}*{count}" if number > 1 else str(count) for number, count in runs)


def _read_layers(text: str, name: str) -> tuple[int, ...]:
    """Layers of segments as `_written_layers` writes them."""
    found: list[int] = []
    for run in text.split("+"):
        text_of_number, times, text_of_count = run.rpartition("*")
        count = whole_number(text_of_count)
        number = whole_number(text_of_number, most=MOST_SEGMENTS) if times else 1
        if count is None or number is None:
            raise InputError(
                f'strategy "{name}": layers:{text} is not possible: write the layers of each segment, as in '
                "layers:3+2*4+3 for 3, 4, 4 and 3",
                code="strategy.bad-layers",
                strategy=name,
            )
        found += [count] * number
    return tuple(found)


MOST_SEGMENTS = 4096
"""Of equal neighbours, in a name."""


def _round_size(nbytes: int) -> str:
    """A size in the largest unit that leaves no fraction."""
    return next(f"{nbytes // size}{unit}" for unit, size in _UNITS if nbytes % size == 0)


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


_PHRASES = (
    (re.compile(r"\bone device\b"), ""),
    (re.compile(r"\bplaced on ([1-9][0-9]*)\b"), r"placed\1"),
    (re.compile(r"\bsharded classifier\b"), "sharded"),
    (re.compile(r"\bin ([0-9.]+) ?([KMGT]?i?B)\b"), r"in\1\2"),
    (re.compile(r"\(([1-9][0-9]*) chunks?\)"), r" vp\1"),
    (re.compile(r"\b([1-9][0-9]*) microbatch(?:es)? of ([1-9][0-9]*)\b"), r"m\1 mb\2"),
    (re.compile(r"\(([a-z]+[0-9]+)\)"), r" \1"),
    (re.compile(r"(?<=\s)x(?=\s)"), ""),
)
"""Parts of names of several words, and the one word that stands for each while a name is read."""

_FIGURES = {name: name for name in ("dp", "pp", "tp", "cp", "ep", "zero")} | {
    "m": "microbatches",
    "x": "chunks",
    "vp": "chunks",
    "mb": "microbatch",
    "etp": "expert_tp",
    "hsdp": "shard_ranks",
    "group": "microbatch_group",
}
_CHOICES: Mapping[str, tuple[str, object]] = {
    "ulysses": ("ulysses", True),
    "offload": ("offload", True),
    "tp-overlap": ("tensor_overlap", True),
    "no-tp-overlap": ("tensor_overlap", False),
    "sp": ("sequence_parallel", True),
    "no-sp": ("sequence_parallel", False),
    **{word: ("gradients", kind) for word, kind in _GRADIENT_WORDS.items()},
    **{word: ("optimizer_state", kind) for word, kind in _OPTIMIZER_WORDS.items()},
    **{
        word: (field, word)
        for field, words in (("schedule", Schedule), ("sync", Sync), ("execution", Execution))
        for word in get_args(words)
    },
}
"""Words that choose, with the field and its value."""

_FEEDING = {"w": "workers", "a": "ahead", "c": "copies_ahead"}
_FIGURE = re.compile(rf"({'|'.join((*_FIGURES, *_FEEDING))}|placed)([0-9]{{1,7}})")


def read_strategy(name: str) -> Strategy:
    """The strategy that a name says; what names leave out stays open: where stages are split, who has which operation.

    Args:
        name: as `Strategy.name` has it; words may also be separated by commas, as in tables of published runs. "vp"
            is another word for "x"

    Raises:
        InputError: a word that names do not have, a word twice, or a degree that is not possible

    Example:
        >>> read_strategy("dp2 pp4 1f1b m8").microbatches, read_strategy("one device").devices
        (8, 1)
        >>> for text in ("dp8 p2p zero1 b1MiB compiled", "pp2 interleaved x2 tp4", "dp2 powersgd-r4 w2 cached"):
        ...     assert read_strategy(text).name == text
        >>> read_strategy("pp4 pipedream").name, read_strategy("pp4 pipedream stale").pp
        ('pp4 pipedream stale', 4)
        >>> read_strategy("pp2 1f1b cp2 recompute").name
        'pp2 1f1b cp2 recompute'
        >>> read_strategy("pp2 1f1b m4 in 8.0 GiB codec:sparse:2.6").codec.ratio
        2.6
        >>> read_strategy("dp8 zero1 bf16-gradients adam-8bit").optimizer_state
        'adam-8bit'
        >>> read_strategy("tp8 cp2 pp9 vp7 dp4 zero1 mb2 recompute:attention").name
        'dp4 pp9 interleaved x7 tp8 cp2 zero1 mb2 recompute:attention'
        >>> read_strategy("tp4 x cp2 x pp8 (8 chunks) x dp8 (ep8), zero1, 128 microbatches of 1").name
        'dp8 pp8 interleaved x8 tp4 cp2 ep8 zero1 m128'
        >>> read_strategy("pp2 1f1b cp2 recompute order=tp-pp-cp").name
        'pp2 1f1b cp2 recompute order=tp-pp-cp'
    """
    return Strategy(**said_by(name))


def said_by(name: str) -> dict[str, Any]:
    """The fields of a strategy that a name says, a degree of 1 too where the name has it.

    Args:
        name: as for `read_strategy`

    Raises:
        InputError: as of `read_strategy`

    Example:
        >>> said_by("dp1 pp2 m4")
        {'dp': 1, 'pp': 2, 'microbatches': 4}
    """
    text = name.replace(",", " ")
    for phrase, word in _PHRASES:
        text = phrase.sub(word, text)
    found: dict[str, Any] = {}
    feeding: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for word in text.split():
        figure = _FIGURE.fullmatch(word)
        _check_word(word, figure, seen, name)
        if figure and figure[1] in _FIGURES:
            found[_FIGURES[figure[1]]] = int(figure[2])
        elif figure and figure[1] in _FEEDING:
            feeding[_FEEDING[figure[1]]] = int(figure[2])
        elif figure:
            found |= {"pp": int(figure[2]), "parts": tuple(Part(ops=(), row=row) for row in range(int(figure[2])))}
        elif word.partition(":")[0] == "recompute":
            found |= read_recompute(word.partition(":")[2] or "layers", name)
        elif word in _CHOICES:
            field, value = _CHOICES[word]
            found[field] = value
        elif word.startswith("layers:"):
            found["segment_layers"] = _read_layers(word.removeprefix("layers:"), name)
        elif word.startswith("order="):
            found["rank_order"] = read_rank_order(word.removeprefix("order="), option=f'strategy "{name}"')
        elif word.startswith("codec:"):
            found["codec"] = parse_codec(word.removeprefix("codec:"))
        elif word == "cached":
            feeding["cached"] = True
        elif word == "stale":
            _check_stale(name)
        elif word == "sharded":
            found["shards"] = (Shard(op="", style="vocabulary"),)
        elif word.startswith("in") and word[2:3].isdigit():
            found["memory_bytes"] = parse_bytes(word[2:])
        elif word[:1] == "b" and word[1:2].isdigit():
            found["bucket_bytes"] = parse_bytes(word[1:])
        else:
            found["compression"] = _read_method(word, name)
    if "codec" in found and "memory_bytes" not in found:
        raise codec_without_memory(name, found["codec"])
    if found.get("chunks", 1) > 1 and "schedule" not in found:
        found["schedule"] = "interleaved"
    return found | {"feeding": Feeding(**feeding)} if feeding else found


def codec_without_memory(name: str, codec: CodecChoice) -> InputError:
    """The refusal of a codec where no memory plan is.

    Args:
        name: of the strategy
        codec: that it has
    """
    return InputError(
        f'strategy "{name}": the codec {codec.text} codes what a memory plan offloads, and there is none without a '
        'budget: say it, as in "in 8GiB codec:sparse", or leave the codec out',
        code="strategy.codec-without-memory",
        codec=codec.text,
    )


def read_recompute(text: str, name: str = "") -> dict[str, Any]:
    """What a backward recomputes, as the fields of `Degrees` that say it.

    Args:
        text: "none", "layers", a number of layers of each segment (stage, or chunk of one), alone or as in "layers:4",
            "selective" for attention's core (`SELECTIVE`), or kinds of `Recomputed` joined by "+"
        name: of the strategy, for the message

    Raises:
        InputError: another word

    Example:
        >>> sorted(read_recompute("attention+norms")["recomputed"]), read_recompute("layers:4")["recompute_layers"]
        (['attention', 'norms'], 4)
    """
    number = whole_number(text.removeprefix("layers:"), least=1)
    if number is not None:
        return {"recomputed": frozenset({"layers"}), "recompute_layers": number}
    if text == "none":
        return {"recomputed": frozenset()}
    kinds = SELECTIVE if text == "selective" else frozenset(text.split("+"))
    if not kinds <= frozenset(get_args(Recomputed)) or ("layers" in kinds and len(kinds) > 1):
        of = f'strategy "{name}": ' if name else ""
        raise InputError(
            f'{of}"{text}" is nothing that a backward recomputes: write none, selective, layers, layers:N for the '
            f"first N layers of each stage or chunk, or some of {', '.join(get_args(Recomputed)[1:])}, joined by +",
            code="strategy.unknown-recompute",
            value=text,
        )
    return {"recomputed": kinds}


def _check_word(word: str, figure: re.Match[str] | None, seen: dict[str, str], name: str) -> None:
    """Refuse a degree of 0, an unknown level of ZeRO, and a second word of a kind; `seen` has the words by kind."""
    reason = ""
    if figure and figure[1] == "zero" and int(figure[2]) > max(get_args(ZeroStage)):
        reason = "levels of ZeRO are 0 to 3"
    elif figure and figure[1] in {*_FIGURES, "placed"} - {"zero", "group"} and not int(figure[2]):
        reason = "degrees start at 1"
    elif figure and figure[1] == "placed" and int(figure[2]) > MOST_SEGMENTS:
        reason = f"operations are placed on {MOST_SEGMENTS} devices at most"
    if reason:
        raise InputError(
            f'strategy "{name}": {word} is not possible: {reason}',
            code="strategy.impossible-degree",
            strategy=name,
            word=word,
        )
    choice = _CHOICES[word][0] if word in _CHOICES else word.partition(":")[0].partition("=")[0]
    kind = _FIGURES.get(figure[1], figure[1]) if figure else choice
    if kind in seen:
        raise InputError(
            f'strategy "{name}" has both {seen[kind]} and {word}: leave one out',
            code="strategy.word-twice",
            strategy=name,
            word=word,
        )
    seen[kind] = word


def _check_stale(name: str) -> None:
    """Refuse the word "stale" of a schedule that is not."""
    if "pipedream" not in name.replace(",", " ").split():
        raise InputError(
            f'strategy "{name}": only the schedule pipedream is stale, as in "pp2 pipedream stale"; leave the word out',
            code="strategy.not-stale",
            strategy=name,
        )


def _read_method(word: str, name: str) -> Compression | None:
    try:
        return parse_compression(word)
    except InputError:
        raise InputError(
            f'strategy "{name}": "{word}" is no word of a strategy; a name is written as plans print it, such as '
            '"dp8 zero1 m2" or "dp2 pp4 1f1b m8"',
            code="strategy.unknown-word",
            strategy=name,
            word=word,
        ) from None


STRATEGY_WORDS = (
    ("dp", "data-parallel replicas"),
    ("pp", "pipeline stages, with the schedule behind"),
    ("x", "parts of the layers on each stage"),
    ("etp", "ranks that share each expert"),
    ("hsdp", "ranks that share one copy of sharded state"),
    ("mb", "sequences of a microbatch"),
    ("tp", "tensor-parallel ranks"),
    ("sp", "sequences split over them between their shared layers"),
    ("cp", "ranks that share a sequence"),
    ("ep", "ranks with different experts"),
    ("zero", "ZeRO level"),
    ("m", "microbatches of a replica"),
    ("b", "size of a bucket of gradients"),
    ("w", "loader processes of a rank"),
    ("c", "microbatches copied ahead"),
)
"""Abbreviations in names of strategies, and what they stand for."""


def strategy_legend(names: Iterable[str]) -> str:
    """The abbreviations of some strategies, spelled out once; "" where there are none.

    Example:
        >>> strategy_legend(["dp8 zero1", "one device"])
        'dp: data-parallel replicas; zero: ZeRO level'
        >>> strategy_legend(["tp2 sp"])
        'tp: tensor-parallel ranks; sp: sequences split over them between their shared layers'
    """
    known = list(names)
    used = {match[1] for name in known for match in re.finditer(r"\b(sp\b|[a-z]+(?=[0-9]))", name)}
    spelled = [f"{word}: {meaning}" for word, meaning in STRATEGY_WORDS if word in used]
    return "; ".join([*spelled, STALE] if any("stale" in name.split() for name in known) else spelled)


def stale_note(strategy: Strategy) -> str:
    """What is said of a stale strategy wherever it is shown.

    Args:
        strategy: with `is_stale`

    Example:
        >>> stale_note(Strategy(pp=2, schedule="pipedream"))[:47]
        'pp2 pipedream is stale: not the training of one'
    """
    most = strategy.pp - 1
    lacking = "the last update" if most == 1 else f"the last {most} updates"
    return (
        f"{strategy.name.replace(' stale', '')} is {STALE}. The first stage computes gradients by weights without "
        f"{lacking}, so a target may take other epochs, or never be reached"
    )


def splits_batches(strategy: Strategy) -> bool:
    """Whether the loss of a global batch is put together from those of parts.

    Args:
        strategy: what is run
    """
    return strategy.dp * strategy.microbatches > 1


def needs_graph(strategy: Strategy) -> bool:
    """Whether the network is split, or its parameters told apart; plain replicas run the user's model as it is.

    Args:
        strategy: what is run
    """
    split = strategy.pp * strategy.tp > 1 or bool(strategy.parts) or bool(strategy.shards)
    return split or strategy.zero > 0 or strategy.sync == "p2p"


def is_plain_data_parallel(strategy: Strategy) -> bool:
    """Whether a strategy is what DDP does: whole replicas on all devices, with nothing sharded or compressed.

    Args:
        strategy: any

    Example:
        >>> is_plain_data_parallel(Strategy(dp=4, microbatches=2)), is_plain_data_parallel(Strategy(dp=4, zero=1))
        (True, False)
    """
    kept = strategy.dp == strategy.devices and not strategy.zero and not strategy.shards and not strategy.parts
    return kept and strategy.compression is None
