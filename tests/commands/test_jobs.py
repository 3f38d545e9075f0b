"""`trimaran catalog jobs` lists what can be trained."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.commands.running import trimaran


def test_networks_are_listed_beside_the_jobs_with_data(tmp_path: Path) -> None:
    done = trimaran("catalog", "jobs", "--json", cwd=tmp_path)
    summaries = {job["name"]: job["summary"] for job in json.loads(done.stdout)["jobs"]}
    assert "synthetic" not in summaries["digits"]
    assert "synthetic" in summaries["vgg16"]


def test_the_sizes_and_options_of_a_network_are_listed(tmp_path: Path) -> None:
    listed = json.loads(trimaran("catalog", "jobs", "--json", cwd=tmp_path).stdout)["jobs"]
    of_gpt2 = next(job for job in listed if job["name"] == "gpt2")
    assert of_gpt2["sizes"] == ["124m", "355m", "774m", "1.5b"]
    assert of_gpt2["options"] == ["sequence"]


def test_decoders_are_listed_with_their_sizes(tmp_path: Path) -> None:
    listed = json.loads(trimaran("catalog", "jobs", "--json", cwd=tmp_path).stdout)["decoders"]
    of_mixtral = next(family for family in listed if family["name"] == "mixtral")
    assert of_mixtral["sizes"] == ["8x7b", "8x22b"]


def test_the_list_says_how_to_name_what_is_not_in_it(tmp_path: Path) -> None:
    printed = trimaran("catalog", "jobs", cwd=tmp_path).stdout
    assert "file.py:factory" in printed
    assert "config.json:sequence=2048" in printed


def test_a_reader_that_has_had_enough_ends_a_list_without_an_error() -> None:
    """As `| head` does."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        words = [sys.executable, "-m", "trimaran", "catalog", "jobs"]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
