"""Names of files, jobs and devices do nothing to a terminal or a drawing but being read there."""

import io
import logging
import subprocess
import sys
import unicodedata
import xml.dom.minidom
from pathlib import Path

import pytest
from rich.text import Text

from trimaran.base.printable import printable
from trimaran.cli.output import guard_log
from trimaran.report.svg import Drawing
from trimaran.report.tables import frame_table, make_console

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eevil\u2066\ufeff\x00\ud800"


def test_no_character_stays_that_is_obeyed_or_not_seen() -> None:
    """Of all characters, those of the categories control, format and surrogate, but the line feed and the tabulator."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        # Signs that some scripts write before digits, or between others, are seen.
        seen = unicodedata.name(character, "").startswith(("ARABIC", "KAITHI", "SYRIAC", "EGYPTIAN"))
        if hidden and not seen and character not in "\n\t":
            assert printable(character) != character, hex(code)


@pytest.mark.parametrize("text", ["résumé µs ×2 – “quoted” 日本語 …", "two\nlines\tand a tabulator", ""])
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


def test_a_console_writes_escapes_of_texts_and_its_own_styles() -> None:
    out = io.StringIO()
    console = make_console(file=out, force_terminal=True, color_system="standard", width=200)
    table = frame_table(f"title {EVIL}", f"caption {EVIL}")
    table.add_column(f"column {EVIL}")
    table.add_row(Text(f"cell {EVIL}", style="bold"))
    console.print(f"[red]{EVIL}[/] and", table)
    console.print(EVIL, markup=False, soft_wrap=True)
    written = out.getvalue()
    assert "\x1b[31m" in written
    plain = written.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[3m", "")
    plain = plain.replace("\x1b[1;3m", "").replace("\x1b[2;3m", "").replace("\x1b[2m", "")
    assert {"\x1b", "\x07", "\x9b", "\r", "\u202e", "\x00", "\ud800"}.isdisjoint(plain), ascii(plain)
    assert r"\x1b]0;owned" in plain


def test_a_drawing_with_such_names_is_sound_xml() -> None:
    drawing = Drawing(width=10, height=10)
    drawing.text(0, 0, EVIL + "<b>&\uffff")
    text = drawing.render()
    assert {"\x1b", "\u202e", "\x00"}.isdisjoint(text)
    xml.dom.minidom.parseString(text.encode())


def test_a_warning_without_a_log_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.lastResort
    assert handler is not None
    before = handler.formatter
    guard_log()
    try:
        handler.handle(logging.makeLogRecord({"msg": "%s set aside", "args": ("\x1b[2J.json",), "levelno": 30}))
    finally:
        handler.setFormatter(before)
    assert capsys.readouterr().err == "\\x1b[2J.json set aside\n"


@pytest.mark.parametrize("where", ["error", "page"])
def test_a_cluster_file_cannot_write_to_the_terminal(where: str, tmp_path: Path) -> None:
    """The name of a node holds a sequence that clears the screen; it is shown by a page, and by an error."""
    path = tmp_path / "rack.toml"
    extra = 'like = "dgx1-v100"' if where == "page" else 'like = "\\u001b[2J"'
    path.write_text(f'[[nodes]]\nname = "rack\\u001b[2J\\u202e"\n{extra}\nsource = "a \\u001b]0;b\\u0007"\n')
    command = [sys.executable, "-m", "trimaran", "clusters", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == (0 if where == "page" else 2), shown
    assert {"\x1b", "\u202e", "\x07"}.isdisjoint(shown)
    assert r"\x1b[2J" in shown
