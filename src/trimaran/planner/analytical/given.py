"""One given strategy of a transformer: what its words leave out, and why it cannot be built.

A person writes degrees as tables of published runs have them ("tp8 cp2 pp9 vp7 dp4 zero1 mb1"). What is left out:

    dp                 1, as in every name, whatever devices there are: what a plan prints is read as it is
    batch              dp · m · mb, or as asked for; then m or mb follows from it
    m, mb              one microbatch, where neither is said: "dp8" is what DDP does with the batch
    schedule           1f1b; interleaved where stages have several chunks
    etp                tp: ranks that share a layer share its experts
    sequence parallel  wherever tp > 1, unless "no-sp" is said

Source:
    NVIDIA/Megatron-LM, megatron/training/arguments.py: `data_parallel_size`, `expert_tensor_parallel_size` and the
    check that the global batch divides over micro-batch times replicas.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import Axis, Strategy, missing_from_order, said_by


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStrategy:
    """A complete strategy, and the batch that it takes.

    Attributes:
        strategy: with all degrees
        batch: sequences of a step, of all replicas
        notes: on what was chosen for the user
    """

    strategy: Strategy
    batch: int
    notes: tuple[str, ...] = ()


def complete_strategy(
    name: str,
    shape: TransformerShape,
    *,
    most_devices: int,
    devices: int | None = None,
    batch: int | None = None,
    usual_batch: int = 1,
) -> CompleteStrategy:
    """The strategy that a name says, with what it leaves out.

    Args:
        name: words of `read_strategy`
        shape: the network
        most_devices: that there are
        devices: most that may take part; None: all
        batch: sequences of a step that are asked for; None: as the strategy says
        usual_batch: where nobody says one

    Raises:
        InputError: words that the analytical model does not price, degrees that contradict the devices, the batch or
            each other, or that the network cannot be spread by

    Example:
        80 layers on 64 devices: 2 replicas of 64 microbatches.

        >>> from trimaran.pricing.analytical.shapes import decoder_of
        >>> shape = decoder_of("llama3:70b", 8192)
        >>> given = complete_strategy("tp4 cp2 pp4 vp5 dp2 zero1 mb1", shape, most_devices=64, batch=128)
        >>> given.strategy.name, given.strategy.devices
        ('dp2 pp4 interleaved x5 tp4 cp2 zero1 m64', 64)
    """
    if not name.strip():
        raise InputError(
            'a strategy has at least one word, such as "tp8 pp4 dp2 zero1 mb1", or "one device"',
            code="strategy.empty",
        )
    said = said_by(name)
    words = Strategy(**said)
    for word, why in unpriced(words, said):
        raise InputError(
            f'strategy "{name}": {word}: {why}; leave it out', code="strategy.not-priced", strategy=name, word=word
        )
    _check_devices(name, words, devices, most_devices)
    spread = replace(
        words,
        schedule=said.get("schedule") or ("1f1b" if words.chunks == 1 else "interleaved"),
        sequence_parallel=said.get("sequence_parallel", words.tp > 1),
        zero=words.zero if words.dp * words.cp > 1 else 0,
        expert_tp=words.expert_tp if shape.experts is None else words.expert_ranks,
    )
    whole, notes = _with_batch(name, spread, said, batch, usual_batch)
    reason = obstacle(shape, whole)
    if reason:
        raise InputError(
            f'strategy "{name}" cannot be built: {"; ".join((reason, *notes))}',
            code="strategy.cannot-be-built",
            strategy=name,
            reason=reason,
        )
    there = most_devices if devices is None else devices
    if whole.devices < there:
        idle = there - whole.devices
        notes = (
            *notes,
            f"{whole.name} takes {whole.devices} of {there} devices; {idle} are idle{on_all(whole, there)}",
        )
    if "activations" in whole.recomputed and shape.experts is None:
        notes = (*notes, "plan does not try recompute:activations without experts: Megatron has no switch for it")
    if "second_products" in whole.recomputed:
        notes = (*notes, "plan does not try recompute:second_products: Megatron has no switch for it, torchtitan has")
    if whole.chunks > 1 and not whole.segment_layers and shape.layers % (whole.pp * whole.chunks):
        notes = (
            *notes,
            f"plan does not try vp{whole.chunks}: {shape.layers} layers are no equal chunks of pp{whole.pp}",
        )
    return CompleteStrategy(strategy=whole, batch=whole.dp * whole.microbatch * whole.microbatches, notes=notes)


_KNOWN = "the analytical model of transformers has 1f1b, interleaved, zero-bubble, dualpipe and dualpipev"


def unpriced(words: Strategy, said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Words that only a simulated program gives a meaning, each with the reason.

    Args:
        words: of a strategy
        said: its fields that the words name
    """
    program = "only a simulated program has it, for up to 64 devices and 5 billion parameters (`trimaran plan`)"
    if said.get("schedule") in ("gpipe", "pipedream"):
        yield said["schedule"], _KNOWN
    for field, word in _SIMULATED.items():
        if field in said and getattr(words, field) != getattr(Strategy(), field):
            yield word, program


