"""Curve files, the catalog, and whether a curve is of a job."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.convergence.curve import check_task, fit_curve
from trimaran.convergence.files import catalog_names, doubling_ratios, find_curve, read_curve, write_curve
from trimaran.convergence.types import CurveTable, Point, oddities
from trimaran.jobs.learning_rate import Recipe, digest_of_rule

TABLE = CurveTable(
    task='a "task" \\ with\tsigns é',
    unit="epochs",
    points=(
        Point(global_batch=64, amount=4.25, runs=2, deviation=0.35, values=(4.0, 4.5), failed=1),
        Point(global_batch=128, amount=5.0),
    ),
    source="by hand",
    samples_per_epoch=1000,
    network="digits",
    target=0.97,
    recipe=Recipe(rule="linear", base_batch=64, warmup_epochs=0.5),
    notes=("one", "two"),
)


@pytest.mark.parametrize("name", ["curve.toml", "curve.json"])
def test_a_curve_file_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    write_curve(tmp_path / name, TABLE)
    assert read_curve(tmp_path / name) == fit_curve(TABLE)
    assert find_curve(tmp_path / name).table == TABLE


def test_the_file_of_a_rule_is_found_from_the_curve_wherever_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there", "runs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rules.py").write_text(f"def half(ratio):\n    return '{name}'\n")
    monkeypatch.chdir(tmp_path / "here")
    recipe = Recipe(rule="rules.py:half", base_batch=64, rule_digest=digest_of_rule("rules.py:half"))
    write_curve(tmp_path / "runs" / "curve.json", replace(TABLE, recipe=recipe))
    assert "../here/rules.py:half" in (tmp_path / "runs" / "curve.json").read_text()
    monkeypatch.chdir(tmp_path / "there")
    found = read_curve(tmp_path / "runs" / "curve.json").table.recipe
    assert found is not None
    assert found.rule == f"{(tmp_path / 'here' / 'rules.py').resolve()}:half"
    assert digest_of_rule(found.rule) == found.rule_digest != digest_of_rule("rules.py:half")


def test_files_that_are_wrong_are_refused_with_their_place(tmp_path: Path) -> None:
    write_curve(tmp_path / "good.toml", TABLE)
    good = (tmp_path / "good.toml").read_text()
    bad = "global_batch = 128, amount = -5.0"
    cases: tuple[tuple[str, str, dict[str, Any]], ...] = (
        (good.replace("schema_version = 1", "schema_version = 9"), "file.schema-version", {"schema_version": 9}),
        (good.replace('unit = "epochs"', 'unit = "hours"'), "file.wrong-value", {"match": "unit"}),
        (good.replace("global_batch = 128, amount = 5.0", bad), "curve.amount-not-positive", {"batch": 128}),
        (good.replace("amount = 5.0", "amount = nan"), "file.unusable-value", {"match": "points"}),
        (good.replace("network =", "networks ="), "file.unknown-key", {"match": "networks"}),
        (good[:-40], "file.not-toml", {}),
    )
    for text, code, figures in cases:
        assert text != good
        (tmp_path / "bad.toml").write_text(text)
        with raises(code, **figures):
            read_curve(tmp_path / "bad.toml")
    (tmp_path / "cut.json").write_text('{"schema_version": 1, "task')
    with pytest.raises(CorruptDataError):
        read_curve(tmp_path / "cut.json")
    with raises("curve-file.unknown-suffix"):
        write_curve(tmp_path / "curve.yaml", TABLE)
    with pytest.raises(EnvironmentProblem):
        write_curve(tmp_path / "missing" / "curve.toml", TABLE)


def test_every_curve_of_the_catalog_names_its_source() -> None:
    names = catalog_names()
    assert {"resnet50", "bert-large", "retinanet", "gpt3-175b", "resnet18-cifar10"} <= set(names)
    for name in names:
        table = find_curve(name).table
        assert "commit" in table.source or table.projection
        assert table.projection or "arXiv" not in table.source


def test_the_study_of_hybrid_parallelism_is_a_projection_and_ratios_are_no_curves() -> None:
    curve = find_curve("inception_v3-hybrid")
    epochs = [curve.need(64 * gpus).amount for gpus in (1, 32, 64, 128, 256)]
    assert epochs == pytest.approx([4, 4, 7, 12, 23])
    assert "a study's projection, not measured" in curve.need(2048).warnings
    ratios = {ratio.network: ratio.ratio for ratio in doubling_ratios()}
    assert ratios == {"gnmt": 1.878, "big-lstm": 2.0}
    with raises("curve.ratio-only", ratio=1.878):
        find_curve("gnmt-hybrid")


def test_an_unknown_name_says_what_is_near() -> None:
    with raises("curve.unknown", match='"resnet50"'):
        find_curve("resnet5")


def test_a_curve_of_another_network_is_refused() -> None:
    curve = fit_curve(TABLE)
    assert check_task(curve, "digits") == ()
    with raises("curve.other-job", network="digits"):
        check_task(curve, "digits-resnet")
    resnet = find_curve("resnet50")
    assert check_task(resnet, "ResNet50", samples_per_epoch=1_281_024) == ()
    for job in ("resnet18", "vgg16"):
        with raises("curve.other-job"):
            check_task(resnet, job)
    assert check_task(find_curve("bert-large"), "bert:large:sequence=512") == ()
    with pytest.raises(InputError):
        check_task(find_curve("bert-large"), "bert:base")


def test_of_a_job_of_one_s_own_it_is_said_what_the_curve_is_of() -> None:
    """Nobody else knows what train.py makes; the curve of another function of theirs is refused all the same."""
    (warning,) = check_task(find_curve("ssd"), "train.py:make")
    assert warning.startswith("the curve is of ssd: it holds if")
    with raises("curve.other-job"):
        check_task(fit_curve(replace(TABLE, network="train.py:other")), "train.py:make")


def test_other_data_and_another_target_are_warned_of() -> None:
    curve = fit_curve(TABLE)
    assert check_task(curve, "digits", samples_per_epoch=2000) == (
        "the curve was measured on 1000 samples an epoch, digits has 2000",
    )
    assert check_task(curve, "digits", target=0.9) == ("the curve is to the target 0.97, that of digits is 0.9",)
    assert "names no network" in check_task(fit_curve(replace(TABLE, network="")), "digits")[0]


def test_a_job_of_a_file_is_known_by_file_and_function() -> None:
    curve = fit_curve(replace(TABLE, network="jobs/train.py:make"))
    assert check_task(curve, "/elsewhere/train.py:make") == ()
    with pytest.raises(InputError):
        check_task(curve, "train.py:other")


def test_oddities_are_said() -> None:
    def said(**amounts: float) -> str:
        points = tuple(Point(global_batch=int(b[1:]), amount=a) for b, a in amounts.items())
        return " | ".join(oddities(replace(TABLE, points=points)))

    assert "not monotone: batch 128 needs less than 64" in said(b64=5, b128=4, b256=4.5)
    assert "batch 128 needs 50% more updates than 64" in said(b64=5, b128=15, b256=16)
    assert "one point only" in said(b64=5)
    assert "two points only" in said(b64=5, b128=6)
    assert said(b64=5, b128=6, b256=7) == ""
    assert "batch 64: 1 of 3 runs did not reach the target" in oddities(TABLE)[-1]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ("global_batch,epochs,run\n32,1e200,1\n32,2e200,2\n", "curve-file.figure-too-large"),
        ("global_batch,epochs,samples\n32,1e-300,1e300\n64,1e-300,1e300\n", "curve-file.figure-too-large"),
        ("global_batch,epochs,deviation,runs\n32,1,1e200,3\n64,2,1e200,3\n", "curve-table.wrong-cell"),
    ],
)
def test_figures_that_no_float_holds_are_refused_with_the_file(tmp_path: Path, rows: str, code: str) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(rows)
    with raises(code, file=str(table)):
        read_curve(table)


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        ("base_batch = 0", "curve.recipe-value-too-small"),
        ("base_batch = 64, warmup_epochs = -3.0", "curve.recipe-value-negative"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(tmp_path: Path, recipe: str, code: str) -> None:
    """Not a division by zero later, in a plan."""
    file = tmp_path / "curve.toml"
    file.write_text(
        'schema_version = 1\ntask = "t"\nunit = "epochs"\nsource = "s"\n'
        f'recipe = {{rule = "linear", {recipe}}}\npoints = [{{global_batch = 32, amount = 2.0}}]\n'
    )
    with raises(code):
        read_curve(file)


def test_a_curve_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "curve.toml"
    folder.mkdir()
    with pytest.raises(EnvironmentProblem):
        write_curve(folder, find_curve("resnet50").table)
    assert [one.name for one in tmp_path.iterdir()] == ["curve.toml"]


def test_a_name_too_long_for_a_file_is_no_curve() -> None:
    with raises("curve.unknown"):
        find_curve("x" * 5000)
