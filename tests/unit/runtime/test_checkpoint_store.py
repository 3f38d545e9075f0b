"""A folder of checkpoints without faults: names, order, removal, and what is refused."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, ExecutionError, InputError
from trimaran.base.files import write_whole
from trimaran.checkpoint_files import commit as store_module
from trimaran.checkpoint_files.commit import FORMAT, MANIFEST, MARKER, Checkpoint, FileEntry, Store
from trimaran.checkpoint_files.disk import LocalDisk


def save(store: Store, step: int, content: bytes = b"content") -> Checkpoint:
    draft = store.begin(step)
    return draft.commit([draft.write("rank0.bin", [content], size=len(content))])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_blocks_have_checksums_wherever_pieces_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the writing thread, by another one, and by the reader."""
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 1000)
    content = os.urandom(3500)
    for small in (0, 10**6):
        monkeypatch.setattr(store_module, "_SMALL_BYTES", small)
        draft = Store(tmp_path).begin(small)
        pieces = [content[:1], content[1:1500], b"", memoryview(content)[1500:3000], bytearray(content[3000:])]
        entry = draft.write("rank0.bin", pieces, size=3500)
        assert entry == FileEntry("rank0.bin", 3500, store_module._checksums(content))
        assert len(entry.checksums) == 4
        checkpoint = draft.commit([entry])
        assert Store(tmp_path).verify(checkpoint) == []
        assert (checkpoint.path / "rank0.bin").read_bytes() == content


def test_a_name_that_is_taken_is_never_written_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert [save(store, 5).name for _ in range(3)] == ["step-00000005", "step-00000005-2", "step-00000005-3"]
    assert [found.serial for found in store.committed()] == [3, 2, 1]


def test_the_newest_is_the_last_that_was_committed_not_the_highest_step(tmp_path: Path) -> None:
    """A training that goes back to step 100 after 300 must not be given 300 again."""
    store = Store(tmp_path)
    for step in (100, 300, 150):
        save(store, step)
    assert store.open_newest().step == 150
    assert [found.step for found in store.committed()] == [150, 300, 100]
    assert store.prune() == ["step-00000100"]


def test_as_many_are_kept_as_are_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in range(1, 6):
        save(store, step)
    assert store.prune(keep=3) == ["step-00000002", "step-00000001"]
    assert store.prune(keep=3) == []
    assert store.prune(keep=1) == ["step-00000004", "step-00000003"]
    with raises("checkpoint.keeps-none"):
        store.prune(keep=0)
    assert names(tmp_path) == ["step-00000005"]


def test_nothing_is_removed_for_one_that_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2, 3):
        save(store, step)
    (tmp_path / "step-00000003" / "rank0.bin").write_bytes(b"contenT")
    damaged: list[str] = []
    assert store.prune(on_damage=lambda name, faults: damaged.append(name)) == []
    assert damaged == ["step-00000003"]
    save(store, 4)
    # Two that are whole, and the damaged one between them; only what is older than both is removed.
    assert store.prune() == ["step-00000001"]
    save(store, 5)
    assert store.prune() == ["step-00000003", "step-00000002"]


def test_the_newer_ones_are_read_from_the_disk_before_an_older_is_removed(tmp_path: Path) -> None:
    forgotten: list[str] = []

    class Watching(LocalDisk):
        def open(self, path: Path):  # type: ignore[no-untyped-def]
            file = super().open(path)
            forget = file.forget

            def watched() -> None:
                forgotten.append(str(path.relative_to(tmp_path)))
                forget()

            file.forget = watched  # type: ignore[method-assign]
            return file

    store = Store(tmp_path, disk=Watching())
    for step in (1, 2, 3):
        save(store, step)
    assert forgotten == []
    assert store.prune() == ["step-00000001"]
    files = [MARKER, MANIFEST, FORMAT, "rank0.bin"]
    assert forgotten == [f"step-0000000{step}/{name}" for step in (3, 2) for name in files]
    forgotten.clear()
    save(store, 4)
    store.prune()
    assert {name.split("/")[0] for name in forgotten} == {"step-00000004"}, "each is read back once"


def test_what_a_crash_left_is_removed_when_the_next_begins_and_others_directories_are_not(tmp_path: Path) -> None:
    """torchtitan and others name directories alike."""
    store = Store(tmp_path)
    dead = store.begin(1)
    dead.write("rank0.bin", [b"x"], size=1)
    dead._let_go()  # its process ended
    foreign = tmp_path / "step-00000100"
    foreign.mkdir()
    (foreign / "weights.distcp").write_bytes(b"precious")
    (tmp_path / "step-00000200").symlink_to(foreign)
    (tmp_path / "notes").mkdir()
    nested = store.begin(300)
    (nested.path / "notes").mkdir()
    nested._let_go()
    save(store, 2)
    assert names(tmp_path) == ["notes", "step-00000002", "step-00000100", "step-00000200", "step-00000300"]
    assert (foreign / "weights.distcp").read_bytes() == b"precious"


def test_a_draft_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    """As one that another thread still writes."""
    first = Store(tmp_path).begin(1)
    second = Store(tmp_path).begin(2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    entry = first.write("rank0.bin", [b"x"], size=1)
    second.abandon()
    assert first.commit([entry]).step == 1
    assert names(tmp_path) == ["step-00000001"]


def test_a_checkpoint_that_is_being_read_is_not_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2, 3):
        save(store, step)
    with Store(tmp_path).open("step-00000001") as read:
        assert store.prune() == []
        assert read.path_of("rank0.bin").read_bytes() == b"content"
    assert store.prune() == ["step-00000001"]
    with raises("checkpoint.damaged", CorruptDataError), read:
        pass


