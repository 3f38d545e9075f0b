"""Decisions of the user before the search: degrees, kinds of parallelism to use or not, modules on a row.

A strategy that violates a pin is not searched. The cost of a pin is found by searching without it (`search.py`).
Gradients that are sent with loss are opt-in, given in general ("--allow compress") or to one method. So are gradients
of earlier weights ("--allow stale", "--schedule pipedream").

The kinds of parallelism that a strategy uses, by the words that people pin, forbid and ask about.

dp           replicas            pp           stages of a chain       tp           sharded operations
placement    branches on ranks   zero         sharded state           sharded      a classifier over the replicas
p2p          owners of gradients  interleaved, zero-bubble, gpipe, 1f1b    the order of a pipeline
compiled     by torch.compile    memory       offloading and recomputing
hierarchical gradients summed within nodes, and then across them
compress     gradients are sent with loss; opt-in
stale        gradients are those of earlier weights (PipeDream); opt-in
dualpipe     microbatches that enter a pipeline from both ends; opt-in, as few frameworks have it
optimizer-offload   the optimizer's state in the memory of the host; opt-in
cache        samples that the host keeps after their first read
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, parse_large, whole_number
from trimaran.graph.types import Graph
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, Compression, parse_compression
from trimaran.program.memory import CodecChoice, parse_codec
from trimaran.program.strategy import (
    IN_LINE,
    RANK_ORDER,
    Axis,
    Feeding,
    GradientType,
    OptimizerState,
    Schedule,
    Strategy,
    ZeroStage,
    read_rank_order,
    read_recompute,
    read_strategy,
    said_by,
)

SPREADING: tuple[str, ...] = ("dp", "pp", "tp", "placement", "zero", "sharded", "p2p", "hierarchical")
"""Kinds that spread a network or its state over devices."""

ORDERS: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
"""Kinds of order in a pipeline."""

PLAIN_ORDERS: frozenset[str] = frozenset({"gpipe", "1f1b"})
"""Orders with one segment a stage and whole backwards: the meaning of "a pipeline" without further options."""

SPECIAL: tuple[str, ...] = ("dualpipe", "optimizer-offload")
"""Kinds that few frameworks have, of the analytical model alone: `--allow` opts in and restricts nothing."""

OPT_INS: tuple[str, ...] = ("compress", "stale", *SPECIAL)
"""Kinds that are used only where they are allowed by name, which restricts nothing."""

KINDS: tuple[str, ...] = (*SPREADING, *ORDERS, "compiled", "memory", "compress", "stale", "cache", *SPECIAL)
"""All of them."""

OTHER_NAMES = {
    "fsdp": "zero",
    "fsdp2": "zero",
    "ddp": "dp",
    "tensor": "tp",
    "pipeline": "pp",
    "placed": "placement",
    "interleaving": "interleaved",
    "zb": "zero-bubble",
    "offload": "memory",
    "recompute": "memory",
    "compression": "compress",
    "pipedream": "stale",
    "asynchronous": "stale",
    "cached": "cache",
}
"""Other names of them."""

_OF_NO_DEGREE = frozenset({"p2p", "hierarchical", "sharded", "placement", "compiled"})

# These are ways to run replicas.
_OF_REPLICAS = frozenset({"zero", "sharded", "p2p", "hierarchical"})


def kinds_of(strategy: Strategy) -> frozenset[str]:
    """The kinds of parallelism that a strategy uses.

    Example:
        >>> sorted(kinds_of(Strategy(dp=2, zero=3))), sorted(kinds_of(Strategy()))
        (['dp', 'zero'], [])
    """
    staged = strategy.pp > 1 and not strategy.parts
    held = {
        "dp": strategy.dp > 1,
        "pp": staged,
        "tp": strategy.tp > 1,
        "placement": bool(strategy.parts),
        "zero": strategy.zero > 0,
        "sharded": bool(strategy.shards) and strategy.tp == 1,
        "p2p": strategy.sync == "p2p" and strategy.dp > 1,
        "hierarchical": strategy.sync == "hierarchical",
        "compiled": strategy.execution == "compiled",
        "memory": strategy.memory_bytes is not None,
        "compress": strategy.compression is not None,
        "stale": strategy.is_stale,
        "cache": strategy.feeding.cached,
        "dualpipe": staged and strategy.schedule in ("dualpipe", "dualpipev"),
        "optimizer-offload": strategy.offload,
    } | {order: staged and strategy.schedule == order for order in ORDERS}
    return frozenset(kind for kind, holds in held.items() if holds)


def spreading(strategy: Strategy) -> frozenset[str]:
    """The kinds by which a strategy is spread over devices; replicas count only where nothing else needs them.

    Example:
        >>> sorted(spreading(Strategy(dp=2, zero=3))), sorted(spreading(Strategy(dp=2)))
        (['zero'], ['dp'])
    """
    held = kinds_of(strategy) & frozenset(SPREADING)
    return held - {"dp"} if held & _OF_REPLICAS else held


def read_kinds(names: Iterable[str], *, option: str) -> tuple[str, ...]:
    """Kinds as they are written on the command line.

    Args:
        names: words, several of them separated by commas
        option: that they were given to, for the message

    Raises:
        InputError: an unknown kind, with similar names

    Example:
        >>> read_kinds(["pp,fsdp", "TP"], option="--forbid")
        ('pp', 'tp', 'zero')
    """
    found = set()
    for name in (part.strip().lower() for text in names for part in text.split(",")):
        kind = OTHER_NAMES.get(name, name)
        if kind not in KINDS:
            near = difflib.get_close_matches(name, (*KINDS, *OTHER_NAMES), n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise InputError(
                f'{option}: no kind of parallelism is called "{name}"; {hint}choose among {", ".join(KINDS)}',
                code="plan.unknown-kind",
                value=name,
            )
        found.add(kind)
    return tuple(sorted(found))


DEGREES: tuple[str, ...] = (
    *("dp", "pp", "tp", "cp", "ep", "etp", "chunks", "zero", "microbatches", "microbatch", "recompute"),
    *("schedule", "nodes", "compression", "codec", "workers"),
)
"""Properties of a strategy that can be pinned by value."""

_OPTIONS = {"chunks": "vp", "microbatch": "micro-batch"}
"""Options of another name than the property that they pin."""

_PROPERTIES = {option.replace("-", "_"): name for name, option in _OPTIONS.items()}

_BY_DEGREE = frozenset({"dp", "pp", "tp", "zero", "cp", "ep"})

OPT_IN = "--allow compress"
"""Lets a plan compress gradients with loss; it stands for no restriction to that kind."""

NO_OPT_IN = f"the lack of {OPT_IN}"
"""The objection to a strategy with compressed gradients without opt-in."""


STALE_OPT_IN = "--allow stale"
"""Lets a plan train by gradients of earlier weights; it stands for no restriction to that kind."""

NO_STALE_OPT_IN = f"the lack of {STALE_OPT_IN}"
"""The objection to a stale strategy without opt-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Decisions of the user.

    Attributes:
        keep: modules, each with the row of a replica that must run their operations
        forbid: kinds of parallelism that are not used
        allow: kinds of parallelism that may be used; empty: all. One device always may
        dp: data-parallel replicas; None: free, as for the others
        pp: rows of a replica
        tp: ranks that share the tensors of a row
        zero: state that is sharded over the replicas
        microbatches: of a replica's share
        schedule: of a pipeline
        nodes: over which replicas sum their gradients hierarchically; 1: they do not
        compress: gradients may be sent with loss
        stale: gradients may be those of earlier weights; the schedule "pipedream" opts in too
        compression: of gradients, as it is written on the command line; a method opts in, "none" is no method
        codec: by which memory plans may code what they offload, as it is written on the command line
        powersgd_samples: times the samples that PowerSGD needs to the target; None: as on built-in jobs. It is a figure
            and forbids nothing
        workers: processes of each rank that load; how ranks are fed is chosen last, so no strategy violates it
        cp: ranks that share each sequence; only the analytical model chooses this and the following degrees
        ep: ranks that hold different experts
        etp: ranks that share each expert
        chunks: parts of the layers on each stage
        microbatch: sequences of a microbatch
        recompute: what the backward computes again: "none", "selective" (some of it, never whole layers), "layers",
            "layers:N", or kinds of `Recomputed` joined by "+"
        gradients: their type; only the analytical model has this and the following one
        optimizer_state: what Adam keeps
        bucket_bytes: size at which a bucket of gradients is sent [bytes]
        strategy: name of the whole strategy, where that was pinned; the other pins then follow from it
        held: kinds that it has and no degree says, such as "p2p"
        sequence_parallel: whether the residual stream is sharded over `tp` too
        special: kinds of `SPECIAL` that may be used
        shard_ranks: ranks that share one copy of sharded state
        ulysses: whether ranks that share a sequence exchange heads
        tensor_overlap: whether exchanges of `tp` overlap products
        offload: whether the optimizer's state is on the host
        segment_layers: layers of each segment; empty: as even as can be
        microbatch_group: microbatches that a chunk computes before the next one
        rank_order: kinds of degrees by which ranks have the devices, the nearest first; None: the usual order
    """

    keep: tuple[tuple[str, int], ...] = ()
    forbid: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    zero: ZeroStage | None = None
    microbatches: int | None = None
    schedule: Schedule | None = None
    nodes: int | None = None
    compress: bool = False
    stale: bool = False
    compression: str | None = None
    codec: str | None = None
    powersgd_samples: float | None = None
    workers: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    chunks: int | None = None
    microbatch: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    gradients: GradientType | None = None
    optimizer_state: OptimizerState | None = None
    bucket_bytes: int | None = None
    strategy: str = ""
    held: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    shard_ranks: int | None = None
    ulysses: bool | None = None
    tensor_overlap: bool | None = None
    offload: bool | None = None
    segment_layers: tuple[int, ...] | None = None
    microbatch_group: int | None = None
    rank_order: tuple[Axis, ...] | None = None

    @property
    def method(self) -> Compression | None:
        """The method that is asked for; None: none is."""
        return None if self.compression is None else parse_compression(self.compression)

    @property
    def codec_choice(self) -> CodecChoice | None:
        """The codec of memory plans; None: bytes go as they are."""
        return None if self.codec is None else parse_codec(self.codec)

    @property
    def allows_compression(self) -> bool:
        """Whether gradients may be sent with loss."""
        return self.method is not None or (self.compress and self.compression is None)

    @property
    def allows_stale(self) -> bool:
        """Whether gradients may be those of earlier weights."""
        return (self.stale or self.schedule == "pipedream") and "stale" not in self.forbid

    @property
    def names(self) -> tuple[str, ...]:
        """Each pin as it is written on the command line.

        Example:
            >>> Pins(keep=(("layer4", 1),), forbid=("pp",), tp=2).names
            ('--keep layer4=1', '--forbid pp', '--tp 2')
        """
        if self.strategy:
            return (f"--strategy {self.strategy}", *self._besides_strategy().names)
        return tuple(text for text, _ in self._each())

    def _each(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each pin as it is written on the command line, with what changes without it; a whole strategy is left out."""
        for one in self.keep:
            yield f"--keep {one[0]}={one[1]}", {"keep": tuple(other for other in self.keep if other != one)}
        for kind in self.forbid:
            yield f"--forbid {kind}", {"forbid": tuple(other for other in self.forbid if other != kind)}
        for option, value in self.types.items():
            yield f"--{option} {value}", {option.replace("-", "_"): None}
        if self.allow:
            yield f"--allow {','.join(self.allow)}", {"allow": ()}
        if self.compress:
            yield OPT_IN, {"compress": False}
        if self.stale:
            yield STALE_OPT_IN, {"stale": False}
        if self.rank_order is not None:
            yield f"--rank-order {','.join(self.rank_order)}", {"rank_order": None}
        for kind in self.special:
            yield f"--allow {kind}", {"special": tuple(other for other in self.special if other != kind)}
        for name in DEGREES:
            if (value := getattr(self, name)) is not None:
                yield f"--{_OPTIONS.get(name, name)} {value}", {name: None}

    @property
    def options(self) -> tuple[str, ...]:
        """The same with the figures among them, as `read_pins` reads them.

        Example:
            >>> Pins(compress=True, powersgd_samples=1.5).options
            ('--allow compress', '--powersgd-samples 1.5')
        """
        if self.powersgd_samples is None:
            return self.names
        return (*self.names, f"--powersgd-samples {self.powersgd_samples:g}")

    def _besides_strategy(self) -> "Pins":
        """What was decided in addition to a whole strategy: types and workers that its words do not say."""
        said = pins_of_strategy(self.strategy)
        return Pins(
            gradients=self.gradients if self.gradients != said.gradients else None,
            optimizer_state=self.optimizer_state if self.optimizer_state != said.optimizer_state else None,
            workers=self.workers if self.workers != said.workers else None,
        )

    @property
    def types(self) -> dict[str, str]:
        """Types of gradients and of the optimizer's state that are decided, by option.

        Example:
            >>> Pins(gradients="bf16").types
            {'gradients': 'bf16'}
        """
        given = {"gradients": self.gradients, "optimizer-state": self.optimizer_state}
        return {option: value for option, value in given.items() if value is not None}

    def rules_out(self, kind: str) -> bool:
        """Whether a kind of parallel degrees is forbidden, or others are allowed and it is not.

        Args:
            kind: "dp", "pp", "tp", "zero", "cp", "ep"; or any that can be forbidden

        Example:
            >>> Pins(allow=("tp",)).rules_out("pp"), Pins(allow=("tp",)).rules_out("memory")
            (True, False)
        """
        return kind in self.forbid or (bool(self.allow) and kind in _BY_DEGREE and kind not in self.allow)

    def without(self, name: str) -> "Pins":
        """All pins but one.

        Args:
            name: one of `names`

        Example:
            >>> Pins(forbid=("pp", "tp")).without("--forbid tp").names
            ('--forbid pp',)
        """
        if name == f"--strategy {self.strategy}":
            return self._besides_strategy()
        return replace(self, **dict(self._each())[name])

    def objection(self, strategy: Strategy) -> str:
        """The pin that a strategy violates, as far as its degrees and kinds say; empty where it respects all.

        Args:
            strategy: with or without boundaries

        Example:
            >>> Pins(forbid=("pp",)).objection(Strategy(pp=2)), Pins(tp=2).objection(Strategy(tp=2))
            ('--forbid pp', '')
        """
        if self.strategy:
            return f"--strategy {self.strategy}" if self._objection_of_pins(strategy) else ""
        return self._objection_of_pins(strategy)

    @property
    def budget_bytes(self) -> int | None:
        """Memory budget of a strategy that was named with one, such as "pp2 1f1b m4 in 8.0 GiB" [bytes]."""
        return read_strategy(self.strategy).memory_bytes if self.strategy else None

    def check_said(self, strategy: Strategy) -> None:
        """Refuse words of a named strategy that a plan for it does not keep.

        Args:
            strategy: of the plan

        Raises:
            InputError: a word means nothing here
        """
        said = said_by(self.strategy) if self.strategy else {}
        other = [field for field, value in said.items() if not _keeps(strategy, field, value)]
        if other:
            words = ", ".join(field.replace("_", " ") for field in other)
            raise InputError(
                f'strategy "{self.strategy}": the plan for it is {strategy.name}, to which {words} as named means '
                "nothing: leave that word out",
                code="strategy.word-means-nothing",
                words=words,
            )

    @property
    def is_cached(self) -> bool:
        """Whether a strategy was named that keeps samples, such as "dp2 cached"."""
        return bool(self.strategy) and read_strategy(self.strategy).feeding.cached

    def _objection_of_pins(self, strategy: Strategy) -> str:
        kinds = kinds_of(strategy)
        for kind in self.forbid:
            if kind in kinds:
                return f"--forbid {kind}"
        if not kinds.issuperset(self.held):
            return f"--strategy {self.strategy}"
        if self.allow and not self._allows(strategy):
            return f"--allow {','.join(self.allow)}"
        for option, value in self.types.items():
            if getattr(strategy, option.replace("-", "_")) != value:
                return f"--{option} {value}"
        for name in ("dp", "pp", "tp", "zero", "microbatches", "nodes", "chunks", "bucket_bytes"):
            wanted = getattr(self, name)
            if wanted not in (None, getattr(strategy, name)):
                return f"--{name} {wanted}"
        if self.sequence_parallel not in (None, strategy.splits_sequences):
            return "sp" if self.sequence_parallel else "no-sp"
        order = self.rank_order or (RANK_ORDER if self.strategy else strategy.rank_order)
        if order != strategy.rank_order:
            return f"--rank-order {','.join(order)}"
        lossy = self._objection_to_loss(strategy)
        if lossy:
            return lossy
        if strategy.memory_bytes is not None and strategy.codec != self.codec_choice:
            return "the lack of --codec" if self.codec is None else f"--codec {self.codec}"
        if strategy.is_stale and not self.allows_stale:
            return NO_STALE_OPT_IN
        if self.schedule is not None and (strategy.parts or strategy.pp == 1 or strategy.schedule != self.schedule):
            return f"--schedule {self.schedule}"
        for module, row in self.keep:
            if row >= strategy.pp:
                return f"--keep {module}={row}"
        return ""

    def _objection_to_loss(self, strategy: Strategy) -> str:
        """The objection to how a strategy sends its gradients; empty: none."""
        if self.compression is not None and strategy.compression != self.method:
            return f"--compression {self.compression}"
        return NO_OPT_IN if strategy.compression is not None and not self.allows_compression else ""

    def _allows(self, strategy: Strategy) -> bool:
        """Whether only allowed kinds are used; "pp" allows plain pipelines, other orders are allowed by their names."""
        allowed = frozenset(self.allow)
        orders = allowed & frozenset(ORDERS)
        if not spreading(strategy) <= (allowed | {"pp"} if orders else allowed):
            return False
        used = kinds_of(strategy) & frozenset(ORDERS)
        return used <= (orders or PLAIN_ORDERS)

    def conflict(self, devices: int) -> str:
        """Why no strategy can respect all pins, as far as they say it themselves; empty where they do not.

        Args:
            devices: that there are

        Example:
            >>> Pins(dp=2, pp=2).conflict(2), Pins(zero=3).conflict(1)
            ('--dp 2 --pp 2 take 4 devices, and there are 2', '--zero 3 is for two replicas or more')
        """
        degrees = [f"--{name} {getattr(self, name)}" for name in ("dp", "pp", "tp", "cp") if getattr(self, name)]
        needed = (self.dp or 1) * (self.pp or 1) * (self.tp or 1) * (self.cp or 1)
        if needed > devices:
            there = f"there {'is' if devices == 1 else 'are'} {devices}"
            return f"{' '.join(degrees)} {'take' if len(degrees) > 1 else 'takes'} {needed} devices, and {there}"
        replicas = self.dp or devices // ((self.pp or 1) * (self.tp or 1))
        if self.zero and replicas < 2:
            return f"--zero {self.zero} is for two replicas or more"
        lossy = self._conflict_of_loss(replicas)
        if lossy:
            return lossy
        if self.bucket_bytes not in (None, DEFAULT_BUCKET_BYTES) and (self.zero or (self.pp or 1) > 1):
            return "a size of buckets is for whole networks on every replica (pp 1, zero 0)"
        stages = self.pp or devices // ((self.dp or 1) * (self.tp or 1))
        if self.schedule is not None and stages < 2:
            return f"--schedule {self.schedule} is for two stages or more"
        for name in ("dp", "tp"):
            if name in self.forbid and (getattr(self, name) or 1) > 1:
                return f"--{name} {getattr(self, name)} conflicts with --forbid {name}"
        if "pp" in self.forbid and self.schedule is not None:
            return f"--schedule {self.schedule} conflicts with --forbid pp"
        return self.conflict_of_stale()

    def conflict_of_stale(self) -> str:
        """The pin that contradicts a stale schedule, whatever the job and the devices; empty: none."""
        if self.schedule != "pipedream":
            return ""
        if "stale" in self.forbid:
            return f"--schedule {self.schedule} conflicts with --forbid stale"
        for name, most in (("dp", 1), ("tp", 1), ("microbatches", 1)):
            if (getattr(self, name) or 1) > most:
                return f"--schedule {self.schedule} has --{name} 1, and conflicts with --{name} {getattr(self, name)}"
        return ""

    def conflict_of_degrees(self) -> str:
        """The pins of chunks, sequences and recomputation that contradict others; empty: none.

        Example:
            >>> Pins(chunks=4, schedule="1f1b").conflict_of_degrees()
            '--vp 4 conflicts with --schedule 1f1b'
        """
        several = (self.chunks or 1) > 1
        if several and self.schedule not in (None, "interleaved"):
            return f"--vp {self.chunks} conflicts with --schedule {self.schedule}"
        if self.chunks == 1 and self.schedule == "interleaved":
            return "--vp 1 conflicts with --schedule interleaved"
        if several and self.pp == 1:
            return f"--vp {self.chunks} conflicts with --pp 1"
        if several and {"interleaved", "pp"} & set(self.forbid):
            return f"--vp {self.chunks} conflicts with --forbid {' '.join(self.forbid)}"
        for name in ("recompute", "codec"):
            if getattr(self, name) not in (None, "none") and "memory" in self.forbid:
                return f"--{name} {getattr(self, name)} conflicts with --forbid memory"
        for name in ("cp", "ep"):
            if self.rules_out(name) and (getattr(self, name) or 1) > 1 and not self.strategy:
                option = f"--forbid {name}" if name in self.forbid else f"--allow {','.join(self.allow)}"
                return f"--{name} {getattr(self, name)} conflicts with {option}"
        return ""

    def _conflict_of_loss(self, replicas: int) -> str:
        """The objection to the requested method of compression; empty: none."""
        if self.method is None:
            return ""
        asked = f"--compression {self.compression}"
        if replicas < 2:
            return f"{asked} is for two replicas or more"
        if "compress" in self.forbid:
            return f"{asked} conflicts with --forbid compress"
        if self.zero:
            return f"{asked} is for gradients that are summed whole, and conflicts with --zero {self.zero}"
        return f"{asked} is for whole tensors, and conflicts with --tp {self.tp}" if (self.tp or 1) > 1 else ""

    def rows(self, graph: Graph) -> dict[str, int]:
        """For each operation that is kept on a row, the row.

        Args:
            graph: the job's

        Raises:
            InputError: a module that the network does not have, or an operation that is kept on two rows
        """
        found: dict[str, int] = {}
        for module, row in self.keep:
            members = [op.id for op in graph.ops if is_within(op.id, module) or is_within(op.module, module)]
            if not members:
                modules = sorted({op.module.partition(".")[0] for op in graph.ops if op.module})
                raise InputError(
                    f'--keep {module}={row}: {graph.name} has no module or operation "{module}"; '
                    f"its modules begin with {', '.join(modules[:12])}",
                    code="pin.no-such-module",
                    module=module,
                )
            for name in members:
                if found.setdefault(name, row) != row:
                    raise InputError(
                        f"--keep puts {name} on row {found[name]} and on row {row}; leave one of them out", op=name
                    )
        return found


