"""A strategy must be believed faster, not only be measured so, before it displaces a simpler one."""

import pytest

from trimaran.planner import Candidate, choose
from trimaran.program import Program, Strategy
from trimaran.timeline import Timeline

PIPELINE = Strategy(pp=2, boundaries=("a",), microbatches=4)


def candidate(strategy: Strategy, low: float, median: float, high: float) -> Candidate:
    return Candidate(
        strategy=strategy,
        program=Program(ranks=(), segments=1, microbatches=1),
        timeline=Timeline([]),
        step_time_s=median,
        interval_s=(low, high),
        peak_bytes=(),
        limiter="compute",
    )


@pytest.mark.parametrize(
    ("pipeline", "chosen"),
    [
        # Half the time in every case: chosen, although its high end lies above the replicas' median.
        ((5.0, 6.0, 12.0), PIPELINE),
        # Slower where all costs are low: not believed.
        ((10.5, 9.0, 15.0), Strategy(dp=2)),
        # 2 % faster everywhere is less than what the model leaves out.
        ((9.8, 11.76, 19.6), Strategy(dp=2)),
    ],
)
def test_a_pipeline_displaces_replicas_only_if_faster_in_every_case(
    pipeline: tuple[float, float, float], chosen: Strategy
) -> None:
    """The replicas take 10, 12 and 20 s where all costs are low, at their median, and high."""
    replicas = candidate(Strategy(dp=2), 10.0, 12.0, 20.0)
    assert choose([candidate(PIPELINE, *pipeline), replicas]).strategy == chosen
