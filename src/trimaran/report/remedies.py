"""Known remedies for what limits a step, each with what it is predicted to save.

`observe` and `explain` rank the same type by the same figure, so that their advice can be compared. A remedy says what
to do in one sentence, how its gain was computed, and what that takes for granted: a gain without its arithmetic is an
opinion.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimaran.base.errors import InputError
from trimaran.program.json_files import to_plain
from trimaran.report.tables import frame_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One known remedy.

    Attributes:
        limiter: what it acts on, such as "loader" or "exchange"
        name: in a few words, such as "load in 2 workers"
        action: what to do, one sentence
        predicted_gain: share of the time of a step, or of an epoch where that is made best, that it saves, below 1;
            where it changes the batch, of the time per sample; negative: it would cost
        gain_interval: 90 % interval of it, (low, high)
        basis: how the gain was computed, with the figures
        assumption: what was taken for granted
        setting: the figures in the name, by name, such as {"workers": 2}, for programs
    """

    limiter: str
    name: str
    action: str
    predicted_gain: float
    gain_interval: tuple[float, float]
    basis: str
    assumption: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high = self.gain_interval
        if not low <= self.predicted_gain <= high < 1:
            raise InputError(
                f'remedy "{self.name}": expected low ≤ gain ≤ high < 1, got {low} ≤ {self.predicted_gain} ≤ {high}',
                code="remedy.bad-range",
                remedy=self.name,
            )


def rank_remedies(remedies: Iterable[Remedy]) -> list[Remedy]:
    """Remedies by predicted gain, largest first; of equal ones the surer first, then by name.

    Example:
        >>> saves = {"action": "", "basis": "", "limiter": "loader"}
        >>> small = Remedy(name="pin", predicted_gain=0.1, gain_interval=(0.0, 0.2), **saves)
        >>> large = Remedy(name="workers", predicted_gain=0.4, gain_interval=(0.3, 0.5), **saves)
        >>> [remedy.name for remedy in rank_remedies([small, large])]
        ['workers', 'pin']
    """
    return sorted(remedies, key=lambda remedy: (-remedy.predicted_gain, -remedy.gain_interval[0], remedy.name))


def remedies_document(remedies: Sequence[Remedy]) -> list[dict[str, object]]:
    """Remedies as JSON data, in the given order."""
    return [to_plain(remedy) for remedy in remedies]


def remedy_table(remedies: Sequence[Remedy], *, title: str = "Remedies, by predicted gain") -> RenderableType:
    """Remedies in the given order, each with what to do and how its gain was computed, readable at 80 columns.

    Args:
        remedies: ranked
        title: says by what

    Returns:
        A table of names and gains, and below it a paragraph for each remedy.
    """
    table = frame_table(title)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("remedy")
    table.add_column("limiter")
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    for number, remedy in enumerate(remedies, 1):
        low, high = remedy.gain_interval
        table.add_row(
            str(number),
            Text(remedy.name),
            Text(remedy.limiter),
            Text(_percent(remedy.predicted_gain), style="bold" if number == 1 else ""),
            f"{_percent(low)} to {_percent(high)}",
        )
    caption = Text("gain: share of the time saved; interval: 90 %", style="dim")
    return Group(table, caption, Text(), *(_paragraph(number, remedy) for number, remedy in enumerate(remedies, 1)))


def _paragraph(number: int, remedy: Remedy) -> RenderableType:
    lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    lines.add_column(justify="right", no_wrap=True)
    lines.add_column()
    text = Text(remedy.action)
    text.append(f" {remedy.basis}", style="dim")
    if remedy.assumption:
        text.append(f" Assumes: {remedy.assumption}", style="dim")
    lines.add_row(str(number), text)
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
