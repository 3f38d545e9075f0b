"""What is expected of the three remedies on the machine at hand, from costs that were measured before.

Plans are simulated. The star is the closed form of `costs.replicate`, whose links are the links between the ranks. Its
passages are collectives, which go through sockets also where messages of plans go through memory: with n = 2 each takes
what a broadcast takes. Beside them stand copies in the host's memory, as long each as packing a message:

    weights     packed on rank 0, broadcast, unpacked on the others
    gradients   packed, gathered, added, unpacked on rank 0

There is no copy from a host, and no interpreter that threads share. Where workers load ahead, no step is shorter than
what they and the cores take (`costs.fed_step`).
"""

from collections.abc import Iterable

from trimaran.cluster.types import Cluster
from trimaran.costs.curves import at_batch, at_size
from trimaran.costs.fed_step import load, period
from trimaran.costs.replicate import BatchCopies, Passages, Remedies, ReplicaWork, replicated_step
from trimaran.costs.replicate_machine import HALF, chunks
from trimaran.costs.sample_costs import SampleCosts
from trimaran.costs.tables import CostTable, CurveKey, StepCosts, WholeKey
from trimaran.costs.transfers import HOST_SEND
from trimaran.costs.wire import coding_keys
from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.planner.candidates import evaluate
from trimaran.program import Strategy
from trimaran.program.compression import Compression
from trimaran.program.feeding import IN_LINE, Feeding
from trimaran.program.types import Kind

BF16 = Compression(method="bf16")
"""What "compress" stands for here."""

_BROADCAST = CurveKey(str(Kind.BROADCAST), 2)


def predict_plan(strategy: Strategy, graph: Graph, table: CostTable, cluster: Cluster, *, batch: int) -> float | None:
    """The step of a plan [s]; None where nobody measured what it needs.

    Args:
        strategy: of replicas
        graph: the job's
        table: what was measured
        cluster: the ranks
        batch: samples of all ranks
    """
    try:
        return evaluate(strategy, graph, table, cluster, batch=batch).step_time_s
    except InputError:
        return None


def predict_star(
    remedies: Remedies, graph: Graph, table: CostTable, *, batch: int, ranks: int, feeding: Feeding, cores: int
) -> float | None:
    """The step of the star [s]; None where nobody measured what it needs.

    Args:
        remedies: switched on
        graph: the job's
        table: what was measured
        batch: samples of all ranks
        ranks: n
        feeding: how batches are loaded ahead, where they are
        cores: that ranks and workers share
    """
    step = table.steps.get(graph.digest)
    whole = table.wholes.get(WholeKey(graph.digest, "module", "eager"))
    if step is None or step.samples is None or not whole or _BROADCAST not in table.curves:
        return None
    share = batch // ranks
    work = ReplicaWork(
        load_s=load(step.samples, IN_LINE, microbatch=share).seconds,
        forward_s=at_batch({size: cost.forward for size, cost in whole.items()}, share).seconds,
        backward_s=at_batch({size: cost.backward for size, cost in whole.items()}, share).seconds,
        update_s=_update_s(graph, step),
    )
    passages = _passages(graph, table, step.samples, share=share, ranks=ranks)
    alone = replicated_step(work, passages, devices=ranks, remedies=remedies, workers=max(1, feeding.workers))
    if not remedies.preload:
        return alone.step_s
    return _fed(
        alone.step_s - alone.feed_s, work, step.samples, remedies, feeding, share=share, ranks=ranks, cores=cores
    )


def _fed(
    rest_s: float,
    work: ReplicaWork,
    samples: SampleCosts,
    remedies: Remedies,
    feeding: Feeding,
    *,
    share: int,
    ranks: int,
    cores: int,
) -> float:
    """A step whose batches workers make ahead [s]."""
    microbatch, readers = (share, ranks) if remedies.split else (ranks * share, 1)
    taken_s = load(samples, feeding, microbatch=microbatch).seconds
    busy_s = ranks * (work.forward_s + work.backward_s) + work.update_s + readers * taken_s
    least = period(samples, feeding, microbatch=microbatch, microbatches=1, readers=readers, busy_s=busy_s, cores=cores)
    return max(rest_s + taken_s, least.seconds)


def _update_s(graph: Graph, step: StepCosts) -> float:
    trained = [parameter for parameter in graph.parameters if parameter.trainable]
    return step.update.at(tensors=len(trained), nbytes=sum(one.nbytes for one in trained)).seconds


def _passages(graph: Graph, table: CostTable, samples: SampleCosts, *, share: int, ranks: int) -> Passages:
    sockets, packing = table.curves[_BROADCAST], table.curves.get(CurveKey(HOST_SEND, 2))
    trained = [parameter.nbytes for parameter in graph.parameters if parameter.trainable]

    def sent_s(sizes: Iterable[int], factor: float = 1.0) -> float:
        """To every other rank, a chunk after the other [s]."""
        return (ranks - 1) * sum(at_size(sockets, max(1, round(factor * size))).seconds for size in sizes)

    def copied_s(sizes: Iterable[int]) -> float:
        """Packed, unpacked or added once; nothing where a rank's own thread does not do it [s]."""
        return sum(at_size(packing, size).seconds for size in sizes) if packing else 0.0

    parts = chunks(trained)
    coding_s = sum(
        2 * at_size(table.curves[key], sum(trained)).seconds for key in coding_keys(BF16) if key in table.curves
    )
    return Passages(
        copies=BatchCopies(),
        scatter_s=sent_s([share * samples.sample_bytes]),
        weights_s=2 * copied_s(parts) + sent_s(parts),
        gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts),
        compressed_weights_s=2 * copied_s(parts) + sent_s(parts, HALF),
        compressed_gradients_s=(ranks + 1) * copied_s(parts) + sent_s(parts, HALF),
        coding_s=coding_s,
    )
