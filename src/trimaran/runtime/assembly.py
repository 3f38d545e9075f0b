"""What runs the instructions of a rank, put together around its part of the job."""

from dataclasses import dataclass
from functools import partial

import torch.distributed as dist

from trimaran.graph.behaviour import typical_weight
from trimaran.graph.capture import Capture
from trimaran.job import Job
from trimaran.program.cut import carried
from trimaran.program.layout import strategy_layout
from trimaran.program.nodes import is_chained
from trimaran.program.segments import segment_ops
from trimaran.program.types import Program, Strategy
from trimaran.runtime.channels import Channels
from trimaran.runtime.compression import Wire, open_codec
from trimaran.runtime.exchanges import Exchanges
from trimaran.runtime.gradient_noise import GradientNoise, SecondMoment
from trimaran.runtime.interpreter import Interpreter
from trimaran.runtime.levels import Levels
from trimaran.runtime.part import Part
from trimaran.runtime.pending import InFlight
from trimaran.runtime.record import Recorder
from trimaran.runtime.reductions import Reductions
from trimaran.runtime.releases import released_sends
from trimaran.runtime.scaling import LossScaler
from trimaran.runtime.streams import open_streams
from trimaran.runtime.updates import Updater
from trimaran.runtime.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What works together in a step.

    Attributes:
        recorder: writes down what happens
        reductions: collectives, and the update
        interpreter: runs instructions
        gradient_noise: notes the norms of gradients; None: nobody does
    """

    recorder: Recorder
    reductions: Reductions
    interpreter: Interpreter
    gradient_noise: GradientNoise | None


def assemble(
    job: Job,
    strategy: Strategy,
    program: Program,
    capture: Capture | None,
    part: Part,
    *,
    updater: Updater,
    scaler: LossScaler | None,
    world: World,
    channels: Channels,
    record: bool,
    gradient_noise: int,
) -> Machinery:
    """Put together what runs the instructions of this rank.

    Args:
        job: has the loss, the metric and the optimizer
        strategy: says which segments there are
        program: of a training step
        capture: of the job, where the network is divided
        part: what this rank has
        updater: of what this rank trains
        scaler: scales losses; None: they are propagated as they are
        world: this process's
        channels: communicate
        record: write down what happens
        gradient_noise: note the norms of gradients in one step of so many; 0: in none
    """
    streams = open_streams(world.device)
    recorder = Recorder(world.rank, streams, channels.control, enabled=record)
    in_flight = InFlight(world.rank, streams, recorder)
    if part.record is not None:
        part.record(recorder)
    wire = None
    if strategy.compression is not None and strategy.dp > 1:
        codec = open_codec(strategy.compression, replicas=strategy.dp, seed=job.seed)
        wire = Wire(codec, replicas=strategy.dp, channels=channels, in_flight=in_flight, recorder=recorder)
    reductions = Reductions(
        world,
        channels=channels,
        in_flight=in_flight,
        recorder=recorder,
        updater=updater,
        scaler=scaler,
        tied=part.tied,
        buffers={number: tuple(stage.module.buffers()) for number, stage in part.stages.items()},
        homed=part.buckets,
        wire=wire,
        levels=_open_levels(strategy, program, world=world, channels=channels, in_flight=in_flight, recorder=recorder),
        used=part.used,
        never=part.never,
        typical=None if job.loss_weight is None else typical_weight(job),
    )
    noise = None
    if gradient_noise:
        second_moment = reductions.second_moment
        noise = _open_noise(strategy, part, world, channels, every=gradient_noise, second_moment=second_moment)
        reductions.gradient_noise = noise
    parts = () if capture is None else segment_ops(capture.graph, strategy)
    exchanged = {} if capture is None else capture.graph.exchanged(parts)
    routes = {} if capture is None else carried(capture.graph, parts, strategy.rows)
    interpreter = Interpreter(
        job,
        world.device,
        stages=part.stages,
        reads={
            number: [spec for (_, reader), specs in exchanged.items() if reader == number for spec in specs]
            for number in part.stages
        },
        exchanges=Exchanges(
            world.device,
            channels=channels,
            in_flight=in_flight,
            recorder=recorder,
            routes={pair: specs for pair, (specs, _) in routes.items()},
            released=released_sends(program, world.rank),
        ),
        reductions=reductions,
        scaler=scaler,
        recorder=recorder,
    )
    return Machinery(recorder=recorder, reductions=reductions, interpreter=interpreter, gradient_noise=noise)


def _open_levels(
    strategy: Strategy, program: Program, *, world: World, channels: Channels, in_flight: InFlight, recorder: Recorder
) -> Levels | None:
    """What sums within nodes and then across them, where the strategy does."""
    if strategy.sync != "hierarchical":
        return None
    groups = [instruction.group for instruction in program.ranks[world.rank] if is_chained(instruction)]
    if not groups:
        return None
    chain = channels.chain()
    return Levels(groups[0], channels=channels, chain=chain, in_flight=in_flight, recorder=recorder)


def _open_noise(
    strategy: Strategy,
    part: Part,
    world: World,
    channels: Channels,
    *,
    every: int,
    second_moment: SecondMoment,
) -> GradientNoise:
    """What notes the norms of this rank's gradients in one step of so many."""
    replica, _, _ = strategy_layout(strategy).place_of(world.rank)
    # Replicas that sum on every rank have the same sums; with homes, each has those of its own.
    counts = replica == 0 or strategy.sync == "p2p"
    return GradientNoise(
        [one for stage in part.stages.values() for one in stage.module.parameters()],
        part.counted if counts else (),
        add_up=None if channels.control is None else partial(dist.all_reduce, group=channels.control),
        every=every,
        second_moment=second_moment,
    )
