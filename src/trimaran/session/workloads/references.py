"""What a workload is asked for by: a job, options, an optimizer and a precision; and the key under which it is kept.

The key holds the version of Trimaran and of torch, when the sources that a workload follows from last changed, and the
content of a Hugging Face configuration. A user's own file may import anything, so its workload is not kept on disk.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import trimaran
from trimaran.errors import InputError
from trimaran.session.configured import is_configuration
from trimaran.session.network_references import parse_network
from trimaran.session.network_references import with_options as add_options

PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
_SOURCES = (
    "networks/*.py", "graph/*.py", "graph/trace/*.py", "graph/workloads/*.py", "session/workloads/*.py",
    "session/*_jobs.py", "session/network_*.py", "session/configured.py", "session/digits.py", "session/synthetic*.py",
    "session/text.py",
    "session/memory/batch.py", "session/memory/tracing.py",
)  # fmt: skip
"""Files whose code decides what a workload is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a workload is asked for by.

    Attributes:
        reference: of the job, options included
        precision: "float32", "bfloat16" or "float16": "tf32" has the works of "float32"
        optimizer: in place of the job's; "" for the job's
    """

    reference: str
    precision: str
    optimizer: str

    @property
    def lasting(self) -> bool:
        """Whether it may be kept on disk."""
        return ".py:" not in self.reference

    @property
    def key(self) -> str:
        """Name of its file."""
        parts = [_versions(), _content(self.reference), self.reference, self.precision, self.optimizer]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def make_request(
    reference: str, *, precision: str, options: Mapping[str, str] | None, optimizer: str | None
) -> Request:
    """What a workload is asked for by, in one form.

    Args:
        reference: of a job
        precision: one of `PRECISIONS`
        options: of the job; "optimizer" among them is as the argument
        optimizer: in place of the job's

    Raises:
        InputError: an unknown precision, or an option that the job does not have
    """
    if precision not in PRECISIONS:
        raise InputError(
            f'precision is one of {", ".join(PRECISIONS)}, not "{precision}"',
            code="workload.unknown-precision",
            precision=precision,
        )
    given = dict(options or {})
    asked = given.pop("optimizer", None)
    return Request(
        reference=_in_full(reference, given),
        precision="float32" if precision == "tf32" else precision,
        optimizer=(optimizer or asked or "").lower(),
    )


def _in_full(reference: str, options: Mapping[str, str]) -> str:
    """One spelling of a reference, with options behind it.

    Raises:
        InputError: the job has no such option, or no such value of it

    Example:
        >>> _in_full("ResNet50", {"image": "32"}), _in_full("models/config.json", {"sequence": "64"})
        ('resnet50:image=32', 'models/config.json:sequence=64')
    """
    network = parse_network(reference)
    if network is not None:
        return add_options(reference, options) if options else str(network)
    if not options:
        return reference
    if not is_configuration(reference):
        raise InputError(
            f'"{reference}" has no options; {", ".join(options)} was given: published networks and Hugging Face '
            "configurations have some",
            code="workload.no-options",
            options=sorted(options),
        )
    path, _, _ = reference.rpartition(":") if "=" in reference else (reference, "", "")
    return f"{path}:{','.join(f'{name}={value}' for name, value in options.items())}"


@functools.cache
def _versions() -> str:
    root = Path(trimaran.__file__).parent
    changed = [
        (str(path.relative_to(root)), stat.st_mtime_ns, stat.st_size)
        for pattern in _SOURCES
        for path in sorted(root.glob(pattern))
        if (stat := path.stat())
    ]
    return json.dumps([trimaran.__version__, metadata.version("torch"), changed])


def _content(reference: str) -> str:
    """Of a configuration: what the file says."""
    path = Path(reference.removeprefix("hf:").partition(".json")[0] + ".json")
    folder = Path(reference.removeprefix("hf:").partition(":")[0])
    if ".json" not in reference:
        path = folder / "config.json"
        if not reference.startswith("hf:"):
            return ""
    try:
        return metadata.version("transformers") + path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, metadata.PackageNotFoundError):
        return ""  # whoever makes the job says what is wrong
