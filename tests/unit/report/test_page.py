"""A page as HTML: what it has, what it says is not there, and that nothing of a file becomes a part of it."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.raising import raises
from tests.unit.report.pages import HOSTILE

from trimaran.base.html import DataTable, escaped, fragment, table_html
from trimaran.report.page.charts import (
    Bar,
    ChartAxis,
    Interval,
    LimitLine,
    Series,
    bar_chart,
    curve_chart,
    interval_chart,
)
from trimaran.report.page.layout import (
    MOST_BYTES,
    Absent,
    Chart,
    Commands,
    Page,
    Section,
    Timelines,
    Words,
    render_page,
)
from trimaran.report.page.steps import Considered, RankParts, candidates_section, parts_section

AXIS = ChartAxis(title="time [ms]")
TABLE = DataTable(columns=("rank", "time [ms]"), rows=[("0", "1.5")])
CHART = Chart(svg=bar_chart("bars", [Bar(name="0", parts=[1.5])], [("forward", "var(--forward)")], AXIS), table=TABLE)


class Elements(HTMLParser):
    """The elements of a page, and what is in its scripts.

    Attributes:
        found: name and attributes of each
        scripts: their contents
        open: elements that are not closed
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def page(*sections: Section, **changes: object) -> Page:
    found = Page(title="digits", kind="run", verdict="It took 1 s.", facts=[("step", "1 s")], sections=sections)
    return type(found)(**{name: getattr(found, name) for name in found.__slots__} | changes)  # type: ignore[arg-type]


