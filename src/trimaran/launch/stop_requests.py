"""What this process is asked for while it trains: to stop, by a signal or by its parent.

A request may come on one rank only, or on each at another moment. So it is noted, and travels with the losses of the
next step (`runtime.step.losses`): all ranks hear of it at the end of that step, and then ask each other what it is.
"""

import signal
import threading
from collections.abc import Callable

from trimaran.base.signals import Catcher, say, signal_name


class Requests:
    """The requests to one process; any thread may make one.

    Attributes:
        stop: number of the signal that asks for the end of the training, its own or its parent's; 0: none does
        told: called once with that number, when it is first known here; None: a line on standard error says it
    """

    def __init__(self) -> None:
        self.stop = 0
        self.told: Callable[[int], None] | None = None
        self._users = 0
        self._catcher: Catcher | None = None

    @property
    def pending(self) -> bool:
        """Something is asked for."""
        return self.stop != 0

    def ask_to_stop(self, number: int) -> None:
        """Ask for the end of the training.

        Args:
            number: of the signal
        """
        if self.stop:
            return
        self.stop = number
        (self.told or say_asked)(number)

    def open(self) -> None:
        """Catch signals, until `close` was called as often; only a main thread can."""
        self._users += 1
        if self._catcher is None and threading.current_thread() is threading.main_thread():
            self._catcher = Catcher(self.ask_to_stop, threaded=True)
            self._catcher.__enter__()

    def close(self) -> None:
        """Let go of signals, when nobody needs them any more."""
        self._users -= 1
        if self._users == 0:
            if self._catcher is not None:
                self._catcher.__exit__()
            self._catcher, self.stop = None, 0


REQUESTS = Requests()
"""Those to this process."""


def say_asked(number: int) -> None:
    """Say that a signal ends the training."""
    say(
        f"trimaran: {signal_name(number)}: the training ends after this step, on all ranks; a second signal ends it at "
        "once"
    )


def stopping_code(told: list[int]) -> int:
    """The signal that ends the training, from what each rank has heard.

    Args:
        told: number of the signal that each rank has heard, by rank; 0: none

    Example:
        >>> stopping_code([0, 10, 15])
        10
    """
    return next((number for number in told if number), int(signal.SIGTERM))