NO_PINS = Pins()
"""Nothing is decided."""


def is_within(path: str, module: str) -> bool:
    """Whether a path is that of a module or of something inside it.

    Example:
        >>> is_within("layer4.0.conv1", "layer4"), is_within("layer40", "layer4")
        (True, False)
    """
    return path == module or path.startswith((f"{module}.", f"{module}@"))


# ---------------------------------------------------------------------------------------------------------------------
# Pins as they are written on the command line


MOST_WORKERS = 256
"""Of one rank, that a person may ask for."""


def parse_pins(**given: Any) -> Pins:
    """Pins as they are written on the command line.

    Args:
        given: values of options, by the names of the fields that they pin, or of the options where these differ (`vp`
            pins `chunks`, `micro_batch` pins `microbatch`). `keep`, `forbid` and `allow` are lists of texts; kinds of
            `OPT_INS` that are allowed opt in, and restrict nothing. None, or an empty list: nothing is said

    Raises:
        InputError: a word or a figure that means nothing, or two pins that contradict each other

    Example:
        >>> parse_pins(keep=["layer4=1"], forbid=["pp"], tp=2).names
        ('--keep layer4=1', '--forbid pp', '--tp 2')
        >>> parse_pins(allow=["compress"]).names, parse_pins(compression="PowerSGD:2").names
        (('--allow compress',), ('--compression powersgd:2',))
    """
    said = {name: value for name, value in given.items() if value is not None and value not in ((), [])}
    types = said.pop("gradients", None), said.pop("optimizer_state", None)
    workers, samples = (said.get(one) for one in _FIGURES)
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers must be 0 to {MOST_WORKERS}, got {workers}", value=workers)
    if samples is not None and not 1.0 <= samples < math.inf:
        raise InputError(
            f"--powersgd-samples must be 1 or more, times the samples without it, got {samples}",
            code="pin.bad-powersgd-samples",
            value=samples,
        )
    if "strategy" in said:
        strategy, figures = said.pop("strategy"), {name: said.pop(name) for name in _FIGURES if name in said}
        if not strategy.strip():
            raise InputError("--strategy is empty: give it a value, or leave it out", code="pin.empty-strategy")
        if said:
            raise _says_all(strategy)
        pins = pins_of_strategy(strategy)
        if workers is not None and pins.workers not in (None, workers):
            raise _contradicts("workers", workers, pins, f"w{pins.workers}")
        return _with_types(_checked_samples(replace(pins, **figures)), *types)
    schedule, zero = said.get("schedule"), said.get("zero")
    if schedule is not None and schedule not in get_args(Schedule):
        raise InputError(
            f"--schedule must be one of {', '.join(get_args(Schedule))}, got {schedule!r}",
            code="pin.unknown-schedule",
            value=schedule,
        )
    if zero is not None and zero not in (0, 1, 2, 3):
        raise InputError(f"--zero must be 0, 1, 2 or 3, got {zero}", code="pin.bad-zero-stage", value=zero)
    for name in _COUNTS:
        if said.get(name) is not None and said[name] < 1:
            raise InputError(
                f"--{name.replace('_', '-')} must be 1 or more, got {said[name]}",
                code="pin.below-one",
                value=said[name],
            )
    if "recompute" in said:
        read_recompute(said["recompute"])
    forbidden, allowed = (read_kinds(said.pop(name, ()), option=f"--{name}") for name in ("forbid", "allow"))
    both = sorted(set(forbidden) & set(allowed))
    if both:
        raise InputError(
            f"{', '.join(both)}: both allowed and forbidden; leave out one of the two",
            code="pin.allowed-and-forbidden",
            kinds=tuple(both),
        )
    readers: dict[str, Callable[[Any], Any]] = {
        "keep": lambda texts: tuple(sorted({_read_keep(one) for text in texts for one in text.split(",")})),
        "compression": _read_compression,
        "codec": lambda text: parse_codec(text).text,
        "rank_order": read_rank_order,
    }
    pins = Pins(
        forbid=forbidden,
        allow=tuple(kind for kind in allowed if kind not in OPT_INS),
        compress="compress" in allowed,
        stale="stale" in allowed,
        special=tuple(kind for kind in allowed if kind in SPECIAL),
        **{_PROPERTIES.get(name, name): readers.get(name, _as_it_is)(value) for name, value in said.items()},
    )
    contradiction = pins.conflict_of_stale()
    if contradiction:
        raise InputError(f"{contradiction}: leave one of them out", code="pin.stale-and-others")
    contradiction = pins.conflict_of_degrees()
    if contradiction:
        raise InputError(f"{contradiction}: leave one of them out", code="pin.degrees-and-others")
    return _with_types(_checked_samples(pins), *types)


