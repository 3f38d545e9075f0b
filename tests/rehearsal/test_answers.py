"""What is said of scripts that are well formed and of those that are not, with real ranks and no GPU.

All scripts of this file are rehearsed at once, two at a time; each test looks at one answer.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.forks.client import forked_rehearsals, server
from tests.raising import raises
from tests.rehearsal.test_launch import marked

import trimaran
from trimaran.features.rehearse import runs
from trimaran.program.json_files import to_plain
from trimaran.report.rehearsal import EXIT_CODES

ROOT = Path(__file__).parents[2]

TRAINS = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range({steps}):
        loss = model(torch.randn(4, 1024, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
"""


ON_HOST = """
import torch, torch.distributed as dist
{first}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, 8)).sum().backward()
    {ranks}
    optimizer.step()
    optimizer.zero_grad()
"""

FORKS = """
import os, pathlib, time
if os.fork() == 0:
    os.setsid()
    pathlib.Path("child").write_text(str(os.getpid()))
    time.sleep(600)
while not os.path.exists("child"): time.sleep(0.01)
"""


@dataclass(frozen=True)
class Script:
    """A script and how it is rehearsed: its code, ranks, and options of `trimaran.rehearse`."""

    code: str
    world: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


SCRIPTS = {
    "trains": Script(TRAINS.format(steps=5), options={"steps": 2}),
    "never trains": Script("print('hello')"),
    "trains on the host": Script(ON_HOST.format(first="", ranks="")),
    "leaves a tensor on the device": Script(ON_HOST.format(first="kept = torch.empty(2**20, device='cuda')", ranks="")),
    "averages on the host": Script(
        ON_HOST.format(
            first="dist.init_process_group('gloo')",
            ranks="[dist.all_reduce(parameter.grad) for parameter in model.parameters()]",
        ),
        world=2,
    ),
    "asks for another device": Script("import torch\ntorch.cuda.set_device(9)", world=8, options={"ranks": "0"}),
    "makes a tensor on another device": Script("import torch\ntorch.zeros(3, device='cuda:9')"),
    "reads a missing file": Script("x = 1\nopen('data/train.bin')"),
    "forks": Script(FORKS + textwrap.dedent(TRAINS.format(steps=1))),
    "leaves": Script("import sys\nsys.exit(7)"),
    "leaves at once": Script("import os\nprint('bye', flush=True)\nos._exit(3)"),
    "is killed": Script("import os\nos.kill(os.getpid(), 11)"),
    "catches everything": Script(
        """
        import torch
        torch.empty(2**26, device="cuda")
        parameter = torch.nn.Parameter(torch.zeros(8, device="cuda"))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        while True:
            try:
                parameter.sum().backward()
                optimizer.step()
            except BaseException:
                pass
        """
    ),
    "never ends": Script("import time\nwhile True: time.sleep(0.1)", options={"limit": 6.0}),
    "prints megabytes": Script("for _ in range(100): print('x' * 99999)\n" + textwrap.dedent(TRAINS.format(steps=1))),
    "writes": Script(
        "import os\nos.makedirs('checkpoints/first')\nos.makedirs('logs')\nopen('logs/own.txt', 'w').write('mine')\n"
        + textwrap.dedent(TRAINS.format(steps=1))
    ),
    "raises where it is imported": Script("import its_helper"),
    "lacks a package": Script("import torch\nimport a_package_that_is_not_there.inside"),
    "one rank fails": Script(
        "import os\n"
        + textwrap.dedent(TRAINS.format(steps=1))
        + "if os.environ['RANK'] == '1':\n    raise KeyError('x')",
        world=2,
    ),
    "is too large": Script(
        """
        import torch
        model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(6)))
        model = model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 8192, device="cuda")).sum().backward()
        optimizer.step()
        """,
        options={"memory": "2GiB"},
    ),
}
IN_NEW_INTERPRETERS = ("trains", "forks", "never ends")
"""Of the others, ranks are forked: they are about what a script does, not about how its process starts and ends."""

