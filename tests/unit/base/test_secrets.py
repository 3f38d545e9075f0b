"""Tokens and passwords of a command line reach no file, no page and no error."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.commands.running import trimaran
from tests.unit.report.pages import studies, write_run, write_study

from trimaran.base.secrets import masked, page_command, without_secrets
from trimaran.features.report_page.make import report
from trimaran.features.training.run_record import command_line

SECRET = "s3cr3tvalue"
NAMES = (
    *("--token", "--api-key", "--api_key", "--apiKey", "--password", "--passwd", "--hf-token", "--hf_token"),
    *("--wandb-api-key", "--wandb.key", "--auth", "--db-pass", "--aws-secret-access-key", "--credentials", "-token"),
    *("--creds", "--otp"),
)
VARIABLES = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "SSHPASS", "+auth.token", "wandb.key")
FORMS = (
    *([name, SECRET] for name in NAMES),
    *([f"{name}={SECRET}"] for name in (*NAMES, *VARIABLES)),
    ["-e", f"HF_TOKEN={SECRET}"],
    [f"--env=HF_TOKEN={SECRET}"],
    [f"https://me:{SECRET}@host/path"],
    [f"--repo=https://{SECRET}@host/path"],
    [f"s3://bucket/x?region=eu&X-Amz-Signature={SECRET}"],
    *([name, f"me:{SECRET}"] for name in ("--user", "-u", "--proxy-user", "--db.login")),
    *([f"--user=me:{SECRET}"], [f"me:{SECRET}@host.org/path"], ["--dsn", f"postgres:{SECRET}@db:5432/x"]),
    ["bash", "-c", f"curl -u me:{SECRET} https://host"],
    ["--header", f"Authorization: Bearer {SECRET}"],
    [json.dumps({"wandb": {"api_key": SECRET}, "lr": 1})],
    ["bash", "-c", f"python train.py --lr 1 --token '{SECRET}'"],
    ["--token", f"two {SECRET}"],
    ["--slack-webhook", f"https://hooks.example.com/{SECRET}"],
    *([f"{form}{SECRET}.{SECRET}"] for form in ("sk-ant-api03-", "xoxb-123456789012-", "eyJhbGci.")),
)
INNOCENT = (
    *("--tokens 1T", "--max-tokens 4096", "--tokenizer gpt2", "--pad-token-id 0", "--lr=1e-3", "--token-file there"),
    *("--user me", "python -u job.py:make_job", "git@host.org:ours/x.git", "me@host:/data", "ours/x:v1@sha256:abc"),
    *("--use-auth-token --lr 1", "--bypass=1", "--monkey x", "PWD=/home/me", "s3://bucket/data", "model.layers=3"),
)


@pytest.mark.parametrize("words", FORMS, ids=lambda words: " ".join(words)[:60])
def test_a_secret_is_masked_and_what_stands_around_it_stays(words: list[str]) -> None:
    found = without_secrets(["python", "train.py", "--lr", "1e-3", *words, "--steps", "3"])
    assert SECRET not in " ".join(found)
    assert "***" in " ".join(found)
    assert (found[:4], found[-2:]) == (["python", "train.py", "--lr", "1e-3"], ["--steps", "3"])
    assert without_secrets(found) == found


@pytest.mark.parametrize("words", INNOCENT)
def test_what_is_no_secret_stays(words: str) -> None:
    assert without_secrets(words.split()) == words.split()


@given(st.lists(st.sampled_from([*map(tuple, FORMS), *(tuple(each.split()) for each in INNOCENT)]), max_size=6))
def test_no_secret_is_left_in_whatever_order(parts: list[tuple[str, ...]]) -> None:
    words = [word for part in parts for word in part]
    assert SECRET not in shlex.join(without_secrets(words))
    assert SECRET not in page_command(shlex.join(["trimaran", "observe", "--", "torchrun", "train.py", *words]))
    assert SECRET not in page_command(shlex.join(["python", *words, "train.py"]))


def test_a_page_has_no_words_of_a_script() -> None:
    for command in ("python train.py ours", "trimaran observe -- my-train ours", "trimaran rehearse -m pkg.train ours"):
        assert page_command(command) == command.replace("ours", "…")
    assert page_command("trimaran train 'my job' --devices 2") == "trimaran train 'my job' --devices 2"


def test_a_run_and_its_page_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train.py", *(word for form in FORMS for word in form)]
    monkeypatch.setattr(sys, "argv", words)
    assert SECRET not in command_line()
    write_run(tmp_path / "run")
    about = json.loads((tmp_path / "run/run.json").read_text()) | {"command": shlex.join(["python", *words])}
    (tmp_path / "run/run.json").write_text(json.dumps(about))
    report(tmp_path / "run", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert SECRET not in page
    assert "train.py …" in page


def test_pages_of_scripts_have_none(tmp_path: Path) -> None:
    """Documents of an earlier version hold the words as they were given."""
    words = ["train.py", *(word for form in FORMS for word in form)]
    rehearsed = studies()["rehearse"] | {"script": words}
    observed = studies()["observe"] | {"command": shlex.join(["trimaran", "observe", "--", "python", *words])}
    for name, document in (("rehearsed", rehearsed), ("observed", observed)):
        report(write_study(tmp_path / f"{name}.json", document), tmp_path / f"{name}.html")
        page = (tmp_path / f"{name}.html").read_text()
        assert SECRET not in page
        assert "train.py …" in page


def test_errors_have_none_of_the_command_nor_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", SECRET])
    monkeypatch.setenv("WANDB_API_KEY", "of-the-environment")
    said = f"Namespace(token='{SECRET}', key='of-the-environment', lr=1) https://me:x@host"
    assert masked(said) == "Namespace(token='***', key='***', lr=1) https://***@host"
    assert masked(3) == 3


SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--token")
given = parser.parse_args()
print(given)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(40):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
raise RuntimeError(given)
"""


def test_documents_of_watched_and_rehearsed_scripts_have_none(tmp_path: Path) -> None:
    """The script prints what it was told, and ends with an error that has it too."""
    (tmp_path / "train.py").write_text(SCRIPT)
    script = ["train.py", "--token", SECRET]
    rehearsed = trimaran("rehearse", "--world", "1", "--steps", "50", "--json", "-o", "out.json", *script, cwd=tmp_path)
    assert json.loads(rehearsed.stdout)["script"] == ["train.py", "--token", "***"]
    assert "Namespace(token='***')" in rehearsed.stdout
    assert SECRET not in rehearsed.stdout + (tmp_path / "out.json").read_text()
    observed = trimaran("observe", "--not-again", "--json", "--", sys.executable, *script, cwd=tmp_path)
    assert json.loads(observed.stdout)["command"].endswith("train.py --token '***'"), observed.stderr
    assert SECRET not in observed.stdout
