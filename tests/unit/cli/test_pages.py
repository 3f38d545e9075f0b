"""What each command prints in a terminal of 80 columns: a verdict, tables with legends, the next command.

All in one process, on target clusters or of nothing that has to be measured; what trains or measures on this machine is
in a sweep.
"""

import contextlib
import fcntl
import functools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import rich.table
from tests.tables import assert_whole
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.cli.forms import STUDIES
from trimaran.cli.help import GROUPS
from trimaran.report.page.terminal import SCREEN
from trimaran.report.tables import frame_table

_LENET = "lenet --cluster dgx1-v100 --devices 2 --batch 4096"

QUICK = (
    f"plan {_LENET}",
    "plan llama2:7b --cluster dgx-h100 --devices 16 --batch 64",
    "plan llama3:8b --cluster dgx-h100:16 --tokens 1T",
    "plan resnet50 --cluster dgx1-v100 --objective time --curve resnet50 --batches 512,1024 --dp 8",
    f"explain {_LENET} --what-if link=x2 --why-not pp",
    "explain llama2:7b --cluster dgx-h100:2 --batch 64 --why-not fsdp",
    f"simulate {_LENET}",
    "check lenet",
    "memory lenet --device titan-x --batch 64 --no-largest-batch --chart --storages",
    "scale lenet --cluster dgx1-v100 --devices 1,8 --sync kvstore,nccl",
    "scale lenet --cluster dgx1-v100 --devices 8 --local-batch 1048576",
    "plan llama2:7b --cluster dgx-h100 --strategies tp8 --batch 8",
    "crossover lenet --cluster dgx1-v100 --devices 8 --widths 2",
    "catalog machines",
    "catalog machines --devices",
    "catalog machines dgx1-v100:4@ethernet-25g",
    "catalog jobs",
    "catalog curve --list",
    "catalog curve retinanet --at 2048,8192",
    "doctor",
    "reproduce specification --rows A8,C1",
)
SWEEP = (
    "plan inception-v3 --cluster dgx1-v100:4 --objective time --curve inception-v3-hybrid --batches 512,1024",
    "train digits --epochs 1 --devices 1",
    "train --emulate lenet --devices 2 --steps 3 --link 1Gb/s",
    "observe digits --devices 1",
    "observe digits --stalls --steps 3 --devices 1",
    "doctor --measure --devices 1 --repeats 2",
    "crossover --measure digits --batches 32,64 --max-epochs 1 --repeats 1 --target 0.3",
    "reproduce vdnn --networks alexnet",
)

OWN_TESTS = {
    "export": "the file itself, or a line where it is",
    "rehearse": "tests/unit/rehearsal/test_page.py",
    "verify": "tests/rehearsal/test_verify.py",
    "observe": "tests/commands/test_observe.py",
    "report": "a file of HTML",
}
"""Commands that no line above runs, with where their pages are looked at, or why they have none."""

NO_NEXT = {
    "reproduce specification": "what a study finds is not followed by a command",
}

PUBLISHED = (
    "validate --family mp_step_time --rows",
    "planbench",
)
"""Studies of published rows, here of the plans of one job."""

OBVIOUS = frozenset(
    """strategy step time share size rank name job family description remedy change batch devices policy phase class
    source predicted measured error figure bound verdict id what part operations device memory model rows fits gpus
    samples/s cores year links sizes batches runs epochs peak worker row network machine""".split()  # noqa: SIM905  # a list of words
) | {"what it is", "part of the step", "why", "limited by", "where the time goes"}
"""Headings that explain themselves."""


