"""Which device of a machine each rank of a strategy has: `cluster.layout`, told what the ranks say to each other.

Bytes are rough, and need no cuts: what matters is which kind of talk outweighs which. Of a row the largest tensor of
the network crosses, forward and back, for each microbatch; shards sum every activation; replicas exchange gradients.
"""

from trimaran.cluster.layout import lay_out, node_talk, spread_over
from trimaran.cluster.types import Cluster
from trimaran.graph.types import Graph
from trimaran.program.types import Strategy


def device_order(cluster: Cluster, strategy: Strategy, graph: Graph, *, batch: int) -> tuple[int, ...]:
    """The device of each rank, what talks most closest together.

    Args:
        cluster: with its machine; without one, or without rows and shards, the order is the natural one
        strategy: with or without boundaries
        graph: the job's
        batch: samples of one update, over all ranks

    Returns:
        For `Strategy.device_order`; empty where the natural order is as good.
    """
    machine, width = cluster.machine, strategy.pp * strategy.tp
    if machine is None or width < 2:
        return ()
    node = machine.node
    on_node = min(strategy.devices, node.devices)
    if on_node % width and width % on_node:
        return ()
    share = max(1, batch // strategy.dp)
    outputs = [sum(spec.nbytes.at(share) for spec in op.outputs) for op in graph.ops]
    gradients = sum(parameter.nbytes for parameter in graph.parameters if parameter.trainable)
    rows = min(strategy.pp, max(1, on_node // strategy.tp))
    talk = node_talk(
        pp=rows,
        tp=min(strategy.tp, on_node),
        dp=max(1, on_node // width),
        row_bytes=2.0 * max(outputs, default=0.0) if strategy.pp > 1 else 0.0,
        shard_bytes=2.0 * sum(outputs) if strategy.tp > 1 else 0.0,
        replica_bytes=2.0 * gradients / width if strategy.dp > 1 else 0.0,
        chained=not strategy.parts,
    )
    order = spread_over(machine, lay_out(node, on_node, talk), strategy.devices)
    return () if order == tuple(range(strategy.devices)) else order
