"""Each file of a checkpoint damaged in turn: it is found and named, and the checkpoint before is taken."""

import errno
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from tests.failing_reads import failing
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.checkpoint_files import commit as store_module
from trimaran.checkpoint_files.commit import FORMAT, MANIFEST, MARKER, Fault, Store
from trimaran.checkpoint_files.container import TensorFile, TensorStream
from trimaran.checkpoint_files.disk import LocalDisk
from trimaran.runtime.checkpoint.saving import find_saved, locate
from trimaran.runtime.checkpoint.weights import is_checkpoint
from trimaran.runtime.communication.channels import ALONE

RANKS = 2
SHARDS = [f"rank{rank}.safetensors" for rank in range(RANKS)]
FILES = [*SHARDS, "state.json", MANIFEST, MARKER, FORMAT]


def tensors(step: int, rank: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * step + rank)
    return {"weight": torch.randn(30, 20, generator=draw), "step": torch.tensor(step)}


def save(folder: Path, step: int) -> Path:
    """A checkpoint of two ranks."""
    store = Store(folder)
    drafts = [store.begin(step, ranks=RANKS)]
    drafts += [Store(folder).join(drafts[0].name) for _ in range(1, RANKS)]
    entries = []
    for rank, draft in enumerate(drafts):
        stream = TensorStream(tensors(step, rank))
        entries.append(draft.write(SHARDS[rank], stream, size=stream.size))
    return drafts[0].commit(entries, {"state.json": {"step": step}}, {"tensors": ["weight", "step"]}).path


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The newer one of two checkpoints, of the steps 100 and 200."""
    save(tmp_path / "checkpoints", 100)
    return save(tmp_path / "checkpoints", 200)


def found_damage(newest: Path) -> tuple[Fault, ...]:
    """What is wrong with the newest, after it was seen that the one before is taken, whole."""
    named: dict[str, tuple[Fault, ...]] = {}
    taken = Store(newest.parent).open_newest(lambda name, faults: named.update({name: tuple(faults)}))
    assert taken.step == 100
    assert taken.document("state.json") == {"step": 100}
    for rank, shard in enumerate(SHARDS):
        with TensorFile(taken.path_of(shard)) as file:
            assert all(torch.equal(file.tensor(name), tensor) for name, tensor in tensors(100, rank).items())
    assert named.keys() == {newest.name}
    return named[newest.name]


def named_file(newest: Path) -> str:
    """The only file that is named."""
    (fault,) = found_damage(newest)
    assert fault.what
    return fault.file


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_without_damage_the_newest_is_taken(newest: Path) -> None:
    store = Store(newest.parent)
    found = store.open_newest(lambda name, faults: pytest.fail(f"{name}: {faults}"))
    assert (found.step, found.ranks, found.name) == (200, RANKS, newest.name)
    assert found.contents == {"tensors": ["weight", "step"]}
    assert sorted(found.files) == sorted([*SHARDS, "state.json"])
    assert sorted(path.name for path in newest.iterdir()) == sorted(FILES)
    assert store.verify(found, from_disk=True) == []


def test_200_random_flipped_bits_are_found_and_named(newest: Path) -> None:
    draw = random.Random(200)
    sizes = {name: (newest / name).stat().st_size for name in FILES}
    for number in range(200):
        # Each file is drawn as often; a draw by size would hardly ever reach the small ones.
        name = FILES[number % len(FILES)]
        bit = draw.randrange(8 * sizes[name])
        flip(newest / name, bit)
        assert named_file(newest) == name, f"bit {bit} of {name}"
        flip(newest / name, bit)
    assert Store(newest.parent).open_newest().step == 200


def test_each_flipped_bit_of_the_marker_is_found_and_named(newest: Path) -> None:
    store = Store(newest.parent)
    for bit in range(8 * (newest / MARKER).stat().st_size):
        flip(newest / MARKER, bit)
        with pytest.raises(CorruptDataError) as caught:
            store.open(newest.name)
        assert caught.value.figures["file"] == MARKER
        flip(newest / MARKER, bit)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_or_too_long_is_named(newest: Path, name: str) -> None:
    content = (newest / name).read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        (newest / name).write_bytes(content[:cut])
        assert named_file(newest) == name
    (newest / name).write_bytes(content + b"\n")
    assert named_file(newest) == name


@pytest.mark.parametrize("name", [name for name in FILES if name != MARKER])
def test_a_file_that_is_missing_is_named(newest: Path, name: str) -> None:
    (newest / name).unlink()
    (fault,) = found_damage(newest)
    assert fault == Fault(name, "it is missing")


def test_without_its_marker_a_checkpoint_is_not_committed(newest: Path) -> None:
    """As every save looks before it ends: nothing is wrong."""
    (newest / MARKER).unlink()
    found = Store(newest.parent).open_newest(lambda name, faults: pytest.fail(f"{name}: {faults}"))
    assert found.step == 100
    with raises("checkpoint.damaged", CorruptDataError, file=MARKER):
        Store(newest.parent).open(newest.name)


def test_exchanged_shards_are_named(newest: Path) -> None:
    first, second = (newest / shard for shard in SHARDS)
    first.rename(newest.parent / "aside")
    second.rename(first)
    (newest.parent / "aside").rename(second)
    assert {fault.file for fault in found_damage(newest)} == set(SHARDS)


@pytest.mark.parametrize("name", [*SHARDS, "state.json", MANIFEST])
def test_a_file_of_another_checkpoint_is_named(newest: Path, name: str) -> None:
    shutil.copyfile(newest.parent / "step-00000100" / name, newest / name)
    assert named_file(newest) == name


def test_manifest_and_marker_of_another_checkpoint_are_named(newest: Path) -> None:
    for name in (MANIFEST, MARKER):
        shutil.copyfile(newest.parent / "step-00000100" / name, newest / name)
    (fault,) = found_damage(newest)
    assert fault == Fault(MANIFEST, "it is that of step 100")


@pytest.mark.parametrize(
    "put",
    [Path.mkdir, lambda path: path.write_bytes(b""), lambda path: path.symlink_to(SHARDS[0]), os.mkfifo],
    ids=["directory", "file", "link", "pipe"],
)
def test_what_is_there_besides_is_named(newest: Path, put: Callable[[Path], None]) -> None:
    put(newest / "rank2.safetensors")
    (fault,) = found_damage(newest)
    assert fault == Fault("rank2.safetensors", "it is not in the manifest")


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_not_followed(newest: Path, name: str) -> None:
    (newest / name).rename(newest.parent / "elsewhere")
    (newest / name).symlink_to(newest.parent / "elsewhere")
    assert named_file(newest) == name


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_blocks_nobody(newest: Path, name: str) -> None:
    (newest / name).unlink()
    os.mkfifo(newest / name)
    assert named_file(newest) == name


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "dangling"])
def test_a_link_in_place_of_a_checkpoint_is_read_and_never_removed(newest: Path, tmp_path: Path, whole: bool) -> None:
    """As one that was moved to another disk. Where it leads nowhere it is named, and the one before is taken."""
    elsewhere = tmp_path / "elsewhere"
    newest.rename(elsewhere)
    newest.symlink_to(elsewhere if whole else tmp_path / "nowhere")
    if not whole:
        (fault,) = found_damage(newest)
        assert fault == Fault(".", "it cannot be read: No such file or directory")
    store = Store(newest.parent)
    if whole:
        assert store.open_newest(lambda name, faults: pytest.fail(f"{name}: {faults}")).step == 200
        assert store.verify(store.open(newest.name), from_disk=True) == []
        where, name = locate(newest)
        assert (where.folder, name, find_saved_step(newest)) == (newest.parent, newest.name, 200)
    for step in (300, 400, 500):
        save(newest.parent, step)
        store.prune()
    assert newest.is_symlink()
    assert elsewhere.is_dir()
    assert store.open_newest().step == 500


def find_saved_step(path: Path) -> int:
    store, name = locate(path)
    return store.open(name or "").step


LOOKS = ("list", "open", "hold")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ELOOP])
@pytest.mark.parametrize("look", LOOKS)
def test_a_checkpoint_that_cannot_be_read_is_named_and_the_one_before_taken(
    newest: Path, monkeypatch: pytest.MonkeyPatch, number: int, look: str
) -> None:
    """It counted as none, or nothing could be read; a run with such a one is not whole."""
    real = getattr(LocalDisk, look)

    def fails(disk: LocalDisk, path: Path, **options: bool) -> object:
        if newest in (path, path.parent):
            raise OSError(number, os.strerror(number), str(path))
        return real(disk, path, **options)

    monkeypatch.setattr(LocalDisk, look, fails)
    faults = found_damage(newest)
    assert all(fault.what == f"it cannot be read: {os.strerror(number)}" for fault in faults)
    if look != "hold":
        assert [*map(bool, Store(newest.parent).verify_all().values())] == [True, False]
    # One that may be read again later is older than what is saved now.
    later = save(newest.parent, 150)
    monkeypatch.setattr(LocalDisk, look, real)
    assert Store(newest.parent).open_newest().path == later


def test_a_folder_that_cannot_be_looked_at_is_no_folder_without_checkpoints(
    newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = newest.parent.parent
    for path in (run, run / "checkpoints"):
        with failing(run, errno.EACCES), pytest.raises(EnvironmentProblem):
            is_checkpoint(path)
    loop = run / "loop"
    loop.symlink_to(loop)
    for path in (loop, run / "dangling"):
        if path != loop:
            path.symlink_to(run / "nothing")
        with pytest.raises(EnvironmentProblem):
            find_saved(path, ALONE, missing_ok=True)


def test_the_block_that_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 1000)
    save(tmp_path / "checkpoints", 100)
    newest = save(tmp_path / "checkpoints", 200)
    flip(newest / SHARDS[1], 8 * 1234)
    (fault,) = found_damage(newest)
    assert str(fault) == "rank1.safetensors: bytes 1000 to 1999 are not those that were written"
    flip(newest / SHARDS[1], 0)
    (fault,) = found_damage(newest)
    assert str(fault) == "rank1.safetensors: bytes 0 to 999 are not those that were written (and 1 more places)"


def test_where_all_are_damaged_each_is_named(newest: Path) -> None:
    flip(newest / "state.json", 5)
    (newest.parent / "step-00000100" / SHARDS[0]).unlink()
    with raises("checkpoint.all-damaged", CorruptDataError) as caught:
        Store(newest.parent).open_newest()
    assert caught.value.figures["damaged"] == {
        "step-00000200": ["state.json: bytes 0 to 12 are not those that were written"],
        "step-00000100": ["rank0.safetensors: it is missing"],
    }


def test_a_document_that_was_damaged_since_it_was_verified_is_refused(newest: Path) -> None:
    found = Store(newest.parent).open_newest()
    flip(newest / "state.json", 5)
    with raises("checkpoint.damaged", CorruptDataError, file="state.json"):
        found.document("state.json")


def test_a_read_error_is_damage_too(newest: Path) -> None:
    class Failing(LocalDisk):
        def open(self, path: Path):  # type: ignore[no-untyped-def]
            if path == newest / SHARDS[1]:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().open(path)

    named: list[Fault] = []
    found = Store(newest.parent, disk=Failing()).open_newest(lambda name, faults: named.extend(faults))
    assert found.step == 100
    assert named == [Fault(SHARDS[1], "it cannot be read: Input/output error")]


# ---------------------------------------------------------------------------------------------------------------------
# Manifests that somebody wrote on purpose, with a marker that stands for them


def forge(newest: Path, change: Callable[[dict[str, object]], object], text: bytes | None = None) -> None:
    """Write another manifest, and a marker for it."""
    if text is None:
        plain = json.loads((newest / MANIFEST).read_bytes())
        change(plain)
        text = json.dumps(plain).encode()
    (newest / MANIFEST).write_bytes(text)
    digest = store_module.hashlib.sha256(text).hexdigest()
    (newest / MARKER).write_bytes(
        store_module._marker({"format": 1, "manifest_size": len(text), "manifest_sha256": digest})
    )


def renamed(name: str) -> Callable[[dict[str, dict[str, object]]], object]:
    return lambda plain: plain["files"].update({name: plain["files"].pop(SHARDS[0])})


HOSTILE: dict[str, Callable[..., object]] = {
    "a path upwards": renamed("../step-00000100/rank0.safetensors"),
    "an absolute path": renamed("/etc/hostname"),
    "two dots": renamed(".."),
    "control characters": renamed("rank\x1b[2J.safetensors"),
    "the marker as a file": renamed(MARKER),
    "a negative size": lambda plain: plain["files"][SHARDS[0]].update(size=-1),
    "a size that no disk has": lambda plain: plain["files"][SHARDS[0]].update(size=2**61),
    "a size that is no integer": lambda plain: plain["files"][SHARDS[0]].update(size=1.5),
    "an integer of 200 digits": lambda plain: plain.update(serial=10**200),
    "too few checksums": lambda plain: plain["files"][SHARDS[0]].update(crc32=[]),
    "no hexadecimal checksum": lambda plain: plain["files"][SHARDS[0]].update(crc32=["-1"]),
    "other blocks": lambda plain: plain.update(block_bytes=1),
    "an unknown key": lambda plain: plain.update(more=1),
    "a missing key": lambda plain: plain.pop("ranks"),
    "not a number": lambda plain: plain["contents"].update(loss=float("nan")),
    "infinite": lambda plain: plain["contents"].update(loss=float("inf")),
    "too deep": lambda plain: plain["contents"].update(deep=json.loads("[" * 100 + "]" * 100)),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_manifest_is_refused(newest: Path, change: Callable[..., object]) -> None:
    forge(newest, change)
    with raises("checkpoint.damaged", CorruptDataError, file=MANIFEST, path=str(newest / MANIFEST)) as caught:
        Store(newest.parent).open(newest.name)
    assert caught.value.message.isprintable()
    assert named_file(newest) == MANIFEST


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"1" * 100_000,
        b'{"step": 1e999}',
        b'{"a": 1',
    ],
    ids=["empty", "list", "null", "no text", "deep", "deep objects", "long number", "infinite", "cut"],
)
def test_a_manifest_that_is_no_json_object_is_refused(newest: Path, text: bytes) -> None:
    forge(newest, lambda plain: None, text)
    assert named_file(newest) == MANIFEST
    (newest / MARKER).write_bytes(text)
    assert named_file(newest) == MARKER


def test_large_manifests_and_documents_are_not_read(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Store(newest.parent).open_newest()
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "_LARGEST_DOCUMENT", 12)
        with raises("checkpoint.damaged", CorruptDataError, file="state.json"):
            found.document("state.json")
    with (newest / MANIFEST).open("r+b") as file:
        file.truncate(2**40)
    assert named_file(newest) == MANIFEST


def test_a_format_of_the_future_is_named(newest: Path) -> None:
    (newest / MARKER).write_bytes(store_module._marker({"format": 2, "manifest_size": 1, "manifest_sha256": ""}))
    (fault,) = found_damage(newest)
    assert fault == Fault(MARKER, "it has format 2, this version of Trimaran reads 1")


def test_mutated_files_raise_no_other_error(newest: Path) -> None:
    """600 mutations of marker, manifest and document."""
    draw = random.Random(7)
    store = Store(newest.parent)
    for _ in range(600):
        name = draw.choice([MARKER, MANIFEST, "state.json"])
        content = (newest / name).read_bytes()
        (newest / name).write_bytes(mutated(content, draw))
        if (newest / name).read_bytes() != content:
            try:
                found = store.open(newest.name)
            except CorruptDataError:
                pass
            else:
                assert name == "state.json"
                with raises("checkpoint.damaged", CorruptDataError):
                    found.document(name)
        (newest / name).write_bytes(content)


def mutated(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            changed[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            del changed[place : place + draw.randrange(1, 40)]
        elif kind == 2:
            changed[place:place] = changed[draw.randrange(len(changed) + 1) :][:40]
        else:
            changed[place:place] = draw.choice([b"[" * 50, b"{}", b"1e999", b"-", b"\x00", b'"', b"NaN"])
    return bytes(changed)


# ---------------------------------------------------------------------------------------------------------------------
# What others do with one flipped bit


def in_a_large_tensor(path: Path, weight: torch.Tensor) -> int:
    """A bit within the bytes of a tensor in a file."""
    place = path.read_bytes().index(weight.numpy().tobytes())
    return 8 * (place + weight.nbytes // 2) + 6


def loads_dcp(folder: Path, weight: torch.Tensor) -> Iterator[torch.Tensor]:
    dcp.save({"weight": weight}, checkpoint_id=folder, no_dist=True)
    (path,) = folder.glob("*.distcp")
    flip(path, in_a_large_tensor(path, weight))
    found = {"weight": torch.zeros_like(weight)}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    yield found["weight"]


def loads_torch(folder: Path, weight: torch.Tensor) -> Iterator[torch.Tensor]:
    folder.mkdir()
    torch.save({"weight": weight}, folder / "state.pt")
    flip(folder / "state.pt", in_a_large_tensor(folder / "state.pt", weight))
    yield torch.load(folder / "state.pt", weights_only=True)["weight"]


def loads_safetensors(folder: Path, weight: torch.Tensor) -> Iterator[torch.Tensor]:
    folder.mkdir()
    save_file({"weight": weight}, folder / "state.safetensors")
    flip(folder / "state.safetensors", in_a_large_tensor(folder / "state.safetensors", weight))
    yield load_file(folder / "state.safetensors")["weight"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("load", [loads_dcp, loads_torch, loads_safetensors])
def test_others_load_a_flipped_bit_without_a_word(
    tmp_path: Path, load: Callable[[Path, torch.Tensor], Iterator[torch.Tensor]]
) -> None:
    """If one of them refuses it one day, the comparison in docs/decisions/0016-checkpoints.md has to say so."""
    weight = torch.randn(300, 200)
    (found,) = load(tmp_path / "others", weight)
    assert int((found != weight).sum()) == 1


def test_here_it_is_refused(tmp_path: Path) -> None:
    """The same tensor with the same flipped bit."""
    weight = torch.randn(300, 200)
    store = Store(tmp_path)
    draft, stream = store.begin(1), TensorStream({"weight": weight})
    path = draft.commit([draft.write("rank0.safetensors", stream, size=stream.size)]).path / "rank0.safetensors"
    flip(path, in_a_large_tensor(path, weight))
    with raises("checkpoint.all-damaged", CorruptDataError):
        store.open_newest()


def test_two_flipped_bits_anywhere_in_a_block_are_found() -> None:
    """CRC-32 finds each single bit, each two bits, and each burst of up to 32 bits of a block of 16 MiB."""
    block = bytearray(random.Random(1).randbytes(2**16))
    right, draw = zlib.crc32(block), random.Random(2)
    for _ in range(300):
        bits = draw.sample(range(8 * len(block)), draw.choice([1, 2]))
        for bit in bits:
            block[bit // 8] ^= 1 << bit % 8
        assert zlib.crc32(block) != right
        for bit in bits:
            block[bit // 8] ^= 1 << bit % 8


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with raises("checkpoint.none", InputError):
            Store(folder).open_newest()


@pytest.mark.parametrize("named", [False, True])
def test_a_commit_is_on_the_disk_before_a_training_goes_on_from_it(
    named: bool, newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped while it committed may have left its marker in memory alone."""
    synced: set[str] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr("os.fsync", noted)
    # It is no state of a training, which is told once the checkpoint was found.
    with raises("checkpoint.other-version", CorruptDataError):
        find_saved(newest if named else newest.parent, ALONE)
    assert {str(newest), str(newest / MARKER)} <= synced
