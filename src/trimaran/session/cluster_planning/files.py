"""Plans for a machine that is not here as files.

A plan of a strategy is an ordinary plan file: its premises name the machine's devices and the graph. A plan of degrees
for a transformer has no program; its file is the document of the plan with the division in full.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from trimaran.costs.transformers.division import Division
from trimaran.errors import EnvironmentProblem
from trimaran.measure.cache import put_in_place
from trimaran.planner.problem import Problem
from trimaran.program import Plan, Premises, Program, lower, program_lines, write_plan
from trimaran.program.files import to_plain
from trimaran.program.plan import DIVISION_KIND
from trimaran.session.accuracy.following import planned_training
from trimaran.session.cluster_planning.divided import DividedPlan
from trimaran.session.cluster_planning.document import machine_plan_document
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.rows import candidate_rows, predict


def write_machine_plan(path: Path, plan: MachinePlan | DividedPlan) -> None:
    """Write a plan to a file.

    Args:
        path: of the file
        plan: as it was found

    Raises:
        EnvironmentProblem: the file cannot be written
    """
    if isinstance(plan, MachinePlan):
        write_plan(path, plan_of(plan))
        return
    text = json.dumps({"schema_version": 1} | division_file(plan), indent=2) + "\n"
    try:
        put_in_place(path, text.encode())
    except OSError as error:
        raise EnvironmentProblem(f"cannot write the plan to {path}: {error.strerror}", path=str(path)) from error


def division_file(plan: DividedPlan) -> dict[str, Any]:
    """What the file of a division holds."""
    task = plan.search.task
    return (
        {
            "kind": DIVISION_KIND,
            "division": _plain_division(plan.search.chosen.division),
            "sequence_length": plan.shape.sequence,
            "layers": plan.shape.layers,
        }
        | machine_plan_document(plan)
        | {"precision": task.program.precision}
    )


def _plain_division(division: Division) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(division)
    return plain | {"recomputed": sorted(division.recomputed)}


def plan_of(plan: MachinePlan) -> Plan:
    """A plan of a strategy, as `train`, `export` and `explain` take it."""
    problem, found = plan.problem, plan.search
    return Plan(
        job=plan.reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest=problem.graph.digest,
            global_batch_size=problem.batch,
            devices=tuple(device.name for device in problem.cluster.devices),
            memory_bytes=tuple(device.memory_bytes for device in problem.cluster.devices),
            costs_digest=costs_digest(problem, plan.request),
        ),
        prediction=predict(found.chosen),
        objective="throughput" if plan.outlook is None else plan.outlook.goal,
        candidates=tuple(candidate_rows(found)),
        program=program_lines(_whole_program(plan)),
        training=None if plan.outlook is None else planned_training(plan.outlook),
    )


def costs_digest(problem: Problem, request: ClusterRequest) -> str:
    """Digest of the costs that a plan is scored by: of the machine, its software and the precision.

    Args:
        problem: has the costs
        request: what was asked
    """
    costs = f"{request.cluster} {problem.table.fingerprint.torch} {request.precision}"
    return hashlib.sha256(costs.encode()).hexdigest()[:16]


def _whole_program(plan: MachinePlan) -> Program:
    """The program on all ranks; that of a candidate may be that of one replica, where all are alike."""
    problem, chosen = plan.problem, plan.chosen
    if len(chosen.program.ranks) == chosen.strategy.devices:
        return chosen.program
    return lower(problem.graph, chosen.strategy, batch=problem.batch, clip=problem.clip)
