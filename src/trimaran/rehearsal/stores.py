"""The key-value store that ranks find each other by, for a rank without peers.

What this rank sets it gets; counters count as if every rank had added the same; waiting ends at once. A key of another
rank is empty, and listed as invented.
"""

from typing import Any

from torch._C._distributed_c10d import Store as TorchStore

from trimaran.rehearsal.recorder import ScriptRecorder


def store_kind(recorder: ScriptRecorder, world: int) -> type[TorchStore]:
    """A class of stores that takes any arguments of torch's own.

    Args:
        recorder: lists keys that are not known
        world: ranks in all
    """
    made: list[TorchStore] = []  # torch holds only what is below Python

    class RankStore(TorchStore):
        """Of one rank."""

        def __init__(self, *_: Any, **others: Any) -> None:
            super().__init__()
            made.append(self)
            self.host = str(others.get("host_name", "127.0.0.1"))
            self.port = int(others.get("port", 29500) or 29500)
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            if key not in self._values:
                recorder.invent("key of another rank", "store.get", "empty")
            return self._values.get(key, b"")

        def add(self, key: str, amount: int) -> int:
            total = int(self._values.get(key, b"0")) + amount * (world if amount > 0 else 1)
            self._values[key] = str(total).encode()
            return total

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            expected = expected.encode() if isinstance(expected, str) else expected
            if self._values.get(key, b"") == expected or key not in self._values:
                self.set(key, desired)
            return self._values[key]

        def append(self, key: str, value: Any) -> None:
            self._values[key] = self._values.get(key, b"") + (value.encode() if isinstance(value, str) else value)

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[Any]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def check(self, keys: list[str]) -> bool:
            return True

        def wait(self, *_: Any) -> None: ...

        def set_timeout(self, *_: Any) -> None: ...

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def has_extended_api(self) -> bool:
            return True

    return RankStore
