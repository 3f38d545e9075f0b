"""The text of a training to a target, from the document of a plan: the table by batch and devices, the choice, why.

And of a training of a number of tokens: days, cost, failures, the numbers of devices that were compared.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from trimaran.base.html import DataTable
from trimaran.base.units import format_bytes, format_count, format_duration, format_figure, format_seconds, format_span
from trimaran.report.tables import add_figures, add_words, frame_table, join_figures, parted, table_view

TARGET_ROWS = 16
"""Rows of the table that are shown: the front of time and cost, then the fastest."""


def outlook_lines(document: Mapping[str, Any], *, most: int | None = TARGET_ROWS) -> list[str | Table]:
    """What a choice of strategy, batch and devices was chosen from: a table, which fits 80 columns, and sentences.

    Args:
        document: as `trimaran plan --objective time --json` prints it
        most: rows of the table; None: all
    """
    if "run" in document:
        return []
    lines: list[str | Table] = [_target_table(document, most), *_legend(document, most), ""]
    if document["time_to_accuracy_s"] is not None:
        lines += _why_timed(document)
    lines += _rule(document)
    for entry in document["left_out"]:
        lines.append(f"Left out: batch {entry['global_batch_size']}, {entry['reason']}.")
    return lines


def target_verdict(document: Mapping[str, Any]) -> str:
    """The choice of strategy, batch and devices in a sentence; of a number of tokens with its days and its cost.

    Args:
        document: as for `outlook_lines`
    """
    if "run" in document:
        return _verdict(document)
    return _timed(document) if document["time_to_accuracy_s"] is not None else _untimed(document)


_KEPT = {
    "bf16": "gradients in bf16",
    "remainders": "of fp32 weights only the 16 bits that bf16 lacks, so nothing is rounded",
    "bf16-moments": "the optimizer's moments in bf16",
    "precision-aware": "the optimizer's moments in bf16 and 16-bit remainders of fp32 weights",
    "adam-8bit": "the optimizer's moments in 8 bits",
}
"""Types of gradients and of the optimizer's state in words."""


def assumption_lines(document: Mapping[str, Any]) -> list[str]:
    """What a plan assumes because nobody said it, and the simplest plan within the uncertainty with its price.

    Args:
        document: as `assumptions_document` makes it
    """
    said = {"batch": "a batch of {:,}", "sequence": "sequences of {:,} tokens"}
    told = [
        f"{said[what].format(value) if what in said else _KEPT.get(value, value)} (--{what})"
        for what, value in ((one["what"], one["value"]) for one in document["assumed"])
    ]
    lines = []
    if told:
        lines.append(f"Assumed: {'; '.join(told)}.")
    if any(one["what"] not in said for one in document["assumed"]):
        whole = document["in_fp32"]
        lines[-1] += " Nothing fits in fp32." if whole is None else f" In fp32: {_other(whole)}."
    simplest = document["simplest"]
    if simplest is not None and document["devices"] > 1:
        lines.append(f"Simplest within the uncertainty: {_other(simplest) if simplest['slower'] else 'this plan'}.")
    return lines


def _other(plan: Mapping[str, Any]) -> str:
    """Another plan with its price."""
    role = {"ddp": " (DDP)", "fsdp": " (FSDP2)"}.get(plan["role"], "")
    share = abs(100.0 * plan["slower"])
    slower = f"{share:.{0 if share >= 9.95 else 1}f} % {'faster' if plan['slower'] < 0 else 'slower'}"
    paid = [f"{format_seconds(plan['step_time_s'])} a step"]
    if plan["time_s"] is not None and plan["cost"] is not None:
        paid += [format_duration(plan["time_s"]), f"{_large(plan['cost'])} {plan['cost_unit']}"]
    return f"{plan['strategy']}{role}, {slower}: {', '.join(paid)}"


_WIDTH = 79
"""Of a sentence about a training of tokens; longer ones go on in the next line."""


