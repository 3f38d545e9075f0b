"""What cells of data parallelism and hybrids come to."""

from typing import Any

from benchmarks.hybrid.run import crossover, format_cell, format_summary, verdicts


def way(name: str, ranks: int, predicted_s: float, trained_s: float | None) -> dict[str, Any]:
    return {
        "way": name,
        "ranks": ranks,
        "strategy": name,
        "global_batch_size": 64,
        "predicted": {"time_s": predicted_s, "epochs": 5.0},
        "time_s": trained_s,
        "epochs": 5.0,
        "error": None if trained_s is None else predicted_s / trained_s - 1,
        "trainings": [],
        "reached": 0,
    }


def cell(*ways: dict[str, Any]) -> dict[str, Any]:
    return {"job": "one", "link": "1Gb/s", "target": 0.9, "seconds": 1.0, "refused": {}, "ways": list(ways)}


def test_the_best_predicted_ways_are_compared_as_they_were_trained() -> None:
    found = cell(
        way("dp2", 2, 4.0, 4.0),
        way("stages2", 2, 6.0, 4.2),
        way("dp4", 4, 3.0, 3.0),
        way("dp2 × stages", 4, 2.0, 2.0),
        way("dp2 × places", 4, 2.5, 1.0),  # not the one that is predicted to be the best
    )
    two, four = verdicts(found)
    assert (two["other"], two["right"]) == ("stages2", None)  # 5 % apart: either may be called the better one
    assert (four["other"], four["right"]) == ("dp2 × stages", True)
    assert four["predicted"] == four["trained"] == 2 / 3
    assert crossover(found, predicted=True) == crossover(found, predicted=False) == 4


def test_a_wrong_prediction_is_called_wrong() -> None:
    found = cell(way("dp4", 4, 3.0, 3.0), way("dp2 × stages", 4, 2.0, 4.0))
    (four,) = verdicts(found)
    assert four["right"] is False
    assert (crossover(found, predicted=True), crossover(found, predicted=False)) == (4, None)
    text = format_summary([found])
    assert "**wrong**" in text
    assert "right: 0 of 1" in text
    assert "right in 0 of 1 cells" in text


def test_a_cell_names_the_part_by_which_a_prediction_differs() -> None:
    slow = way("dp2", 2, 4.0, 9.0) | {"epochs": 6.0, "epoch_s": 1.5, "trainings": [{"on_core": 0.5}]}
    text = format_cell(cell(slow) | {"others": {"2": 0.25, "4": None}})
    # 5 epochs of 0.8 s were predicted.
    assert "epochs 1.20 times, an epoch 1.88 times as predicted, a rank on a core 50% of the time" in text
    assert "on 2 ranks other programs took 25% of the cores" in text


def test_a_way_that_never_arrives_is_not_compared() -> None:
    assert verdicts(cell(way("dp4", 4, 3.0, 3.0), way("dp2 × stages", 4, 2.0, None))) == []
