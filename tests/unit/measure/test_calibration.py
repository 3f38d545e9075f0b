"""Calibrations as values and as files: what is written is read, what is damaged or of another machine is refused."""

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import HERE
from tests.raising import raises
from tests.unit.measure.calibrations import CALLS, calibration, write

from trimaran.base.errors import CorruptDataError, EnvironmentProblem
from trimaran.measure.calibration.devices import VECTOR_BYTES, device_figures
from trimaran.measure.calibration.results import (
    check_machine,
    decode_calibration,
    encode_calibration,
    keep_calibration,
    kept_calibration,
    kept_path,
    read_calibration,
)


def test_a_calibration_survives_the_way_to_a_file_and_back(tmp_path: Path) -> None:
    assert read_calibration(write(tmp_path / "machine.json")) == calibration()


def test_the_same_calibration_gives_the_same_bytes() -> None:
    assert encode_calibration(calibration()) == encode_calibration(calibration())


def test_every_truncation_is_refused() -> None:
    """Cut anywhere but in the last line break; not every byte, to be quick."""
    data = encode_calibration(calibration())
    for length in range(0, len(data) - 2, 499):
        with raises("file.not-json", CorruptDataError, match="calibrate again"):
            decode_calibration(data[:length], source="machine.json")


@pytest.mark.parametrize("figure", [b"2026-11-20T09:30", b'"a core"', b'"1 Gb/s"', b"0.101"])
def test_an_edited_file_is_refused(figure: bytes) -> None:
    """Wherever it was edited: its own figures, or those of a cost table in it."""
    data = encode_calibration(calibration())
    for place in (data.index(figure), data.rindex(figure)):
        edited = data[:place] + data[place:].replace(figure, figure.replace(b"1", b"2").replace(b"a", b"b"), 1)
        with raises("calibration.digest-mismatch", CorruptDataError, source="machine.json"):
            decode_calibration(edited, source="machine.json")


def test_other_white_space_is_no_damage() -> None:
    assert decode_calibration(msgspec.json.format(encode_calibration(calibration()), indent=4)) == calibration()


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ("[]", "file.not-an-object"),
        ("{}", "file.schema-version"),
        ('{"schema_version": 1, "digest": "", "job": "digits"}', "file.wrong-value"),
    ],
)
def test_json_that_is_something_else_is_told(other: str, code: str) -> None:
    with raises(code, source="plan.json"):
        decode_calibration(other.encode(), source="plan.json")


def test_a_file_of_another_version_is_refused_with_both_versions() -> None:
    file = json.loads(encode_calibration(calibration())) | {"schema_version": 99}
    with raises("file.schema-version", match=r"\b99\b.*\b2\b", schema_version=99):
        decode_calibration(json.dumps(file).encode())


def test_a_file_of_version_1_is_read() -> None:
    """Its links say `held_to` where files say `rate_limit` since."""
    file = json.loads(encode_calibration(calibration()))
    links = [{"held_to": link["rate_limit"], **link} for link in file["links"]]
    for link in links:
        del link["rate_limit"]
    content = {name: file[name] for name in file if name not in ("schema_version", "digest")} | {"links": links}
    digest = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    old = {"schema_version": 1, "digest": digest, **content}
    assert decode_calibration(json.dumps(old, ensure_ascii=False).encode()) == calibration()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises("file.unreadable", match=r"nothing\.json"):
        read_calibration(tmp_path / "nothing.json")


def test_the_calibration_of_another_machine_is_refused_with_what_differs() -> None:
    here = dataclasses.replace(HERE, cores=64, torch="2.14.0")
    with raises("calibration.other-machine", match=r"2\.13\.0.*2\.14\.0.*\b2\b.*\b64\b", source="machine.json") as told:
        check_machine(calibration(), here, source="machine.json")
    differ: Any = told.value.figures["differ"]
    assert [text.partition(":")[0] for text in differ] == ["torch", "cores"]


def test_ranks_and_links_do_not_make_another_machine() -> None:
    check_machine(calibration(), dataclasses.replace(HERE, ranks=1, link="1 Gb/s"), source="machine.json")


class TestTheOneThatIsKept:
    def test_it_is_found_for_any_number_of_ranks(self) -> None:
        keep_calibration(calibration())
        assert kept_calibration(dataclasses.replace(HERE, ranks=7)) == calibration()
        assert kept_calibration(dataclasses.replace(HERE, device="another")) is None

    def test_a_later_one_takes_its_place_and_leaves_nothing_else(self) -> None:
        keep_calibration(calibration())
        later = dataclasses.replace(calibration(), date="2026-12-01T09:30:00+00:00")
        path = keep_calibration(later)
        assert kept_calibration(HERE) == later
        assert list(path.parent.iterdir()) == [path]

    def test_a_damaged_one_counts_for_none_and_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        path = keep_calibration(calibration())
        path.write_bytes(path.read_bytes()[:-100])
        with caplog.at_level(logging.WARNING):
            assert kept_calibration(HERE) is None
        assert "calibrate again" in caplog.text

    def test_a_directory_that_cannot_be_written_is_told(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A file is in the place of the directory, which not even root can write into."""
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path / "file"))
        with raises("cache.unwritable", EnvironmentProblem, match="TRIMARAN_CACHE"):
            keep_calibration(calibration())
        assert not kept_path(HERE).parent.exists()


def test_rates_of_a_device_as_worked_by_hand() -> None:
    """2 * 100^3 FLOP in 1, 2 and 4 ms: 2, 1 and 0.5 GFLOP/s. 64 MiB in 10 ms, moved twice by a copy, thrice by axpy."""
    figures = device_figures([CALLS], name="a core", kind="cpu", how="by hand")
    rate = figures.products[0].flops_per_s
    assert (rate.value, rate.low, rate.high) == pytest.approx((1e9, 0.5e9, 2e9))
    assert figures.copy_bytes_per_s.value == pytest.approx(2 * VECTOR_BYTES / 0.01)
    assert figures.axpy_bytes_per_s.value == pytest.approx(3 * VECTOR_BYTES / 0.01)
    assert figures.operator_s.value == 1e-6


def test_a_link_is_shown_by_its_smallest_and_its_largest_transfer() -> None:
    """Held to 1 Gb/s: 1 ms + 1 B at 125 MB/s for the smallest; 1 MB in 9 ms for the largest, 111 MB/s."""
    held = [link for link in calibration().links if link.rate_limit == "1 Gb/s"]
    assert [(link.kind, link.ranks) for link in held] == [("AR", 2)]
    assert held[0].small_s.value == pytest.approx(1e-3, rel=1e-4)
    assert held[0].bytes_per_s.value == pytest.approx(1e6 / 9e-3)
    assert held[0].interference is not None