def run_lines(document: Mapping[str, Any]) -> list[str | Table]:
    """A training of a number of tokens behind its verdict: numbers of devices, where the time goes, on what that rests.

    Args:
        document: as `trimaran plan --tokens 15T --json` prints it

    Returns:
        Lines and tables, which fit 80 columns.
    """
    run = document["run"]
    sentences: list[str | Table] = []
    if run["compares_devices"]:
        spares = "; spares: nodes, and their cost" if run["spares_paid"] else ""
        legend = f"* chosen; days with failures, interval 90 %, cost in {document['cost_unit']}{spares}."
        sentences += [_counts_table(document), *_wrapped(f"{legend} {fastest_and_cheapest(document)}"), ""]
    sentences += [table_view(run_parts(run)), ""]
    for sentence in run_sentences(run):
        sentences += _wrapped(sentence)
    for entry in document["left_out"]:
        sentences += _wrapped(f"Left out: batch {entry['global_batch_size']}, {entry['reason']}.")
    return [*sentences, ""]


def run_sentences(run: Mapping[str, Any]) -> list[str]:
    """Failures, checkpoints and spare nodes of a training of tokens.

    Args:
        run: of its document
    """
    return [_failures(run), _checkpoints(run), _spares(run)]


def load_lines(document: Mapping[str, Any]) -> list[str | Table]:
    """Documents and experts of a plan of a transformer, where something is to be said of them.

    Args:
        document: of the plan

    Returns:
        Lines and tables, which fit 80 columns.
    """
    lines: list[str | Table] = []
    told = document.get("documents")
    if told is not None:
        computed, useful = told["computed_tokens_of_a_sequence"], told["useful_tokens_of_a_sequence"]
        left = told["left_out_share"]
        lines += _wrapped(
            f"Documents of {told['mean_tokens']:,.0f} tokens on average ({told['packing']}, {told['source']}): a "
            f"sequence computes {computed:,} tokens, of which {useful:,.0f} are trained on, and "
            f"{told['attention_by_that_of_full_sequences']:.1%} of the attention of a full one."
            + (f" {left:.1%} of the tokens are beyond the sequence." if left else "")
        )
    loads = document.get("expert_loads")
    if loads is None:
        return lines
    base = loads[0]["step_time_s"]
    rows = [
        (
            f"{row['imbalance']:g} times the balanced load" + (" (planned)" if row["planned"] else ""),
            format_seconds(row["step_time_s"]),
            f"{row['step_time_s'] / base - 1:.0%}",
            format_bytes(row["peak_bytes"]),
            "yes" if row["fits"] else "no",
        )
        for row in loads
    ]
    columns = ("busiest rank of experts", "step", "slower", "peak", "fits")
    lines.append(table_view(DataTable(columns=columns, rows=rows)))
    if any(row["reached"] < row["imbalance"] for row in loads):
        most = max(row["reached"] for row in loads)
        lines += _wrapped(f"No rank of this strategy can have more than {most:g} times the balanced load.")
    return lines


def _wrapped(sentence: str) -> list[str]:
    whole = join_figures(sentence)
    return [parted(line) for line in textwrap.wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)]


def _verdict(document: Mapping[str, Any]) -> str:
    run, chosen, limits = document["run"], document["chosen"], document.get("limits")
    told = "" if limits is None else _limits(limits)
    low, high = (_end(None if end is None else end * 86_400.0) for end in run["days_interval"])
    return (
        f"{told}{_large(run['tokens'])} tokens on {document['devices']:,} devices: "
        f"{format_duration(run['days'] * 86_400.0)} (90 %: {format_span(low, high)}), {_money(run)}, goodput "
        f"{run['goodput']:.1%}; batch {chosen['global_batch_size']}, {chosen['strategy']}."
    )


def _limits(limits: Mapping[str, Any]) -> str:
    days, budget = limits["days"], limits["budget"]
    given = ["" if days is None else f"{days:g} days", "" if budget is None else f"a budget of {_large(budget)}"]
    asked = " and ".join(one for one in given if one)
    return f"Within {asked}: " if limits["met"] else f"Nothing is within {asked}; nearest: "


def _money(run: Mapping[str, Any]) -> str:
    hours = f"{_large(run['device_hours'])} device-hours"
    if run["money"] is None:
        spares = f" + {_spare_nodes(run)}" if run["spares_paid"] and run["spare_nodes"] else ""
        return f"{hours}{spares}, cost not known (--price)"
    low, high = ("?" if end is None else _large(end) for end in run["money_interval"])
    spares = f" + {_spare_nodes(run)}" if run["spares_paid"] and run["spare_nodes"] else ""
    return f"{_large(run['money'])} {run['currency']} ({format_span(low, high)}){spares}, {hours}"


