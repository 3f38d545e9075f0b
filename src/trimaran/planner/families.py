"""What a person calls a strategy or a group of them, such as "pp", "dp2", "pp2-gpipe-m4", "compiled", "one device".

A name is a list of words. A strategy belongs to it if each word holds: "dp" and "pp" (more than one replica, more than
one stage), "hybrid" (both), "one" or "single" (one device), "eager"; any other word is one that names of strategies
have: "dp2", "m4", "gpipe", "b1MiB". Where "dp" is named and "pp" is not, pipelines are not meant, and the other way
around.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence

from trimaran.errors import InputError
from trimaran.program import Strategy
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES

_EXAMPLES = ("one device", "dp", "dp2", "pp", "pp2", "hybrid", "gpipe", "1f1b", "m4", "b1MiB", "eager", "compiled")

_SINGLE = frozenset({"one", "single", "device"})
_GENERIC = frozenset({"dp", "pp", "hybrid", "eager", "compiled", "gpipe", "1f1b"}) | _SINGLE
_NUMBERED = re.compile(r"(dp|pp|m)([1-9][0-9]{0,3})")
_SIZED = re.compile(r"b([1-9][0-9]{0,11})([kmg]i)?b")
_UNITS = {None: 1, "ki": 2**10, "mi": 2**20, "gi": 2**30}
# Numbers in names of strategies, by their attributes.
_NUMBERS = {"dp": "dp", "pp": "pp", "m": "microbatches"}
# Where a name does not say how many microbatches there are: as many as stages, times these.
_RATIOS = (1, 2, 4)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A name, read.

    Attributes:
        name: as it was written
        words: of it, in lower case
    """

    name: str
    words: tuple[str, ...]

    def __contains__(self, strategy: Strategy) -> bool:
        """Whether a strategy belongs to the family."""
        words = set(self.words)
        if words & _SINGLE:
            rest = self.words_of_rest()
            return strategy.devices == 1 and all(_holds(word, strategy) for word in rest)
        stated = {kind for kind in ("dp", "pp") if any(word.startswith(kind) for word in words)}
        if "dp" in stated and "pp" not in stated and strategy.pp > 1:
            return False
        if "pp" in stated and "dp" not in stated and strategy.dp > 1:
            return False
        return all(_holds(word, strategy) for word in self.words)

    def words_of_rest(self) -> tuple[str, ...]:
        """The words that do not say how many devices there are."""
        return tuple(word for word in self.words if word not in _SINGLE)


def read_family(name: str) -> Family:
    """Read a name.

    Args:
        name: in any case; words are separated by anything but letters and digits

    Raises:
        InputError: a word that nothing is called, with what comes near

    Example:
        >>> Strategy(pp=2, microbatches=4, boundaries=("a",)) in read_family("PP")
        True
        >>> read_family("pp2-gpipe-m4").words
        ('pp2', 'gpipe', 'm4')
    """
    words = tuple(_split(name))
    strange = [word for word in words if not _is_word(word)]
    if strange or not words:
        near = difflib.get_close_matches(" ".join(words), _EXAMPLES, n=2, cutoff=0.5)
        hint = "did you mean " + " or ".join(f'"{one}"' for one in near) + "?"
        known = f"names are made of {', '.join(_EXAMPLES)}, as in pp2-gpipe-m4"
        raise InputError(f'no strategy is called "{name}"; {hint if near else known}', strategy=name)
    return Family(name=name, words=words)


def imagine(family: Family) -> Sequence[Strategy]:
    """Strategies of a family that a search did not consider, as its words describe them.

    Example:
        >>> [strategy.name for strategy in imagine(read_family("pp4 1f1b m8"))]
        ['pp4 1f1b m8']
        >>> [strategy.name for strategy in imagine(read_family("dp"))]
        ['dp2']
        >>> [strategy.name for strategy in imagine(read_family("b512KiB"))]
        ['dp2 b512KiB']
    """
    figures = {match[1]: int(match[2]) for word in family.words if (match := _NUMBERED.fullmatch(word))}
    both = "hybrid" in family.words
    sizes = [_size(match) for word in family.words if (match := _SIZED.fullmatch(word))]
    is_pipeline = both or {"pp", "gpipe", "1f1b"} & set(family.words)
    # Only replicas have buckets.
    is_replicated = both or "dp" in family.words or (sizes and not is_pipeline and "pp" not in figures)
    dp = figures.get("dp", 2 if is_replicated else 1)
    pp = figures.get("pp", 2 if is_pipeline else 1)
    if pp == 1:
        counts: Sequence[int] = (figures.get("m", 1),)
    else:
        counts = (figures["m"],) if "m" in figures else tuple(pp * ratio for ratio in _RATIOS)
    return tuple(
        Strategy(
            dp=dp,
            pp=pp,
            schedule="1f1b" if "1f1b" in family.words else "gpipe",
            microbatches=count,
            bucket_bytes=sizes[0] if sizes else DEFAULT_BUCKET_BYTES,
            execution="compiled" if "compiled" in family.words else "eager",
        )
        for count in counts
    )


def _is_word(word: str) -> bool:
    return word in _GENERIC or bool(_NUMBERED.fullmatch(word) or _SIZED.fullmatch(word))


def _split(name: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", name.lower())


def _holds(word: str, strategy: Strategy) -> bool:
    if word == "dp":
        return strategy.dp > 1
    if word == "pp":
        return strategy.pp > 1
    if word == "hybrid":
        return strategy.dp > 1 and strategy.pp > 1
    if word == "eager":
        return strategy.execution == "eager"
    if match := _NUMBERED.fullmatch(word):
        return int(getattr(strategy, _NUMBERS[match[1]])) == int(match[2])
    if match := _SIZED.fullmatch(word):
        return strategy.dp > 1 and strategy.bucket_bytes == _size(match)
    return word in _split(strategy.name)


def _size(match: re.Match[str]) -> int:
    """The size that a word such as "b1mib" says [bytes]."""
    return int(match[1]) * _UNITS[match[2]]
