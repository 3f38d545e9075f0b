"""What an ablation comes to, in sentences: beside the study, and beside plain DDP."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from trimaran.report.reproduction.feeding import FeedingRow, ReproducedFeeding, Saving, savings
from trimaran.report.reproduction.feeding_figures import SOURCE

_PART_NAMES = {
    "feed": "copying the batch from the host",
    "scatter": "scattering it",
    "replicate": "sending the weights out",
    "gather": "collecting outputs",
    "reduce": "summing gradients on the first GPU",
}


def verdict_lines(found: ReproducedFeeding) -> list[str]:
    """One line for each machine beside the study, and one beside DDP."""
    lines = []
    all_savings = savings(found.rows)
    for machine in found.machines:
        own = {(one.baseline, one.remedy): one for one in all_savings if one.machine == machine}
        rows = [row for row in found.rows if row.machine == machine]
        lines += [_beside_study(found, own), _beside_ddp(own, rows)]
    return lines


def _beside_study(found: ReproducedFeeding, own: Mapping[tuple[str, str], Saving]) -> str:
    one = own["replicate-and-scatter", "all"]
    if one.published is None:
        return f"{one.links}: the study has no figure for such links."
    low, high = one.interval
    inside = low <= one.published.mean <= high
    told = (
        f"{one.links}: all three save {_share(one.mean)} on average and {_share(one.most)} at most "
        f"({one.most_network}); the study {_share(one.published.mean)} and {_share(one.published.most)}. "
        f"Its mean is {'within' if inside else 'outside'} our 90 %."
    )
    rows = _rows(found, one.machine, one.most_network)
    return f"{told} {one.most_network} loses most to {_largest_losses(rows)}."


def _rows(found: ReproducedFeeding, machine: str, network: str) -> list[FeedingRow]:
    return [
        row
        for row in found.rows
        if (row.machine, row.network, row.baseline, row.remedy) == (machine, network, "replicate-and-scatter", "none")
    ]


def _largest_losses(rows: Sequence[FeedingRow]) -> str:
    shares = {title: fmean(row.parts[name] / row.step_s for row in rows) for name, title in _PART_NAMES.items()}
    first, second = sorted(shares, key=lambda title: -shares[title])[:2]
    return f"{first} ({_share(shares[first])} of its step) and {second} ({_share(shares[second])})"


def _beside_ddp(own: Mapping[tuple[str, str], Saving], rows: Sequence[FeedingRow]) -> str:
    ddp, left = own["replicate-and-scatter", "ddp"], own["ddp", "all"]
    each = ", ".join(f"{name} {_share(own['ddp', name].mean)}" for name in ("split", "pre-load", "compress"))
    return (
        f"{ddp.links}: DDP alone, without any of the three, saves {_share(ddp.mean)} of replicate-and-scatter on "
        f"average. Against it they save {_share(left.mean)} (from {_share(left.least)} to {_share(left.most)}, "
        f"{left.most_network}): {each}. {_what_pays(rows)}"
    )


def _what_pays(rows: Sequence[FeedingRow]) -> str:
    """Where a remedy costs more than it saves, and what the others save without it."""
    steps: dict[tuple[str, int], dict[str, FeedingRow]] = {}
    for row in rows:
        if row.baseline == "ddp":
            steps.setdefault((row.network, row.batch), {})[row.remedy] = row
    costs = [of for of in steps.values() if of["compress"].saved < 0.0]
    if not costs:
        return "Compressing pays in every case."
    best = fmean(max(row.saved for row in of.values()) for of in steps.values())
    return (
        f"Compressing is not worth it in {len(costs)} of {len(steps)} cases: coding takes longer than the wire saves. "
        f"With only what pays in each, {_share(best)} are left to save."
    )


def legend_lines(found: ReproducedFeeding) -> list[str]:
    """What the columns mean, and what the figures rest on."""
    return [
        "step: replicate-and-scatter (DataParallel): batch, weights and gradients all go through GPU 0. Columns up to "
        "DDP: what each remedy saves of it [%], all together with 90 %, and DDP alone. Right of it: DDP's step, and "
        "what remedies save of that; DDP splits the batch already.",
        f"Predicted for {found.software} on {found.devices} GPUs, 32-bit, samples ready in the host's memory; "
        "compress: 16-bit weights and gradients, with error feedback. Nothing is fitted to the study's figures.",
        f"Published: {SOURCE}. Its networks, batches and cards are not in the abstract.",
        *found.notes,
    ]


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
