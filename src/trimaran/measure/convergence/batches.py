"""Global batches to try: as people write them, by default, and as microbatches of one device."""

import re
from collections.abc import Sequence

from trimaran.base.errors import InputError

_DOTS = ("…", "...", "..")
# Below this share of what the device is known to take, microbatches are so small that a step is mostly overhead.
_SMALLEST_SHARE = 0.25
_MOST_BATCHES = 300
"""The largest number of points of a curve."""

_MOST_DIGITS = 12
"""Of a batch: larger than any data set."""

_SHOWN = 60


def parse_batches(text: str) -> tuple[int, ...]:
    """Batches as they are written on the command line.

    Args:
        text: numbers between commas; dots between two of them go on as the ones before do, or double

    Returns:
        By rising size, each once [samples].

    Raises:
        InputError: not a number, less than 1, too large, dots that do not lead to the number after them, or too many

    Example:
        >>> parse_batches("32,64,…,256"), parse_batches("16..64"), parse_batches("100,200,...,500")
        ((32, 64, 128, 256), (16, 32, 64), (100, 200, 300, 400, 500))
    """
    entries = [entry.strip() for entry in re.sub(r"(\d)\s*(?:…|\.\.\.?)\s*(\d)", r"\1,…,\2", text).split(",")]
    batches: list[int] = []
    dots = False
    for entry in entries:
        if entry in _DOTS:
            if dots or not batches:
                raise InputError(
                    f'--batches "{text}": dots must stand between two numbers', code="batches.dots-at-start", text=text
                )
            dots = True
            continue
        size = _size(entry, text)
        batches += _between(batches, size, text) if dots else [size]
        dots = False
    if dots:
        raise InputError(
            f'--batches "{text}": dots must stand between two numbers', code="batches.dots-at-end", text=text
        )
    if len(set(batches)) > _MOST_BATCHES:
        raise InputError(f"--batches: {len(set(batches))} of them, at most {_MOST_BATCHES} can be measured")
    return tuple(sorted(set(batches)))


def _size(entry: str, text: str) -> int:
    digits = entry.lstrip("0") if re.fullmatch(r"[0-9]+", entry) else ""
    if not 1 <= len(digits) <= _MOST_DIGITS:
        raise InputError(
            f'--batches "{_short(text)}": "{_short(entry)}" is no number of samples; write whole numbers from 1 to '
            f'{_MOST_DIGITS} digits between commas, such as "32,64,128" or "32,64,…,1024"',
            code="batches.not-a-number",
            entry=_short(entry),
        )
    return int(digits)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _between(before: Sequence[int], last: int, text: str) -> list[int]:
    """The numbers after those before, up to the last one: by the factor or the step of the last two."""
    factor, step = 2.0, 0.0
    if len(before) > 1:
        factor, step = before[-1] / before[-2], float(before[-1] - before[-2])
    for multiply, add in ((factor, 0.0), (1.0, step)):
        found, size = [], float(before[-1])
        while size < last and size * multiply + add > size:
            size = size * multiply + add
            found.append(round(size))
            if len(found) > _MOST_BATCHES:
                break
        if found and found[-1] == last:
            return found
    raise InputError(
        f'--batches "{text}": going on from {", ".join(map(str, before[-2:]))} does not lead to {last} within '
        f"{_MOST_BATCHES} batches; write all of them",
        code="batches.no-progression",
        text=text,
    )


def default_batches(base: int, *, samples: int) -> tuple[int, ...]:
    """Batches around the job's own: from a quarter of it to eight times it, where an epoch has two updates of them.

    Args:
        base: the job's own global batch [samples]
        samples: of the training data

    Example:
        >>> default_batches(64, samples=1437), default_batches(2, samples=1000)
        ((16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32))
    """
    smallest = base
    while smallest * 4 > base and smallest % 2 == 0:
        smallest //= 2
    sizes: list[int] = []
    size = smallest
    while len(sizes) < 6 and (2 * size <= samples or size <= base):
        sizes.append(size)
        size *= 2
    return tuple(sizes)


def check_batches(batches: Sequence[int], *, samples: int) -> tuple[str, ...]:
    """Refuse batches that the data cannot fill.

    Args:
        batches: to try [samples]
        samples: of the training data

    Returns:
        What the reader should know of batches that do not divide the data.

    Raises:
        InputError: a batch larger than the data
    """
    large = [batch for batch in batches if batch > samples]
    if large:
        raise InputError(
            f"a batch of {large[0]} is larger than the data set of {samples} samples: the largest one is {samples}",
            code="batches.beyond-data-set",
            batch=large[0],
            samples=samples,
        )
    uneven = [batch for batch in batches if samples % batch and 4 * batch > samples]
    return tuple(
        f"a batch of {batch} does not divide the {samples} samples: the last update of an epoch has {samples % batch}"
        for batch in uneven
    )


def count_microbatches(batch: int, *, fits: int) -> int:
    """Into how many equal microbatches one device splits a batch.

    Args:
        batch: of one update [samples]
        fits: what the device is known to take at once [samples]

    Returns:
        The fewest that divide the batch and are no larger than that. At least 2, whose spread says how noisy the
        gradient is, where the batch has a divisor that leaves them not far smaller; else 1, where the batch fits.

    Raises:
        InputError: the batch does not fit and has no such divisor but ones far smaller

    Example:
        >>> count_microbatches(256, fits=64), count_microbatches(16, fits=64), count_microbatches(96, fits=64)
        (4, 2, 2)
        >>> count_microbatches(13, fits=64)
        1
    """
    for count in range(max(2, -(-batch // fits)), batch + 1):
        if batch % count == 0:
            if batch // count < _SMALLEST_SHARE * min(fits, batch // 2):
                break
            return count
    if batch <= fits:
        return 1
    near = sorted({max(1, batch // fits) * fits, -(-batch // fits) * fits})
    raise InputError(
        f"a batch of {batch} cannot be split into equal microbatches of at most {fits} that are not tiny: take "
        f"{' or '.join(map(str, near))}",
        code="batches.uneven-microbatches",
        batch=batch,
        fits=fits,
    )
