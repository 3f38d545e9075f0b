"""The table of a plan's candidates, readable at 80 columns."""

import pytest
from tests import builders
from tests.unit.report.test_tables import lines, words

from trimaran.planning.answer.pages import candidate_table
from trimaran.program.strategy import Strategy

GIB = 2**30
SHORT = builders.candidate(
    builders.strategy(dp=2), 0.0123, (0.0119, 0.0128), peak_bytes=3 * GIB, limiter="compute of rank 1"
)
LONG = builders.candidate(
    builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=16, execution="compiled"),
    1.152,
    (1.142, 1.161),
    peak_bytes=3 * GIB,
    limiter="communication of gradients",
)


def test_the_candidate_table_marks_the_chosen_and_the_baseline() -> None:
    rows = lines(candidate_table([SHORT, LONG], chosen=SHORT, baselines=[SHORT]))
    row = next(row for row in rows if "dp2 " in row)
    assert words(row)[:7] == ["*=", "dp2", "12.3", "ms", "11.9–12.8", "3.0", "GiB"]


def test_the_candidate_table_leaves_out_columns_that_say_nothing() -> None:
    header = lines(candidate_table([builders.candidate(Strategy(), 1.0, (0.9, 1.1), limiter="")]))[1]
    assert words(header) == ["strategy", "step", "interval", "peak"]


@pytest.mark.parametrize("text", ["communication", "gradients", "compiled", "1f1b"])
def test_the_candidate_table_keeps_every_word_at_80_columns(text: str) -> None:
    assert text in " ".join(lines(candidate_table([SHORT, LONG], chosen=SHORT)))
