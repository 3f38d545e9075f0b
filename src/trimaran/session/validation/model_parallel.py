"""Published steps of divided transformers, answered by the closed forms of `costs/transformers`."""

from trimaran.cluster.machine_matching import match_machine
from trimaran.cluster.machines import Machine
from trimaran.costs.transformers.exchange import machine_exchange
from trimaran.costs.transformers.step_constants import step_constants
from trimaran.costs.transformers.step_time import DividedStep, divided_step
from trimaran.errors import InputError, TrimaranError
from trimaran.session.validation.model_parallel_setups import DividedRun, divided_run
from trimaran.session.validation.types import Answer, Row

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def answer_model_parallel(row: Row) -> Answer:
    """What we say of a row of the families "mp_step_time" and "mp_throughput".

    Args:
        row: as published

    Returns:
        The answer; one that cannot be given says why.
    """
    try:
        run = divided_run(row)
        machine = machine_of(run)
        predicted = in_unit(row, run, run_step(run, machine))
    except TrimaranError as error:
        return Answer(row=row, predicted=None, skipped=error.message)
    constants = step_constants()
    if "bigscience" in row.fields.get("source_repo", ""):
        # Its authors: an identical test is 40 % faster or slower on the same nodes at another time of the day.
        return Answer(row=row, predicted=predicted, low=predicted * 0.6, high=predicted * 2.0)
    spread = constants.spread_experts if run.shape.experts is not None else constants.spread
    low, high = predicted / (1.0 + spread), predicted * (1.0 + spread)
    return Answer(row=row, predicted=predicted, low=low, high=high)


def machine_of(run: DividedRun) -> Machine:
    """What a run's devices sit in.

    Raises:
        InputError: no device of the catalog is meant.
    """
    found = match_machine(run.machine, run.device, devices=run.devices, nodes=run.nodes)
    if found is None:
        raise InputError(f"{run.machine or run.device}: no machine of the catalog", machine=run.machine)
    return found.machine


def run_step(run: DividedRun, machine: Machine) -> DividedStep:
    """Time of a run's step."""
    return divided_step(
        run.shape,
        run.division,
        run.program,
        device=machine.node.device,
        exchange=machine_exchange(machine, year=run.program.year),
        constants=step_constants(),
    )


def in_unit(row: Row, run: DividedRun, step: DividedStep) -> float:
    """A step's time or throughput, in the unit of a row.

    Raises:
        InputError: a unit that no step has.
    """
    if row.family == "mp_step_time":
        if row.unit not in _SECONDS:
            raise InputError(f"unit {row.unit}: expected one of {', '.join(_SECONDS)}", unit=row.unit)
        return step.seconds / _SECONDS[row.unit]
    division = run.division
    sequences = division.microbatch * division.microbatches * division.data
    per_s = sequences / step.seconds
    if row.unit.startswith(("samples", "sequences")):
        return per_s / (run.devices if row.unit.endswith("/GPU") else 1)
    if not row.unit.startswith("tokens"):
        raise InputError(f"unit {row.unit}: expected tokens/s or samples/s", unit=row.unit)
    return per_s * run.shape.sequence / (run.devices if row.unit.lower().endswith("gpu") else 1)
