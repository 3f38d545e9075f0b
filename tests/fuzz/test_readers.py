"""Everything that reads a file refuses what is wrong with it, within bounds of time and memory."""

import ast
import functools
import multiprocessing
import os
import pickle
import random
import resource
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.fuzz.campaign import LIMIT_S, MOST_BYTES, Count, outcome, run
from tests.fuzz.mutations import change_pickle, change_values
from tests.fuzz.readers import INTERNAL, READERS, ROOT, seeds_of

from trimaran.base.errors import TrimaranError

pytestmark = pytest.mark.usefixtures("_empty_cache")  # one of the files is a kept network

SOURCE = ROOT / "src"

RAW = {
    *("open", "read_text", "read_bytes", "fdopen", "readlines", "literal_eval", "safe_open", "load_file", "memmap"),
    *("fromfile", "loadtxt", "genfromtxt", "ParserCreate", "urlopen", "Unpickler", "ZipFile", "safe_load"),
}
"""Names of calls that open a file, or make a value of its content, whatever they belong to."""

MODULES = ("json", "tomllib", "pickle", "gzip", "zlib", "lzma", "bz2", "csv", "msgpack", "numpy", "np", "torch", "yaml")
LOADS = {"load", "loads", "decode", "Decoder", "decompress", "decompressobj", "reader", "DictReader", "fromstring"}
"""Calls that make a value of a content where they belong to these modules."""

GUARDED = {"read_bytes", "read_text", "read_kept", "read_end"}
"""The guarded ways to a file."""

_BY_NAME, _BY_ATTRIBUTE = RAW - GUARDED, RAW | LOADS


def raw_calls(tree: ast.AST) -> Iterator[str]:
    """The calls of a module that read a file, or decode one, by themselves."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            yield node.func.id
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _BY_ATTRIBUTE:
            owner = ast.unparse(node.func.value)
            if node.func.attr in RAW or owner.rpartition(".")[2] in MODULES:
                yield f"{owner}.{node.func.attr}"


def guarded_calls(tree: ast.AST) -> set[str]:
    """The guarded calls that a module imports."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = {alias.name for node in imports for alias in node.names if (node.module or "").startswith("trimaran.")}
    return names & GUARDED


@functools.cache
def calls_by_module() -> dict[str, tuple[list[str], set[str]]]:
    """Raw and guarded calls of every module of both packages, by its path below `src`."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(SOURCE))] = (sorted(set(raw_calls(tree))), guarded_calls(tree))
    return found


def test_nothing_reads_a_file_past_the_guarded_reader() -> None:
    """A module that opens or decodes by itself is on the list, with the reason why nobody else's file gets there."""
    found = calls_by_module()
    assert {name: raw for name, (raw, _) in found.items() if raw and name not in INTERNAL} == {}
    assert [name for name in INTERNAL if not any(found[name])] == []


def test_every_reader_is_tried_with_mutated_files() -> None:
    known = {module for reader in READERS.values() for module in reader.modules}
    found = {name for name, (_, guarded) in calls_by_module().items() if guarded} - {"trimaran/base/files.py"}
    assert found - known - set(INTERNAL) == set()
    assert [module for module in known if not (SOURCE / module).is_file()] == []


@pytest.mark.parametrize("call", ["open(path)", "Path(name).read_text()", "json.load(file)", "np.load(path)"])
def test_a_raw_call_is_seen(call: str) -> None:
    assert list(raw_calls(ast.parse(call)))


@pytest.mark.parametrize("name", READERS)
def test_the_seeds_are_read(name: str, tmp_path: Path) -> None:
    """A mutation of a file that is refused anyway would show nothing."""
    reader = READERS[name]
    for content in seeds_of(name):
        path = tmp_path / reader.file_name
        path.write_bytes(content)
        assert outcome(reader.read, path) == "accepted"


def test_mutated_files_are_refused_or_read() -> None:
    """A few of each; `python scripts/fuzz.py --inputs 100000` tries many."""
    counts = run(list(READERS), 16, seed=0, workers=2, start="fork")
    assert {name: dict(count.kinds) for name, count in counts.items() if count.bad} == {}
    assert {name: count.inputs for name, count in counts.items()} == dict.fromkeys(READERS, 16)
    assert all(count.slowest_s < LIMIT_S and count.peak_bytes < MOST_BYTES for count in counts.values())


