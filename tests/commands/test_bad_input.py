"""What a person gets wrong is told in one message with its exit code; nothing half-written stays, and no traceback."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.commands.running import trimaran

JOBS = Path(__file__).with_name("faulty_jobs.py")


def assert_told(done: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["plan", "digit"], 2, 'did you mean "digits"'),
        (["plan", f"{JOBS}:absent"], 2, 'has no function "absent"'),
        (["plan", "absent.py:make"], 2, "absent.py"),
        (["plan", "digits", "--devices", "4096"], 2, "4096 devices"),
        (["plan", "digits", "--memory", "12"], 2, 'expected a size such as "16 GiB", got "12"'),
        (["train", f"{JOBS}:tiny_dataset"], 2, "4"),
        (["train", f"{JOBS}:vector_loss"], 2, "loss"),
        (["simulate", "absent.json"], 2, "absent.json"),
        (["simulate", "lenet", "--cluster", "dgx1-v100", "--objective", "cost"], 2, "--curve"),
        (["train", "digits", "--devices", "0"], 2, "--devices"),
    ],
)
def test_wrong_input_is_told_and_leaves_nothing(arguments: list[str], code: int, part: str, tmp_path: Path) -> None:
    assert_told(trimaran(*arguments, cwd=tmp_path), code, part)
    assert not list(tmp_path.iterdir())


def test_what_the_users_code_raises_is_told_by_its_lines(tmp_path: Path) -> None:
    """A model that fails is wrong input; a callback that raises in a run, and only there, has failed the run."""
    done = trimaran("plan", f"{JOBS}:raises_in_forward", cwd=tmp_path)
    assert_told(done, 2, "LookupError: no such layer", "in forward", 'raise LookupError("no such layer")')
    assert done.stderr.count("\n") <= 4
    done = trimaran("train", f"{JOBS}:raises_in_callback", "--devices", "1", cwd=tmp_path)
    assert_told(
        done,
        5,
        "rank 0 raised LookupError: no such log\n    in Job.on_step after step 2\n",
        'in on_step\n        raise LookupError("no such log")',
        "The whole traceback is in runs/",
    )
    assert len(done.stderr.strip().splitlines()) <= 12


def test_a_variable_asks_for_the_whole_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_DEBUG", "1")
    done = trimaran("plan", f"{JOBS}:raises_in_forward", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "run_whole" in done.stderr


def test_an_error_is_an_object_with_json(tmp_path: Path) -> None:
    done = trimaran("plan", "digit", "--json", cwd=tmp_path)
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["code"], error["exit_code"]) == ("InputError", "job.unknown", 2)
    assert error["reference"] == "digit"


def test_what_is_mistyped_is_an_object_with_json_and_an_empty_option_is_not_left_out(tmp_path: Path) -> None:
    done = trimaran("plan", "lenet", "--batch", "many", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["error"]["code"] == "command-line.malformed"
    assert_told(done, 2, "--batch")
    assert_told(trimaran("plan", "lenet", "--cluster", "", cwd=tmp_path), 2, "--cluster is empty")


@pytest.mark.sweep
def test_memory_that_nothing_fits_into_is_said_with_the_figures(tmp_path: Path) -> None:
    done = trimaran("plan", f"{JOBS}:good", "--devices", "1", "--memory", "1KiB", cwd=tmp_path)
    assert_told(done, 3, "1.0 KiB", "needs")


class TestPlanFiles:
    @pytest.fixture
    def plan(self, tmp_path: Path) -> Path:
        path = tmp_path / "plan.json"
        done = trimaran("plan", f"{JOBS}:good", "--devices", "1", "--output", str(path), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return path

    def test_a_plan_is_refused_when_it_is_not_what_was_written(self, plan: Path) -> None:
        whole = plan.read_text()
        train = ("train", f"{JOBS}:good", "--plan", str(plan))
        plan.write_text(whole[: len(whole) // 2])
        assert_told(trimaran(*train, cwd=plan.parent), 6, "plan.json")
        plan.write_text(whole.replace('"microbatches": 1', '"microbatches": 2', 1))
        assert_told(trimaran(*train, cwd=plan.parent), 6, "edited or damaged")
        plan.write_text(whole)
        other = ("train", f"{JOBS}:other", "--plan", str(plan))
        assert_told(trimaran(*other, cwd=plan.parent), 2, "made for something else", "graph")
        assert_told(trimaran(*train, "--devices", "2", cwd=plan.parent), 2, "the number of ranks: 1 then, 2 now")
        assert not (plan.parent / "runs").exists()
