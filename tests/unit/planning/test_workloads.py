import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.graph.kernels.workload import WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.planning.tracing import workloads as making
from trimaran.planning.tracing.request import make_request
from trimaran.planning.tracing.workload_tracing import WorkloadTracer
from trimaran.planning.tracing.workloads import STEPS, memory_of_step, workload

PREAMBLE = """
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset
from trimaran import Job

def job(model, optimizer):
    return Job(model=model, loss=functional.mse_loss, optimizer=optimizer, global_batch_size=4,
               dataset=lambda: TensorDataset(torch.zeros(8, 4), torch.zeros(8, 4)))
"""
BY_BATCH = f"""{PREAMBLE}
class Depends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu() if len(x) == 3 else self.layer(x)

def make():
    return job(Depends, lambda p: SGD(p, lr=0.1))
"""
LISTS = f"""{PREAMBLE}
def make():
    return job(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), lambda p: SGD(p, lr=0.1, foreach=True))
"""


@pytest.fixture(autouse=True)
def _empty_memory(_empty_cache: None) -> None:
    """Each test begins as a process does."""
    for cached in (making._at, making._form, making._tracer):
        cached.cache_clear()


def tracer(reference: str, precision: str = "fp32") -> WorkloadTracer:
    return WorkloadTracer(make_request(reference, precision=precision, options=None, optimizer=None))


@pytest.mark.parametrize(
    ("reference", "precision"),
    [
        ("digits", "fp32"),
        ("digits-resnet", "bf16"),
        ("text-lstm", "fp16"),
        ("text-gpt", "fp32"),
        ("resnet18", "fp32"),
        ("lstm", "bf16"),
    ],
)
def test_a_workload_is_that_of_a_trace_at_its_batch(reference: str, precision: str) -> None:
    step = tracer(reference, precision).affine()
    work, memory = tracer(reference, precision).direct(13)
    assert step is not None
    assert step.workload.at(13) == work
    for keeps in (False, True):
        assert step.memory.peak(13, keeps_gradients=keeps) == memory.peak(13, keeps_gradients=keeps)


def test_a_step_that_depends_on_the_batch_is_traced_at_each(tmp_path: Path) -> None:
    path = tmp_path / "depends.py"
    path.write_text(BY_BATCH)
    reference = f"{path}:make"
    assert tracer(reference).affine() is None
    assert len(workload(reference, batch=3).works) > len(workload(reference, batch=5).works)
    assert memory_of_step(reference, batch=5).peak(5) == tracer(reference).direct(5)[1].peak(5)


def test_an_optimizer_that_takes_lists_is_traced_whole(tmp_path: Path) -> None:
    """Six parameters of two forms, 16 and 4 numbers: lists of two would not stand for lists of six."""
    path = tmp_path / "lists.py"
    path.write_text(LISTS)
    step = tracer(f"{path}:make").affine()
    assert step is not None
    assert step.workload.at(5) == tracer(f"{path}:make").direct(5)[0]
    update = [one for one in step.workload.at(5).works if one.phase is Phase.UPDATE]
    assert 3 * (16 + 4) in [one.dims[0] for one in update]


def test_a_kept_workload_is_the_same() -> None:
    first = workload("digits", batch=7)
    _forget()
    assert workload("digits", batch=7) == first
    assert making._tracer.cache_info().misses == 0


def test_a_damaged_file_is_set_aside_and_traced_again(caplog: pytest.LogCaptureFixture) -> None:
    first = workload("digits", batch=7)
    path = STEPS.path(make_request("digits", precision="fp32", options=None, optimizer=None))
    path.write_bytes(path.read_bytes()[:100])
    _forget()
    with caplog.at_level(logging.WARNING):
        assert workload("digits", batch=7) == first
    assert "set aside as" in caplog.text
    assert path.with_suffix(".damaged").is_file()
    assert path.is_file()


def test_without_a_place_to_keep_it_a_workload_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TRIMARAN_CACHE", str(blocked))
    assert workload("digits", batch=7).batch == 7


