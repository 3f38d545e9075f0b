"""The table of a graph."""

from tests.unit.graph.networks import Layers, make_job

from trimaran.graph.capture import capture
from trimaran.graph.text import format_affine, format_graph
from trimaran.graph.types import Affine


def test_table_of_a_small_graph() -> None:
    text = format_graph(capture(make_job(Layers, name="small")).graph)
    header, *rest = text.splitlines()
    assert header.startswith("small: fp32, 4 operations, 70 parameters, keeps 80*B bytes, 2 cuts, digest ")
    assert rest[:3] == ["input input: [B, 6] float32", "target target: [B, 4] float32", ""]
    assert rest[3].split() == [
        *["operation", "kind", "makes", "parameters", "FLOP", "backward", "FLOP"],
        *["bytes", "backward", "bytes", "keeps", "cut"],
    ]
    assert rest[4].split() == [
        *["first", "Linear", "[B,", "6]", "float32", "42", "72*B", "72*B"],
        *["48*B", "+", "168", "72*B", "+", "168", "24*B", "x"],
    ]
    assert [line.split()[0] for line in rest[4:]] == ["first", "relu", "last", "loss"]


def test_affine_with_a_negative_part() -> None:
    assert format_affine(Affine(-4.0, 2.0)) == "2*B - 4"
