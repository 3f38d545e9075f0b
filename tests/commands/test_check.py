"""`trimaran check` names what is odd in a job, and which kinds of plans it rules out."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.commands import planted_jobs
from tests.commands.running import trimaran

from trimaran.features.check import check_job
from trimaran.graph.behaviour import TOO_LARGE
from trimaran.graph.capture.capture import capture_and_look
from trimaran.jobs.resolve import JobSource
from trimaran.program.refusals import KINDS

PLANTED = Path(planted_jobs.__file__)

DIVIDED = ("accumulation", "data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "p2p")
REPLICAS = DIVIDED[1:]
MICROBATCHES = ("accumulation", "pipeline")
CUT = ("pipeline", "placement")
NONE: tuple[str, ...] = ()

SEEN: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    # Nothing is odd, or it makes no difference: no false alarm.
    "plain": (NONE, ()),
    "countless": (NONE, ()),
    "scaled": (NONE, ()),
    "smoothed": (NONE, ()),
    "cancelling": (NONE, ()),
    "island": (NONE, ()),
    "only_single": (NONE, ()),
    "uncopyable": (NONE, ()),
    "squeezed": (NONE, ()),
    "augmented": (NONE, ()),
    "padded_with_mask": (CUT, ("sizes differ from batch to batch: input",)),
    # Modes
    "returned_in_eval": (NONE, ("returns the model in evaluation mode",)),
    "part_in_eval": (NONE, ("stays in evaluation mode: 1",)),
    "own_train": (NONE, ("stays in evaluation mode: norm",)),
    # What the loss is a mean over
    "ignored_labels": (CUT, ('"labels" after the first that are not -100',)),
    "class_weights": (NONE, ('the class weights of "target"',)),
    "smoothed_and_weighted": (NONE, ('the class weights of "target"',)),
    "summed": (NONE, ("sum over the samples",)),
    "mean_by_hand": ((*DIVIDED, "pipeline"), ("give Job.loss_weight",)),
    "mean_by_hand_weighed": (NONE, ("what Job.loss_weight says",)),
    "boolean_mask": (NONE, ('the sum of "mask"',)),
    "masked_in_collate": (CUT, ("Job.collate draws", '"labels" that are not -100')),
    # The same, of which the first samples show nothing
    "rare_ignored_labels": (CUT, ('"labels" after the first that are not -100',)),
    "rare_class": (NONE, ('the class weights of "target"',)),
    "late_mask": (NONE, ('the sum of "mask"',)),
    "rare_mask": (NONE, ('the sum of "mask"',)),
    "late_padded_without_mask": ((*DIVIDED, *CUT), ("padding each part", "mask the padding")),
    # The same, of which no sample that is read shows anything
    "rarest_ignored_labels": (CUT, ('"labels" after the first that are not -100',)),
    "full_boolean_mask": (NONE, ('the sum of "mask"',)),
    # Across samples
    "contrastive": ((*DIVIDED, "pipeline"), ("gather them in the loss", "one device without microbatches")),
    "two_views": ((*DIVIDED, "pipeline"), ("gather them in the loss",)),
    "centred": ((*DIVIDED, "pipeline"), ("not made of the losses of its parts",)),
    "reentrant": (CUT, ("checkpoints activations with use_reentrant=True",)),
    "needs_two": (
        (*DIVIDED, "pipeline"),
        ("the job fails on parts of 1 of a global batch of 2: ValueError: a spread needs 2 samples",),
    ),
    # Batches
    "padded_without_mask": ((*DIVIDED, *CUT), ("pad to one length in Job.collate",)),
    "strings": (CUT, ("hold str, NoneType",)),
    "ragged_targets": (CUT, ("first dims do not all count the samples",)),
    "ragged_targets_per_box": ((*DIVIDED, *CUT), ("give Job.loss_weight",)),
    "stream": (NONE, ("a stream",)),
    "weighted_sampler": (NONE, ("the order of Job.sampler",)),
    # Parameters
    "unused_head": (NONE, ("never: spare.weight, spare.bias",)),
    "experts": (CUT, ("in some batches only: experts.0.weight", "branches on values")),
    "tied": (NONE, ()),
    "quantized": (NONE, ("uint8: base",)),
    "trained_criterion_held": ((*REPLICAS, *CUT), ("centers of the loss",)),
    # Draws and state
    "noisy": (NONE, ("draws with torch",)),
    "stochastic_depth": (CUT, ("Python's or NumPy's generator", "in some batches only: blocks.0.weight")),
    "queue": ((*DIVIDED, *CUT), ("changed by each forward: queue, place", "changes the buffer queue")),
    "stateful_loss": ((*DIVIDED, "pipeline"), ("changes the buffer loss.center",)),
    "spectral": (MICROBATCHES, ("0.parametrizations.weight.0._u",)),
    "penalty": (CUT, ("gradients are computed in its forward",)),
    "hooked": (CUT, ("hooks",)),
    "compiled": (NONE, ()),
    "in_place": (NONE, ()),
    # Optimizers
    "lbfgs": (tuple(KINDS), ("needs a closure",)),
    "holds_another": ((*REPLICAS, *CUT), ("a tensor of shape (3,)",)),
    "misses_one": (NONE, ("does not hold 0.weight, 0.bias",)),
    "muon": (NONE, ("Muon needs whole parameters",)),
    "plateau": (NONE, ("follows a metric",)),
}
"""For each job what is refused or not known, tensor parallelism apart, and what is said of it."""

QUIET = ("plain", "countless", "scaled", "smoothed", "cancelling", "island", "only_single", "uncopyable", "squeezed")


@pytest.mark.parametrize("name", SEEN)
def test_what_is_odd_is_named(name: str) -> None:
    refused, said = SEEN[name]
    checked = check_job(JobSource(reference=f"{PLANTED}:{name}"))
    shared = {"tensor parallel"} - set(refused)
    assert {one.kind for one in checked.kinds if not one.exact} - shared == set(refused)
    unusual = [f"{one.what}: {one.found}" for one in checked.seen if one.unusual]
    text = "\n".join([*unusual, *(one.reason for one in checked.kinds)])
    for phrase in said:
        assert phrase in text
    if name in QUIET:
        assert not unusual
    # With the machine shared by others; alone it is some 50 ms.
    assert checked.behaviour.seconds < 10.0


def test_a_loss_that_gathers_is_told_from_one_that_does_not() -> None:
    seen = capture_and_look(planted_jobs.gathering()).graph.behaviour
    assert seen is not None
    assert seen.reduction == "gathers"


def test_looking_leaves_no_trace_in_the_loss() -> None:
    criterion = planted_jobs.Center()
    parametrized = planted_jobs.Criterion()
    for loss in (criterion, parametrized):
        capture_and_look(planted_jobs.job(loss=loss))
    assert not criterion.center.any()
    assert parametrized.centers.grad is None


def test_the_verdict_comes_first_and_fits_the_terminal(tmp_path: Path) -> None:
    # The reference is printed as it was given, so it has to be short.
    (tmp_path / "own.py").write_text("from tests.commands.planted_jobs import queue as make\n")
    done = trimaran("check", "own.py:make", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "own.py:make: 2 of 11 kinds of plans train it exactly."
    assert max(map(len, lines)) <= 80
    assert "Next: trimaran plan own.py:make" in lines
    told = " ".join(done.stdout.split())
    assert "exact one device, memory plan refused accumulation, pipeline each forward changes the buffer queue" in told


def test_programs_read_the_same(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent("""
            from tests.commands.planted_jobs import needs_two as make
        """)
    )
    found = json.loads(trimaran("check", "own.py:make", "--json", cwd=tmp_path).stdout)
    verdicts = {one["kind"]: one for one in found["kinds"]}
    assert verdicts["one device"]["exact"]
    assert not verdicts["data parallel"]["exact"]
    assert verdicts["data parallel"]["known"]
    assert "a spread needs 2 samples" in verdicts["data parallel"]["reason"]
    assert "a spread needs 2 samples" in found["evidence"]["part_failed"]


def test_a_model_too_large_to_run_is_told_how_long_its_graph_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.graph.capture.capture.LARGEST_FLOPS", 1.0)
    checked = check_job(JobSource(reference="lenet"))
    assert checked.behaviour.not_looked == TOO_LARGE
    assert checked.behaviour.seconds > 0
