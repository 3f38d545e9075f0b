"""The ablation as figures: means, extremes, intervals, and what is published beside."""

import json
import math

import pytest

from trimaran_studies.reproduce.input_pipeline_real import TriedFeeding, TriedRemedy, tried_document
from trimaran_studies.reproduce.input_pipeline_report import (
    PUBLISHED_SAVINGS,
    FeedingRow,
    ReproducedFeeding,
    feeding_document,
    savings,
)

REMEDIES = ("none", "split", "pre-load", "compress", "all")


def row(network: str, baseline: str, remedy: str, saved: float, **changes: object) -> FeedingRow:
    values: dict[str, object] = {
        "machine": "box",
        "links": "PCIe",
        "network": network,
        "batch": 32,
        "baseline": baseline,
        "remedy": remedy,
        "step_s": 1.0 - saved,
        "step_interval": (0.5, 2.0),
        "saved": saved,
        "interval": (saved - 0.1, saved + 0.2),
        "parts": {"feed": 0.25, "forward": 0.75 - saved},
    }
    return FeedingRow(**(values | changes))  # type: ignore[arg-type]


def test_a_saving_is_a_mean_with_its_extremes() -> None:
    """0.1 and 0.4: mean 0.25, interval from the mean of 0.0 and 0.3 to that of 0.3 and 0.6."""
    rows = [row(name, "ddp", "all", saved) for name, saved in (("small", 0.1), ("large", 0.4))]
    (one,) = savings([*rows, row("small", "ddp", "none", 0.0)])
    assert (one.mean, one.least, one.most, one.most_network, one.rows) == (pytest.approx(0.25), 0.1, 0.4, "large", 2)
    assert one.interval == (pytest.approx(0.15), pytest.approx(0.45))


def test_what_is_published_stands_beside_all_three_against_replicate_and_scatter_only() -> None:
    rows = [row("net", base, name, 0.1) for base in ("replicate-and-scatter", "ddp") for name in REMEDIES]
    published = {(one.baseline, one.remedy): one.published for one in savings(rows)}
    assert published.pop(("replicate-and-scatter", "all")) == PUBLISHED_SAVINGS["PCIe"]
    assert set(published.values()) == {None}


def test_the_document_has_a_summary_over_all_batches_and_of_each() -> None:
    rows = tuple(row("net", "ddp", "all", saved, batch=batch) for batch, saved in ((16, 0.2), (32, 0.4)))
    found = ReproducedFeeding(devices=4, software="pytorch:2021", rows=rows, titles={"box": "a box"})
    document = feeding_document(found)
    assert [(one["local_batch_size"], one["mean_saved"]) for one in document["summary"]] == [
        (None, pytest.approx(0.3)), (16, 0.2), (32, 0.4),
    ]  # fmt: skip
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def tried(times: tuple[float, ...], base: tuple[float, ...], predicted: float | None = None) -> TriedRemedy:
    return TriedRemedy(
        machine="2 ranks, free links",
        network="reads",
        batch=16,
        baseline="ddp",
        remedy="all",
        times_s=times,
        base_times_s=base,
        predicted_s=predicted,
    )


def test_a_measured_saving_is_of_means() -> None:
    """Of 0.5 and 1.5, as where two workers hand over together."""
    found = tried((0.5, 1.5, 0.5, 1.5), (2.0, 2.0, 2.0), predicted=1.1)
    assert found.saved == pytest.approx(0.5)
    assert found.error == pytest.approx(0.1)
    low, high = found.interval
    assert low <= found.saved <= high


def test_a_case_saves_nothing_of_itself() -> None:
    times = (1.0, 2.0, 3.0)
    assert (tried(times, times).saved, tried(times, times).interval) == (0.0, (0.0, 0.0))


def test_a_measured_document_holds_no_number_that_json_lacks() -> None:
    document = tried_document(TriedFeeding(ranks=2, rows=(tried((1.0,), (2.0,)),)))
    (one,) = document["rows"]
    assert (one["basis"], one["predicted_step_time_s"], one["error"]) == ("measured", None, None)
    assert all(math.isfinite(value) for value in one["interval"])
