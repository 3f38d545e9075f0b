"""Files are read within bounds, and what is in them is refused before it is used."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.decoding import (
    MOST_DEPTH,
    check_json_bounds,
    decode_json,
    decode_object,
    decode_toml,
    decode_typed,
    unpack,
)
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError, TrimaranError
from trimaran.base.files import (
    check_writable,
    is_stream,
    locked,
    put_in_place,
    read_bytes,
    read_end,
    read_text,
    set_aside,
    write_whole,
)


class TestReading:
    def test_a_file_is_read_whole_and_a_longer_one_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"12345")
        assert read_bytes(path, most_bytes=5) == b"12345"
        with raises("file.too-long", path=str(path), most_bytes=4):
            read_bytes(path, most_bytes=4)

    def test_a_file_of_the_kernel_says_no_size_and_is_read(self) -> None:
        assert b"MemTotal" in read_bytes(Path("/proc/meminfo"))

    def test_a_pipe_is_refused_at_once_though_nobody_writes(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        start = time.monotonic()
        with raises("file.not-regular", match="a pipe"):
            read_bytes(tmp_path / "pipe")
        assert time.monotonic() - start < 5

    def test_a_file_that_vanishes_while_it_is_asked_for_is_refused(self, tmp_path: Path) -> None:
        """Another process replaces, removes and writes the name all the time: each answer is whole, or an error."""
        path, stop = tmp_path / "a", threading.Event()

        def change() -> None:
            while not stop.is_set():
                put_in_place(path, b"x" * 100_000)
                path.unlink()

        thread = threading.Thread(target=change)
        thread.start()
        try:
            seen: set[int | str] = set()
            for _ in range(300):
                try:
                    seen.add(len(read_bytes(path)))
                except InputError as error:
                    seen.add(error.code)
        finally:
            stop.set()
            thread.join()
        assert seen <= {100_000, "file.unreadable"}

    def test_a_byte_order_mark_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa = 1\n")
        assert read_text(tmp_path / "a") == "a = 1\n"

    def test_the_line_of_a_byte_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"one\ntwo\nthr\xe9e\n")
        with raises("file.not-utf8", CorruptDataError, line=3):
            read_text(tmp_path / "a")

    @pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
    def test_a_name_that_no_file_can_have_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"cannot be read|no name of a file"):
            read_bytes(Path(name))

    def test_the_end_of_a_long_log_takes_no_memory_for_the_rest(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        with path.open("wb") as file:
            file.seek(2**40)
            file.write(b"\nthe end\n")
        assert read_end(path).splitlines()[-1] == "the end"


class TestWritingBesideOthers:
    def test_a_lock_that_is_a_link_leaves_its_target_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "letters").write_text("dear all")
        (tmp_path / "a.lock").symlink_to("letters")
        with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "a.lock"):
            pass
        assert (tmp_path / "letters").read_text() == "dear all"

    def test_a_lock_keeps_what_is_in_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.lock").write_text("kept")
        with locked(tmp_path / "a.lock"), pytest.raises(BlockingIOError), locked(tmp_path / "a.lock", wait=False):
            pass
        assert (tmp_path / "a.lock").read_text() == "kept"

    def test_a_link_under_the_name_of_an_unfinished_file_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "letters").write_text("dear all")
        (tmp_path / f".a.{os.getpid()}").symlink_to("letters")
        put_in_place(tmp_path / "a", b"new")
        assert (tmp_path / "letters").read_text() == "dear all"
        assert (tmp_path / "a").read_bytes() == b"new"

    @pytest.mark.parametrize("write", [write_whole, lambda path, content: put_in_place(path, content)])
    def test_what_a_link_leads_to_is_written_and_the_link_stays(self, tmp_path: Path, write: Any) -> None:
        """`-o link.json` put a file in the place of the link."""
        (tmp_path / "there").mkdir()
        (tmp_path / "near").symlink_to("far")
        (tmp_path / "far").symlink_to("there/a")
        for content in (b"first", b"second"):
            check_writable(tmp_path / "near")
            write(tmp_path / "near", content)
            assert ((tmp_path / "there" / "a").read_bytes(), (tmp_path / "near").is_symlink()) == (content, True)
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["a"]

    def test_a_link_in_a_circle_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        for write in (check_writable, lambda path: write_whole(path, b"")):
            with raises("file.unwritable", EnvironmentProblem, match="symbolic links"):
                write(tmp_path / "a")
        assert (tmp_path / "a").is_symlink()

    def test_a_damaged_file_is_kept_under_another_name(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text("{")
        assert set_aside(tmp_path / "a.json").read_text() == "{"
        assert [path.name for path in tmp_path.iterdir()] == ["a.damaged"]


class TestPackedFiles:
    def test_parts_one_behind_another_are_one_content(self) -> None:
        content = gzip.compress(b"one ") + gzip.compress(b"two") + bytes(10)
        assert unpack(content, source="a.gz", most_bytes=7) == b"one two"
        assert unpack(b"plain", source="a", most_bytes=1) == b"plain"

    @pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:20], lambda c: c[:12] + b"\xff\xff" + c[14:]])
    def test_damage_is_damage(self, damage: Any) -> None:
        with raises("file.damaged-gzip", CorruptDataError):
            unpack(damage(gzip.compress(bytes(1000) + os.urandom(100))), source="a.gz", most_bytes=10**6)

    def test_unpacking_ends_where_there_is_too_much(self, tmp_path: Path) -> None:
        """4 MB that unpack to 4 GB, read by a process that may have 1 GB and 10 s of processor time."""
        path = tmp_path / "trace.json.gz"
        path.write_bytes(gzip.compress(bytes(10_000_000)) * 400)
        script = (
            "import resource, sys; from pathlib import Path\n"
            "from trimaran.base.errors import InputError\n"
            "from trimaran.pricing.kernels.corrections import read_kineto\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))\n"
            "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
            "try: read_kineto(Path(sys.argv[1]))\n"
            "except InputError as error: print(error.code)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.returncode) == ("file.unpacks-to-too-much", 0), done.stderr


class TestJson:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ('{"a": 1', "file.not-json"),
            ('{"a": NaN}', "file.not-json"),
            ('{"a": -Infinity}', "file.not-json"),
            ('{"a": 1e999}', "file.unusable-value"),
            ('{"a": 9223372036854775808}', "file.unusable-value"),
            ('{"a": ' + "9" * 5000 + "}", "file.not-json"),
            ('{"a": "x\\u0000y"}', "file.unusable-value"),
            ('{"a": "\\ud800"}', "file.unusable-value"),
            ('{"\\ud800": 1}', "file.unusable-value"),
            ('{"a": 1, "b": {"c": 2, "c": 3}}', "file.key-twice"),
            ("[1]", "file.not-an-object"),
            ("[" * 100_000, "file.too-deep"),
            ('{"a":' * 101 + "1" + "}" * 101, "file.too-deep"),
            ("\ud800", "file.not-json"),
        ],
    )
    def test_what_no_file_of_ours_has_is_refused(self, text: str, code: str) -> None:
        with raises(code, TrimaranError, match="a.json"):
            decode_object(text, source="a.json")

    def test_the_path_of_a_value_is_named(self) -> None:
        with raises("file.unusable-value", match=r"\$\.a\[1\]\.b holds"):
            decode_json('{"a": [0, {"b": 1e999}]}', source="a.json")

    def test_brackets_in_texts_are_no_nesting(self) -> None:
        texts = ["[" * 1000, 'a "quoted" {', "ends in a backslash \\", '\\" {' * 300, "}" * 7]
        assert decode_json(json.dumps({"a": texts}), source="a.json") == {"a": texts}

    def test_the_deepest_that_is_read(self) -> None:
        whole = "[" * MOST_DEPTH + "]" * MOST_DEPTH
        assert decode_json(whole, source="a.json") is not None
        with raises("file.too-deep"):
            decode_json(f"[{whole}]", source="a.json")

    def test_values_are_counted_before_they_are_made(self) -> None:
        with raises("file.too-many-values", most_values=10):
            check_json_bounds(b"[0,0,0,0,0,0,0,0,0,0,0]", source="a.json", most_values=10)

    def test_infinite_figures_are_read_where_a_reader_wants_them(self) -> None:
        """Published configurations of state-space models have them."""
        assert decode_json('{"time_step_limit": [0.0, Infinity]}', source="config.json", finite=False)

    def test_a_typed_file_is_refused_with_the_path(self) -> None:
        with raises("file.unexpected-content", match=r"a\.json: .*\$\[1\]"):
            decode_typed(b'[1, "two"]', list[int], source="a.json")
        with raises("file.malformed", CorruptDataError, match="measure again"):
            decode_typed(b"[1, 2", list[int], source="a.json", advice="measure again")


class TestToml:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("a = ", "file.not-toml"),
            ("a = 1\na = 2\n", "file.not-toml"),
            ("a = nan\n", "file.unusable-value"),
            ("a = [1.0, -inf]\n", "file.unusable-value"),
            ("a = 9223372036854775808\n", "file.unusable-value"),
            ("a = " + "9" * 5000, "file.not-toml"),
            (f"a = {'[' * 50_000}{']' * 50_000}", "file.too-deep"),
            (f"{'a.' * 100_000}a = 1\n", "file.too-deep"),
            (f"[{'a . ' * 200}a]\n", "file.too-deep"),
            ("a" * (5 * 2**20), "file.toml-too-long"),
        ],
    )
    def test_what_no_file_of_ours_has_is_refused(self, text: str, code: str) -> None:
        start = time.process_time()
        with raises(code, match="rack.toml"):
            decode_toml(text, source="rack.toml")
        assert time.process_time() - start < 5

    def test_a_sentence_with_many_dots_is_no_key(self) -> None:
        sentence = "wait" + "." * 200
        assert decode_toml(f'a = "{sentence}"', source="a.toml") == {"a": sentence}

    def test_line_and_column_of_a_mistake_are_named(self) -> None:
        with raises("file.not-toml", match="line 2, column 3"):
            decode_toml("a = 1\nb ! 2\n", source="a.toml")


@pytest.mark.parametrize("target", ["/dev/null", "a pipe"])
def test_what_is_no_file_is_written_to_and_stays(target: str, tmp_path: Path) -> None:
    """A file in the place of /dev/null would be met by every program."""
    path = Path(target)
    reader = None
    if target == "a pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(path)
    put_in_place(path, b"new")
    assert is_stream(path)
    if reader is not None:
        assert os.read(reader, 9) == b"new"
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_full_device_says_so_and_stays() -> None:
    with pytest.raises(OSError, match="No space left"):
        put_in_place(Path("/dev/full"), b"new")
    assert is_stream(Path("/dev/full"))