_FIGURES = ("workers", "powersgd_samples")
"""What a strategy may leave open."""

_REPEATED = ("keep", "forbid", "allow")
_PROGRAMS_ALONE = frozenset({"cp", "ep", "uneven"})
"""Kinds of degrees that a program may forbid or allow, and the command line has no word for."""

_TEXTS = ("strategy", "schedule", "recompute", "compression", "codec", "rank_order", "gradients", "optimizer_state")
_COUNTS = ("dp", "pp", "tp", "cp", "ep", "etp", "vp", "microbatches", "micro_batch", "nodes")
_NUMBERS = (*_COUNTS, "zero", "workers")


def read_pins(options: Iterable[str]) -> Pins:
    """Pins as `Pins.options` has them.

    Args:
        options: each with its value, such as "--forbid pp"

    Raises:
        InputError: an option that pins nothing, or whose value means nothing

    Example:
        >>> read_pins(("--keep layer4=1", "--forbid pp", "--tp 2")).names
        ('--keep layer4=1', '--forbid pp', '--tp 2')
        >>> read_pins(Pins(forbid=("cp", "pp"), allow=("dp",)).options) == Pins(forbid=("cp", "pp"), allow=("dp",))
        True
    """
    given: dict[str, Any] = {name: [] for name in _REPEATED}
    own: dict[str, set[str]] = {"forbid": set(), "allow": set()}
    for words in options:
        option, _, text = words.partition(" ")
        name = option.removeprefix("--").replace("-", "_")
        value: Any = text if name in (*_REPEATED, *_TEXTS) else None
        if name in _NUMBERS:
            value = whole_number(text)
        elif name == "powersgd_samples":
            value = parse_large(text, what="a factor on samples")
        if value is None:
            raise InputError(f'"{words}" decides nothing about a strategy: plan again', code="pin.unread", value=words)
        if name in own:
            kinds = value.split(",")
            own[name] |= _PROGRAMS_ALONE.intersection(kinds)
            given[name] += [kind for kind in kinds if kind not in _PROGRAMS_ALONE]
        elif name in _REPEATED:
            given[name].append(value)
        else:
            given[name] = value
    pins = parse_pins(**given)
    kept = {name: tuple(sorted({*getattr(pins, name), *kinds})) for name, kinds in own.items() if kinds}
    return replace(pins, **kept)  # type: ignore[arg-type]  # two fields of kinds


