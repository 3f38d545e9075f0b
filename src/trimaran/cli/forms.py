"""The fourteen commands, where one answers several questions, and the names that they had before.

A command has forms: what its words are about says which of them answers, a file of a plan, a graph, a job, a folder.
Each form is a function with options. Commands of before are these functions by their old names; they answer for
one release, and say how to ask from now on.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from shutil import which

from trimaran.base.errors import TrimaranError


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandForm:
    """Another question that a command answers.

    Attributes:
        command: one of the fourteen, or of the catalog's
        usage: how it is asked, after the command
        text: what it answers
        flag: says that it is meant; "": the subject does
        keeps: the flag is an option of it too
        is_meant: of a subject
    """

    command: str
    usage: str
    text: str
    flag: str = ""
    keeps: bool = False
    is_meant: Callable[[str], bool] = lambda _: False

    @property
    def words(self) -> tuple[str, ...]:
        """Words that ask for it."""
        return (*self.command.split(), *((self.flag,) if self.flag and not self.keeps else ()))


def _is_graph(subject: str) -> bool:
    if not subject.endswith(".json"):
        return False
    from trimaran.base.decoding import decode_object
    from trimaran.base.files import read_bytes
    from trimaran.program.plan_file import plan_path

    path = plan_path(subject)
    if path is None or not path.is_file():
        return False
    try:
        return {"nodes", "edges"} <= decode_object(read_bytes(path), source=subject).keys()
    except TrimaranError:
        return False


def _is_plan(subject: str) -> bool:
    if not subject.endswith(".json"):
        return False
    from trimaran.program.plan_file import plan_path

    return plan_path(subject) is not None and not _is_graph(subject)


def _is_job(subject: str) -> bool:
    from trimaran.jobs.resolve import is_reference

    return which(subject) is None and is_reference(subject)


FORMS = {
    "simulate": CommandForm(
        command="plan",
        usage="PLAN.json",
        text="One step of a plan: its time, its memory, and how each device spends it.",
        is_meant=_is_plan,
    ),
    "place": CommandForm(
        command="plan",
        usage="GRAPH.json",
        text="Place the operations of a profiled graph on devices.",
        is_meant=_is_graph,
    ),
    "export-checkpoint": CommandForm(
        command="export",
        usage="CHECKPOINT",
        text="Write weights in a format of others.",
        is_meant=lambda subject: not subject.endswith(".json") and not _is_job(subject),
    ),
    "converge": CommandForm(
        command="crossover",
        usage="--measure JOB",
        text="Train at several batches; how much training each needs.",
        flag="--measure",
    ),
    "emulate": CommandForm(
        command="train",
        usage="--emulate PLAN|JOB",
        text="Run a plan with simulated compute and real messages.",
        flag="--emulate",
    ),
    "profile": CommandForm(
        command="observe",
        usage="JOB",
        text="Forward, backward, update, loading and memory of a job.",
        is_meant=_is_job,
    ),
    "calibrate": CommandForm(
        command="doctor",
        usage="--measure [JOB]...",
        text="Measure devices, links and the noise of repeated runs.",
        flag="--measure",
    ),
    "jobs": CommandForm(command="catalog jobs", usage="", text=""),
    "clusters": CommandForm(command="catalog machines", usage="", text=""),
    "curve": CommandForm(command="catalog curve", usage="", text=""),
    "checkpoint": CommandForm(command="catalog checkpoint", usage="", text=""),
    "price": CommandForm(
        command="plan",
        usage="JOB --strategies",
        text="Step time and memory of given strategies of a transformer, without a search.",
        flag="--strategies",
        keeps=True,
    ),
}
"""By the name of before, which is that of the function too."""

STUDIES = ("validate", "planbench", "reproduce")
"""Commands of `python -m trimaran_studies`."""


def words_of(command: str) -> tuple[str, ...]:
    """Words that ask for what a function answers.

    Args:
        command: its name

    Example:
        >>> words_of("clusters"), words_of("calibrate"), words_of("scale")
        (('trimaran', 'catalog', 'machines'), ('trimaran', 'doctor', '--measure'), ('trimaran', 'scale'))
    """
    if command in STUDIES:
        return ("python", "-m", "trimaran_studies", command)
    return ("trimaran", *(FORMS[command].words if command in FORMS else (command,)))


def forms_of(command: str) -> Iterator[CommandForm]:
    """Further questions of a command, for its page of help."""
    return (form for form in FORMS.values() if form.command == command and form.text)


def form_meant(command: str, words: Sequence[str], valued: Callable[[str], bool]) -> tuple[str, list[str]] | None:
    """The function that answers another form of a command, and the words for it; None: its first one is meant.

    Args:
        command: as it was typed
        words: after it
        valued: whether an option takes a value
    """
    for name, form in FORMS.items():
        if form.command != command or not form.text:
            continue
        own = words[: words.index("--")] if "--" in words else words
        if form.flag:
            if form.flag in own:
                return name, [word for word in words if form.keeps or word != form.flag]
        elif "--" not in words and any(map(form.is_meant, _subjects(own, valued))):
            return name, list(words)
    return None


def _subjects(words: Sequence[str], valued: Callable[[str], bool]) -> Sequence[str]:
    """The first word that is neither an option nor the value of one."""
    before = ""
    for word in words:
        if not word.startswith("-") and not (before.startswith("-") and "=" not in before and valued(before)):
            return (word,)
        before = word
    return ()


def note_old(words: Sequence[str]) -> None:
    """Say on standard error how to ask from now on, where a name of before was typed.

    Args:
        words: of the command line, after the program
    """
    name = words[0]
    asked = " ".join(words_of(name))
    form = FORMS.get("export-checkpoint" if [*words[:2]] == ["checkpoint", "export"] else name)
    if form is not None:
        asked = " ".join(("trimaran", form.command, form.usage)).strip()
    if form is not None or name in STUDIES:
        sys.stderr.write(f"Note: `trimaran {name}` is `{asked}` from the next release on.\n")
