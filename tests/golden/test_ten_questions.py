"""Ten questions about data parallelism: predictors of equal terms give one answer, the one on record."""

import os
from pathlib import Path

import pytest
from tests.golden.comparison import check, kept
from tests.golden.ten_questions import AGREEMENT, PREDICTORS, QUESTIONS, apart

FILE = Path(__file__).parent / "answers" / "ten_questions.json"


def test_predictors_of_equal_terms_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", f"{tmp_path}-cache")  # of the commands, so that a network is traced once
    table = {}
    for name, asked in QUESTIONS.items():
        said = {who: predict(asked, tmp_path) for who, predict in PREDICTORS.items()}
        assert apart(said) <= AGREEMENT, (name, said)
        table[name] = {"step_s": said, "apart": round(apart(said), 9)}
    check(FILE, kept(table), write=os.environ.get("TRIMARAN_GOLDEN") == "write")
