"""Sequences of documents of many lengths: attention that stays within a document, padding, and unequal shares.

    packed   documents one after another, split at the ends of sequences; attention within each: Σ l² of its pieces
    causal   the same, with attention over the whole sequence: S², whatever the documents
    padded   one document a sequence; a microbatch has the length of its longest one

*Packed.* A sequence of S tokens is a window on a stream of documents, at any place of it. Two tokens at a distance d
are in one document with the probability E[(l - d)+] / E[l], and S - |d| pairs of a window have that distance, so that

    E[Σ piece²] = Σ_l p_l g(l, S) / E[l]        g(l, S) = Σ_{|d| < min(l, S)} (S - |d|) (l - |d|)
                                                        = S l² - l (l² - 1) / 3   for l <= S, else with l and S changed

*Padded.* Of b documents the longest has at most x tokens with the probability F(x)^b, so its mean and its mean square
follow from the histogram exactly.

*Unequal shares.* Replicas that end a step together wait for the one whose microbatches take longest. Where they
exchange something in every layer (experts, or parameters and gradients that they shard), they wait for each other in
each microbatch. The largest of many sums has no short formula: microbatches are drawn with a fixed seed, and the
standard error of the mean is said. A pipeline of equal stages takes the sum of its microbatches, and its fill and drain
the longest one (a proportionate flow shop).

Source:
    Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, for attention within documents; David
    and Nagaraja, "Order Statistics", 2003, section 2.1, for the distribution of the largest; Pinedo, "Scheduling",
    section 6.1, for the flow shop.
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from trimaran.base.errors import InputError
from trimaran.base.files import is_file, read_text
from trimaran.base.units import MOST_LARGE

if TYPE_CHECKING:
    import numpy as np

Packing = Literal["packed", "causal", "padded"]
"""How documents become sequences."""

_SEED = 2025
_DRAWS = 100_000
"""Documents, or sequences of them, that are drawn for an expected maximum, at least."""
_POOL = 8192
"""Sequences of packed documents that are made, of which these are drawn."""
_MOST_DOCUMENTS = 2_000_000
_LONGEST = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """Lengths of documents, and how they become sequences.

    Figures of one object are computed once; two objects are never equal, so that thousands of lengths are not compared.

    Attributes:
        tokens: lengths, ascending [tokens]
        shares: of all documents, those with each length; they sum to 1
        packing: how they become sequences
        source: where the lengths come from
    """

    tokens: tuple[int, ...]
    shares: tuple[float, ...]
    packing: Packing = "packed"
    source: str = ""

    @property
    def text(self) -> str:
        """Lengths as the command line has them: those that were given, or the file."""
        if self.source != "given":
            return self.source
        return ",".join(f"{length}:{share!r}" for length, share in zip(self.tokens, self.shares, strict=True))

    def mean(self, power: int = 1, *, most: int = _LONGEST) -> float:
        """Mean of a power of the lengths, none of which counts as more than `most` [tokens to the power].

        Example:
            >>> Documents(tokens=(2, 6), shares=(0.5, 0.5)).mean(2, most=4)
            10.0
        """
        each = zip(self.tokens, self.shares, strict=True)
        return float(sum(share * min(length, most) ** power for length, share in each))

    def longest(self, count: int, power: int = 1, *, most: int) -> float:
        """Mean of a power of the longest of some documents, none of which has more than `most` [tokens to the power].

        Args:
            count: of documents
            power: of the length
            most: tokens that are kept of a document

        Example:
            Of two documents, both short with the probability 0.4² = 0.16:

            >>> round(Documents(tokens=(512, 2048), shares=(0.4, 0.6)).longest(2, most=4096), 2)
            1802.24
            >>> 0.16 * 512 + 0.84 * 2048
            1802.24
        """
        return _longest(self, count, power, most)

    def useful(self, sequence: int) -> float:
        """Tokens of a sequence that are trained on: all, but for padding and what is longer than the sequence.

        Example:
            >>> documents = Documents(tokens=(512, 2048), shares=(0.4, 0.6), packing="padded")
            >>> round(documents.useful(1024), 3), round(documents.mean(), 3)
            (819.2, 1433.6)
        """
        return self.mean(most=sequence) if self.packing == "padded" else float(sequence)

    def length(self, sequence: int, microbatch: int) -> int:
        """Tokens of the sequences of a microbatch: as asked for, or on average of the longest document."""
        return round(self.longest(microbatch, most=sequence)) if self.packing == "padded" else sequence

    def attention(self, sequence: int, microbatch: int, *, window: int = 0, chunked: bool = False) -> float:
        """Attention of a sequence by that of a sequence of `length` tokens without documents [0..1, padded above 1].

        Args:
            sequence: asked for [tokens]
            microbatch: sequences
            window: of attention, which both have [tokens]; 0: none
            chunked: the window does not slide, but splits the sequence

        Example:
            Documents of half a sequence, at any place: of the pairs of tokens 1/2 - 1/12.

            >>> round(Documents(tokens=(4096,), shares=(1.0,)).attention(8192, 1), 4) == round(1 / 2 - 1 / 12, 4)
            True
            >>> Documents(tokens=(8,), shares=(1.0,), packing="causal").attention(64, 1)
            1.0
        """
        if self.packing == "causal":
            return 1.0
        if self.packing == "padded":
            length = self.length(sequence, microbatch)
            # In a window attention goes with the length.
            return 1.0 if 0 < window < length else self.longest(microbatch, 2, most=sequence) / length**2
        return _packed_attention(self, window if window and chunked else sequence, 0 if chunked else window)

    def trained(self, sequence: int, *, window: int = 0, chunked: bool = False) -> tuple[float, float]:
        """Of a full sequence without documents: tokens, and attention, that training needs; the rest is padding."""
        if self.packing == "padded":
            tokens = self.mean(most=sequence) / sequence
            return tokens, tokens if window else self.mean(2, most=sequence) / sequence**2
        return 1.0, self.attention(sequence, 1, window=window, chunked=chunked)


@functools.lru_cache(maxsize=1024)
def _longest(documents: Documents, count: int, power: int, most: int) -> float:
    total = below = before = 0.0
    for length, share in zip(documents.tokens, documents.shares, strict=True):
        below = min(1.0, below + share)
        now = below**count
        total += (now - before) * min(length, most) ** power
        before = now
    return total


@functools.lru_cache(maxsize=1024)
def _packed_attention(documents: Documents, sequence: int, window: int) -> float:
    reach = min(window or sequence, sequence)
    each = zip(documents.tokens, documents.shares, strict=True)
    pairs = sum(share * _pairs(length, sequence, reach) for length, share in each)
    # A single document without end has all pairs that are in reach: (S - |d|) of each distance.
    whole = 2.0 * reach * sequence - reach**2 - sequence + reach
    return pairs / documents.mean() / whole


def _pairs(length: int, sequence: int, reach: int) -> float:
    """Sum over distances below `reach` of the places of two tokens in a sequence times those in a document.

    Example:
        >>> _pairs(4, 6, 6) == sum((6 - abs(d)) * (4 - abs(d)) for d in range(-3, 4))
        True
        >>> _pairs(4, 6, 2) == sum((6 - abs(d)) * (4 - abs(d)) for d in range(-1, 2))
        True
    """
    below = min(length, sequence, reach)
    mixed = (length + sequence) * below * (below - 1) / 2
    squares = (below - 1) * below * (2 * below - 1) / 6
    return length * sequence + 2.0 * ((below - 1) * sequence * length - mixed + squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How much longer the slowest of some replicas takes than the mean of them.

    Attributes:
        ratio: of the slowest by the mean; at least 1
        error: standard error of the ratio, from a finite number of draws
    """

    ratio: float
    error: float


