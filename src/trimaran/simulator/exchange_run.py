"""An exchange of gradients, given a step and a machine: which gradients are complete when, and what becomes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from trimaran.cluster.machines import Machine
from trimaran.costs.exchange import ExchangeOptions, call_price
from trimaran.costs.exchange_recipes import Recipe, recipe_of
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.scaled import Sync
from trimaran.costs.software import Software
from trimaran.graph.types import Phase
from trimaran.graph.workload import Workload
from trimaran.simulator.exchange_calls import Ready, exchange_calls
from trimaran.simulator.exchange_clock import Exchanged
from trimaran.simulator.exchange_star import exchange_star
from trimaran.simulator.exchange_stars import star_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Everything that decides how gradients are exchanged.

    Attributes:
        workload: one rank's step, or a microbatch of it
        estimate: what that takes alone
        machine: where
        devices: in the group
        nodes: that they are in
        sync: how gradients are exchanged
        software: framework and year
        options: what the job does differently
    """

    workload: Workload
    estimate: StepEstimate
    machine: Machine
    devices: int
    nodes: int
    sync: Sync
    software: Software
    options: ExchangeOptions

    @property
    def recipe(self) -> Recipe:
        """How the framework does it."""
        return self.options.recipe or recipe_of(self.software, self.sync)

    @property
    def is_star(self) -> bool:
        """Whether gradients are copied to a home each, and weights updated there."""
        return self.devices > 1 and (self.sync == "p2p" or (self.sync == "server" and self.nodes == 1))

    def run(self, gradients: Sequence[Ready], *, compute: float = 1.0, links: float = 1.0) -> Exchanged:
        """The exchange beside the last microbatch's backward.

        Args:
            gradients: to exchange, in the order in which they are complete
            compute: how many times as fast the backward is
            links: how many times as fast calls and copies are
        """
        backward_s = self.estimate.backward.seconds / compute
        ready = [replace(gradient, ready_s=gradient.ready_s / compute) for gradient in gradients]
        if self.devices == 1 or not ready:
            return Exchanged((), (), backward_s)
        if self.is_star:
            star = star_of(
                [gradient.nbytes for gradient in ready],
                self.machine.node,
                self.recipe,
                devices=self.devices,
                on_host=self.sync == "server",
                update_s=self.estimate.update.seconds,
                links=links,
            )
            return exchange_star(ready, star, backward_s=backward_s)
        price = call_price(
            self.recipe,
            self.machine,
            devices=self.devices,
            nodes=self.nodes,
            sync=self.sync,
            year=self.software.year,
            correction=self.options.correction,
        )
        return exchange_calls(ready, self.recipe, lambda nbytes: (0.0, price(nbytes) / links), backward_s=backward_s)


def ready_gradients(workload: Workload, estimate: StepEstimate, *, wire_share: float = 1.0) -> list[Ready]:
    """Gradients with the moments at which they are complete, from the start of the backward.

    Args:
        workload: whose
        estimate: of it
        wire_share: bytes on the wire, as a share of the gradients' own
    """
    backward = (
        seconds if work.phase is Phase.BACKWARD else 0.0
        for work, seconds in zip(workload.works, estimate.work_s, strict=True)
    )
    passed_s = list(accumulate(backward))
    limit_s = estimate.backward.seconds
    stretch = estimate.backward.seconds / passed_s[-1] if passed_s and passed_s[-1] else 0.0
    ready = [
        Ready(place, max(1, round(gradient.nbytes * wire_share)), min(passed_s[gradient.work] * stretch, limit_s))
        for place, gradient in enumerate(workload.gradients)
    ]
    return sorted(ready, key=lambda gradient: gradient.ready_s)
