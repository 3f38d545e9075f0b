"""A loss that gathers over ranks is looked at on two of them, as one process has nothing to gather."""

from dataclasses import replace
from typing import TYPE_CHECKING

from trimaran.graph.behaviour import Behaviour
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource

if TYPE_CHECKING:
    from trimaran.launch.world import World


def gathering_confirmed(source: JobSource, graph: Graph, *, ranks: int) -> Graph:
    """A graph of a job whose loss gathers across ranks, with its loss on two ranks; any other graph unchanged.

    Args:
        source: where the job comes from
        graph: of it, with effects traced in one process
        ranks: that may take part; with one nothing is gathered
    """
    if graph.behaviour is None or graph.behaviour.reduction != "gathers" or ranks < 2:
        return graph
    from trimaran.launch.supervise import launch

    return replace(graph, behaviour=launch(_gather, (source, graph.behaviour), ranks=2)[0])


def _gather(world: "World", source: JobSource, behaviour: Behaviour) -> Behaviour:
    from trimaran.graph.examine import look_at_gathering
    from trimaran.user_code.model import make_model

    job = source.make()
    return look_at_gathering(job, make_model(job).to(world.device), behaviour, world.rank, world.size)
