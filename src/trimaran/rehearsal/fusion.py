"""A record as a compiler would have left it: chains of pointwise kernels and reductions are one kernel each.

    products, attention, collectives   stay as they are
    chain between two of them          reads once what others made, writes once what others read
    made in a chain, read in no other  takes no memory
    made in forward, read in backward  kept, or recomputed from what its chain has, whichever keeps fewer bytes

Source: Ansel et al., "PyTorch 2" (ASPLOS 2024), of what is kept for the backward, and of what
TorchInductor fuses: products, convolutions and attention are calls of libraries. Left out: chains across a product, and
what a product does with its result at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from trimaran.graph.kernels.convert import works_alone
from trimaran.graph.kernels.workload import WorkKind
from trimaran.rehearsal.prices import as_operation, nbytes_of
from trimaran.rehearsal.record import (
    Event,
    Issue,
    Kernel,
    Moves,
    Name,
    Purpose,
    Record,
    Run,
    Step,
    Sync,
    Take,
    TensorForm,
)

FUSED = "inductor.fused.default"
"""Name of the kernel of a chain."""

KINDS = frozenset({
    WorkKind.NORMALIZATION, WorkKind.POOLING, WorkKind.SOFTMAX, WorkKind.REDUCTION, WorkKind.ELEMENTWISE, WorkKind.COPY,
})  # fmt: skip
"""Families that are fused. Embeddings, which read some rows of a table, stay as they are."""

_ENDS = (Issue, Step, Sync)


class _Chain:
    """Kernels that become one.

    Attributes:
        part: of the step
        last: of their launches
        places: of their launches among the events
        runs: blocks that each reads and writes
    """

    def __init__(self, first: Run) -> None:
        self.part = first.part
        self.last = first
        self.places: list[int] = []
        self.runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def add(self, place: int, run: Run, moves: Moves) -> None:
        """One more kernel."""
        self.last = run
        self.places.append(place)
        self.runs.append((moves.reads, moves.writes))


def compiles(record: Record) -> bool:
    """Whether a compiler has any of a script's kernels; it is rehearsed without."""
    return any(type(event) is Moves and event.compiled for event in record.events)


def fused(record: Record) -> Record:
    """The record with its chains fused; itself where nothing is compiled."""
    return _Fusion(record).give() if compiles(record) else record


