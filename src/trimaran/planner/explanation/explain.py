"""Explanation of a plan, from the same simulations that chose it.

    bottleneck      the critical path of the step, by class
    alternatives    every other candidate, how much slower, and whether that is certain
    why not X       the best of a kind, simulated even if it was rejected, class by class next to the plan
    what if         costs or devices otherwise: the same plan again, and the whole search again
    remedies        the known remedies for the bottleneck, tried on the simulator

Each figure is a difference of two simulations by the same costs, not a rule of thumb.

Names of a strategy or a group of them, such as "pp", "dp2", "pp2-gpipe-m4", "fsdp", "one device".

A name is a list of words. A strategy belongs to it if each word holds: words that names of strategies have ("dp2",
"zero3", "m4", "gpipe", "b1MiB", "bf16", "powersgd-r2", "compiled"), read as `read_strategy` reads them, and words of
kinds: "dp", "pp", "tp", "zero" (or "fsdp"), "placement", "sharded" (the kinds of `pins.py`), "compress", "powersgd",
"hybrid" (replicas of stages, places or sharded operations), "one" or "single" (one device). A name with kinds
excludes strategies that use other kinds: "dp" are replicas of whole networks that exchange whole gradients, "pp" is one
pipeline.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.remedies import Remedy
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.analytical.search import fastest
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import MODEL_ERROR, Option
from trimaran.planner.explanation.contrast import Anatomy, Contrast, conclude, dissect, is_believed_slower, ratios
from trimaran.planner.explanation.remedies import (
    Outcome,
    Replan,
    analytical_changes,
    analytical_outcome_of,
    chosen_after,
    default_changes,
    outcome_of,
    rank_outcomes,
    remedies_for,
)
from trimaran.planner.explanation.what_if import Change
from trimaran.planner.pins import Pins, pins_of_strategy, spreading
from trimaran.planner.problem import Problem, assess, is_compiled_known, lack_of_memory, quick_bounds
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.space import METHODS, Rejection, unplaced
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Strategy, said_by

_EXAMPLES = (
    *("one device", "dp", "dp2", "pp", "pp2", "tp", "tp2", "placement", "fsdp", "zero1", "sharded", "p2p", "hybrid"),
    "hierarchical",
    *(
        "gpipe",
        "1f1b",
        "interleaved",
        "zero-bubble",
        "pipedream",
        "m4",
        "b1MiB",
        "bf16",
        "powersgd-r2",
        "eager",
        "compiled",
    ),
)

_SINGLE = frozenset({"one", "single", "device"})
_KINDS = frozenset({"dp", "pp", "tp", "zero", "placement", "sharded"})
_GENERIC = _KINDS | _SINGLE | {"hybrid", "compress", "powersgd"}
# Other ways to say a word.
_SYNONYMS = {"fsdp": "zero3", "fsdp2": "zero3", "placed": "placement", "ddp": "dp", "classifier": "sharded"}
_SYNONYMS |= dict.fromkeys(("zb", "zerobubble"), "zero-bubble") | dict.fromkeys(
    ("compressed", "compression"), "compress"
)
_WORD = re.compile(r"powersgd-r[0-9]+|zero-bubble|[a-z0-9.B]+")
_SPELLINGS = (
    (re.compile(r"powersgd[-: ]?r?([1-9][0-9]{0,3})"), r"powersgd-r\1"),
    (re.compile("zero bubble"), "zero-bubble"),
    (re.compile("placed on"), "placed"),
    (re.compile(r"\b(b[0-9]+)b\b"), r"\1B"),
)
# Where a name does not say how many microbatches there are: the number of stages, times these.
_RATIOS = (1, 2, 4)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StrategyFilter:
    """A name, read.

    Attributes:
        name: as it was written
        kinds: its words of kinds
        said: fields of a strategy, as its other words say them
    """

    name: str
    kinds: frozenset[str]
    said: Mapping[str, Any]

    @property
    def named(self) -> frozenset[str]:
        """The kinds of parallelism that it names, with degrees or without."""
        return _KINDS & (self.kinds | self.said.keys())

    @property
    def is_of_compression(self) -> bool:
        """Whether it says something of compression."""
        return bool(self.kinds & {"compress", "powersgd"}) or "compression" in self.said

    def __contains__(self, strategy: Strategy) -> bool:
        """Whether a strategy belongs to the family."""
        if any(getattr(strategy, name) != value for name, value in self.said.items()):
            return False
        # What names leave out where it says nothing.
        lone = ("schedule" in self.said and (strategy.pp == 1 or strategy.parts)) or (
            strategy.dp == 1 and self.said.keys() & {"bucket_bytes", "sync"}
        )
        if lone or not all(_holds(kind, strategy) for kind in self.kinds):
            return False
        if not self.named or self.kinds & (_SINGLE | {"hybrid"}):
            return True
        # Replicas share their state, so the name omits them.
        implied = {"dp"} if self.named & {"zero", "sharded"} else set()
        lossless = strategy.compression is None or self.is_of_compression
        return lossless and spreading(strategy) & _KINDS <= self.named | implied


def read_family(name: str) -> StrategyFilter:
    """Read a name.

    Args:
        name: in any case; words are separated by anything but letters and digits

    Raises:
        InputError: an unknown word, with similar ones; a degree that is not possible, or a word twice

    Example:
        >>> Strategy(pp=2, microbatches=4, boundaries=("a",)) in read_family("PP")
        True
        >>> dict(read_family("pp2-gpipe-m4").said)
        {'pp': 2, 'schedule': 'gpipe', 'microbatches': 4}
    """
    text = name.lower()
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    words = [_SYNONYMS.get(word, word) for word in _WORD.findall(text)]
    kinds = frozenset(words) & _GENERIC
    try:
        said = said_by(" ".join(word for word in words if word not in kinds))
    except InputError as error:
        if error.code != "strategy.unknown-word":
            raise
        said, words = {}, [*words, ""]
    if not words or "" in words:
        near = difflib.get_close_matches(" ".join(words).strip(), _EXAMPLES, n=2, cutoff=0.5)
        hint = "did you mean " + " or ".join(f'"{one}"' for one in near) + "?"
        known = f"names are made of {', '.join(_EXAMPLES)}, as in pp2-gpipe-m4"
        raise InputError(
            f'no strategy is called "{name}"; {hint if near else known}', code="strategy.unknown-name", strategy=name
        )
    return StrategyFilter(name=name, kinds=kinds, said=said)


def imagine(family: StrategyFilter) -> Sequence[Strategy]:
    """Strategies of a family that a search did not consider, as its words describe them.

    Example:
        >>> [strategy.name for strategy in imagine(read_family("pp4 1f1b m8"))]
        ['pp4 1f1b m8']
        >>> [strategy.name for strategy in imagine(read_family("dp"))]
        ['dp2']
        >>> [strategy.name for strategy in imagine(read_family("b512KiB"))]
        ['dp2 b512KiB']
        >>> [strategy.name for strategy in imagine(read_family("powersgd:2"))]
        ['dp2 powersgd-r2']
    """
    said, kinds, both = family.said, family.named, "hybrid" in family.kinds
    staged = "schedule" in said or bool(kinds & {"pp", "placement"}) or (both and "tp" not in kinds)
    methods = compressions_of(family) or (None,)
    nodes = 2 if said.get("sync") == "hierarchical" else 1
    # Only replicas have buckets, owners, nodes and shared state.
    replicated = both or bool(kinds & {"dp", "zero", "sharded"}) or "sync" in said
    replicated = replicated or ("bucket_bytes" in said and not staged) or methods != (None,)
    usual: dict[str, Any] = {
        "dp": 2 * nodes if replicated else 1,
        "pp": 2 if staged else 1,
        "tp": 2 if "tp" in kinds else 1,
        "zero": 3 if "zero" in kinds else 0,
        "nodes": nodes,
    }
    chunks = said.get("chunks", 2) if said.get("schedule") == "interleaved" else 1
    strategy = Strategy(**{**usual, **said, "chunks": chunks, "compression": None})
    if "placement" in kinds:
        return (unplaced(strategy),)
    counts: Sequence[int] = (strategy.microbatches,)
    if strategy.pp > 1 and "microbatches" not in said and not strategy.is_stale:
        counts = tuple(strategy.pp * ratio for ratio in _RATIOS)
    return tuple(
        dataclasses.replace(strategy, microbatches=count, compression=method) for count in counts for method in methods
    )


def compressions_of(family: StrategyFilter) -> tuple[Compression, ...]:
    """The compressions of gradients that the words of a family describe.

    Example:
        >>> [method.name for method in compressions_of(read_family("dp2 powersgd-r8"))]
        ['powersgd-r8']
    """
    if "compression" in family.said:
        return (family.said["compression"],)
    if "powersgd" in family.kinds:
        return tuple(method for method in METHODS if method.method == "powersgd")
    return METHODS if "compress" in family.kinds else ()


def _holds(kind: str, strategy: Strategy) -> bool:
    """Whether a strategy is of a kind."""
    if kind in _SINGLE:
        return strategy.devices == 1
    if kind == "hybrid":
        return strategy.dp > 1 and strategy.pp * strategy.tp > 1
    if kind == "dp":
        return strategy.dp > 1
    if kind in ("compress", "powersgd"):
        method = strategy.compression
        return method is not None and kind in ("compress", method.method)
    return kind in spreading(strategy)


# Causes that rule a strategy out at any speed.
_OBSTACLES = frozenset({"split", "batch", "memory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A candidate compared with the chosen one.

    Attributes:
        candidate: the candidate
        slower: its step, or epoch, over that of the chosen one, minus 1
        interval: the least and the most of that over low, median and high costs
        is_certain: slower or faster, as `slower` says, beyond the uncertainty
    """

    candidate: Option
    slower: float
    interval: tuple[float, float]
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan.

    Attributes:
        chosen: parts of its step
        alternatives: the other candidates, fastest first
        contrasts: an answer for each kind that was asked about
        rejected: strategies that were not priced or do not fit, where they are kept one by one
        outcomes: an answer for each change, most gain first
        remedies: the known remedies that save more than the simulation leaves out, most first; none where no program
            was simulated
        not_worth_it: those that save less, most first
        prices: cost of each pin of the request
        rule: by which the plan was chosen over listed faster ones; empty where there are none, or the search chose
            another plan
        is_fresh: the plan is the choice of the search
    """

    chosen: Anatomy
    alternatives: tuple[Alternative, ...]
    contrasts: tuple[Contrast, ...]
    rejected: tuple[Rejection, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    not_worth_it: tuple[Remedy, ...] = ()
    prices: tuple[PinPrice, ...] = ()
    rule: str
    is_fresh: bool = True


class Case(Protocol):
    """The model behind an explanation: simulations of programs, or the analytical model."""

    @property
    def found(self) -> Search[Any]:
        """Result of the search."""

    def dissect(self, option: Any, /) -> Anatomy:
        """Parts of the step of a plan."""

    def contrasted(self) -> Iterator[tuple[str, Option | None, str]]:
        """For each kind that was asked about: its name, the best of it, why it cannot be run; empty where it can."""

    def what_helps(self, anatomy: Anatomy, /) -> tuple[tuple[Outcome, ...], tuple[Remedy, ...]]:
        """Gains of changes, and of remedies where a program is simulated."""


def explain(case: Case, *, chosen: Option | None = None, paid: Sequence[PinPrice] = (), goal: str = "") -> Explanation:
    """Explain a plan.

    Args:
        case: model and search
        chosen: the plan; None: the choice of the search
        paid: cost of each pin
        goal: objective over all batches; empty: the step
    """
    found = case.found
    plan = found.chosen if chosen is None else chosen
    is_fresh = plan.strategy == found.chosen.strategy
    anatomy = case.dissect(plan)
    outcomes, remedies = case.what_helps(anatomy)
    return Explanation(
        chosen=anatomy,
        alternatives=tuple(alternative(one, plan) for one in found.candidates if one.strategy != plan.strategy),
        rejected=found.rejected,
        contrasts=tuple(contrasts(case, anatomy, goal=goal)),
        outcomes=outcomes,
        remedies=tuple(remedy for remedy in remedies if remedy.predicted_gain > MODEL_ERROR),
        not_worth_it=tuple(remedy for remedy in remedies if remedy.predicted_gain <= MODEL_ERROR),
        prices=tuple(paid),
        rule=found.rule(goal=goal) if is_fresh else "",
        is_fresh=is_fresh,
    )


def contrasts(case: Case, chosen: Anatomy, *, goal: str = "") -> Iterator[Contrast]:
    """The best of each kind that was asked about, compared with the chosen plan.

    Args:
        case: model and search
        chosen: parts of the plan's step
        goal: objective over all batches; empty: the step
    """
    found, plan = case.found, chosen.candidate
    is_fresh = plan.strategy == found.chosen.strategy
    for name, best, obstacle in case.contrasted():
        if best is None:
            yield Contrast(asked=name, other=None, obstacle=obstacle, conclusion=f"{name} cannot be run: {obstacle}.")
        elif best.strategy == plan.strategy:
            sentence = f"{best.name} is the plan, and the best of {name}."
            yield Contrast(asked=name, other=chosen, obstacle=obstacle, conclusion=sentence)
        else:
            other = case.dissect(best)
            listed, against = (found.candidates, found.against) if is_fresh else ((), "")
            sentence = conclude(chosen, other, obstacle=obstacle, candidates=listed, against=against, goal=goal)
            yield Contrast(asked=name, other=other, obstacle=obstacle, conclusion=sentence)


def best_of_kind(
    found: Search[Candidate],
    problem: Problem,
    holds: Callable[[Strategy], bool],
    described: Sequence[Strategy] = (),
) -> tuple[Candidate | None, str]:
    """The best strategy of a kind, simulated where the search has not, and why it cannot be run; empty: it can.

    Of what the search rejected, those that can be run come first, in the order of their bounds, until none is below the
    best.

    Args:
        found: result of the search
        problem: that was searched
        holds: whether a strategy is of the kind
        described: of the kind, to simulate where the search has none
    """
    bounds = quick_bounds(problem)

    def least_s(strategy: Strategy) -> float:
        if strategy.devices > problem.devices:
            return 0.0
        try:
            return bounds.of(strategy).objective_s
        except InputError:
            return 0.0

    known = [one for one in found.candidates if holds(one.strategy)]
    best, obstacle, first = min(known, key=lambda one: one.objective_s, default=None), "", ""
    left = {
        entry.strategy: entry.reason if entry.cause in _OBSTACLES else ""
        for entry in found.rejected
        if holds(entry.strategy)
    }
    if best is None and not left:
        left = dict.fromkeys(described, "")
    rising = sorted(((bool(why), least_s(one), one) for one, why in left.items()), key=lambda entry: entry[:2])
    for barred, bound_s, strategy in rising:
        if best is not None and (barred, bound_s) >= (bool(obstacle), best.objective_s):
            break
        candidate, why = _attempt(strategy, left[strategy], problem)
        first = first or why
        if candidate is not None and (
            best is None or (bool(why), candidate.objective_s) < (bool(obstacle), best.objective_s)
        ):
            best, obstacle = candidate, why
    return best, obstacle if best is not None else first


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCase:
    """A plan whose program was simulated.

    Attributes:
        problem: that was searched
        found: result of the search
        why_not: kinds of strategies to compare with
        changes: to try; None: the usual ones
        replan: finds the choice after a change
    """

    problem: Problem
    found: Search[Candidate]
    why_not: Sequence[StrategyFilter] = ()
    changes: Sequence[Change] | None = None
    replan: Replan = chosen_after

    def dissect(self, option: Candidate) -> Anatomy:
        """The classes of its critical path."""
        return dissect(option, self.problem)

    def contrasted(self) -> Iterator[tuple[str, Candidate | None, str]]:
        """The best of each kind, which is simulated where the search has not."""
        for family in self.why_not:
            yield family.name, *best_of_kind(self.found, self.problem, family.__contains__, imagine(family))

    def what_helps(self, anatomy: Anatomy) -> tuple[tuple[Outcome, ...], tuple[Remedy, ...]]:
        """Gains of changes and remedies on the simulator."""
        problem, plan = self.problem, cast(Candidate, anatomy.candidate)
        asked = default_changes(problem) if self.changes is None else self.changes
        hurried = problem.shared_among(len(asked))
        outcomes = rank_outcomes([outcome_of(change, plan, hurried, self.replan) for change in asked])
        return outcomes, remedies_for(plan, anatomy.parts, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalCase:
    """A plan of the analytical model: no program, so no critical path, and no remedies are simulated.

    Attributes:
        problem: that was searched
        found: result of the search; its pins do not bind the kinds
        why_not: kinds to compare with
        changes: to try; None: the usual ones
    """

    problem: AnalyticalProblem
    found: Search[AnalyticalCandidate]
    why_not: Sequence[tuple[str, Pins]] = ()
    changes: Sequence[Change] | None = None

    def dissect(self, option: AnalyticalCandidate) -> Anatomy:
        """The parts of its step."""
        return Anatomy(candidate=option, parts=option.parts)

    def contrasted(self) -> Iterator[tuple[str, AnalyticalCandidate | None, str]]:
        """The choice of a search with the pins of each kind."""
        for name, pins in self.why_not:
            try:
                yield name, fastest(dataclasses.replace(self.problem, pins=pins)), ""
            except InfeasibleError as error:
                yield name, None, error.message

    def what_helps(self, anatomy: Anatomy) -> tuple[tuple[Outcome, ...], tuple[Remedy, ...]]:
        """Gains of changes, by the model."""
        problem, plan = self.problem, cast(AnalyticalCandidate, anatomy.candidate)
        asked = analytical_changes(problem) if self.changes is None else self.changes
        limit_s = problem.time_limit_s
        hurried = dataclasses.replace(problem, time_limit_s=None if limit_s is None else limit_s / len(asked))
        return rank_outcomes([analytical_outcome_of(change, plan, hurried) for change in asked]), ()


_PINS_OF_KINDS = {
    "fsdp": Pins(zero=3, forbid=("cp", "pp", "tp")),
    "ddp": Pins(zero=0, forbid=("cp", "pp", "tp")),
    "tp": Pins(forbid=("cp", "pp")),
    "pp": Pins(forbid=("cp", "tp")),
}
_DEGREE = re.compile(r"(tp|pp|cp|dp|ep)(?=[1-9])([0-9]{1,6})|(zero)([0-3])")


def pins_of_kind(name: str) -> Pins:
    """The pins of a kind of strategies, where the analytical model plans.

    Args:
        name: "fsdp", "ddp", "tp" (no stages), "pp" (layers whole), in any case; or degrees, of which those that are not
            named are free; or a strategy as plans print it

    Raises:
        InputError: no such kind

    Example:
        >>> pins = pins_of_kind("tp8-pp4-zero1")
        >>> pins.tp, pins.pp, pins.dp, pins.zero
        (8, 4, None, 1)
        >>> pins_of_kind("dp2 pp4 interleaved x2 m8 mb2").names
        ('--strategy dp2 pp4 interleaved x2 m8 mb2',)
    """
    lower = name.strip().lower()
    if lower in _PINS_OF_KINDS:
        return _PINS_OF_KINDS[lower]
    words = [_DEGREE.fullmatch(word) for word in re.split(r"[\s-]", lower)]
    if None in words and " " in lower:
        return pins_of_strategy(name.strip())
    degrees: dict[str, Any] = {word[1] or word[3]: int(word[2] or word[4]) for word in words if word is not None}
    if len(degrees) < len(words):
        raise InputError(
            f'--why-not "{name}": the analytical model chooses parallel degrees; choose one of '
            f'{", ".join(_PINS_OF_KINDS)}, or degrees, each once, such as "tp8", "pp4-dp32", "tp2-zero3"',
            code="why-not.unknown-degrees",
            why_not=name,
        )
    return Pins(**degrees)


def alternative(candidate: Option, chosen: Option) -> Alternative:
    """A candidate compared with the chosen one."""
    cases = ratios(candidate, chosen)
    return Alternative(
        candidate=candidate,
        slower=cases[1] - 1.0,
        interval=(min(cases) - 1.0, max(cases) - 1.0),
        is_certain=is_believed_slower(candidate, chosen) or is_believed_slower(chosen, candidate),
    )


def _attempt(strategy: Strategy, reason: str, problem: Problem) -> tuple[Candidate | None, str]:
    """Simulate strategies that a search rejected or never considered; the reason against them."""
    if strategy.devices > problem.devices:
        return None, (
            f"{strategy.name} needs {strategy.devices} devices, there are {problem.devices}; "
            f"--what-if devices={strategy.devices} shows their gain"
        )
    against = problem.pins.objection(strategy)
    if against and not reason:
        reason = f"it is ruled out by {against}"
    if strategy.execution == "compiled" and not is_compiled_known(problem):
        return None, "compiled segments were not measured; --execution compiled measures them"
    try:
        candidate = assess(strategy, problem)
    except (InfeasibleError, InputError) as error:
        return None, reason or error.message
    return candidate, reason or lack_of_memory(candidate.peak_bytes, problem)
