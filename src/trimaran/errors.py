"""Every error that Trimaran raises on purpose.

    TrimaranError            exit code 1   anything below, to catch them all
    ├── InputError           2             a job, option or file of the user is wrong (also a ValueError)
    ├── InfeasibleError      3             the request is well formed, and nothing satisfies it
    ├── SolverError          1             a solver gave up or broke its contract
    ├── EnvironmentProblem   4             this machine lacks something that is needed
    ├── ExecutionError       5             a run failed: a rank died, a loss is not a number
    └── CorruptDataError     6             a file that Trimaran wrote was damaged or edited

A message says what is wrong, where, with which values, and what to do. The figures are attributes too, so that a
program can read them: `raise InputError("...", batch=30, divisor=4)` makes `error.figures["batch"]`.
"""


class TrimaranError(Exception):
    """Base of every error that Trimaran raises on purpose.

    Args:
        message: what, where, the values, what to do
        figures: the values in the message, by name
    """

    exit_code = 1

    def __init__(self, message: str, **figures: object) -> None:
        super().__init__(message)
        self.message = message
        self.figures = figures

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.message, self.figures)


def _restore(kind: type[TrimaranError], message: str, figures: dict[str, object]) -> TrimaranError:
    return kind(message, **figures)


class InputError(TrimaranError, ValueError):
    """A job, an option or a file that a person supplied is wrong."""

    exit_code = 2


class InfeasibleError(TrimaranError):
    """The request is well formed, and nothing satisfies it."""

    exit_code = 3


class SolverError(TrimaranError):
    """A solver gave up or broke its contract."""


class EnvironmentProblem(TrimaranError):
    """This machine lacks something that is needed."""

    exit_code = 4


class ExecutionError(TrimaranError):
    """A run failed: a rank died, a loss is not a number, a peer went silent."""

    exit_code = 5


class CorruptDataError(TrimaranError):
    """A file that Trimaran wrote was truncated, damaged or edited."""

    exit_code = 6
