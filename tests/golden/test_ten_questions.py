"""Ten questions about data parallelism: predictors of equal terms give one answer, the one on record."""

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
def test_predictors_of_equal_terms_agree(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", f"{folder}-cache")  # that of the commands
    said = {who: predict(QUESTIONS[name], folder) for who, predict in PREDICTORS.items()}
    assert apart(said) <= AGREEMENT, said
    check(FILE, kept({"step_s": said, "apart": round(apart(said), 9)}), part=name)


def test_no_question_is_left_over() -> None:
    assert set(json.loads(FILE.read_text(encoding="utf-8"))) == set(QUESTIONS)
