"""The ablation of three remedies as tables of 80 columns."""

from rich.table import Table

from trimaran.report.framing import frame_table
from trimaran.report.reproduction.feeding import ReproducedFeeding, savings


def feeding_table(found: ReproducedFeeding, machine: str, batch: int) -> Table:
    """What each remedy saves on a machine at a batch, a line for each network.

    Args:
        found: the ablation
        machine: one of its machines
        batch: of a device
    """
    table = frame_table(f"{found.titles[machine]}, batch {batch} a GPU")
    table.add_column("network", no_wrap=True)
    for title in ("step\nms", "split\n", "pre-\nload", "com-\npress", "all\n", "90 %\n", "DDP\n", "DDP\nms"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("pre-\nload", "com-\npress", "all\n"):
        table.add_column(title, justify="right", no_wrap=True)
    rows = [row for row in found.rows if row.machine == machine and row.batch == batch]
    for network in dict.fromkeys(row.network for row in rows):
        of = {(row.baseline, row.remedy): row for row in rows if row.network == network}
        first, ddp = ({remedy: of[base, remedy] for base, remedy in of if base == name} for name in _BASELINES)
        table.add_row(
            network,
            _ms(first["none"].step_s),
            *(_percent(first[name].saved) for name in ("split", "pre-load", "compress", "all")),
            f"{_percent(first['all'].interval[0])}–{_percent(first['all'].interval[1])}",
            _percent(first["ddp"].saved),
            _ms(ddp["none"].step_s),
            *(_percent(ddp[name].saved) for name in ("pre-load", "compress", "all")),
        )
    return table


def savings_table(found: ReproducedFeeding, machine: str) -> Table:
    """Means over all networks and batches on a machine, with the study's figures.

    Args:
        found: the ablation
        machine: one of its machines
    """
    rows = [row for row in found.rows if row.machine == machine]
    table = frame_table(f"{rows[0].links}: saved over all networks and batches [%]")
    for name in ("against", "remedy"):
        table.add_column(name, no_wrap=True)
    for name in ("mean", "90 %", "least", "most", "published"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for one in savings(rows):
        known = one.published
        published = "" if known is None else f"{_tenths(known.mean)}, most {_tenths(known.most)}"
        table.add_row(
            "" if one.baseline == before else one.baseline,
            one.remedy,
            _tenths(one.mean),
            f"{_percent(one.interval[0])} to {_percent(one.interval[1])}",
            _percent(one.least),
            _percent(one.most),
            published,
        )
        before = one.baseline
    return table


_BASELINES = ("replicate-and-scatter", "ddp")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def _percent(share: float) -> str:
    return str(round(100 * share))


def _tenths(share: float) -> str:
    return f"{100 * share:.1f}"
