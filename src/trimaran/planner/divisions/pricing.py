"""What a division costs: time by part, memory of the rank that needs most, share of the peak; a bound on the time."""

from dataclasses import dataclass

from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.exchange import Exchange, machine_exchange
from trimaran.costs.transformers.rank_memory import largest_rank
from trimaran.costs.transformers.shapes import TransformerShape
from trimaran.costs.transformers.stage_work import head_forward, layer_forward
from trimaran.costs.transformers.step_constants import StepConstants, peak_of, step_constants
from trimaran.costs.transformers.step_time import divided_step, least_seconds
from trimaran.planner.divisions.types import DivisionTask, PricedDivision


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """Prices divisions of one task.

    Attributes:
        task: what is divided
        exchange: prices collectives
        constants: of steps
        model_flops: of a sequence, as papers count it [FLOP]
    """

    task: DivisionTask
    exchange: Exchange
    constants: StepConstants
    model_flops: float

    def bound(self, division: Division) -> float:
        """No division of these degrees, whatever its schedule and sharding, has a shorter step [s]."""
        return least_seconds(
            self.task.shape,
            division,
            self.task.program,
            device=self.task.machine.node.device,
            exchange=self.exchange,
            constants=self.constants,
        )

    def priced(self, division: Division) -> PricedDivision:
        """A division with what it costs."""
        task = self.task
        device = task.machine.node.device
        step = divided_step(
            task.shape, division, task.program, device=device, exchange=self.exchange, constants=self.constants
        )
        spread = self.constants.spread if task.shape.experts is None else self.constants.spread_experts
        sequences = division.data * division.microbatch * division.microbatches
        return PricedDivision(
            division=division,
            step=step,
            memory=largest_rank(task.shape, division, bookkeeping=task.bookkeeping),
            low=step.seconds / (1.0 + spread),
            high=step.seconds * (1.0 + spread),
            utilization=sequences * self.model_flops / (step.seconds * division.devices * peak_of(device)),
            devices=division.devices,
        )


def pricer(task: DivisionTask) -> Pricer:
    """What prices a task's divisions."""
    return Pricer(
        task=task,
        exchange=machine_exchange(task.machine, year=task.program.year),
        constants=step_constants(),
        model_flops=model_flops(task.shape),
    )


def model_flops(shape: TransformerShape) -> float:
    """Forward and backward of a sequence as papers count them: products three times, attention without its mask [FLOP].

    Example:
        GPT-3 with 2,048 tokens: 6 for each parameter and token, and 2.8 % for attention.

        >>> from trimaran.costs.transformers.shapes import gpt_shape
        >>> shape = gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> round(model_flops(shape) / (6 * 174.6e9 * 2048), 3)
        1.028
    """
    whole = Division()
    works = [layer_forward(shape, whole, attention="unfused", layer=layer) for layer in range(shape.layers)]
    head = head_forward(shape, whole)
    return 3.0 * (sum(work.products + work.attention for work in works) + head.products)


def memory_limit(task: DivisionTask) -> float:
    """What a rank may need [bytes]."""
    memory = task.machine.node.device.memory
    limit = task.limits.memory_bytes
    return (memory.reported_bytes - memory.context_bytes if limit is None else limit) * (1.0 - task.limits.reserve)
