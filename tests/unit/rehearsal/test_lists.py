"""DTensor's lists of tensors are looked through once, and what is found is what torch's own function finds."""

from types import SimpleNamespace
from typing import Any

import pytest

from trimaran.rehearsal.patches import Patches


class Strided:
    """A placement like `_StridedShard`."""


def spec(flag: bool, *, strided: bool = True) -> Any:
    return SimpleNamespace(placements=(Strided() if strided else object(),), use_strided_shard_as_shard_order=flag)


class Schema:
    """Counts how often its tensors are looked for."""

    def __init__(self, *specs: Any) -> None:
        self.specs, self.asked = specs, 0

    @property
    def args_spec(self) -> tuple[Any, ...]:
        self.asked += 1
        return self.specs


def flag_of(specs: Any) -> bool | None:
    """What torch's function derives from its schema: the one flag, or True where both are there."""
    flags = {one.use_strided_shard_as_shard_order for one in specs if isinstance(one.placements[0], Strided)}
    return None if not flags else True if len(flags) == 2 else flags.pop()


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [spec(True, strided=False)] * 3,
        [spec(False)] * 3,
        [spec(True), spec(True, strided=False)],
        [spec(False), spec(True), spec(False)],
    ],
)
def test_a_list_is_looked_through_once_for_all_of_its_tensors(specs: list[Any]) -> None:
    calls: list[tuple[object, bool | None]] = []
    module = SimpleNamespace(
        _StridedShard=Strided,
        _propagate_use_strided_shard_flag=lambda strategy, schema: calls.append((strategy, flag_of(schema.args_spec))),
    )
    Patches._long_lists(SimpleNamespace(), module)  # type: ignore[arg-type]
    schema = Schema(*specs)
    for strategy in range(4):
        module._propagate_use_strided_shard_flag(strategy, schema)
    expected = flag_of(specs)
    assert calls == ([] if expected is None else [(strategy, expected) for strategy in range(4)])
    assert schema.asked == 1
    module._propagate_use_strided_shard_flag("other", Schema(spec(True)))
    assert calls[-1] == ("other", True)