def _spare_nodes(run: Mapping[str, Any]) -> str:
    """The spare nodes with their cost."""
    nodes = format_count(run["spare_nodes"], "spare node")
    if run["money"] is None:
        return f"{nodes}: {_large(run['spares_device_hours'])} device-hours"
    return f"{nodes}: {_large(run['spares_money'])} {run['currency']}"


def _large(amount: float) -> str:
    """A large number for people.

    Example:
        >>> _large(15e12), _large(1_234_567), _large(3024.7), _large(9.52)
        ('15T', '1.23M', '3,025', '9.52')
    """
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e4)):
        if amount >= size:
            size = 1e3 if letter == "k" else size
            return f"{amount / size:.3g}{letter}" if amount / size < 100 else f"{amount / size:.0f}{letter}"
    return format_figure(amount)


def _counts_table(document: Mapping[str, Any]) -> Table:
    """The fastest strategy of each number of devices."""
    fastest: dict[int, Mapping[str, Any]] = {}
    for row in (*document["candidates"], document["chosen"]):
        kept = fastest.get(row["devices"])
        if kept is None or row["time_to_accuracy_s"] < kept["time_to_accuracy_s"]:
            fastest[row["devices"]] = row
    chosen = document["chosen"]
    fastest[chosen["devices"]] = chosen
    table = frame_table()
    table.padding = (0, 0)
    add_words(table, "", no_wrap=True)
    add_figures(table, "devices")
    table.add_column("strategy", min_width=12)
    paid = document["run"]["spares_paid"]
    add_figures(table, "step", "days", "interval", "goodput", "cost", *(["+ spares"] if paid else []))
    for count in sorted(fastest):
        row = fastest[count]
        days = row["time_to_accuracy_s"] / 86_400.0
        ends = row["time_to_accuracy_interval_s"]
        low, high = ("?" if end is None else format_figure(end / 86_400.0) for end in ends)
        cells = (
            "*" if row is chosen else "",
            str(count),
            row["strategy"],
            format_seconds(row["step_time_s"]),
            format_figure(days),
            format_span(low, high, to="–"),
            f"{row['goodput']:.1%}",
            _large(row["cost"] - (row["spares_cost"] if paid else 0.0)),
            *([f"{row['spare_nodes']}: {_large(row['spares_cost'])}"] if paid else []),
        )
        table.add_row(*map(Text, cells), style="bold" if row is chosen else None)
    return table


def fastest_and_cheapest(document: Mapping[str, Any]) -> str:
    """Which of the numbers of devices ends soonest, and which costs least with the spare nodes that are asked for.

    Args:
        document: of a training of tokens on several numbers of devices
    """
    rows = [row for row in document["candidates"] if None not in (row["time_to_accuracy_s"], row["cost"])]
    if not rows:
        return ""
    fastest = min(rows, key=lambda row: (row["time_to_accuracy_s"], row["cost"]))
    cheapest = min(rows, key=lambda row: (row["cost"], row["time_to_accuracy_s"]))
    return f"Fastest: {fastest['devices']} devices; cheapest: {cheapest['devices']}."


def run_parts(run: Mapping[str, Any]) -> DataTable:
    """Where the time of a training of tokens goes.

    Args:
        run: of its document
    """
    whole = sum(run["parts_s"].values()) or 1.0
    rows = [(part, format_duration(spent), f"{spent / whole:.1%}") for part, spent in run["parts_s"].items()]
    return DataTable(columns=("where the time goes", "time", "share"), rows=rows)


def _failures(run: Mapping[str, Any]) -> str:
    low, high = (format_duration(end) for end in run["mean_time_between_failures_interval_s"])
    doubt = "" if low == high else f" ({low} to {high})"
    return (
        f"Failures: {_large(run['failures'])}, one each {format_duration(run['mean_time_between_failures_s'])}{doubt}; "
        f"{run['sources']['failures']}."
    )


def _checkpoints(run: Mapping[str, Any]) -> str:
    stall, write = run["checkpoint_stall_s"], run["checkpoint_write_s"]
    waits = f"training waits {format_seconds(stall)}" + (
        "" if write == stall else f", written in {format_seconds(write)}"
    )
    return (
        f"Checkpoints: {format_bytes(run['checkpoint_bytes'])} every {format_duration(run['checkpoint_every_s'])} "
        f"(Young {format_duration(run['young_every_s'])}, Daly {format_duration(run['daly_every_s'])}); up to "
        f"{format_duration(run['checkpoint_within_1_percent_s'])} costs 1 %. For each one {waits}; a restart takes "
        f"{format_duration(run['restart_s'])}. Storage: {_source(run, 'storage')}. Restart: {_source(run, 'restart')}."
    )