@functools.cache
def looked_at(command: str) -> tuple[str, list[rich.table.Table]]:
    """The page of a command, and the tables on it; a command of a target cluster says the same each time."""
    found: list[rich.table.Table] = []
    framed = type(frame_table())
    render = framed.__rich_console__

    def remembered(table: rich.table.Table, *rest: object) -> Iterator[object]:
        found.append(table)
        yield from render(table, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(framed, "__rich_console__", remembered)
        done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout, found


def printed(command: str) -> str:
    return looked_at(command)[0]


def unexplained(page: str, tables: list[rich.table.Table]) -> list[str]:
    """Headings of tables that neither explain themselves nor are explained below."""
    missing, page = [], " ".join(page.split())
    for table in tables:
        titles = [str(column.header) for column in table.columns]
        for title in titles:
            word = title.strip().lower()
            if not word or word in OBVIOUS or re.match(r"[a-z]+\d|one device|\d", word):
                continue
            if not re.search(rf"(^|[\s]){re.escape(title)}(, [^;:]+)*:", page, re.IGNORECASE):
                missing.append(title)
    return missing


def check(command: str, page: str, tables: list[rich.table.Table]) -> None:
    lines = page.splitlines()
    # What cannot be folded, such as an address on the web, stays whole.
    wide = [line for line in lines if len(line.rstrip()) > 80 and " " in line.strip()]
    assert not wide, wide
    assert not re.search("[\ue000-\uf8ff]", page)
    verdict = page.partition("\n\n")[0]
    assert re.match(r"[\w\[].*\s\S+", lines[0]), lines[0]
    assert verdict.count("──") == 0, "a table stands before the verdict"
    assert not unexplained(page, tables)
    if not command.startswith(tuple(NO_NEXT)):
        last = page.rpartition("\nNext")[2]
        assert re.match(r"(, [^:]*)?: (trimaran|python -m trimaran_studies) \w+", last), lines[-3:]
        assert last.count("\n") <= 5, "something stands after the next command"


@pytest.mark.parametrize("command", QUICK)
def test_a_page_has_a_verdict_legends_and_a_next_command_at_80_columns(command: str) -> None:
    page, tables = looked_at(command)
    check(command, page, tables)
    assert not command.startswith("crossover") or len(page.splitlines()) <= SCREEN


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_table_of_a_command_elides_a_word(command: str, width: int) -> None:
    for table in looked_at(command)[1]:
        assert_whole(table, width)


@pytest.mark.parametrize("command", PUBLISHED)
def test_a_study_of_published_rows_has_them_too(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (resources.files("trimaran_studies.published") / "rows.csv").open(encoding="utf-8") as file:
        head, *rows = file.read().splitlines()
    kept = [row for row in rows if re.match(r"[^,]*,mp_step_time,[^,]*,VIA-Research/vTrain,", row)][:3]
    assert kept
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("\n".join((head, *kept)) + "\n", encoding="utf-8")
    check(command, *looked_at(f"{command} --data rows.csv"))


@pytest.mark.sweep
@pytest.mark.parametrize("command", SWEEP)
def test_a_page_that_takes_measurements_has_them_too(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(command, *looked_at(command))


def test_every_command_is_looked_at() -> None:
    known = {name for group in GROUPS.values() for name in group}
    asked = {command.split()[0] for command in (*QUICK, *SWEEP, *PUBLISHED)}
    assert known == asked - {"simulate", *STUDIES} | set(OWN_TESTS)


@pytest.mark.parametrize("command", [QUICK[0], QUICK[1], QUICK[4], "catalog curve retinanet", "catalog jobs"])
def test_quiet_prints_the_verdict_and_verbose_no_less_than_usual(command: str) -> None:
    page, quiet, verbose = (printed(f"{command}{more}") for more in ("", " --quiet", " --verbose"))
    assert quiet.rstrip() == page.partition("\n\n")[0].rstrip()
    assert len(quiet.splitlines()) <= 7
    assert len(verbose.splitlines()) >= len(page.splitlines())
    assert "--verbose" not in verbose


def test_verbose_lists_what_a_plan_counts() -> None:
    usual, verbose = printed(QUICK[1]), printed(f"{QUICK[1]} --verbose")
    more = int(re.findall(r"and (\d+) more: --verbose", usual)[0])
    assert more > 1
    assert len(verbose.splitlines()) > len(usual.splitlines()) + more - 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan nosuchjob", "nosuchjob"),
        ("plan lenet --cluster nosuch", "nosuch"),
        ("plan lenet --cluster dgx1-v100 --devices 0", "0"),
        ("plan lenet --cluster dgx1-v100 --batch 7 --dp 2", "7"),
        ("plan lenet --cluster dgx1-v100 --memory 12QB", "12QB"),
        ("plan lenet --cluster dgx1-v100 --precision bf17", "bf17"),
        ("explain lenet --cluster dgx1-v100 --what-if nonsense", "nonsense"),
        ("explain lenet --cluster dgx1-v100 --why-not nonsense", "nonsense"),
        ("memory lenet --device nosuch", "nosuch"),
        ("memory lenet --device titan-x --budget lots", "lots"),
        ("scale lenet --cluster dgx1-v100 --devices many", "many"),
        ("scale lenet --cluster dgx1-v100 --sync pigeon", "pigeon"),
        ("plan llama2:7b --cluster dgx-h100 --strategies up8", "up8"),
        ("plan lenet --cluster dgx-h100 --strategies tp8", "lenet"),
        ("crossover lenet --cluster dgx1-v100 --curve nosuch", "nosuch"),
        ("catalog curve nosuch", "nosuch"),
        ("export lenet --to accelerate", "trimaran plan"),
        ("observe", "trimaran observe --"),
        ("observe nosuch.py", "nosuch.py"),
        ("rehearse", "trimaran rehearse"),
        ("verify", "trimaran verify"),
        ("plan nosuch.json", "nosuch.json"),
        ("catalog checkpoint nosuch", "nosuch"),
        ("train --emulate lenet", "--devices"),
    ],
)
def test_nonsense_is_answered_by_what_is_wrong_and_what_to_do(command: str, said: str) -> None:
    found = CliRunner().invoke(app, command.split(), env={"COLUMNS": "80"})
    assert found.exit_code in (2, 3), found.output
    assert found.stderr.startswith("trimaran: ")
    assert said in found.stderr
    assert "Traceback" not in found.stderr
    assert "did not expect" not in found.stderr


def test_a_price_that_may_not_fit_is_said_in_a_sentence() -> None:
    """77 GiB by what is usual, more than a device has by the most that the software may take."""
    words = ["price", "llama3:8b", "--cluster", "dgx-h100:1", "--batch", "64", "--strategy", "dp8 zero2 m8"]
    words += ["--gradients", "fp32", "--optimizer-state", "fp32"]
    shown = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "; it may not fit: 76.9 GiB (74.6 GiB to 79.3 GiB) of 79.1 GiB " in shown


SCREENS = ("catalog jobs", "catalog machines dgx-1", "plan --help", "catalog curve resnet50")


def letters(page: str) -> list[str]:
    """A page without what its width decides: where lines and rules end."""
    return sorted(re.sub(r"[─\s]", "", page))


def on_screen(command: str, columns: str, lines: str = "24") -> str:
    found = CliRunner().invoke(app, command.split(), env={"COLUMNS": columns, "LINES": lines})
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize(
    ("columns", "taken"),
    [(said, 80) for said in ("", "0", "-5", "abc", "²", "1e3")] + [("1", 40), ("39", 40), ("9" * 30, 1000)],
)
@pytest.mark.parametrize("command", SCREENS)
def test_a_page_is_whole_on_a_screen_of_whatever_size(command: str, columns: str, taken: int) -> None:
    """Variables that are no figure count as none; a screen of fewer than 40 columns as one of 40."""
    assert on_screen(command, columns, columns) == on_screen(command, str(taken))


def test_a_narrow_page_says_what_a_wide_one_says() -> None:
    narrow, usual, wide = (letters(on_screen("catalog jobs", width)) for width in ("0", "1", "200"))
    assert narrow == usual == wide


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (24, 0)])
def test_a_page_is_whole_in_a_terminal_that_tells_no_size(size: tuple[int, int]) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    words = [sys.executable, "-m", "trimaran", "catalog", "machines", "dgx-1"]
    with subprocess.Popen(words, stdout=theirs, env=variables | {"NO_COLOR": "1", "TERM": "xterm"}) as process:
        os.close(theirs)
        page = b""
        # The end of a terminal is EIO.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                page += part
    os.close(ours)
    assert process.returncode == 0
    plain = re.sub("\x1b\\[[0-9;]*m", "", page.decode())
    assert letters(plain) == letters(on_screen("catalog machines dgx-1", "80"))
