"""Transformers on many devices for a target: a search over divisions at each batch and count of devices.

Each search is stopped early: what is compared here are batches and counts, and the best division of each is found among
the first. The chosen one is searched again for as long as any plan.
"""

import dataclasses
import math
from collections.abc import Iterator

from trimaran.cluster.find import find_machine
from trimaran.costs.transformers.shapes import TransformerShape
from trimaran.errors import InfeasibleError
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.accuracy.types import Contender
from trimaran.planner.divisions.document import division_name
from trimaran.planner.divisions.types import DivisionSearch, PricedDivision
from trimaran.session.accuracy.concluding import batches_to_try, batches_within, conclude, goal_of
from trimaran.session.accuracy.curves import find_job_curve
from trimaran.session.accuracy.types import Outlook
from trimaran.session.cluster_planning.divided import DividedPlan, plan_divided
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.jobs import resolve
from trimaran.session.network_references import parse_network

CELL_S = 2.0
"""A search for one batch on one count of devices [s]."""

COUNTS = 4
"""Counts of devices that are compared: all, half, a quarter, an eighth."""


def plan_divided_for_target(reference: str, shape: TransformerShape, request: ClusterRequest) -> DividedPlan:
    """Find division, devices and batch that are best for reaching the target.

    Args:
        reference: of the network
        shape: of the network
        request: what is asked

    Raises:
        InputError: no such machine or curve, a curve of another task, or pins that mean nothing here
        InfeasibleError: nothing fits at any batch
    """
    asked = goal_of(request.objective, request.target)
    machine = find_machine(request.cluster)
    known = find_job_curve(resolve(reference), reference, request.target, samples=None)
    network = parse_network(reference)
    devices = request.devices or machine.devices
    base = request.batch or max(FAMILIES[network.name].batch if network else 1, devices)
    wanted = batches_to_try(base, known, request.target, devices=devices, fixed=request.batch is not None)
    batches, left_out = batches_within(wanted, known)
    contenders: list[Contender] = []
    for batch in batches:
        found = list(_at_batch(reference, shape, request, batch, devices, left_out))
        contenders += found

    def concluded(chosen: Contender | None = None) -> Outlook:
        return conclude(
            contenders,
            asked=asked,
            known=known,
            request=request.target,
            batches=batches,
            left_out=left_out,
            price=machine.node.price,
            node_devices=machine.node.devices,
            chosen=chosen,
        )

    outlook = concluded()
    planned = plan_divided(
        reference,
        shape,
        dataclasses.replace(request, batch=outlook.chosen.global_batch, devices=outlook.chosen.devices),
    )
    chosen, longer = outlook.chosen.contender.origin, planned.search.chosen
    if longer.seconds < chosen.seconds:
        better = contender_of_division(longer, outlook.chosen.global_batch)
        contenders.append(better)
        outlook, chosen = concluded(better), longer
    search = dataclasses.replace(planned.search, chosen=chosen)
    return dataclasses.replace(
        planned, request=request, search=search, outlook=outlook, notes=(*planned.notes, *outlook.warnings)
    )


def _at_batch(
    reference: str,
    shape: TransformerShape,
    request: ClusterRequest,
    batch: int,
    devices: int,
    left_out: list[tuple[int, str]],
) -> Iterator[Contender]:
    reason = ""
    some = False
    for halvings in range(COUNTS):
        count = devices >> halvings
        if count < 1 or count << halvings != devices:
            break
        limit = CELL_S if request.time_limit_s is None else min(CELL_S, request.time_limit_s)
        asked = dataclasses.replace(request, batch=batch, devices=count, time_limit_s=limit)
        try:
            found = plan_divided(reference, shape, asked).search
        except InfeasibleError as error:
            reason = reason or error.message
            continue
        some = True
        for priced in _of_interest(found):
            yield contender_of_division(priced, batch)
    if not some:
        left_out.append((batch, reason or "no count of devices is possible"))


def _of_interest(found: DivisionSearch) -> Iterator[PricedDivision]:
    """The fastest, and what data parallelism alone would do where it fits."""
    yield found.chosen
    for one in (*found.runners_up, *(each.priced for each in found.baselines)):
        if one is not None and one.memory.peak <= _limit(found) and one is not found.chosen:
            yield one


def _limit(found: DivisionSearch) -> float:
    from trimaran.planner.divisions.pricing import memory_limit

    return memory_limit(found.task)


def contender_of_division(priced: PricedDivision, batch: int) -> Contender:
    """A division as one of those that are compared.

    Args:
        priced: with its cost
        batch: sequences of one update
    """
    division = priced.division
    spread = division.tensor * division.pipeline * division.context
    shape = 4 * (division.tensor * division.context > 1) + 2 * (division.pipeline > 1) + (division.data > 1)
    return Contender(
        name=division_name(division),
        devices=priced.devices,
        global_batch=batch,
        replicas=division.data,
        microbatches=max(1, math.ceil(batch / (division.data * division.microbatch))),
        cases=(priced.low, priced.seconds, priced.high),
        peak_bytes=int(priced.memory.peak),
        simplicity=(shape, priced.devices, spread, division.chunks, division.microbatches),
        is_hybrid=spread > 1,
        origin=priced,
    )
