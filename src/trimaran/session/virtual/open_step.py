"""The step that is under way: its flights so far, and what was recorded of them."""

import dataclasses

from trimaran.session.virtual.batches import Signature
from trimaran.session.virtual.flights import Flight, FlightStats, Key
from trimaran.session.virtual.recording import Recorded
from trimaran.session.virtual.turns import Turns, are_alike

UNSEEN = (
    "steps without any forward that virtual_memory saw: the loop's own hooks of saved tensors come before those of "
    "virtual_memory. Put them around `with virtual_memory`, or around single modules"
)
"""Told where a step ends in which nothing was packed."""


class OpenStep:
    """Flights since the last step has ended.

    Attributes:
        flights: how many have begun
    """

    def __init__(self) -> None:
        self.flights = 0
        self._ended = 0
        self._recorded: dict[Key, Recorded] = {}
        self._turns = Turns()
        self._updated: set[int] = set()

    def begin(self, signature: Signature, after: int) -> Key:
        """A flight begins.

        Args:
            signature: look of its batch
            after: number of the optimizer that stepped last

        Returns:
            What it is, as far as can be told.
        """
        key = self._turns.next(Key(signature=signature, later=self.flights > 0, after=after))
        self.flights += 1
        return key

    def ran(self, flight: Flight, stats: FlightStats) -> None:
        """A flight has ended that was known."""
        self._turns.note(flight.key, other=stats.planned and stats.fell_back)

    def add(self, flight: Flight, recorded: Recorded) -> None:
        """A flight has ended that was recorded. One that is unlike another with its key is the other turn."""
        key = flight.key
        before = self._recorded.get(key)
        if before is not None and not are_alike(before.recording.trace, recorded.recording.trace):
            key = key._replace(turn=1)
        self._turns.note(key)
        self._recorded[key] = dataclasses.replace(recorded, seen=frozenset(flight.seen))

    def end(self, after: int) -> dict[Key, Recorded]:
        """The step has ended.

        Args:
            after: number of the optimizer that has stepped

        Returns:
            What was recorded of it.
        """
        recorded = self._recorded
        self.forget()
        self._ended += 1
        self._updated = {after}
        return recorded

    def is_unseen(self, after: int) -> bool:
        """Whether an update without a flight ends a step; otherwise it belongs to the step that has ended before.

        Args:
            after: number of the optimizer that has stepped
        """
        unseen = after in self._updated or not self._ended
        self._updated.add(after)
        return unseen

    def forget(self) -> None:
        """Begin anew."""
        self.flights = 0
        self._recorded = {}
