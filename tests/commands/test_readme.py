"""What the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "index.md").read_text()


def test_the_commands_of_the_readme_exist() -> None:
    from typer.testing import CliRunner

    from trimaran.cli import app

    shown = set(re.findall(r"trimaran (\w+)", README + GUIDE)) - {"init", "Job"}
    listed = {command.callback.__name__ for command in app.registered_commands if command.callback}
    listed |= {str(group.typer_instance.info.name) for group in app.registered_groups if group.typer_instance}
    assert shown <= listed
    for name in sorted(shown):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_the_options_of_documented_commands_exist() -> None:
    """Behind `--` a script has its own."""
    from typer.main import get_command

    from trimaran.cli import app
    from trimaran.cli.forms import FORMS

    commands = get_command(app).commands
    # A group of commands, such as `checkpoint`, has them under both names.
    groups = {name: found.commands for name, found in commands.items() if hasattr(found, "commands")}
    commands |= {f"{name} {inner}": one for name, found in groups.items() for inner, one in found.items()}
    options = {name: {text for one in found.params for text in one.opts} for name, found in commands.items()}
    for name, form in FORMS.items():
        options.setdefault(form.command, set()).update(options.get(name, ()), {form.flag} - {""})
    seen, unknown = 0, []
    for page in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))):
        for first, words in re.findall(r"(?m)(?:^|[`\s])trimaran ([a-z-]+)([^`#|\n]*)", page.read_text()):
            inner = next(iter(words.split()), "")
            name = f"{first} {inner}" if inner in groups.get(first, ()) else first
            if name not in options:
                continue
            used = re.findall(r"(?<!\S)(--?[a-z][\w-]*)", words.split(" -- ")[0])
            seen += 1
            unknown += [
                f"{page.name}: trimaran {name} {option}" for option in used if option not in options[name] | {"--help"}
            ]
    assert unknown == []
    assert seen > 100


def test_the_links_of_the_documents_go_somewhere() -> None:
    """To files that exist, and to headings of them."""
    pages = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
    texts = {page: re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL) for page in pages}
    headings = {page: {_anchor(line) for line in re.findall(r"(?m)^#+ (.*)$", text)} for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for target, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            to = (page.parent / target).resolve() if target else page
            if not to.exists() or (heading and to in headings and heading not in headings[to]):
                broken.append(f"{page.name}: {target}#{heading}")
    assert broken == []


def _anchor(heading: str) -> str:
    """The name that a heading has in links."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['trimaran', '--help']\nimport trimaran.cli\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_files_that_the_readme_links_to_exist() -> None:
    for folder, page in ((ROOT, README), (ROOT / "docs", GUIDE)):
        for target in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (folder / target).exists(), target


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
