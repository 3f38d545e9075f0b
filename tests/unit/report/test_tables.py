"""Tables are complete at 80 columns and without colour."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.table import Table
from tests.tables import assert_whole
from tests.unit.report.runs import PROGRAM, measured, predicted

from trimaran.program.types import Kind
from trimaran.report.breakdown import PARTS, Breakdown, utilization
from trimaran.report.comparison import Comparison, Figure, KindComparison, RankComparison, compare
from trimaran.report.tables import (
    add_figures,
    add_words,
    frame_table,
    kind_table,
    make_console,
    rank_table,
    utilization_table,
)


def lines(table: RenderableType, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(table)
    return file.getvalue().splitlines()


def words(line: str) -> list[str]:
    return line.split()


def test_the_rank_table_has_three_lines_a_rank() -> None:
    """Rank 0 as worked by hand in `test_breakdown`; the longest step, 10 s, makes the unit s."""
    rows = lines(rank_table(compare(PROGRAM, predicted(), measured(6))))
    assert words(rows[1]) == ["rank", "FP", "BP", "WU", "load", "comm", "idle", "other", "step", "overlap"]
    first = next(place for place, row in enumerate(rows) if "predicted" in row and place > 1)
    assert words(" ".join(rows[first : first + 3])) == [
        *("0", "predicted", "2.00", "1.50", "1.00", "1.00", "1.00", "2.50", "0.00", "9.00", "0.00"),
        *("measured", "2.00", "1.50", "0.50", "1.00", "1.50", "2.55", "0.95", "10.0", "0.50"),
        *("error", "+0.0%", "+0.0%", "+100%", "+0.0%", "-33%", "-2.0%", "-100%", "-10%", "-100%"),
    ]


def test_the_rank_table_says_what_was_left_out() -> None:
    assert "5 steps measured after 1 of warm-up" in "\n".join(
        lines(rank_table(compare(PROGRAM, predicted(), measured(6))))
    )


def widest() -> Comparison:
    """Every number as wide as it gets, with errors beyond a thousand percent."""
    figure = Figure(predicted_s=9.999, measured_s=0.5)
    names = [f"{name}_s" for name in ("step", "overlapped", *PARTS)]
    long, short = (Breakdown(rank=0, step=0, **dict.fromkeys(names, seconds)) for seconds in (9.999, 0.5))
    ranks = tuple(RankComparison(rank=rank, predicted=long, measured=short) for rank in (0, 1023))
    kinds = tuple(
        KindComparison(
            kind=kind,
            count=9999,
            observed=9999,
            predicted_s=figure.predicted_s,
            measured_s=figure.measured_s,
        )
        for kind in Kind
    )
    return Comparison(step=figure, ranks=ranks, kinds=kinds, instructions={}, steps=500, warmup=10)


@pytest.mark.parametrize("width", [80, 60, 30])
@pytest.mark.parametrize("table", [rank_table, kind_table])
def test_nothing_is_cut_off(table: Callable[[Comparison], Table], width: int) -> None:
    assert_whole(table(widest()), width)


FIGURES = st.one_of(
    st.floats(0, 1e6).map(lambda value: f"{value:,.1f}"),
    st.floats(0, 1e3).map(lambda value: f"{value:.2f} GiB"),
    st.sampled_from(["–", "", "1.93 TB/s", "2,695–3,901", "+0.0 %"]),
)
WORDS = st.one_of(
    st.lists(st.sampled_from(["dp1024", "interleaved", "x10", "recompute:26", "limited", "by"]), max_size=8).map(
        " ".join
    ),
    st.just("model.layers.17.self_attn.q_proj.weight"),
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    table, columns = frame_table("title", "legend", gap=draw(st.sampled_from([1, 2]))), []
    for number in range(draw(st.integers(1, 14))):
        figures = draw(st.booleans())
        title = draw(st.sampled_from(["", "GPUs", "samples/s\nnccl", "limited by", f"column {number}"]))
        (add_figures if figures else add_words)(table, title, no_wrap=draw(st.booleans()))
        columns.append(FIGURES if figures else WORDS)
    for _ in range(draw(st.integers(0, 5))):
        table.add_row(*(draw(column) for column in columns))
    return table


@given(table=tables(), width=st.integers(30, 100))
def test_no_word_is_ever_elided_and_no_figure_folded(table: Table, width: int) -> None:
    assert_whole(table, width)


def test_what_has_no_room_stands_below_with_the_columns_that_tell_rows_apart() -> None:
    table = frame_table()
    add_figures(table, "batch", "GPUs", *("samples/s",) * 3)
    for batch, devices in ((16, 1), (16, 2), (32, 1), (32, 2)):
        table.add_row(str(batch), str(devices), *("1,234,567",) * 3)
    rows = [words(line) for line in lines(table, width=32)]
    assert rows[0] == ["batch", "GPUs", "samples/s", "samples/s"]
    assert rows[6:8] == [[], ["batch", "GPUs", "samples/s"]]
    assert rows[9:] == [[*row[:2], "1,234,567"] for row in rows[2:6]]


def test_every_table_is_one_that_elides_nothing() -> None:
    """A table of rich's own elides what has no room; `frame_table` does not."""
    for path in sorted(Path("src").rglob("*.py")):
        if path.name != "tables.py":
            text = path.read_text(encoding="utf-8")
            assert "ellipsis" not in text or path.name == "rehearsal.py", path
            assert not re.search(r"^from rich\.table import Table$", text, re.MULTILINE) or not re.search(
                r"(?<!\w)Table\(", text
            ), path


def test_the_kind_table_shows_what_was_not_observed() -> None:
    kinds = (KindComparison(kind=Kind.ALL_REDUCE, count=3, observed=0, predicted_s=0.002, measured_s=None),)
    comparison = Comparison(
        step=Figure(predicted_s=1.0, measured_s=1.0), ranks=(), kinds=kinds, instructions={}, steps=1, warmup=0
    )
    row = next(line for line in lines(kind_table(comparison)) if line.startswith("AR"))
    assert words(row) == ["AR", "all-reduce", "3", "0", "2.00", "ms", "–", "–"]


def test_the_utilization_table_shows_shares() -> None:
    """Rank 1 of the prediction: 3.5, 0.5 and 5 of 9 s."""
    rows = lines(utilization_table(utilization(PROGRAM, predicted())))
    assert words(rows[-3]) == ["1", "9.00", "s", "38.9", "%", "5.6", "%", "55.6", "%"]


def test_tables_are_plain_where_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True).print(rank_table(widest()))
    assert "\x1b[3" not in file.getvalue().replace("\x1b[3m", "")


def test_a_name_between_colons_is_no_picture() -> None:
    file = io.StringIO()
    make_console(file=file, width=80).print("job.py:a: 11 of 11 kinds of plans train it exactly.")
    assert file.getvalue() == "job.py:a: 11 of 11 kinds of plans train it exactly.\n"
