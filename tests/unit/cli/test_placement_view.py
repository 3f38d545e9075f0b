"""A placement in words."""

import pytest

from trimaran.cli.views.placement import placement_document, placement_lines
from trimaran.features.placement import Placed, profiled_problem
from trimaran.graph.profiled import ProfiledGraph, ProfiledNode
from trimaran.placement.solve import place


def placed(devices: int) -> Placed:
    node = ProfiledNode(
        name="a", op="Linear()", forward_s=0.006, backward_s=0.012, activation_bytes=0.0, parameter_bytes=0.0
    )
    graph = ProfiledGraph(name="chain", nodes=(node,), edges=())
    problem = profiled_problem(graph, devices=devices, bytes_per_s=25e9)
    return Placed(graph=graph, problem=problem, placement=place(problem, time_limit_s=5.0))


def test_the_links_between_devices_are_named() -> None:
    assert str(placement_lines(placed(2))[0]).startswith("chain on 2 devices, 25.0 GB/s each way: 18.0 ms a step")


def test_one_device_has_no_link() -> None:
    assert str(placement_lines(placed(1))[0]).startswith("chain on 1 device: 18.0 ms a step")


def test_the_document_has_the_stretches_of_the_page() -> None:
    (stretch,) = placement_document(placed(1))["stretches"]
    assert (stretch["first"], stretch["last"], stretch["kinds"]) == ("a", "a", ["Linear"])
    assert (sum(stretch["seconds"]), stretch["crossing_bytes"]) == (pytest.approx(0.018), 0.0)
