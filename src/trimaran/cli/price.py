"""`trimaran plan JOB --strategies`: the step and the memory of given strategies of a transformer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trimaran.cli.options import (
    Batch,
    ExpertImbalance,
    Gradients,
    Json,
    LengthsText,
    MachineName,
    Memory,
    OptimizerStateName,
    PackingName,
    PrecisionName,
    Reference,
    Reserve,
    RunOptions,
    SequenceLength,
    grouped,
    option,
    said_of_growth,
)
from trimaran.cli.output import console, errors_reported, print_json, print_ways, ways_document

if TYPE_CHECKING:
    from rich.table import Table

    from trimaran.features.price import PricedStrategy, Pricing, RefusedStrategy


@grouped
def price(
    job: Reference,
    cluster: MachineName,
    run: RunOptions,
    strategy: Annotated[
        str | None,
        option(
            'Degrees, such as "tp8 cp2 pp9 vp7 dp4 zero1 mb1"; what it leaves out is 1, and m follows from the batch.'
        ),
    ] = None,
    strategies: Annotated[
        str | None,
        option(
            "A strategy, or a file of them: one on each line, or a CSV table with a column `strategy`.",
            metavar="TEXT|FILE",
        ),
    ] = None,
    batch: Batch = None,
    devices: Annotated[
        int | None,
        option(
            "Most devices that may take part; a strategy takes those of its degrees.",
            "--devices",
            "-n",
            usual="all of the machine",
            min=1,
        ),
    ] = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    software: Annotated[
        str | None, option('Framework and year, such as "megatron:2024".', usual="Megatron of 2025")
    ] = None,
    memory: Memory = None,
    reserve: Reserve = None,
    gradients: Gradients = None,
    optimizer_state: OptimizerStateName = None,
    lengths: LengthsText = None,
    packing: PackingName = None,
    expert_imbalance: ExpertImbalance = 1.0,
    as_json: Json = False,
) -> None:
    """Price one given strategy of a transformer, or a file of them: step time, throughput, memory."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError
        from trimaran.features.price import Pricing, Setting, read_settings
        from trimaran.jobs.resolve import JobSource
        from trimaran.planner.pins import parse_pins
        from trimaran.planning.requests import parse_request, parse_target

        if (strategy is None) == (strategies is None):
            raise InputError(
                'say one of --strategy "tp8 pp4 dp2 zero1" and --strategies FILE', code="price.not-one-strategy"
            )
        if strategies is not None and not (Path(strategies).suffix or Path(strategies).exists()):
            strategy, strategies = strategies, None
        request = parse_request(
            cluster=cluster,
            devices=devices,
            batch=batch,
            sequence=sequence,
            memory=memory,
            reserve=reserve,
            precision=precision,
            software=software,
            pins=parse_pins(gradients=gradients, optimizer_state=optimizer_state),
            target=parse_target(**vars(run)),
            lengths=lengths,
            packing=packing,
            expert_imbalance=expert_imbalance,
        )
        pricing = Pricing(JobSource(reference=job), said_of_growth(request, cluster))
        if strategy is not None:
            one = pricing.price(Setting(strategy=strategy))
            ways = ways_document(pricing.ways(one))
            if as_json:
                print_json(_head(pricing) | _entry(one) | ({} if one.fits else {"ways": ways}))
            else:
                _print_one(pricing, one, ways)
            return
        found = pricing.price_each(read_settings(Path(strategies or "")))
        if as_json:
            print_json(_head(pricing) | {"strategies": [_entry(one) for one in found]})
        else:
            _print_table(pricing, found)


def _head(pricing: "Pricing") -> dict[str, Any]:
    """The question: job, machine, precision, software."""
    from trimaran.machine.find import find_machine

    request = pricing.backend.request
    machine = find_machine(request.cluster)
    return {
        "job": pricing.backend.source.reference,
        "cluster": request.cluster,
        "device": machine.node.device.title,
        "precision": request.precision,
        "precision_source": request.precision_source,
        "software": pricing.software,
        "sequence": pricing.backend.shape.sequence,
    }


