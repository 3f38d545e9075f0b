"""What a job does, and which kinds of plans train it exactly: `trimaran check`, before anything is planned.

The same evidence and the same verdicts as those by which a plan is made.
"""

from dataclasses import dataclass
from typing import Any

from trimaran.graph import Graph
from trimaran.graph.behaviour import Behaviour
from trimaran.job import Job
from trimaran.program.exactness import KINDS, objection
from trimaran.program.files import to_plain
from trimaran.session.jobs import JobSource
from trimaran.session.preparing import gathering_confirmed

_NAMED = 3

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
        exact: it does
        reason: why not; empty where it does
    """

    kind: str
    exact: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was seen of a job.

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

    @property
    def document(self) -> dict[str, Any]:
        """For programs."""
        evidence = to_plain(self.behaviour)
        evidence.get("optimizer", {}).pop("options", None)
        return {
            "job": self.job,
            "seen": [to_plain(one) for one in self.seen],
            "kinds": [to_plain(one) for one in self.kinds],
            "evidence": evidence,
        }


def check_job(source: JobSource) -> Checked:
    """Look at a job.

    Args:
        source: where the job comes from

    Raises:
        InputError: the model, the data, the loss or the optimizer of the job cannot be used
    """
    from trimaran.graph.capture import capture_and_look

    job = source.make()
    graph = gathering_confirmed(source, capture_and_look(job).graph, ranks=2)
    behaviour = graph.behaviour or Behaviour()
    return Checked(
        job=source.reference,
        seen=tuple(_seen(job, graph, behaviour)),
        kinds=tuple(_verdict(kind, graph, behaviour) for kind in KINDS),
        behaviour=behaviour,
    )


def _verdict(kind: str, graph: Graph, behaviour: Behaviour) -> KindVerdict:
    found = objection(behaviour, KINDS[kind])
    if found is None and kind in GRAPH_KINDS:
        found = _restricted(kind, graph)
    return KindVerdict(kind=kind, exact=found is None, reason=found or "")


def _restricted(kind: str, graph: Graph) -> str | None:
    """Why a network cannot be divided in this way; None: it can, as far as its graph tells."""
    if kind == "tensor parallel":
        if graph.regions:
            return None
        why = next(iter(graph.whole.values()), "") or next(iter(graph.notes), "")
        return f"no operations whose tensors ranks can share{f': {why}' if why else ''}"
    if graph.cuts:
        return None
    return f"the network cannot be cut: {next(iter(graph.notes), 'it is one operation')}"


def _seen(job: Job, graph: Graph, of: Behaviour) -> "list[Seen]":
    rows = [_mode(of), _loss(job, of), _batches(of), _gradients(of), _draws(of), _buffers(of), _parameters(of)]
    rows.append(_optimizer(of))
    if of.hooked:
        rows.append(Seen(what="hooks", found=f"of yours on {_some(of.hooked)}", unusual=True))
    if of.inner_backward:
        rows.append(
            Seen(what="double backward", found="gradients are computed inside the forward or the loss", unusual=True)
        )
    if of.compiled:
        rows.append(Seen(what="compiled", found="the factory returns a compiled model", unusual=True))
    rows += [Seen(what="graph", found=note, unusual=True) for note in graph.notes]
    if of.not_looked:
        rows.append(Seen(what="not looked at", found=of.not_looked, unusual=True))
    return rows


def _mode(of: Behaviour) -> Seen:
    found = ["training"]
    if of.returned_in_evaluation:
        found = ["Job.model returns it in evaluation mode; it is trained in training mode"]
    if of.kept_in_evaluation:
        found.append(f"stays in evaluation mode: {_some(of.kept_in_evaluation)}")
    if of.own_train:
        found.append(f"own train(): {_some(of.own_train)}")
    return Seen(what="training mode", found="; ".join(found), unusual=len(found) > 1 or of.returned_in_evaluation)


def _loss(job: Job, of: Behaviour) -> Seen:
    parts = "" if of.microbatches is None else f" (gradients of parts add up to {max(of.microbatches, 0.0):.1g})"
    texts = {
        "mean": f"mean over the samples{parts}",
        "weight": f"mean over {'' if of.weight is None else of.weight.text}{parts}",
        "sum": f"sum over the samples{parts}",
        "pair": f"(sum, weight){parts}",
        "given": f"mean over what Job.loss_weight says{parts}",
        "batch": "not made of the losses of parts of a batch",
        "gathers": "looks at the whole batch; gathers across ranks",
        "unknown": "not known",
    }
    text = texts[of.reduction]
    if of.reduction == "batch" and of.padded:
        text = "changes with the padding of a batch"
    if of.reduction == "batch" and of.replicas is not None:
        text += f": gradients differ by {of.replicas:.1g} of the largest"
    return Seen(what="loss", found=text, unusual=of.reduction != "mean")


def _batches(of: Behaviour) -> Seen:
    found = []
    if of.sizes:
        found.append(f"sizes differ from batch to batch: {_some(of.sizes)}")
    if not of.sliceable:
        found.append("no dim of all tensors counts the samples")
    if of.others:
        found.append(f"holds {_some(of.others)}")
    return Seen(what="batches", found="; ".join(found) or "tensors of one size", unusual=bool(found))


def _gradients(of: Behaviour) -> Seen:
    found = []
    if of.unused:
        found.append(f"never: {_some(of.unused)}")
    if of.varying:
        found.append(f"in some batches only: {_some(of.varying)}")
    if of.not_looked:
        return Seen(what="gradients", found="not known")
    return Seen(what="gradients", found="; ".join(found) or "of every parameter", unusual=bool(found))


def _draws(of: Behaviour) -> Seen:
    found = []
    if of.draws:
        found.append("of torch's generator")
    if of.host_draws:
        found.append("of Python's or NumPy's generator")
    if "seed" in of.path:
        found.append("the forward goes other ways under another seed")
    if "data" in of.path:
        found.append("the forward goes other ways with other data")
    unusual = of.host_draws or bool(of.path)
    return Seen(what="random draws", found="; ".join(found) or "none beside dropout", unusual=unusual)


def _buffers(of: Behaviour) -> Seen:
    found = []
    if of.batch_norms:
        found.append(f"batch norm: {_some(of.batch_norms)}")
    if of.buffers:
        found.append(f"changed by a forward: {_some(of.buffers)}")
    return Seen(what="buffers", found="; ".join(found) or "none that change", unusual=bool(of.buffers))


def _parameters(of: Behaviour) -> Seen:
    found = []
    if of.tied:
        found.append(f"tied: {_some(of.tied)}")
    found += [f"{dtype}: {name}" for dtype, name in of.dtypes]
    return Seen(what="parameters", found="; ".join(found) or "of one dtype, none tied", unusual=bool(found))


def _optimizer(of: Behaviour) -> Seen:
    traits = of.optimizer
    found = [traits.class_name or "nothing is trained"]
    if traits.needs_closure:
        found.append("its step needs a closure")
    if traits.missing:
        found.append(f"does not hold {_some(traits.missing)}")
    if traits.extra or traits.foreign:
        found.append(f"holds others than it was given: {_some((*traits.extra, *traits.foreign))}")
    if not traits.separable:
        found.append(f"looks across parameters: {traits.reason}")
    elif not traits.elementwise:
        found.append(f"needs whole parameters: {traits.reason}")
    if traits.draws:
        found.append("draws random numbers")
    if traits.hooked:
        found.append("hooks on its step")
    if traits.needs_metric:
        found.append("the schedule follows a metric")
    return Seen(what="optimizer", found="; ".join(found), unusual=len(found) > 1)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
