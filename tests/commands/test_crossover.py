"""`trimaran crossover` on a small network, with a curve, without one, and asked in vain."""

import json
from pathlib import Path

import pytest
from tests.commands.running import instead, trimaran

CURVE = "global_batch,epochs\n64,4\n256,4.2\n1024,6\n4096,14\n"
ASKED = ("crossover", "lenet", "--cluster", "dgx1-v100", "--devices", "8,16", "--widths", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("crossover")
    (found / "curve.csv").write_text(CURVE)
    return found


def test_both_bases_with_a_curve_and_a_drawing(folder: Path) -> None:
    done = trimaran(*ASKED, "--curve", "curve.csv", "--plot", "a.svg", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert found["cluster"] == "dgx1-v100:2"
    assert [(one["basis"], one["model_parallel_width"]) for one in found["crossings"]] == [("paper", 2), ("ours", 2)]
    for one in found["crossings"]:
        assert one["reason"]
        assert len(one["crossover_interval"]) == 2
        for row in one["rows"]:
            low, high = row["speedup_interval"]
            assert low <= row["speedup_over_dp"] <= high
    assert (folder / "a.svg").read_text().startswith("<svg")


def test_without_a_curve_it_says_what_would_be_needed(folder: Path) -> None:
    done = trimaran(*ASKED, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "no curve" in done.stdout
    found = json.loads(trimaran(*ASKED, "--json", cwd=folder).stdout)
    assert found["curve"] is None
    assert {one["crossover_devices"] for one in found["crossings"]} == {None}
    for one in found["crossings"]:
        for row in one["rows"]:
            never = one["basis"] != "paper" and row["equal_batch_limit"] is None
            assert (row["needed_epoch_ratio"] is None) is never
        if one["reason"].startswith("never, whatever"):
            assert {row["needed_epoch_ratio"] for row in one["rows"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--curve", "resnet50"), "lenet"),
        (("--curve", "no-such-curve"), "no-such-curve"),
        (("--widths", "32"), "got 8, 16"),
        (("--widths", "1"), "two devices"),
        (("--local-batch", "0"), "one sample"),
        (("--devices", "many"), "many"),
        (("--cluster", "dgx1-v100:1"), 'ask for "dgx1-v100:2"'),
    ],
)
def test_bad_input_is_refused(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = trimaran(*instead(ASKED, *arguments), cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_curve_of_one_point_is_taken_with_a_warning(folder: Path) -> None:
    (folder / "one.csv").write_text("global_batch,epochs\n256,10\n")
    done = trimaran(*ASKED, "--curve", "one.csv", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert any("only batch 256 was measured" in warning for warning in found["curve"]["warnings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--networks", "alexnet"), '"alexnet" is not of this study'), (("--real",), "leave it out")],
)
def test_a_study_of_hybrids_has_its_own_networks(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = trimaran("reproduce", "hybrid", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
