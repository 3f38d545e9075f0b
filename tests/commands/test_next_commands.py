"""The command that an answer ends with is one that works: it is run, or, where it trains here, its plan is loaded."""

import re
import shlex
from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.golden.repeatable import be_command_on_record
from tests.representative import each
from typer.testing import CliRunner

from trimaran.base.errors import InputError
from trimaran.cli import app
from trimaran.planning.loaded_plans import use_of_plan
from trimaran.program.plan_file import read_plan


def run(command: str) -> str:
    """Output of a command of this program, which has to succeed."""
    done = CliRunner().invoke(app, shlex.split(command.removeprefix("trimaran ")), env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"$ {command}\n{done.output}"
    return done.output


def advised(output: str) -> str:
    """The command of the last line that begins with "Next"; it may go on in further lines."""
    found = re.findall(r"^Next[^:\n]*: (trimaran (?:.*\\\n)*.*)$", output, re.MULTILINE)
    assert found, output
    return " ".join(str(found[-1]).replace("\\\n", " ").split())


SMALL, LARGE = "lenet --cluster dgx1-v100 --devices 2 --batch 64", "gpt2:1.5b --cluster dgx-a100 --batch 64"
HUGE = "llama2:70b --cluster dgx-h100:32 --devices 256 --batch 256"
PLANS = {
    "a program for a cluster": SMALL,
    "a named strategy for a cluster": f"{SMALL} --strategy dp2",
    "placement of operations": "digits-branches --cluster dgx1-v100 --devices 2 --allow placement --forbid dp,pp,tp",
    "degrees": f"{LARGE} --devices 8",
    "degrees that a script of plain PyTorch cannot have": f"{LARGE} --devices 8 --strategy 'dp4 cp2 mb1'",
    "degrees on 256 devices": f"{HUGE} --strategy 'dp16 pp4 1f1b tp4 zero1 m16'",
}


@pytest.mark.parametrize("kind", each(PLANS, *(PLANS.keys() - {"placement of operations"})))
def test_what_follows_a_plan(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan, why it is so, and what runs it: a training on its cluster, or another runtime."""
    monkeypatch.chdir(tmp_path)
    explain = advised(run(f"plan {PLANS[kind]} -o plan.json"))
    assert explain == "trimaran explain plan.json"
    use = advised(run(explain))
    plan = read_plan(tmp_path / "plan.json")
    assert shlex.split(use) == use_of_plan(plan, "plan.json")[0]
    if plan.has_program:
        assert use == f"trimaran train {plan.job} --plan plan.json"
    else:
        run(use)
        refused = CliRunner().invoke(app, ["train", plan.job, "--plan", "plan.json"])
        assert refused.exit_code == InputError.exit_code
        assert "trimaran export" in refused.output
    page = run("report plan.json")
    assert ("trimaran train" in page) == plan.has_program


def test_a_plan_for_this_machine_is_trained_without_the_options_that_made_it(tmp_path: Path) -> None:
    """A training refuses them beside a plan; its memory, and where it may run, are said again."""
    asked = ("--devices", "2", "--allow", "pp", "--forbid", "tp", "--memory", "1GiB", "-o", "plan.json")
    done = trimaran("plan", "digits", *asked, cwd=tmp_path, be=be_command_on_record)
    assert advised(done.stdout) == "trimaran train digits --memory 1GiB --plan plan.json"


def test_an_explanation_of_a_plan_for_this_machine_ends_with_its_training(tmp_path: Path) -> None:
    """What decided the comparison is no option of a training by a plan that is made."""
    asked = ("plan", "digits", "--devices", "2", "--strategy", "dp2", "-o", "plan.json")
    trimaran(*asked, cwd=tmp_path, be=be_command_on_record)
    done = trimaran("explain", "plan.json", "--forbid", "tp", cwd=tmp_path, be=be_command_on_record)
    assert advised(done.stdout) == "trimaran train digits --plan plan.json"


def test_a_plan_after_a_curve_takes_the_file_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a table without its folder and ending is no curve."""
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text("global_batch,steps\n64,1000\n128,600\n256,400\n512,300\n")
    asked = "trimaran plan JOB --objective time --cluster dgx-a100 --curve"
    assert advised(run("curve runs.csv --samples-per-epoch 1000")) == f"{asked} runs.csv --samples-per-epoch 1000"
    written = advised(run("curve runs.csv --network resnet18 -o curve.toml"))
    assert written == f"{asked} curve.toml".replace("JOB", "resnet18")
    assert advised(run("curve curve.toml")) == written


@pytest.mark.parametrize("budget", ["700MiB", "30%"])
def test_a_plan_after_memory_has_the_room_that_a_budget_left(budget: str) -> None:
    """A budget is a card's, of which the context takes a part, or a share of the step."""
    page = run(f"memory lenet --device k80 --batch 4096 --budget {budget} --no-largest-batch")
    left = re.findall(r"^budget ([\d.]+) MiB", page, re.MULTILINE)
    (room,) = re.findall(r" --memory (\d+)MiB ", advised(page))
    assert 0 <= float(left[0]) - int(room) < 1


def test_an_explanation_of_a_plan_for_a_target_knows_its_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By device-hours one device costs least, by node-hours all devices of the node."""
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text("global_batch,steps\n2048,1000\n4096,600\n8192,400\n16384,300\n")
    asked = "lenet --cluster dgx1-v100 --devices 2 --batch 4096 --objective cost --curve runs.csv"
    bare, priced = (run(f"plan {asked}{more}") for more in ("", " --price '24 USD/node-hour'"))
    assert "lenet on 1 of 2 devices: one device, " in bare
    assert advised(bare).startswith("trimaran explain ")
    assert "lenet on 2 devices: dp2" in priced
    follows = advised(priced)
    assert follows.endswith("--output plan.json")
    assert "lenet on 2 devices: dp2" in run(advised(run(follows)))


def test_a_plan_after_a_scaling_study_keeps_the_batch_that_fits_no_row() -> None:
    found = advised(run("scale llama3:8b --cluster dgx-h100 --devices 8 --batch 64 --sequence 4096"))
    assert found == "trimaran plan llama3:8b --cluster dgx-h100 --sequence 4096 --batch 64"


QUICK = [
    "plan digits --cluster dgx1-v100 --devices 2",
    "scale gpt2 --cluster dgx-a100 --devices 1,8 --local-batch 8",
    "scale lenet --cluster dgx1-v100 --devices 1,8 --batch 64 --precision fp16",
    "price gpt2:1.5b --cluster dgx-a100 --strategy 'dp8 zero1' --batch 64",
    "memory lenet --device titan-x --batch 8",
    "clusters",
    "clusters dgx-h100:4",
    "jobs",
    "check digits",
]
LONG = [
    "plan resnet50 --cluster dgx1-v100 --devices 2 --objective time --curve resnet50 --batches 256",
    "curve resnet50",
]
"""What follows a plan for a target, and a curve, is tried with a smaller network above."""


@pytest.mark.parametrize("command", each([*QUICK, *LONG], *QUICK))
def test_what_follows_an_answer(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    follows = advised(run(command))
    if "--cluster" in follows or not follows.startswith(("trimaran plan", "trimaran train")):
        run(follows)
