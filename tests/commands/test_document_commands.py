"""The commands of the documents work as they are written there: every block of `bash`, in the order of its page.

Commands of a page run in one folder, in which lie files that the page takes for granted (`given`), so that one finds
what an earlier one has written. `runs/NAME` is the first run of the page, or one that is given; where a command goes on
from a checkpoint, the first that has one. Where the test may run on fewer than four cores, four local devices are two.
What is not run stands in `NOT_RUN`, what only the sweeps run in `LONG`, what fails on purpose in `FAILING`, each with
its reason; a line of these tables that nothing needs any more fails too. (Blocks of `console` are run, and
compared, by `test_documents.py`.)
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.commands.test_documents import blocks
from tests.commands.test_place import inception_like
from tests.documents import PAGES, ROOT
from tests.forks.commands import run_command
from tests.unit.machine.test_imports import MESH

from trimaran.base.system import allowed_cores
from trimaran.cli import app

NOT_RUN = {
    "pip ": "scripts/newcomer.py builds and installs the wheel",
    "make ": "sets up an environment",
    "torchtitan.train": "torchtitan is not among what tests need",
    "nvidia-smi": "needs a GPU's driver",
    "--nproc-per-node 8": "needs eight GPUs",
    "doctor --measure --devices 8": "needs eight GPUs",
    "node.json": "a plan for eight GPUs at hand",
    "--rdzv-endpoint": "needs two nodes; tests/engines starts this on emulated ones",
    "srun": "a script of Slurm; tests/engines runs it by emulated daemons",
    "sbatch": "needs Slurm",
    "[ ": "part of a script of Slurm",
    "scontrol": "needs Slurm",
    "--measured trace.json": "needs a profile of a GPU; tests/rehearsal corrects by one that is made",
    "--measured one.json": "what such a profile gives",
    "benchmarks/validation/tables.py": "minutes; writes files of the repository",
    "benchmarks/fits/transformers.py": "minutes; takes tables that do not come with Trimaran",
    "--log tensorboard": "needs TensorBoard; tests/distributed/test_trackers.py has it where it is installed",
    "trimaran verify": "tests/rehearsal/test_verify.py runs scripts of its kinds",
}
"""What a command contains that is not run, with the reason."""

LONG = {
    "python -m trimaran_studies validate $": "predicts all published rows",
    "validate --family": "predicts most published rows",
    "python -m trimaran_studies reproduce": "plans all networks of a study",
    "trimaran crossover --measure": "trains to a target, again and again",
    "trimaran train": "trains",
    "trimaran catalog checkpoint": "needs a training",
    "trimaran crossover": "tries many devices and widths",
    "trimaran train --emulate": "starts ranks, again and again",
    "train.py --steps 1 $": "starts ranks",
    "--rehearse": "starts ranks",
    "--stalls": "trains with each part slowed down",
    "--why-not": "measures on ranks",
    "make_job --devices 2": "measures on ranks",
    "plan digits": "measures on ranks",
    "--tp 2 --forbid pp": "measures on ranks",
    "--link 200Mb/s": "measures on ranks",
    "--devices 2 --allow placement": "solves for a placement",
    "trimaran memory config.json": "plans the memory of a large step",
    "resnet50 --cluster dgx-a100:8": "searches among many strategies, as others here that take less",
    "scale inception_v3": "traces a large network for each batch; test_scale.py asks the same of a small one",
    "256,512,1024": "plans for several numbers of devices, as another one here that takes less",
    "--objective cost": "plans at many batches; test_next_commands.py asks for the least time on fewer devices",
    "trimaran plan graph.json": "searches for ten seconds; test_place.py asks for less",
    "observe -- python train.py": "starts interpreters, as another one here does",
    "observe -- accelerate": "starts interpreters, as test_observe.py does",
    "rehearse --world 1024": "runs the script, again and again",
    "rehearse --world 8": "runs the script, again and again",
    "torchrun --nproc-per-node": "starts ranks",
}
"""What a command contains that is run by the sweeps alone, as it takes many seconds, with the reason."""

FAILING = {"train.py --steps 1": (3, "the tutorial shows a script that runs out of memory, and what would help")}
"""What a command contains that ends with another exit code than 0: that code, with the reason."""


def commands(page: Path) -> list[str]:
    """Commands of the blocks of a page, without comments; a script (`#!`) is none."""
    found = []
    for block in blocks(page, "bash"):
        if block.startswith("#!"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            plain = re.sub(r"(^|\s{2,})#.*$", "", line).strip()
            if plain and not plain.startswith("export "):
                found.append(plain)
    return found


def reason(command: str, table: dict[str, str]) -> str | None:
    return next((why for part, why in table.items() if part in f"{command} $"), None)


WITH_COMMANDS = [page for page in PAGES if commands(page)]

TRAIN = """
import argparse
import os