def _source(run: Mapping[str, Any], what: str) -> str:
    """Where a figure comes from, without what a file of figures says of it further."""
    return str(run["sources"][what]).split(":")[0]


def _spares(run: Mapping[str, Any]) -> str:
    count, enough = run["spare_nodes"], f"{run['spare_probability']:.3g}"
    lacks = (
        f"with a probability of {enough} the run never lacks a node while failed ones are repaired in "
        f"{format_duration(run['repair_s'])} on average ({_source(run, 'repair')})"
    )
    if count and run["spares_paid"]:
        return f"With {_spare_nodes(run)}, {lacks}."
    held = f"+ {_spare_nodes(run)}, with --spares {count}" if count else "No spare nodes"
    return f"{held}: {lacks}. Without one, a failed node is taken to be replaced within the restart."


def training_line(training: Mapping[str, Any]) -> str:
    """The training to its target by a plan file, in a line.

    Args:
        training: `Plan.training` as plain data

    Example:
        >>> print(training_line({"epochs": 5.2, "updates": 58.4, "time_s": 1.5, "time_interval_s": [1.0, 2.0],
        ...     "curve": "d.toml", "task": "digits", "rates": None}))
        5.2 epochs, 1.50 s (1.00 s to 2.00 s) to the target by the curve d.toml (digits); learning rate: the job's own
    """
    epochs, updates = training["epochs"], format_figure(training["updates"], digits=4)
    much = f"{updates} updates" if epochs is None else f"{format_figure(epochs)} epochs"
    rates = training["rates"]
    rule = "the job's own" if rates is None else f"{rates['rule']} from batch {rates['base_batch']}"
    interval = _target_interval(training["time_interval_s"] or (None, None))
    return (
        f"{much}, {format_duration(training['time_s'])} ({interval}) to the target by "
        f"the curve {training['curve']} ({training['task']}); learning rate: {rule}"
    )


def _target_table(document: Mapping[str, Any], most: int | None) -> Table:
    """One row a batch, number of devices and kind of strategy; a narrow terminal folds the strategies alone."""
    timed = document["time_to_accuracy_s"] is not None
    front = [_key(row) for row in document["front"]]
    table = frame_table()
    # One space between columns: with two, 80 would leave the strategies no room.
    table.padding = (0, 0)
    add_words(table, "", no_wrap=True)
    add_figures(table, "batch", "devices", "local")
    table.add_column("strategy", min_width=12)
    add_figures(table, *(("step", "epochs", "time", "interval", "cost") if timed else ("step", "samples/s")))
    for row in _shown(document, most):
        is_chosen = _key(row) == _key(document["chosen"])
        cells = (
            ("*" if is_chosen else "") + ("^" if _key(row) in front else ""),
            *(str(row[name]) for name in ("global_batch_size", "devices", "local_batch_size")),
            row["strategy"],
            format_seconds(row["step_time_s"]),
            *(_to_target(row) if timed else (f"{row['samples_per_s']:,.0f}",)),
        )
        table.add_row(*map(Text, cells), style="bold" if is_chosen else None)
    return table


