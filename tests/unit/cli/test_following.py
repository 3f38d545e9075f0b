"""The command that an answer names as the next one says what its reader said."""

import html
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from tests.unit.planning.target.curves import digits_curve
from tests.unit.report.test_converging import found
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.features.report_page.make import report
from trimaran.report.tables import next_text

_ASKED = ("lenet", "--cluster", "dgx1-v100", "--devices", "2", "--batch", "4096")


def said_by(*command: str) -> str:
    found = CliRunner().invoke(app, list(command), env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.stdout


def next_of(*command: str) -> list[str]:
    """Words of the last command of an answer, as a shell reads them."""
    _, _, last = said_by(*command).rpartition("\nNext")
    return shlex.split(last.partition(": ")[2].replace("\\\n", " "))


def test_what_was_said_is_said_to_the_next_command_as_far_as_it_takes_it() -> None:
    words = next_of("plan", *_ASKED, "--forbid", "pp", "--forbid", "tp", "--dp", "2", "--memory", "12 GiB")
    assert words[:3] == ["trimaran", "explain", "lenet"]
    pairs = list(itertools.pairwise(words))
    for pair in [("--forbid", "pp"), ("--forbid", "tp"), ("--dp", "2"), ("--memory", "12 GiB"), ("--batch", "4096")]:
        assert pair in pairs


def test_the_next_command_runs_and_explains_the_plan_that_was_printed() -> None:
    words = next_of("plan", *_ASKED, "--forbid", "dp")
    page = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80"}).stdout
    plan = CliRunner().invoke(app, ["plan", *_ASKED, "--forbid", "dp"], env={"COLUMNS": "80"}).stdout
    assert page.split("\nGlobal batch")[0] == plan.split("\nGlobal batch")[0]


def test_a_plan_that_is_in_a_file_is_explained_from_it(tmp_path: Path) -> None:
    output = tmp_path / "a plan.json"
    assert next_of("plan", *_ASKED, "--output", str(output)) == ["trimaran", "explain", str(output)]


def test_defaults_and_what_another_command_lacks_are_not_said() -> None:
    words = next_of("price", "llama2:7b", "--cluster", "dgx-h100", "--strategy", "tp8", "--batch", "8")
    assert words[:3] == ["trimaran", "plan", "llama2:7b"]
    assert "--strategy" not in words
    assert sorted(word for word in words if word.startswith("--")) == ["--batch", "--cluster", "--devices"]


def test_the_plan_after_a_scaling_study_is_of_the_same_software_and_input_pipeline() -> None:
    """A decoder's step that waits for data is that of the traced one; a plan by its shape would be refused."""
    asked = ("--cluster", "dgx1-v100", "--devices", "1,4", "--local-batch", "32", "--workers", "2", "--decode", "7ms")
    words = next_of("scale", "lenet", *asked, "--software", "pytorch:2020", "--price", "24 USD/node-hour")
    assert "--price" not in words
    step = json.loads(said_by(*words[1:], "--strategy", "dp4", "--json"))
    row = json.loads(said_by("scale", "lenet", *asked, "--software", "pytorch:2020", "--json"))["rows"][-1]
    assert step["software"] == "pytorch:2020"
    assert step["chosen"]["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-3)
    words = next_of("scale", "gpt2:124m:sequence=64", *asked[:-4], "--loader", "500 images/s")
    assert words[words.index("--software") + 1] == "pytorch:2024"


def test_the_plan_after_a_crossover_is_of_the_same_software_and_precision(tmp_path: Path) -> None:
    curve = ("--curve", str(digits_curve(tmp_path / "curve.toml")))
    costs = ("--precision", "fp16"), ("--software", "pytorch:2020")
    asked = ("digits", "--cluster", "dgx1-v100", *costs[0], *costs[1], *curve, "--devices", "4", "--widths", "2")
    words = next_of("crossover", *asked)
    pairs = list(itertools.pairwise(words))
    for pair in (*costs, curve, ("--devices", "4"), ("--objective", "time")):
        assert pair in pairs


@pytest.mark.parametrize(
    "words",
    [
        ["trimaran", "plan", "my job.py:make", *(f"--option-{number}=a b" for number in range(12))],
        [
            "trimaran",
            "observe",
            "--",
            "/home/somebody/work/.venv/bin/python",
            "/home/somebody/work/train.py",
            "--lr=1",
        ],
    ],
)
def test_a_long_command_goes_on_in_lines_that_a_shell_joins(words: list[str]) -> None:
    text = next_text(words)
    lines = text.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert all(line.endswith(" \\") for line in lines[:-1])
    # A shell takes the mark and the end of a line away; `shlex` leaves the latter.
    assert shlex.split(text.removeprefix("Next: ").replace("\\\n", "")) == words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check lenet --cluster dgx1-v100", "--cluster"),
        ("catalog jobs lenet", "lenet"),
        ("plan", "JOB"),
        ("plann lenet", "Did you mean 'plan'"),
        ("explain lenet --why pp", "--why-not"),
        ("plan lenet --zero 9", "--zero"),
        ("plan lenet --batch 0", "'--batch': expected 1 or more"),
        ("plan lenet --batch 1k", "'--batch': expected a whole number"),
        ("plan lenet --verbose --quiet", "exclude each other"),
        ("plan lenet --dp 2 --dp 4", "--dp is given more than once"),
        ("plan lenet dp2", '--strategy "dp2"'),
        ("train lenet pp2 m4", '--strategy "pp2 m4"'),
        ("plan gpt2 two --cluster dgx-a100", "extra argument"),
    ],
)
def test_what_is_mistyped_is_said_in_two_lines_with_the_page_that_helps(command: str, said: str) -> None:
    found = CliRunner().invoke(app, command.split(), env={"COLUMNS": "80"})
    assert found.exit_code == 2
    assert not found.stdout
    lines = found.stderr.splitlines()
    assert lines[0].startswith("trimaran: ")
    assert said in lines[0]
    assert len(lines) == 2
    assert "--help` says what it takes" in lines[1]


