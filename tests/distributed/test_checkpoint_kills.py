"""Processes that save and are killed, and a disk that is really full."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.distributed import saving
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.checkpoint_files.commit import BLANK, MARKER, Fault, Store
from trimaran.checkpoint_files.container import TensorStream


def killed(folder: Path, ranks: int, first: int, draw: random.Random, *, all_at_once: bool) -> int | None:
    """Let ranks save, kill one or all of them at a random moment; the last step whose commit returned."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.saving", str(folder), *map(str, (rank, ranks, first))],
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        output = processes[0].stdout
        assert output is not None
        lines = [output.readline()]  # they are at work
        assert lines[0].startswith("committed")
        time.sleep(draw.random() * 0.3)
        for process in processes if all_at_once else [draw.choice(processes)]:
            process.send_signal(signal.SIGKILL)
        # Those that are left wait for the others: a launcher ends them.
        time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    lines += output.read().splitlines()
    for process in processes:
        process.wait(timeout=60)
    output.close()
    committed = [int(line.split()[1]) for line in lines if line.startswith("committed ") and line.split()[1:]]
    return committed[-1] if committed else None


@pytest.mark.distributed
@pytest.mark.timeout(280)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_are_killed_leave_a_whole_checkpoint(tmp_path: Path, ranks: int) -> None:
    folder, draw = tmp_path / "checkpoints", random.Random(ranks)
    acknowledged, blank = 0, set[str]()
    for number in range(6):
        committed = killed(folder, ranks, 1 + 1000 * number, draw, all_at_once=number % 2 == 0)
        acknowledged = committed or acknowledged
        named: dict[str, Sequence[Fault]] = {}
        found = Store(folder).open_newest(named.__setitem__)
        # The kill may have come when there was room for the marker, and before it was written: one at most, which
        # stays until two newer ones are whole.
        assert list(named.values()) in ([], [[Fault(MARKER, BLANK)]])
        blank |= set(named)
        # The kill may have come between the commit and the line that says so.
        assert found.step in (acknowledged, acknowledged + 1)
        assert found.document("state.json") == {"step": found.step}
        for rank in range(ranks):
            assert found.path_of(f"rank{rank}.safetensors").read_bytes() == saving.content(found.step, rank)
    store = Store(folder)
    store.begin(9999).abandon()
    store.prune()
    left, whole = {path.name for path in folder.iterdir()}, {found.name for found in store.committed()}
    assert left - whole <= blank, "what the kills left was not removed"
    assert len(whole) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no command mount")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user cannot mount a file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def save(folder: Path, step: int, size: int) -> None:
    """A checkpoint with a tensor of a size."""
    store = Store(folder)
    draft, stream = store.begin(step), TensorStream({"weight": torch.full((size,), step % 256, dtype=torch.uint8)})
    try:
        entry = draft.write("rank0.safetensors", stream, size=stream.size)
    except BaseException:
        draft.abandon()
        raise
    draft.commit([entry], {"state.json": {"step": step}})
    store.prune()


@pytest.mark.distributed
def test_a_full_disk_keeps_what_was_saved(small_disk: Path) -> None:
    folder, size = small_disk / "checkpoints", 5 * 2**20
    for step in (1, 2, 3):
        save(folder, step, size)
    with raises("checkpoint.no-space", EnvironmentProblem) as caught:
        save(folder, 4, 20 * 2**20)
    needed, free = caught.value.figures["needed"], caught.value.figures["free"]
    assert isinstance(needed, int)
    assert isinstance(free, int)
    assert needed > 20 * 2**20 > free
    store = Store(folder)
    assert [found.step for found in store.committed()] == [3, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    with raises("checkpoint.no-space", EnvironmentProblem):
        store.check_space(20 * 2**20)
    save(folder, 5, size)
    assert store.open_newest().step == 5


@pytest.mark.distributed
def test_a_disk_that_fills_while_it_is_written_keeps_what_was_saved(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the room after it was asked for, at each of many moments."""
    folder, size = small_disk / "checkpoints", 4 * 2**20
    save(folder, 1, size)
    save(folder, 2, size)
    monkeypatch.setattr("trimaran.checkpoint_files.disk.LocalDisk.free_bytes", lambda self, path: 2**40)
    monkeypatch.setattr("trimaran.checkpoint_files.commit._PIECE_BYTES", 2**17)
    ballast = small_disk / "ballast"
    failed = 0
    for blocks in range(0, 24 * 256, 97):
        ballast.write_bytes(b"")
        try:
            ballast.write_bytes(bytes(4096 * blocks))
        except OSError:
            ballast.unlink()
            break
        try:
            save(folder, 3, size)
        except EnvironmentProblem as error:
            problem: EnvironmentProblem | None = error
        else:
            problem = None
        found = Store(folder).open_newest(lambda name, faults: pytest.fail(f"{name}: {faults}"))
        if problem is None:
            assert found.step == 3
            shutil.rmtree(found.path)
            if not (folder / "step-00000001").exists():
                ballast.unlink()
                shutil.rmtree(folder)
                for step in (1, 2):
                    save(folder, step, size)
        else:
            assert problem.code == "checkpoint.no-space"
            assert found.step == 2
            assert len(list(folder.iterdir())) == 2, "what could not be written is still there"
            failed += 1
    assert failed > 10


@pytest.mark.distributed
def test_a_folder_that_no_one_can_write_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with raises("checkpoint.unwritable", EnvironmentProblem):
        Store(tmp_path / "file" / "checkpoints").begin(1)
    with raises("checkpoint.unwritable", EnvironmentProblem):
        Store(tmp_path / "file").begin(1)
