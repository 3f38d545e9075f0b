"""Commands answer as they did. `TRIMARAN_GOLDEN=write` (as `make golden` sets it) rewrites what they said; see
`commands.toml` for the commands, `comparison.py` for what is compared.
"""

from importlib.metadata import version
from pathlib import Path

import pytest
from tests.golden.commands import Command, commands
from tests.golden.comparison import check, kept
from tests.golden.repeatable import TORCH, be_command_on_a_slow_machine, be_command_on_record

FOLDER = Path(__file__).parent / "answers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands run, so that a network is traced once."""
    return tmp_path_factory.mktemp("answers")


def _cases() -> list[object]:
    marks = {True: (pytest.mark.sweep, pytest.mark.timeout(600)), False: ()}
    return [pytest.param(command, id=name, marks=marks[command.sweep]) for name, command in commands().items()]


@pytest.mark.parametrize("command", _cases())
def test_a_command_answers_as_it_did(command: Command, folder: Path, request: pytest.FixtureRequest) -> None:
    if command.here and version("torch").partition("+")[0] != TORCH:
        pytest.skip(
            f"costs were recorded with torch {TORCH}, of which graphs are other ones than of {version('torch')}"
        )
    answer = command.answer(folder, be=be_command_on_record if command.here else be_command_on_a_slow_machine)
    check(FOLDER / f"{request.node.callspec.id}.json", kept(answer))


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} - {"ten_questions", "five_questions"} == set(commands())
