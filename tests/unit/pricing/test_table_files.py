import dataclasses
import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.raising import raises
from tests.unit.pricing.test_fed_step import SAMPLES

from trimaran.base.errors import CorruptDataError
from trimaran.pricing.table_files import decode_table, encode_table
from trimaran.pricing.types import Cost


def test_a_table_survives_the_way_to_a_file_and_back(tmp_path: Path) -> None:
    table = table_for(network(), whole_s=0.125, part=0.1)
    table = dataclasses.replace(table, between=builders.between(2e-4, 1e-5, straggling=0.05))
    path = tmp_path / "table.json"
    path.write_bytes(encode_table(table))
    assert decode_table(path.read_bytes()) == table


def test_the_same_table_gives_the_same_bytes_in_whatever_order_it_was_filled() -> None:
    table = table_for(network(), whole_s=0.125)
    backwards = dataclasses.replace(
        table,
        operations={key: dict(reversed(points.items())) for key, points in reversed(table.operations.items())},
        curves=dict(reversed(table.curves.items())),
    )
    assert encode_table(table) == encode_table(backwards)


def test_every_truncation_is_refused() -> None:
    """Cut anywhere but in the last line break, a file is no table; not every byte, to be quick."""
    data = encode_table(table_for(network(2)))
    for length in range(0, len(data) - 2, 97):
        with raises("file.malformed", CorruptDataError, match="measure again"):
            decode_table(data[:length])


def test_an_edited_figure_is_refused() -> None:
    data = encode_table(table_for(network(), whole_s=0.125))
    edited = data.replace(b"0.125", b"0.120")
    assert edited != data
    with raises("cost-table.digest-mismatch", CorruptDataError):
        decode_table(edited)


def test_other_white_space_is_no_damage() -> None:
    table = table_for(network())
    assert decode_table(msgspec.json.format(encode_table(table), indent=4)) == table


def test_a_file_of_another_version_is_refused_with_both_versions() -> None:
    file = json.loads(encode_table(table_for(network())))
    file["schema_version"] = 99
    with raises("cost-table.schema-version", match=r"my\.json", found=99, expected=2):
        decode_table(json.dumps(file).encode(), origin="my.json")


@pytest.mark.parametrize("cost", [Cost(-1.0, -1.0, -1.0, "x"), Cost(1.0, 2.0, 3.0, "x"), Cost(2.0, 1.0, 1.5, "x")])
def test_a_duration_that_nobody_can_measure_is_refused(cost: Cost) -> None:
    operation = builders.op_cost(forward=cost, backward=exact(1.0))
    table = builders.cost_table(operations={builders.operation_key("conv"): {8: operation}})
    with raises("cost-table.bad-duration", CorruptDataError, match=r"\b8\b.*\b0\b"):
        decode_table(encode_table(table))


def test_sizes_of_a_curve_must_ascend() -> None:
    table = builders.cost_table(curves={builders.curve_key("AR", 2): ((20, exact(1.0)), (10, exact(2.0)))})
    with raises("cost-table.sizes-not-ascending", CorruptDataError, match=r"\b2\b.*\b1\b.*\[20, 10\]"):
        decode_table(encode_table(table))


def test_what_samples_take_survives_the_way_to_a_file_and_back() -> None:
    table = table_for(network())
    steps = {job: dataclasses.replace(step, samples=SAMPLES) for job, step in table.steps.items()}
    table = dataclasses.replace(table, steps=steps)
    assert decode_table(encode_table(table)) == table


def test_a_file_from_before_samples_were_measured_is_read() -> None:
    """Without the row, with the digest of its content."""
    table = table_for(network())
    file = json.loads(encode_table(table))
    for step in file["table"]["steps"]:
        del step["samples"]
    body = msgspec.json.encode(file["table"])
    file["digest"] = hashlib.sha256(body).hexdigest()
    assert decode_table(msgspec.json.encode(file)) == table
