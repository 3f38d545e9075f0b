"""What people ask of a scaling study, as they write it."""

import re

from trimaran.costs.scaled import Sync
from trimaran.costs.software import Software
from trimaran.errors import InputError

SYNCS: tuple[Sync, ...] = ("nccl", "p2p", "server", "byteps")
_LARGEST = 1 << 20


def parse_counts(text: str, *, what: str) -> tuple[int, ...]:
    """Counts as a list, or as powers of two between two numbers.

    Args:
        text: such as "1,2,4,8" or "8..1024"
        what: is counted, for the message

    Raises:
        InputError: not counts, or a range that ends before it starts

    Example:
        >>> parse_counts("1,2,6", what="devices"), parse_counts("8..64", what="devices")
        ((1, 2, 6), (8, 16, 32, 64))
        >>> parse_counts("1..6", what="devices")
        (1, 2, 4, 6)
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not _is_count(first) or (dots and not _is_count(last)):
            raise InputError(
                f'expected {what} such as "1,2,4,8" or "8..1024", got "{text}"', code="scaling.bad-batches", text=text
            )
        counts += _doubled(int(first), int(last)) if dots else [int(first)]
        if dots and int(last) < int(first):
            raise InputError(f'{what}: "{part}" ends before it starts', code="scaling.range-backwards", text=text)
    return tuple(dict.fromkeys(counts))


def parse_syncs(text: str) -> tuple[Sync, ...]:
    """Methods of exchange, such as "p2p,nccl".

    Raises:
        InputError: an unknown one

    Example:
        >>> parse_syncs("p2p, nccl")
        ('p2p', 'nccl')
    """
    found: list[Sync] = []
    for part in text.split(","):
        known = [sync for sync in SYNCS if sync == part.strip().lower()]
        if not known:
            raise InputError(f'gradients are exchanged by {", ".join(SYNCS)}; got "{part.strip()}"', sync=part)
        found += known
    return tuple(dict.fromkeys(found))


def parse_software(text: str) -> Software:
    """A framework and, after a colon, its year.

    Raises:
        InputError: a year that is none

    Example:
        >>> parse_software("mxnet:2018.5").year
        2018.5
    """
    framework, colon, year = text.strip().lower().partition(":")
    if not framework or (colon and not re.fullmatch(r"(19|20)\d\d(\.\d+)?", year)):
        raise InputError(f'expected a framework such as "pytorch" or "mxnet:2018.5", got "{text}"', text=text)
    return Software(framework=framework, year=float(year) if colon else Software().year, source="as asked for")


def parse_measured(text: str) -> tuple[float, int | None]:
    """A figure of one device: samples a second, and the batch it was measured at where that is said.

    Raises:
        InputError: not a figure such as "363 images/s"

    Example:
        >>> parse_measured("363 images/s"), parse_measured("1.2e3 samples/s at 64")
        ((363.0, None), (1200.0, 64))
    """
    pattern = r"\s*([0-9]*\.?[0-9]+(?:e[+]?[0-9]+)?)\s*(?:\w+\s*/\s*s(?:ec)?)?\s*(?:(?:at|@)\s*([0-9]+))?\s*"
    match = re.fullmatch(pattern, text, flags=re.IGNORECASE)
    if match is None or float(match[1]) <= 0.0 or match[2] == "0":
        raise InputError(f'expected a figure such as "363 images/s" or "363 images/s at 64", got "{text}"', text=text)
    return float(match[1]), int(match[2]) if match[2] else None


def parse_figures(text: str) -> tuple[tuple[float, int | None], ...]:
    """One figure of one device, or several of different batches: samples a second, and the batch.

    Raises:
        InputError: not a figure; several of which one does not say its batch, or two of one batch

    Example:
        >>> parse_figures("251 images/s at 16, 364 images/s at 128")
        ((251.0, 16), (364.0, 128))
    """
    figures = tuple(parse_measured(part) for part in text.split(","))
    batches = [batch for _, batch in figures]
    if len(figures) > 1 and (None in batches or len(set(batches)) < len(batches)):
        raise InputError(
            'several figures need a batch each, all different, such as "251 images/s at 16, 364 images/s at 128"; '
            f'got "{text}"',
            text=text,
        )
    return figures


def check_spread(spread: float) -> float:
    """A spread of the work of batches, as it is.

    Raises:
        InputError: not a share of the mean

    Example:
        >>> check_spread(0.1)
        0.1
    """
    if not 0.0 <= spread < 1.0:
        raise InputError(
            f"the spread of batches is their standard deviation by their mean, from 0 to below 1, got {spread:g}; "
            "batches of sentences as they come have about 0.1",
            length_spread=spread,
        )
    return spread


def default_software(syncs: tuple[Sync, ...]) -> Software:
    """Who does the exchange when nobody says: copies between devices are MXNet's, so the rest is compared within it.

    Example:
        >>> default_software(("p2p", "nccl")).framework, default_software(("nccl",)).framework
        ('mxnet', 'pytorch')
    """
    if "p2p" in syncs or "server" in syncs:
        return Software(framework="mxnet", year=2018.5, source="assumed: MXNet of 2018, whose KVStore copies so")
    return Software()


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= _LARGEST


def _doubled(first: int, last: int) -> list[int]:
    counts = []
    while first < last:
        counts.append(first)
        first *= 2
    return [*counts, last]
