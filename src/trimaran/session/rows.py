"""What a search found, as a plan file holds it."""

from collections.abc import Iterator

from trimaran.planner import Candidate, Search
from trimaran.program import CandidateRow, Prediction
from trimaran.program.plan import Verdict


def predict(candidate: Candidate) -> Prediction:
    """What a candidate should cost."""
    return Prediction(
        step_time_s=candidate.step_time_s,
        interval_s=candidate.interval_s,
        peak_bytes=candidate.peak_bytes,
        epoch_s=candidate.epoch_s,
        epoch_interval_s=candidate.epoch_interval_s,
    )


def candidate_rows(found: Search) -> Iterator[CandidateRow]:
    """What a plan was chosen from: what was simulated, best first, then what was rejected.

    Args:
        found: the search
    """
    front, references = ({id(one) for one in some} for some in (found.pareto, found.references))
    for candidate in found.candidates:
        verdict: Verdict = "runner-up"
        if candidate is found.chosen:
            verdict = "chosen"
        elif id(candidate) in references:
            verdict = "baseline"
        yield CandidateRow(
            strategy=candidate.strategy,
            verdict=verdict,
            prediction=predict(candidate),
            limiter=candidate.limiter,
            pareto=id(candidate) in front,
        )
    for rejection in found.rejected:
        yield CandidateRow(strategy=rejection.strategy, verdict="rejected", reason=rejection.reason)
