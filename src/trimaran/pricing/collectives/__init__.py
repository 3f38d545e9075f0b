"""What exchanges between devices cost, from closed forms to machines that nobody here has.

`links` prices a message or a collective on one link. `closed_forms` and `servers` are the algorithms' formulas.
`estimate` answers for a machine of the catalog: measured curves (`curves`) where there are some; elsewhere physics
(`prior`) on what joins the devices (`wires`), corrected by what other machines measured (`kriging`). `algorithms`
compares candidates. `nccl_logs` and `corrections` are for a user's own nccl-tests run, which goes before all of it.
"""

from trimaran.pricing.collectives.algorithms import CollectiveAlgorithm, algorithms, collective_cost
from trimaran.pricing.collectives.closed_forms import all_reduce_time, collective_time, message_time, messages, volume
from trimaran.pricing.collectives.corrections import Correction, NcclLog, corrected_by, read_logs

__all__ = [
    "CollectiveAlgorithm",
    "Correction",
    "NcclLog",
    "algorithms",
    "all_reduce_time",
    "collective_cost",
    "collective_time",
    "corrected_by",
    "message_time",
    "messages",
    "read_logs",
    "volume",
]
