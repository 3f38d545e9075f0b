"""The documents that people write, without those that programs write."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = {"specification.md", "survey.md", "atlas.md", "job_matrix.md"}
"""Pages of docs/ that `make docs` and programs of benchmarks/ write."""

PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED)]
