"""Texts of files, jobs and devices as terminals and drawings may have them."""

import re
import shutil

# Control characters but the end of a line and the tabulator; marks that are not seen or change the direction of
# writing; separators of lines that are no line feed; halves of surrogate pairs.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""A text in which what a terminal would obey, and what nobody would see, is written as an escape.

    A name in a file may hold a sequence that moves the cursor, changes the title of a window or changes the direction
    of writing. Everything that people are shown goes through here, where it leaves the program.

    Args:
        text: of any origin

    Example:
        >>> print(printable("dgx" + chr(27) + "[2J"), printable("two\nlines"))
        dgx\x1b[2J two
        lines
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_LEAST, _MOST = 40, 1000
"""Columns of a screen that pages are made for: below them a table has no room for its words."""


def screen_size() -> tuple[int, int]:
    """Columns and lines that pages are printed in: of COLUMNS and LINES, else of the terminal, else 80 and 24."""
    size = shutil.get_terminal_size()
    return max(_LEAST, min(_MOST, size.columns)), size.lines
