import json
import runpy
from pathlib import Path

import jsonschema
import pytest
from tests import builders
from tests.graphs import chain
from tests.unit.measure.calibrations import calibration
from tests.unit.program.test_plan_file import PLAN

from trimaran.measure.calibration.results import encode_calibration
from trimaran.program.json_files import encode_program
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import format_plan

ROOT = Path(__file__).parents[3]
TEXTS: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "schemas.py"))["schemas"]()
PROGRAM_SCHEMA, PLAN_SCHEMA, CALIBRATION_SCHEMA = (
    json.loads(TEXTS[f"{name}.schema.json"]) for name in ("program", "plan", "calibration")
)
PROGRAM = json.loads(
    encode_program(lower(chain(3, buffers=True), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4))
)


@pytest.mark.parametrize("name", TEXTS)
def test_the_committed_schema_is_up_to_date(name: str) -> None:
    """`python scripts/schemas.py docs/schemas` writes it."""
    assert (ROOT / "docs" / "schemas" / name).read_text(encoding="utf-8") == TEXTS[name]


def test_a_program_fits_its_schema() -> None:
    jsonschema.validate(PROGRAM, PROGRAM_SCHEMA)


def test_a_plan_fits_its_schema() -> None:
    jsonschema.validate(json.loads(format_plan(PLAN)), PLAN_SCHEMA)


def test_a_schema_refuses_an_unknown_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(PROGRAM | {"colour": "red"}, PROGRAM_SCHEMA)


def test_a_schema_refuses_an_unknown_kind() -> None:
    changed = json.loads(json.dumps(PROGRAM))
    changed["ranks"][0][0]["kind"] = "X"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, PROGRAM_SCHEMA)


def test_every_property_is_described() -> None:
    for schema in (PROGRAM_SCHEMA, PLAN_SCHEMA):
        for definition in (schema, *schema["$defs"].values()):
            for name, entry in definition.get("properties", {}).items():
                assert name == "schema_version" or entry["description"]


def test_a_calibration_fits_its_schema() -> None:
    document = json.loads(encode_calibration(calibration()))
    jsonschema.validate(document, CALIBRATION_SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"colour": "red"}, CALIBRATION_SCHEMA)
