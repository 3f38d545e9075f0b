"""The tables that pages for people are made of: a title, one line under the head, no frame."""

from rich import box
from rich.table import Table
from rich.text import Text


def frame_table(title: str = "", caption: str = "") -> Table:
    """An empty table.

    Args:
        title: above it; brackets in it are no markup; "": none
        caption: below it, likewise
    """
    return Table(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        caption=Text(caption) if caption else None,
        caption_justify="left",
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
