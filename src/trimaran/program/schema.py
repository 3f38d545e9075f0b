"""JSON Schemas of the files of this package, made from their types and docstrings.

`python -m trimaran.program.schema docs/schemas` writes them; a test checks that they are up to date.
"""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trimaran.jobs.learning_rate import Recipe
from trimaran.program.gradients import Compression
from trimaran.program.json_files import PROGRAM_VERSION
from trimaran.program.memory import CodecChoice
from trimaran.program.plan_file import (
    PLAN_VERSION,
    CandidateRow,
    Plan,
    PlannedLink,
    PlannedTraining,
    Prediction,
    Premises,
)
from trimaran.program.strategy import Feeding, Part, Shard, Strategy
from trimaran.program.types import Instruction, Mark, Program

_TYPES = (
    *(CandidateRow, CodecChoice, Compression, Feeding, Instruction, Mark, Part, Plan, PlannedLink, PlannedTraining),
    Recipe,
    *(Prediction, Premises, Program, Shard, Strategy),
)
_CONTENT_DIGEST = {
    "type": "string",
    "description": "SHA-256 of everything else in the file but the schema version, as JSON with sorted keys and no "
    "white space; absent in a plan that a person wrote",
}


def program_schema() -> dict[str, Any]:
    """JSON Schema of the JSON form of a program."""
    return make_schema(Program, _TYPES, title="Trimaran program", version=PROGRAM_VERSION)


def plan_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    return make_schema(Plan, _TYPES, title="Trimaran plan", version=PLAN_VERSION, extra={"digest": _CONTENT_DIGEST})


def format_schemas() -> dict[str, str]:
    """The text of each schema, by file name."""
    return format_all({"program.schema.json": program_schema(), "plan.schema.json": plan_schema()})


def format_all(schemas: Mapping[str, object]) -> dict[str, str]:
    """The text of some schemas, by file name."""
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


def write_texts(texts: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Write texts into the folder that is named on the command line; returns the exit code.

    Args:
        texts: by file name
        arguments: of the command line
    """
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m MODULE FOLDER\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Write the schemas into the folder that is named; returns the exit code."""
    return write_texts(format_schemas(), arguments)


def make_schema(
    wanted: type, types: Collection[type], *, title: str, version: int, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON Schema of a file, described by the docstrings of its types.

    Args:
        wanted: type of the whole file
        types: whose attributes are described; `wanted` among them
        title: of the schema
        version: schema version of the file
        extra: properties that the type does not have
    """
    (_,), components = msgspec.json.schema_components([wanted], ref_template="#/$defs/{name}")
    for kind in types:
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
    sys.exit(main(sys.argv[1:]))
