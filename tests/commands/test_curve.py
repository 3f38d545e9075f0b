"""`trimaran catalog curve` fits a table, shows the catalog, writes a file that it reads again, and draws."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.commands.running import trimaran

RUNS = "global_batch,epochs,run\n" + "".join(
    f"{batch},{epochs * stray:.4f},{run}\n"
    for batch, epochs in ((32, 4.25), (64, 4.5), (128, 5.0), (256, 6.0), (512, 8.0))
    for run, stray in enumerate((0.97, 1.0, 1.03))
)


def test_a_table_gives_its_curve_with_intervals(tmp_path: Path) -> None:
    """4 (1 + B / 512) epochs, each in three runs that stray by 3 %."""
    (tmp_path / "runs.csv").write_text(RUNS)
    found = json.loads(trimaran("curve", "runs.csv", "--at", "96,2048", "--json", cwd=tmp_path).stdout)
    assert found["schema_version"] == 1
    assert found["e0"] == pytest.approx(4.0, rel=1e-3)
    assert found["b_crit"] == pytest.approx(512, rel=5e-3)
    assert found["e0_interval"][0] < 4.0 < found["e0_interval"][1]
    assert found["b_crit_interval"][0] < 512 < found["b_crit_interval"][1]
    assert found["rms"] < 0.01
    assert found["leave_one_out_mean"] < 0.03
    assert found["coverage_90"] == 1.0
    assert [point["runs"] for point in found["points"]] == [3] * 5
    inside, beyond = found["at"]
    assert inside["epochs"] == pytest.approx(4.75, rel=0.01)
    assert (inside["warnings"], inside["samples"]) == ([], None)
    assert beyond["warnings"] == ["batch 2048 is 4 times the largest measured one, 512"]
    assert beyond["interval"][0] < 20 < beyond["interval"][1]


def test_a_curve_file_and_a_drawing_are_written(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(RUNS)
    described = ("--network", "digits", "--samples-per-epoch", "1437")
    arguments = ("curve", "runs.csv", "--output", "mine.toml", "--plot", "mine.svg", *described)
    printed = trimaran(*arguments, cwd=tmp_path).stdout
    assert "Bcrit: 512" in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    drawing = ElementTree.parse(tmp_path / "mine.svg").getroot()
    dots = [shape for shape in drawing.iter() if shape.tag.endswith("circle")]
    assert len(dots) == 5 * 4 + 2
    first, again = (
        json.loads(trimaran("curve", name, "--json", cwd=tmp_path).stdout) for name in ("runs.csv", "mine.toml")
    )
    assert (again["network"], again["samples_per_epoch"]) == ("digits", 1437)
    assert (again["e0"], again["b_crit"], again["left_out"]) == (first["e0"], first["b_crit"], first["left_out"])


def test_the_catalog_is_listed_with_its_quality(tmp_path: Path) -> None:
    document = json.loads(trimaran("curve", "--list", "--json", cwd=tmp_path).stdout)
    assert document["catalog"]["rms"] <= 0.07
    assert {"resnet50", "retinanet", "inception-v3-hybrid"} <= {curve["name"] for curve in document["curves"]}
    printed = trimaran("curve", "--list", cwd=tmp_path).stdout
    assert "resnet50-1.0" in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80


def test_a_flat_table_has_no_critical_batch_and_json_no_infinity(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("global_batch,steps\n64,800\n128,400\n256,200\n")
    done = trimaran("curve", "flat.csv", "--json", cwd=tmp_path)
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert (found["unit"], found["b_crit"], found["b_crit_interval"][1]) == ("samples", None, None)
    assert found["e0"] == pytest.approx(51200)


def test_odd_tables_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("global_batch,epochs\n64,6\n128,4\n256,5\n")
    (tmp_path / "one.csv").write_text("global_batch,epochs\n64,6\n")
    odd = json.loads(trimaran("curve", "odd.csv", "--json", cwd=tmp_path).stdout)
    assert any("not monotone: batch 128 needs less than 64" in warning for warning in odd["warnings"])
    (tmp_path / "steep.csv").write_text("global_batch,steps\n64,500\n128,500\n256,510\n")
    steep = json.loads(trimaran("curve", "steep.csv", "--json", cwd=tmp_path).stdout)
    assert any("the amounts rise as fast as the batch" in warning for warning in steep["warnings"])
    (tmp_path / "noisy.csv").write_text("global_batch,epochs\n32,5\n64,9\n128,4\n256,12\n512,7\n1024,30\n")
    noisy = json.loads(trimaran("curve", "noisy.csv", "--json", cwd=tmp_path).stdout)
    assert any("taken as noisy" in warning for warning in noisy["warnings"])
    one = json.loads(trimaran("curve", "one.csv", "--at", "512", "--json", cwd=tmp_path).stdout)
    assert (one["b_crit"], one["leave_one_out_mean"], one["coverage_90"]) == (None, None, None)
    assert "only batch 64 was measured" in one["at"][0]["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet5",), 'did you mean "resnet50"'),
        (("bad.csv",), "bad.csv: line 3, column epochs"),
        (("gnmt-hybrid",), "gnmt-hybrid"),
        (("resnet50", "--at", "many"), "many"),
        (("resnet50", "--samples-per-epoch", "50000"), "1281167 samples"),
        (("resnet50", "--list"), "--list"),
        (("resnet50", "--output", "curve.yaml"), "curve.yaml"),
    ],
)
def test_mistakes_end_with_their_place_and_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "bad.csv").write_text("global_batch,epochs\n64,4\n128,nan\n")
    done = trimaran("curve", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