@pytest.mark.sweep
def test_the_memory_of_a_card_is_no_money_in_the_plan_that_follows() -> None:
    """A step of lenet on a card; the page ends with the command that plans it on eight of them."""
    words = "memory lenet --device titan-x --batch 64 --budget 8GiB --no-largest-batch"
    found = CliRunner().invoke(app, words.split(), env={"COLUMNS": "80"})
    assert found.exit_code == 0
    # The batch is that of one of them, the memory what context and workspace leave of its card.
    following = " ".join(found.stdout.replace("\\\n", "").split())
    said = "Next, on 8 of them: trimaran plan lenet --memory 7774MiB --cluster 8xtitan-x --batch 512"
    assert following.endswith(said)


def test_after_convergence_was_measured_the_plan_is_for_the_same_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the options of both commands with one name, some mean two things."""
    monkeypatch.setattr("trimaran.features.convergence.measure.converge_job", lambda *_, **__: found())
    asked = ("--devices", "1", "--batches", "64", "--schedule", "job", "--time-limit", "1h", "--output", "c.json")
    assert next_of("converge", "mine.py:make", *asked) == [
        *("trimaran", "plan", "mine.py:make", "--devices", "1", "--objective", "time"),
        *("--curve", "runs/converge-mine-0123abcd/curve.json"),
    ]


def test_the_plan_after_a_price_is_for_the_batch_that_was_priced(tmp_path: Path) -> None:
    asked = ("price", "llama3:8b", "--cluster", "dgx-h100")
    assert ("--batch", "64") in itertools.pairwise(next_of(*asked, "--strategy", "dp8 zero2 m8"))
    table = tmp_path / "rows.csv"
    table.write_text("strategy,batch\ntp8,32\ntp4 dp2,32\n")
    assert ("--batch", "32") in itertools.pairwise(next_of(*asked, "--strategies", str(table), "--batch", "64"))


def test_a_plan_that_takes_data_as_ready_is_not_asked_how_they_are_loaded() -> None:
    words = next_of("scale", "llama3:8b", "--cluster", "dgx-h100", "--devices", "2", "--loader", "dali")
    assert not {"--loader", "--software"} & {*words}


@pytest.mark.parametrize(
    "command",
    [
        "plan lenet --cluster dgx1-v100 --devices 2 --batch 64 --memory '12 GiB' --strategy dp2",
        "plan llama3:8b --cluster dgx-h100:4 --batch 128 --lengths 512:0.4,2048:0.6 --packing causal --forbid pp",
        "scale lenet --cluster dgx1-v100 --devices 1,2 --local-batch 32 --decode 7ms --workers 2 --sync nccl",
    ],
)
def test_a_document_says_the_command_that_asked_and_its_page_names_it(command: str, tmp_path: Path) -> None:
    """Without the files that the answer is written to. The page's command had lost most options."""
    words = shlex.split(command)
    plot = ("--plot", str(tmp_path / "plot.svg")) if words[0] == "scale" else ()
    document = json.loads(said_by(*words, *plot, "--json"))
    told = shlex.split(document["command"])
    assert sorted(told) == sorted(["trimaran", *words])
    (tmp_path / "answer.json").write_text(json.dumps(document))
    report(tmp_path / "answer.json", tmp_path / "report.html")
    shown = html.unescape(re.sub("</?span[^>]*>", "", (tmp_path / "report.html").read_text(encoding="utf-8")))
    assert f"{document['command']} --json" in shown


def test_what_a_plan_of_degrees_leaves_out_is_asked_again_with_the_memory_of_the_plan(tmp_path: Path) -> None:
    """With less memory gradients are in bf16, which the strategy does not say: without it they were in fp32 again."""
    asked = ("llama3:8b", "--cluster", "dgx-h100:4", "--batch", "128", "--memory", "60GiB")
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    first = json.loads(said_by("plan", *asked, "--output", str(plan), "--json"))
    how = dict(report(plan, page).absent)["Memory by purpose"]
    words = shlex.split(how[how.index("trimaran plan") : how.index(" > answer.json")])
    again = json.loads(said_by(*words[1:]))
    assert again["chosen"]["strategy"] == first["chosen"]["strategy"]
    assert again["chosen"]["peak_bytes"] == first["chosen"]["peak_bytes"]
    assert again["memory_limit_bytes"] == first["memory_limit_bytes"]
