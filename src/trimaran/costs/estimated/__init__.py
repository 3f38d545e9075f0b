"""The cost table of a graph on a device that is not at hand.

`attribution` says which operations of a graph the kernels of a traced step belong to; `table` prices the kernels and
sums them up by operation; `step_costs` prices the update, the clipping and the loading.
"""

from trimaran.costs.estimated.attribution import Attribution, attribute
from trimaran.costs.estimated.table import estimated_table

__all__ = ["Attribution", "attribute", "estimated_table"]
