"""Strategy: what was decided, before it is lowered to a program."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
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
        sequence_parallel: what ranks of `tp` would all hold (norms, dropout, the residual stream) is sharded too; None:
            as `shards` say
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
    sequence_parallel: bool | None = None
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
        return bool(self.sequence_parallel) or any(shard.style == "sequence" for shard in self.shards)

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
            'tp2'
            >>> Strategy(tp=2, sequence_parallel=False).name
            'tp2 no-sp'
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
        return " ".join(filter(None, (row.written(self) for row in _ROWS)))


def _written_layers(layers: tuple[int, ...]) -> str:
    """Layers of segments, equal neighbours once.

    Example:
        >>> _written_layers((1, 2, 2, 2, 1)), _read_layers("1+3*2+1")
        ('1+3*2+1', (1, 2, 2, 2, 1))
    """
    runs = [(len(list(alike)), count) for count, alike in itertools.groupby(layers)]
    return "+".join(f"{number}*{count}" if number > 1 else str(count) for number, count in runs)


def _read_layers(text: str) -> tuple[int, ...]:
    """Layers of segments as `_written_layers` writes them; a ValueError with the reason where they are not."""
    found: list[int] = []
    for run in text.split("+"):
        text_of_number, times, text_of_count = run.rpartition("*")
        count = whole_number(text_of_count)
        number = whole_number(text_of_number, most=MOST_SEGMENTS) if times else 1
        if count is None or number is None:
            raise ValueError("write the layers of each segment, as in layers:3+2*4+3 for 3, 4, 4 and 3")
        found += [count] * number
    return tuple(found)


MOST_SEGMENTS = 4096
"""Of a placement, and of equal neighbours in a name."""


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


@dataclass(frozen=True, slots=True)
class _Row:
    """A word of names.

    Attributes:
        field: of the strategy, or of its feeding; a name has one word of a field
        pattern: what is such a word; the text of its last group is read, or the whole of it
        read: fields and their values, of that text; a ValueError says why there are none
        written: a strategy's word; "": its name has none
        letters: before a figure
        meaning: of the letters, in a legend
    """

    field: str
    pattern: "re.Pattern[str]"
    read: Callable[[str], dict[str, Any]]
    written: Callable[[Strategy], str]
    letters: str = ""
    meaning: str = ""


def _figure(
    letters: str,
    field: str,
    meaning: str = "",
    *,
    value: Callable[[Strategy], int] | None = None,
    when: Callable[[Strategy], bool] | None = None,
    least: int = 1,
    reads: Callable[[int], dict[str, Any]] | None = None,
) -> _Row:
    """Letters with a whole number, told where it is above 1; the first of several words is the one that is written."""
    own = value or (lambda strategy: getattr(strategy, field))
    told = when or (lambda strategy: own(strategy) > 1)
    first = letters.partition("|")[0]

    def read(text: str) -> dict[str, Any]:
        if int(text) < least:
            raise ValueError(f"it starts at {least}")
        return reads(int(text)) if reads else {field: int(text)}

    pattern = re.compile(rf"(?:{letters})([0-9]{{1,7}})")
    return _Row(
        field, pattern, read, lambda strategy: f"{first}{own(strategy)}" if told(strategy) else "", first, meaning
    )


def _choice(
    field: str,
    words: Mapping[str, Any],
    *,
    when: Callable[[Strategy], bool] = lambda _: True,
    letters: str = "",
    meaning: str = "",
) -> _Row:
    """One word for each value, told where it says something."""
    of = {value: word for word, value in words.items()}
    return _Row(
        field,
        re.compile("|".join(map(re.escape, words))),
        lambda word: {field: words[word]},
        lambda strategy: of.get(getattr(strategy, field), "") if when(strategy) else "",
        letters,
        meaning,
    )


def _same(words: Iterable[str]) -> dict[str, str]:
    return {word: word for word in words}


def _placed(devices: int) -> dict[str, Any]:
    if devices > MOST_SEGMENTS:
        raise ValueError(f"operations are placed on {MOST_SEGMENTS} devices at most")
    return {"pp": devices, "parts": tuple(Part(ops=(), row=row) for row in range(devices))}


def _zero(level: int) -> dict[str, Any]:
    if level > max(get_args(ZeroStage)):
        raise ValueError("levels of ZeRO are 0 to 3")
    return {"zero": level}


def _written_recompute(strategy: Strategy) -> str:
    if "layers" in strategy.recomputed:
        return "recompute" if strategy.recompute_layers is None else f"recompute:{strategy.recompute_layers}"
    return f"recompute:{'+'.join(sorted(strategy.recomputed))}" if strategy.recomputed else ""


def _is_pipeline(strategy: Strategy) -> bool:
    return strategy.pp > 1 and not strategy.parts


def _has_degrees(strategy: Strategy) -> bool:
    apart = strategy.expert_tp not in (None, strategy.tp)
    return strategy.devices * strategy.ep > 1 or bool(strategy.parts) or apart


_ROWS = (
    _figure("dp", "dp", "data-parallel replicas"),
    _Row(
        "pp",
        re.compile(r"placed([0-9]{1,7})"),
        lambda text: _placed(int(text)),
        lambda strategy: f"placed on {strategy.pp}" if strategy.parts else "",
    ),
    _figure("pp", "pp", "pipeline stages, with the schedule behind", when=_is_pipeline),
    _choice("schedule", _same(get_args(Schedule)), when=_is_pipeline),
    _figure(
        "x|vp",
        "chunks",
        "parts of the layers on each stage",
        when=lambda strategy: _is_pipeline(strategy) and strategy.chunks > 1,
    ),
    _Row("stale", re.compile("stale"), lambda _: {}, lambda strategy: "stale" if strategy.is_stale else ""),
    _figure("tp", "tp", "tensor-parallel ranks"),
    # With tp sequences are split wherever network and software can.
    _Row(
        "sequence_parallel",
        re.compile("(?:no-)?sp"),
        lambda word: {"sequence_parallel": word == "sp"},
        lambda strategy: (
            "no-sp" if strategy.tp > 1 and strategy.sequence_parallel is False and not strategy.splits_sequences else ""
        ),
        "sp",
        "sequences split over them between their shared layers",
    ),
    _figure("cp", "cp", "ranks that share a sequence"),
    _choice("ulysses", {"ulysses": True}, when=lambda strategy: strategy.cp > 1),
    _figure("ep", "ep", "ranks with different experts"),
    _figure(
        "etp",
        "expert_tp",
        "ranks that share each expert",
        when=lambda strategy: strategy.expert_tp not in (None, strategy.tp),
    ),
    _Row("", re.compile("one device"), lambda _: {}, lambda strategy: "" if _has_degrees(strategy) else "one device"),
    _choice("sync", _same(get_args(Sync)), when=lambda strategy: strategy.dp > 1 and strategy.sync != "all-reduce"),
    _figure("zero", "zero", "ZeRO level", when=lambda strategy: strategy.zero > 0, least=0, reads=_zero),
    _figure(
        "hsdp",
        "shard_ranks",
        "ranks that share one copy of sharded state",
        when=lambda strategy: strategy.shard_ranks is not None,
    ),
    _Row(
        "shards",
        re.compile("sharded"),
        lambda _: {"shards": (Shard(op="", style="vocabulary"),)},
        lambda strategy: "sharded classifier" if strategy.shards and strategy.tp == 1 else "",
    ),
    _figure("m", "microbatches", "microbatches of a replica"),
    _figure("mb", "microbatch", "sequences of a microbatch"),
    _Row(
        "bucket_bytes",
        re.compile("b([0-9].*)"),
        lambda text: {"bucket_bytes": parse_bytes(text)},
        lambda strategy: (
            f"b{_round_size(strategy.bucket_bytes)}"
            if strategy.dp > 1 and strategy.bucket_bytes != DEFAULT_BUCKET_BYTES
            else ""
        ),
        "b",
        "size of a bucket of gradients",
    ),
    _Row(
        "compression",
        re.compile("(?i:none|bf16|fp16|powersgd.*)"),
        lambda text: {"compression": parse_compression(text)},
        lambda strategy: strategy.compression.name if strategy.compression is not None else "",
    ),
    _choice("execution", _same(get_args(Execution)), when=lambda strategy: strategy.execution != "eager"),
    _Row(
        "recomputed",
        re.compile("recompute(?::(.*))?"),
        lambda text: read_recompute(text.removeprefix("recompute") or "layers"),
        _written_recompute,
    ),
    _Row(
        "segment_layers",
        re.compile("layers:(.*)"),
        lambda text: {"segment_layers": _read_layers(text)},
        lambda strategy: f"layers:{_written_layers(strategy.segment_layers)}" if strategy.segment_layers else "",
    ),
    _figure("group", "microbatch_group", when=lambda strategy: strategy.microbatch_group > 0, least=0),
    _choice("tensor_overlap", {"tp-overlap": True, "no-tp-overlap": False}),
    _choice("gradients", {f"{kind}-gradients": kind for kind in get_args(GradientType)}),
    _choice(
        "optimizer_state",
        {"fp32-optimizer" if kind == "fp32" else kind: kind for kind in get_args(OptimizerState)},
    ),
    _choice("offload", {"offload": True}),
    _Row(
        "rank_order",
        re.compile("order=(.*)"),
        lambda text: {"rank_order": read_rank_order(text, option="order")},
        lambda strategy: f"order={'-'.join(strategy.rank_order)}" if strategy.rank_order != RANK_ORDER else "",
    ),
    _Row(
        "memory_bytes",
        re.compile("in([0-9].*)"),
        lambda text: {"memory_bytes": parse_bytes(text)},
        lambda strategy: f"in {format_bytes(strategy.memory_bytes)}" if strategy.memory_bytes is not None else "",
    ),
    _Row(
        "codec",
        re.compile("codec:(.*)"),
        lambda text: {"codec": parse_codec(text)},
        lambda strategy: f"codec:{strategy.codec.text}" if strategy.codec is not None else "",
    ),
    _figure(
        "w",
        "workers",
        "loader processes of a rank",
        value=lambda strategy: strategy.feeding.workers,
        when=lambda strategy: strategy.feeding.workers > 0,
        least=0,
    ),
    _figure(
        "a",
        "ahead",
        value=lambda strategy: strategy.feeding.ahead,
        when=lambda strategy: strategy.feeding.workers > 0 and strategy.feeding.ahead != 2,
    ),
    _figure(
        "c",
        "copies_ahead",
        "microbatches copied ahead",
        value=lambda strategy: strategy.feeding.copies_ahead,
        when=lambda strategy: strategy.feeding.copies_ahead > 0,
        least=0,
    ),
    _Row(
        "cached",
        re.compile("cached"),
        lambda _: {"cached": True},
        lambda strategy: "cached" if strategy.feeding.cached else "",
    ),
)
"""The grammar: names have these words in this order, and are read in any."""

_FEEDING = {"workers", "ahead", "copies_ahead", "cached"}


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
    seen: dict[str, str] = {}
    for word in text.split():
        row, match = next(((row, match) for row in _ROWS if (match := row.pattern.fullmatch(word))), (None, None))
        if row is None or match is None:
            raise InputError(
                f'strategy "{name}": "{word}" is no word of a strategy; a name is written as plans print it, such as '
                '"dp8 zero1 m2" or "dp2 pp4 1f1b m8"',
                code="strategy.unknown-word",
                strategy=name,
                word=word,
            )
        if row.field in seen:
            raise InputError(
                f'strategy "{name}" has both {seen[row.field]} and {word}: leave one out',
                code="strategy.word-twice",
                strategy=name,
                word=word,
            )
        seen[row.field] = word
        try:
            found |= row.read(match[match.lastindex or 0])
        except InputError:
            raise
        except ValueError as reason:
            raise InputError(
                f'strategy "{name}": {word} is not possible: {reason}',
                code="strategy.impossible-degree",
                strategy=name,
                word=word,
            ) from None
    _check_together(name, found, seen)
    if found.get("chunks", 1) > 1 and "schedule" not in found:
        found["schedule"] = "interleaved"
    feeding = {field: found.pop(field) for field in _FEEDING & found.keys()}
    return found | {"feeding": Feeding(**feeding)} if feeding else found


def _check_together(name: str, found: Mapping[str, Any], seen: Mapping[str, str]) -> None:
    """Refuse a word that needs another one, which the name lacks."""
    if "codec" in found and "memory_bytes" not in found:
        raise codec_without_memory(name, found["codec"])
    if "stale" in seen and found.get("schedule") != "pipedream":
        raise InputError(
            f'strategy "{name}": only the schedule pipedream is stale, as in "pp2 pipedream stale"; leave the word out',
            code="strategy.not-stale",
            strategy=name,
        )


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


def read_recompute(text: str) -> dict[str, Any]:
    """What a backward recomputes, as the fields of `Degrees` that say it.

    Args:
        text: "none", "layers", a number of layers of each segment (stage, or chunk of one), alone or as in "layers:4",
            "selective" for attention's core (`SELECTIVE`), or kinds of `Recomputed` joined by "+"

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
        raise InputError(
            f'"{text}" is nothing that a backward recomputes: write none, selective, layers, layers:N for the '
            f"first N layers of each stage or chunk, or some of {', '.join(get_args(Recomputed)[1:])}, joined by +",
            code="strategy.unknown-recompute",
            value=text,
        )
    return {"recomputed": kinds}


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
    spelled = [f"{row.letters}: {row.meaning}" for row in _ROWS if row.meaning and row.letters in used]
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
