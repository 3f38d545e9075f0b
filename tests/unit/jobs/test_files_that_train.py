"""A file is asked for its job: it neither trains then, nor ends the process, nor reads our command line."""

import re
import sys
from pathlib import Path

import pytest
from tests.documents import ROOT
from tests.raising import raises

from trimaran.jobs.resolve import resolve

JOB = """
import torch, trimaran

def make_job():
    data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4, 2))
    return trimaran.Job(
        model=lambda: torch.nn.Linear(2, 2), loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD,
        dataset=lambda: data, global_batch_size=4,
    )
"""


def written(folder: Path, *more: str) -> str:
    path = folder / "job.py"
    path.write_text("\n".join((JOB, *more)), encoding="utf-8")
    return f"{path}:make_job"


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("trimaran.init(make_job())", "trimaran.init"),
        ("from trimaran.launch.supervise import launch; launch(print, ranks=1)", "ranks of Trimaran"),
        ("o = torch.optim.Adam([torch.zeros(1, requires_grad=True)]); o.step()", "a step of an optimizer"),
    ],
)
def test_a_file_that_trains_when_it_is_imported_is_refused_with_its_line(line: str, how: str, tmp_path: Path) -> None:
    with raises("user.trains", match=r"(?s)job\.py:\d+, in <module>.*__main__", how=how) as caught:
        resolve(written(tmp_path, line))
    assert line in caught.value.message


def test_a_process_group_that_a_file_leaves_is_of_a_training(tmp_path: Path) -> None:
    import torch.distributed as dist

    start = 'torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)'
    try:
        with raises("user.trains", match="__main__"):
            resolve(written(tmp_path, start))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "line",
    ['torch.distributed.init_process_group("gloo")', "torch.multiprocessing.spawn(lambda rank: None)"],
)
def test_a_start_that_fails_has_the_advice_too(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with raises("user-function.file-raises", match=r"(?s)job\.py:\d+.*__main__"):
        resolve(written(tmp_path, line))


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()", 2),
        ("import sys; sys.exit(0)", 0),
        ("exit('no GPU here')", 1),
        ("raise SystemExit", 0),
    ],
)
def test_a_file_that_ends_the_process_is_named_with_its_line(line: str, number: int, tmp_path: Path) -> None:
    with raises("user.exited", match=r"(?s)job\.py:\d+, in <module>.*__main__", exited_with=number) as caught:
        resolve(written(tmp_path, line))
    assert line in caught.value.message


def test_a_factory_that_ends_the_process_is_named_too(tmp_path: Path) -> None:
    with raises("user.exited", match=r"job\.py:\d+, in make_job", exited_with=3) as caught:
        resolve(written(tmp_path, "def make_job():\n    quit(3)"))
    assert "__main__" not in caught.value.message


def test_a_file_sees_no_command_line_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ["trimaran", "plan", "job.py:make_job", "--devices", "4"]
    monkeypatch.setattr(sys, "argv", ours)
    more = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', default=1)\np.parse_args()"
    assert resolve(written(tmp_path, more)).name == "job"
    assert sys.argv is ours


def test_a_model_that_is_fitted_in_the_factory_is_no_training_of_the_job(tmp_path: Path) -> None:
    teacher = "o = torch.optim.SGD([torch.zeros(1, requires_grad=True)]); o.step()"
    assert resolve(written(tmp_path, f"make_plain = make_job\ndef make_job():\n    {teacher}\n    return make_plain()"))


def test_the_jobs_of_the_documents_can_be_imported(tmp_path: Path) -> None:
    for page in ("README.md", "docs/jobs.md", "docs/torchrun.md"):
        (block,) = re.findall(
            r"```python\n((?:(?!```).)*?def make_job.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL
        )
        path = tmp_path / f"of_{page.replace('/', '_')}.py"
        path.write_text(block, encoding="utf-8")
        resolve(f"{path}:make_job")