_SIMULATED = {
    "parts": "placement",
    "sync": "sync",
    "shards": "sharded classifier",
    "bucket_bytes": "size of buckets",
    "execution": "execution",
    "memory_bytes": "memory budget",
    "codec": "codec",
    "compression": "compression",
    "feeding": "feeding",
}
"""Fields of a strategy that only a simulated program gives a meaning, with their words."""


def _check_devices(name: str, words: Strategy, devices: int | None, most_devices: int) -> None:
    """Refuse degrees that take more devices than may take part.

    Raises:
        InputError: they do
    """
    most = most_devices if devices is None else min(devices, most_devices)
    if words.devices > most:
        there = f"{devices} are asked for" if devices is not None else f"there are {most_devices}"
        raise InputError(
            f'strategy "{name}": tp{words.tp} · pp{words.pp} · cp{words.cp} · dp{words.dp} takes '
            f"{format_count(words.devices, 'device')}, and {there}: change a degree, or the devices (--devices, "
            "--cluster)",
            code="strategy.wrong-devices",
            strategy=name,
            devices=most,
            needed=words.devices,
        )


def on_all(strategy: Strategy, devices: int) -> str:
    """By how many replicas a strategy takes more of some devices, which it leaves idle; empty: it cannot.

    Example:
        >>> on_all(Strategy(tp=8, pp=2), 64)
        ' (dp4 takes 64)'
    """
    replica = strategy.devices // strategy.dp
    most = devices // replica
    return f" (dp{most} takes {most * replica})" if most > strategy.dp else ""


