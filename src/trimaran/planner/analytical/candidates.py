"""Strategies of a transformer that the analytical model prices, with their costs.

Let `n` devices hold a stack of `L` layers and a batch of `B` sequences. A strategy has

    t p c d = n         ranks of a layer, stages, ranks of a sequence, replicas
    t | heads           and t within a node, unless pinned otherwise
    b | B / d           b sequences a microbatch, m = B / (d b) microbatches
    p v <= L            v chunks a stage, all numbers that divide; more than one only where p | m, or where the
                        framework alternates between chunks in larger groups of microbatches
    e x | t c d         e ranks with different experts, x ranks that share each; x | t unless pinned otherwise
    zero                state that replicas shard: none, the optimizer, gradients too, parameters too
    hsdp                its copies: one of all replicas, or with all state sharded one of each node
    recompute           no layers, or all (attention's probabilities, where its kernel keeps them); where nothing
                        recomputed does not fit, norms and what else is cheap, or as few layers of each stage as do
    ulysses             ranks of a sequence gather keys and values, or exchange heads
    schedule            1f1b, interleaved; zero-bubble, dualpipe and dualpipev where the user allows them
    offload             the optimizer's state on the host, where the user allows it

Strategies that differ in `v`, the schedule, `zero`, hsdp, offload and layers of stages do the same work, so they share
one bound: a group. Some that is recomputed is more work than none, so it is in the group that recomputes nothing.

How many layers each stage holds: evenly, or with fewer at the ends, where the embedding and the head are; where some
stages have one more, the first ones or the last ones do.

The output layer costs the last stage as much as `w` layers. With layers of equal cost, the least load of the slowest
stage follows from giving each layer, one after another, to the stage that has least so far. Where stages have several
chunks, chunks must be equal, but for the first and the last one, which may have one layer less (as Megatron counts the
embedding and the loss as layers).

Norms come before layers, as Megatron recomputes parts of a layer: of Nemotron-4 340B on 128 H100 with one layer a
chunk, a layer is all of them, 14 % slower than what ran. Modules of PyTorch under FSDP2 have no switch for it.

More devices are never slower at one batch, as the old strategy stays a candidate. At one batch a device they may be:
replicas divide the batch, ranks with different experts the ranks of a stage, chunks the layers. Of 70 neighbouring
numbers of nodes with experts 18 lose more than 5 % of a device's throughput, of 40 without experts none.
"""

import functools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

from trimaran.machine.types import Machine
from trimaran.planner.analytical.given import (
    expert_obstacles,
    microbatch_group,
    schedule_obstacles,
    tensor_obstacle,
)
from trimaran.planner.explanation.critical_path import limiter_of
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.pricing.analytical.fits_device import MemoryRange, Reserve, admitted, need_of, with_buffers
from trimaran.pricing.analytical.layers import layer_forward, operations, prediction_operations, work
from trimaran.pricing.analytical.lengths import Documents
from trimaran.pricing.analytical.memory import Bookkeeping, RankMemory, host_bytes, largest_rank
from trimaran.pricing.analytical.programs import INTERLEAVED, SEQUENCE_PARALLEL, framework_of
from trimaran.pricing.analytical.shapes import (
    TransformerShape,
    key_size,
    layer_kinds,
    query_size,
    stream_bytes,
)
from trimaran.pricing.analytical.step_time import (
    MachineExchange,
    RankTraffic,
    ReplicaStep,
    TransformerProgram,
    TransformerStep,
    head_forward,
    host_update_seconds,
    least_held,
    least_replica_seconds,
    least_seconds,
    least_send_seconds,
    peak_of,
    rank_traffic,
    replica_step,
    step_constants,
    transformer_step,
)
from trimaran.pricing.collectives.prediction import network_ends
from trimaran.program.strategy import (
    RANK_ORDER,
    SELECTIVE,
    Degrees,
    Recomputed,
    Schedule,
    Strategy,
    ZeroStage,
    missing_from_order,
    read_recompute,
)

_MOST_MICROBATCH = 16
"""Sequences of a microbatch that are tried, where the user says nothing."""

