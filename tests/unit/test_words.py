"""The program speaks in the field's words."""

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.documents import PAGES

ROOT = Path(__file__).parents[2]
PHRASES = Path(__file__).with_name("phrases.toml")


@dataclass(frozen=True)
class Phrase:
    """What is not written.

    Attributes:
        pattern: what finds it
        write: what is written instead
        exceptions: what may be written although the pattern finds it
    """

    pattern: re.Pattern[str]
    write: str
    exceptions: tuple[re.Pattern[str], ...]

    def is_in(self, line: str) -> bool:
        for exception in self.exceptions:
            line = exception.sub(" ", line)
        return self.pattern.search(line) is not None


@functools.cache
def phrases() -> list[Phrase]:
    """The committed list."""
    return [
        Phrase(
            pattern=re.compile(phrase["pattern"], re.IGNORECASE),
            write=phrase["write"],
            exceptions=tuple(re.compile(text, re.IGNORECASE) for text in phrase.get("except", ())),
        )
        for phrase in tomllib.loads(PHRASES.read_text(encoding="utf-8"))["phrase"]
    ]


@functools.cache
def any_phrase() -> re.Pattern[str]:
    """Finds every line that has one, exceptions or not."""
    return re.compile("|".join(f"(?:{phrase.pattern.pattern})" for phrase in phrases()), re.IGNORECASE)


def found_in(path: Path) -> Iterator[str]:
    """Each place of a file that has one of the phrases, with what to write."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.replace("_", " ")
        if any_phrase().search(words) is None:
            continue
        for phrase in phrases():
            if phrase.is_in(words):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}  [{phrase.write}]"


ROOMS = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("trimaran", "trimaran_studies")
    for path in (ROOT / "src" / package).iterdir()
    if path.name != "__pycache__" and (path.is_dir() or path.suffix == ".py")
)


@pytest.mark.parametrize("room", [*ROOMS, "docs/decisions", *(page.relative_to(ROOT).as_posix() for page in PAGES)])
def test_no_phrase_of_the_list_is_written(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.[mp][dy]")) if (ROOT / room).is_dir() else [ROOT / room]
    assert files
    found = [place for path in files for place in found_in(path)]
    assert not found, "\n".join(found)
