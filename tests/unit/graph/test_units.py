"""Modules that are gathered as one, from hand-made graphs: parameters of 4 bytes an element."""

from collections.abc import Sequence

import pytest

from trimaran.graph.sharding.fsdp_units import is_inside, sharding_units, unit_ops, unit_parameters
from trimaran.graph.types import Graph, Op, Parameter

Layer = tuple[str, str, tuple[int, ...]]
"""Id of an operation, its parameter, the parameter's shape."""


def _graph(layers: Sequence[Layer], **parameter: tuple[str, ...]) -> Graph:
    shapes = {name: shape for _, name, shape in layers}
    return Graph(
        name="hand-made",
        inputs=(),
        ops=tuple(
            Op(id=op, target="Linear", module=op.partition("@")[0], parameters=(name,)) for op, name, _ in layers
        ),
        parameters=tuple(
            Parameter(name=name, shape=shape, dtype="float32", nbytes=4 * _size(shape), **parameter)
            for name, shape in shapes.items()
        ),
        buffers={},
        storages={},
    )


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * (_size(shape[1:]) if len(shape) > 1 else 1)


def _blocks(count: int, width: int = 8) -> list[Layer]:
    return [
        (f"blocks.{number}.{part}", f"blocks.{number}.{part}.weight", (width, width))
        for number in range(count)
        for part in ("up", "down")
    ]


def test_blocks_that_are_alike_are_units_and_the_large_layers_around_them() -> None:
    layers = [
        ("embed", "embed.weight", (64, 8)),
        *_blocks(2),
        ("norm", "norm.weight", (8,)),
        ("head", "head.weight", (64, 8)),
    ]
    assert sharding_units(_graph(layers), min_bytes=512) == ("embed", "blocks.0", "blocks.1", "head")


def test_a_list_of_blocks_is_no_unit_as_nobody_calls_it() -> None:
    """Both blocks together are less than an eighth of the model, but the list has no forward."""
    layers = [*_blocks(2), ("head", "head.weight", (1000, 8))]
    assert sharding_units(_graph(layers), min_bytes=1) == ("blocks.0", "blocks.1", "head")


def test_a_module_without_its_like_is_a_unit_where_it_is_small_beside_the_model() -> None:
    """256 B of 33 kB: `stem` is one unit. 32 kB of 33 kB: `body` is taken apart."""
    layers = [
        ("stem.a", "stem.a.weight", (4, 8)),
        ("stem.b", "stem.b.weight", (4, 8)),
        ("body.left", "body.left.weight", (512, 8)),
        ("body.right", "body.right.weight", (512, 9)),
    ]
    assert sharding_units(_graph(layers), min_bytes=1) == ("stem", "body.left", "body.right")


def test_what_is_smaller_than_the_minimum_stays_with_the_root() -> None:
    """A block has 512 bytes."""
    assert sharding_units(_graph(_blocks(2)), min_bytes=513) == ()


@pytest.mark.parametrize(
    "more",
    [
        ("blocks.1.up@1", "blocks.1.up.weight", (8, 8)),
        ("head", "blocks.1.up.weight", (8, 8)),
    ],
    ids=["called twice", "weight used outside"],
)
def test_a_module_that_is_not_run_once_as_a_whole_is_no_unit(more: Layer) -> None:
    """`blocks.1.down` is still one; the block and `blocks.1.up` are not."""
    assert sharding_units(_graph([*_blocks(3), more]), min_bytes=1) == ("blocks.0", "blocks.1.down", "blocks.2")


def test_a_weight_that_has_a_name_elsewhere_is_not_in_a_unit() -> None:
    graph = _graph([("token", "token.weight", (8, 8)), ("mix", "mix.weight", (8, 8))], aliases=("head.weight",))
    assert sharding_units(graph, min_bytes=1) == ()


def test_parameters_and_operations_of_units() -> None:
    graph = _graph([("embed", "embed.weight", (64, 8)), *_blocks(2)])
    units = ("blocks.0", "blocks.1")
    names = {unit: [p.name for p in held] for unit, held in unit_parameters(graph, units).items()}
    assert names == {
        "": ["embed.weight"],
        "blocks.0": ["blocks.0.up.weight", "blocks.0.down.weight"],
        "blocks.1": ["blocks.1.up.weight", "blocks.1.down.weight"],
    }
    assert unit_ops(graph.ops, units) == {"blocks.0": [1, 2], "blocks.1": [3, 4]}
    assert not is_inside("blocks.10", "blocks.1")