def _to_target(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Epochs, time, the interval of the time in its unit, and the cost."""
    epochs, time_s = row["epochs_to_converge"], row["time_to_accuracy_s"]
    time = format_duration(time_s)
    unit = time.partition(" ")[2]
    ends = (_end(end, unit_of=time_s).removesuffix(f" {unit}") for end in row["time_to_accuracy_interval_s"])
    spent = "" if epochs is None else format_figure(epochs)
    return spent, time, format_span(*ends, to="–"), format_figure(row["cost"])


def _legend(document: Mapping[str, Any], most: int | None) -> Iterator[str]:
    shown = {_key(row) for row in _shown(document, most)}
    more = sum(_key(row) not in shown for row in document["candidates"])
    yield "* chosen   ^ not beaten in both time and cost" + (f"   and {more} more: --verbose lists all" if more else "")
    yield "local: batch of a replica" + (
        "; epochs: to the target" if document["time_to_accuracy_s"] is not None else "; samples/s: of all devices"
    )
    if document["time_to_accuracy_s"] is not None:
        yield f"time: to the target   interval: 90 %, in its unit   cost: {document['cost_unit']}"


def _shown(document: Mapping[str, Any], most: int | None) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = list(document["candidates"])
    front = {_key(row) for row in document["front"]} | {_key(document["chosen"])}
    known = {_key(row) for row in rows}
    rows += [row for row in (*document["front"], document["chosen"]) if _key(row) not in known]
    rows = list({_key(row): row for row in rows}.values())
    goal = "time_to_accuracy_s" if document["time_to_accuracy_s"] is not None else "step_time_s"

    def value(row: Mapping[str, Any]) -> float:
        return float(row[goal]) / (1 if goal == "time_to_accuracy_s" else row["global_batch_size"])

    kept = sorted(rows, key=lambda row: (_key(row) not in front, value(row)))[:most]
    return sorted(kept, key=lambda row: (row["global_batch_size"], row["devices"], value(row)))


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["global_batch_size"], row["devices"], row["strategy"])


def _timed(document: Mapping[str, Any]) -> str:
    chosen = document["chosen"]
    goal = {"time": "least time", "cost": "least cost", "throughput": "most samples a second"}[document["objective"]]
    goal += " but for uncertainty" if document.get("choice") else ""
    time = (
        f"{format_duration(chosen['time_to_accuracy_s'])} to the target "
        f"(90 %: {_target_interval(chosen['time_to_accuracy_interval_s'])})"
    )
    first, last = (_cost(document), time) if document["objective"] == "cost" else (time, _cost(document))
    epochs = chosen["epochs_to_converge"]
    much = (
        f"{format_figure(chosen['updates_to_converge'], digits=4)} updates"
        if epochs is None
        else f"{format_figure(epochs)} epochs of {format_figure(chosen['steps_per_epoch'], digits=4)} steps"
    )
    return (
        f"{first}, the {goal}: batch {chosen['global_batch_size']} by {chosen['strategy']} on "
        f"{format_count(document['devices'], 'device')} ({chosen['local_batch_size']} a replica), {much} of "
        f"{format_seconds(chosen['step_time_s'])}; {last}."
    )


def _why_timed(document: Mapping[str, Any]) -> Iterator[str]:
    chosen, curve = document["chosen"], document["curve"]
    yield f"Curve {curve['name']}: {curve['task']}, {chosen['convergence_source']}."
    if choice := document.get("choice"):
        yield f"{choice}."
    yield f"Hybrid or not: {document['hybrid_comparison']['reason']}."
    if document["stop"] is not None:
        yield _stop(document["stop"])


def _untimed(document: Mapping[str, Any]) -> str:
    chosen = document["chosen"]
    return (
        f"How long the training takes is not known without a convergence curve. For the most samples a second: batch "
        f"{chosen['global_batch_size']} by {chosen['strategy']} on {format_count(document['devices'], 'device')}."
    )


def _rule(document: Mapping[str, Any]) -> Iterator[str]:
    rule = document["learning_rate_rule"]
    if rule is not None:
        warm = f", rising over {rule['warmup_epochs']:g} epochs" if rule["warmup_epochs"] else ""
        yield (
            f"Learning rate: by the rule of the curve, {rule['rule']} from batch {rule['base_batch']}{warm}; "
            "`trimaran train --plan` follows it."
        )


def _stop(stop: Mapping[str, Any]) -> str:
    share = f"{100 * stop['least_saved_per_doubling']:.0f} % of the time"
    if stop["devices"] is None:
        return f"More devices still help: each doubling up to {stop['counts'][-1]} saves {share} or more."
    low, high = (str(end) if end is not None else f"beyond {stop['counts'][-1]}" for end in stop["interval"])
    ends = format_span(low, high)
    return f"Stop adding devices at {stop['devices']} ({ends}): another doubling saves less than {share}."


def _cost(document: Mapping[str, Any]) -> str:
    ends = format_span(*("?" if end is None else format_figure(end) for end in document["cost_interval"]))
    return f"{format_figure(document['cost'])} {document['cost_unit']} ({ends})"


def _target_interval(ends: Sequence[float | None]) -> str:
    return format_span(*map(_end, ends))


def _end(seconds: float | None, *, unit_of: float | None = None) -> str:
    return "?" if seconds is None else format_duration(seconds, unit_of=unit_of)
