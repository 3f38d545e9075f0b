"""The text of a training to a target, from the document of a plan: the table by batch and devices, the choice, why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimaran.units import format_duration, format_seconds

ROWS = 16
"""Rows of the table that are shown: the front of time and cost, then the fastest."""


def outlook_lines(document: Mapping[str, Any]) -> list[str]:
    """A choice of strategy, batch and devices as lines of text.

    Args:
        document: as `trimaran plan --objective time --json` prints it
    """
    lines = [*_table(document), ""]
    lines += _timed(document) if document["time_to_accuracy_s"] is not None else _untimed(document)
    lines += _rule(document)
    for entry in document["left_out"]:
        lines.append(f"Left out: batch {entry['global_batch_size']}, {entry['reason']}.")
    return lines


def training_line(training: Mapping[str, Any]) -> str:
    """What a plan file says of the training to its target, in a line.

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
    interval = _interval(training["time_interval_s"] or (None, None))
    return (
        f"{much}, {format_duration(training['time_s'])} ({interval}) to the target by "
        f"the curve {training['curve']} ({training['task']}); learning rate: {rule}"
    )


def _table(document: Mapping[str, Any]) -> Iterator[str]:
    rows = _shown(document)
    width = max(8, *(len(row["strategy"]) for row in rows))
    timed = document["time_to_accuracy_s"] is not None
    unit = document["cost_unit"]
    heads = ["batch", "devices", "local", f"{'strategy':<{width}}", "step"]
    heads += ["epochs", "to target", "90 %", unit] if timed else ["samples/s"]
    front = [_key(row) for row in document["pareto"]]
    sizes = (7, 7, 6, width, 9, 8, 9, 17, 12) if timed else (7, 7, 6, width, 9, 11)
    yield "  " + "  ".join(f"{head:>{size}}" for head, size in zip(heads, sizes, strict=True))
    for row in rows:
        mark = ("*" if _key(row) == _key(document["chosen"]) else " ") + ("^" if _key(row) in front else " ")
        cells = [
            f"{row['global_batch_size']:>7}",
            f"{row['devices']:>7}",
            f"{row['local_batch_size']:>6}",
            f"{row['strategy']:<{width}}",
            f"{format_seconds(row['step_time_s']):>9}",
        ]
        if timed:
            epochs = row["epochs_to_converge"]
            cells += [
                f"{'' if epochs is None else format(epochs, '.3g'):>8}",
                f"{format_duration(row['time_to_accuracy_s']):>9}",
                f"{_interval(row['time_to_accuracy_interval_s']):>17}",
                f"{row['cost']:>12.3g}",
            ]
        else:
            cells.append(f"{row['samples_per_s']:>11,.0f}")
        yield (mark + "  ".join(cells)).rstrip()
    more = len(document["candidates"]) - len(rows)
    yield "* chosen   ^ not beaten in both time and cost" + (f"   and {more} more: --json lists all" if more else "")


def _shown(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = list(document["candidates"])
    front = {_key(row) for row in document["pareto"]} | {_key(document["chosen"])}
    known = {_key(row) for row in rows}
    rows += [row for row in (*document["pareto"], document["chosen"]) if _key(row) not in known]
    rows = list({_key(row): row for row in rows}.values())
    goal = "time_to_accuracy_s" if document["time_to_accuracy_s"] is not None else "step_time_s"

    def value(row: Mapping[str, Any]) -> float:
        return float(row[goal]) / (1 if goal == "time_to_accuracy_s" else row["global_batch_size"])

    kept = sorted(rows, key=lambda row: (_key(row) not in front, value(row)))[:ROWS]
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
        f"({_interval(chosen['time_to_accuracy_interval_s'])}), {much} of {format_seconds(chosen['step_time_s'])}; "
        f"{_cost(document)}."
    )
    yield f"Curve {curve['name']}: {curve['task']}, {chosen['convergence_source']}."
    yield f"Hybrid or not: {document['rivals']['reason']}."
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


def _interval(ends: Sequence[float | None]) -> str:
    return " to ".join("?" if end is None else format_duration(end) for end in ends)
