"""A measurement of convergence on a terminal of 80 columns, and as JSON."""

import io
import json
import math

from rich.console import Console

from trimaran.convergence.curve import fit_curve
from trimaran.convergence.types import CurveTable, Point
from trimaran.features.convergence.measure import ConvergedBatch, fitted_curve
from trimaran.jobs.learning_rate import Recipe
from trimaran.program.json_files import to_plain
from trimaran.report.convergence_runs import ConvergedRun, Convergence, NoiseComparison, converge_page
from trimaran.report.page.terminal import print_page


def _run(batch: int, epochs: float | None, seed: int = 0) -> ConvergedRun:
    return ConvergedRun(
        global_batch_size=batch,
        seed=seed,
        end="epochs" if epochs is None else "reached",
        epochs=epochs,
        trained_epochs=30.0 if epochs is None else epochs + 0.25,
        samples=3000,
        updates=40,
        seconds=1.5,
        best_metric=0.91,
        gradient_noise={"b_crit": 90.0, "interval": [50.0, None]},
        noise_b_crit=None if epochs is None else 110.0,
    )


def found(*, flat: bool = False) -> Convergence:
    """10 epochs, twice as many at 512; flat: 10 everywhere. Batch 1024 was not reached."""
    batches = (64, 128, 512)
    amounts = [10.0 if flat else 10.0 * (1 + batch / 512) for batch in batches]
    table = CurveTable(
        task="mine to 0.9",
        unit="epochs",
        points=tuple(
            Point(global_batch=batch, amount=amount, values=(amount,))
            for batch, amount in zip(batches, amounts, strict=True)
        ),
        source="by hand",
        samples_per_epoch=1000,
        target=0.9,
        recipe=Recipe(rule="sqrt", base_batch=64),
    )
    curve = fit_curve(table)
    rows = [
        ConvergedBatch(global_batch=one, runs=(_run(one, amount),))
        for one, amount in zip(batches, amounts, strict=True)
    ]
    rows.append(ConvergedBatch(global_batch=1024, runs=(_run(1024, None),), missing=1))
    ratio = None if math.isinf(curve.fit.b_crit) else 300 / curve.fit.b_crit
    return Convergence(
        job="mine.py:make",
        target=0.9,
        target_source="asked for",
        rule_source="by the optimizer, AdamW",
        max_epochs=30.0,
        microbatch=64,
        devices=2,
        samples_per_epoch=1000,
        recipe=table.recipe,
        curve=fitted_curve(curve, rows),
        runs=tuple(run for one in rows for run in one.runs),
        gradient_noise=NoiseComparison(b_crit=300.0, runs_interval=(200.0, 400.0), runs=4, ratio_to_fitted=ratio),
        runs_kept=3,
        time_s=61.0,
        run_dir="runs/converge-mine-0123abcd",
        curve_file="runs/converge-mine-0123abcd/curve.json",
        warnings=("batch 1024: 1 of 1 runs did not reach 0.9 within 30 epochs, best 0.91; it is not in the curve",),
    )


def _printed(shown: Convergence) -> list[str]:
    file = io.StringIO()
    print_page(Console(file=file, width=80, no_color=True), converge_page(shown))
    return file.getvalue().splitlines()


def test_the_page_is_complete_at_80_columns() -> None:
    lines = _printed(found())
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    cells = [line.replace(",", "").split() for line in lines]
    rows = {row[0]: row for row in cells if row and row[0].isdigit()}
    assert rows["512"][1:4] == ["20.00", "–", "20.00"]
    assert rows["1024"][1:3] == ["–", "–"]
    assert rows["1024"][4:7] == ["0", "of", "2"]
    assert (rows["512"][-1], rows["1024"][-1]) == ("110", "–")


def test_the_document_has_points_runs_and_what_was_not_reached() -> None:
    document = json.loads(json.dumps(to_plain(found()), allow_nan=False))
    curve = document["curve"]
    assert round(curve["e0"], 3) == 10.0
    assert round(curve["b_crit"]) == 512
    assert [point["epochs"] for point in curve["points"]] == [11.25, 12.5, 20.0, None]
    assert [point["samples"] for point in curve["points"]] == [11250.0, 12500.0, 20000.0, None]
    assert curve["points"][3] | {"failed": 1, "missing": 1, "best_metric": 0.91} == curve["points"][3]
    assert [run["reached"] for run in document["runs"]] == [True, True, True, False]
    assert document["training_s"] == 6.0
    assert document["recipe"]["rule"] == "sqrt"


def test_a_flat_curve_has_no_critical_batch_and_no_ratio() -> None:
    document = json.loads(json.dumps(to_plain(found(flat=True)), allow_nan=False))
    assert document["curve"]["b_crit"] is None
    assert document["gradient_noise"]["ratio_to_fitted"] is None
    assert any("infinite" in line for line in _printed(found(flat=True)))
