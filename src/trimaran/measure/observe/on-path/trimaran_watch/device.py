"""On a GPU: had the device run out of work when the host began the next step? An event answers, nothing waits.

If it had, step after step, the host does not issue work as fast as the device does it: the script is launch-bound, or
the device waits for data.
"""

import torch

from trimaran_watch.ledger import DRY, LEDGER

_pending: list[torch.cuda.Event] = []


def mark_step_end() -> None:
    """Leave an event behind the work of the step."""
    event = torch.cuda.Event()
    event.record()
    _pending[:] = [event]


def look_whether_dry() -> None:
    """Note whether the device has passed the last event already."""
    if _pending and _pending.pop().query():
        LEDGER.counts[DRY] += 1
