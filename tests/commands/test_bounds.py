"""Figures that no machine, batch or training has are refused by their option, with the bound."""

import shlex
from pathlib import Path

import pytest
from tests.commands.running import trimaran

REFUSED = (
    ("memory gpt2 --device h100 --sequence 100000000", "--sequence"),
    ("memory gpt2:124m:sequence=100000000 --device h100", "sequence"),
    ("memory vgg16:image=100000000 --device h100", "image"),
    ("memory vgg16 --device h100 --batch 1000000000000", "--batch"),
    ("memory gpt2 --device h100 --batch 1000000000 --sequence 16777216", "a tensor of more than 1024 PiB"),
    ("memory llama3:8b --device h100 --batch 1000000000 --sequence 16777216", "a tensor of more than 1024 PiB"),
    ("memory vgg16 --device h100 --host 0B", "0B"),
    ("memory vgg16 --device h100 --host 2048PiB", "at most 1024 PiB"),
    ("memory vgg16 --device h100 --sharing 1025", "1 to 1,024"),
    ("memory vgg16 --device h100 --slowdown 1e300", "--slowdown"),
    ("memory vgg16 --device h100 --slowdown 10001", "--slowdown"),
    ("price llama3:8b --cluster dgx-h100 --strategy dp8 --lengths 512:1e308,1024:1e308", "--lengths"),
    ("price llama3:8b --cluster dgx-h100 --strategy dp8 --batch 1000000001", "--batch"),
    ("price llama3:8b --cluster dgx-h100 --strategy dp8 --sequence 16777217", "--sequence"),
    ("price llama3:8b --cluster dgx-h100 --strategy dp8 --tokens 1e19", "at most 1e+18"),
    ("price llama3:8b --cluster dgx-h100 --strategy dp8 --expert-imbalance 1e300", "--expert-imbalance"),
    ("plan llama3:8b --cluster dgx-h100 --devices 1048577", "at most 1,048,576"),
    ("plan vgg16 --cluster dgx-h100 --batch 1000000001", "--batch"),
    ("plan vgg16 --cluster 4xrtx-4090@host_memory=0B", "0B"),
    ("scale vgg16 --cluster dgx-h100:4 --sync server --servers 100001", "--servers"),
    ("simulate vgg16 --cluster dgx-h100 --batch 1000000001", "--batch"),
    ("rehearse --world 1000000001 train.py", "--world"),
)


@pytest.mark.parametrize(("command", "named"), REFUSED, ids=[command for command, _ in REFUSED])
def test_a_figure_outside_its_bounds_is_refused_by_name(command: str, named: str, tmp_path: Path) -> None:
    ended = trimaran(*shlex.split(command), cwd=tmp_path)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert named in " ".join(ended.stderr.split())


@pytest.mark.parametrize("words", [["--sequence", "16777216"], ["--batch", "16777216"]])
def test_the_largest_figure_is_answered(words: list[str], tmp_path: Path) -> None:
    ended = trimaran("memory", "gpt2", "--device", "h100", *words, cwd=tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert "does not fit" in ended.stderr
