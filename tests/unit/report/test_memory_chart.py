from trimaran.report.memory import LiveCurve, chart_legend, memory_chart


def _curve(kept: tuple[int, ...], plan: tuple[int, ...], phases: tuple[str, ...] | None = None) -> LiveCurve:
    names = phases or ("FP",) * len(kept)
    return LiveCurve(seconds=(1.0,) * len(kept), phases=names, kept_bytes=kept, plan_bytes=plan)


def test_no_line_is_wider_than_asked() -> None:
    curve = _curve(tuple(range(1, 300)), tuple(range(1, 300)), ("FP",) * 100 + ("BP",) * 150 + ("WU",) * 49)
    for width in (40, 80, 120):
        lines = memory_chart(curve, budget_bytes=200, width=width).splitlines()
        assert max(map(len, lines)) <= width


def test_a_peak_within_one_column_is_not_lost() -> None:
    """1000 moments in 68 columns; one of them holds eight times as much as the rest."""
    values = (1,) * 500 + (8,) + (1,) * 499
    top = memory_chart(_curve(values, values), budget_bytes=8, height=4).splitlines()[0]
    assert top.count("█") == 1


def test_the_plan_is_filled_and_what_autograd_alone_would_hold_is_dotted() -> None:
    top, *_, bottom, _, _ = memory_chart(_curve((8, 8), (2, 2)), budget_bytes=8, width=16, height=4).splitlines()
    assert "····" in top
    assert "████" in bottom


def test_the_budget_has_a_line_with_its_size() -> None:
    lines = memory_chart(_curve((2, 8), (2, 2)), budget_bytes=6, height=4).splitlines()
    assert "6 B ┤─" in lines[1]


def test_a_budget_above_everything_sets_the_scale() -> None:
    assert "16 B ┤─" in memory_chart(_curve((4,), (4,)), budget_bytes=16, height=4).splitlines()[0]


def test_phases_are_named_where_they_are() -> None:
    """Half of the time is forward, half is backward; the 4 columns of the update are not enough for its name."""
    curve = _curve((1,) * 100, (1,) * 100, ("FP",) * 50 + ("BP",) * 45 + ("WU",) * 5)
    names = memory_chart(curve, budget_bytes=1, width=92).splitlines()[-1]
    assert names.index("forward") == 12
    assert names.index("│backward") == 12 + 40
    assert names.endswith("│upd")


def test_without_a_plan_only_one_curve_is_explained() -> None:
    assert "·" not in chart_legend(_curve((1,), ()))


def test_a_trace_without_times_is_spread_evenly() -> None:
    curve = LiveCurve(seconds=(0.0, 0.0), phases=("FP", "BP"), kept_bytes=(1, 2), plan_bytes=(1, 2))
    assert memory_chart(curve, budget_bytes=2, width=16, height=2).splitlines()[0].endswith("──██")
