"""What a plan for a target asks of the job that follows it: its batch, learning rates, epochs and target.

This is the one place where a curve's learning-rate rule reaches a training: `JobSource.make` applies the recipe that
is put here, and so does `trimaran.init`.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from trimaran.job import Job
from trimaran.planner.accuracy.types import Estimate
from trimaran.program.plan import Plan, PlannedRates, PlannedTraining
from trimaran.session.accuracy.types import Outlook
from trimaran.session.jobs import JobSource

HEADROOM = 1.5
"""A run may take so many times the epochs that the mean over runs takes at most."""

if TYPE_CHECKING:
    from trimaran.costs.convergence.recipes import Recipe


def planned_training(outlook: Outlook) -> PlannedTraining | None:
    """What a plan file says of the training to the target; None without a curve.

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
        else PlannedRates(
            rule=recipe.rule,
            base_batch=recipe.base_batch,
            warmup_epochs=recipe.warmup_epochs,
            schedule=recipe.schedule,
            # A warm-up of epochs is counted in updates by it.
            samples_per_epoch=recipe.samples_per_epoch or curve.table.samples_per_epoch or _samples(chosen),
        ),
    )


def _samples(chosen: Estimate) -> int | None:
    """Of an epoch, by what the choice counted; None where it did not."""
    steps = None if chosen.training is None else chosen.training.steps_per_epoch
    return None if steps is None else round(steps * chosen.global_batch)


def _closed(interval: tuple[float, float]) -> tuple[float, float] | None:
    """An interval whose ends are numbers; None where one is not."""
    return interval if all(map(math.isfinite, interval)) else None


def source_as_planned(plan: Plan, source: JobSource) -> JobSource:
    """A job at the batch of a plan, with the learning rates, epochs and target of its curve.

    What the user has said of epochs stays. Where a curve says that more of them are needed than the job has, there are
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
        recipe=source.recipe or recipe_of(training),
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
    from trimaran.session.recipes import follow_recipe

    job = dataclasses.replace(job, global_batch_size=plan.premises.global_batch_size)
    recipe = recipe_of(plan.training)
    return job if recipe is None else follow_recipe(job, recipe)


def recipe_of(training: PlannedTraining) -> "Recipe | None":
    """How the learning rate follows the batch, as a plan says; None where it does not say."""
    from trimaran.costs.convergence.recipes import Recipe

    rates = training.rates
    if rates is None:
        return None
    return Recipe(
        rule=rates.rule,
        base_batch=rates.base_batch,
        warmup_epochs=rates.warmup_epochs,
        schedule=rates.schedule,
        samples_per_epoch=rates.samples_per_epoch,
    )