def checked_pins(pins: Pins) -> Pins:
    """Pins of a program, with kinds and values read as those of the command line are.

    Args:
        pins: as they were made

    Raises:
        InputError: a kind that does not exist, a value that means nothing, or two that contradict each other

    Example:
        >>> checked_pins(Pins(forbid=("fsdp",), allow=("compress",))).names
        ('--forbid zero', '--allow compress')
    """
    if pins.strategy:
        return _of_strategy_alone(pins)
    said = read_pins(pins.options)
    kinds = ("keep", "forbid", "allow", "compress", "stale", "special")
    return replace(pins, **{name: getattr(said, name) for name in kinds})


def _of_strategy_alone(pins: Pins) -> Pins:
    """Pins with a whole strategy, from which the others follow, and what it may leave open.

    Raises:
        InputError: the strategy means nothing, or another pin says something else
    """
    left_open = ("workers", "powersgd_samples", "gradients", "optimizer_state")
    given = {name: value for name in left_open if (value := getattr(pins, name)) is not None}
    found = pins_of_strategy(pins.strategy)
    said = {name: value for name, value in given.items() if getattr(found, name) != value}
    found = parse_pins(strategy=pins.strategy, **said)
    if pins not in (found, replace(NO_PINS, strategy=pins.strategy, **given)):
        raise _says_all(pins.strategy)
    return found