def _entry(one: "PricedStrategy | RefusedStrategy") -> dict[str, Any]:
    """A strategy with its price, or the reason why it has none; times in seconds, sizes in bytes."""
    from trimaran.features.price import RefusedStrategy
    from trimaran.planning.answer.documents import degrees, like_document, outlook_document, room_document

    asked = {"name": one.setting.name, "asked": one.setting.strategy}
    if isinstance(one, RefusedStrategy):
        return asked | {"error": {"code": one.error.code, "message": one.error.message}}
    priced = one.candidate
    return asked | {
        "strategy": priced.name,
        "degrees": degrees(priced),
        "devices": priced.devices,
        "global_batch_size": one.problem.batch,
        "step_time_s": priced.step_time_s,
        "interval_s": list(priced.interval_s),
        "tokens_per_s": one.tokens_per_s,
        "tokens_per_s_per_device": one.tokens_per_s_per_device,
        "mfu": priced.utilization,
        "parts_s": priced.parts,
        "memory_bytes": one.memory_parts,
        "peak_bytes": priced.memory.peak,
        "memory_stage": priced.memory.stage,
        **room_document(one.problem, priced.strategy),
        "fits": one.fits,
        "verdict": one.verdict,
        "lever": one.fit.lever,
        "need_bytes": {"least": one.fit.need.least, "usual": one.fit.need.usual, "most": one.fit.need.most},
        "notes": list(one.notes),
        **like_document(one.problem, one.candidate.strategy),
        **({} if one.training is None else {"training": outlook_document(one.training)}),
    }