import torch
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--size")
parser.add_argument("--steps", type=int, default=24)
asked = parser.parse_args()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    model = model.cuda()
if torch.distributed.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
device = next(model.parameters()).device
for _ in range(asked.steps):
    targets = torch.zeros(64, dtype=torch.long, device=device)
    functional.cross_entropy(model(torch.randn(64, 64, device=device)), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""

CONFIGURATION = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
"num_attention_heads": 32, "num_key_value_heads": 4,
"max_position_embeddings": 8192, "tie_word_embeddings": false}"""

RUNS = "global_batch,epochs\n" + "".join(
    f"{batch},{epochs}\n"
    for batch, epochs in ((16, 5.88), (32, 5.51), (64, 5.88), (128, 7.33), (256, 9.07), (512, 13.7))
)


DECODER = "llama3:8b --cluster dgx-h100:1 --devices 8 --batch 64 --forbid pp,tp --software fsdp"
PLANS = {"plan.json", "simple.json"}
GIVEN = {
    *PLANS, "job.py", "train.py", "slow.py", "config.json", "runs.csv", "rows.csv", "rack.toml", "graph.json",
    "topo.txt", "curve.json",
}  # fmt: skip
"""Files that `given` writes, whichever command of a page would."""
PLANNED = {"planning": "alexnet --cluster dgx1-v100 --devices 2 --batch 256"}
"""What `plan.json` of a page is a plan for, where it is not a decoder."""


def given(page: Path, folder: Path, names: set[str]) -> None:
    """Write files that a page takes for granted into the folder of its commands.

    Args:
        page: of the documents
        folder: of its commands
        names: of files that commands name
    """
    texts = {
        "job.py": blocks(ROOT / "README.md", "python")[0].partition("\nsession = ")[0],
        "train.py": TRAIN,
        "slow.py": blocks(ROOT / "docs" / "tutorial_slow_script.md", "python")[0],
        "config.json": CONFIGURATION,
        "runs.csv": RUNS,
        "rack.toml": next(one for one in blocks(ROOT / "docs" / "clusters.md", "toml") if "rack.toml" in one),
        "graph.json": json.dumps(inception_like(2)),
        "topo.txt": MESH,
    }
    for name in names & set(texts):
        (folder / name).write_text(texts[name], encoding="utf-8")
    rows = ROOT / "src" / "trimaran_studies" / "published" / "rows.csv"
    if "rows.csv" in names:
        with rows.open(encoding="utf-8") as lines:
            (folder / "rows.csv").write_text("".join(line for line, _ in zip(lines, range(40), strict=False)))
    if "curve.json" in names:
        (folder / "runs.csv").write_text(RUNS, encoding="utf-8")
        run("trimaran catalog curve runs.csv --output curve.json", folder)
    for plan in names & PLANS:
        run(f"trimaran plan {PLANNED.get(page.stem, DECODER)} -o {plan}", folder)
    if "runs/NAME" in names:
        (folder / "job.py").write_text(texts["job.py"], encoding="utf-8")
        run("trimaran train job.py:make_job --devices 1 --epochs 1 --save-every 2", folder)


def outputs_of(command: str) -> set[str]:
    """Files that a command writes."""
    return set(re.findall(r"(?:-o|--output|>) (\S+)", command))


def inputs_of(command: str) -> set[str]:
    """Files that a command reads; `runs/NAME` too."""
    words = re.findall(r"[\w/]+\.(?:py|json|toml|csv|txt)\b|runs/NAME", command)
    return set(words) - outputs_of(command)


def named(text: list[str]) -> set[str]:
    """Files that commands read before they write them."""
    found, written = set(), set()
    for command in text:
        found |= inputs_of(command) - written
        written |= outputs_of(command)
        if command.startswith("trimaran train job.py") and "NAME" not in command:
            written.add("runs/NAME")
    return found


def run(command: str, folder: Path) -> str:
    """Run a command of a page, and give what it prints to standard error."""
    words = shlex.split(command.partition(">")[0])
    if "runs/NAME" in words:
        saved = "checkpoints" if {"--resume", "checkpoint", "export"} & set(words) else ""
        one = min(run for run in folder.glob("runs/*") if (run / saved).exists())
        words[words.index("runs/NAME")] = str(one.relative_to(folder))
    if "PATH" in words:
        words[words.index("PATH")] = "model.safetensors"
    if not {"--cluster", "--oversubscribe"} & set(words) and allowed_cores() < 4:
        words = re.sub(r"(--devices|--nproc-per-node)\n4$", r"\1\n2", "\n".join(words), flags=re.MULTILINE).split("\n")
    done = start(words, folder)
    expected = next((code for part, (code, _) in FAILING.items() if command.endswith(part)), 0)
    assert done.returncode == expected, f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr
    if ">" in command:
        (folder / command.partition(">")[2].strip()).write_text(done.stdout, encoding="utf-8")
    return done.stderr


def without_variables(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The variables that stand in front of a command, and the command."""
    program = next(number for number, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return dict(word.split("=", 1) for word in words[:program]), words[program:]


def start(line: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run one as a shell would; `trimaran` is forked."""
    own, words = without_variables(line)
    here = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80", **own}
    if words[0] == "trimaran":
        return run_command(*words[1:], folder=folder, environment=environment, timeout_s=900.0)
    # By `env`, which looks for it on this path.
    return subprocess.run(["env", *line], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def chosen(page: Path, *, long: bool) -> Iterator[str]:
    """Commands of a page that run here; without `long` the quick ones that need none of the others."""
    left_out: set[str] = set()
    for command in commands(page):
        is_quick = reason(command, LONG) is None and not inputs_of(command) & left_out
        if reason(command, NOT_RUN) is None and (long or is_quick):
            yield command
        elif not long:
            left_out |= outputs_of(command) - GIVEN


def check(page: Path, folder: Path, *, long: bool) -> None:
    text = list(chosen(page, long=long))
    given(page, folder, named(text))
    for command in text:
        if long or outputs_of(command) or command not in _HAVE_RUN:
            run(command, folder)
            _HAVE_RUN.add(command)


_HAVE_RUN: set[str] = set()
"""Commands that another page shows too, of the same files."""


def parse(words: Sequence[str]) -> None:
    """Have `trimaran` read its arguments, and do nothing.

    Raises:
        click.UsageError: it would refuse them
    """
    command: Any = typer.main.get_command(app)
    context, rest = None, [*words]
    while True:
        context = command.make_context(command.name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


def test_every_command_of_a_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that only the sweeps run: all subcommands and options are there."""
    monkeypatch.chdir(tmp_path)
    given(PAGES[0], tmp_path, {"graph.json"})
    told = [without_variables(shlex.split(one.partition(">")[0]))[1] for page in PAGES for one in commands(page)]
    ours = [words[1:] for words in told if words[0] == "trimaran"]
    assert len(ours) > 80
    for words in ours:
        parse(words)
    for wrong in (["plan", "digits", "--device", "2"], ["plan", "digits", "--devices"], ["plans", "digits"]):
        with pytest.raises(typer.BadParameter.__mro__[1]):  # what any wrong use raises
            parse(wrong)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if [*chosen(page, long=False)]], ids=lambda page: page.stem
)
def test_the_quick_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path, long=False)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [page for page in WITH_COMMANDS if [*chosen(page, long=True)] != [*chosen(page, long=False)]],
    ids=lambda page: page.stem,
)
def test_all_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path, long=True)


def test_a_command_of_a_shell(tmp_path: Path) -> None:
    """The program that the installation has put into its folder says what a forked one does."""
    words = ["COLUMNS=100", "trimaran", "clusters", "dgx1-v100"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    new = subprocess.run(["env", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert new.returncode == 0, new.stderr
    assert start(words, tmp_path).stdout == new.stdout


def test_every_exception_is_needed() -> None:
    whole = "\n".join(block for page in PAGES for block in blocks(page, "bash"))
    unused = [part for part in (*NOT_RUN, *LONG, *FAILING) if part.removesuffix(" $") not in whole]
    assert not unused
