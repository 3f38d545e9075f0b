"""What each predictor says to ten questions about data parallelism, and how far they are apart."""

import json
from pathlib import Path

import pytest
from tests.golden.comparison import check, kept
from tests.golden.ten_questions import AGREEMENT, PREDICTORS, QUESTIONS, apart

FILE = Path(__file__).parent / "answers" / "ten_questions.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands run, so that a network is traced once."""
    return tmp_path_factory.mktemp("questions")


@pytest.mark.parametrize("name", QUESTIONS)
def test_predictors_are_as_far_apart_as_they_were(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", f"{folder}-cache")  # that of the commands
    said = {who: predict(QUESTIONS[name], folder) for who, predict in PREDICTORS.items()}
    assert AGREEMENT is None or apart(said) <= AGREEMENT, said
    check(FILE, kept({"step_s": said, "apart": apart(said)}), part=name)


def test_no_question_is_left_over() -> None:
    assert set(json.loads(FILE.read_text(encoding="utf-8"))) == set(QUESTIONS)
