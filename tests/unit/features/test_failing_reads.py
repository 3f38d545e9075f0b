"""Each read of a run's files fails once: it is said with its reason, or changes nothing; never foreign or silent."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.failing_reads import failing
from tests.unit.features.test_checkpoints import make_job, session_of, take_steps
from tests.unit.report.pages import write_run

from trimaran.base.errors import TrimaranError
from trimaran.checkpoint_files.commit import FOLDER
from trimaran.features.checkpoints import export_checkpoint, show_checkpoint, verify_checkpoint
from trimaran.features.report_page.make import report
from trimaran.features.training.run_record import say_status
from trimaran.features.training.train import check_resumable, has_checkpoint
from trimaran.jobs.resolve import JobSource
from trimaran.program.plan_file import read_plan

NUMBERS = (errno.EACCES, errno.EIO, errno.ELOOP)
JOB = f"{Path(__file__).with_name('test_checkpoints.py')}:make_job"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "run")
    with session_of(make_job()) as session:
        for _ in range(2):
            take_steps(session, 1)
            session.save_checkpoint(folder / FOLDER)
    return folder


def each_fails(folder: Path, number: int, ask: Callable[[], Any]) -> None:
    """Ask as often as it reads; each time another read fails."""
    with failing(folder, number, at=None) as reads:
        expected = ask()
    assert reads.calls
    for at in range(len(reads.calls)):
        with failing(folder, number, at=at) as now:
            try:
                found = ask()
            except TrimaranError as error:
                found = error.message
        if now.failed is not None:
            assert found == expected or os.strerror(number) in str(found), (now.failed, found)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_report_of_a_run_that_cannot_be_read_is_refused(run: Path, tmp_path: Path, number: int) -> None:
    """Where a file could not be looked at, the page said that the run had none; or the error was unexpected."""
    output = tmp_path / "report.html"
    for path in (run, run / "report.json", run / "plan.json", run.parent):

        def ask(path: Path = path) -> str:
            try:
                report(path, output)
            except TrimaranError as error:
                if error.code == "report.nothing-here":
                    return error.message
                raise
            return output.read_text()

        each_fails(run.parent, number, ask)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_run_that_cannot_be_read_is_not_whole(run: Path, number: int) -> None:
    for path in (run, run / FOLDER, run / FOLDER / "step-00000002"):
        for ask in (verify_checkpoint, show_checkpoint):
            each_fails(run, number, lambda ask=ask, path=path: ask(path))


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_weights_are_those_of_the_newest_checkpoint_that_can_be_read(run: Path, tmp_path: Path, number: int) -> None:
    target = tmp_path / "model.safetensors"

    def ask() -> tuple[str, tuple[str, ...]]:
        target.unlink(missing_ok=True)
        written = export_checkpoint(run, target)
        return written.source, written.notes

    each_fails(run, number, ask)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_what_a_resume_cannot_read_is_said(run: Path, number: int, capfd: pytest.CaptureFixture[str]) -> None:
    """The newest that can be read is gone on from; that another one is newer is said, and what has hindered it."""
    with session_of(make_job()) as session:

        def ask() -> tuple[int, str]:
            capfd.readouterr()
            plan = check_resumable(run, JobSource(reference=JOB))
            say_status(run)
            assert plan == run / "plan.json"
            read_plan(plan)
            session.load_checkpoint(run)
            return session.steps, capfd.readouterr().err

        each_fails(run, number, ask)
    assert has_checkpoint(run)
