"""Whether ranks of a script train one model: the page that `verify` prints, and the same as JSON data."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from trimaran.base.decoding import Count, Positive
from trimaran.base.printable import printable
from trimaran.base.units import format_count, format_seconds, format_some
from trimaran.program.json_files import to_plain
from trimaran.report.tables import bullet

VerifyVerdict = Literal["one model", "not known", "differs", "failed"]

VERIFY_EXIT_CODES: Mapping[VerifyVerdict, int] = {"one model": 0, "not known": 3, "differs": 5, "failed": 5}
"""Of the command: those of `InfeasibleError` and `ExecutionError`."""

_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something in which ranks differ from one process, or from each other.

    Attributes:
        text: one sentence
        parameters: that it is about, in the order of the model
        step: of the optimizer, from 0
        factor: by which the ranks' is larger than that of one process; None: it is no multiple
        lines: of the script
    """

    text: str
    parameters: Sequence[str]
    step: Count
    factor: float | None
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What running a script as some ranks and as one process has shown.

    Attributes:
        verdict: what it says of the script
        headline: the same as one sentence with its figures
        script: path, or "-m" and the module's name, and its arguments
        world: ranks
        steps: of optimizers that were compared
        gradients: that were compared, over all steps
        largest: difference of a gradient that agrees, relative to its norm
        differences: the first one first
        missed: parameters that could not be compared, by reason
        replaced: what was replaced to run on the CPU
        printed: the end of what a failed rank printed
        seconds: that it took [s]
    """

    verdict: VerifyVerdict
    headline: str
    script: Sequence[str]
    world: Count
    steps: Count = 0
    gradients: Count = 0
    largest: float = 0.0
    differences: Sequence[Difference] = ()
    missed: Mapping[str, Sequence[str]]
    replaced: Sequence[str] = ()
    printed: str = ""
    seconds: Positive = 0.0

    def __str__(self) -> str:
        lines = [self.headline]
        for place, one in enumerate(self.differences[:_MOST]):
            lines += [f"  {one.text}"] if place else []
            lines += [f"    {line}" for line in one.lines]
        return "\n".join(lines)


def verification_document(found: Verification) -> dict[str, object]:
    """A verification as JSON data."""
    document: dict[str, object] = to_plain(found)
    return document


def verification_view(found: Verification) -> RenderableType:
    """The page that `verify` prints."""
    colour = {"one model": "green", "not known": "yellow"}.get(found.verdict, "red")
    parts: list[RenderableType] = [Text(printable(found.headline), style=f"bold {colour}")]
    for place, one in enumerate(found.differences[:_MOST]):
        if place:  # the headline has the first one
            parts.append(bullet(Text(printable(one.text))))
        parts += [Padding(Text(printable(line), style="dim"), (0, 0, 0, 4)) for line in one.lines]
    if len(found.differences) > _MOST:
        parts.append(bullet(Text(f"{len(found.differences) - _MOST} more (--json)")))
    for reason, names in found.missed.items():
        parts.append(bullet(Text(printable(f"not compared: {format_some(list(names), 4)}: {reason}"))))
    if found.printed and found.verdict == "failed":
        parts.append(Padding(Text(printable(found.printed), style="dim"), (0, 0, 0, 2)))
    replaced = f", with {', '.join(found.replaced)}" if found.replaced else ""
    ran = f"{shlex.join(found.script)}: {format_count(found.world, 'rank')} and one process on the CPU{replaced}"
    parts.append(Text(printable(f"{ran}, {format_seconds(found.seconds)}"), style="dim"))
    return Group(*parts)
