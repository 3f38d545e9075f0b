"""What is said of scripts that would not train as their authors mean, in a sentence with the line."""

import textwrap
from pathlib import Path

import pytest

import trimaran
from trimaran.report.rehearsal import Rehearsal

TRAINS = """
import os, sys, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"])
"""


def rehearsed(folder: Path, script: str, **asked: object) -> Rehearsal:
    """A script that is written into a folder, rehearsed."""
    (folder / "train.py").write_text(TRAINS + textwrap.dedent(script))
    return trimaran.rehearse(folder / "train.py", **{"world": 1, "cluster": "dgx-h100"} | asked)  # type: ignore[arg-type]


def line_of(text: str, folder: Path) -> str:
    """Where a text stands in the script, as it is told."""
    lines = (folder / "train.py").read_text().splitlines()
    return f"train.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize(
    ("asks", "hints", "verdict"),
    [
        ("assert (tokens != 8).sum().item() == 7", {}, "failed"),
        ("assert (tokens != 8).sum().item() == 7", {"count": 7.0}, "fits"),
        ("[][tokens.max().item()]", {}, "failed"),
        ("sys.exit(0) if tokens.max().item() else None", {}, "not trained"),
        ("1 // (tokens != 8).sum().item()", {}, "fits"),
    ],
)
def test_a_verdict_that_follows_from_an_invented_value_says_so(
    asks: str, hints: dict[str, float], verdict: str, tmp_path: Path
) -> None:
    script = f"""
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tokens = torch.randint(0, 9, (64, 512), device="cuda")
        {asks}
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    """
    found = rehearsed(tmp_path, script, hints=hints)
    assert found.verdict == verdict, str(found)
    if verdict != "fits":
        assert "after an invented value: count" in found.headline
        assert line_of("tokens.max()" if "max" in asks else "tokens != 8", tmp_path) in found.headline
