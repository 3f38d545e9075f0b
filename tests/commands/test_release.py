"""`scripts/release` makes a version ready in a copy of the repository, and refuses what is not ready."""

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt", ".gitignore")
FOLDERS = ("src", "scripts", "changes")


def git(folder: Path, *words: str) -> str:
    names = {
        f"GIT_{who}_{what}": "release@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **names}, check=True, capture_output=True, text=True
    )
    return done.stdout


def release(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/release", version], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "release")
    git(folder, "config", "user.email", "release@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "copy")
    return folder


def test_a_version_is_made_ready_and_nothing_is_tagged(copy: Path) -> None:
    pytest.importorskip("hatchling")
    (copy / "changes" / "links.md").write_text("`trimaran.plan` reads links\nin Gb/s.\n", encoding="utf-8")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message", "links")
    done = release(copy, "0.2.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "git push origin HEAD v0.2.0" in done.stdout
    assert git(copy, "tag") == git(copy, "status", "--porcelain") == ""
    changelog = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.index("## 0.2.0 (") < changelog.index("- `trimaran.plan` reads links\n  in Gb/s.\n")
    assert changelog.index("  in Gb/s.") < changelog.index("## 0.1.0")
    assert [path.name for path in (copy / "changes").iterdir()] == ["README.md"]
    assert 'VERSION = "0.2.0"' in (copy / "src/trimaran/base/__init__.py").read_text(encoding="utf-8")
    assert "version: 0.2.0\ndate-released: 20" in (copy / "CITATION.cff").read_text(encoding="utf-8")
    assert (copy / "dist" / "trimaran-0.2.0-py3-none-any.whl").exists()
    with tarfile.open(copy / "dist" / "trimaran-0.2.0.tar.gz") as source:
        assert "trimaran-0.2.0/CITATION.cff" in source.getnames()


def test_what_is_not_ready_is_refused_and_nothing_is_written(copy: Path) -> None:
    for change in (copy / "changes").glob("[!R]*.md"):
        git(copy, "rm", "--quiet", str(change))
    git(copy, "commit", "--quiet", "--allow-empty", "--message", "nothing new")
    assert "not MAJOR.MINOR.PATCH" in release(copy, "0.2").stderr
    assert "no section 0.2.0" in release(copy, "0.2.0").stderr
    git(copy, "tag", "v0.10.0")
    assert "0.9.0 is not newer than 0.10.0" in release(copy, "0.9.0").stderr
    (copy / "draft").touch()
    assert "git status" in release(copy, "0.11.0").stderr
    assert git(copy, "status", "--porcelain") == "?? draft\n"


def test_a_first_version_has_its_section_and_what_came_since() -> None:
    with_changes = runpy.run_path(str(ROOT / "scripts" / "release"))["with_changes"]
    before = "# Changelog\n\n## 0.1.0\n\nThe first.\n"
    assert with_changes(before, "0.1.0", "D", []) == "# Changelog\n\n## 0.1.0 (D)\n\nThe first.\n"
    assert with_changes(before, "0.1.0", "D", ["a\nb\n"]).endswith("The first.\n\n### Since then\n\n- a\n  b\n")
    after = with_changes(before, "0.2.0", "D", ["a"])
    assert after == "# Changelog\n\n## 0.2.0 (D)\n\n- a\n\n## 0.1.0\n\nThe first.\n"
