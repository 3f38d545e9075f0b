"""`python -m trimaran_studies reproduce specification` and `survey`: rows, a page, and what is refused."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran


def test_some_rows_as_json(tmp_path: Path) -> None:
    done = trimaran("reproduce", "specification", "--rows", "C1,a8", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["rows"]
    assert [row["id"] for row in rows] == ["C1", "A8"]
    gain = next(check for check in rows[0]["checks"] if check["figure"].startswith("Inception-V3, 256"))
    assert gain == {
        "figure": "Inception-V3, 256 GPUs: +26.5 %",
        "bound": "+26.5 % (published)",
        "verdict": "met",
        "reason": "",
        "measured": "",
    }


def test_some_rows_as_a_table(tmp_path: Path) -> None:
    done = trimaran("reproduce", "specification", "--rows", "A8", cwd=tmp_path)
    assert "27.27 %" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("specification", "--rows", "E7"), "specification.unknown-row"),
        (("specification", "--rows", "A8", "--write", "page.md"), "specification.part-of-page"),
        (("specification", "--write", "absent/page.md"), "file.unwritable"),
        (("specification", "--networks", "vgg16"), ""),
        (("survey", "--rows", "A8"), ""),
        (("survey", "--real"), ""),
        (("vdnn", "--write", "page.md"), ""),
    ],
)
def test_what_a_page_does_not_take_is_refused(arguments: tuple[str, ...], code: str, tmp_path: Path) -> None:
    done = trimaran("reproduce", *arguments, "--json", cwd=tmp_path)
    assert done.returncode in (2, 4)
    assert list(tmp_path.iterdir()) == []
    found = json.loads(done.stdout)["error"]["code"]
    assert not code or found == code
