"""A hook of hatchling: the README, and addresses of the repository where it is known, as metadata of the package."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Described(MetadataHookInterface):
    """The readme with links that lead somewhere outside of the repository too, and the project's addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to the metadata of pyproject.toml."""
        root = Path(self.root)
        links = runpy.run_path(str(root / "scripts" / "docs_links.py"))
        text = links["outside"]((root / "README.md").read_text(encoding="utf-8"), Path())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        repository = links["REPOSITORY"]
        if repository:
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/docs/index.md",
                "Changelog": f"{repository}/CHANGELOG.md",
            }
