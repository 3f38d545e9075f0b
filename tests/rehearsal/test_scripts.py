"""Scripts as users write them, rehearsed as they are: they end well, and what they log appears."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from trimaran.rehearsal.launch import EndedRank, run_ranks
from trimaran.rehearsal.memory import read_memory
from trimaran.rehearsal.request import Gpu, RankRequest

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

SCRIPTS = Path(__file__).parent / "scripts"
H100 = Gpu("NVIDIA H100 80GB HBM3", "h100-sxm", 80 * 2**30, (9, 0), 132)


class Case(msgspec.Struct, forbid_unknown_fields=True):
    lines: list[str]
    script: str = ""
    arguments: list[str] = []
    ranks: tuple[int, ...] = (0,)
    world: int = 8
    by_world: dict[str, list[int]] = {}
    long: bool = False


CASES = msgspec.convert(tomllib.loads((SCRIPTS / "corpus.toml").read_text()), dict[str, Case])
IN_DEFAULT_SUITE = ("ddp_gpt_amp", "tp_sp_fsdp2")


def rehearsed(name: str, case: Case, world: int, folder: Path) -> list[EndedRank]:
    ranks = case.by_world.get(str(world), case.ranks)
    requests = [
        RankRequest(
            script=str(SCRIPTS / f"{case.script or name}.py"),
            arguments=tuple(case.arguments),
            rank=rank,
            world=world,
            per_node=8,
            gpu=H100,
            together=tuple(ranks),
            meeting=str(folder),
            record=str(folder / f"{rank}.record"),
            output=str(folder / f"{rank}.txt"),
            most_steps=1000,
            most_seconds=280.0,
        )
        for rank in ranks
    ]
    return run_ranks(requests, folder=folder)


def check(runs: Sequence[EndedRank], lines: Sequence[str]) -> None:
    for run in runs:
        assert run.status == 0, run.printed[-4000:]
        assert run.record.end.how in ("finished", "exit"), run.record.end
        assert read_memory(run.record).short is None
        assert run.record.collectives
    printed = "\n".join(Path(run.request.output).read_text(errors="replace") for run in runs)
    for line in lines:
        assert re.search(line, printed, re.MULTILINE), f"no line like {line!r} in:\n{printed[-4000:]}"


def test_the_table_names_every_script() -> None:
    named = {case.script or name for name, case in CASES.items()}
    there = {path.stem for path in SCRIPTS.glob("*.py")}
    assert named | {"deepspeed_zero"} == there  # which no environment of the tests has


@pytest.mark.parametrize("name", IN_DEFAULT_SUITE)
def test_a_script_runs_as_it_is(name: str, tmp_path: Path) -> None:
    check(rehearsed(name, CASES[name], 8, tmp_path), CASES[name].lines)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in CASES if name not in IN_DEFAULT_SUITE])
def test_the_other_scripts_run(name: str, tmp_path: Path) -> None:
    check(rehearsed(name, CASES[name], 8, tmp_path), CASES[name].lines)


def test_processes_that_load_run_where_the_path_of_temporary_files_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sockets lie there, and a socket's address has 107 characters at most."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    check(rehearsed("ddp_gpt_amp", CASES["ddp_gpt_amp"], 8, folder), CASES["ddp_gpt_amp"].lines)
    assert not list(folder.glob("trimaran-ranks-*"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", IN_DEFAULT_SUITE)
def test_a_script_runs_at_1024(name: str, tmp_path: Path) -> None:
    check(rehearsed(name, CASES[name], 1024, tmp_path), CASES[name].lines)


@pytest.mark.sweep
def test_nothing_is_written_where_a_script_saves(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    kept.write_bytes(b"what was there before")
    case = msgspec.structs.replace(
        CASES["ddp_gpt_amp"], arguments=[*CASES["ddp_gpt_amp"].arguments, "--save", str(kept)]
    )
    check(rehearsed("ddp_gpt_amp", case, 8, tmp_path), [*case.lines, "saved"])
    assert kept.read_bytes() == b"what was there before"


@pytest.mark.sweep
@pytest.mark.alone
def test_growth_with_the_number_of_ranks_is_flat(tmp_path: Path) -> None:
    seconds = {}
    for world in (8, 1024):
        folder = tmp_path / str(world)
        folder.mkdir()
        (run,) = rehearsed("fsdp2_llama", CASES["fsdp2_llama"], world, folder)
        seconds[world] = run.record.host_s
        assert run.record.host_bytes < 0.6 * 2**30
    assert seconds[1024] < 1.5 * seconds[8] + 2.0, seconds


@pytest.mark.sweep
@pytest.mark.flaky(reruns=2, only_rerun="returncode")  # on a busy machine, gloo's threads abort now and then at the end
@pytest.mark.parametrize("name", ["ddp_digits", "plain_single"])
def test_scripts_that_choose_their_device_run_for_real(name: str, tmp_path: Path) -> None:
    """On two processes with gloo: the scripts are right by themselves, not only when rehearsed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    script = SCRIPTS / f"{name}.py"
    done = subprocess.run(
        [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for line in CASES[name].lines:
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout
