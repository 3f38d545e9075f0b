"""What would help a script that was observed: known remedies, each with what it would save.

A step is cut into parts that sum to it (`measure.observe.Parts`). A remedy says what the step would be without a part
of a part, so its gain is arithmetic on the parts; for larger batches and other forms of the update, on a copy of the
model that was timed again. The limiter of the script is what the best remedy acts on.

    loader            T' = max(T − load + arrival, load / workers, processor time / cores)
    exchange          T' = T − (exchange + update) (1 − 1/k)            accumulated over k steps
                      T' = T − min(exchange, whole exchange / 2)        half the bytes
    synchronisation   T' = T − (collective + chance waits + sync) (1 − 1/n)       every n steps
    uneven batches    T' = T − (work of most samples − work of mean samples)
    small kernels     T' = load + (forward + backward) × t(kB) / (k t(B)) + (update + other) / k, per B samples
                      T' = T − update (1 − fused / now)
                      T' = T − pointwise operators × time of an empty one
"""

from collections.abc import Callable, Sequence
from functools import partial

from trimaran.measure.observe import Findings
from trimaran.report.remedies import Remedy, rank_remedies
from trimaran.session.advice.exchanging import accumulate, even, halve, seldom, weighted
from trimaran.session.advice.gains import LEAST_GAIN
from trimaran.session.advice.kernels import compiled, fused, larger
from trimaran.session.advice.loading import persistent, workers

LIMIT_GAIN = 0.05
"""Below this, the best remedy does not make a limiter: the script computes."""

COMPUTE = "compute"

UNCLEAR = "not clear"
"""The limiter where the run contradicts itself."""

_LEAST_QUEUED = 0.1


def advise(findings: Findings, *, handover: Callable[[int], float | None]) -> list[Remedy]:
    """Remedies worth naming, the best first.

    Args:
        findings: of an observed script
        handover: time that a batch of so many bytes takes to arrive from a worker [s]; None where it is not known
    """
    more_workers = partial(workers, handover=handover)
    makers = (more_workers, persistent, accumulate, halve, seldom, even, weighted, larger, fused, compiled)
    remedies = [remedy for make in makers for remedy in make(findings)]
    return rank_remedies(remedy for remedy in remedies if remedy.predicted_gain >= LEAST_GAIN)


def name_limiter(remedies: Sequence[Remedy]) -> str:
    """What limits the script: what the best remedy acts on, or "compute" where none would save much.

    Args:
        remedies: ranked
    """
    if not remedies or remedies[0].predicted_gain < LIMIT_GAIN:
        return COMPUTE
    return remedies[0].limiter


def doubt(findings: Findings, remedies: Sequence[Remedy], *, handover: Callable[[int], float | None]) -> str | None:
    """Why the limiter is not to be trusted, one or two sentences; None where nothing speaks against it.

    A machine that does other things too makes any part of a step long. Another run would then name another limiter.
    That shows where the halves of this one do, and where the thread that trains has waited longer for a processor than
    the best remedy leads.

    Args:
        findings: of an observed script
        remedies: of the whole run, ranked
        handover: as for `advise`
    """
    named = name_limiter(remedies)
    for part in findings.halves:
        of_part = advise(part, handover=handover)
        other = name_limiter(of_part)
        if _best(of_part, other) - _best(of_part, named) > LIMIT_GAIN:
            names = [name_limiter(advise(half, handover=handover)) for half in findings.halves]
            return (
                f"the first half of the steps is limited by {names[0]}, the second by {names[1]}, and all together by "
                f"{named}: the machine is too busy with other things, or the script changes as it runs. Run it alone, "
                "or longer."
            )
    others = {remedy.limiter for remedy in remedies} | {COMPUTE}
    lead = _best(remedies, named) - max((_best(remedies, other) for other in others - {named}), default=0.0)
    if findings.queued <= max(_LEAST_QUEUED, lead):
        return None
    return (
        f"the machine is too busy: the thread that trains waited {findings.queued:.0%} of the time for a processor, "
        f"and {named} leads by {max(lead, 0.0):.0%}. {_own_threads(findings) or 'Run it alone.'}"
    )


def _best(remedies: Sequence[Remedy], limiter: str) -> float:
    """The best gain of the remedies for a limiter."""
    least = LIMIT_GAIN if limiter == COMPUTE else 0.0
    return max((remedy.predicted_gain for remedy in remedies if remedy.limiter == limiter), default=least)


def _own_threads(findings: Findings) -> str:
    """What to do where the script itself has more threads than there are cores."""
    here = [rank.record.facts for rank in findings.ranks if rank.record.facts["host"] == findings.facts["host"]]
    threads, cores = sum(facts["threads"] for facts in here), findings.facts["cores"]
    if threads <= cores:
        return ""
    return f"Its own {len(here)} processes have {threads} threads on {cores} cores: set OMP_NUM_THREADS."
