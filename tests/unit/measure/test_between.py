"""What a step has besides its instructions, read off a record."""

import pytest

from trimaran.base.timeline import Span, Timeline
from trimaran.measure.calibration.between import find_between


def test_the_slowest_rank_of_a_step_counts_whichever_it_is() -> None:
    """Of three ranks one in turn takes 11 s where the others take 10: a tenth over the middle, which is 10 s."""
    spans = [
        Span(
            rank=rank,
            stream="compute",
            start_s=20.0 * step + 5.0 * number,
            end_s=20.0 * step + 5.0 * (number + 1) + (1.0 if name == "B" and step % 3 == rank else 0.0),
            instruction=f"r{rank}/{name}0",
            step=step,
        )
        for step in range(8)
        for rank in range(3)
        for number, name in enumerate("FB")
    ]
    assert find_between(Timeline(spans), instructions=2, warmup=2).straggling == pytest.approx(0.1)
