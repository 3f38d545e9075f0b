"""Pages of `--help`: 80 columns, common options first, no types; and how much other pages tell."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.cli.help import COMMON, GROUPS, OTHERS

_APP = typer.main.get_command(app)


def _commands() -> Iterator[tuple[str, ...]]:
    for name, command in _APP.commands.items():  # type: ignore[attr-defined]
        yield (name,)
        yield from ((name, inner) for inner in getattr(command, "commands", ()))


COMMANDS = tuple(_commands())


def page(*command: str) -> list[str]:
    found = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    assert found.exit_code == 0
    return found.stdout.splitlines()


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_a_page_is_readable_at_80_columns_and_names_no_type(command: tuple[str, ...]) -> None:
    lines = page(*command)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert not re.search(r"<(int|float|str|bool|path)( range)?>|\[x>=|INTEGER|FLOAT|│|╭", text)
    assert lines[0].startswith("Usage: ")


@pytest.mark.parametrize("command", [one for one in COMMANDS if len(one) == 1], ids=" ".join)
def test_common_options_stand_first_and_every_other_one_has_a_heading(command: tuple[str, ...]) -> None:
    lines = page(*command)
    assert f"{OTHERS}:" not in lines
    if "Common options:" in lines:
        begin = lines.index("Common options:") + 1
        common = lines[begin : lines.index("", begin)]
        named = [line.split()[0].rstrip(",") for line in common if line.startswith("  -")]
        assert 2 <= len(named) <= COMMON
        assert named[-1] == "--json"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_is_on_the_page_once(command: tuple[str, ...]) -> None:
    found = _APP
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    shown = [line.strip() for line in page(*command) if line.startswith("  -")]
    for option in found.params:
        if option.param_type_name == "option" and not option.hidden:
            longest = max(option.opts, key=len)
            assert sum(re.match(rf"{re.escape(longest)}(?![\w-])", line) is not None for line in shown) == 1, longest


def test_fourteen_commands_are_in_groups() -> None:
    lines = page()
    headings = [line.rstrip(":") for line in lines if re.fullmatch(r"[A-Z]\w+:", line)]
    assert headings == [*GROUPS, "Options"]
    named = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    shown = [name for name, command in _APP.commands.items() if not command.hidden]  # type: ignore[attr-defined]
    assert sorted(named) == sorted(shown)
    assert len(shown) == 14


def test_a_page_of_help_imports_neither_torch_nor_numpy() -> None:
    """They take longer than a page may."""
    code = (
        "import sys; sys.argv = ['trimaran', 'plan', '--help']\n"
        "from trimaran.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'scipy', 'pygments')))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_quiet_prints_the_verdict_alone_and_excludes_verbose() -> None:
    command = ["scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1,8", "--local-batch", "64"]
    whole = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
    quiet = CliRunner().invoke(app, [*command, "--quiet"], env={"COLUMNS": "80"})
    assert whole.exit_code == quiet.exit_code == 0
    verdict, empty, _ = whole.stdout.partition("\n\n")
    assert empty
    assert quiet.stdout.rstrip() == verdict.rstrip()
    assert CliRunner().invoke(app, [*command, "--quiet", "--verbose"]).exit_code == 2


PAGES = (
    "catalog machines",
    "catalog machines --devices",
    "catalog machines dgx1-v100:4@ethernet-25g",
    "catalog machines h200",
    "catalog jobs",
    "catalog curve --list",
    "catalog curve retinanet --at 2048,8192",
    "scale lenet --cluster dgx1-v100 --devices 1,8 --sync kvstore,nccl",
    "scale lenet --cluster dgx1-v100 --devices 8 --local-batch 1048576",
    "memory lenet --device titan-x --batch 64 --no-largest-batch --chart --storages",
    "crossover lenet --cluster dgx1-v100 --devices 8 --widths 2",
    "plan llama2:7b --cluster dgx-h100 --strategies tp8 --batch 8",
    "plan lenet --cluster dgx1-v100 --devices 2 --batch 4096",
    "plan llama2:7b --cluster dgx-h100 --devices 16 --batch 64",
    "plan llama3:8b --cluster dgx-h100:16 --tokens 1T",
    "explain lenet --cluster dgx1-v100 --devices 2 --batch 4096 --what-if link=x2 --why-not pp",
    "explain llama2:7b --cluster dgx-h100:2 --batch 64 --why-not fsdp",
    "simulate lenet --cluster dgx1-v100 --devices 2 --batch 4096",
)


@pytest.mark.parametrize("command", PAGES)
def test_tables_of_answers_fit_80_columns(command: str) -> None:
    """Sentences stay whole where no terminal is; rows and rules of tables are never longer than 80 columns."""
    found = CliRunner().invoke(app, command.split(), env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    long = [line for line in found.stdout.splitlines() if len(line.rstrip()) > 80]
    assert not [line for line in long if "──" in line or re.search(r"\S {2,}\S", line)], long
