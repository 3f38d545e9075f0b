"""Do ranks train one model?"""

from pathlib import Path

import pytest

import trimaran

SCRIPT = Path(__file__).parent / "one_model" / "separate_models.py"


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("plain", "disagree"), ("never", "disagree"), ("logged", "disagree"), ("buffers", "disagree"),
     ("ddp", "fits"), ("by_hand", "fits"), ("weights", "fits")],
)  # fmt: skip
def test_ranks_that_exchange_nothing_train_a_model_each(kind: str, verdict: str) -> None:
    found = trimaran.rehearse(SCRIPT, [kind], world=2, cluster="dgx-h100")
    assert found.verdict == verdict, str(found)
    if verdict == "disagree":
        assert "2 ranks would train 2 models" in found.headline
        line = next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "optimizer.step()" in text)
        assert f"separate_models.py:{line}" in found.headline
