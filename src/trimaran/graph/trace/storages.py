"""Which storage is which, and how long each is there.

The identity of a storage is the live storage itself, never its address in memory: an address is used again as soon as
its storage has gone. Each storage that is met gets a number; a weak reference tells when it goes, to the event.

A **stand-in** is a storage that holds again what another one held. It has that one's number, and a life of its own.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from trimaran.graph.trace.types import Role

PERSISTENT = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER})
"""Roles of storages that are there before and after the step, so that dropping them would save nothing."""


@dataclass(slots=True)
class Record:
    """What is known so far of a storage.

    Attributes:
        nbytes: largest size seen [bytes]
        device: where it is
        role: what it is to the step, as far as known
        birth: moment of the operation that made it; -1: it was there before
        module: that made it
        unseen: whether it was met with no operation that made it, at a place where it was not there before the step
        end: first moment at which it is no more there; None: it still is
        version: how often operations have changed it
        packed_at: versions at which it was packed
        changed: whether it changed after it was packed
        elsewhere: whether it counts as memory of the host, wherever it is
        reference: to the storage
    """

    nbytes: int
    device: torch.device
    role: Role
    birth: int
    module: str
    unseen: bool
    reference: "weakref.ref[torch.UntypedStorage]"
    end: int | None = None
    version: int = 0
    packed_at: set[int] = field(default_factory=set)
    changed: bool = False
    elsewhere: bool = False


class StorageBook:
    """Numbers storages in the order in which they are met, and notes when each goes.

    Args:
        now: gives the moment at which what goes now is no more there

    Attributes:
        elsewhere: tells which storages count as memory of the host: on a CPU both are the same memory
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.elsewhere: Callable[[torch.UntypedStorage], bool] | None = None
        self.records: list[Record] = []
        self.names: dict[int, str] = {}
        self._now = now
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def find(self, storage: torch.UntypedStorage) -> int | None:
        """Number of a storage, also of a stand-in; None if it was not met yet."""
        return self._numbers.get(storage._cdata)

    def add(self, storage: torch.UntypedStorage, role: Role, birth: int, module: str = "", unseen: bool = False) -> int:
        """Give a new storage a number; see `Record`."""
        number = len(self.records)

        def gone() -> None:
            self.records[number].end = self._now()

        reference = self._watch(storage, number, gone)
        self.records.append(
            Record(
                nbytes=storage.nbytes(),
                device=storage.device,
                role=role,
                birth=birth,
                module=module,
                unseen=unseen,
                reference=reference,
                elsewhere=self.elsewhere is not None and self.elsewhere(storage),
            )
        )
        return number

    def stand_in(self, storage: torch.UntypedStorage, number: int, gone: Callable[[], None]) -> None:
        """Say that a new storage holds what the storage of that number held, and what to do when it goes."""
        self._watch(storage, number, gone)

    def close(self) -> None:
        """Let go of every reference."""
        self._numbers.clear()
        self._references.clear()

    def _watch(
        self, storage: torch.UntypedStorage, number: int, gone: Callable[[], None]
    ) -> "weakref.ref[torch.UntypedStorage]":
        key = storage._cdata

        def forget(_: object) -> None:
            self._numbers.pop(key, None)
            self._references.pop(key, None)
            gone()

        reference = weakref.ref(storage, forget)
        self._numbers[key] = number
        self._references[key] = reference
        return reference