HELPER = """
try:
    {}["size"]
except KeyError as error:
    raise RuntimeError("\\n    the configuration is incomplete") from error
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each script in a folder named after it."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, script in SCRIPTS.items():
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(textwrap.dedent(script.code))
        (folder / name / "its_helper.py").write_text(HELPER)
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, trimaran.Rehearsal]]:
    """The answer to each script; nothing is left of it, neither a process nor a file."""
    temporary = tmp_path_factory.mktemp("temporary")
    server(captures=False)  # not one of the processes that are looked for
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST", str(os.getpid()))
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr("tempfile.tempdir", None)
        found = _rehearse_all(folder, IN_NEW_INTERPRETERS)
        with forked_rehearsals():
            found |= _rehearse_all(folder, [name for name in SCRIPTS if name not in IN_NEW_INTERPRETERS])
        yield {name: found[name] for name in SCRIPTS}
        assert list(marked()) == []
        assert [path.name for path in temporary.iterdir() if path.name.startswith("trimaran")] == []


def _rehearse_all(folder: Path, names: Iterable[str]) -> dict[str, trimaran.Rehearsal]:
    with ThreadPoolExecutor(2) as pool:
        asked = {name: pool.submit(_rehearse, folder / name, SCRIPTS[name]) for name in names}
        return {name: one.result() for name, one in asked.items()}


def _rehearse(folder: Path, script: Script) -> trimaran.Rehearsal:
    # A command is given in one folder; here each script has its own.
    code = f"import os; os.chdir({str(folder)!r})\n"
    path = folder / "train.py"
    path.write_text(code + path.read_text())
    return trimaran.rehearse(path, world=script.world, cluster="dgx-h100", **script.options)


def test_a_script_that_trains_fits(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["trains"]
    assert (found.verdict, found.troubles) == ("fits", [])
    assert found.ranks[0].steps == 2
    # Weights and gradients of 4 MiB each, and the workspace of cuBLAS, which is 32 MiB on Hopper.
    assert 8 * 2**20 < found.ranks[0].allocated_bytes <= found.peak_bytes < 128 * 2**20
    assert list(found.printed) == ["step 0", "step 1"]
    assert found.step is not None
    assert found.step.seconds > 0


def test_one_that_never_trains_is_told_so(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["never trains"]
    assert found.verdict == "not trained"
    assert "its script ended" in found.headline
    assert list(found.printed) == ["hello"]


@pytest.mark.parametrize("name", ["trains on the host", "leaves a tensor on the device", "averages on the host"])
def test_one_that_uses_no_device_is_told_what_that_means(answers: Mapping[str, trimaran.Rehearsal], name: str) -> None:
    """Its step was taken to be 0 s, and divided by."""
    found = answers[name]
    assert (found.verdict, found.step, found.ranks[0].steps) == ("not trained", None, 3)
    assert "no rank asked its device to compute anything" in found.headline
    assert '.to("cuda")' in found.troubles[0].help[0]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("asks for another device", "device 9 of a node with 8", 3),
        ("makes a tensor on another device", "invalid device ordinal: device 9 of a node with 1", 3),
        ("reads a missing file", "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'", 3),
        ("leaves", "left with status 7", 3),
        ("leaves at once", "left with status 3", 4),
        ("is killed", "ended by SIGSEGV", None),
        (
            "raises where it is imported",
            "RuntimeError: the configuration is incomplete; its cause: KeyError: 'size'",
            2,
        ),
        ("lacks a package", "No module named 'a_package_that_is_not_there'", 3),
    ],
)
def test_one_that_fails_is_told_with_its_line(
    answers: Mapping[str, trimaran.Rehearsal], name: str, text: str, line: int | None
) -> None:
    """Lines are one further down than in the table above; of what is imported, the line that imports comes second."""
    found = answers[name]
    assert found.verdict == "failed"
    assert text in found.headline
    lines = [one for side in found.troubles[0].sides for one in side.lines]
    if line is None:
        assert lines == []
    else:
        assert f"train.py:{line}" in [one.partition(" in ")[0] for one in lines]


def test_a_status_is_kept(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    assert answers["leaves"].ranks[0].status == 7
    assert answers["leaves at once"].ranks[0].status == 3
    assert answers["is killed"].ranks[0].status == -signal.SIGSEGV


def test_a_missing_package_is_told_with_what_to_do(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    assert "install a_package_that_is_not_there" in answers["lacks a package"].troubles[0].help[0]


def test_what_a_script_starts_ends_with_it(answers: Mapping[str, trimaran.Rehearsal], folder: Path) -> None:
    assert answers["forks"].verdict == "fits"
    child = int((folder / "forks" / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_one_that_catches_everything_ends_after_its_steps(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["catches everything"]
    assert (found.verdict, found.ranks[0].steps) == ("fits", 3)


def test_a_peak_before_the_first_step_is_told_apart(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    assert (
        "rank 0 allocates most before its first step, at train.py:4: 256.0 MiB; its later steps 2.0 KiB at most"
    ) in answers["catches everything"].notes
    assert not any("before its first step" in note for note in answers["trains"].notes)


def test_one_that_never_ends_is_stopped(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["never ends"]
    assert found.verdict == "not trained"
    assert "as its time was over" in found.headline
    assert found.took_s < 60.0


def test_megabytes_of_output_are_told_in_a_few_lines(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["prints megabytes"]
    assert found.verdict == "fits"
    assert found.printed[-1] == "step 0"
    assert max(map(len, str(found).splitlines())) <= 80


def test_a_script_writes_its_files_and_nobody_else_does(
    answers: Mapping[str, trimaran.Rehearsal], folder: Path
) -> None:
    assert answers["writes"].verdict == "fits"
    written = {path.name for path in (folder / "writes").iterdir() if path.name != "__pycache__"}
    assert written == {"train.py", "its_helper.py", "logs"}  # a folder that stays empty is removed
    assert (folder / "writes" / "logs" / "own.txt").read_text() == "mine"


def test_a_rank_that_fails_alone_is_named(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    found = answers["one rank fails"]
    assert (found.verdict, [one.status for one in found.ranks]) == ("failed", [0, 1])
    assert "rank 1 fails at train.py" in found.headline
    assert "KeyError: 'x'" in found.headline


def test_lack_of_memory_is_told_with_rank_and_line(answers: Mapping[str, trimaran.Rehearsal]) -> None:
    """Six layers of 256 MiB and a context of 0.5 GiB in 2 GiB: no room for the sixth, or for a gradient."""
    found = answers["is too large"]
    assert found.verdict == "out of memory"
    assert found.headline.startswith("train.py runs out of memory on 1 × NVIDIA H100")
    assert found.troubles[0].sides[0].rank == 0
    assert "train.py:" in found.headline


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_answer_is_plain_data_and_fits_a_terminal(answers: Mapping[str, trimaran.Rehearsal], name: str) -> None:
    found = answers[name]
    document = json.loads(json.dumps(to_plain(found)))
    assert document["verdict"] == found.verdict
    assert document["ranks"][0]["rank"] == 0
    page = str(found).splitlines()
    assert max(map(len, page)) <= 80
    assert " ".join(page).replace("- ", "-").startswith(found.headline[:20])
    assert any(line.startswith("Next: ") for line in page)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused before a process is started


@pytest.mark.parametrize(
    ("script", "options", "code"),
    [
        ("none.py", {}, "rehearse.no-script"),
        (".", {}, "rehearse.folder"),
        ("wrong.py", {}, "rehearse.syntax"),
        ("torchrun", {}, "rehearse.launcher"),
        ("no_such_module.train", {"is_module": True}, "rehearse.no-module"),
        ("not a module", {"is_module": True}, "rehearse.bad-module"),
        ("good.py", {"world": 64, "cluster": "dgx-h100:4"}, "rehearse.more-ranks-than-devices"),
        ("good.py", {"per_node": 9}, "rehearse.more-than-node"),
        ("good.py", {"world": 0}, "rehearse.bad-world"),
        ("good.py", {"cluster": "dgx-z9"}, "machine.unknown"),
        ("good.py", {"cluster": "mi300x"}, "rehearse.not-nvidia"),
        ("good.py", {"ranks": "8"}, "rehearse.no-such-rank"),
        ("good.py", {"ranks": "first"}, "rehearse.bad-ranks"),
        ("good.py", {"memory": "200GiB"}, "device.budget-exceeds-memory"),
        ("good.py", {"memory": "much"}, "quantity.malformed"),
        ("good.py", {"limit": "soon"}, "quantity.malformed"),
        ("good.py", {"limit": 0.0}, "rehearse.no-time"),
        ("good.py", {"steps": 0}, "rehearse.no-time"),
        ("good.py", {"hints": {"los": 2.0}}, "rehearse.unknown-hint"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_wrong_input_is_refused_before_anything_runs(
    script: str, options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "run_ranks", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text("print()")
    (tmp_path / "wrong.py").write_text("import torch\ndef f(:\n")
    with raises(code):
        trimaran.rehearse(script, **{"world": 8, "cluster": "dgx-h100", **options})


def test_wrong_syntax_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import torch\ndef f(:\n")
    with raises("rehearse.syntax", match="line 2"):
        trimaran.rehearse(tmp_path / "wrong.py", world=8)


# ---------------------------------------------------------------------------------------------------------------------
# The command, and the helper for tests


def command(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    """`trimaran rehearse` as a person runs it."""
    return subprocess.Popen(
        [sys.executable, "-m", "trimaran", "rehearse", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TEST": str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_says_it_in_its_first_line_its_status_and_a_file(tmp_path: Path) -> None:
    exchanges = "loss.backward(); [dist.all_reduce(one.grad) for one in model.parameters()]"
    averaged = TRAINS.replace("loss.backward()", exchanges)
    (tmp_path / "train.py").write_text(textwrap.dedent(averaged.format(steps=2)) + "import sys\nprint(sys.argv[1:])\n")
    options = ("--world", "2", "--cluster", "dgx-h100", "--ranks", "0", "-o", "found.json", "--logs", "logs")
    done = command(*options, "--trace", "trace.json", "--", "train.py", "--lr", "1e-3", folder=tmp_path)
    printed, errors = done.communicate(timeout=240)
    assert (done.returncode, errors) == (0, "")
    assert printed.startswith("train.py fits 2 × NVIDIA H100 SXM5 80 GB: ")
    assert max(map(len, printed.splitlines())) <= 80
    assert json.loads((tmp_path / "found.json").read_text())["script"] == ["train.py", "--lr", "1e-3"]
    assert "['--lr', '1e-3']" in (tmp_path / "logs" / "rank0.log").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "found.json", "logs", "trace.json"}


def test_the_command_runs_modules_and_gives_json(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("raise SystemExit(4)")
    done = command("--world", "1", "--json", "-m", "package.train", "--", "--steps", "9", folder=tmp_path)
    printed, _ = done.communicate(timeout=240)
    found = json.loads(printed)
    assert (done.returncode, found["verdict"]) == (EXIT_CODES["failed"], "failed")
    assert found["script"] == ["-m", "package.train", "--steps", "9"]
    assert found["ranks"][0]["status"] == 4
    assert any("dgx-h100" in note for note in found["notes"])


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)], ids=lambda one: one.name
)
def test_ctrl_c_leaves_nothing(tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "train.py").write_text("import time\nopen('begun', 'w')\ntime.sleep(600)\n")
    done = command("--world", "1", "train.py", folder=tmp_path)
    until = time.monotonic() + 120.0
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    done.send_signal(number)
    done.communicate(timeout=60)
    assert done.returncode == 128 + number
    monkeypatch.setenv("TEST", str(os.getpid()))
    assert list(marked()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "begun"}


def test_the_helper_for_tests_raises_with_the_report(
    answers: Mapping[str, trimaran.Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trimaran.features.rehearse import ask

    for name, found in answers.items():
        monkeypatch.setattr(ask, "rehearse", lambda *_, found=found, **__: found)
        if found.verdict == "fits":
            assert trimaran.assert_fits("train.py", world=1) is found
        else:
            with pytest.raises(AssertionError) as told:
                trimaran.assert_fits("train.py", world=1)
            assert str(told.value).startswith(name and str(found).splitlines()[0])


def test_the_helper_for_tests_asks_what_it_is_asked(tmp_path: Path) -> None:
    """Options are the same as those of `rehearse`, with one more."""
    import inspect

    ours = inspect.signature(trimaran.assert_fits).parameters.keys()
    assert ours - inspect.signature(trimaran.rehearse).parameters.keys() == {"allow_unsure"}
    with raises("rehearse.no-script"):
        trimaran.assert_fits(tmp_path / "none.py", world=8, memory="80GiB")