def _says_all(strategy: str) -> InputError:
    return InputError(
        f'--strategy "{strategy}" says the whole strategy: leave out the other options that pin one',
        code="pin.strategy-and-others",
        strategy=strategy,
    )


def _checked_samples(pins: Pins) -> Pins:
    """Pins as they are, whose factor on samples is of plans that they leave."""
    samples = pins.powersgd_samples
    may_be_powersgd = pins.allows_compression and (pins.method is None or pins.method.method == "powersgd")
    if samples is not None and not may_be_powersgd:
        raise InputError(
            f"--powersgd-samples {samples:g}: no plan may use PowerSGD; add --allow compress or "
            "--compression powersgd:RANK, or leave it out",
            code="pin.powersgd-unused",
            value=samples,
        )
    return pins


def _with_types(pins: Pins, gradients: str | None, optimizer_state: str | None) -> Pins:
    """Pins with types that were typed."""
    for option, value, known in (
        ("gradients", gradients, get_args(GradientType)),
        ("optimizer-state", optimizer_state, get_args(OptimizerState)),
    ):
        if value is not None and value not in known:
            raise InputError(
                f"--{option} must be one of {', '.join(known)}, got {value!r}", code="pin.unknown-type", value=value
            )
        said = pins.types.get(option)
        if value is not None and said not in (None, value):
            raise _contradicts(option, value, pins, said)
        if value is not None:
            pins = replace(pins, **{option.replace("-", "_"): value})  # type: ignore[arg-type]  # one of two fields
    return pins


