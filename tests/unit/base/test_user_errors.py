"""What is noted while code of the user's is asked."""

import importlib
from pathlib import Path

import pytest

from trimaran.base.user_errors import asking, imported_packages


def test_packages_that_code_of_the_user_imports_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("site-packages", "an_installed_package"), ("own", "a_file_of_the_job")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path / folder)
    with asking("Job.dataset"):
        importlib.import_module("an_installed_package")
        importlib.import_module("a_file_of_the_job")
    assert "an_installed_package" in imported_packages()
    assert "a_file_of_the_job" not in imported_packages()
