import json
import runpy
from pathlib import Path

import jsonschema
import pytest
from tests.unit.measure.calibrations import calibration
from tests.unit.program.test_plan_file import PLAN

from trimaran.measure.calibration.results import encode_calibration
from trimaran.program.plan_file import format_plan

ROOT = Path(__file__).parents[3]
TEXTS: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "schemas.py"))["schemas"]()
PLAN_SCHEMA, CALIBRATION_SCHEMA = (json.loads(TEXTS[f"{name}.schema.json"]) for name in ("plan", "calibration"))


@pytest.mark.parametrize("name", TEXTS)
def test_the_committed_schema_is_up_to_date(name: str) -> None:
    """`python scripts/schemas.py docs/schemas` writes it."""
    assert (ROOT / "docs" / "schemas" / name).read_text(encoding="utf-8") == TEXTS[name]


def test_a_plan_fits_its_schema() -> None:
    document = json.loads(format_plan(PLAN))
    jsonschema.validate(document, PLAN_SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"colour": "red"}, PLAN_SCHEMA)
    document["strategy"]["schedule"] = "X"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, PLAN_SCHEMA)


def test_every_property_is_described() -> None:
    for definition in (PLAN_SCHEMA, *PLAN_SCHEMA["$defs"].values()):
        for name, entry in definition.get("properties", {}).items():
            assert name == "schema_version" or entry["description"]


def test_a_calibration_fits_its_schema() -> None:
    document = json.loads(encode_calibration(calibration()))
    jsonschema.validate(document, CALIBRATION_SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"colour": "red"}, CALIBRATION_SCHEMA)
