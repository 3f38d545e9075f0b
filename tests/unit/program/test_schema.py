import json
from pathlib import Path

import jsonschema
import pytest
from tests import builders
from tests.graphs import chain
from tests.unit.program.test_plan_file import PLAN

from trimaran.program.json_files import encode_program
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import format_plan
from trimaran.program.schema import format_schemas, main, plan_schema, program_schema

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
PROGRAM = json.loads(
    encode_program(lower(chain(3, buffers=True), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4))
)


@pytest.mark.parametrize("name", format_schemas())
def test_the_committed_schema_is_up_to_date(name: str) -> None:
    """`python -m trimaran.program.schema docs/schemas` writes it."""
    assert (SCHEMAS / name).read_text(encoding="utf-8") == format_schemas()[name]


def test_a_program_fits_its_schema() -> None:
    jsonschema.validate(PROGRAM, program_schema())


def test_a_plan_fits_its_schema() -> None:
    jsonschema.validate(json.loads(format_plan(PLAN)), plan_schema())


def test_a_schema_refuses_an_unknown_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(PROGRAM | {"colour": "red"}, program_schema())


def test_a_schema_refuses_an_unknown_kind() -> None:
    changed = json.loads(json.dumps(PROGRAM))
    changed["ranks"][0][0]["kind"] = "X"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, program_schema())


def test_every_property_is_described() -> None:
    for schema in (program_schema(), plan_schema()):
        for definition in (schema, *schema["$defs"].values()):
            for name, entry in definition.get("properties", {}).items():
                assert name == "schema_version" or entry["description"]


def test_the_command_writes_the_files(tmp_path: Path) -> None:
    assert main([str(tmp_path / "schemas")]) == 0
    assert {path.name for path in (tmp_path / "schemas").iterdir()} == set(format_schemas())


def test_the_command_needs_a_folder() -> None:
    assert main([]) == 2
