import dataclasses

from tests.graphs import BIAS_BYTES, WEIGHT_BYTES, chain, parameter

from trimaran.graph.types import Graph, Op
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, Bucket, gradient_buckets

MIB = 2**20


def owners(sizes: list[int], **changes: dict[int, object]) -> Graph:
    """One operation a parameter, in forward order; parameter and operation are named alike."""
    names = [f"p{number}" for number in range(len(sizes))]
    return dataclasses.replace(
        chain(1),
        ops=tuple(Op(id=name, target="op", parameters=(name,)) for name in names),
        parameters=tuple(
            parameter(name, size, **{key: values[number] for key, values in changes.items() if number in values})
            for number, (name, size) in enumerate(zip(names, sizes, strict=True))
        ),
    )


def groups(buckets: tuple[Bucket, ...]) -> list[tuple[str, ...]]:
    return [bucket.parameters for bucket in buckets]


def test_parameters_are_ready_in_reverse_order_of_use() -> None:
    graph = chain(2)
    (bucket,) = gradient_buckets(graph, graph.ops, DEFAULT_BUCKET_BYTES)
    assert bucket.parameters == ("op1.bias", "op1.weight", "op0.bias", "op0.weight")


def test_a_bucket_names_the_operation_that_completes_it_and_its_size() -> None:
    graph = chain(2)
    (bucket,) = gradient_buckets(graph, graph.ops, DEFAULT_BUCKET_BYTES)
    assert bucket.op == "op0"
    assert bucket.nbytes == 2 * (WEIGHT_BYTES + BIAS_BYTES)


def test_a_bucket_is_closed_when_it_has_reached_its_limit() -> None:
    """With a limit of 100 bytes: 60 + 60 reaches it, 100 does, and 30 is left."""
    graph = owners([30, 100, 60, 60])
    assert groups(gradient_buckets(graph, graph.ops, 100)) == [("p3", "p2"), ("p1",), ("p0",)]


def test_labels_count_in_order_of_readiness() -> None:
    graph = owners([100, 100])
    assert [bucket.label for bucket in gradient_buckets(graph, graph.ops, 100)] == ["b0", "b1"]


def test_the_first_bucket_is_small_where_the_limit_is_the_default() -> None:
    """p3 alone reaches 1 MiB; the rest, 22 MiB, stays below 25 MiB."""
    graph = owners([10 * MIB, 10 * MIB, 2 * MIB, MIB])
    assert groups(gradient_buckets(graph, graph.ops, DEFAULT_BUCKET_BYTES)) == [("p3",), ("p2", "p1", "p0")]


def test_the_first_bucket_is_like_the_others_where_the_user_gave_a_limit() -> None:
    """DDP's rule: `bucket_cap_mb=4` also holds for the first bucket; 1 + 2 + 10 MiB reach it."""
    graph = owners([10 * MIB, 10 * MIB, 2 * MIB, MIB])
    assert groups(gradient_buckets(graph, graph.ops, 4 * MIB)) == [("p3", "p2", "p1"), ("p0",)]


def test_a_bucket_has_one_dtype() -> None:
    graph = owners([40, 40, 40, 40], dtype={0: "float64", 2: "float64"})
    buckets = gradient_buckets(graph, graph.ops, 1000)
    assert groups(buckets) == [("p3", "p1"), ("p2", "p0")]
    assert [bucket.dtype for bucket in buckets] == ["float32", "float64"]


def test_a_weight_that_is_used_twice_is_ready_after_its_earlier_use() -> None:
    """op0 and op2 share a weight: the backward passes op2, op1, and completes the weight at op0."""
    graph = chain(3, tied=[(0, 2)])
    buckets = gradient_buckets(graph, graph.ops, 1)
    assert [bucket.parameters[0] for bucket in buckets] == [
        "op2.bias", "op1.bias", "op1.weight", "op0.bias", "op0.weight",
    ]  # fmt: skip
    assert buckets[-1].op == "op0"


def test_a_frozen_parameter_has_no_gradient() -> None:
    graph = owners([40, 40], trainable={0: False})
    assert groups(gradient_buckets(graph, graph.ops, 1000)) == [("p1",)]


def test_operations_without_parameters_have_no_buckets() -> None:
    graph = chain(2)
    assert gradient_buckets(graph, graph.ops[-1:], 1000) == ()


def test_parameters_that_another_segment_completes_are_left_out() -> None:
    graph = owners([40, 40])
    assert groups(gradient_buckets(graph, graph.ops, 1000, without={"p1"})) == [("p0",)]
