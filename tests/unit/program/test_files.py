import json

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.base.errors import CorruptDataError
from trimaran.program.json_files import decode_program, digest, encode_program
from trimaran.program.lowering.lower import lower

PROGRAM = lower(chain(3, buffers=True), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4)


def test_the_schema_version_is_first() -> None:
    assert next(iter(json.loads(encode_program(PROGRAM)))) == "schema_version"


def test_the_json_reads_back() -> None:
    assert decode_program(encode_program(PROGRAM)) == PROGRAM


def test_a_truncated_file_is_corrupt() -> None:
    with raises("file.not-json", CorruptDataError, source="p.json"):
        decode_program(encode_program(PROGRAM)[:-20], source="p.json")


@pytest.mark.parametrize("text", ["[]", "3", '"text"'])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with raises("file.not-an-object"):
        decode_program(text)


@pytest.mark.parametrize("version", [None, 0, 2, True, "1"])
def test_another_schema_version_is_refused(version: object) -> None:
    plain = json.loads(encode_program(PROGRAM)) | {"schema_version": version}
    with raises("file.schema-version", match="schema_version"):
        decode_program(json.dumps(plain))


def test_a_wrong_type_is_refused_with_its_path() -> None:
    plain = json.loads(encode_program(PROGRAM))
    plain["ranks"][1][2]["microbatch"] = "zero"
    with raises("file.wrong-value", match=r"\$\.ranks\[1\]\[2\]\.microbatch"):
        decode_program(json.dumps(plain))


def test_an_unknown_key_is_refused_with_its_path_and_the_known_ones() -> None:
    plain = json.loads(encode_program(PROGRAM))
    plain["ranks"][1][2]["colour"] = "red"
    with raises("file.unknown-key", match=r"`\$\.ranks\[1\]\[2\]\.colour`"):
        decode_program(json.dumps(plain))


def test_nan_is_no_json() -> None:
    with raises("file.not-json", CorruptDataError, match="NaN"):
        decode_program('{"schema_version": NaN}')


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1.5, "x"]}) == digest({"b": [1.5, "x"], "a": 1})
