"""`trimaran plan` and `explain` with decisions of the user, and for machines that are not here."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "digits", "--forbid", "pq"), '"pq"'),
        (("plan", "digits", "--keep", "layer4"), '"layer4=1"'),
        (("plan", "digits", "--schedule", "fifo"), "--schedule"),
        (("explain", "digits", "--why-not", "fspd"), '"fspd"'),
        (("explain", "digits", "--what-if", "link=pcie9x16"), '"pcie9x16"'),
        (("explain", "digits", "--what-if", "link=x2,link=x3"), "twice"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    found = trimaran(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert message in found.stderr


def test_a_plan_for_another_machine_keeps_to_the_decisions(tmp_path: Path) -> None:
    asked = ("lenet", "--cluster", "dgx1-v100", "--devices", "2", "--forbid", "dp")
    found = trimaran("plan", *asked, "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["chosen"]["speedup"] >= 1.0
    assert document["chosen"]["gap"] >= 0.0
    names = [entry["strategy"] for entry in document["runners_up"]]
    assert not any(name.startswith("dp2") for name in names)
    assert any(entry["role"] == "data parallelism" and entry["strategy"] == "dp2" for entry in document["references"])
