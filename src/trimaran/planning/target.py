"""From contenders and a curve to a choice: estimates, the front, hybrid or not, where to stop.

Settings that a plan for a target gives to its job: batch, learning rates, epochs and target.

This is the one place where a curve's learning-rate rule reaches a training: `JobSource.make` applies the recipe that
is put here, and so does `trimaran.init`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.job import Job
from trimaran.base.units import format_count, format_duration
from trimaran.jobs.huggingface import is_configuration
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.machine.prices import Price
from trimaran.networks.names import parse_network
from trimaran.planner.target_estimates import (
    LEAST_SAVED,
    Contender,
    Goal,
    Runs,
    Stop,
    TargetEstimate,
    Training,
    choose_estimate,
    choose_within,
    device_hours,
    estimate,
    find_stop,
    hybrid_verdict,
    time_cost_front,
)
from trimaran.planner.target_search import default_batches
from trimaran.planning.answer.evidence import Outlook
from trimaran.planning.answer.results import Planned
from trimaran.planning.requests import PlanRequest, TargetRequest
from trimaran.program.plan_file import Objective, Plan, PlannedTraining

if TYPE_CHECKING:
    from trimaran.convergence.curve import Curve
    from trimaran.jobs.learning_rate import Recipe


# ---------------------------------------------------------------------------------------------------------------------
# Which curve holds for a job, and how much training it says a batch needs. A curve is never invented


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Convergence of a job.

    Attributes:
        curve: None: there is none
        name: as it was asked for
        job_batch: the job's own
        samples_per_epoch: of the data that is trained on; None: as the curve says
        drop_last: the last, smaller batch of an epoch is left out
        warnings: for the user
        tokens: that are trained on, in place of a curve; None: not said
        sample_tokens: of a sample, with `tokens`
    """

    curve: "Curve | None"
    name: str = ""
    job_batch: int = 0
    samples_per_epoch: int | None = None
    drop_last: bool = False
    warnings: tuple[str, ...] = ()
    tokens: float | None = None
    sample_tokens: float = 0.0

    @property
    def says_length(self) -> bool:
        """Whether it is known how much training there is."""
        return self.curve is not None or self.tokens is not None


def known_by_tokens(request: TargetRequest, *, sample_tokens: float, job_batch: int) -> Known:
    """A training of a number of tokens, whatever the batch.

    Args:
        request: says them
        sample_tokens: of a sample, padding not counted
        job_batch: samples of one update of the job
    """
    return Known(curve=None, job_batch=job_batch, tokens=request.tokens, sample_tokens=sample_tokens)


def find_job_curve(job: Job, reference: str, request: TargetRequest, *, samples: int | None) -> Known:
    """The curve that was asked for, else the job's own, else none.

    Args:
        job: may name one
        reference: of the job
        request: may name one
        samples: of the job's training data; None: they stand for others

    Raises:
        InputError: no such curve, one of another task, or epochs of an unknown number of samples
    """
    name = request.curve or _own_curve(job, reference)
    if name is None:
        return Known(curve=None, job_batch=job.global_batch_size, samples_per_epoch=samples)
    from trimaran.convergence.curve import check_task
    from trimaran.convergence.files import find_curve
    from trimaran.convergence.types import oddities

    curve = find_curve(name)
    # The published data set is no multiple of the job's substitute.
    drop_last = job.drop_last and samples is not None
    samples = request.samples_per_epoch or samples
    per_epoch = samples or curve.table.samples_per_epoch
    if curve.table.unit == "epochs" and per_epoch is None:
        raise InputError(
            f"the curve {name} is in epochs, and neither it nor {reference} says how many samples one has: give "
            "--samples-per-epoch, or a column samples_per_epoch in its table",
            code="curve.epoch-length-unknown",
            curve=name,
        )
    told = check_task(curve, _in_one_spelling(reference), samples_per_epoch=samples, target=job.target)
    return Known(
        curve=curve,
        name=name,
        job_batch=job.global_batch_size,
        samples_per_epoch=per_epoch,
        drop_last=drop_last,
        warnings=(*told, *_changed_rule(curve.table.recipe), *oddities(curve.table)),
    )


