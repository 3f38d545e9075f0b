"""Links of documents that lead out of them go to the repository: a hook of MkDocs, and for the package's readme."""

import os
import re
from pathlib import Path
from typing import Any

REPOSITORY = os.environ.get("TRIMARAN_REPOSITORY_URL", "").rstrip("/")
"""Where the repository is shown; without it such links become plain text."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page of docs/; its links to other pages stay."""
    return outside(markdown, Path("docs") / Path(page.file.src_uri).parent, pages="docs")


def outside(markdown: str, folder: Path, *, pages: str | None = None) -> str:
    """A text with links to files of the repository, or with their names where its address is not known.

    Args:
        markdown: the text
        folder: of its file, from the root of the repository
        pages: folder of pages that are where the text is; None: there are none
    """

    def replaced(found: re.Match[str]) -> str:
        picture, label, target = found[1], found[2], os.path.normpath(folder / found[3])
        if pages is not None and target.startswith(pages):
            return found[0]
        if REPOSITORY:
            return f"{picture}[{label}]({REPOSITORY}/{target}{found[4] or ''})"
        return "" if picture else label

    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in CODE.split(markdown))