def test_a_kept_workload_needs_no_torch() -> None:
    workload("digits", batch=7)
    program = (
        "import sys; from trimaran.planning.tracing.workloads import workload; "
        "print(workload('digits', batch=9).batch, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == ["9", "False"]


def test_tf32_has_the_works_of_float32() -> None:
    first, second = (workload("digits", batch=7, precision=precision) for precision in ("fp32", "tf32"))
    assert first.works == second.works
    assert second.precision == "tf32"


def test_autocast_converts() -> None:
    casts = [one for one in workload("digits", batch=7, precision="bf16").works if one.kind is WorkKind.COPY]
    assert {one.name for one in casts} >= {"aten._to_copy"}
    products = [one for one in workload("digits", batch=7, precision="fp16").works if one.flops]
    assert {one.dtype for one in products} == {"float16"}


def test_another_optimizer_changes_the_update_alone() -> None:
    """AdamW keeps two numbers a parameter, SGD with momentum one."""
    adam, momentum, plain = (workload("digits", batch=7, optimizer=name) for name in ("adam", "sgd", "plain-sgd"))
    assert (adam.optimizer, momentum.optimizer) == ("Adam", "SGD")
    assert adam.optimizer_bytes == 2 * momentum.optimizer_bytes == 2 * adam.parameter_bytes
    assert plain.optimizer_bytes == 0
    assert _before_the_update(adam) == _before_the_update(momentum)
    assert workload("digits", batch=7, options={"optimizer": "adam"}) == adam


def test_options_reach_the_job() -> None:
    small, usual = workload("resnet18", batch=4, options={"image": "64"}), workload("resnet18", batch=4)
    assert small.input_bytes == 4 * (3 * 64 * 64 * 4 + 8)
    assert small.gradient_bytes == usual.gradient_bytes


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import dataclasses\n"
        "from trimaran.jobs.builtin import digits\n"
        "def make():\n"
        "    return dataclasses.replace(digits(), name='own')\n"
    )
    mine = workload(f"{path}:make", batch=5)
    assert mine.name == "own"
    assert mine.works == workload("digits", batch=5).works
    assert not STEPS.path(make_request(f"{path}:make", precision="fp32", options=None, optimizer=None)).exists()


def test_a_configuration_of_hugging_face(tmp_path: Path) -> None:
    """Two layers of width 32 over 100 words, tied: 2 x 12 x 32 x 32 weights of layers, 4 x 32 of width each."""
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    path.write_text(json.dumps(config))
    one = workload(str(path), batch=3, options={"sequence": "16"})
    assert (
        one
        == WorkloadTracer(make_request(f"{path}:sequence=16", precision="fp32", options=None, optimizer=None)).direct(
            3
        )[0]
    )
    assert sum(gradient.elements for gradient in one.gradients) * 4 == one.parameter_bytes
    path.write_text(json.dumps({**config, "n_layer": 1}))
    _forget()
    assert len(workload(str(path), batch=3, options={"sequence": "16"}).works) < len(one.works)


@pytest.mark.parametrize(
    ("asked", "code", "figures"),
    [
        ({"reference": "resnet5", "batch": 2}, "job.unknown", {"reference": "resnet5"}),
        ({"reference": "digits", "batch": 0}, "workload.no-sample", {"batch": 0}),
        ({"reference": "digits", "batch": 2, "precision": "fp7"}, "precision.unknown", {"precision": "fp7"}),
        (
            {"reference": "digits", "batch": 2, "optimizer": "adm"},
            "optimizer.unknown",
            {"match": '"adam"', "optimizer": "adm"},
        ),
        ({"reference": "digits", "batch": 2, "options": {"image": "3"}}, "workload.no-options", {"options": ["image"]}),
        (
            {"reference": "vgg16", "batch": 2, "options": {"imag": "64"}},
            "network.unknown-option",
            {"match": '"image"', "option": "imag"},
        ),
    ],
)
def test_wrong_requests_are_told(asked: dict[str, object], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        workload(**asked)  # type: ignore[arg-type]


def _forget() -> None:
    for cached in (making._at, making._form, making._tracer):
        cached.cache_clear()


def _before_the_update(work: Workload) -> list[object]:
    return [one for one in work.works if one.phase is not Phase.UPDATE]
