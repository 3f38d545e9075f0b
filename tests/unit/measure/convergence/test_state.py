"""Runs on disk: nothing that has ended is lost, nothing that did not is believed."""

from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError
from trimaran.measure.convergence.runs import TrainingRun, add_run, find_run, opened, read_runs


def run(
    end: str = "reached", *, batch: int = 64, seed: int = 0, reached: float = 0.9, epochs: float = 4.0
) -> TrainingRun:
    return TrainingRun(
        batch=batch,
        seed=seed,
        end=end,  # type: ignore[arg-type]
        epochs=epochs,
        samples=400,
        updates=7,
        seconds=1.5,
        evaluations=((epochs / 2, reached / 2), (epochs, reached)),
        noise={"b_crit": 80.0, "interval": [60.0, None]},
    )


def test_runs_read_back_as_they_were(tmp_path: Path) -> None:
    runs = [run(), run("diverged", batch=128), run("epochs", seed=3)]
    for one in runs:
        add_run(tmp_path, one)
    assert read_runs(tmp_path) == runs


def test_a_line_that_was_cut_short_is_no_run_and_the_next_one_is(tmp_path: Path) -> None:
    add_run(tmp_path, run())
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    assert read_runs(tmp_path) == [run()]
    add_run(tmp_path, run(seed=1))
    assert read_runs(tmp_path) == [run(), run(seed=1)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    add_run(tmp_path, run())
    add_run(tmp_path, run(seed=1))
    path = tmp_path / "runs.jsonl"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": zero'))
    with raises("converge.damaged-runs", CorruptDataError, match=r"runs\.jsonl:1"):
        read_runs(tmp_path)


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    add_run(tmp_path, run())
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\xfe{}\n")
    with raises("converge.damaged-runs", CorruptDataError, match=r"runs\.jsonl:2"):
        read_runs(tmp_path)


def test_a_run_says_when_a_lower_target_was_reached() -> None:
    """0.45 at 2 epochs, 0.9 at 4: 0.6 a third of the way."""
    assert run().needed(0.6, most=10) == pytest.approx(2 + 2 / 3)
    assert run().settles(0.6, most=10)


@pytest.mark.parametrize(
    ("found", "target", "most", "settled"),
    [
        (run("reached"), 0.95, 10, False),
        (run("epochs", epochs=10), 0.95, 10, True),
        (run("epochs", epochs=10), 0.95, 20, False),
        (run("epochs", epochs=20), 0.95, 10, True),
        (run("diverged"), 0.95, 10, True),
        (run("reached", epochs=1.5), 0.9, 1.3, True),
        (run("reached", epochs=1.5), 0.9, 1.6, True),
        (run("reached", epochs=10), None, 10, False),
        (run("time"), 0.95, 10, False),
        (run("epochs", epochs=10), None, 10, True),
        (run("reached"), None, 10, False),
    ],
)
def test_what_another_run_would_say_again(found: TrainingRun, target: float | None, most: float, settled: bool) -> None:
    assert found.settles(target, most=most) == settled
    assert (find_run([found], batch=64, seed=0, target=target, most=most) is found) == settled


def test_a_target_reached_after_the_limit_was_not_reached() -> None:
    assert run(epochs=10).needed(0.9, most=5) is None


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path / "runs"), raises("converge.busy"), opened(tmp_path / "runs"):
        pass
    with opened(tmp_path / "runs"):
        pass