def _changed_rule(recipe: "Recipe | None") -> Iterator[str]:
    """Warnings about a user's learning-rate rule that differs from the one of the curve."""
    from trimaran.jobs.learning_rate import digest_of_rule

    if recipe is not None and recipe.rule_digest and digest_of_rule(recipe.rule) != recipe.rule_digest:
        yield f"the rule {recipe.rule} is missing or differs from that of the curve: measure the curve again"


def has_own_data(reference: str) -> bool:
    """Whether a job has training data; those of published networks and configurations are made up.

    Args:
        reference: of the job
    """
    return parse_network(reference) is None and not is_configuration(reference)


def own_samples(reference: str) -> int | None:
    """Samples of a job's own training data; None for a published network, whose data are made up.

    Args:
        reference: of the job
    """
    if not has_own_data(reference):
        return None
    from trimaran.planning.preparation import epoch_data

    return epoch_data(resolve(reference)).samples


def _in_one_spelling(reference: str) -> str:
    """A published network as curves name it: "gpt3" is the "gpt" of 175 billion parameters."""
    network = parse_network(reference)
    if network is None:
        return reference
    name = {"gpt3": "gpt"}.get(network.name, network.name)
    return f"{name}:{network.size}" if network.size else name


def _own_curve(job: Job, reference: str) -> str | None:
    """The curve that a job names; a file may be named as seen from the file of the job."""
    file, _, function = reference.rpartition(":")
    if job.curve is None or not function or not file.endswith(".py"):
        return job.curve
    found = Path(file).parent / job.curve
    return str(found) if found.is_file() and not Path(job.curve).is_file() else job.curve