_LEAST_CONTEXT = 2048
"""Tokens that a rank of a sharded sequence keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalProblem:
    """Problem of the analytical model.

    Attributes:
        shape: the network
        machine: nodes and fabric
        devices: in use
        batch: sequences of a step, of all replicas
        program: settings of the training program
        bookkeeping: bytes that it keeps
        pins: decided by the user
        memory_bytes: limit of a rank; None: the part of its device that a job may use [bytes]
        time_limit_s: work after which a search ends with its best so far [s on the reference]; None: none
        most_priced: after this number of strategies it does so too
        gap: it may also end when the best step is within this share of the least bound
        reserve: memory of a device that stays free for what is not counted; None: not said, so buffers of collectives
            and fragments of the allocator are counted
        lenient: what usually fits is taken, and moments of the optimizer may be rounded, since nothing surely fits
        ratio: strategies whose bound is this multiple of the best time are not priced
        not_said: what the question left to be assumed, each of which widens intervals
        framework: that trains, by its own name (`program.framework` is the one by whose figures it is priced); "": any
        measured: a measured step of the job by the same step as modelled; None: none was measured
    """

    shape: TransformerShape
    machine: Machine
    devices: int
    batch: int
    program: TransformerProgram
    bookkeeping: Bookkeeping
    pins: Pins = NO_PINS
    memory_bytes: int | None = None
    time_limit_s: float | None = None
    most_priced: int = 40_000
    gap: float = 0.0
    reserve: Reserve | None = None
    lenient: bool = False
    ratio: float = 1.5
    not_said: tuple[str, ...] = ()
    framework: str = ""
    measured: float | None = None

    @property
    def sample_tokens(self) -> float:
        """Tokens of a sequence that are trained on."""
        documents = self.program.documents
        return float(self.shape.sequence) if documents is None else documents.useful(self.shape.sequence)

    @property
    def device_bytes(self) -> int:
        """Memory of a device that a job may use [bytes]."""
        memory = self.machine.node.device.memory
        return memory.reported_bytes - memory.context_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def memory_limit(self) -> float:
        """Memory limit of a rank [bytes]."""
        return self.device_bytes if self.reserve is None else self.reserve.left(self.device_bytes)


EVERY_NUMBER = 64
"""Up to this number of devices every smaller number is tried; of more devices, whole nodes."""

PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "tensor_s": "exchanges inside layers",
    "bubble_s": "idle stages",
    "send_s": "exchanges between stages",
    "data_s": "exchanges between replicas",
    "update_s": "update",
    "slowest_s": "slowest rank",
    "unequal_s": "unequal documents",
}
"""Fields of a `TransformerStep` in words; they sum to the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalCandidate:
    """A strategy that the analytical model priced.

    It has the attributes of a simulated `Candidate` that exist without a program.

    Attributes:
        strategy: degrees, and how layers and the batch are split
        fits_as: the same with the types of gradients and of the optimizer's state with which it fits
        step: time by part
        memory: of the rank that needs most, with the largest buffers and the most fragments
        interval_s: 90 % interval of the step [s]
        utilization: model FLOP over peak FLOP of all devices ("MFU"), recomputation not counted [0..1]
    """

    strategy: Strategy
    fits_as: Strategy
    step: TransformerStep
    memory: RankMemory
    interval_s: tuple[float, float]
    utilization: float
    objective: Literal["throughput"] = field(default="throughput", init=False)
    epoch_s: None = field(default=None, init=False)
    epoch_interval_s: None = field(default=None, init=False)
    samples_factor: float = field(default=1.0, init=False)

    @property
    def name(self) -> str:
        """Of the strategy."""
        return self.strategy.name

    @property
    def devices(self) -> int:
        """In use."""
        return self.strategy.devices

    @property
    def step_time_s(self) -> float:
        """Of a step [s]."""
        return self.step.seconds

    @property
    def time_s(self) -> float:
        """The minimized figure: the step [s]."""
        return self.step.seconds

    @property
    def objective_s(self) -> float:
        """Likewise, as often as training needs it: once [s]."""
        return self.step.seconds

    @property
    def cases(self) -> tuple[float, float, float]:
        """The step with all costs low, at their median, and high [s]."""
        low, high = self.interval_s
        return low, self.step.seconds, high

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Of the rank that needs most [bytes]."""
        return (self.memory.peak,)

    @property
    def need(self) -> MemoryRange:
        """What the rank that needs most needs, from least to most."""
        return need_of(self.memory, self.strategy)

    @property
    def parts(self) -> dict[str, float]:
        """Time of each part of the step, by its name in `PARTS` [s]."""
        parts = {words: getattr(self.step, part) for part, words in PARTS.items()}
        if self.devices == 1:
            return {PARTS[part]: parts[PARTS[part]] for part in ("compute_s", "update_s")}
        if not self.step.unequal_s:
            del parts[PARTS["unequal_s"]]
        return parts

    @property
    def groups_s(self) -> Mapping[str, float]:
        """The same: what a step is made of, of which the bottleneck is the largest [s]."""
        return self.parts

    @property
    def subject(self) -> str:
        """Its bottleneck without its share."""
        parts = self.parts
        return max(parts, key=lambda part: parts[part])

    @property
    def limiter(self) -> str:
        """Its bottleneck, with its time and share."""
        return limiter_of(self.subject, self.parts[self.subject], self.step.seconds)

    @property
    def simplicity(self) -> tuple[int, ...]:
        """Sort key by which the simpler of two equally good strategies comes first: the devices alone.

        On as many devices the fastest is chosen, as by a search at one batch.
        """
        return (self.devices,)

    @property
    def rank(self) -> tuple[float, int, str]:
        """Sort key: time, then memory, then text, so that equal ones keep their order, in every process."""
        kinds = self.strategy.recomputed
        text = repr(self.strategy).replace(repr(kinds), f"frozenset({{{', '.join(map(repr, sorted(kinds)))}}})")
        return (self.step.seconds, self.memory.peak, text)


@dataclass(frozen=True, kw_only=True)
class AnalyticalModel:
    """Prices strategies of one problem.

    Attributes:
        problem: to plan
    """

    problem: AnalyticalProblem

    @cached_property
    def _exchange(self) -> MachineExchange:
        """Prices collectives."""
        problem = self.problem
        key = id(problem.machine), problem.program.year
        if key not in _EXCHANGES:
            if len(_EXCHANGES) >= _MOST_EXCHANGES:
                _EXCHANGES.clear()
            _EXCHANGES[key] = MachineExchange(problem.machine, ranks=problem.devices, year=problem.program.year)
        return _EXCHANGES[key].of_ranks(problem.devices)

    @cached_property
    def _ends(self) -> tuple["AnalyticalModel", ...]:
        """The same problem over a network of which little is known, at its slowest and its fastest."""
        return tuple(
            AnalyticalModel(problem=replace(self.problem, machine=end)) for end in network_ends(self.problem.machine)
        )

    def traffic(self, strategy: Strategy) -> tuple[RankTraffic, ...]:
        """Which ranks' messages cross nodes, by kind of rank."""
        return rank_traffic(strategy, self._exchange)

    @cached_property
    def _host_update_s(self) -> float:
        """Update of a parameter of each rank by the hosts [s]."""
        problem = self.problem
        return host_update_seconds(
            problem.machine, ranks=problem.devices, gradient_bytes=problem.bookkeeping.gradient_bytes
        )

    @cached_property
    def _model_flops(self) -> float:
        """Of a sequence, as papers count it [FLOP]."""
        return model_flops(self.problem.shape, self.problem.program.documents)

    def bound(self, strategy: Strategy, choice: "Choice | None" = None) -> float:
        """No strategy of these degrees, whatever its schedule and sharding, has a shorter step [s].

        Of degrees that differ in stages and replicas alone a microbatch has the same work, which is computed once;
        `least_seconds` says how often it counts.

        Args:
            strategy: of a group
            choice: in place of that of the strategy
        """
        problem, number = self.problem, strategy.microbatches
        if choice is None:
            choice = Choice(*(getattr(strategy, name) for name in Choice._fields))
        if strategy.rank_order == RANK_ORDER:
            # In another order the links of a group depend on all degrees.
            sharing = strategy.tp if choice.expert_tp is None else choice.expert_tp
            experts, others = choice.ep * sharing, strategy.tp * strategy.cp
            on = _On(stages=1, replicas=experts // math.gcd(experts, others), microbatches=min(2, number))
        else:
            on = _On(stages=strategy.pp, replicas=strategy.dp, microbatches=number)
        each_s = _least_alone(problem, strategy, choice, on, self._exchange) / strategy.pp
        waits_s = self.waits(strategy, each_s, choice=choice)
        return (each_s * self._passes(strategy) + waits_s) * slowest_factor(strategy.devices)

    def waits(self, strategy: Strategy, each_s: float, *, choice: "Choice | None" = None) -> float:
        """What a step waits at least for sends between stages, and for replicas while nothing computes [s].

        The last microbatch, or the forward of the next step, is what exchanges between replicas overlap.

        Args:
            strategy: of a group
            each_s: a microbatch on the mean stage, at least [s]
            choice: says the ranks of experts; None: what replicas of experts exchange is left out
        """
        problem, known = self.problem, self._known_exchanges
        shape = problem.shape if choice else _without_experts(problem.shape)
        experts, share = (1, None) if choice is None else choice[:2]
        held = least_held(shape, strategy.pp, strategy.tp, experts, strategy.tp if share is None else share)
        sent = strategy.microbatches * stream_bytes(shape, strategy) if strategy.pp > 1 else 0
        worth = _WORTH_BOUNDING * each_s * self._passes(strategy) * self._rank_bytes_per_s
        waits_s = self._sends(strategy) if _SENT_BYTES * sent > worth else 0.0
        if _EXCHANGED_BYTES * sum(held) > worth:
            # What is recomputed and how sequences are shared changes nothing.
            key = strategy.tp, strategy.pp, strategy.cp, strategy.dp, experts, share
            if key not in known:
                known[key] = least_replica_seconds(
                    shape,
                    varied(strategy, ep=experts, expert_tp=share),
                    problem.program,
                    exchange=self._exchange,
                    sharding=zero_levels(problem, strategy),
                )
            waits_s += max(0.0, known[key] - each_s)
        return waits_s

    @cached_property
    def _rank_bytes_per_s(self) -> float:
        """Of what each rank of a node sends to others [bytes/s]; infinite where there is one node."""
        machine, devices = self.problem.machine, self.problem.devices
        if machine.fabric is None or devices <= machine.node.devices:
            return math.inf
        cards, link = machine.fabric
        return cards * link.bytes_per_s / machine.node.devices

    def _sends(self, strategy: Strategy) -> float:
        """`least_send_seconds` of a strategy, computed once for each microbatch on the same ranks [s]."""
        key = strategy.tp, strategy.pp, strategy.cp, strategy.dp, strategy.microbatch
        if key not in self._known_sends:
            self._known_sends[key] = least_send_seconds(
                self.problem.shape,
                strategy,
                self.problem.program,
                exchange=self._exchange,
                constants=step_constants(),
                plain=_has_plain_schedules(self.problem.pins),
            )
        return self._known_sends[key]

    @cached_property
    def _known_exchanges(self) -> dict[tuple[Any, ...], float]:
        return {}

    @cached_property
    def _known_sends(self) -> dict[tuple[int, ...], float]:
        return {}

    def least_alone(self, strategy: Strategy, choice: "Choice") -> float:
        """What a microbatch takes of the same bound without exchanges, on any number of stages, replicas, devices [s].

        Args:
            strategy: of a group
            choice: in place of that of the strategy
        """
        return _least_alone(self.problem, strategy, choice, _On(), None)

    def times_alone(self, strategy: Strategy) -> float:
        """How often that counts in the bound of a group, whatever its choice."""
        return self._passes(strategy) / strategy.pp * slowest_factor(strategy.devices)

    def _passes(self, strategy: Strategy) -> float:
        """`passes` of a strategy, computed once."""
        key = strategy.pp, strategy.microbatches
        if key not in self._known_passes:
            self._known_passes[key] = passes(self.problem, *key)
        return self._known_passes[key]

    @cached_property
    def _known_passes(self) -> dict[tuple[int, int], float]:
        return {}

    def admitted(self, strategy: Strategy) -> tuple[Strategy, RankMemory]:
        """A strategy as it fits, with types of gradients and of the optimizer that make it, and its largest rank.

        Args:
            strategy: what it says of these types stays
        """
        problem = self.problem
        return admitted(
            problem.shape,
            strategy,
            keeping=problem.bookkeeping,
            room=problem.memory_limit,
            reserve=problem.reserve,
            lenient=problem.lenient,
        )

    def taken(self, strategy: Strategy) -> "AnalyticalModel":
        """The model by which a search takes a strategy: where that surely fits nowhere, the one of what usually fits.

        Args:
            strategy: of the problem
        """
        if self.problem.lenient or self.admitted(strategy)[1].peak <= self.problem.memory_limit:
            return self
        usual = replace(self, problem=replace(self.problem, lenient=True))
        return usual if usual.admitted(strategy)[1].peak <= self.problem.memory_limit else self

    def step(self, strategy: Strategy, alone: ReplicaStep | None = None) -> TransformerStep:
        """Time of a step, whether it fits or not.

        Args:
            strategy: of the problem
            alone: the step of its replica, where it is known; None: it is not
        """
        problem = self.problem
        return transformer_step(
            problem.shape,
            strategy,
            problem.program,
            device=problem.machine.node.device,
            exchange=self._exchange,
            constants=step_constants(),
            host_update_s=self._host_update_s if strategy.offload else 0.0,
            alone=alone,
        )

    def alone(self, strategy: Strategy) -> ReplicaStep:
        """The step of one replica, without exchanges with others and without the update."""
        problem = self.problem
        return replica_step(
            problem.shape,
            strategy,
            problem.program,
            device=problem.machine.node.device,
            exchange=self._exchange,
            constants=step_constants(),
        )

    def price(
        self,
        strategy: Strategy,
        fitting: tuple[Strategy, RankMemory] | None = None,
        step: TransformerStep | None = None,
    ) -> AnalyticalCandidate:
        """A strategy with its costs. Types that it does not say are taken for memory alone: they make no step faster.

        Args:
            strategy: of the problem
            fitting: as it fits (`admitted`), where that is known; None: it is not
            step: its time as modelled, likewise
        """
        problem, constants = self.problem, step_constants()
        fits, memory = self.admitted(strategy) if fitting is None else fitting
        shape, device = problem.shape, problem.machine.node.device
        step = self.step(strategy) if step is None else step
        known, factor = problem.measured is not None, problem.measured or 1.0
        half = constants.half_width(shape, problem.program, device, not_said=problem.not_said, measured=known)
        spread, step = math.exp(half), step.times(factor) if known else step
        times = [step.seconds, *(factor * model.step(strategy).seconds for model in self._ends)]
        sequences = strategy.dp * strategy.microbatch * strategy.microbatches
        return AnalyticalCandidate(
            strategy=strategy,
            fits_as=fits,
            step=step,
            memory=memory,
            interval_s=(min(times) / spread, max(times) * spread),
            utilization=sequences * self._model_flops / (step.seconds * strategy.devices * peak_of(device)),
        )


_WORTH_BOUNDING = 0.05
"""Of a step: what ranks may wait for less than this changes no order of bounds, and takes a while to price."""

_EXCHANGED_BYTES, _SENT_BYTES = 12, 4
"""Of a parameter that replicas share, and of a byte that goes to the next stage: twice what crosses a link."""

_EXCHANGES: dict[tuple[int, float], MachineExchange] = {}
"""Prices of collectives that are known, which searches of other batches ask for too: by machine and year."""

_MOST_EXCHANGES = 16

_ALONE: dict[tuple[Any, ...], tuple[tuple[TransformerShape, TransformerProgram, Machine], float]] = {}
"""Bounds that are known, with what their keys name by identity."""

_MOST_ALONE = 100_000


class _On(NamedTuple):
    """Stages, replicas and microbatches that stand for all of them in a bound."""

    stages: int = 1
    replicas: int = 1
    microbatches: int = 1


def _least_alone(
    problem: AnalyticalProblem, strategy: Strategy, choice: "Choice", on: _On, exchange: MachineExchange | None
) -> float:
    """Least seconds of a microbatch of a group on all stages together, computed once for all batches [s].

    Args:
        problem: to plan
        strategy: whose microbatch and ranks of a layer count
        choice: of its group
        on: how many stages, replicas and microbatches are looked at
        exchange: prices collectives; None: they cost nothing
    """
    key = (
        id(problem.shape),
        id(problem.program),
        id(problem.machine),
        # How many ranks there are besides those that are looked at changes nothing.
        exchange and (strategy.tensor_overlap, strategy.rank_order),
        (strategy.tp, strategy.cp, strategy.sequence_parallel, strategy.microbatch),
        choice,
        on,
    )
    if key not in _ALONE:
        if len(_ALONE) >= _MOST_ALONE:
            _ALONE.clear()
        changed: dict[str, Any] = {"pp": on.stages, "dp": on.replicas, "microbatches": on.microbatches}
        if exchange is None:
            changed["rank_order"] = RANK_ORDER
        least_s = least_seconds(
            problem.shape,
            varied(strategy, **choice._asdict(), **changed),
            problem.program,
            device=problem.machine.node.device,
            exchange=exchange or (lambda *_: 0.0),
            constants=step_constants(),
            filling=0.0,
        )
        named = problem.shape, problem.program, problem.machine
        _ALONE[key] = named, least_s / on.microbatches * on.stages
    return _ALONE[key][1]


@functools.lru_cache(maxsize=64)
def _without_experts(shape: TransformerShape) -> TransformerShape:
    """Whose layers have all but their experts."""
    return shape if shape.experts is None else replace(shape, experts=replace(shape.experts, count=0))


def model_flops(shape: TransformerShape, documents: Documents | None = None) -> float:
    """Forward and backward of a sequence as papers count them: products three times, attention without its mask [FLOP].

    Windows of attention count, as what lies outside is never computed, and so do modules that predict further tokens.

    Args:
        shape: of the network
        documents: of its sequences, without padding and attention across them; None: of one each

    Example:
        GPT-3 with 2,048 tokens: 6 for each parameter and token, and 2.8 % for attention.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> round(model_flops(shape) / (6 * 174.6e9 * 2048), 3)
        1.028
    """
    whole = Degrees()
    masked = 2.0 if shape.head == "causal" else 1.0
    tables = [
        (operations(shape, whole, layer), layer, count) for layer, count in layer_kinds(shape, (range(shape.layers),))
    ]
    tables.append((prediction_operations(shape, whole), shape.layers - 1, shape.prediction_layers))
    tokens, stack = 1.0, 0.0
    for table, layer, count in tables:
        attention, forward = 1.0, work(table, shape.sequence)
        if documents is not None:
            tokens, attention = documents.trained(shape.sequence, window=shape.window(layer), chunked=shape.chunked)
        stack += count * (tokens * forward.products + masked * attention * forward.attention)
    return 3.0 * (stack + tokens * head_forward(shape, whole).products)


# ---------------------------------------------------------------------------------------------------------------------
# Which strategies there are


_FIELDS = tuple(one.name for one in fields(Strategy))
_VALUES = operator.attrgetter(*_FIELDS)
_SETTERS = tuple(getattr(Strategy, name).__set__ for name in _FIELDS)


def varied(strategy: Strategy, **changed: Any) -> Strategy:
    """As `dataclasses.replace`, in a third of its time, which a search takes ten thousand times.

    Example:
        >>> varied(Strategy(dp=4), tp=2) == Strategy(dp=4, tp=2)
        True
    """
    found = object.__new__(Strategy)
    for setter, value in zip(_SETTERS, _VALUES(strategy), strict=True):
        setter(found, value)
    for name, value in changed.items():
        object.__setattr__(found, name, value)
    return found


def segment_layers(
    shape: TransformerShape, pipeline: int, chunks: int, *, uneven: bool = True
) -> tuple[tuple[int, ...], ...]:
    """Choices of layers for each segment of the stack; the empty one stands for equal segments.

    Args:
        shape: the network
        pipeline: stages
        chunks: of each
        uneven: segments may differ

    Returns:
        The choices; none where the stack cannot be split so.

    Example:
        Eight layers and a head that costs two, on two stages: 4 and 4, or 5 and 3. Nine on four: the
        first stages have one more, or the last ones before that with the head.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> segment_layers(gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=24576), 2, 1)
        ((), (5, 3))
        >>> segment_layers(gpt_shape(layers=9, hidden=1024, heads=16, vocabulary=24576), 4, 1)
        ((3, 3, 2, 1), (2, 3, 3, 1))
    """
    count = pipeline * chunks
    if count > shape.layers:
        return ()
    even = ((),) if shape.layers % count == 0 else ()
    if pipeline == 1 or not uneven:
        return even
    if chunks > 1:
        return even + tuple(_lighter_ends(shape.layers, count))
    weighed = _weighed(shape.layers, pipeline, head_weight(shape))
    return even if even and len(set(weighed[0])) == 1 else (*even, *weighed)


@functools.lru_cache(maxsize=64)
def head_weight(shape: TransformerShape) -> float:
    """Cost of the output layer and of the modules that predict further tokens, in layers."""
    whole = Degrees()
    layer = layer_forward(shape, whole, attention="flash2", layer=shape.layers - 1)
    module = work(prediction_operations(shape, whole), shape.sequence)
    after = head_forward(shape, whole).products + shape.prediction_layers * (module.products + module.attention)
    return after / (layer.products + layer.attention)


def _lighter_ends(layers: int, count: int) -> list[tuple[int, ...]]:
    found = []
    for first, last in ((0, 1), (1, 1)):
        each, rest = divmod(layers + first + last, count)
        if rest == 0 and each > 1:
            found.append((each - first, *[each] * (count - 2), each - last))
    return found


@functools.lru_cache(maxsize=1024)
def _weighed(layers: int, stages: int, head: float) -> tuple[tuple[int, ...], ...]:
    """The least load of the slowest stage, where one stage more has it the first ones, or the last ones.

    First layers may be lighter than others; first stages keep more microbatches, and the embedding.
    """
    counts, full = [1] * stages, [0.0] * (stages - 1) + [head]
    for _ in range(layers - stages):
        loads = [count + more for count, more in zip(counts, full, strict=True)]
        counts[loads.index(min(loads))] += 1
    return tuple(dict.fromkeys((tuple(counts), (*reversed(counts[:-1]), counts[-1]))))


def groups(problem: AnalyticalProblem, rejected: Counter[str]) -> Iterator[Strategy]:
    """A strategy of each group: degrees, microbatch and recompute.

    Args:
        problem: to plan
        rejected: counts strategies that cannot be built, by reason
    """
    for box in boxes(problem, rejected):
        yield from box.groups(problem)


class RecomputeChoices(NamedTuple):
    """Strategies that differ in what replicas shard and where it is; the step of a replica they have in common.

    Attributes:
        first: with nothing sharded
        states: in which they differ, by fields of `Strategy`
    """

    first: Strategy
    states: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def members(self) -> Iterator[Strategy]:
        """Each of them."""
        for state in self.states:
            yield varied(self.first, **state)


def members(problem: AnalyticalProblem, group: Strategy) -> Iterator[Strategy]:
    """Strategies of a group: chunks, schedules, layers of stages, sharding, and as little recomputed as fits."""
    for family in families(problem, group):
        for one in family.members:
            yield one
            yield from partly_recomputed(problem, one)


HOST_LACKS = "is more than the memory of hosts holds"
"""Reason for leaving a strategy out whose optimizer's state is there."""


def families(
    problem: AnalyticalProblem,
    group: Strategy,
    *,
    without: Collection[ZeroStage] = (),
    rejected: Counter[str] | None = None,
) -> Iterator[RecomputeChoices]:
    """The same without what is recomputed only where it fits no other way, which takes longer.

    Args:
        problem: to plan
        group: a strategy of it
        without: levels of ZeRO that are left out
        rejected: counts what hosts have no memory for; None: nobody asks
    """
    states = tuple(
        {"zero": zero, "shard_ranks": share, "offload": offload}
        for (zero, share), offload in product(zero_levels(problem, group), offloads(problem))
        if zero not in without
    )
    for schedule, chunks in _orders(problem, group) if states else ():
        together = _group(problem, group.pp, group.microbatches) if chunks > 1 else 0
        for layers in _segment_layers(problem, group, chunks):
            family = RecomputeChoices(
                varied(
                    group,
                    chunks=chunks,
                    segment_layers=layers,
                    microbatch_group=together if together > group.pp else 0,
                    schedule=schedule,
                ),
                states,
            )
            if "optimizer-offload" in problem.pins.special or problem.pins.offload:
                fitting = _with_room(problem, family)
                if rejected is not None and len(fitting.states) < len(family.states):
                    rejected[HOST_LACKS] += len(family.states) - len(fitting.states)
                family = fitting
            yield family


def _with_room(problem: AnalyticalProblem, family: RecomputeChoices) -> RecomputeChoices:
    """The same without what hosts have no room for."""
    fitting = (
        state
        for state in family.states
        if not state["offload"] or host_memory(problem, varied(family.first, **state)).fits
    )
    return family._replace(states=tuple(fitting))


class HostMemory(NamedTuple):
    """Memory that a strategy takes of each host, and that there is for it; None: it is not known [bytes]."""

    needed: int
    room: int | None

    @property
    def fits(self) -> bool:
        """Whether there is enough; of an unknown host it is not known, so there is not."""
        return not self.needed or (self.room is not None and self.needed <= self.room)


def host_memory(problem: AnalyticalProblem, strategy: Strategy) -> HostMemory:
    """What the ranks of a node put into their host's memory, and the part of it that they may take."""
    node = problem.machine.node
    ranks = min(strategy.devices, node.devices)
    needed = host_bytes(problem.shape, strategy, bookkeeping=problem.bookkeeping)
    room = node.host_room(ranks)
    return HostMemory(needed * ranks, None if room is None else room * ranks)


def partly_recomputed(problem: AnalyticalProblem, strategy: Strategy) -> Iterator[Strategy]:
    """The same with as little recomputed as fits, where it does not fit without.

    First what costs least: outputs of norms, then of the experts' activation functions, then latent attention's up
    projections, then feed-forward networks without experts, which frameworks of eager modules have no switch for; of
    these no more than are needed; next to it as few layers of each stage as fit.

    Source:
        NVIDIA/Megatron-LM, `--recompute-modules` (layernorm, moe_act, mla_up_proj, mlp); DeepSeek-AI, "DeepSeek-V3
        Technical Report", 2024, section 3.2.3, which recomputes norms and up projections.
    """
    if strategy.recomputed - SELECTIVE or strategy.schedule == "zero-bubble":
        return
    if only_whole(problem, strategy, strategy.zero):
        return
    memory = largest_rank(problem.shape, strategy, bookkeeping=problem.bookkeeping)
    if with_buffers(memory, strategy, reserve=problem.reserve).peak <= problem.memory_limit:
        return
    fits = _peak(problem, strategy) <= problem.memory_limit
    kinds = [strategy.recomputed] if fits else recomputed_before_layers(problem, strategy)
    cheap = kinds[1:]
    if cheap and _peak(problem, varied(strategy, recomputed=cheap[-1])) <= problem.memory_limit:
        tried = (varied(strategy, recomputed=more) for more in cheap)
        found = next(one for one in tried if one.recomputed == cheap[-1] or _peak(problem, one) <= problem.memory_limit)
        # With the last of them some of the others may not be needed: the dearest is left out first.
        for less, more in reversed(list(pairwise(kinds))):
            fewer = varied(found, recomputed=found.recomputed - (more - less))
            if more < found.recomputed and _peak(problem, fewer) <= problem.memory_limit:
                found = fewer
        yield found
    some = None if strategy.recomputed else _least_recomputed(problem, strategy)
    if some is not None:
        yield some


def only_whole(problem: AnalyticalProblem, strategy: Strategy, zero: ZeroStage) -> bool:
    """Whether all of a strategy's layers are recomputed, or none, with a level of ZeRO.

    Where memory lacks, replicas shard the optimizer: that is as fast, and needs less.
    """
    if problem.pins.recompute is not None or problem.pins.rules_out("memory"):
        return True
    if not framework_of(problem.framework).some_layers:
        return True
    return zero == 0 and strategy.dp * strategy.cp > 1 and problem.pins.zero is None


def _peak(problem: AnalyticalProblem, strategy: Strategy) -> float:
    """Of the largest rank, with the types with which it fits [bytes]."""
    keeping, room = problem.bookkeeping, problem.memory_limit
    shape, reserve, lenient = problem.shape, problem.reserve, problem.lenient
    return admitted(shape, strategy, keeping=keeping, room=room, reserve=reserve, lenient=lenient)[1].peak


def recomputed_before_layers(problem: AnalyticalProblem, strategy: Strategy) -> list[frozenset[Recomputed]]:
    """What a strategy recomputes, and with it what costs least, alone and with the next ones; no whole layers."""
    before = strategy.recomputed
    if problem.program.eager is not None or problem.program.year < SEQUENCE_PARALLEL:
        return [before]
    kinds: list[Recomputed] = ["norms"]
    kinds += ["activations"] if problem.shape.experts is not None else []
    kinds += ["up_projections"] if problem.shape.latent is not None else []
    # What experts compute again they would exchange again.
    kinds += ["feed_forward"] if problem.shape.experts is None else []
    return [before.union(kinds[:number]) for number in range(len(kinds) + 1)]


def _least_recomputed(problem: AnalyticalProblem, strategy: Strategy) -> Strategy | None:
    """The same with as few recomputed layers of each stage as fit; None: it fits without, or not with all but one.

    Memory falls by equal parts with each recomputed layer, so two figures say about which number it is; those next to
    it are looked at until one fits and the one before does not.
    """
    most = max(strategy.segment_layers, default=-(-problem.shape.layers // (strategy.pp * strategy.chunks)))

    def of(number: int) -> Strategy:
        return varied(strategy, recomputed=frozenset({"layers"}), recompute_layers=number)

    def beyond(one: Strategy) -> float:
        memory = largest_rank(problem.shape, one, bookkeeping=problem.bookkeeping)
        return with_buffers(memory, one, reserve=problem.reserve).peak - problem.memory_limit

    if most < 2:
        return None
    low, high = (0, beyond(strategy)), (most - 1, beyond(of(most - 1)))
    if low[1] <= 0 or high[1] > 0:
        return None
    while high[0] - low[0] > 1:
        guess = low[0] + math.ceil((high[0] - low[0]) * low[1] / (low[1] - high[1]))
        guess = min(max(guess, low[0] + 1), high[0] - 1)
        excess = beyond(of(guess))
        low, high = ((guess, excess), high) if excess > 0 else (low, (guess, excess))
    return of(high[0])


def _segment_layers(problem: AnalyticalProblem, group: Strategy, chunks: int) -> tuple[tuple[int, ...], ...]:
    pins = problem.pins
    if pins.segment_layers is None:
        found = segment_layers(problem.shape, group.pp, chunks, uneven="uneven" not in pins.forbid)
        # Chunks that are asked for may differ by a layer, as where a whole strategy is given.
        return found or (((),) if chunks == pins.chunks and group.pp * chunks <= problem.shape.layers else ())
    if not pins.segment_layers:
        return ((),) if group.pp * chunks <= problem.shape.layers else ()
    right = len(pins.segment_layers) == group.pp * chunks and sum(pins.segment_layers) == problem.shape.layers
    return (pins.segment_layers,) if right else ()


def lightest_layers(problem: AnalyticalProblem, group: Strategy) -> tuple[int, ...]:
    """Layers of the stages of a plain pipeline that needs least of those that are tried; empty: even ones nearly do.

    A stage that computes before `k` others keeps `k + 1` microbatches. With ten layers or more of each stage, one layer
    less is a tenth at most.
    """
    if problem.pins.segment_layers is None and problem.shape.layers >= 10 * group.pp:
        return ()
    each, rest = divmod(problem.shape.layers, group.pp)
    even = [each + (stage < rest) for stage in range(group.pp)]

    def most_kept(layers: tuple[int, ...]) -> int:
        return max(count * (group.pp - stage) for stage, count in enumerate(layers or even))

    return min(_segment_layers(problem, group, 1), key=most_kept, default=())


def offloads(problem: AnalyticalProblem) -> tuple[bool, ...]:
    """Whether the optimizer's state is in the memory of the host: what is tried."""
    pins = problem.pins
    if pins.offload is not None:
        return (pins.offload,)
    return (False, True) if "optimizer-offload" in pins.special else (False,)


def _by_heads(problem: AnalyticalProblem, strategy: Strategy) -> tuple[bool, ...]:
    """Whether ranks that share a sequence exchange heads."""
    if strategy.cp == 1:
        return (False,)
    shape, asked = problem.shape, problem.pins.ulysses
    possible = (shape.heads // strategy.tp) % strategy.cp == 0
    if asked is not None:
        return (asked,) if possible or not asked else ()
    # Heads pay where they are fewer bytes than the keys and values of all ranks, three times.
    heads = 2 * (2 * query_size(shape, strategy.tp) + 2 * key_size(shape, strategy.tp)) / strategy.cp
    return (False, True) if possible and heads < 3 * 2 * key_size(shape, strategy.tp) else (False,)


def _has_plain_schedules(pins: Pins) -> bool:
    """Whether pipelines have 1f1b or are interleaved."""
    other = "zero-bubble" in pins.allow or "dualpipe" in pins.special
    return pins.schedule in (None, "1f1b", "interleaved") and not other


def passes(problem: AnalyticalProblem, stages: int, microbatches: int) -> float:
    """Passes through a stage that a step takes at least, the pipeline's filling counted.

    With `m` microbatches the slowest of `p` stages computes `m` times, and one microbatch passes through the others,
    `1 / v` of it where stages have `v` chunks.

    Args:
        problem: says which chunks may be
        stages: of the pipeline
        microbatches: of a replica
    """
    pins = problem.pins
    if not _has_plain_schedules(pins):
        # Some schedules have almost no bubble.
        return microbatches
    group = 0 if pins.schedule == "1f1b" or pins.rules_out("interleaved") else _group(problem, stages, microbatches)
    chunks = (pins.chunks or problem.shape.layers // stages) if group else 1
    return microbatches + (stages - 1) / max(1, chunks)


@functools.cache
def slowest_factor(devices: int) -> float:
    """How many times as long as the mean of equal ranks the slowest of them takes, for which a step waits."""
    return step_constants().slowest_factor(devices)


def _boxes(problem: AnalyticalProblem) -> Iterator[tuple[int, int, int, int]]:
    """Ranks of a layer, stages, ranks of a sequence and replicas that are all the devices together."""
    pins, devices = problem.pins, problem.devices
    pipelines, contexts = _degrees(problem, pins.pp, "pp"), _degrees(problem, pins.cp, "cp")
    for tensor in _degrees(problem, pins.tp, "tp"):
        of_layer, rest = divmod(devices, tensor)
        for pipeline in pipelines if not rest else ():
            of_stage, rest = divmod(of_layer, pipeline)
            for context in contexts if not rest else ():
                if of_stage % context == 0:
                    yield tensor, pipeline, context, of_stage // context


@dataclass(frozen=True, slots=True)
class Box:
    """Ranks of a layer, stages, ranks of a sequence and replicas, with a bound of the step of all that has them.

    Attributes:
        tp: ranks of a layer
        pp: stages
        cp: ranks of a sequence
        dp: replicas
        bound_s: no such strategy has a shorter step [s]
        microbatch: sequences; 0: any number
        waits: the bound counts waits for other stages and replicas
    """

    tp: int
    pp: int
    cp: int
    dp: int
    bound_s: float = 0.0
    microbatch: int = 0
    waits: bool = False

    @property
    def devices(self) -> int:
        """In use."""
        return self.tp * self.pp * self.cp * self.dp

    def pinned(self, problem: AnalyticalProblem) -> AnalyticalProblem:
        """The problem on these devices, with these degrees alone."""
        pins = replace(problem.pins, tp=self.tp, pp=self.pp, cp=self.cp, dp=self.dp)
        return replace(problem, devices=self.devices, pins=pins)

    def groups(self, problem: AnalyticalProblem) -> Iterator[Strategy]:
        """A strategy of each group with these degrees and this microbatch."""
        whole = self.whole(problem)
        for choice in self.choices(problem):
            yield choice.of(whole)

    def choices(self, problem: AnalyticalProblem) -> Iterator["Choice"]:
        """In which the groups differ."""
        whole = self.whole(problem)
        every = product(_experts(problem, whole), _by_heads(problem, whole), _recomputed(problem))
        for (expert, share), heads, again in every:
            yield Choice(expert, share, heads, **again)

    def whole(self, problem: AnalyticalProblem) -> Strategy:
        """What the groups have in common."""
        pins = problem.pins
        return Strategy(
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            dp=self.dp,
            microbatch=self.microbatch,
            microbatches=problem.batch // (self.dp * self.microbatch),
            sequence_parallel=_shards_stream(problem, self.tp)
            if pins.sequence_parallel is None
            else pins.sequence_parallel,
            gradients=pins.gradients,
            optimizer_state=pins.optimizer_state,
            tensor_overlap=pins.tensor_overlap,
            rank_order=RANK_ORDER if pins.rank_order is None else pins.rank_order,
        )


def _shards_stream(problem: AnalyticalProblem, tensor: int) -> bool:
    """Whether the ranks of a layer share the residual stream, where the user says nothing: software has it or not."""
    return tensor > 1 and problem.program.year >= SEQUENCE_PARALLEL


class Choice(NamedTuple):
    """In which groups of a box differ, by fields of `Degrees`."""

    ep: int
    expert_tp: int | None
    ulysses: bool
    recomputed: frozenset[Recomputed]
    recompute_layers: int | None = None

    def of(self, whole: Strategy) -> Strategy:
        """The strategy of a group."""
        return varied(whole, **self._asdict())


def boxes(problem: AnalyticalProblem, rejected: Counter[str]) -> Iterator[Box]:
    """Boxes of all the devices, one for each microbatch, without bounds.

    Args:
        problem: to plan
        rejected: counts what cannot be built, by reason
    """
    pins = problem.pins
    for tensor, pipeline, context, data in _boxes(problem):
        reason = _refused(problem, tensor, pipeline, context, data)
        if reason:
            rejected[reason] += 1
            continue
        if pins.microbatch and problem.batch // data % pins.microbatch:
            rejected[f"microbatches of {pins.microbatch} do not divide a replica's share of the batch"] += 1
        for microbatch in _divisors(problem.batch // data):
            if pins.microbatch not in (None, microbatch):
                continue
            if pins.microbatch is None and microbatch > _MOST_MICROBATCH:
                rejected[f"microbatches of more than {_MOST_MICROBATCH} sequences"] += 1
                continue
            yield Box(tensor, pipeline, context, data, microbatch=microbatch)


def boxes_below(problem: AnalyticalProblem, below_s: float, *, most: int) -> list[Box]:
    """Boxes that may have a shorter step than a given one, the lowest bound first.

    Up to `EVERY_NUMBER` devices each number is there, of more whole nodes, and all of the problem. Which numbers there
    are does not depend on how many devices there are, so that more of them are never slower.

    Args:
        problem: to plan
        below_s: the step [s]
        most: devices
    """
    pins, shape, node = problem.pins, problem.shape, problem.machine.node.devices
    stages = [pins.pp] if pins.pp else [1] if pins.rules_out("pp") else list(range(1, shape.layers + 1))
    replicas = [pins.dp] if pins.dp else [1] if pins.rules_out("dp") else list(_divisors(problem.batch))
    every = [pins.microbatch] if pins.microbatch else list(_divisors(problem.batch))
    sizes = [size for size in every if pins.microbatch or size <= _MOST_MICROBATCH]
    found, least = [], Least(problem)
    for tensor, context in product(tensor_degrees(problem), _context_degrees(problem)):
        for data in replicas:
            share, rest = divmod(problem.batch, data)
            if rest or tensor * context * data > most:
                continue
            known = [(share // size, least.seconds(tensor, context, data, size)) for size in sizes if share % size == 0]
            if not known:
                continue
            least_s = min(number * each for number, each in known)
            for pipeline in stages:
                devices = tensor * context * data * pipeline
                if devices > most:
                    break
                if least_s >= below_s * pipeline:
                    continue
                if devices > EVERY_NUMBER and devices % node and devices != problem.devices:
                    continue
                bound_s = min(passes(problem, pipeline, number) * each for number, each in known) / pipeline
                bound_s *= slowest_factor(devices)
                if bound_s < below_s:
                    found.append(Box(tensor, pipeline, context, data, bound_s))
    return sorted(found, key=lambda box: (box.bound_s, -box.devices))


@dataclass(frozen=True)
class Least:
    """Bounds of boxes: what a microbatch takes on one stage at least, without exchanges in it and recomputation.

    Attributes:
        problem: to plan
    """

    problem: AnalyticalProblem

    def of(self, box: Box) -> float:
        """No strategy of a box with a microbatch has a shorter step [s]."""
        number = self.problem.batch // (box.dp * box.microbatch)
        each_s = self.seconds(box.tp, box.cp, box.dp, box.microbatch)
        return passes(self.problem, box.pp, number) * each_s / box.pp * slowest_factor(box.devices)

    def with_waits(self, box: Box, model: AnalyticalModel) -> Box:
        """A box with a microbatch whose bound counts what any step of it waits for other stages and replicas.

        Args:
            box: bounded as of `of`
            model: on its devices
        """
        each_s = self.seconds(box.tp, box.cp, box.dp, box.microbatch) / box.pp
        waits_s = model.waits(box.whole(self.problem), each_s) * slowest_factor(box.devices)
        return replace(box, bound_s=max(box.bound_s, self.of(box) + waits_s), waits=True)

    def seconds(self, tensor: int, context: int, data: int, size: int) -> float:
        """Of a microbatch on all stages together [s].

        Products of experts lose least where as many ranks as can be hold different ones.

        Args:
            tensor: ranks of a layer
            context: ranks of a sequence
            data: replicas
            size: sequences of a microbatch
        """
        problem = self.problem
        alone = Strategy(
            tp=tensor,
            cp=context,
            dp=data,
            microbatch=size,
            sequence_parallel=_shards_stream(problem, tensor) and problem.pins.sequence_parallel is not False,
        )
        most: dict[int | None, int] = {}
        for count, share in _experts(problem, alone):
            most[share] = max(count, most.get(share, 1))
        choices = (Choice(count, share, False, frozenset()) for share, count in most.items())
        return min((_least_alone(self._balanced, alone, choice, _On(), None) for choice in choices), default=math.inf)

    @cached_property
    def _balanced(self) -> AnalyticalProblem:
        """One rank of experts may have no more visits than the others."""
        shape = self.problem.shape
        if shape.experts is None or shape.experts.imbalance == 1.0:
            return self.problem
        return replace(self.problem, shape=replace(shape, experts=replace(shape.experts, imbalance=1.0)))


def tensor_degrees(problem: AnalyticalProblem) -> tuple[int, ...]:
    """Ranks that may share a layer, on any number of devices."""
    pins, shape = problem.pins, problem.shape
    if pins.tp is not None:
        return (pins.tp,)
    most = 1 if pins.rules_out("tp") else problem.machine.node.devices
    return tuple(degree for degree in _divisors(shape.heads) if degree <= most)


def _context_degrees(problem: AnalyticalProblem) -> tuple[int, ...]:
    pins, shape = problem.pins, problem.shape
    if pins.cp is not None:
        return (pins.cp,)
    most = 1 if pins.rules_out("cp") else max(1, shape.sequence // _LEAST_CONTEXT)
    return tuple(degree for degree in range(1, most + 1) if degree == 1 or shape.sequence % (2 * degree) == 0)


def _degrees(problem: AnalyticalProblem, pinned: int | None, name: str) -> tuple[int, ...]:
    if pinned is not None:
        return (pinned,)
    return (1,) if problem.pins.rules_out(name) else _divisors(problem.devices)


def _refused(problem: AnalyticalProblem, tensor: int, pipeline: int, context: int, data: int) -> str:
    shape, pins, least = problem.shape, problem.pins, f"less than {_LEAST_CONTEXT} tokens of a sequence on a rank"
    order = RANK_ORDER if pins.rank_order is None else pins.rank_order
    missing = missing_from_order(order, {"tp": tensor, "cp": context, "dp": data, "pp": pipeline})
    # What is not pinned divides best as 1.
    spread = Strategy(tp=tensor, cp=context, dp=data, ep=pins.ep or 1, expert_tp=pins.etp or 1)
    cases = {
        **dict.fromkeys(expert_obstacles(shape, spread) if pins.ep or pins.etp else (), True),
        "another number of replicas is asked for": pins.dp not in (None, data) or (pins.rules_out("dp") and data > 1),
        "the batch does not divide over the replicas": problem.batch % data > 0,
        "more stages than layers": pipeline > shape.layers,
        f"{pins.chunks} chunks a stage are more segments than layers": pipeline * (pins.chunks or 0) > shape.layers,
        **dict.fromkeys(tensor_obstacle(shape, tensor), True),
        f"the order of ranks leaves {''.join(missing[:1])} out": bool(missing),
        "tensor-parallel ranks on several nodes": pins.tp is None and tensor > problem.machine.node.devices,
        least: context > 1 and pins.cp is None and shape.sequence // context < _LEAST_CONTEXT,
        "the sequence does not divide over the ranks": context > 1 and shape.sequence % (2 * context) > 0,
    }
    return next((reason for reason, is_so in cases.items() if is_so), "")


def _experts(problem: AnalyticalProblem, strategy: Strategy) -> tuple[tuple[int, int | None], ...]:
    """Ranks with different experts, and ranks that share each of them.

    Experts are spread over all ranks of a stage, whatever shares its attention: `ep · etp` divides `tp · cp · dp`.

    Source:
        Liu et al., "MoE Parallel Folding", 2025 (arXiv:2504.14960), section 3, as in Megatron.
    """
    experts, pins = problem.shape.experts, problem.pins
    if experts is None:
        return ((1, None),) if pins.ep in (None, 1) else ()
    ranks = strategy.tp * strategy.cp * strategy.dp
    counts = (1,) if pins.rules_out("ep") else _divisors(experts.count)
    shares = _divisors(strategy.tp) if pins.etp is None else (pins.etp,)
    return tuple(
        (count, share)
        for count, share in product(counts, shares)
        if pins.ep in (None, count) and ranks % (count * share) == 0 and experts.ffn % share == 0
    )


def _recomputed(problem: AnalyticalProblem) -> tuple[dict[str, Any], ...]:
    """Fields of what is recomputed: nothing, the cheap part, all layers; attention's core where it is large."""
    pins = problem.pins
    nothing, some, every = read_recompute("none"), read_recompute("selective"), read_recompute("layers")
    if pins.rules_out("memory") or pins.recompute == "none":
        return (nothing,)
    if pins.recompute == "selective":
        return (some,)
    if pins.recompute:
        return (read_recompute(pins.recompute),)
    return (nothing, some, every) if problem.program.attention == "math" else (nothing, every)


def _orders(problem: AnalyticalProblem, strategy: Strategy) -> Iterator[tuple[Schedule, int]]:
    """Schedules that are tried, with the chunks of each stage: plain ones, and those that the user allows."""
    pins = problem.pins
    if strategy.pp == 1:
        if pins.chunks in (None, 1) and pins.schedule in (None, "1f1b"):
            yield "1f1b", 1
        return
    asked: tuple[Schedule, ...] = ("1f1b", "interleaved")
    asked += ("zero-bubble",) if "zero-bubble" in pins.allow else ()
    asked += ("dualpipe", "dualpipev") if "dualpipe" in pins.special else ()
    if pins.schedule is not None:
        asked = (pins.schedule,)
    for schedule in asked:
        if schedule == "interleaved":
            if pins.rules_out("interleaved") or not _group(problem, strategy.pp, strategy.microbatches):
                continue
            if pins.chunks is None and problem.program.year < INTERLEAVED:
                continue
            most = min(_MOST_CHUNKS, problem.shape.layers // strategy.pp)
            chunks = range(2, most + 1) if pins.chunks is None else (pins.chunks,)
            yield from (("interleaved", count) for count in chunks if count > 1)
        elif pins.chunks in (None, 1) and not next(schedule_obstacles(replace(strategy, schedule=schedule)), ""):
            yield schedule, 1


_MOST_CHUNKS = 12
"""Of a stage that are tried where the user says none: the largest number of a documented run (Nemotron-4 340B,
NVIDIA/NeMo's recipe). More of them save some thousandths of a step on paper, and nobody runs them."""

_ANY_GROUP_SINCE = 2024.83
"""Megatron takes groups of more microbatches than stages since November 2024 (NVIDIA/Megatron-LM@4295be1a6c)."""


def _group(problem: AnalyticalProblem, stages: int, microbatches: int) -> int:
    """Microbatches that a chunk of an interleaved pipeline computes before the next one; 0: it is not interleaved.

    With experts larger groups are tried where the batch has a prime factor above seven, which few stages divide. With
    other batches they are up to twice the work of a search, and of 69 such plans none had some.

    Source:
        NVIDIA/Megatron-LM, `microbatch_group_size_per_vp_stage`; pytorch/pytorch, distributed/pipelining/schedules.py,
        `ScheduleInterleaved1F1B`, whose rounds are equal.
    """
    program, rounds = problem.program, microbatches // stages
    if problem.pins.microbatch_group:
        return problem.pins.microbatch_group
    if not microbatches % stages or not rounds:
        return stages if rounds else 0
    if problem.shape.experts is not None and not _has_large_prime(problem.batch):
        return 0
    if program.eager is not None:
        return 0 if microbatches % rounds else microbatches // rounds
    return microbatch_group(stages, microbatches) if program.tuned and program.year >= _ANY_GROUP_SINCE else 0


@functools.cache
def _has_large_prime(batch: int) -> bool:
    """Whether a batch has a prime factor above seven.

    Example:
        >>> [_has_large_prime(batch) for batch in (1024, 840, 608)]
        [False, False, True]
    """
    for prime in (2, 3, 5, 7):
        while batch % prime == 0:
            batch //= prime
    return batch > 1


def zero_levels(problem: AnalyticalProblem, strategy: Strategy) -> tuple[tuple[ZeroStage, int | None], ...]:
    """Levels of ZeRO that are tried, with the ranks that share one copy of state: all of them, or those of a node."""
    pins, ranks = problem.pins, strategy.dp * strategy.cp
    tried: tuple[ZeroStage, ...]
    if pins.zero is not None:
        # One replica has nobody to share state with.
        tried = (pins.zero,) if ranks > 1 or not pins.zero else ()
    elif pins.rules_out("zero") or ranks == 1:
        tried = (0,)
    else:
        tried = framework_of(problem.framework).levels
    if pins.shard_ranks is not None:
        return tuple((zero, pins.shard_ranks) for zero in tried if zero and ranks % pins.shard_ranks == 0)
    found: list[tuple[ZeroStage, int | None]] = [(zero, None) for zero in tried]
    near = problem.machine.node.devices // strategy.tp
    if 3 in tried and 1 < near < ranks and ranks % near == 0 and not pins.strategy:
        found.append((3, near))
    return tuple(found)


def _divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending.

    Example:
        >>> _divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))
