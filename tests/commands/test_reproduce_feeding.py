"""`python -m trimaran_studies reproduce feeding`: the ablation of split, pre-load and compress."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feeding")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, object]:
    done = trimaran("reproduce", "feeding", "--networks", "alexnet,resnet50", "--plot", "f.svg", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_remedy_stands_against_both_baselines(document) -> None:
    rows = document["rows"]
    assert {row["machine"] for row in rows} == {"4xv100-pcie", "4xv100"}
    assert {row["network"] for row in rows} == {"alexnet", "resnet50"}
    remedies = {"none", "split", "pre-load", "compress", "all"}
    by_baseline: dict[str, set[str]] = {}
    for row in rows:
        by_baseline.setdefault(row["baseline"], set()).add(row["remedy"])
        assert row["basis"] == "simulated"
        assert row["interval"][0] <= row["saved"] <= row["interval"][1]
    assert by_baseline == {"replicate-and-scatter": remedies | {"ddp", "ddp, all"}, "ddp": remedies}


def test_the_published_figures_stand_beside_ours(document) -> None:
    published = {
        one["machine"]: (one["published_mean_saved"], one["published_max_saved"])
        for one in document["summary"]
        if one["published_mean_saved"] is not None
    }
    assert published == {"4xv100-pcie": (0.1796, 0.3938), "4xv100": (0.1026, 0.1920)}


def test_the_drawing_names_networks_and_remedies(document, folder: Path) -> None:
    drawing = (folder / "f.svg").read_text()
    for text in ("alexnet", "resnet50", "pre-load", "compress", "published mean"):
        assert text in drawing


def test_tables_fit_80_columns(document, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = trimaran("reproduce", "feeding", "--networks", "resnet50", cwd=folder)
    assert done.returncode == 0, done.stderr
    tables = [line for line in done.stdout.splitlines() if line.startswith(" ") or "resnet50 " in line[:10]]
    assert tables
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--networks", "vgg416"), "vgg416"),
        (("--real", "--networks", "vgg16"), "vgg16"),
        (("--real", "--plot", "f.svg"), '--plot (an option of "reproduce feeding")'),
        (("--steps", "3"), 'an option of "reproduce dgx1 --real" and "reproduce feeding --real"'),
        (("--devices", "2"), 'an option of "reproduce dgx1 --real"'),
        (("--device", "titan-x"), 'an option of "reproduce vdnn"'),
        (("--plot", "f.png"), "f.png"),
        (("--real", "--steps", "0"), "one step"),
    ],
)
def test_what_is_not_there_is_refused(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = trimaran("reproduce", "feeding", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_drawing_that_cannot_be_written_is_refused_before_the_work(folder: Path) -> None:
    done = trimaran("reproduce", "feeding", "--networks", "vgg416", "--plot", "absent/f.svg", cwd=folder)
    assert "absent/f.svg" in done.stderr
