"""Time and money to a target: C = T · S · E over strategies, device counts and global batches.

    minimise    T(strategy, B) · S(B) · E(B)        time of a step, steps of an epoch, epochs to the target
                or that times what the devices cost
    over        strategies, device counts, global batches B within the user's limits
    subject to  what a search for one batch is subject to

`searching.py` simulates what may win for machines of the catalog; `estimating.py` joins a step and a curve;
`choosing.py` takes the best, `stopping.py` says where more devices no longer help.
"""

from trimaran.planner.accuracy.choosing import choose_estimate, hybrid_verdict, is_tied, time_cost_front
from trimaran.planner.accuracy.estimating import combine, estimate
from trimaran.planner.accuracy.stopping import Stop, find_stop
from trimaran.planner.accuracy.types import Contender, Estimate, Goal, Rivals, Training

__all__ = [
    "Contender",
    "Estimate",
    "Goal",
    "Rivals",
    "Stop",
    "Training",
    "choose_estimate",
    "combine",
    "estimate",
    "find_stop",
    "hybrid_verdict",
    "is_tied",
    "time_cost_front",
]
