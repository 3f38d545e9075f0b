"""The rows of published measurements that come with Trimaran."""

import tomllib
from importlib import resources
from pathlib import Path

from trimaran.session.validation.rows import read_rows
from trimaran.session.validation.types import Row


def published_rows(family: str | None = None) -> tuple[Row, ...]:
    """The rows that come with Trimaran; their column `use` says whether constants may be fitted on them.

    Args:
        family: only these; None for all
    """
    folder = Path(str(resources.files("trimaran.session.validation.published")))
    same = tomllib.loads((folder / "sources.toml").read_text("utf-8"))
    return tuple(
        row for path in sorted(folder.glob("*.csv")) for row in read_rows(path, family=family, same=same[path.stem])
    )
