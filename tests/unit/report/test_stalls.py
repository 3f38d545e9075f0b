"""The page of a stall report, and its JSON form."""

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from trimaran.base.remedies import Remedy
from trimaran.report.stalls import RankSplit, StallReport, WaySplit, Without, stalls_document, stalls_view

NAMES = ("fetch", "prepare", "copy", "compute", "communication", "synchronization", "unattributed")


def shares(**milliseconds: float) -> dict[str, float]:
    return {name: 1e-3 * milliseconds.get(name, 0.0) for name in NAMES}


def way(**milliseconds: float) -> WaySplit:
    own = shares(**milliseconds)
    step_s = sum(own.values())
    return WaySplit(
        step_time_s=step_s,
        interval_s=(0.9 * step_s, 1.1 * step_s),
        shares=own,
        share_intervals_s={name: (0.9 * seconds, 1.1 * seconds) for name, seconds in own.items()},
        steps=40,
    )


def report(*, ranks: int = 2) -> StallReport:
    cached = way(fetch=30.0, prepare=10.0, compute=50.0, communication=8.0, synchronization=2.0)
    remedy = Remedy(
        id="load-ahead",
        method="estimated",
        limiter="fetch",
        name="pre-load in 2 workers",
        action="Let 2 workers of each rank load ahead of its steps.",
        predicted_gain=0.35,
        gain_interval=(0.3, 0.4),
        basis="A step's samples take 30.0 ms to read.",
    )
    small = Remedy(
        id="compress-gradients",
        method="estimated",
        limiter="communication",
        name="compress gradients to bf16",
        action="Send 16 bits for each number.",
        predicted_gain=0.004,
        gain_interval=(0.0, 0.01),
        basis="8.00 ms of a step are exchange that nothing hides.",
    )
    return StallReport(
        job="digits",
        strategy="dp2",
        feeding="each rank's own thread loads",
        ranks=ranks,
        devices="1 thread of a processor",
        global_batch_size=64,
        way="cached",
        ways={"cold": way(fetch=60.0, compute=50.0), "cached": cached, "synthetic": way(compute=50.0)},
        by_rank=[RankSplit(rank=rank, step_time_s=0.1, shares=cached.shares) for rank in range(ranks)],
        limiter="fetch",
        without={"fetch": Without(step_time_s=0.07, speedup=1 / 0.7)},
        advice=[remedy],
        not_worth=[small],
        notes=["No file was seen to be read, so the page cache was not dropped."],
        environment={"torch": "2.13"},
    )


def printed(own: StallReport) -> str:
    text = io.StringIO()
    Console(file=text, width=80, no_color=True, highlight=False).print(stalls_view(own))
    return text.getvalue()


def test_the_page_fits_80_columns_and_names_the_limiter_and_what_removing_it_gives() -> None:
    page = printed(report())
    assert max(map(len, page.splitlines())) <= 80
    whole = " ".join(page.split())
    assert "Limited by fetch, 30 % of the step. Without it: 70.0 ms a step, 1.43× as fast." in whole
    assert "…" not in page
    for part in (
        "60.0 ms",
        "pre-load in 2 workers",
        "35 %",
        "to bf16: 0.4 % (0.0 % to 1.0 %).",
        "No file was seen",
    ):
        assert part in page


def test_a_negative_class_is_shown_and_one_block_has_no_interval() -> None:
    own = report()
    cached = way(fetch=30.0, compute=75.0, unattributed=-5.0)
    cached = replace(cached, interval_s=None, share_intervals_s=None)
    ranks = [RankSplit(rank=rank, step_time_s=0.1, shares=cached.shares) for rank in range(2)]
    page = printed(replace(own, ways={"cached": cached}, by_rank=ranks))
    assert "100 ms a step cached; each rank's own thread loads" in " ".join(page.split())
    row = next(line for line in page.splitlines() if line.startswith("unattributed"))
    assert row.split()[-4:] == ["-5.0", "%", "-5.00", "ms"]
    assert "rest" in page


def test_many_ranks_are_cut_and_one_has_no_table_of_its_own() -> None:
    page = printed(report(ranks=12))
    assert "4 rows more" in page
    assert "By rank" not in printed(report(ranks=1))


def test_the_document_has_the_figures_of_the_way_that_counts_at_its_top() -> None:
    document = stalls_document(report())
    plain = json.loads(json.dumps(document, allow_nan=False))
    assert plain["shares"] == plain["ways"]["cached"]["shares"]
    assert math.isclose(sum(plain["shares"].values()), plain["step_time_s"])
    assert tuple(plain["shares"]) == NAMES
    assert plain["limiter"] == "fetch"
    assert plain["advice"][0]["predicted_gain"] == 0.35
    assert plain["not_worth"][0]["name"] == "compress gradients to bf16"
    assert [rank["rank"] for rank in plain["by_rank"]] == [0, 1]
    assert plain["without"]["fetch"]["step_time_s"] == 0.07
