"""From contenders and a curve to a choice: estimates, the front, the rivals, where to stop."""

from collections.abc import Iterable, Sequence

from trimaran.cluster.prices import Price
from trimaran.errors import InfeasibleError, InputError
from trimaran.planner.accuracy.batches import default_batches
from trimaran.planner.accuracy.choosing import choose_estimate, hybrid_verdict, time_cost_front
from trimaran.planner.accuracy.estimating import device_hours, estimate
from trimaran.planner.accuracy.stopping import Stop, find_stop
from trimaran.planner.accuracy.types import Contender, Estimate, Goal
from trimaran.program.plan import Objective
from trimaran.session.accuracy.curves import Known, training_at
from trimaran.session.accuracy.request import TargetRequest
from trimaran.session.accuracy.types import Outlook


def goal_of(objective: Objective | None, request: TargetRequest) -> Goal:
    """What is to be made best, where batches are compared: with a curve the time to the target, unless said otherwise.

    Raises:
        InputError: the time of an epoch, which says nothing of different batches
    """
    if objective == "epoch":
        raise InputError(
            "--objective epoch compares strategies at one batch; with a curve or several batches ask for time, cost or "
            "throughput",
            code="accuracy.epoch-objective",
        )
    return objective or ("time" if request.curve else "throughput")


def batches_to_try(base: int, known: Known, request: TargetRequest, *, devices: int, fixed: bool) -> tuple[int, ...]:
    """Global batches that are looked at.

    Args:
        base: the job's
        known: the curve
        request: may say which
        devices: that there are
        fixed: the user has said the job's batch
    """
    if request.batches:
        return request.batches
    if fixed or known.curve is None:
        return (base,)
    measured = [point.global_batch for point in known.curve.table.points]
    return default_batches(base, known.curve.range, measured, devices=devices)


def batches_within(batches: Sequence[int], known: Known) -> tuple[list[int], list[tuple[int, str]]]:
    """Batches that the training data fill, and the others with the reason.

    Args:
        batches: that are asked for
        known: says how many samples there are; where it does not, nothing is left out

    Raises:
        InputError: none is left
    """
    samples = known.samples_per_epoch
    if samples is None:
        return list(batches), []
    kept = [batch for batch in batches if batch <= samples]
    if not kept:
        raise InputError(
            f"the training data have {samples} samples, fewer than every batch that is asked for "
            f"({', '.join(map(str, batches))}): give smaller ones with --batches",
            samples=samples,
        )
    return kept, [(batch, f"the training data have only {samples} samples") for batch in batches if batch > samples]


def conclude(
    contenders: Iterable[Contender],
    *,
    asked: Goal,
    known: Known,
    request: TargetRequest,
    batches: Sequence[int],
    left_out: Sequence[tuple[int, str]] = (),
    price: Price | None = None,
    node_devices: int = 1,
    is_complete: bool = True,
    chosen: Contender | None = None,
) -> Outlook:
    """Choose one of several strategies at several batches.

    Args:
        contenders: strategies at batches
        asked: what is to be made best
        known: the curve
        request: limits and prices
        batches: that were looked at
        left_out: batches that were not, with the reason
        price: of the cluster file
        node_devices: devices of a node
        is_complete: the time of the search did not run out
        chosen: one of them, where it is chosen already

    Raises:
        InfeasibleError: nothing is left within the limits
    """
    price = request.price or price
    trainings = {batch: training_at(known, batch) for batch in batches}
    most = request.most_local_batch

    def paid(devices: int, seconds: float) -> float:
        if price is None:
            return device_hours(devices, seconds)
        return price.of(devices, seconds, node_devices=node_devices)

    unit = "device-hours" if price is None else price.currency
    estimates = tuple(
        estimate(one, trainings[one.global_batch], price=paid, unit=unit)
        for one in contenders
        if most is None or one.local_batch <= most
    )
    if not estimates:
        why = "; ".join(dict.fromkeys(f"batch {batch}: {reason}" for batch, reason in left_out))
        limit = "" if most is None else f" with at most {most} samples of a replica in one update"
        raise InfeasibleError(
            f"nothing fits{limit}{f': {why}' if why else ''}; take a limit away, or smaller batches",
            code="accuracy.nothing-fits",
        )
    goal: Goal = asked if known.curve is not None else "throughput"
    best = choose_estimate(estimates, goal)
    if chosen is not None:
        best = next((one for one in estimates if one.contender == chosen), best)
    front = time_cost_front(estimates)
    return Outlook(
        asked=asked,
        goal=goal,
        curve=known.curve,
        curve_name=known.name,
        estimates=estimates,
        chosen=best,
        front=front,
        rivals=hybrid_verdict(estimates, goal, is_complete=is_complete),
        stop=_stop(estimates, request),
        batches=tuple(batches),
        left_out=tuple(left_out),
        price=price,
        is_complete=is_complete,
        warnings=_warnings(asked, known, best, is_complete=is_complete),
    )


def _stop(estimates: Sequence[Estimate], request: TargetRequest) -> Stop | None:
    timed = {one.devices for one in estimates if one.time_s is not None}
    return find_stop(estimates, share=request.least_saved) if len(timed) > 1 else None


def _warnings(asked: Goal, known: Known, chosen: Estimate, *, is_complete: bool) -> tuple[str, ...]:
    """What the user should know, each once."""
    told = [*_no_curve(asked, known), *known.warnings, *_needs(chosen), *_rates(chosen, known)]
    return tuple(dict.fromkeys([*told, *_cut_short(is_complete)]))


def _no_curve(asked: Goal, known: Known) -> tuple[str, ...]:
    if known.curve is not None or asked == "throughput":
        return ()
    return (
        f"the {asked} to the target is not known without a convergence curve, so throughput was made best: give "
        "--curve NAME|FILE (`trimaran curve --list`), or measure one with `trimaran converge`",
    )


def _needs(chosen: Estimate) -> tuple[str, ...]:
    return () if chosen.training is None else chosen.training.updates.warnings


def _rates(chosen: Estimate, known: Known) -> tuple[str, ...]:
    """That nobody says how the learning rate followed the batch, where the batch is not the job's."""
    if known.curve is None or known.curve.table.recipe is not None or chosen.global_batch == known.job_batch:
        return ()
    return (
        f"the curve does not say how the learning rate followed the batch: at {chosen.global_batch} instead of "
        f"{known.job_batch} the job's own is left as it is",
    )


def _cut_short(is_complete: bool) -> tuple[str, ...]:
    return () if is_complete else ("the time of the search ran out: not all that spreads a network was simulated",)
