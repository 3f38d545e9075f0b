"""A hook of MkDocs: links from pages to files outside docs/ lead to the repository, which the site does not contain."""

import os
import re
from pathlib import Path
from typing import Any

REPOSITORY = os.environ.get("TRIMARAN_REPOSITORY_URL", "").rstrip("/")
"""Where the repository is shown; without it such links become plain text."""

LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page with links to files of the repository, or with their names."""
    folder = Path("docs") / Path(page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        label, target = found[1], os.path.normpath(folder / (found[2] + found[3].partition("#")[0]))
        if target.startswith("docs") and target.endswith(".md"):
            return found[0]
        return f"[{label}]({REPOSITORY}/{target})" if REPOSITORY else label

    return LINK.sub(replaced, markdown)
