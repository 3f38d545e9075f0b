"""JSON Schemas of the files of the package, made from their types and docstrings: `python scripts/schemas.py FOLDER`.

A test checks that those in docs/schemas are up to date.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trimaran.jobs.learning_rate import Recipe
from trimaran.measure.calibration.results import (
    CALIBRATION_VERSION,
    CalibrationBody,
    DeviceFigures,
    Estimate,
    LinkFigures,
    ProductRate,
)
from trimaran.pricing.noise import Noise
from trimaran.pricing.tables import Fingerprint
from trimaran.pricing.types import Interference
from trimaran.program.gradients import Compression
from trimaran.program.memory import CodecChoice
from trimaran.program.plan_file import (
    PLAN_VERSION,
    Assumed,
    CandidateRow,
    OtherPlan,
    Plan,
    PlannedLink,
    PlannedTraining,
    Prediction,
    Premises,
)
from trimaran.program.strategy import Feeding, Part, Shard, Strategy

_TYPES = (
    *(Assumed, CandidateRow, CodecChoice, Compression, Feeding, OtherPlan, Part, Plan, PlannedLink, PlannedTraining),
    Recipe,
    *(Prediction, Premises, Shard, Strategy),
    *(CalibrationBody, DeviceFigures, Estimate, Fingerprint, Interference, LinkFigures, Noise, ProductRate),
)
_CONTENT_DIGEST = {
    "type": "string",
    "description": "SHA-256 of everything else in the file but the schema version, as JSON with sorted keys and no "
    "white space; absent in a plan that a person wrote",
}
_CALIBRATION_DIGEST = {"type": "string", "description": "SHA-256 of everything else in the file but the schema version"}
_TABLE = {
    "type": "object",
    "required": ["schema_version", "digest", "table"],
    "properties": {
        "schema_version": {"type": "integer", "description": "of the table"},
        "digest": {"type": "string", "description": "SHA-256 of the table"},
        "table": {"type": "object", "description": "durations with their intervals, and the fingerprint they are for"},
    },
}


def schemas() -> dict[str, str]:
    """The text of each schema, by file name."""
    made = {
        "plan": make_schema(Plan, title="Trimaran plan", version=PLAN_VERSION, extra={"digest": _CONTENT_DIGEST}),
        "calibration": calibration_schema(),
    }
    return {f"{name}.schema.json": json.dumps(one, indent=2, ensure_ascii=False) + "\n" for name, one in made.items()}


def calibration_schema() -> dict[str, Any]:
    """JSON Schema of a calibration file."""
    schema = make_schema(
        CalibrationBody,
        title="Trimaran calibration",
        version=CALIBRATION_VERSION,
        extra={"digest": _CALIBRATION_DIGEST},
    )
    schema["properties"]["costs"]["items"] = _TABLE
    schema["required"].insert(1, "digest")
    return schema


def make_schema(wanted: type, *, title: str, version: int, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON Schema of a file, described by the docstrings of its types.

    Args:
        wanted: type of the whole file
        title: of the schema
        version: schema version of the file
        extra: properties that the type does not have
    """
    (_,), components = msgspec.json.schema_components([wanted], ref_template="#/$defs/{name}")
    for kind in _TYPES:
        if kind.__name__ in components:
            _describe(components[kind.__name__], kind)
    top = components.pop(wanted.__name__)
    top["properties"] = {"schema_version": {"const": version}} | dict(extra or {}) | top["properties"]
    top["required"] = ["schema_version", *top["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "title": title, "$defs": components}


def _describe(schema: dict[str, Any], kind: type) -> None:
    """Put the first line of the docstring and the lines of its attributes where a reader of the schema looks."""
    schema["description"] = (kind.__doc__ or "").strip().split("\n")[0]
    schema["additionalProperties"] = False
    lines: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        attributes = (base.__doc__ or "").partition("Attributes:\n")[2].split("\n\n")[0]
        lines |= dict(re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", attributes, re.MULTILINE))
    for name, entry in schema["properties"].items():
        entry["description"] = " ".join(lines[name].split())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the schemas; made where it is missing")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
