import dataclasses
import logging
import os
import threading
from pathlib import Path

import pytest
from tests import builders
from tests.builders import HERE, exact, network, table_for
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.measure.cache import cache_directory, cache_path, load_cached, store
from trimaran.pricing.tables import CostTable


def _one(content: str, seconds: float) -> CostTable:
    operation = builders.op_cost(forward=exact(seconds), backward=exact(seconds))
    return builders.cost_table(operations={builders.operation_key(content): {8: operation}})


def test_what_was_stored_is_there_again() -> None:
    table = table_for(network(), whole_s=0.5)
    assert store(table) == table
    assert load_cached(HERE) == table


def test_nothing_is_known_at_first() -> None:
    assert load_cached(HERE) == builders.cost_table()


def test_storing_adds_to_what_is_there_and_the_later_figure_counts() -> None:
    store(_one("conv", 1.0))
    store(_one("relu", 2.0))
    kept = store(_one("conv", 3.0))
    assert {key.content: points[8].forward.seconds for key, points in kept.operations.items()} == {
        "conv": 3.0,
        "relu": 2.0,
    }


def test_each_fingerprint_has_a_file_of_its_own() -> None:
    there = dataclasses.replace(HERE, ranks=4)
    store(_one("conv", 1.0))
    assert cache_path(HERE) != cache_path(there)
    assert load_cached(there) == builders.cost_table(fingerprint=there)


def test_two_runs_at_once_lose_nothing() -> None:
    """8 threads add an operation each, as runs would that end together."""
    threads = [threading.Thread(target=store, args=(_one(f"op{number}", 1.0),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.content for key in load_cached(HERE).operations} == {f"op{number}" for number in range(8)}


@pytest.mark.parametrize("damage", [b"", b"{", b"not json", b'{"schema_version": 1, "digest": "", "table": {}}'])
def test_a_damaged_file_is_set_aside_and_nothing_is_known(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store(_one("conv", 1.0))
    path = cache_path(HERE)
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert load_cached(HERE) == builders.cost_table()
    assert path.with_suffix(".damaged").read_bytes() == damage
    assert not path.exists()
    assert "set aside" in caplog.text


def test_storing_over_a_damaged_file_keeps_the_new_figures() -> None:
    store(_one("conv", 1.0))
    cache_path(HERE).write_bytes(b"{")
    kept = store(_one("relu", 2.0))
    assert load_cached(HERE) == kept == _one("relu", 2.0)


def test_a_file_of_another_version_is_set_aside() -> None:
    store(_one("conv", 1.0))
    path = cache_path(HERE)
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 99'))
    assert load_cached(HERE) == builders.cost_table()
    assert path.with_suffix(".damaged").exists()


def test_no_half_written_file_is_left(tmp_path: Path) -> None:
    store(_one("conv", 1.0))
    names = {path.name for path in cache_path(HERE).parent.iterdir()}
    assert names == {cache_path(HERE).name, cache_path(HERE).with_suffix(".lock").name}


def test_a_directory_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file is in the place of the directory, which not even root can write into."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path / "file"))
    with raises("cache.unwritable", EnvironmentProblem, match="TRIMARAN_CACHE"):
        store(_one("conv", 1.0))


def test_the_directory_is_the_users_choice_or_that_of_the_desktop_standard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIMARAN_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("TRIMARAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "trimaran"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "trimaran"


class TestWhatCannotBeUsed:
    """A cache is no reason for a command to end: what cannot be decoded is renamed, said once, and measured again."""

    @pytest.mark.parametrize("content", [b"[" * 100_000, b"", b"\xff\xfe", b'{"schema_version": 2}', b"[" * 50])
    def test_a_damaged_file_is_renamed_and_said_once(self, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
        path = cache_path(HERE)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        for _ in range(3):
            assert load_cached(HERE) == CostTable(fingerprint=HERE)
        assert len(caplog.records) == 1
        assert path.with_suffix(".damaged").read_bytes() == content
        assert store(table_for(network())) == load_cached(HERE)

    def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(self, tmp_path: Path) -> None:
        path = cache_path(HERE)
        path.parent.mkdir(parents=True)
        (tmp_path / "letters").write_text("dear all")
        path.with_suffix(".lock").symlink_to(tmp_path / "letters")
        with raises("cache.unwritable", EnvironmentProblem):
            store(table_for(network()))
        path.write_bytes(b"{")
        assert load_cached(HERE) == CostTable(fingerprint=HERE)
        assert (tmp_path / "letters").read_text() == "dear all"

    @pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
    def test_what_is_no_file_is_not_waited_for(self, kind: str) -> None:
        path = cache_path(HERE)
        path.parent.mkdir(parents=True)
        {"pipe": os.mkfifo, "folder": Path.mkdir, "loop": lambda name: name.symlink_to(name)}[kind](path)
        assert load_cached(HERE) == CostTable(fingerprint=HERE)
