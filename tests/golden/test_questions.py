"""Ten questions about data parallelism, three about pipelines and two about transformers on many devices: predictors of
equal terms give one answer, the one on record.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.caches import make_cache
from tests.golden import five_questions, ten_questions
from tests.golden.comparison import check, kept
from tests.golden.ten_questions import AGREEMENT, MEMORY, PREDICTORS, apart

FOLDER = Path(__file__).parent / "answers"
LONG = frozenset(
    {
        "resnet50 on 64 A100",
        "resnet50 on 8 A100",
        "resnet50 on 8 V100",
        "resnet50 on 4 RTX 3090",
        "inception_v3 on 256 V100",
        "bert:large on 32 A100",
        "gnmt in two stages, 1f1b",
        "llama2:70b on 512 H100",
    }
)
"""Left to `make test-all`: networks that take long to trace, or strategies to explain. Convolutions, a recurrent
network, a pipeline of each schedule but one and a transformer stay."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands run, so that a network is traced once."""
    return tmp_path_factory.mktemp("questions")


def _cases(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.sweep] if name in LONG else []) for name in names]


@pytest.mark.parametrize("name", _cases(ten_questions.QUESTIONS))
def test_predictors_of_a_data_parallel_step_and_its_memory_agree(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", make_cache(Path(f"{folder}-cache")))  # that of the commands
    said = {who: predict(ten_questions.QUESTIONS[name], folder) for who, predict in PREDICTORS.items()}
    assert apart(said) <= AGREEMENT, said
    memory = {
        software: {who: predict(ten_questions.QUESTIONS[name], folder) for who, predict in asked.items()}
        for software, asked in MEMORY.items()
    }
    assert all(apart(figures) <= AGREEMENT for figures in memory.values()), memory
    answer = {"step_s": said, "apart": round(apart(said), 9), "peak_bytes": memory}
    check(FOLDER / "ten_questions.json", kept(answer), part=name)


@pytest.mark.parametrize(
    ("network", "cluster", "batch", "precision"),
    [
        ("lenet", "dgx1-v100", 64, "fp32"),
        pytest.param("alexnet", "dgx-a100", 32, "bf16", marks=pytest.mark.sweep),
        pytest.param("gnmt", "dgx2", 32, "fp16", marks=pytest.mark.sweep),
        pytest.param("resnet50", "dgx-h100", 64, "bf16", marks=pytest.mark.sweep),
    ],
)
def test_answers_about_the_memory_of_one_device_agree(network: str, cluster: str, batch: int, precision: str) -> None:
    said = ten_questions.one_device_bytes(network, cluster, batch=batch, precision=precision)
    assert apart(said) <= AGREEMENT, said


@pytest.mark.parametrize("name", _cases(five_questions.QUESTIONS))
def test_answers_about_a_strategy_agree(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", make_cache(Path(f"{folder}-cache")))
    said = {who: ask(five_questions.QUESTIONS[name], folder) for who, ask in five_questions.ASKERS.items()}
    assert sum(seconds is not None for seconds in said.values()) >= 2, said
    assert apart(said) <= AGREEMENT, said
    check(FOLDER / "five_questions.json", kept({"step_s": said, "apart": round(apart(said), 9)}), part=name)


@pytest.mark.parametrize("asked", [ten_questions, five_questions])
def test_no_question_is_left_over(asked: object) -> None:
    name = f"{getattr(asked, '__name__', '').rpartition('.')[2]}.json"
    assert set(json.loads((FOLDER / name).read_text(encoding="utf-8"))) == set(asked.QUESTIONS)  # type: ignore[attr-defined]


CLOSED = """
import torch, trimaran
from torch import nn

class Closed(nn.Sequential):
    def forward(self, x):
        if torch.compiler.is_exporting():
            raise NotImplementedError("not to be seen")
        return super().forward(x)

def make():
    return trimaran.Job(
        name="closed",
        model=lambda: Closed(*(nn.Linear(2048, 2048) for _ in range(12))),
        dataset=lambda: torch.utils.data.TensorDataset(torch.randn(64, 2048), torch.randn(64, 2048)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch_size=64,
        epochs=1,
    )
"""


def test_gradients_of_a_model_of_which_nobody_knows_the_inside_are_sent_as_they_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scale` sees its kernels, and `plan` has it as one operation: gradients were sent after the whole backward."""
    monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path / "cache"))
    job = tmp_path / "job.py"
    job.write_text(CLOSED)
    asked = ten_questions.Question(
        network=f"{job}:make", cluster="dgx1-v100", devices=8, local_batch=64, precision="fp32"
    )
    said = {who: PREDICTORS[who](asked, tmp_path) for who in ("api plan", "api scale")}
    assert apart(said) <= AGREEMENT, said