def _print_one(pricing: "Pricing", one: "PricedStrategy", ways: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    from trimaran.base.units import format_seconds, format_span
    from trimaran.planning.answer.documents import like_document, outlook_document
    from trimaran.report.plans import load_lines, run_lines, target_verdict
    from trimaran.report.tables import add_figures, add_words, frame_table

    out, priced = console(), one.candidate
    if one.training is not None:
        document = outlook_document(one.training)
        for line in (target_verdict(document), "", *run_lines(document)):
            out.print(line, markup=False)
    interval = format_span(*map(format_seconds, priced.interval_s))
    out.print(
        f"[bold]{escape(priced.name)}[/] of {escape(pricing.backend.source.reference)} on {priced.devices} devices, "
        f"batch {one.problem.batch}: [bold]{format_seconds(priced.step_time_s)}[/] a step "
        f"(90 %: {interval}), {one.tokens_per_s_per_device:,.0f} tokens/s a device, "
        f"{100 * priced.utilization:.1f} % of its peak; it {one.words}"
    )
    alone = priced.devices == 1
    table = frame_table(
        "What the step is made of", "" if alone else "exchanges inside layers: of tensor-parallel ranks"
    )
    add_words(table, "part of the step")
    add_figures(table, "time", "share")
    for part, seconds in priced.parts.items():
        table.add_row(part, format_seconds(seconds), f"{100 * seconds / priced.step_time_s:.1f} %")
    out.print()
    out.print(table)
    out.print()
    out.print(_memory_table(one))
    for line in load_lines(like_document(one.problem, one.candidate.strategy)):
        out.print(line, markup=False)
    for note in (*pricing.notes, *one.notes):
        out.print(f"[yellow]note:[/] {escape(note)}")
    if ways:
        print_ways(out, ways)
    else:
        _print_next([one])


def _print_next(priced: "Sequence[PricedStrategy]") -> None:
    """The best strategy on the same devices with the same batch is what one compares strategies with."""
    from trimaran.cli.following import following
    from trimaran.report.tables import print_next

    asked = {(one.candidate.devices, one.problem.batch) for one in priced}
    if len(asked) == 1:
        devices, batch = asked.pop()
        words = following("plan", devices=devices, batch=batch, without=("--strategy", "--strategies"))
        print_next(console(), words, "for the best strategy")


def _memory_table(one: "PricedStrategy") -> "Table":
    from trimaran.base.units import format_bytes
    from trimaran.report.tables import add_figures, add_words, frame_table

    parts = one.memory_parts
    alone = one.candidate.devices == 1
    table = frame_table(
        "Memory" if alone else f"Memory of the fullest rank, on stage {one.candidate.memory.stage}",
        "; ".join(f"{part}: {_PARTS[part]}" for part in parts if part in _PARTS and not (alone and part == "buffers")),
    )
    add_words(table, "part")
    add_figures(table, "size", "share")
    peak = one.candidate.memory.peak
    for part, nbytes in parts.items():
        table.add_row(part, format_bytes(int(nbytes)), f"{100 * nbytes / peak:.0f} %")
    table.add_section()
    table.add_row("sum", format_bytes(int(peak)), "100 %")
    table.add_row("of the device", format_bytes(int(one.problem.memory_limit)), "")
    return table


_PARTS: Mapping[str, str] = {
    "activations": "kept for the backward",
    "transient": "of the running operation",
    "workspace": "of matrix products and attention",
    "buffers": "of collectives",
    "fragments": "lost in the allocator",
}


_SHORT = {"fits": "yes", "not sure": "not sure", "does not fit": "no"}


def _print_table(pricing: "Pricing", found: "list[PricedStrategy | RefusedStrategy]") -> None:
    from rich.markup import escape

    from trimaran.base.units import format_seconds
    from trimaran.features.price import RefusedStrategy
    from trimaran.program.strategy import strategy_legend
    from trimaran.report.tables import add_figures, add_words, frame_table

    out, priced = console(), [one for one in found if not isinstance(one, RefusedStrategy)]
    fitting = [one for one in priced if one.fits]
    if fitting:
        best = max(fitting, key=lambda one: one.tokens_per_s_per_device)
        out.print(
            f"{escape(pricing.backend.source.reference)}: [bold]{escape(best.candidate.name)}[/] has the "
            f"most tokens/s a device, {best.tokens_per_s_per_device:,.0f}, "
            f"{format_seconds(best.candidate.step_time_s)} a step; {len(fitting)} of {len(found)} may fit.\n"
        )
    else:
        out.print(f"{escape(pricing.backend.source.reference)}: none of {len(found)} strategies fits.\n")
    legend = (
        "interval: 90 %, in the unit of the step; tok/s: of a device; MFU: share of its peak\n"
        "GiB: memory of the fullest rank"
        + ("; days: of the whole training, with failures" if any(one.training for one in priced) else "")
    )
    table = frame_table("", f"{legend}\n{strategy_legend([one.candidate.name for one in priced])}")
    named = any(one.setting.name for one in priced)
    add_words(table, *(("name",) if named else ()), "strategy")
    add_figures(table, "GPUs", "batch", "step", "interval", "tok/s", "MFU", "GiB")
    trained = any(one.training is not None for one in priced)
    add_figures(table, *(("days",) if trained else ()))
    add_words(table, "fits")
    for one in priced:
        low, high = one.candidate.interval_s
        table.add_row(
            *((escape(one.setting.name),) if named else ()),
            escape(one.candidate.name),
            str(one.candidate.devices),
            str(one.problem.batch),
            _step(one.candidate.step_time_s),
            _interval(one.candidate.step_time_s, low, high),
            f"{one.tokens_per_s_per_device:,.0f}",
            f"{100 * one.candidate.utilization:.0f} %",
            f"{one.candidate.memory.peak / 2**30:.1f}",
            *((_days(one),) if trained else ()),
            f"with {one.fit.lever}" if one.verdict == "fits with" else _SHORT[one.verdict],
        )
    if priced:
        out.print(table)
    for refused in (one for one in found if isinstance(one, RefusedStrategy)):
        out.print(f"[yellow]refused:[/] {escape(refused.error.message)}")
    for note in pricing.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
    _print_next(priced)


def _step(step_s: float) -> str:
    from trimaran.report.tables import number_in, unit_of

    unit, size = unit_of(step_s)
    return f"{number_in(step_s, size)} {unit}"


def _interval(step_s: float, low_s: float, high_s: float) -> str:
    """The ends in the unit of the step."""
    from trimaran.base.units import format_span
    from trimaran.report.tables import number_in, unit_of

    _, size = unit_of(step_s)
    return format_span(number_in(low_s, size), number_in(high_s, size), to="–")


def _days(one: "PricedStrategy") -> str:
    """Days of the training of the tokens that were asked for, with its failures."""
    from trimaran.base.units import format_figure

    run = None if one.training is None else one.training.chosen.run
    return "" if run is None else format_figure(run.wall_s / 86_400.0)