def test_an_input_does_not_depend_on_those_before_it() -> None:
    """Values that are put into a tree are changed in it later; kept ones grew until a process held nothing else."""
    first = [change_values({"a": [1], "b": {}}, random.Random(number)) for number in range(300)]
    again = [change_values({"a": [1], "b": {}}, random.Random(number)) for number in range(300)]
    assert repr(first) == repr(again)


def test_a_duration_whose_quotients_are_not_finite_is_refused(tmp_path: Path) -> None:
    """One that a mutation found: of a model that was timed again."""
    path = tmp_path / "record.json"
    path.write_bytes(seeds_of("observe record")[0].replace(b"0.01", b"1e-320", 1))
    assert outcome(READERS["observe record"].read, path) == "refused"


class TestTheCampaignItself:
    """What it should find, it finds: a reader that raises, hangs, dies or takes memory is counted as such."""

    @pytest.mark.parametrize(
        ("read", "expected"),
        [
            (lambda path: path.read_text().index("no such text"), "ValueError"),
            (lambda path: [0] * 10**12, "memory"),
        ],
    )
    def test_a_foreign_exception_is_one(self, read: object, expected: str, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("x")
        assert outcome(read, tmp_path / "a").split()[0] == expected

    def test_what_a_file_has_called_is_seen(self, tmp_path: Path) -> None:
        """Crafted files read by `pickle`, as nothing here reads them."""
        found = set()
        for number in range(60):
            (tmp_path / "a").write_bytes(
                change_pickle(pickle.dumps({"lr": 0.1, "step": [1, 2]}), random.Random(number))
            )
            read = lambda path: pickle.loads(path.read_bytes())  # noqa: E731, S301
            found.add(outcome(read, tmp_path / "a").split()[0])
        assert {"call", "accepted", "UnpicklingError"} <= found

    def test_bad_inputs_are_the_sum(self) -> None:
        assert Count(foreign=1, hangs=2, memory=4, refused=8, calls=16).bad == 23


# ---------------------------------------------------------------------------------------------------------------------
# What stands under a name and is no file


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name has at most 107 characters
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("nothing-is-there")


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def _nested(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def _nested_objects(path: Path) -> None:
    path.write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


def _marks(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf\x00")


ODD = {
    "a pipe that nobody writes": _pipe,
    "a folder": _folder,
    "a socket": _socket,
    "a link to itself": _loop,
    "a link to nothing": _nowhere,
    "a device without end": _endless,
    "a terminal": _terminal,
    "an empty file": _nothing,
    "a terabyte of holes": _sparse,
    "bytes that are no text": _binary,
    "lists 100,000 deep": _nested,
    "objects 100,000 deep": _nested_objects,
    "a mark of byte order and a NUL": _marks,
}
"""What is made under the name of a file."""

NOT_NEEDED = {"cost cache", "workload cache", "finished runs"}
"""Readers of files that need not be there, and go on without one that cannot be used."""


def _try_all(connection: Connection, folder: str, kind: str) -> None:
    """Every reader on one odd file, in a process whose memory is bounded."""
    import torch

    torch.set_num_threads(1)
    os.environ["TRIMARAN_CACHE"] = str(Path(folder) / "cache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for reader in READERS.values():
        reader.seeds()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    for number, (name, reader) in enumerate(READERS.items()):
        inside = Path(folder) / f"{kind}-{number}"
        inside.mkdir()
        path = inside / reader.file_name
        ODD[kind](path)
        connection.send((name, "begun"))
        connection.send((name, outcome(reader.read, path)))
    connection.send(("", "done"))


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_try_all, args=(theirs, str(tmp_path), kind))
    process.start()
    theirs.close()
    found: dict[str, str] = {}
    try:
        while ours.poll(120 if not found else LIMIT_S):
            name, said = ours.recv()
            if not name:
                break
            found[name] = said
    except EOFError:
        found["the process"] = "ended"
    finally:
        process.kill()
        process.join()
    expected = {name: ("refused",) if name not in NOT_NEEDED else ("refused", "accepted") for name in READERS}
    assert {name: said for name, said in found.items() if said not in expected.get(name, ())} == {}
    assert found.keys() == READERS.keys()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", sorted(READERS.keys() - NOT_NEEDED))
def test_a_file_that_may_not_be_read_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / READERS[name].file_name
    path.write_bytes(b"{}")
    path.chmod(0)
    with pytest.raises(TrimaranError):
        READERS[name].read(path)