def check_page(text: str) -> Elements:
    """What every page keeps to: elements that match, one script and one set of data, no loads, tables behind charts."""
    elements = Elements(text)
    assert elements.open == []
    names = [name for name, _ in elements.found]
    kinds = [attributes.get("type") for name, attributes in elements.found if name == "script"]
    assert kinds.count(None) == 1
    assert set(kinds) <= {None, "application/json"}
    assert not {"img", "iframe", "object", "embed", "base", "form", "video", "audio"} & set(names)
    for _, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    # Whatever could load names its host; texts of files are escaped, so that a slash of theirs stays a text.
    assert "url(" not in text
    assert "@import" not in text
    assert text.count("<svg") == text.count("<details", 0) - text.count('<details class="spans"')
    policy = next(a["content"] for n, a in elements.found if n == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert len(text.encode()) < MOST_BYTES
    return elements


def test_a_page_says_its_verdict_first_and_has_a_table_behind_its_chart() -> None:
    text = render_page(page(Section(id="parts", title="Parts", content=[CHART])))
    check_page(text)
    assert "<h1>It took 1 s.</h1>" in text
    assert text.index("<h1>") < text.index("<svg") < text.index("<table>")
    assert "1.5" in text[text.index("<table>") :]


def test_what_is_not_known_is_said_with_its_command() -> None:
    text = render_page(page(absent=[Absent(title="Scaling", how="trimaran scale digits --json")]))
    check_page(text)
    assert '<strong>Scaling</strong>: trimaran scale digits <span class="whole">--json</span>' in text


def test_the_script_is_the_one_of_the_policy() -> None:
    import base64
    import hashlib

    text = render_page(page())
    script = Elements(text).scripts[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_hostile_names_stay_texts_wherever_they_stand() -> None:
    table = DataTable(columns=(HOSTILE,), rows=[(HOSTILE,)], caption=HOSTILE, left_out=HOSTILE)
    svg = "".join(
        (
            bar_chart(HOSTILE, [Bar(name=HOSTILE, parts=[1.0], note=HOSTILE)], [(HOSTILE, "var(--idle)")], AXIS),
            bar_chart(HOSTILE, [Bar(name=HOSTILE, parts=[1.0])] * 30, [(HOSTILE, "var(--idle)")], AXIS, names=HOSTILE),
            interval_chart(HOSTILE, [Interval(name=HOSTILE, at=1, ends=(0, 2), label=HOSTILE, says=HOSTILE)], AXIS),
            curve_chart(
                HOSTILE,
                [Series(name=HOSTILE, points=[(1, 1), (2, 2)], says=[HOSTILE, HOSTILE])],
                ChartAxis(title=HOSTILE, label=lambda value: HOSTILE),
                AXIS,
                limits=[LimitLine(name=HOSTILE, at=1.0)],
            ),
        )
    )
    event = {"events": [[HOSTILE, 0, 0]], "views": [], "parts": [], "lanes": [], "unit_s": 1, "sources": []}
    content = [Words(lines=[HOSTILE]), Commands(lines=[(HOSTILE, HOSTILE)]), table]
    section = Section(id="x", title=HOSTILE, content=[*content, Timelines(document=event, note=HOSTILE)])
    text = render_page(
        page(
            section,
            Section(id="y", title="y", content=[Chart(svg=svg, table=table, caption=HOSTILE)]),
            title=HOSTILE,
            kind=HOSTILE,
            verdict=HOSTILE,
            facts=[(HOSTILE, HOSTILE)],
            absent=[Absent(title=HOSTILE, how=HOSTILE)],
            notes=[HOSTILE],
            sources=[HOSTILE],
        )
    )
    elements = Elements(text)
    assert elements.open == []
    names = [name for name, _ in elements.found]
    assert (names.count("script"), names.count("img")) == (2, 0)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all("alert(1)" not in script or "\\u003c" in script for script in elements.scripts)


def test_a_page_that_cannot_be_sent_is_refused() -> None:
    big = DataTable(columns=("x",), rows=[("y" * 1000,)] * 2100)
    with raises("report.too-large"):
        render_page(page(Section(id="x", title="x", content=[big])))


def test_a_fragment_has_the_verdict_and_the_table() -> None:
    found = fragment("It <fits>.", TABLE, ["note & more"])
    assert found.startswith("<div><p><strong>It &lt;fits&gt;.</strong></p><table>")
    assert "note &amp; more" in found
    assert "script" not in found


def test_words_stand_left_and_figures_right() -> None:
    found = table_html(DataTable(columns=("a", "b"), rows=[("x", "1")]))
    assert '<td>x</td><td class="figure">1</td>' in found


def test_escaping_takes_control_characters_and_quotes() -> None:
    assert escaped("a\x1b'\"<") == "a\\x1b&#x27;&quot;&lt;"


# ---------------------------------------------------------------------------------------------------------------------
# Charts


def places(svg: str, name: str) -> list[dict[str, float]]:
    """Figures of the attributes of each element of a name."""
    found = []
    for text in re.findall(rf"<{name} ([^>]*)", svg):
        pairs = re.findall(r'(\w+)="([\d.]+)"', text)
        found.append({key: float(value) for key, value in pairs})
    return found


def test_parts_of_a_bar_touch_and_sum_to_it() -> None:
    parts = [("a", "red"), ("b", "blue"), ("c", "green")]
    svg = bar_chart("bars", [Bar(name="0", parts=[1.0, 0.0, 3.0]), Bar(name="1", parts=[2.0, 0.0, 0.0])], parts, AXIS)
    first, second, third = (box for box in places(svg, "rect") if box["height"] == 18.0)
    assert third["width"] + 1 == pytest.approx(2 * (first["width"] + 1), abs=0.2)
    assert second["x"] == pytest.approx(first["x"] + first["width"] + 1, abs=0.2)
    assert second["width"] + 1 == pytest.approx(3 * (first["width"] + 1), abs=0.3)
    assert ">b<" not in svg  # what no bar has is not in the legend


def test_many_bars_stand_and_neighbours_that_are_alike_are_one() -> None:
    bars = [Bar(name=str(n), parts=[1.0 if n < 255 else 2.0]) for n in range(256)]
    svg = bar_chart("bars", bars, [("a", "red")], AXIS)
    drawn = [box for box in places(svg, "rect") if box["height"] > 20]
    assert len(drawn) == 2
    assert drawn[0]["width"] == pytest.approx(255 * drawn[1]["width"], rel=0.05)
    assert "0 to 254, a" in svg


def test_a_curve_leaves_out_what_its_axes_cannot_show() -> None:
    log = ChartAxis(title="x", log=True)
    points = [(0.0, 1.0), (1.0, 1.0), (10.0, 10.0), (100.0, -1.0), (float("inf"), 1.0), (10.0, float("nan"))]
    svg = curve_chart("curve", [Series(name="a", points=points, line=False)], log, log)
    assert len([dot for dot in places(svg, "circle") if dot["r"] == 3.5]) == 3  # two points and the legend
    assert curve_chart("curve", [Series(name="a", points=[(0.0, 0.0)])], log, log) == ""


@pytest.mark.parametrize("values", [[0.0], [-1.0], [1e308, 1e308], [float("inf")], []])
def test_bars_that_cannot_be_drawn_are_not(values: list[float]) -> None:
    bars = [Bar(name="0", parts=[value]) for value in values]
    assert bar_chart("bars", bars, [("a", "red")], AXIS) == ""


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [1e-250, 1.0, 1e250])
def test_one_point_has_a_chart_of_its_own_scale(value: float, log: bool) -> None:
    svg = curve_chart("curve", [Series(name="a", points=[(value, value)])], ChartAxis(title="x", log=log), AXIS)
    dots = [dot for dot in places(svg, "circle") if dot["cy"] > 40]
    assert len(dots) == 1
    assert 60 < dots[0]["cx"] < 560


def texts(svg: str) -> list[tuple[float, float, str, str]]:
    """Place, anchor and content of each text."""
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor="(\w+)"[^>]*>([^<]*)<', svg)
    return [(float(x), float(y), anchor, said) for x, y, anchor, said in found]


def test_axes_say_what_their_places_do_not() -> None:
    points = [(80.0, 100.0), (90.0, 1000.0)]
    svg = curve_chart(
        "c", [Series(name="a", points=points)], ChartAxis(title="time [s]"), ChartAxis(title="rate", log=True)
    )
    said = [text for *_, text in texts(svg)]
    assert "time [s], does not begin at 0" in said
    assert "rate, log scale" in said
    svg = curve_chart(
        "c", [Series(name="a", points=points)], ChartAxis(title="time [s]", zero=True), ChartAxis(title="rate")
    )
    assert "time [s]" in [text for *_, text in texts(svg)]


def test_labels_of_points_cover_neither_each_other_nor_a_point() -> None:
    """Two points that nearly touch, between others and under a limit, with names as long as those of strategies."""
    names = ["dp64 pp4 interleaved x10 tp4 zero1 m8 mb2", "dp1024 zero3 recompute:26"]
    points = [(3.24, 74.2), (3.26, 74.0)]
    others = [(3.24 + 0.01 * n, 74.2 - 0.3 * n) for n in range(2, 12)]
    svg = curve_chart(
        "c",
        [
            Series(name="", points=others, line=False),
            Series(name="", points=points, labels=names, line=False, size=7.0),
        ],
        ChartAxis(title="x"),
        ChartAxis(title="y"),
        limits=[LimitLine(name="most", at=74.5)],
    )
    boxes = [(x, y - 10, x + 6.5 * len(text), y + 2) for x, y, _, text in texts(svg) if text in names]
    assert len(boxes) == 2
    dots = [(dot["cx"] - 3, dot["cy"] - 3, dot["cx"] + 3, dot["cy"] + 3) for dot in places(svg, "circle")]
    for first, second in itertools.combinations(boxes, 2):
        assert not cross(first, second)
    assert not [dot for box in boxes for dot in dots if cross(box, dot)]
    assert all(box[0] >= 68 and box[2] <= 560 for box in boxes)


def test_a_label_is_next_to_its_point_among_others() -> None:
    """The nearest free place, not the first free one of a row: that may be at the other end of the chart."""
    others = [(72.2 + 0.4 * n, 2.95 - 0.02 * n) for n in range(5)]
    svg = curve_chart(
        "c",
        [
            Series(name="", points=[*others, (94.0, 2.0), (81.0, 5.0)], line=False),
            Series(name="", points=[(73.1, 2.7)], labels=["dp32 zero3"], line=False),
            Series(name="", points=[(72.2, 2.95)], labels=["dp32"], line=False, size=7.0),
        ],
        ChartAxis(title="x"),
        ChartAxis(title="y"),
    )
    dots = [(dot["cx"], dot["cy"]) for dot in places(svg, "circle")]
    for name, dot in (("dp32 zero3", dots[-2]), ("dp32", dots[-1])):
        ((x, y),) = [(x, y) for x, y, _, text in texts(svg) if text == name]
        assert abs(x - dot[0]) < 80, name
        assert abs(y - dot[1]) < 40, name


def test_a_name_of_a_part_is_whole_at_its_bar() -> None:
    name = "waiting for the host (launches)"
    bars = [Bar(name=name, parts=[1.0]), Bar(name="compute", parts=[2.0])]
    assert name in [text for *_, text in texts(bar_chart("c", bars, [("time", "red")], ChartAxis(title="t [ms]")))]


def cross(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Boxes by left, top, right and bottom share a place."""
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def test_candidates_fill_their_chart() -> None:
    """Steps of 3.24 to 3.5 s and 70 to 79 GiB: neither axis begins at 0, and the points are not in one corner."""
    rows = [
        Considered(name=f"dp{n}", verdict=verdict, step_s=step_s, interval_s=(3.0, 4.0), peak_bytes=peak * 2**30)
        for n, verdict, step_s, peak in ((1, "chosen", 3.24, 74), (2, "baseline", 3.5, 79), (3, "", 3.3, 70))
    ]
    section = candidates_section(rows)
    assert section is not None
    chart = section.content[0]
    assert isinstance(chart, Chart)
    dots = [dot for dot in places(chart.svg, "circle") if dot["cy"] > 50]
    across, up = [dot["cx"] for dot in dots], [dot["cy"] for dot in dots]
    assert max(across) - min(across) > 300
    assert max(up) - min(up) > 120
    assert chart.svg.count("does not begin at 0") == 2
    assert {"dp1", "dp2"} <= {text for *_, text in texts(chart.svg)}


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def test_a_long_text_has_a_width_to_be_read_in_and_its_section_the_whole_page() -> None:
    """What stood in a column of three letters; a table of few figures stays in one of two columns."""
    long = DataTable(
        columns=("policy", "peak", "step", "slower", "note"),
        rows=[("a", "1 GiB", "1 s", "2 %", "nothing that it tries fits; its first trial, all, is shown here")],
        words=frozenset({0, 4}),
    )
    assert '<td class="long">nothing' in table_html(long)
    assert "th.long, td.long { min-width: 18rem;" in STYLE
    narrow = DataTable(columns=("policy", "peak"), rows=[("a", "1 GiB")])
    for table, is_full in ((long, True), (narrow, False)):
        section = Section(id="policies", title="t", content=[Chart(svg="", table=table)])
        assert ('<section id="policies" class="full"' in render_page(page(section))) is is_full
    assert re.search(r"\.wide \{[^}]*overflow-x: auto", STYLE)


# ---------------------------------------------------------------------------------------------------------------------
# Colours


STYLE = (Path(__file__).parents[3] / "src/trimaran/report/page/page.css").read_text(encoding="utf-8")


def colours(theme: str) -> dict[str, str]:
    """Variables of a theme: what dark has not is that of light."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in STYLE.split("@media")[:2])
    return light if theme == "light" else light | dark


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Contrast ratio of WCAG 2.2."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_contrast_in_both_themes(theme: str) -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for graphics and what shows the focus (1.4.11)."""
    found = colours(theme)
    for ground in ("ground", "raised"):
        low = {name: contrast(found[name], found[ground]) for name in ("ink", "soft", "link")}
        assert min(low.values()) >= 4.5, low
    graphics = {
        name: contrast(colour, found["ground"])
        for name, colour in found.items()
        if name not in ("ground", "raised", "ink", "soft", "link", "grid", "rule")
    }
    assert len(graphics) >= 16
    assert min(graphics.values()) >= 3.0, graphics


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_neighbouring_parts_of_a_step_differ_without_colour(theme: str) -> None:
    """Forward and backward, which stand next to each other everywhere, differ in luminance alone."""
    found = colours(theme)
    assert contrast(found["forward"], found["backward"]) >= 1.9


def test_many_ranks_of_the_same_figures_are_one_row_of_the_table() -> None:
    """Of 256 ranks the last 16 take longer to compute: two rows to print, not 256."""
    ranks = [
        RankParts(rank=rank, source="predicted", parts_s=(1.0 if rank < 240 else 2.0, *(0.0,) * 7), overlapped_s=0.0)
        for rank in range(256)
    ]
    section = parts_section(ranks)
    assert section is not None
    tables = [part.table for part in section.content if isinstance(part, Chart) and part.table is not None]
    assert [row[0] for row in tables[0].rows] == ["ranks 0–239", "ranks 240–255"]


@pytest.mark.parametrize("ends", [(0.5, 100), (60, 100), (0.5, 60), (99, 100), (-100, 100), (20, 20)])
def test_the_figure_of_an_interval_lies_on_no_other_text(ends: tuple[float, float]) -> None:
    at = sum(ends) / 2
    svg = interval_chart("a step", [Interval(name="measured", at=at, ends=ends, label="174 ms", says="")], AXIS)
    texts = re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)" font-size="13" text-anchor="(\w+)"[^>]*>([^<]*)', svg)
    spans = [
        (float(x) - {"start": 0, "middle": 0.5, "end": 1}[how] * 7 * len(text), float(y), text)
        for x, y, how, text in texts
    ]
    ours = next(one for one in spans if one[2] == "174 ms")
    assert 0 <= ours[0] <= 560 - 7 * 6
    for x, y, text in spans:
        is_beside = x + 7 * len(text) <= ours[0] or ours[0] + 7 * 6 <= x
        assert text == "174 ms" or abs(y - ours[1]) >= 13 or is_beside, text