@functools.lru_cache(maxsize=4096)
def slowest_replica(
    documents: Documents,
    sequence: int,
    *,
    replicas: int,
    microbatches: int,
    microbatch: int,
    fill: float = 0.0,
    together: int = 1,
    square: float = 1.0,
) -> Waiting:
    """Expected time of the slowest replica by the mean.

    Args:
        documents: of each replica, drawn independently
        sequence: asked for [tokens]
        replicas: that end a step together
        microbatches: of each
        microbatch: sequences
        fill: times of a microbatch for the fill and drain of a pipeline, which take the longest one
        together: replicas of a group that wait for each other in each microbatch
        square: share of the time that goes with the square of a length; the rest is the same for packed documents and
            goes with the length of padded ones [0..1]

    Example:
        One replica with one microbatch waits for nobody:

        >>> documents = Documents(tokens=(512, 2048), shares=(0.4, 0.6))
        >>> round(slowest_replica(documents, 4096, replicas=1, microbatches=1, microbatch=1).ratio, 1)
        1.0
    """
    import numpy as np

    if (replicas == 1 and not fill) or documents.packing == "causal":
        return Waiting(ratio=1.0, error=0.0)
    work = _drawn(documents, sequence, replicas * microbatches * microbatch)
    shaped = work.reshape(len(work), replicas, microbatches, microbatch)
    if documents.packing == "padded":
        longest = shaped.max(axis=3)
        first, second = documents.longest(microbatch, most=sequence), documents.longest(microbatch, 2, most=sequence)
        each = (1.0 - square) * longest / first + square * longest**2 / second
    else:
        mean = float(_pool(documents, sequence).mean())
        each = (1.0 - square) + square * shaped.mean(axis=3) / mean
    if together > 1:
        groups = each.reshape(len(work), replicas // together, together, microbatches)
        each = groups.max(axis=2)
    spent = each.sum(axis=2) + fill * each.max(axis=2)
    slowest = spent.max(axis=1) / (microbatches + fill)
    error = float(slowest.std(ddof=1) / math.sqrt(len(work)))
    return Waiting(ratio=max(1.0, float(np.mean(slowest))), error=error)


@functools.lru_cache(maxsize=16)
def _drawn(documents: Documents, sequence: int, count: int) -> "np.ndarray[Any, Any]":
    """Trials of `count` sequences: of padded ones the length, of others the attention by that of a full sequence."""
    import numpy as np

    draw = np.random.default_rng(_SEED)
    trials = max(16, -(-_DRAWS // count))
    if documents.packing == "padded":
        lengths = np.minimum(np.array(documents.tokens), sequence).astype(np.float32)
        places = np.searchsorted(np.cumsum(documents.shares)[:-1], draw.random((trials, count)), side="right")
        return np.asarray(lengths[places])
    pool = _pool(documents, sequence)
    return np.asarray(pool[draw.integers(len(pool), size=(trials, count))])


@functools.lru_cache(maxsize=16)
def _pool(documents: Documents, sequence: int) -> "np.ndarray[Any, Any]":
    """Attention of packed sequences by that of full ones, from a stream of documents that is split at their ends."""
    import numpy as np

    draw = np.random.default_rng(_SEED)
    mean = documents.mean()
    wanted = min(_POOL, max(64, int(_MOST_DOCUMENTS * mean / sequence)))
    count = int(1.2 * wanted * sequence / mean) + 64
    places = np.searchsorted(np.cumsum(documents.shares)[:-1], draw.random(count), side="right")
    ends = np.cumsum(np.array(documents.tokens, dtype=np.int64)[places])
    # The first window starts inside a document, as any other one.
    start = int(draw.integers(ends[0])) if ends[0] > 1 else 0
    windows = min(wanted, int((ends[-1] - start) // sequence))
    splits = start + sequence * np.arange(windows + 1)
    inside = ends[(ends > start) & (ends < splits[-1])]
    edges = np.unique(np.concatenate([splits, inside]))
    pieces = np.diff(edges).astype(float)
    owner = (edges[:-1] - start) // sequence
    return (np.bincount(owner, weights=pieces**2, minlength=windows) / sequence**2).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# Histograms as users write them


def parse_documents(lengths: str, packing: str = "packed") -> Documents:
    """A histogram of lengths, or a file of them.

    Args:
        lengths: such as "512:0.4,2048:0.6", lengths with their shares of all documents; or a file with a length in each
            line, and after it, if it is not 1, how many documents have it
        packing: "packed", "causal" or "padded"

    Raises:
        InputError: neither a histogram nor a file of lengths, or another packing

    Example:
        >>> parse_documents("2048:3, 512:1").shares
        (0.25, 0.75)
    """
    if packing not in get_args(Packing):
        raise InputError(
            f'documents are {", ".join(get_args(Packing))}, got "{packing}"',
            code="lengths.unknown-packing",
            packing=packing,
        )
    if ":" in lengths and not is_file(lengths):
        pairs = [_pair(part, lengths, ":") for part in lengths.split(",")]
        return _documents(pairs, packing, "given")  # type: ignore[arg-type]  # checked above
    if not is_file(lengths):
        raise InputError(
            f'--lengths: expected lengths with their shares such as "512:0.4,2048:0.6", or a file, got "{lengths}"',
            code="lengths.no-file",
            text=lengths,
        )
    lines = read_text(Path(lengths)).splitlines()
    pairs = [_pair(line.replace(",", " "), lengths, None) for line in lines if line.strip()]
    return _documents(pairs, packing, lengths)  # type: ignore[arg-type]  # checked above


def _pair(text: str, whole: str, between: str | None) -> tuple[int, float]:
    """A length and its weight."""
    parts = text.strip().split(between)
    try:
        length, weight = int(parts[0]), float(parts[1]) if len(parts) > 1 else 1.0
    except (ValueError, IndexError):
        length, weight = 0, 0.0
    if not 1 <= length < _LONGEST or not 0.0 < weight <= MOST_LARGE or len(parts) > 2:
        raise InputError(
            f"--lengths {whole}: expected a length below {_LONGEST:,} tokens and its share, above 0 and at most "
            f'{MOST_LARGE:g}, such as 512 and 0.4, got "{text.strip()}"',
            code="lengths.malformed",
            text=text.strip(),
        )
    return length, weight


def _documents(pairs: Sequence[tuple[int, float]], packing: Packing, source: str) -> Documents:
    weights: Counter[int] = Counter()
    for length, weight in pairs:
        weights[length] += weight  # type: ignore[assignment]  # shares
    total = math.fsum(weights.values())
    if not total:
        raise InputError(f"--lengths {source}: there is no length in it", code="lengths.none", source=source)
    ordered = sorted(weights)
    return Documents(
        tokens=tuple(ordered),
        shares=tuple(weights[length] / total for length in ordered),
        packing=packing,
        source=source,
    )