class _Fusion:
    """Finds the chains of a record, then what of each must be in memory.

    Args:
        record: that says which blocks its kernels read and write
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._chains: list[_Chain] = []
        self._takes: dict[int, Take] = {}
        self._purpose: dict[int, Purpose] = {}
        self._maker: dict[int, int] = {}  # chain that made a block; -1: no chain
        self._readers: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)  # chains or -1, and part
        self._read: defaultdict[tuple[int, int], int] = defaultdict(int)  # bytes by chain and block
        self._find()
        self._origins: dict[int, frozenset[int]] = {}  # of a block that is recomputed
        self._left = dict.fromkeys(self._maker, 1.0)  # share of a block's bytes that it still takes
        for number, chain in enumerate(self._chains):
            self._settle(number, chain)

    def _find(self) -> None:
        fusable = [_fuses(kernel) for kernel in self._record.kernels]
        last: dict[int, int] = {}  # the chain that may go on, of a stream
        run, place = None, 0
        for index, event in enumerate(self._record.events):
            if type(event) is Take:
                self._takes[event.block] = event
                self._purpose[event.block] = event.purpose
            elif type(event) is Name:
                self._purpose[event.block] = event.purpose
            elif type(event) is Run:
                run, place = event, index
            elif type(event) is Moves and run is not None:
                number = -1
                if event.compiled and fusable[run.kernel]:
                    number = last.get(run.stream, -1)
                    if number < 0 or self._chains[number].part != run.part:
                        number = len(self._chains)
                        self._chains.append(_Chain(run))
                    self._chains[number].add(place, run, event)
                last[run.stream] = number
                for block, form in zip(event.reads, self._record.kernels[run.kernel].inputs, strict=False):
                    self._readers[block].add((number, run.part))
                    self._read[number, block] += nbytes_of(form)
                for block in event.writes:
                    self._maker.setdefault(block, number)
                run = None
            elif type(event) in _ENDS:
                last.clear()

    def _passes(self, block: int) -> bool:
        """Whether a block is made and used up in a step."""
        return self._purpose.get(block) in ("activation", "temporary")

    def _nbytes(self, blocks: Iterable[int]) -> int:
        return sum(self._takes[block].nbytes for block in blocks if block in self._takes)

    def _settle(self, number: int, chain: _Chain) -> None:
        """Decide which blocks of a chain are in memory."""
        later: set[int] = set()  # that only chains of the backward read
        gone: set[int] = set()
        made = {block for _, writes in chain.runs for block in writes if self._maker[block] == number}
        for block in filter(self._passes, made):
            others = {(reader, part) for reader, part in self._readers[block] if reader != number}
            if not others:
                gone.add(block)
            elif chain.part == "forward" and all(reader >= 0 and part == "backward" for reader, part in others):
                later.add(block)
        if later:
            origins: dict[int, frozenset[int]] = {}
            for reads, writes in chain.runs:
                source = frozenset[int]().union(*(origins.get(block, frozenset({block})) for block in reads))
                for block in writes:
                    own = frozenset({block})
                    if block in later | gone and self._cost(source, later) < self._cost(own, later):
                        origins[block] = source
            kept = frozenset[int]().union(*(origins.get(block, frozenset({block})) for block in later))
            gone |= later - kept
            for block in later - kept:
                self._origins[block] = origins[block]
            others_kept = self._cost(kept - made, later)
            if others_kept and (total := self._nbytes(later - kept)):
                self._left |= dict.fromkeys(later - kept, min(1.0, others_kept / total))
                gone -= later - kept
        self._left |= dict.fromkeys(gone, 0.0)

    def _cost(self, blocks: Iterable[int], later: set[int]) -> int:
        """Bytes that are kept for the backward only on account of these."""
        return self._nbytes(
            block
            for block in blocks
            if self._passes(block)
            and (block in later or not any(part == "backward" for _, part in self._readers[block]))
        )

    def give(self) -> Record:
        """The record with one kernel for each chain."""
        kernels = list(self._record.kernels)
        known: dict[tuple[int, int], int] = {}
        instead: dict[int, Event | None] = {}
        for number, chain in enumerate(self._chains):
            key = self._moved(number, chain)
            index = known.get(key)
            if index is None:
                index = known[key] = len(kernels)
                read, written = (TensorForm((nbytes,), "uint8") for nbytes in key)
                kernels.append(Kernel(FUSED, (read,), (written,), {}, 0))
            instead |= dict.fromkeys(chain.places)
            instead[chain.places[-1]] = msgspec.structs.replace(chain.last, kernel=index)
        events: list[Event] = []
        for place, event in enumerate(self._record.events):
            one = instead.get(place, event)
            if type(one) is Take and (share := self._left.get(one.block, 1.0)) < 1.0:
                one = msgspec.structs.replace(one, nbytes=round(share * one.nbytes))
            if one is not None and type(one) is not Moves:
                events.append(one)
        return msgspec.structs.replace(self._record, kernels=kernels, events=events)

    def _moved(self, number: int, chain: _Chain) -> tuple[int, int]:
        """Bytes that a chain reads and writes."""
        made: set[int] = set()
        read: dict[int, int] = {}
        for reads, writes in chain.runs:
            for block in set(reads) - made:
                if origins := self._origins.get(block):
                    read |= {one: self._nbytes([one]) for one in origins - made}
                else:
                    read[block] = self._read[number, block]
            made.update(writes)
        written = {block for block in made if block not in self._origins and self._left.get(block, 1.0) > 0.0}
        bound: Mapping[int, int] = {block: self._nbytes([block]) or nbytes for block, nbytes in read.items()}
        return sum(min(nbytes, bound[block]) for block, nbytes in read.items()), self._nbytes(written)


def _fuses(kernel: Kernel) -> bool:
    if "_cudnn_rnn" in kernel.name or any(form.device != "cuda" for form in (*kernel.inputs, *kernel.outputs)):
        return False
    works = works_alone(as_operation(kernel))
    return bool(works) and all(work.kind in KINDS for work in works)
