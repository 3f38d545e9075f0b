"""The `trimaran` command as a person runs it."""

import os
import subprocess
import sys
from pathlib import Path


def trimaran(*arguments: str, cwd: Path, timeout_s: float = 110) -> "subprocess.CompletedProcess[str]":
    """Run a command; what one measures, the next one in the same folder finds."""
    return subprocess.run(
        [sys.executable, "-m", "trimaran", *arguments],
        cwd=cwd,
        env=os.environ | {"TRIMARAN_CACHE": f"{cwd}-cache"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
