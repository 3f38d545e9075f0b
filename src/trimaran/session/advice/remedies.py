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
