"""Where a benchmark ran: what is kept beside its figures, so that another run can be told apart from another machine.

    document = {"schema_version": 1, "environment": describe_environment(), ...}
    write_result(document, "overhead")

Imports torch when it is called, so that a benchmark can first say what is missing.
"""

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.pricing.noise import Noise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def describe_environment(*, devices: int = 1) -> dict[str, Any]:
    """This machine, its software and the state of the source.

    Args:
        devices: how many the benchmark uses
    """
    import torch

    from trimaran.machine.detect import detect_processor

    processor = detect_processor()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "processor": processor.name,
        "cores": processor.cores,
        "memory_bytes": processor.memory_bytes,
        "devices": devices,
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def environment_line(environment: dict[str, Any]) -> str:
    """The environment in one or two lines, as a README has it.

    Args:
        environment: from `describe_environment`
    """
    gpu = environment["gpu"]
    device = f"{environment['cores']} cores of {environment['processor']}"
    if gpu is not None:
        device = f"{gpu['name']} (driver {gpu['driver']}, CUDA {gpu['cuda']}), {device}"
    return (
        f"{device}; Python {environment['python']}, torch {environment['torch']}, {environment['system']}; "
        f"{environment['date']}, commit {environment['commit']}"
    )


def write_result(document: dict[str, Any], name: str) -> Path:
    """Write a tracked result, whole or not at all.

    Args:
        document: has `schema_version` and `environment`
        name: of the benchmark

    Returns:
        The file: `benchmarks/results/<name>.json`.
    """
    path = RESULTS / f"{name}.json"
    write_document(document, path)
    return path


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write JSON to a file, whole or not at all.

    Args:
        document: what JSON can hold
        path: of the file; its folder is made
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def _commit() -> str:
    """The commit of the source, with a + where files differ from it; "unknown" without a repository."""
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "src")
    return f"{commit}{'+' if changed else ''}" if commit else "unknown"


def _driver() -> str:
    names = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return names[0].strip() if names else "unknown"


def _output(*command: str) -> str:
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20, env=environment
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def noise_here(*, ranks: int) -> "Noise | None":
    """How far identical runs are apart on this machine, as it was calibrated; None where it was not.

    Args:
        ranks: of the runs
    """
    from trimaran.measure.calibration.results import kept_calibration
    from trimaran.measure.costs import fingerprint_here
    from trimaran.pricing.noise import noise_for

    calibration = kept_calibration(fingerprint_here(1))
    return None if calibration is None else noise_for(calibration.noise, ranks=ranks)