def test_an_abandoned_draft_leaves_nothing(tmp_path: Path) -> None:
    draft = Store(tmp_path).begin(1, ranks=2)
    draft.write("rank0.bin", [b"x"], size=1)
    draft.abandon()
    draft.abandon()
    assert names(tmp_path) == []


def test_a_commit_that_raises_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    draft = store.begin(1)
    entry = draft.write("rank0.bin", [b"x"], size=1)
    with raises("checkpoint.not-json", name="state.json"):
        draft.commit([entry], {"state.json": {"loss": float("nan")}})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "document",
    [{"deep": json.loads("[" * 110 + "]" * 110)}, {"large": 2**200}],
    ids=["deep", "large"],
)
def test_a_document_that_could_not_be_read_again_is_not_written(tmp_path: Path, document: dict[str, object]) -> None:
    draft = Store(tmp_path).begin(1)
    with raises("checkpoint.unreadable-document", name="state.json"):
        draft.commit([], {"state.json": document})
    assert names(tmp_path) == []


def test_documents_come_back_as_they_were(tmp_path: Path) -> None:
    document = {"generator": 2**128, "loss": 0.1, "name": "höhe\x1b", "none": None, "list": [1, [True]], "2": -5e-324}
    draft = Store(tmp_path).begin(0)
    draft.commit([], {"state.json": document}, {"table": document})
    found = Store(tmp_path).open_newest()
    assert found.document("state.json") == document
    assert found.contents == {"table": document}
    with raises("checkpoint.no-such-file", CorruptDataError):
        found.document("other.json")


def test_ranks_that_do_not_share_the_folder_are_refused(tmp_path: Path) -> None:
    draft = Store(tmp_path / "a").begin(1, ranks=2)
    with raises("checkpoint.folder-not-shared", EnvironmentProblem):
        Store(tmp_path / "b").join(draft.name)
    entry = draft.write("rank0.bin", [b"x"], size=1)
    with raises("checkpoint.files-not-shared", EnvironmentProblem, files=("rank1.bin",)):
        draft.commit([entry, FileEntry("rank1.bin", 1, (1,))])
    assert names(tmp_path / "a") == []


def test_content_of_another_size_is_refused(tmp_path: Path) -> None:
    draft = Store(tmp_path).begin(1)
    for size in (2, 4):
        with raises("checkpoint.wrong-size", ExecutionError, expected=size, written=3):
            draft.write("rank0.bin", [b"abc"], size=size)
    assert names(draft.path) == ["FORMAT"]


def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    draft = store.begin(1)
    pieces = iter([b"never asked for"])
    with raises("checkpoint.no-space", EnvironmentProblem, needed=2**62):
        draft.write("rank0.bin", pieces, size=2**62)
    assert next(pieces) == b"never asked for"
    with raises("checkpoint.no-space", EnvironmentProblem, needed=2**62):
        Store(tmp_path / "not" / "there").check_space(2**62)
    store.check_space(1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\n", "-a", MARKER, MANIFEST, "FORMAT", "a" * 200, "ä"])
def test_names_of_files_stay_in_the_directory(tmp_path: Path, name: str) -> None:
    draft = Store(tmp_path).begin(1)
    with raises("checkpoint.wrong-file-name", name=name):
        draft.write(name, [], size=0)


@pytest.mark.parametrize("name", ["", "..", "step-1", "step-00000001/..", "step-00000001\n", "step-00000001-0"])
def test_names_of_checkpoints_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    for ask in (Store(tmp_path).open, Store(tmp_path).join):
        with raises("checkpoint.wrong-name", InputError):
            ask(name)


def test_a_step_and_ranks_that_cannot_be(tmp_path: Path) -> None:
    for step, ranks in ((-1, 1), (0, 0)):
        with raises("checkpoint.wrong-step", step=step, ranks=ranks):
            Store(tmp_path).begin(step, ranks=ranks)


def test_a_folder_that_is_a_link_is_followed_and_a_new_one_is_made(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    store = Store(tmp_path / "link" / "deep" / "er")
    save(store, 1)
    assert names(tmp_path / "there" / "deep" / "er") == ["step-00000001"]


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_a_limit_on_the_size_of_files_is_no_full_disk(tmp_path: Path) -> None:
    """It was told as one, with more free than is needed."""
    draft = Store(tmp_path).begin(1)
    with limited(resource.RLIMIT_FSIZE, 2**16), raises("checkpoint.unwritable", EnvironmentProblem) as caught:
        draft.write("rank0.safetensors", [bytes(2**20)], size=2**20)
    assert "65,536 bytes" in str(caught.value)
    assert "ulimit -f" in str(caught.value)
    with limited(resource.RLIMIT_FSIZE, 2**16), raises("file.unwritable", EnvironmentProblem, match="ulimit -f"):
        write_whole(tmp_path / "large", bytes(2**20))
    assert not (tmp_path / "large").exists()


def test_a_limit_on_open_files_is_no_folder_that_ranks_do_not_share(tmp_path: Path) -> None:
    draft = Store(tmp_path).begin(1)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    with limited(resource.RLIMIT_NOFILE, free), raises("checkpoint.unwritable", EnvironmentProblem, match="ulimit -n"):
        Store(tmp_path).join(draft.name)
    draft.abandon()
    with raises("checkpoint.folder-not-shared", EnvironmentProblem):
        Store(tmp_path).join(draft.name)
