"""A reproduction for people: one table a network, readable at 80 columns and without colour."""

from rich.table import Table

from trimaran.report.framing import frame_table
from trimaran.report.reproduction.figures import Accounting, ReproducedNetwork, Reproduction
from trimaran.units import format_bytes

_SECTIONS: tuple[tuple[Accounting, str], ...] = (("paper", "buffers of 2016"), ("trace", "a step of PyTorch"))


def network_table(network: ReproducedNetwork) -> Table:
    """Policies in the paper's accounting, then in ours."""
    table = frame_table(f"{network.network}, batch {network.batch}")
    table.add_column("policy", no_wrap=True)
    for title in ("peak", "mean", "w/o", "saved", "slower"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("the paper", no_wrap=True)
    for accounting, title in _SECTIONS:
        lines = [line for line in network.policies if line.accounting == accounting]
        if not lines:
            continue
        table.add_row(f"[dim]{title}[/]")
        for line in lines:
            figure = network.figure(line)
            mark = "" if figure is None else figure.text + ("" if figure.grade == "published" else " ~")
            table.add_row(
                f"  {line.policy}",
                *(f"{nbytes / 1e9:.2f}" for nbytes in (line.peak_bytes, line.mean_bytes, line.bare_mean_bytes)),
                f"{100 * line.saved:.1f} %",
                f"{100 * line.slowdown:.1f} %",
                "yes" if line.fits else "no",
                mark,
            )
    return table


def accounting_lines(found: Reproduction) -> list[str]:
    """How the figures are counted."""
    return [
        "Buffers of 2016: the paper's way. Feature maps (ReLU in place), gradient maps, workspace, weights twice; the "
        "baseline allocates all at once, with two gradient maps of the largest size; means are over time.",
        "A step of PyTorch: every storage as autograd holds it, with the optimizer's state, without workspaces; means "
        "are over the operations of forward and backward.",
        "Sizes are in GB of 1e9 bytes. w/o: the mean without weights, their gradients and the optimizer's state; "
        "saved: of that. "
        f"fits: into {format_bytes(found.paper_budget_bytes)} (the paper's pool is the whole card), "
        f"with PyTorch into {format_bytes(found.trace_budget_bytes)} (the card less its context).",
        "(p): fastest convolutions, (m): without workspace; slower: than none (p). "
        "~: recalled; other figures of the paper are in its abstract.",
        f"Times are {found.source}.",
    ]
