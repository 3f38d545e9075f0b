"""The text of a training to a target, from the document of a plan: the table by batch and devices, the choice, why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from trimaran.base.units import format_duration, format_seconds
from trimaran.report.tables import add_figures, add_words, frame_table

TARGET_ROWS = 16
"""Rows of the table that are shown: the front of time and cost, then the fastest."""


def outlook_lines(document: Mapping[str, Any]) -> list[str | Table]:
    """A choice of strategy, batch and devices as a table, which fits 80 columns, and sentences.

    Args:
        document: as `trimaran plan --objective time --json` prints it
    """
    lines: list[str | Table] = [_target_table(document), *_legend(document), ""]
    lines += _timed(document) if document["time_to_accuracy_s"] is not None else _untimed(document)
    lines += _rule(document)
    for entry in document["left_out"]:
        lines.append(f"Left out: batch {entry['global_batch_size']}, {entry['reason']}.")
    return lines


def training_line(training: Mapping[str, Any]) -> str:
    """The training to its target by a plan file, in a line.

    Args:
        training: `Plan.training` as plain data

    Example:
        >>> print(training_line({"epochs": 5.2, "updates": 58.4, "time_s": 1.5, "time_interval_s": [1.0, 2.0],
        ...     "curve": "d.toml", "task": "digits", "rates": None}))
        5.2 epochs, 1.50 s (1.00 s to 2.00 s) to the target by the curve d.toml (digits); learning rate: the job's own
    """
    much = f"{training['updates']:.4g} updates" if training["epochs"] is None else f"{training['epochs']:.3g} epochs"
    rates = training["rates"]
    rule = "the job's own" if rates is None else f"{rates['rule']} from batch {rates['base_batch']}"
    interval = _target_interval(training["time_interval_s"] or (None, None))
    return (
        f"{much}, {format_duration(training['time_s'])} ({interval}) to the target by "
        f"the curve {training['curve']} ({training['task']}); learning rate: {rule}"
    )


def _target_table(document: Mapping[str, Any]) -> Table:
    """One row a batch, number of devices and kind of strategy; a narrow terminal folds the strategies alone."""
    timed = document["time_to_accuracy_s"] is not None
    front = [_key(row) for row in document["pareto"]]
    table = frame_table()
    # One space between columns: with two, 80 would leave the strategies no room.
    table.padding = (0, 0)
    add_words(table, "", no_wrap=True)
    add_figures(table, "batch", "devices", "local")
    table.add_column("strategy", min_width=12)
    add_figures(table, *(("step", "epochs", "time", "interval", "cost") if timed else ("step", "samples/s")))
    for row in _shown(document):
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
    return "" if epochs is None else f"{epochs:.3g}", time, "–".join(ends), f"{row['cost']:.3g}"


def _legend(document: Mapping[str, Any]) -> Iterator[str]:
    shown = {_key(row) for row in _shown(document)}
    more = sum(_key(row) not in shown for row in document["candidates"])
    yield "* chosen   ^ not beaten in both time and cost" + (f"   and {more} more: --json lists all" if more else "")
    if document["time_to_accuracy_s"] is not None:
        yield f"time: to the target   interval: 90 %, in its unit   cost: {document['cost_unit']}"


def _shown(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = list(document["candidates"])
    front = {_key(row) for row in document["pareto"]} | {_key(document["chosen"])}
    known = {_key(row) for row in rows}
    rows += [row for row in (*document["pareto"], document["chosen"]) if _key(row) not in known]
    rows = list({_key(row): row for row in rows}.values())
    goal = "time_to_accuracy_s" if document["time_to_accuracy_s"] is not None else "step_time_s"

    def value(row: Mapping[str, Any]) -> float:
        return float(row[goal]) / (1 if goal == "time_to_accuracy_s" else row["global_batch_size"])

    kept = sorted(rows, key=lambda row: (_key(row) not in front, value(row)))[:TARGET_ROWS]
    return sorted(kept, key=lambda row: (row["global_batch_size"], row["devices"], value(row)))


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["global_batch_size"], row["devices"], row["strategy"])


def _timed(document: Mapping[str, Any]) -> Iterator[str]:
    chosen, curve = document["chosen"], document["curve"]
    goal = {"time": "least time", "cost": "least cost", "throughput": "most samples a second"}[document["objective"]]
    epochs = chosen["epochs_to_converge"]
    much = (
        f"{chosen['updates_to_converge']:.4g} updates"
        if epochs is None
        else f"{epochs:.3g} epochs of {chosen['steps_per_epoch']:.4g} steps"
    )
    yield (
        f"For the {goal}: batch {chosen['global_batch_size']} by {chosen['strategy']} on {document['devices']} "
        f"({chosen['local_batch_size']} a replica): {format_duration(chosen['time_to_accuracy_s'])} to the target "
        f"({_target_interval(chosen['time_to_accuracy_interval_s'])}), {much} of "
        f"{format_seconds(chosen['step_time_s'])}; {_cost(document)}."
    )
    yield f"Curve {curve['name']}: {curve['task']}, {chosen['convergence_source']}."
    yield f"Hybrid or not: {document['hybrid_comparison']['reason']}."
    if document["stop"] is not None:
        yield _stop(document["stop"])


def _untimed(document: Mapping[str, Any]) -> Iterator[str]:
    chosen = document["chosen"]
    yield (
        f"For the most samples a second: batch {chosen['global_batch_size']} by {chosen['strategy']} on "
        f"{document['devices']}; how long the training takes is not known without a convergence curve."
    )


def _rule(document: Mapping[str, Any]) -> Iterator[str]:
    rule = document["learning_rate_rule"]
    if rule is not None:
        warm = f", rising over {rule['warmup_epochs']:g} epochs" if rule["warmup_epochs"] else ""
        yield (
            f"Learning rate: by the rule of the curve, {rule['rule']} from batch {rule['base_batch']}{warm}; "
            "`trimaran train --plan` follows it."
        )
    elif document["curve"] is not None:
        yield "Learning rate: the curve does not say how it followed the batch; the job's own is left as it is."


def _stop(stop: Mapping[str, Any]) -> str:
    share = f"{stop['least_saved_per_doubling']:.0%}"
    if stop["devices"] is None:
        return f"More devices still help: each doubling up to {stop['counts'][-1]} saves {share} or more."
    low, high = (str(end) if end is not None else f"beyond {stop['counts'][-1]}" for end in stop["interval"])
    return f"Stop adding devices at {stop['devices']} ({low} to {high}): another doubling saves less than {share}."


def _cost(document: Mapping[str, Any]) -> str:
    ends = " to ".join("?" if end is None else format(end, ".3g") for end in document["cost_interval"])
    return f"{document['cost']:.3g} {document['cost_unit']} ({ends})"


def _target_interval(ends: Sequence[float | None]) -> str:
    return " to ".join(map(_end, ends))


def _end(seconds: float | None, *, unit_of: float | None = None) -> str:
    return "?" if seconds is None else format_duration(seconds, unit_of=unit_of)
