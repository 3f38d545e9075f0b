"""Files that the place of the repository reads: workflows, forms, the citation. They are what their schemas ask for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimaran.base import VERSION

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_a_file_is_what_its_schema_asks_for(pattern: str) -> None:
    main: Any = pytest.importorskip("check_jsonschema").main
    files = [str(path) for path in sorted(ROOT.glob(pattern))]
    assert files
    with pytest.raises(SystemExit) as ended:
        main(["--builtin-schema", f"vendor.{SCHEMAS[pattern]}", *files])
    assert ended.value.code == 0


def test_workflows_run_targets_that_exist() -> None:
    """Each makes what it needs: a target begins with `setup`, as `demo` and `test` do for a newcomer."""
    rules = dict(re.findall(r"(?m)^([a-z-]+):([^=#\n]*)##", (ROOT / "Makefile").read_text(encoding="utf-8")))
    asked = {target for text in workflows() for target in re.findall(r"run: make ([\w-]+)", text)}
    assert asked >= {"check", "docs", "setup", "test", "test-all"}
    assert all("setup" in rules[target] or ".venv/.stamp" in rules[target] for target in {*asked, "demo"})


def test_workflows_call_scripts_that_exist() -> None:
    scripts = {name for text in workflows() for name in re.findall(r"scripts/[\w.]+", text)}
    assert scripts
    assert all((ROOT / name).exists() for name in scripts)


def workflows() -> Iterator[str]:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        yield path.read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
