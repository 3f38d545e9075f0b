"""`trimaran check`: behaviour of a job, and the kinds of plans that train it exactly.

The same evidence and the same verdicts as those by which a plan is made.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from trimaran.base.job import Job
from trimaran.base.units import format_seconds, format_some
from trimaran.graph.behaviour import Behaviour
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource, check_room
from trimaran.program.json_files import to_plain
from trimaran.program.refusals import KINDS, objection, share_of_gradient
from trimaran.report.tables import add_words, frame_table, page_text

GRAPH_KINDS = {"pipeline", "tensor parallel", "placement"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One thing that was looked at.

    Attributes:
        what: was looked at
        found: what was seen, in words
        unusual: most jobs do not do this
    """

    what: str
    found: str
    unusual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KindVerdict:
    """Whether a kind of plan trains the job exactly.

    Attributes:
        kind: of plan
        exact: it does, as far as was seen
        known: it was looked at
        reason: why not, or why it is not known; empty where it is exact
    """

    kind: str
    exact: bool
    known: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a look at a job.

    Attributes:
        job: its name
        seen: what was looked at
        kinds: verdicts by kind of plan
        behaviour: the evidence
    """

    job: str
    seen: tuple[Seen, ...]
    kinds: tuple[KindVerdict, ...]
    behaviour: Behaviour

    def __str__(self) -> str:
        return page_text(lambda out: print_checked(out, self))

    @property
    def document(self) -> dict[str, Any]:
        """For programs."""
        evidence = to_plain(self.behaviour)
        for name in ("options", "kept"):
            evidence.get("optimizer", {}).pop(name, None)
        return {
            "job": self.job,
            "seen": [to_plain(one) for one in self.seen],
            "kinds": [to_plain(one) for one in self.kinds],
            "evidence": evidence,
        }


def print_checked(out: Console, checked: Checked, *, show_all: bool = False) -> None:
    """Print the verdicts by kind of plan, their reasons, and what was seen.

    Args:
        out: where to
        checked: the result of a look
        show_all: what is usual too
    """
    exact = [one.kind for one in checked.kinds if one.exact]
    verdict = f"{checked.job}: {len(exact)} of {len(checked.kinds)} kinds of plans train it exactly."
    out.print(verdict, "", sep="\n", markup=False)
    kinds = frame_table(ruled=False)
    if exact:
        kinds.add_row("exact", Text(", ".join(exact)))
    reasons: dict[tuple[bool, str], list[str]] = {}
    for one in checked.kinds:
        if not one.exact:
            reasons.setdefault((one.known, one.reason), []).append(one.kind)
    for (known, reason), of in reasons.items():
        kinds.add_row("refused" if known else "not known", Text(f"{', '.join(of)}\n{reason}"))
    out.print(kinds)
    out.print("[dim]exact: they train what one process with the whole batch trains[/]")
    seen = frame_table(ruled=False)
    add_words(seen, "looked at", "seen")
    for row in checked.seen:
        if row.unusual or show_all:
            seen.add_row(row.what, Text(row.found))
    if seen.row_count:
        out.print()
        out.print(seen)
    more = "" if show_all else "; --all lists what is usual too"
    out.print(f"\nExamined in {format_seconds(checked.behaviour.seconds)}{more}.")
    if len(exact) < len(checked.kinds):
        out.print("What the verdicts mean, and what to do instead: docs/jobs.md")


def check_job(source: JobSource) -> Checked:
    """Look at a job.

    Args:
        source: where the job comes from

    Raises:
        InputError: the model, the data, the loss or the optimizer of the job cannot be used
    """
    from trimaran.graph.capture.capture import capture_and_look

    started_s = time.perf_counter()
    job = source.make()
    check_room(job, source.reference)
    graph = capture_and_look(job).graph
    # Most of it is the graph, and all of it for a model that is too large to run.
    behaviour = replace(graph.behaviour or Behaviour(), seconds=time.perf_counter() - started_s)
    kinds = tuple(_verdict(kind, graph, behaviour) for kind in KINDS)
    told = "\n".join(one.reason for one in kinds)
    return Checked(
        job=source.reference,
        seen=tuple(one for one in _seen(job, graph, behaviour) if one.what != "graph" or one.found not in told),
        kinds=kinds,
        behaviour=behaviour,
    )


def _verdict(kind: str, graph: Graph, behaviour: Behaviour) -> KindVerdict:
    strategy = KINDS[kind]
    found = objection(behaviour, strategy)
    if found is None and kind in GRAPH_KINDS:
        found = _restricted(kind, graph)
    if found is not None:
        return KindVerdict(kind=kind, exact=False, reason=found)
    unseen = {
        "unknown": behaviour.not_looked or "the loss was no finite number on any batch that was looked at",
        "gathers": "the loss gathers across ranks, and one process has nothing to gather",
    }
    if (strategy.dp > 1 or strategy.microbatches > 1) and (why := unseen.get(behaviour.reduction)):
        return KindVerdict(
            kind=kind,
            exact=False,
            known=False,
            reason=f"{why}; the trial of `trimaran train` compares the first steps with one process",
        )
    return KindVerdict(kind=kind, exact=True)


def _restricted(kind: str, graph: Graph) -> str | None:
    """Why a network cannot be sharded or split into stages; None: it can, as far as its graph tells."""
    if kind == "tensor parallel":
        if graph.regions:
            return None
        why = _plainly(next(iter(graph.whole.values()), "") or next(iter(graph.notes), ""))
        return f"no operations whose tensors ranks can share{f': {why}' if why else ''}"
    if graph.split_points:
        return None
    return f"the network cannot be split into stages: {_plainly(next(iter(graph.notes), 'it is one operation'))}"


_TRACED = "torch.export could not trace it: "

_PLAIN = (
    ("data-dependent expression", "its forward branches on values of tensors, and a graph has one branch"),
    ("Constraints violated", "torch.export traces it for one batch size only: something in it is made for that size"),
    ("generator of Python or NumPy", "its forward draws from Python's or NumPy's generator: draw with torch"),
    (
        "its results differ from the model's",
        "its graph gives other results: a forward that writes to its input, or to state other than buffers, has none",
    ),
    ("fake tensor in the exported program", "gradients are computed in its forward"),
)  # fmt: skip
"""Messages of torch, and their meaning."""


def _plainly(note: str) -> str:
    """A note of a graph, short."""
    _, found, why = note.partition(_TRACED)
    why = why if found else note.removeprefix("no pipeline: ")
    return next((text for key, text in _PLAIN if key in why), why)


def _seen(job: Job, graph: Graph, of: Behaviour) -> "list[Seen]":
    """What was looked at: what is usual, or the facts that hold, all of them unusual."""
    traits, changed = of.optimizer, (*of.buffers, *of.written)
    sliced = "they hold more than tensors" if of.others else "tensors' first dims do not all count the samples"
    known = not (traits.needs_closure or traits.extra)
    of_optimizer = (
        (traits.needs_closure, "its step needs a closure"),
        (traits.missing, f"does not hold {format_some(traits.missing)}: not trained"),
        (traits.extra, f"holds others than it was given: {format_some(traits.extra)}"),
        (known and not traits.separable, f"looks across parameters: {traits.reason}"),
        (known and traits.separable and not traits.elementwise, f"needs whole parameters: {traits.reason}"),
        (traits.draws, "draws random numbers"),
        (traits.keeps_gradients, "its zero_grad keeps gradients"),
        (traits.hooked, "hooks on its step"),
        (traits.needs_metric, "the schedule follows a metric"),
    )
    optimizer = traits.class_name or "nothing is trained"
    rows: tuple[tuple[str, str, tuple[tuple[object, str], ...]], ...] = (
        ("training mode", "training", (
            (of.returned_in_evaluation, "Job.model returns the model in evaluation mode; it is trained in the other"),
            (of.kept_in_evaluation, f"stays in evaluation mode: {format_some(of.kept_in_evaluation)}"),
        )),
        ("loss", _loss(of), ((of.reduction != "mean", _loss(of)),)),
        ("batches", "tensors of one size", (
            (of.sizes, f"sizes differ from batch to batch: {format_some(of.sizes)}"),
            (not of.sliceable, f"cannot be sliced, as {sliced}"),
            (of.others, f"hold {format_some(of.others)}"),
        )),
        ("samples", "fixed, in random order", (
            (of.stream, "a stream: each process reads it"),
            (job.sampler is not None, "in the order of Job.sampler"),
            (of.data_carries, "the data set carries state: a sample that is read again under the same seeds differs"),
            (of.read_together, "a sample depends on those that are read with it (__getitems__)"),
            (of.collate_draws, "Job.collate draws: each part of a batch has its own draws, as of mixup another share"),
            (of.left_out, f"Job.collate leaves samples out, {of.left_out} of those that were read"),
        )),
        ("gradients", "not known" if of.not_looked else "of every parameter", (
            (of.unused, f"never: {format_some(of.unused)}"),
            (of.varying, f"in some batches only: {format_some(of.varying)}"),
        )),
        ("gradient hooks", "", ((of.gradient_hooks, f"of yours on {format_some(of.gradient_hooks)}"),)),
        ("random draws", "none but dropout", (
            (of.draws, "the forward or the loss draws with torch, in addition to dropout"),
            (of.host_draws, "the forward or the loss draws from Python's or NumPy's generator"),
        )),
        ("buffers", "none that change", ((changed, f"changed by each forward: {format_some(changed)}"),)),
        ("state", "", ((of.carried, f"each step changes, in Python: {format_some(of.carried)}"),)),
        ("parameters", "of one dtype", tuple(
            (dtype, f"{dtype}: {name}") for dtype, name in dict(reversed(of.dtypes)).items()
        )),
        ("optimizer", optimizer, ((any(holds for holds, _ in of_optimizer), optimizer), *of_optimizer)),
        ("metric", "", (
            (of.metric == "mean", "a mean over parts of batches: outputs are too large, or of other shapes in each"),
        )),
        *(("graph", "", ((True, _plainly(note)),)) for note in graph.notes),
        ("small batches", "", ((of.part_failed, f"fails on {of.part_failed}"),)),
        ("not looked at", "", ((of.not_looked and not of.part_failed, of.not_looked),)),
    )  # fmt: skip
    found = [(what, usual, [text for holds, text in facts if holds]) for what, usual, facts in rows]
    return [
        Seen(what=what, found="; ".join(facts) or usual, unusual=bool(facts))
        for what, usual, facts in found
        if facts or usual
    ]


def _loss(of: Behaviour) -> str:
    parts = "" if of.replicas is None or not of.replicates else f" (parts add up, to {of.tolerance:.0g})"
    texts = {
        "mean": f"mean over the samples{parts}",
        "weight": f"mean over {'' if of.weight is None else of.weight.text}{parts}",
        "sum": f"sum over the samples{parts}",
        "pair": f"(sum, weight){parts}",
        "given": f"mean over what Job.loss_weight says{parts}",
        "batch": f"{'changes with the padding of a batch' if of.padded else 'no mean that was tried'}: the gradients "
        f"of parts do not add up, they differ by {share_of_gradient(of.replicas)}",
        "gathers": "looks across samples, and gathers them from all ranks",
        "unknown": "not known",
    }
    return texts[of.reduction]
