"""Which strategies are tried, and why others are not."""

from trimaran.planner.space import enumerate_strategies, simplicity
from trimaran.program import Strategy


def test_every_way_to_use_two_devices_or_one() -> None:
    kept, rejected = enumerate_strategies(devices=2, batch=64, can_cut=True)
    names = [strategy.name for strategy in kept]
    assert names[:2] == ["one device", "dp2"]
    assert set(names[2:]) == {f"pp2 {schedule} m{count}" for schedule in ("gpipe", "1f1b") for count in (2, 4, 8)}
    assert rejected == []


def test_a_batch_that_does_not_divide_is_rejected_with_the_figures() -> None:
    _, rejected = enumerate_strategies(devices=2, batch=6, can_cut=True)
    assert "a global batch of 6 does not divide into 1 × 4 shares" in {rejection.reason for rejection in rejected}


def test_hybrids_are_tried_on_four_devices() -> None:
    kept, _ = enumerate_strategies(devices=4, batch=64, can_cut=True)
    assert any(strategy.dp == 2 and strategy.pp == 2 for strategy in kept)


def test_simpler_means_fewer_mechanisms_before_fewer_devices() -> None:
    pipeline = Strategy(pp=2, boundaries=("a",), microbatches=2)
    hybrid = Strategy(dp=2, pp=2, boundaries=("a",), microbatches=2)
    assert sorted([hybrid, pipeline, Strategy(dp=4), Strategy()], key=simplicity) == [
        Strategy(),
        Strategy(dp=4),
        pipeline,
        hybrid,
    ]
