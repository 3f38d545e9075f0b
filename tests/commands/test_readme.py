"""What the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()


@pytest.mark.parametrize("page", [README, GUIDE], ids=["README", "guide"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").exists()


def test_the_commands_of_the_readme_exist() -> None:
    from typer.testing import CliRunner

    from trimaran.cli import app

    shown = set(re.findall(r"trimaran (\w+)", README + GUIDE)) - {"init", "Job"}
    listed = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert shown <= listed
    for name in sorted(shown):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['trimaran', '--help']\nimport trimaran.cli\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_files_that_the_readme_links_to_exist() -> None:
    for folder, page in ((ROOT, README), (ROOT / "docs", GUIDE)):
        for target in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (folder / target).exists(), target


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