def training_at(known: Known, batch: int) -> Training | None:
    """How much training a batch needs; None without a curve and without tokens.

    Args:
        known: the curve and the data, or the tokens
        batch: samples of one update

    Raises:
        InputError: the curve does not say how its unit becomes updates

    Example:
        >>> known = Known(curve=None, tokens=1e9, sample_tokens=1000.0)
        >>> training_at(known, 100).updates.amount
        10000.0
    """
    if known.tokens is not None:
        from trimaran.convergence.types import Need

        updates = float(math.ceil(known.tokens / (batch * known.sample_tokens)))
        said = f"given: {known.tokens:g} tokens"
        return Training(updates=Need(amount=updates, low=updates, high=updates, unit="steps", source=said))
    if known.curve is None:
        return None
    samples = known.samples_per_epoch
    if samples is None:
        return Training(updates=known.curve.steps(batch))
    epochs = known.curve.epochs(batch, samples)
    # A curve of samples says how many are trained on; one of epochs was measured with the same ones left out.
    in_epochs = known.curve.table.unit == "epochs"
    steps = float(samples // batch) if known.drop_last and in_epochs else samples / batch
    return Training(updates=epochs.scaled(steps, "steps"), epochs=epochs, steps_per_epoch=steps)


def goal_of(objective: Objective | None, request: TargetRequest) -> Goal:
    """The objective over batches: with a curve the time to the target, unless the user asks for another.

    Raises:
        InputError: the time of an epoch, which says nothing of different batches
    """
    if objective == "epoch":
        raise InputError(
            "--objective epoch compares strategies at one batch; with a curve or several batches ask for time, cost or "
            "throughput",
            code="accuracy.epoch-objective",
        )
    return objective or ("time" if request.curve or request.tokens else "throughput")


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
    runs: Runs | None = None,
) -> Outlook:
    """Choose one of several strategies at several batches.

    Args:
        contenders: strategies at batches
        asked: the requested objective
        known: the curve
        request: limits and prices
        batches: that were looked at
        left_out: batches that were not, with the reason
        price: of the cluster file
        node_devices: devices of a node
        is_complete: the time of the search did not run out
        chosen: one of them, where it is chosen already
        runs: what failures make of a training; None: nothing

    Raises:
        InputError: a budget without a price, or in another currency
        InfeasibleError: nothing is left within the limits, or failures leave no progress
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
        estimate(one, trainings[one.global_batch], price=paid, unit=unit, runs=runs)
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
    goal: Goal = asked if known.says_length else "throughput"
    estimates = _that_end(estimates)
    best, met = choose_estimate(estimates, goal), None
    if request.within_s is not None or request.budget is not None:
        if request.budget is not None:
            _check_budget(request, price)
        best, met = choose_within(estimates, within_s=request.within_s, budget=request.budget)
    if chosen is not None:
        best = next((one for one in estimates if one.contender == chosen), best)
    front, stop = time_cost_front(estimates), _stop(estimates, request)
    check_least_saved(request, compares=stop is not None)
    return Outlook(
        asked=asked,
        goal=goal,
        curve=known.curve,
        curve_name=known.name,
        estimates=estimates,
        chosen=best,
        front=front,
        hybrid_comparison=hybrid_verdict(estimates, goal, is_complete=is_complete),
        stop=stop,
        batches=tuple(batches),
        left_out=tuple(left_out),
        price=price,
        warnings=_warnings(asked, known, best, is_complete=is_complete),
        tokens=known.tokens,
        within_s=request.within_s,
        budget=request.budget,
        met=met,
        compares=request.compares or asked == "cost",
    )


def check_price(request: TargetRequest, *, says_length: bool) -> None:
    """Refuse a price of devices where nothing says how long they are needed.

    Args:
        request: may have one
        says_length: whether the length of the training is known

    Raises:
        InputError: there is a price and no length
    """
    if request.price is not None and not says_length:
        raise InputError(
            f"--price {request.price}: what a training of a given length costs; give --tokens, such as --tokens 15T, "
            "or --curve, or leave it out",
            code="price.length-unknown",
        )


def check_least_saved(request: TargetRequest, *, compares: bool) -> None:
    """Refuse a share of the time that a doubling must save where no numbers of devices are compared by their times.

    Args:
        request: may have one other than the usual one
        compares: whether the times of several numbers of devices are known

    Raises:
        InputError: it has one, and nothing would depend on it
    """
    if request.least_saved != LEAST_SAVED and not compares:
        raise InputError(
            f"--least-saved {request.least_saved:g}: about times to a target on several numbers of devices, and none "
            "are compared; give --curve, or --tokens with --devices such as 64..1024, or leave it out",
            code="accuracy.nothing-to-save",
            share=request.least_saved,
        )


def _check_budget(request: TargetRequest, price: Price | None) -> None:
    """Refuse an amount that no price says the use of, the one that was given or that of the cluster file.

    Raises:
        InputError: there is no price, or it is in another currency
    """
    if price is None:
        raise InputError(
            "--budget: the price of the devices is not known: give it, such as --price '3 USD/device-hour'",
            code="tokens.budget-without-price",
        )
    if request.budget_currency not in ("", price.currency):
        raise InputError(
            f"--budget {request.budget:g} {request.budget_currency}: the price is {price}: give both in one currency",
            code="tokens.two-currencies",
        )


def _that_end(estimates: tuple[TargetEstimate, ...]) -> tuple[TargetEstimate, ...]:
    """Those whose training ends; failures may leave it no progress.

    Raises:
        InfeasibleError: none does
    """
    ending = tuple(one for one in estimates if one.time_s is None or math.isfinite(one.time_s))
    if ending:
        return ending
    run = estimates[0].run
    between = "" if run is None else f": one each {format_duration(1.0 / run.recovery.rate)}"
    raise InfeasibleError(
        f"failures leave no progress on {format_count(estimates[0].devices, 'device')}{between}, and a checkpoint or a "
        "restart takes longer; take fewer devices, faster storage (--checkpoint-rate) or a faster restart (--restart)",
        code="failures.no-progress",
    )


def _stop(estimates: Sequence[TargetEstimate], request: TargetRequest) -> Stop | None:
    timed = {one.devices for one in estimates if one.time_s is not None}
    if request.tokens is not None and not request.compares:
        return None
    return find_stop(estimates, share=request.least_saved) if len(timed) > 1 else None


def _warnings(asked: Goal, known: Known, chosen: TargetEstimate, *, is_complete: bool) -> tuple[str, ...]:
    """Warnings for the user, each once."""
    told = [*_no_curve(asked, known), *known.warnings, *_needs(chosen), *_rates(chosen, known)]
    return tuple(dict.fromkeys([*told, *_cut_short(is_complete)]))


def _no_curve(asked: Goal, known: Known) -> tuple[str, ...]:
    if known.says_length or asked == "throughput":
        return ()
    return (
        f"the {asked} to the target is not known without a convergence curve, so the plan is for throughput: give "
        "--curve NAME|FILE (`trimaran catalog curve --list`), or measure one with `trimaran crossover --measure`",
    )


def _needs(chosen: TargetEstimate) -> tuple[str, ...]:
    return () if chosen.training is None else chosen.training.updates.warnings


def _rates(chosen: TargetEstimate, known: Known) -> tuple[str, ...]:
    """Warning that the learning rate's dependence on the batch is not known, where the batch is not the job's."""
    if known.curve is None or known.curve.table.recipe is not None or chosen.global_batch == known.job_batch:
        return ()
    return (
        f"the curve does not say how the learning rate followed the batch: at {chosen.global_batch} instead of "
        f"{known.job_batch} the job's own is left as it is",
    )


def _cut_short(is_complete: bool) -> tuple[str, ...]:
    return () if is_complete else ("the search was stopped before all that spreads a network was simulated",)


# ---------------------------------------------------------------------------------------------------------------------
# Comparison of strategies at several batches by a backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A batch and a number of devices that are searched by themselves.

    Attributes:
        batch: samples of one update
        devices: most that may take part
    """

    batch: int
    devices: int


