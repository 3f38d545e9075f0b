"""What the documents show is what happens: their Python runs, their commands print what is printed there.

A block of `console` has commands behind `$ ` and lines of their output in order; `…` alone on a line stands for lines
that are left out, and ends a line of which the rest is. TRIMARAN_GOLDEN=write writes what is printed now where that
differs: of each run of lines that is shown the same number, from the line on that begins as its first one does.
"""

import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documents import PAGES, ROOT
from tests.forks.commands import run_command

LANGUAGES = {"bash", "console", "json", "python", "text", "toml"}
WRITE = os.environ.get("TRIMARAN_GOLDEN") == "write"
LEFT_OUT = "…"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def consoles() -> list[tuple[Path, str]]:
    """Each command of the documents that is shown with its output, and that output."""
    return [
        (page, found)
        for page in PAGES
        for block in blocks(page, "console")
        for found in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)
        if found.strip()
    ]


_PRINTED: dict[str, list[str]] = {}
"""Of each command that has run: two pages may show the same one."""


def printed(command: str, folder: Path) -> list[str]:
    if command not in _PRINTED:
        program, *arguments = shlex.split(command)
        assert program == "trimaran"
        done = run_command(*arguments, folder=folder, environment={**os.environ, "COLUMNS": "80"}, timeout_s=580)
        assert done.returncode == 0, done.stderr
        _PRINTED[command] = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return _PRINTED[command]


def missing(shown: list[str], lines: list[str]) -> str | None:
    """The first line that is shown and not printed behind those before it; lines follow each other but at `…`."""
    at, anywhere = 0, False
    for line in shown:
        if line == LEFT_OUT:
            anywhere = True
            continue
        found = at
        while found < len(lines) and not _same(line, lines[found]) and anywhere:
            found += 1
        if found == len(lines) or not _same(line, lines[found]):
            return line
        at, anywhere = found + 1, False
    return None


def _same(shown: str, line: str) -> bool:
    if shown.endswith(LEFT_OUT):
        return line.startswith(shown.removesuffix(LEFT_OUT).rstrip())
    return shown == line


def renewed(shown: list[str], lines: list[str]) -> list[str]:
    """What is printed now in place of what was shown, as the module says."""
    kept: list[str] = []
    for runs, group in itertools.groupby(shown, lambda line: line != LEFT_OUT):
        old = list(group)
        starts = [n for n, line in enumerate(lines) if runs and _start(line) == _start(old[0])]
        kept += lines[starts[0] : starts[0] + len(old)] if starts else old
    return [old if _same(old, new) else new for old, new in zip(shown, kept, strict=True)]


def _start(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*", "#", line))[:12]


def test_lines_that_are_not_printed_are_found() -> None:
    lines = ["a 1", "b 2", "c 3", "d 4"]
    assert missing(["a 1", LEFT_OUT, "c …", "d 4"], lines) is None
    assert missing(["a 1", "c 3"], lines) == "c 3"
    assert missing([LEFT_OUT, "d 4", "c 3"], lines) == "c 3"


def test_what_is_shown_is_renewed_in_its_place() -> None:
    lines = ["note", "step   12 ms", "a 4", "b 5", "sum of all 9"]
    assert renewed([LEFT_OUT, "step    9 ms", "a 2", LEFT_OUT, "sum of all 7 …"], lines) == [
        *(LEFT_OUT, "step   12 ms", "a 4", LEFT_OUT, "sum of all 9")
    ]


def quick(pages: Sequence[Path]) -> list[Any]:
    """Parameters of a test of pages: the README, and all others in long sweeps."""
    return [
        pytest.param(page, id=page.stem, marks=[] if page.stem == "README" else [pytest.mark.sweep]) for page in pages
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_its_language(page: Path) -> None:
    assert {name for name, _ in _BLOCK.findall(page.read_text(encoding="utf-8"))} <= LANGUAGES


@pytest.mark.parametrize("page", quick([page for page in PAGES if blocks(page, "python")]))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "text"), consoles(), ids=lambda found: found.stem if isinstance(found, Path) else "")
def test_a_command_prints_what_is_shown(page: Path, text: str, tmp_path: Path) -> None:
    command, *shown = text.rstrip("\n").splitlines()
    lines = printed(command.removeprefix("$ "), tmp_path)
    if WRITE and missing(shown, lines) is not None:
        whole = page.read_text(encoding="utf-8")
        page.write_text(whole.replace(text, "\n".join([command, *renewed(shown, lines)]) + "\n"), encoding="utf-8")
    else:
        assert shown
        assert missing(shown, lines) is None, f"{command} prints\n" + "\n".join(lines)


def test_the_documents_are_short() -> None:
    """Words of the documents that people write, without decisions."""
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES)
    assert words <= 35_000, words


def test_the_reference_has_every_public_name() -> None:
    import trimaran

    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: trimaran\.(\w+)$", page, re.MULTILINE)) == sorted(
        name for name in trimaran.__all__ if name != "__version__"
    )


def test_the_site_has_every_page() -> None:
    """Pages of docs/ are in the navigation of mkdocs.yml, and nothing else is."""
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize(
    ("url", "outside"),
    [("", "the grid"), ("https://example.org/tree/main", "[the grid](https://example.org/tree/main/x/y.md#a)")],
)
def test_links_of_the_site_to_files_outside_of_it(url: str, outside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a page in a folder to other pages stay."""
    monkeypatch.setenv("TRIMARAN_REPOSITORY_URL", url)
    hook = runpy.run_path(str(ROOT / "scripts" / "docs_links.py"))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="decisions/0001.md"))
    assert hook("[the grid](../../x/y.md#a), [costs](../costs.md)", page=page) == f"{outside}, [costs](../costs.md)"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "limits, \n```\nx[0](y)\n```\n[b](https://b.org)"),
        (
            "https://a.org",
            "[limits](https://a.org/docs/limits.md#x), ![picture](https://a.org/docs/p.png)\n"
            "```\nx[0](y)\n```\n[b](https://b.org)",
        ),
    ],
)
def test_links_of_the_readme_outside_of_the_repository(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its address is not known names stay, and pictures are left out; code is as it was."""
    monkeypatch.setenv("TRIMARAN_REPOSITORY_URL", url)
    outside = runpy.run_path(str(ROOT / "scripts" / "docs_links.py"))["outside"]
    text = "[limits](docs/limits.md#x), ![picture](docs/p.png)\n```\nx[0](y)\n```\n[b](https://b.org)"
    assert outside(text, Path()) == told


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(
        r"""<(?:link[^>]*rel="?(?:stylesheet|preconnect|preload|icon)[^>]*|script|img)[^>]*\s(?:href|src)="?https?:"""
    )
    assert not [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))]
