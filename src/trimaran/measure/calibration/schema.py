"""JSON Schema of a calibration file, made from its types and docstrings.

`python -m trimaran.measure.calibration.schema docs/schemas` writes it; a test checks that it is up to date.
"""

import sys
from collections.abc import Sequence
from typing import Any

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
from trimaran.program.schema import format_all, make_schema, write_texts

_TYPES = (CalibrationBody, DeviceFigures, Estimate, Fingerprint, Interference, LinkFigures, Noise, ProductRate)
_DIGEST = {"type": "string", "description": "SHA-256 of everything else in the file but the schema version"}
_TABLE = {
    "type": "object",
    "required": ["schema_version", "digest", "table"],
    "properties": {
        "schema_version": {"type": "integer", "description": "of the table"},
        "digest": {"type": "string", "description": "SHA-256 of the table"},
        "table": {"type": "object", "description": "durations with their intervals, and the fingerprint they are for"},
    },
}


def calibration_schema() -> dict[str, Any]:
    """JSON Schema of a calibration file."""
    schema = make_schema(
        CalibrationBody,
        _TYPES,
        title="Trimaran calibration",
        version=CALIBRATION_VERSION,
        extra={"digest": _DIGEST},
    )
    schema["properties"]["costs"]["items"] = _TABLE
    schema["required"].insert(1, "digest")
    return schema


def format_schemas() -> dict[str, str]:
    """The text of each schema, by file name."""
    return format_all({"calibration.schema.json": calibration_schema()})


def main(arguments: Sequence[str]) -> int:
    """Write the schemas into the folder that is named; returns the exit code."""
    return write_texts(format_schemas(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
