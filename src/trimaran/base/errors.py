"""Every error that Trimaran raises on purpose.

    TrimaranError            exit code 1   anything below, to catch them all
    ├── InputError           2             a job, option or file of the user is wrong (also a ValueError)
    ├── InfeasibleError      3             the request is well formed, and nothing satisfies it
    ├── SolverError          1             a solver gave up or broke its contract
    ├── EnvironmentProblem   4             this machine lacks something that is needed
    ├── ExecutionError       5             a run failed: a rank died, a loss is not a number
    └── CorruptDataError     6             a file that Trimaran wrote was damaged or edited

A message says what is wrong, where, with which values, and what to do. Its wording may change. A program reads the code
and the figures: `raise InputError("...", code="strategy.batch-not-divisible", batch=30)` makes `error.code` and
`error.figures["batch"]`. A code is `subject.problem` in lower case with hyphens and never names two problems. An error
that is raised without a code has the one of its class, such as `input`.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class TrimaranError(Exception):
    """Base of every error that Trimaran raises on purpose.

    Args:
        message: what, where, the values, what to do
        code: stable name of the problem, such as "strategy.batch-not-divisible"; None: that of the class
        figures: the values in the message, by name
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, code: str | None = None, **figures: object) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.figures = figures

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.message, self.code, self.figures)


def _restore(kind: type[TrimaranError], message: str, code: str, figures: dict[str, object]) -> TrimaranError:
    return kind(message, code=code, **figures)


class InputError(TrimaranError, ValueError):
    """A job, an option or a file that a person supplied is wrong."""

    exit_code = 2
    default_code = "input"


class InfeasibleError(TrimaranError):
    """The request is well formed, and nothing satisfies it."""

    exit_code = 3
    default_code = "infeasible"


class SolverError(TrimaranError):
    """A solver gave up or broke its contract."""

    default_code = "solver"


class EnvironmentProblem(TrimaranError):
    """This machine lacks something that is needed."""

    exit_code = 4
    default_code = "environment"


class ExecutionError(TrimaranError):
    """A run failed: a rank died, a loss is not a number, a peer went silent."""

    exit_code = 5
    default_code = "execution"


class CorruptDataError(TrimaranError):
    """A file that Trimaran wrote was truncated, damaged or edited."""

    exit_code = 6
    default_code = "corrupt-data"


_FEW = 30
"""Names that a message may list."""


_OR = '" or "'


def did_you_mean(word: str, known: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """The end of a sentence that names the nearest known word, or those that begin so, or all where they are few.

    Args:
        word: that is not known
        known: words
        also: words that are known too and are not listed

    Example:
        >>> did_you_mean("memmory", ["memory", "name"]), did_you_mean("colour", ["memory", "name"])
        ('; did you mean "memory"?', '; known: memory, name')
        >>> did_you_mean("vit", ["vgg16", "vit-b-16", "vit-l-16"])
        '; did you mean "vit-b-16" or "vit-l-16"?'
    """
    words = list(known)
    near = difflib.get_close_matches(word, [*words, *also], n=1)
    near = near or [one for one in (*words, *also) if word and one.startswith(word)][:3]
    if near:
        return f'; did you mean "{_OR.join(near)}"?'
    return f"; known: {', '.join(words)}" if 0 < len(words) <= _FEW else ""
