"""The ablation as a drawing: what each remedy saves of replicate-and-scatter, one panel a machine, and of DDP.

saved
60 ┤      █
30 ┤─ ─ ─ █ ─ ─ ▒█   published mean
 0 └──▒█▒█──▒▒█──── networks
"""

from collections.abc import Sequence

from trimaran.report.reproduction.feeding import FeedingRow, ReproducedFeeding
from trimaran.report.reproduction.feeding_figures import PUBLISHED_SAVINGS
from trimaran.report.scaling.svg import Drawing

_BARS = (
    ("replicate-and-scatter", "split", "#9ec4df"),
    ("replicate-and-scatter", "pre-load", "#5b9bc8"),
    ("replicate-and-scatter", "compress", "#1b6ca8"),
    ("replicate-and-scatter", "all", "#0c3a5c"),
    ("ddp", "all", "#d1495b"),
)
_LEFT, _TOP, _HEIGHT, _BAR, _GAP = 56.0, 78.0, 210.0, 9.0, 12.0
_PANEL_GAP = 84.0


def plot(found: ReproducedFeeding) -> str:
    """The drawing as text of an SVG file."""
    batch = found.batches[len(found.batches) // 2]
    networks = tuple(dict.fromkeys(row.network for row in found.rows if row.batch == batch))
    width = max(360.0, len(networks) * (len(_BARS) * _BAR + _GAP))
    panels = len(found.machines)
    drawing = Drawing(width=_LEFT + width + 40, height=_TOP + panels * (_HEIGHT + _PANEL_GAP) + 30)
    drawing.text(_LEFT, 24, "Feed and wire: share of a step that is saved [%]", size=15, bold=True)
    drawing.text(_LEFT, 42, f"{found.devices} GPUs, batch {batch} a GPU, {found.software}, simulated", colour="#555")
    for number, machine in enumerate(found.machines):
        rows = [row for row in found.rows if row.machine == machine and row.batch == batch]
        _panel(drawing, found.titles[machine], rows, top=_TOP + number * (_HEIGHT + _PANEL_GAP), width=width)
    y = _TOP + panels * (_HEIGHT + _PANEL_GAP) + 4
    for number, (baseline, remedy, colour) in enumerate(_BARS):
        x = _LEFT + number * 82
        drawing.box(x, y - 9, 11, 11, colour=colour)
        drawing.text(x + 16, y, remedy if baseline != "ddp" else "all, of DDP")
    return drawing.render()


def _panel(drawing: Drawing, title: str, rows: Sequence[FeedingRow], *, top: float, width: float) -> None:
    saved = {(row.network, row.baseline, row.remedy): row.saved for row in rows}
    high = max(0.1, *saved.values())
    low = min(0.0, *saved.values())

    def place(share: float) -> float:
        return top + _HEIGHT * (high - share) / (high - low)

    drawing.text(_LEFT, top - 10, title, bold=True)
    step = 0.1 if high - low <= 0.6 else 0.2
    tick = -step * int(-low / step)
    while tick <= high:
        drawing.line([(_LEFT, place(tick)), (_LEFT + width, place(tick))], colour="#e4e4e4")
        drawing.text(_LEFT - 8, place(tick) + 4, f"{100 * tick:.0f}", anchor="end")
        tick += step
    x = _LEFT + _GAP / 2
    for network in dict.fromkeys(row.network for row in rows):
        first = x
        for baseline, remedy, colour in _BARS:
            share = saved[network, baseline, remedy]
            y = min(place(0.0), place(share))
            drawing.box(x, y, _BAR - 1, abs(place(share) - place(0.0)), colour=colour)
            x += _BAR
        drawing.text((first + x) / 2, place(low) + 16, network, anchor="middle", size=10)
        x += _GAP
    published = PUBLISHED_SAVINGS.get(rows[0].links)
    if published is not None:
        for share, name in ((published.mean, "published mean"), (published.most, "most")):
            if share <= high:
                drawing.line([(_LEFT, place(share)), (_LEFT + width, place(share))], colour="#555", dashed=True)
                drawing.text(_LEFT + width, place(share) - 4, name, anchor="end", size=10, colour="#555")
