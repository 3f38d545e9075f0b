"""What of a script is compiled is known by the calls that it is in, in the forward and in the backward."""

import textwrap
from pathlib import Path

import pytest
from tests.rehearsal.rehearsing import rehearse_rank

from trimaran.rehearsal.fusion import FUSED, fused
from trimaran.rehearsal.record import Run

SCRIPT = """
    import torch, torch.nn as nn

    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8)).cuda()
    x = torch.randn(512, 64, device="cuda")
    {before}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        {loss}.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

WAYS = {
    "a model": ("model = torch.compile(model)", "model(x).sum()", True),
    "in place": (
        "model[1:3].compile(); inner = model[1:3]; inner.compile()",
        "model[3](inner(model[0](x))).sum()",
        True,
    ),
    "a function": ("step = torch.compile(lambda x: model(x).sum())", "step(x)", True),
    "with options": ("step = torch.compile(mode='max-autotune')(model.forward)", "step(x).sum()", True),
    "nothing": ("", "model(x).sum()", False),
    "a function beside": ("norm = torch.compile(lambda x: x @ x)", "model(x).sum()", False),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compiled_is_fused_and_nothing_else_is(way: str, tmp_path: Path) -> None:
    before, loss, compiles = WAYS[way]
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT.format(before=before, loss=loss)))
    record = rehearse_rank(tmp_path / "train.py", folder=tmp_path)
    found = fused(record)
    parts = {
        event.part for event in found.events if isinstance(event, Run) and found.kernels[event.kernel].name == FUSED
    }
    assert parts == ({"forward", "backward"} if compiles else set()), record.end

    def products(kernels: list[str]) -> int:
        return sum("mm" in name for name in kernels)

    names = [
        [each.kernels[event.kernel].name for event in each.events if isinstance(event, Run)] for each in (record, found)
    ]
    assert products(names[0]) == products(names[1])


def test_a_replay_of_a_graph_has_what_was_compiled(tmp_path: Path) -> None:
    script = SCRIPT.format(before="model = torch.compile(model); graph = torch.cuda.CUDAGraph()", loss="model(x).sum()")
    captured = script.replace("    for _ in range(3):", "    with torch.cuda.graph(graph):") + "    REPLAYS"
    counts = []
    for replays in ("", "graph.replay(); graph.replay()"):
        (tmp_path / "train.py").write_text(textwrap.dedent(captured.replace("REPLAYS", replays)))
        found = fused(rehearse_rank(tmp_path / "train.py", folder=tmp_path))
        counts.append(
            sum(found.kernels[event.kernel].name == FUSED for event in found.events if isinstance(event, Run))
        )
    assert counts[1] == 3 * counts[0] > 0
