"""The input pipeline of a plan for this machine."""

from dataclasses import replace
from typing import Any

from trimaran.base.job import Job
from trimaran.machine.detect import detect_processor
from trimaran.planner import Candidate, EpochData, Pins, Search
from trimaran.planner.input_pipeline import QUICK_DATA
from trimaran.planner.problem import Room
from trimaran.program import Strategy
from trimaran.program.json_files import to_plain


def room_of(job: Job, data: EpochData) -> Room | None:
    """Resources of this machine for loading a job's data; None: ranks load in line, as for a stream.

    Args:
        job: says how many epochs there are
        data: says whether samples have numbers
    """
    if not data.numbered:
        return None
    return Room(memory_bytes=detect_processor().memory_bytes, epochs=max(1, job.epochs))


def feeding_notes(found: Search[Candidate]) -> tuple[str, ...]:
    """Why ranks are fed as they are, where it was worth asking: loading takes a part of the step that matters.

    Args:
        found: the search
    """
    return tuple(reason for reason in found.feeding if not reason.startswith(QUICK_DATA))


def feeding_document(strategy: Strategy, found: Search[Candidate] | None) -> dict[str, Any]:
    """How ranks are fed, for programs.

    Args:
        strategy: of the plan
        found: has the reasons; None: a plan from a file

    Returns:
        The fields of `Feeding`, and `reasons`.
    """
    return {**to_plain(strategy.feeding), "reasons": [] if found is None else list(found.feeding)}


def fed_as_asked(strategy: Strategy, pins: Pins) -> Strategy:
    """The strategy of a plan from a file with the user's options for its input pipeline.

    Args:
        strategy: of the plan
        pins: of the request; those of other things are not for a plan that is made already
    """
    feeding = strategy.feeding
    if pins.workers is not None:
        feeding = replace(feeding, workers=pins.workers)
    if "cache" in pins.forbid:
        feeding = replace(feeding, cached=False)
    return strategy if feeding == strategy.feeding else replace(strategy, feeding=feeding)