class Backend(Protocol):
    """Prices strategies for one job in its own way, and finds the best of them.

    Attributes:
        source: where the job comes from
        request: of the user
    """

    source: JobSource
    request: PlanRequest

    @property
    def batch(self) -> int:
        """Samples of one update, where no others are asked for."""

    @property
    def devices(self) -> int:
        """Most that may take part."""

    @property
    def node_devices(self) -> int:
        """Devices of a node."""

    @property
    def price(self) -> Price | None:
        """Of the devices; None: not given."""

    def curve(self) -> Known:
        """The job's convergence curve."""

    def plan(self) -> Planned:
        """The best plan at `batch`.

        Raises:
            InputError: the job, the machine or a pin is wrong
            InfeasibleError: nothing fits
        """

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> "Compared":
        """Alternatives at several batches.

        Args:
            batches: samples of one update
            known: the curve
            goal: objective over all batches

        Raises:
            InfeasibleError: nothing fits at any batch
        """


class CatalogBackend:
    """Common part of the backends for machines of the catalog.

    Attributes:
        source: where the job comes from
        request: of the user, with the machine
    """

    source: JobSource
    request: PlanRequest

    @property
    def devices(self) -> int:
        """Most that may take part."""
        return self.request.devices or find_machine(self.request.cluster).devices

    @property
    def node_devices(self) -> int:
        """Devices of a node."""
        return find_machine(self.request.cluster).node.devices

    @property
    def price(self) -> Price | None:
        """Of the devices; None: the catalog does not say."""
        return find_machine(self.request.cluster).node.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Alternatives of a backend over several batches.

    Attributes:
        contenders: strategies at batches
        plan_of: the plan of one of them
        left_out: batches at which nothing fits, with the reason
        is_complete: the time of the search did not run out
    """

    contenders: tuple[Contender, ...]
    plan_of: Callable[[Contender], Planned]
    left_out: tuple[tuple[int, str], ...] = ()
    is_complete: bool = True


def compare_each(
    cells: Sequence[Cell],
    plan_cell: Callable[[Cell], Iterable[Contender]],
    plan_of: Callable[[Contender], Planned],
) -> Compared:
    """Search each cell by itself.

    Args:
        cells: of the search
        plan_cell: gives the strategies of one; raises `InfeasibleError` where nothing fits
        plan_of: as in `Compared`
    """
    contenders: list[Contender] = []
    reasons: dict[int, str] = {}
    for cell in cells:
        try:
            contenders += plan_cell(cell)
        except InfeasibleError as error:
            reasons.setdefault(cell.batch, error.message)
    fitting = {contender.global_batch for contender in contenders}
    left_out = tuple((batch, reason) for batch, reason in reasons.items() if batch not in fitting)
    return Compared(contenders=tuple(contenders), plan_of=plan_of, left_out=left_out)


HEADROOM = 1.5
"""A run may take this multiple of the epochs that the mean over runs takes at most."""


def planned_training(outlook: Outlook) -> PlannedTraining | None:
    """The training to the target in a plan file; None without a curve.

    Args:
        outlook: the choice
    """
    chosen, curve = outlook.chosen, outlook.curve
    training = chosen.training
    if curve is None or training is None or chosen.time_s is None or chosen.time_interval_s is None:
        return None
    epochs, recipe = training.epochs, curve.table.recipe
    return PlannedTraining(
        curve=outlook.curve_name,
        task=curve.table.task,
        target=curve.table.target,
        updates=training.updates.amount,
        epochs=None if epochs is None else epochs.amount,
        epochs_interval=None if epochs is None else _closed((epochs.low, epochs.high)),
        time_s=chosen.time_s,
        time_interval_s=_closed(chosen.time_interval_s),
        rates=None
        if recipe is None
        else dataclasses.replace(
            recipe,
            # A warm-up of epochs is counted in updates by it.
            samples_per_epoch=recipe.samples_per_epoch or curve.table.samples_per_epoch or _samples(chosen),
        ),
    )


def _samples(chosen: TargetEstimate) -> int | None:
    """Samples of an epoch, as the choice counted them; None where it did not."""
    steps = None if chosen.training is None else chosen.training.steps_per_epoch
    return None if steps is None else round(steps * chosen.global_batch)


def _closed(interval: tuple[float, float]) -> tuple[float, float] | None:
    """An interval whose ends are numbers; None where one is not."""
    return interval if all(map(math.isfinite, interval)) else None


def source_as_planned(plan: Plan, source: JobSource) -> JobSource:
    """A job at the batch of a plan, with the learning rates, epochs and target of its curve.

    The user's number of epochs stays. Where a curve says that more of them are needed than the job has, there are
    more than the upper end of its interval: that is of a mean, and a run strays further. The target ends it anyway.

    Args:
        plan: says them
        source: where the job comes from

    Raises:
        InputError: the job is wrong
    """
    batch, training = plan.premises.global_batch_size, plan.training
    if source.global_batch_size is None and source.make().global_batch_size != batch:
        source = dataclasses.replace(source, global_batch_size=batch)
    if training is None:
        return source
    job = source.make()
    epochs = source.epochs
    if epochs is None and training.epochs_interval is not None:
        epochs = max(job.epochs, math.ceil(HEADROOM * training.epochs_interval[1]))
    return dataclasses.replace(
        source,
        recipe=source.recipe or training.rates,
        epochs=epochs,
        target=source.target if source.target is not None or job.metric is None else training.target,
    )


def job_as_planned(plan: Plan, job: Job) -> Job:
    """A job of a user's own loop at the batch of a plan that was made with a curve; any other job as it is.

    Args:
        plan: may have a training
        job: the user's
    """
    if plan.training is None:
        return job
    from trimaran.jobs.learning_rate import follow_recipe

    job = dataclasses.replace(job, global_batch_size=plan.premises.global_batch_size)
    recipe = plan.training.rates
    return job if recipe is None else follow_recipe(job, recipe)
