"""Plans for machines that are not here: estimated costs, transfers on the machine's links, the planner's search."""

from trimaran.session.cluster_planning.divided import DividedPlan
from trimaran.session.cluster_planning.document import machine_plan_document
from trimaran.session.cluster_planning.files import write_machine_plan
from trimaran.session.cluster_planning.planning import plan_on_machine
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.types import MachinePlan

__all__ = [
    "ClusterRequest",
    "DividedPlan",
    "MachinePlan",
    "machine_plan_document",
    "plan_on_machine",
    "write_machine_plan",
]