def _with_batch(
    name: str, spread: Strategy, said: dict[str, Any], batch: int | None, usual: int
) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy with microbatches and their sequences, and a note where the batch was chosen.

    Raises:
        InputError: the batch does not divide, or is another than that of the words
    """
    notes: tuple[str, ...] = ()
    if batch is None and "microbatches" not in said:
        each = spread.dp * spread.microbatch * (spread.pp if spread.chunks > 1 else 1)
        batch = max(1, round(usual / each)) * each
        notes = (f"no --batch and no number of microbatches (m) was given: {batch} sequences are taken",)
    if batch is None:
        return spread, notes
    if "microbatch" not in said and not notes:
        shares, what = spread.dp * spread.microbatches, f"dp{spread.dp} · m{spread.microbatches}"
        found = replace(spread, microbatch=batch // shares)
        if "microbatches" not in said and found.microbatch > 1:
            notes = (f"{name} is one microbatch of {found.microbatch} sequences (m or mb says another number)",)
    else:
        shares, what = spread.dp * spread.microbatch, f"dp{spread.dp} · mb{spread.microbatch}"
        found = replace(spread, microbatches=batch // shares)
    whole = spread.dp * found.microbatch * found.microbatches
    if batch % shares or ("microbatches" in said and found.microbatches != spread.microbatches):
        if "microbatches" in said and "microbatch" in said:
            shares, what = shares * spread.microbatches, f"{what} · m{spread.microbatches}"
            raise InputError(
                f'strategy "{name}": {what} is a batch of {shares}, and --batch {batch} is asked for: leave m, mb or '
                "--batch out",
                code="strategy.wrong-batch",
                strategy=name,
                batch=batch,
                needed=shares,
            )
        raise InputError(
            f'strategy "{name}": a batch of {batch} does not divide over {what}: the next ones are '
            f"{' and '.join(str(one) for one in (whole, whole + shares) if one)}",
            code="strategy.batch-does-not-divide",
            strategy=name,
            batch=batch,
            needed=shares,
        )
    return found, notes


def obstacle(shape: TransformerShape, strategy: Strategy) -> str:
    """Why a network cannot be spread by some degrees; empty: it can.

    Args:
        shape: the network
        strategy: complete

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=8, hidden=1024, heads=16)
        >>> obstacle(shape, Strategy(pp=4, chunks=2, microbatches=6, schedule="interleaved"))
        '6 microbatches in groups of 4 do not fill 4 stages of several chunks: say group6'
        >>> obstacle(shape, Strategy(tp=4, pp=2))
        ''
    """
    return next(_obstacles(shape, strategy), "")


def _obstacles(shape: TransformerShape, strategy: Strategy) -> Iterator[str]:
    yield from _told(_of_layers(shape, strategy))
    yield from schedule_obstacles(strategy)
    yield from expert_obstacles(shape, strategy)
    yield from _told(_of_replicas(strategy))
    for reason in tensor_obstacle(shape, strategy.tp):
        possible = [each for each in range(1, shape.heads + 1) if not any(tensor_obstacle(shape, each))]
        yield f"{reason}: take tp of {', '.join(map(str, possible))}"
    sizes: dict[Axis, int] = {"tp": strategy.tp, "cp": strategy.cp, "dp": strategy.dp, "pp": strategy.pp}
    for name in missing_from_order(strategy.rank_order, sizes):
        yield f"the order of ranks leaves {name} out"
    yield from _told(_of_context(shape, strategy))


_Cases = Mapping[str, bool]
"""What can be wrong, by what is said of it."""


def _told(cases: _Cases) -> Iterator[str]:
    return (reason for reason, is_so in cases.items() if is_so)


def tensor_obstacle(shape: TransformerShape, tensor: int) -> Iterator[str]:
    """Why a layer cannot be shared by some ranks."""
    if shape.heads % tensor or shape.ffn % tensor or (shape.kv_heads % tensor and tensor % shape.kv_heads):
        yield "heads or inner channels do not divide over tensor-parallel ranks"


def _of_context(shape: TransformerShape, strategy: Strategy) -> _Cases:
    cp, heads = strategy.cp, shape.heads // strategy.tp
    return {
        f"{shape.sequence} tokens do not divide over cp{cp}, of which each rank has two equal parts: take another cp, "
        "or another --sequence": cp > 1 and shape.sequence % (2 * cp) > 0,
        "ulysses shares a sequence: it takes cp2 or more": strategy.ulysses and cp == 1,
        # Heads of keys and values may be fewer than ranks: they are then copied.
        f"{heads} heads of a rank do not divide over cp{cp} ulysses": strategy.ulysses and heads % cp > 0,
    }


def _of_layers(shape: TransformerShape, strategy: Strategy) -> _Cases:
    segments, said = strategy.pp * strategy.chunks, strategy.segment_layers
    largest = max(said, default=-(-shape.layers // segments))
    return {
        f"{segments} segments (stages times chunks) are more than the {shape.layers} layers": segments > shape.layers,
        f"layers of {len(said)} segments, {sum(said)} in all, and there are {segments} segments of {shape.layers} "
        "layers": bool(said) and (len(said), sum(said)) != (segments, shape.layers),
        f"recompute:{strategy.recompute_layers} of segments that have {largest} layers": (
            strategy.recompute_layers or 0
        )
        > largest,
    }


def schedule_obstacles(strategy: Strategy) -> Iterator[str]:
    """Why a pipeline cannot have the schedule of a strategy.

    Source:
        NVIDIA/Megatron-LM, arguments.py, for chunks; deepseek-ai/DualPipe, dualpipe.py and dualpipev.py: an even number
        of stages, twice as many microbatches at least, and an even number of them from both ends.
    """
    schedule, stages, chunks, most = strategy.schedule, strategy.pp, strategy.chunks, strategy.microbatches
    if stages == 1:
        return _told(
            {
                "one stage has no schedule and no chunks: take pp2 or more": chunks > 1
                or schedule not in ("1f1b", "gpipe")
            }
        )
    group, least = strategy.microbatch_group or stages, microbatch_group(stages, most)
    return _told(
        {
            "several chunks a stage are interleaved, and interleaved stages have several chunks (vp2 or more)": (
                schedule == "interleaved"
            )
            != (chunks > 1),
            "zero-bubble keeps what gradients of weights need, which recomputed layers do not have": schedule
            == "zero-bubble"
            and "layers" in strategy.recomputed,
            "dualpipe has an even number of stages, and of microbatches": schedule == "dualpipe"
            and (stages % 2 or most % 2) > 0,
            f"{schedule} of {stages} stages takes {2 * stages} microbatches or more": schedule
            in ("dualpipe", "dualpipev")
            and most < 2 * stages,
            f"{most} microbatches in groups of {group} do not fill {stages} stages of several chunks: "
            + (f"say group{least}" if least else "take fewer stages, or more microbatches"): chunks > 1
            and not (stages <= group <= most and _is_filled(stages, most, group)),
        }
    )


@functools.cache
def microbatch_group(stages: int, microbatches: int) -> int:
    """The fewest microbatches that a chunk of an interleaved pipeline computes before the next; 0: there are too few.

    Each group fills the pipeline, the last one too, or stages would wait for each other more than once a step: it has
    as many microbatches as there are stages, or more. Passes in flight grow with it, the idle share does not.

    Source:
        NVIDIA/Megatron-LM, core/pipeline_parallel/schedules.py, `forward_backward_pipelining_with_interleaving`, on the
        remainder of microbatches by `microbatch_group_size_per_vp_stage`.

    Example:
        25 on three stages: of groups of three and of four one is left over, of five none.

        >>> [microbatch_group(3, count) for count in (24, 25, 5, 2)]
        [3, 5, 5, 0]
    """
    return next((size for size in range(stages, microbatches + 1) if _is_filled(stages, microbatches, size)), 0)


def _is_filled(stages: int, microbatches: int, group: int) -> bool:
    return microbatches % group == 0 or microbatches % group >= stages


def expert_obstacles(shape: TransformerShape, strategy: Strategy) -> Iterator[str]:
    """Why the ranks of a stage cannot have the experts of a layer."""
    experts, ep, etp = shape.experts, strategy.ep, strategy.expert_ranks
    if experts is None:
        is_spread = ep > 1 or strategy.expert_tp not in (None, 1, strategy.tp)
        return _told({"the network has no experts: leave ep and etp out": is_spread})
    ranks = strategy.tp * strategy.cp * strategy.dp
    return _told(
        {
            f"{experts.count} experts do not divide over ep{ep}": experts.count % ep > 0,
            f"ep{ep} · etp{etp} does not divide the {ranks} ranks of a stage": ranks % (ep * etp) > 0,
            f"{experts.ffn} inner channels of an expert do not divide over etp{etp}": experts.ffn % etp > 0,
        }
    )


def _of_replicas(strategy: Strategy) -> _Cases:
    share, ranks = strategy.shard_ranks or 1, strategy.dp * strategy.cp
    return {
        f"hsdp{share} says who shares sharded state: it takes zero1, zero2 or zero3": strategy.shard_ranks is not None
        and strategy.zero == 0,
        f"hsdp{share} does not divide the {ranks} ranks of dp · cp": strategy.zero > 0 and ranks % share > 0,
    }
