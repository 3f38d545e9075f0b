"""Tables, JSON and a drawing of the ablation of three remedies for slow input pipelines, with published figures.

Only the abstract of the study is public. It gives the time saved over a baseline that it calls "modern data
parallelism". Networks, batches, cards and software are not in the abstract.

Source:
    W. Xu, A. Pattnaik, G. Yuan, Y. Wang, Y. Zhang, X. Tang, "ScaleDNN: Data Movement Aware DNN Training on Multi-GPU",
    ICCAD 2021, doi 10.1109/ICCAD51958.2021.9643503: up to 39.38 % of the time, 17.96 % on average, over PCIe; up to
    19.20 %, 10.26 % on average, over NVLink.

The drawing: time that each remedy saves of replicate-and-scatter and of DDP, one panel for each machine.

saved
60 ┤      █
30 ┤─ ─ ─ █ ─ ─ ▒█   published mean
 0 └──▒█▒█──▒▒█──── networks
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from rich.table import Table

from trimaran.base.units import format_span
from trimaran.report.svg import Drawing
from trimaran.report.tables import add_figures, add_words, frame_table

SOURCE = "Xu et al., ScaleDNN, ICCAD 2021, abstract; doi 10.1109/ICCAD51958.2021.9643503"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSaving:
    """Time that the three remedies of the study save together.

    Attributes:
        mean: over its networks, as a share of the step
        most: of one network
    """

    mean: float
    most: float


PUBLISHED_SAVINGS = {
    "PCIe": PublishedSaving(mean=0.1796, most=0.3938),
    "NVLink": PublishedSaving(mean=0.1026, most=0.1920),
}
"""Published savings, by the links between the GPUs."""


Basis = Literal["simulated", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingRow:
    """One network on one machine with some remedies.

    Attributes:
        machine: its name
        links: between its devices: "PCIe" or "NVLink"
        network: its name
        batch: samples of a device
        baseline: that the saving is relative to: "replicate-and-scatter" or "ddp"
        remedy: "none", "split", "pre-load", "compress", "all"; against replicate-and-scatter also "ddp", a process for
            each device, and "ddp, all", the same with the remaining remedies
        step_s: the step [s]
        step_interval: 90 % of it [s]
        saved: share of the baseline's step that is saved
        interval: 90 % of it
        parts: of the step, by name; they sum to it [s]
        basis: simulated or measured
    """

    machine: str
    links: str
    network: str
    batch: int
    baseline: str
    remedy: str
    step_s: float
    step_interval: tuple[float, float]
    saved: float
    interval: tuple[float, float]
    parts: Mapping[str, float]
    basis: Basis = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Time that a remedy saves on a machine, over its networks and batches.

    Attributes:
        machine: its name
        links: between its devices
        baseline: that it is compared with
        remedy: which
        mean: of the saved shares
        interval: 90 % of it, with the same error in all rows
        most: the largest
        most_network: network with the largest
        least: the smallest
        rows: number of rows
        published: figure of the study; None: it has none
    """

    machine: str
    links: str
    baseline: str
    remedy: str
    mean: float
    interval: tuple[float, float]
    most: float
    most_network: str
    least: float
    rows: int
    published: PublishedSaving | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedFeeding:
    """All rows.

    Attributes:
        devices: GPUs of each machine
        software: framework and year
        rows: by machine, batch, network, baseline, remedy
        titles: of the machines, by name
        notes: for the reader
    """

    devices: int
    software: str
    rows: tuple[FeedingRow, ...]
    titles: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """In order."""
        return tuple(dict.fromkeys(row.machine for row in self.rows))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches of a device, in order."""
        return tuple(dict.fromkeys(row.batch for row in self.rows))


def savings(rows: Sequence[FeedingRow]) -> tuple[Saving, ...]:
    """Each remedy against each baseline on each machine; nothing for "none".

    Args:
        rows: in the order of the result
    """
    groups: dict[tuple[str, str, str], list[FeedingRow]] = {}
    for row in rows:
        if row.remedy != "none":
            groups.setdefault((row.machine, row.baseline, row.remedy), []).append(row)
    return tuple(_saving(found) for found in groups.values())


def _saving(rows: Sequence[FeedingRow]) -> Saving:
    first, most = rows[0], max(rows, key=lambda row: row.saved)
    is_studied = first.baseline == "replicate-and-scatter" and first.remedy == "all"
    return Saving(
        machine=first.machine,
        links=first.links,
        baseline=first.baseline,
        remedy=first.remedy,
        mean=fmean(row.saved for row in rows),
        interval=(fmean(row.interval[0] for row in rows), fmean(row.interval[1] for row in rows)),
        most=most.saved,
        most_network=most.network,
        least=min(row.saved for row in rows),
        rows=len(rows),
        published=PUBLISHED_SAVINGS.get(first.links) if is_studied else None,
    )


def feeding_document(found: ReproducedFeeding) -> dict[str, Any]:
    """The ablation as plain data; savings are shares, intervals `[low, high]`."""
    return {
        "paper": SOURCE,
        "devices": found.devices,
        "software": found.software,
        "machines": [{"machine": name, "title": found.titles[name]} for name in found.machines],
        "rows": [_row(row) for row in found.rows],
        "summary": [
            *(_summary(one, None) for one in savings(found.rows)),
            *(
                _summary(one, batch)
                for batch in found.batches
                for one in savings([row for row in found.rows if row.batch == batch])
            ),
        ],
        "notes": list(found.notes),
    }


def _row(row: FeedingRow) -> dict[str, Any]:
    return {
        "machine": row.machine,
        "links": row.links,
        "network": row.network,
        "local_batch_size": row.batch,
        "baseline": row.baseline,
        "remedy": row.remedy,
        "step_time_s": row.step_s,
        "step_interval_s": list(row.step_interval),
        "saved": row.saved,
        "interval": list(row.interval),
        "parts_s": dict(row.parts),
        "basis": row.basis,
    }


def _summary(one: Saving, batch: int | None) -> dict[str, Any]:
    published = one.published
    return {
        "machine": one.machine,
        "links": one.links,
        "baseline": one.baseline,
        "remedy": one.remedy,
        "local_batch_size": batch,
        "mean_saved": one.mean,
        "interval": list(one.interval),
        "max_saved": one.most,
        "max_network": one.most_network,
        "min_saved": one.least,
        "rows": one.rows,
        "published_mean_saved": None if published is None else published.mean,
        "published_max_saved": None if published is None else published.most,
        "published_grade": None if published is None else "published",
    }


# ---------------------------------------------------------------------------------------------------------------------
# The result in sentences: compared with the study, and with plain DDP


_PART_NAMES = {
    "feed": "copying the batch from the host",
    "scatter": "scattering it",
    "replicate": "sending the weights out",
    "gather": "collecting outputs",
    "reduce": "summing gradients on the first GPU",
}


def verdict_lines(found: ReproducedFeeding) -> list[str]:
    """For each machine, one line that compares with the study, and one that compares with DDP."""
    lines = []
    all_savings = savings(found.rows)
    for machine in found.machines:
        own = {(one.baseline, one.remedy): one for one in all_savings if one.machine == machine}
        rows = [row for row in found.rows if row.machine == machine]
        lines += [_against_study(found, own), _against_ddp(own, rows)]
    return lines


def _against_study(found: ReproducedFeeding, own: Mapping[tuple[str, str], Saving]) -> str:
    one = own["replicate-and-scatter", "all"]
    if one.published is None:
        return f"{one.links}: the study has no figure for such links."
    low, high = one.interval
    inside = low <= one.published.mean <= high
    told = (
        f"{one.links}: all three save {_share(one.mean)} on average and {_share(one.most)} at most "
        f"({one.most_network}); the study {_share(one.published.mean)} and {_share(one.published.most)}. "
        f"Its mean is {'within' if inside else 'outside'} our 90 %."
    )
    rows = _rows(found, one.machine, one.most_network)
    return f"{told} {one.most_network} loses most to {_largest_losses(rows)}."


def _rows(found: ReproducedFeeding, machine: str, network: str) -> list[FeedingRow]:
    return [
        row
        for row in found.rows
        if (row.machine, row.network, row.baseline, row.remedy) == (machine, network, "replicate-and-scatter", "none")
    ]


def _largest_losses(rows: Sequence[FeedingRow]) -> str:
    shares = {title: fmean(row.parts[name] / row.step_s for row in rows) for name, title in _PART_NAMES.items()}
    first, second = sorted(shares, key=lambda title: -shares[title])[:2]
    return f"{first} ({_share(shares[first])} of its step) and {second} ({_share(shares[second])})"


def _against_ddp(own: Mapping[tuple[str, str], Saving], rows: Sequence[FeedingRow]) -> str:
    ddp, left = own["replicate-and-scatter", "ddp"], own["ddp", "all"]
    each = ", ".join(f"{name} {_share(own['ddp', name].mean)}" for name in ("split", "pre-load", "compress"))
    return (
        f"{ddp.links}: DDP alone, without any of the three, saves {_share(ddp.mean)} of replicate-and-scatter on "
        f"average. Of DDP's step the three save {_share(left.mean)} (from {_share(left.least)} to {_share(left.most)}, "
        f"{left.most_network}): {each}. {_what_pays(rows)}"
    )


def _what_pays(rows: Sequence[FeedingRow]) -> str:
    """In words: the cases in which compression costs more than it saves, and the saving of the other remedies."""
    steps: dict[tuple[str, int], dict[str, FeedingRow]] = {}
    for row in rows:
        if row.baseline == "ddp":
            steps.setdefault((row.network, row.batch), {})[row.remedy] = row
    costs = [of for of in steps.values() if of["compress"].saved < 0.0]
    if not costs:
        return "Compressing pays in every case."
    best = fmean(max(row.saved for row in of.values()) for of in steps.values())
    return (
        f"Compressing is not worth it in {len(costs)} of {len(steps)} cases: coding takes longer than it saves. "
        f"With only the remedies that pay in each case, {_share(best)} are saved."
    )


def legend_lines(found: ReproducedFeeding) -> list[str]:
    """The meaning of the columns, and the basis of the figures."""
    return [
        "step: replicate-and-scatter (DataParallel): batch, weights and gradients all go through GPU 0. Columns up to "
        "DDP: share of it that each remedy saves [%], all together with 90 %, and DDP alone. Right of it: DDP's step, "
        "and the share that remedies save of it; DDP splits the batch already.",
        f"Predicted for {found.software} on {found.devices} GPUs, 32-bit, samples ready in the host's memory; "
        "compress: 16-bit weights and gradients, with error feedback. Nothing is fitted to the study's figures.",
        f"Published: {SOURCE}. Its networks, batches and cards are not in the abstract.",
        *found.notes,
    ]


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


# ---------------------------------------------------------------------------------------------------------------------
# The ablation as tables of 80 columns


def feeding_table(found: ReproducedFeeding, machine: str, batch: int) -> Table:
    """Share that each remedy saves on a machine at a batch, a line for each network.

    Args:
        found: the ablation
        machine: one of its machines
        batch: of a device
    """
    table = frame_table(f"{found.titles[machine]}, batch {batch} a GPU")
    add_words(table, "network", no_wrap=True)
    add_figures(
        table,
        "step\nms",
        "split\n",
        "pre-\nload",
        "com-\npress",
        "all\n",
        "90 %\n",
        "DDP\n",
        "DDP\nms",
        "pre-\nload",
        "com-\npress",
        "all\n",
    )
    rows = [row for row in found.rows if row.machine == machine and row.batch == batch]
    for network in dict.fromkeys(row.network for row in rows):
        of = {(row.baseline, row.remedy): row for row in rows if row.network == network}
        first, ddp = ({remedy: of[base, remedy] for base, remedy in of if base == name} for name in _BASELINES)
        table.add_row(
            network,
            _ms(first["none"].step_s),
            *(_percent(first[name].saved) for name in ("split", "pre-load", "compress", "all")),
            format_span(*map(_percent, first["all"].interval), to="–"),
            _percent(first["ddp"].saved),
            _ms(ddp["none"].step_s),
            *(_percent(ddp[name].saved) for name in ("pre-load", "compress", "all")),
        )
    return table


def savings_table(found: ReproducedFeeding, machine: str) -> Table:
    """Means over all networks and batches on a machine, with the study's figures.

    Args:
        found: the ablation
        machine: one of its machines
    """
    rows = [row for row in found.rows if row.machine == machine]
    table = frame_table(f"{rows[0].links}: saved over all networks and batches [%]")
    add_words(table, "against", "remedy", no_wrap=True)
    add_figures(table, "mean", "90 %", "least", "most", "published")
    before = ""
    for one in savings(rows):
        known = one.published
        published = "" if known is None else f"{_tenths(known.mean)}, most {_tenths(known.most)}"
        table.add_row(
            "" if one.baseline == before else one.baseline,
            one.remedy,
            _tenths(one.mean),
            format_span(*map(_percent, one.interval)),
            _percent(one.least),
            _percent(one.most),
            published,
        )
        before = one.baseline
    return table


_BASELINES = ("replicate-and-scatter", "ddp")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def _percent(share: float) -> str:
    return str(round(100 * share))


def _tenths(share: float) -> str:
    return f"{100 * share:.1f}"


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
    drawing.text(
        _LEFT, 24, "Input pipeline and gradient communication: share of a step that is saved [%]", size=15, bold=True
    )
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
