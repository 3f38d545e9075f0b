"""A requirement: its command, its checks, and what each check found.

A check is a figure, a bound and a verdict. Figures are computed when the command runs (predictions, counts, closed
forms), or read from `benchmarks/results`, where measurements are kept with the machine and the date that they are of.
No figure is written down here: where there is none, the check says what is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimaran.base.decoding import decode_object
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes


class Verdict(StrEnum):
    """What a check found."""

    MET = "met"
    KNOWN = "met as far as known"
    NOT_REPRODUCED = "not reproduced"
    MISSED = "missed"
    NEEDS_GPU = "needs a GPU"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure and its bound.

    Attributes:
        figure: with its unit and what it is of
        bound: that it is held against; empty where there is none
        verdict: whether the bound holds
        reason: why it does not hold, or why nothing can be said
        measured: date and machine of a measured figure; empty: computed
    """

    figure: str
    bound: str
    verdict: Verdict
    reason: str = ""
    measured: str = ""


def judged(figure: str, bound: str, *, holds: bool, reason: str = "", measured: str = "") -> Check:
    """A check whose bound holds, or does not for a reason.

    Raises:
        InputError: the bound does not hold, and no reason is given
    """
    if not holds and not reason:
        raise InputError(f'"{figure}" misses "{bound}": say why', code="specification.no-reason", figure=figure)
    verdict = Verdict.MET if holds else Verdict.MISSED
    return Check(figure=figure, bound=bound, verdict=verdict, reason="" if holds else reason, measured=measured)


def bounded(figure: str, bound: str, *, holds: bool, reason: str, missed: str, measured: str = "") -> Check:
    """A check of which a part cannot be known: what can be holds its bound, and the rest lies in its interval.

    Args:
        figure: of all of it
        bound: that what can be known is held against
        holds: whether it is, and the rest lies in its interval
        reason: what cannot be known, and its interval
        missed: why it does not hold, where it does not
        measured: date and machine of a measured figure
    """
    verdict, why = (Verdict.KNOWN, reason) if holds else (Verdict.MISSED, missed)
    return Check(figure=figure, bound=bound, verdict=verdict, reason=why, measured=measured)


def reproduced(figure: str, bound: str, *, holds: bool, experiment: str, measured: str = "") -> Check:
    """A published figure that comes out within its bound, or does not, as an experiment shows."""
    verdict = Verdict.MET if holds else Verdict.NOT_REPRODUCED
    return Check(figure=figure, bound=bound, verdict=verdict, reason="" if holds else experiment, measured=measured)


def needs_gpu(what: str, bound: str, reason: str) -> Check:
    """A check that only a GPU can decide."""
    return Check(figure=what, bound=bound, verdict=Verdict.NEEDS_GPU, reason=reason)


def not_judged(figure: str, bound: str, reason: str, *, measured: str = "") -> Check:
    """A figure that cannot be held against its bound."""
    return Check(figure=figure, bound=bound, verdict=Verdict.NOT_JUDGED, reason=reason, measured=measured)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Measurements that were kept.

    Attributes:
        folder: `benchmarks/results`
        read: documents that were read, by name
    """

    folder: Path
    read: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def result(self, name: str) -> Mapping[str, Any]:
        """The document of a benchmark.

        Args:
            name: of its folder, such as "feed"

        Raises:
            InputError: there is no such file
            CorruptDataError: it is not JSON, or not an object
        """
        if name not in self.read:
            path = self.folder / f"{name}.json"
            if not path.is_file():
                raise InputError(
                    f"{path} is missing: measured figures are read from benchmarks/results of the repository; run the "
                    "command in a checkout of it",
                    code="specification.no-results",
                    path=str(path),
                )
            self.read[name] = decode_object(read_bytes(path), source=str(path))
        return self.read[name]

    def has(self, name: str) -> bool:
        """Whether a benchmark has left a result."""
        return (self.folder / f"{name}.json").is_file()

    def origin(self, name: str, row: str = "") -> str:
        """Date and machine of a result, or of a row or part of it that has its own, with its file."""
        document = self.result(name)
        part = document.get("rows", document)[row] if row else document
        found = part.get("environment") or document["environment"]
        where = f"{found['processor']}, {found['cores']} cores" if "processor" in found else f"{found['cores']} cores"
        where = f"{found['gpu']['name']}, {where}" if found.get("gpu") else where
        date = f"{found['date']}, " if "date" in found else ""
        return f"{date}{where} (benchmarks/results/{name}.json)"

    def tests(self, row: str, bound: str) -> Check:
        """Whether the tests of a requirement passed when they were last recorded.

        Args:
            row: id of the requirement
            bound: what they hold
        """
        found = self.result("specification")["rows"].get(row)
        if found is None:
            return not_judged("no recorded run", bound, f"run benchmarks/specification/run.py --rows {row}")
        passed, failed, skipped = (found[name] for name in ("passed", "failed", "skipped"))
        figure = f"{passed} tests passed, {failed} failed, {skipped} skipped"
        origin = self.origin("specification", row)
        if skipped and not failed:
            return not_judged(figure, bound, f"skipped: {'; '.join(found['skips'])}", measured=origin)
        reason = f"failed: {', '.join(found['failures'])}" if failed else ""
        return judged(figure, bound, holds=not failed, reason=reason, measured=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One thing that Trimaran must do.

    Attributes:
        id: letter of the study and number
        must: what it must do
        command: that shows it: a user's, or that of a test
        find: its checks, from measurements that were kept
        tests: files of tests that hold it, whose outcome `benchmarks/specification` records
    """

    id: str
    must: str
    command: str
    find: Callable[[Recorded], Sequence[Check]]
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A published study, with what is asked of it.

    Attributes:
        letter: with which its ids begin
        title: of the part of the page
        citation: authors, title, place and year
        requirements: in order
    """

    letter: str
    title: str
    citation: str
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A requirement and its checks.

    Attributes:
        requirement: that was judged
        checks: in order
    """

    requirement: Requirement
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks, as far as they can be judged here; else the first that is open."""
        verdicts = {check.verdict for check in self.checks}
        for verdict in (Verdict.MISSED, Verdict.NOT_REPRODUCED, Verdict.KNOWN, Verdict.MET, Verdict.NEEDS_GPU):
            if verdict in verdicts:
                return verdict
        return Verdict.NOT_JUDGED


def default_results() -> Path:
    """`benchmarks/results` of the checkout that this package lies in."""
    return Path(__file__).parents[3] / "benchmarks" / "results"


def percent(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.265), percent(0.265, sign=True)
        ('26.5 %', '+26.5 %')
    """
    return f"{100 * share:{'+' if sign else ''}.{digits}f} %"


def to_json(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Requirements and checks as plain data."""
    return [
        {
            "id": each.requirement.id,
            "must": each.requirement.must,
            "command": each.requirement.command,
            "verdict": str(each.verdict),
            "checks": [
                {
                    "figure": check.figure,
                    "bound": check.bound,
                    "verdict": str(check.verdict),
                    "reason": check.reason,
                    "measured": check.measured,
                }
                for check in each.checks
            ],
        }
        for each in found
    ]