def _contradicts(option: str, value: object, pins: Pins, said: str | None) -> InputError:
    is_figure = option == "workers"
    return InputError(
        f"--{option} {value} contradicts --strategy {pins.strategy}, which says {said}: leave one of them out",
        code="pin.figure-and-strategy" if is_figure else "pin.type-and-strategy",
        value=value,
    )


_OF_DEGREES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("cp", (None, 1)),
    ("ep", (None, 1)),
    ("etp", (None, 1)),
    ("recompute", (None, "none")),
    ("shard_ranks", (None,)),
    ("ulysses", (None, False)),
    ("tensor_overlap", (None,)),
    ("offload", (None, False)),
    ("segment_layers", (None,)),
    ("microbatch_group", (None,)),
)
"""Pins of what no program has, each with the values that mean nothing."""


def program_pins(pins: Pins, *, batch: int | None) -> Pins:
    """Pins where each strategy has a program: sequences of a microbatch become a number of microbatches.

    Args:
        pins: of the user
        batch: samples of one update; None: not said

    Raises:
        InputError: a pin that only the analytical model of transformers can keep

    Example:
        >>> program_pins(Pins(dp=2, microbatch=4), batch=64).microbatches
        8
    """
    for name, nothing in _OF_DEGREES:
        value = getattr(pins, name)
        # A whole strategy says by its memory budget whether it recomputes, and no words for nothing.
        said_none = name == "recompute" and value is not None and not pins.strategy
        if value not in nothing or said_none:
            option = f"--strategy {pins.strategy}" if pins.strategy else f"--{name.replace('_', '-')} {value}"
            raise _of_analytical(option)
    if pins.schedule in ("dualpipe", "dualpipev"):
        raise _of_analytical(f"--schedule {pins.schedule}")
    if pins.special:
        raise _of_analytical(f"--allow {pins.special[0]}")
    if pins.microbatch is None:
        return pins
    if pins.dp is None or batch is None:
        raise InputError(
            f"--micro-batch {pins.microbatch}: where a program is simulated it takes --dp and --batch too, from which "
            "the number of microbatches follows; say these, or --microbatches",
            code="pin.micro-batch-alone",
            value=pins.microbatch,
        )
    shares = pins.dp * pins.microbatch
    if batch % shares or pins.microbatches not in (None, batch // shares):
        raise InputError(
            f"--micro-batch {pins.microbatch} of --dp {pins.dp} does not divide a batch of {batch}"
            + (f" into {pins.microbatches} microbatches" if pins.microbatches else "")
            + ": change one of them",
            code="pin.micro-batch-does-not-divide",
            value=pins.microbatch,
        )
    return replace(pins, microbatch=None, microbatches=batch // shares)


def _of_analytical(option: str) -> InputError:
    instead = "say --forbid memory in its place" if option == "--recompute none" else "leave it out"
    return InputError(
        f"{option}: only the analytical model of transformers keeps it, and this plan simulates a program of traced "
        f"operations: {instead}, or plan a transformer on many devices (`trimaran plan llama3:70b --cluster NAME`)",
        code="pin.not-in-programs",
        option=option,
    )


def leaves_microbatches(pins: Pins) -> bool:
    """Whether there is a strategy that says nothing of microbatches, so that it has one."""
    return bool(pins.strategy) and not {"microbatches", "microbatch"} & said_by(pins.strategy).keys()


def pins_of_strategy(name: str) -> Pins:
    """The pins that leave only the strategies of a name, as plans print it.

    Args:
        name: such as "dp8 zero1 m2"; degrees that it does not say are 1

    Raises:
        InputError: a word that names of strategies do not have

    Example:
        >>> pins = pins_of_strategy("dp2 pp4 1f1b m8")
        >>> pins.names, pins.tp, pins.objection(Strategy(dp=2, pp=4, schedule="1f1b", microbatches=4))
        (('--strategy dp2 pp4 1f1b m8',), 1, '--strategy dp2 pp4 1f1b m8')
    """
    said, words = read_strategy(name), said_by(name)
    if said.ulysses and said.cp == 1:
        raise InputError(
            f'strategy "{name}": ulysses shares a sequence among cp2 ranks or more; leave it out, or say cp2',
            code="strategy.ulysses-alone",
        )
    staged = said.pp > 1 and not said.parts
    kinds = kinds_of(said)
    if "schedule" not in words:
        kinds -= frozenset(ORDERS)
    # Degrees that only the analytical model chooses.
    spread = tuple(name for name in ("cp", "ep") if getattr(said, name) > 1)
    held = kinds | {"memory"} if said.recomputed else kinds
    return Pins(
        strategy=" ".join(name.replace(",", " ").split()),
        held=tuple(sorted(kinds & _OF_NO_DEGREE)),
        allow=tuple(sorted(kinds & frozenset((*SPREADING, *ORDERS)))) + spread,
        forbid=tuple(kind for kind in ("compiled", "memory", "cache") if kind not in held),
        dp=said.dp,
        pp=said.pp,
        tp=said.tp,
        zero=said.zero,
        microbatches=None if "microbatch" in words and "microbatches" not in words else said.microbatches,
        schedule=said.schedule if staged and ("schedule" in words or not _is_of_degrees(words)) else None,
        chunks=said.chunks,
        cp=said.cp,
        ep=said.ep,
        etp=said.expert_tp if said.ep == 1 else said.expert_ranks,
        microbatch=words.get("microbatch"),
        recompute=_recomputed(said),
        sequence_parallel=words.get("sequence_parallel"),
        special=tuple(kind for kind in SPECIAL if kind in kinds),
        shard_ranks=said.shard_ranks,
        ulysses=said.ulysses if said.cp > 1 else None,
        tensor_overlap=said.tensor_overlap,
        offload=said.offload,
        segment_layers=words.get("segment_layers"),
        microbatch_group=words.get("microbatch_group"),
        gradients=said.gradients,
        optimizer_state=said.optimizer_state,
        bucket_bytes=said.bucket_bytes if said.dp > 1 else None,
        compression=None if said.compression is None else said.compression.option,
        codec=None if said.codec is None else said.codec.text,
        workers=said.feeding.workers or None,
        rank_order=said.rank_order if said.rank_order != RANK_ORDER else None,
    )


def _is_of_degrees(words: Mapping[str, object]) -> bool:
    """Whether a name has words that only the analytical model gives a meaning."""
    own = {"cp", "microbatch", "expert_tp", "recomputed", "shard_ranks", "ulysses", "tensor_overlap", "offload"}
    return bool(own & words.keys()) or "ep" in words or "segment_layers" in words


def _keeps(strategy: Strategy, field: str, value: object) -> bool:
    """Whether a strategy has a field as a name says it; who has which operation is left open there."""
    own = getattr(strategy, field)
    if isinstance(value, Feeding):
        return (value.workers, value.cached) == (own.workers, own.cached) and all(
            getattr(value, each) in (getattr(IN_LINE, each), getattr(own, each)) for each in ("ahead", "copies_ahead")
        )
    if field in ("parts", "shards"):
        return bool(own) == bool(value)
    if field == "sequence_parallel":
        return strategy.splits_sequences == value
    if field == "memory_bytes":
        return strategy.memory_bytes is not None and format_bytes(strategy.memory_bytes) == format_bytes(
            int(str(value))
        )
    # The state of one replica is whole in any case.
    return own == value or (field == "zero" and strategy.dp * strategy.cp == 1)


def _recomputed(strategy: Strategy) -> str:
    """What is recomputed, as an option says it."""
    if strategy.recompute_layers is not None:
        return f"layers:{strategy.recompute_layers}"
    return "+".join(sorted(strategy.recomputed)) or "none"


def _as_it_is(value: Any) -> Any:
    return value


def _read_compression(text: str) -> str:
    method = parse_compression(text)
    return "none" if method is None else method.option


def _read_keep(text: str) -> tuple[str, int]:
    module, equals, row = (part.strip() for part in text.partition("="))
    number = whole_number(row)
    if not module or not equals or number is None:
        raise InputError(
            f'--keep "{text}": expected a module and the number of a row, such as "layer4=1"',
            code="pin.bad-keep",
            value=text,
        )
    return module, number
