"""Caches of tests: empty, but for what all tests of a run share."""

import os
from pathlib import Path

VARIABLE = "TRIMARAN_TEST_TRACED"
"""Names the folder of what is shared."""

SHARED = ("graphs", "workloads", "torch-builds")
"""What of a cache depends on nothing but the sources and torch: networks, captured and traced for seconds each."""


def make_cache(folder: Path) -> str:
    """A directory for `TRIMARAN_CACHE`, in which only networks are that any test of this run has captured.

    Args:
        folder: that is made; one that is there stays as it is
    """
    traced = Path(os.environ[VARIABLE])
    if not folder.exists():
        folder.mkdir(parents=True)
        for name in SHARED:
            (traced / name).mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(traced / name)
    return str(folder)
