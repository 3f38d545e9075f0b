"""From a reference on the command line to a `Job`.

A reference is the name of a built-in job, or of a published network with its size and options
(`networks/names.py`), `file.py:factory`, where `factory()` returns a `Job`, or a Hugging Face configuration
(`huggingface.py`).

Errors in a file of the user's are reported as theirs, with the line and without a traceback of ours.
"""

import dataclasses
import functools
import re
import shlex
import sys
from collections.abc import Callable, Mapping

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.job import Job
from trimaran.base.units import format_bytes
from trimaran.base.user_errors import users
from trimaran.jobs.huggingface import configured_job, is_configuration
from trimaran.jobs.learning_rate import Recipe, follow_recipe
from trimaran.networks.names import PUBLISHED, canonical_network, parse_network, sizes_of
from trimaran.networks.published_decoders import find_published, unknown_size
from trimaran.user_code.functions import asked, load_function


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A job that comes with Trimaran.

    Attributes:
        summary: one line for people
        make: makes the job
    """

    summary: str
    make: Callable[[], Job]


def _built_in(factory: str) -> Job:
    from trimaran.jobs import builtin

    job: Job = getattr(builtin, factory)()
    return job


_SUMMARIES = {
    "digits": "LeNet on handwritten digits; a first run of seconds",
    "digits-resnet": "residual CNN on the digits; much compute, few gradients",
    "digits-branches": "heavy parallel branches on the digits; for placement on several devices",
    "text-lstm": "LSTM, next character of English text; a recurrent chain",
    "text-gpt": "transformer on the same text; a tied embedding",
    "wide": "branches and a large head on the digits; many gradients",
}

BUILT_IN: Mapping[str, BuiltIn] = {
    name: BuiltIn(summary=summary, make=functools.partial(_built_in, name.replace("-", "_")))
    for name, summary in _SUMMARIES.items()
}
"""Jobs that learn something in minutes on a CPU."""


def _network(name: str) -> Job:
    from trimaran.jobs.published_jobs import network_job

    return network_job(name)


NETWORKS: Mapping[str, BuiltIn] = {
    name: BuiltIn(summary=listed.summary, make=functools.partial(_network, name)) for name, listed in PUBLISHED.items()
}
"""Published networks on synthetic data: for what they need and cost, not to learn anything."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """Where a job comes from, so that every process can make the same one.

    Attributes:
        reference: as for `resolve`
        seed: in place of the job's own
        epochs: in place of the job's own
        global_batch_size: in place of the job's own
        precision: in place of the job's own
        target: in place of the job's own
        recipe: how the learning rate follows the batch; None: it stays
    """

    reference: str
    seed: int | None = None
    epochs: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    target: float | None = None
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reference, str):
            raise InputError(
                f'a job is named by a text, such as "vgg16" or "file.py:factory", got {self.reference!r}',
                code="job.not-a-name",
            )

    def make(self) -> Job:
        """The job, with what was overridden.

        Raises:
            InputError: the reference or an override is wrong
        """
        overrides = {
            name: value
            for name in ("seed", "epochs", "global_batch_size", "precision", "target")
            if (value := getattr(self, name)) is not None
        }
        job = dataclasses.replace(resolve(self.reference), **overrides)
        if self.recipe is not None:
            return follow_recipe(job, self.recipe)
        return job


def resolve(reference: str) -> Job:
    """The job that a reference names.

    Args:
        reference: built-in name, published network, such as `vgg16` or `gpt2:1.5b:sequence=512`, `file.py:factory`, a
            Hugging Face configuration, or a published decoder that has one, such as `mixtral:8x7b`

    Raises:
        InputError: no such name, size, option, file or factory; the file or the factory raises; what it returns is no
            `Job`; a wrong configuration
        EnvironmentProblem: a configuration, and transformers is not installed
    """
    if reference in BUILT_IN:
        return BUILT_IN[reference].make()
    if parse_network(reference) is not None:
        return _network(reference)
    if is_configuration(reference):
        return configured_job(reference)
    path, colon, _ = reference.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise InputError(_unknown(reference), code="job.unknown", reference=reference)
    return _call(load_function(reference), reference)


def is_reference(text: str) -> bool:
    """Whether a text names a job, also one that cannot be made.

    Args:
        text: such as "digits", "train.py" or "jobs.py:mine"

    Example:
        >>> is_reference("gpt2:1.5b"), is_reference("jobs.py:mine"), is_reference("train.py")
        (True, True, False)
    """
    try:
        named = text in BUILT_IN or parse_network(text) is not None or find_published(text) is not None
    except InputError:
        return True
    return named or ".py:" in text or is_configuration(text)


_SIZE = re.compile(r"[0-9]+x?[0-9.]*[bm]", re.IGNORECASE)


def _meant(reference: str) -> str:
    """The end of a sentence that names the network of a spelling, as of the Hugging Face Hub, or its sizes.

    Example:
        >>> _meant("meta-llama/Llama-3.1-8B-Instruct"), _meant("Qwen3-31B").partition(", ")[0]
        ('; did you mean "llama3.1:8b"?', ': qwen3 has the sizes 0.6b')
    """
    parts = reference.rpartition("/")[2].split("-")
    for end in range(len(parts), 0, -1):
        decoder = find_published("-".join(parts[:end]))
        if decoder is not None:
            return f'; did you mean "{decoder.name}"?'
        if _SIZE.fullmatch(parts[end - 1]):
            known = canonical_network(reference)
            return f'; did you mean "{known}"?' if known else _sizes_of("-".join(parts[: end - 1]), parts[end - 1])
    known = canonical_network(reference)
    return f'; did you mean "{known}"?' if known else ""


def _sizes_of(family: str, size: str) -> str:
    without = unknown_size(f"{family}:{size}")
    if without is not None:
        return f": {without[0]} has the sizes {', '.join(without[1])}"
    network = canonical_network(family)
    sizes = sizes_of(network.partition(":")[0]) if network else ()
    return f": {network} has the sizes {', '.join(sizes)}" if sizes else ""


def _unknown(reference: str) -> str:
    without = unknown_size(reference)
    if without is not None:
        return f'"{reference}": {without[0]} has the sizes {", ".join(without[1])}'
    meant = _meant(reference.partition(":")[0])
    if meant:
        return f'unknown job "{reference}"{meant}'
    hint = did_you_mean(reference.lower(), [*BUILT_IN, *NETWORKS]) or "."
    if reference.endswith(".py"):
        hint = (
            f'; name the function that makes the job too, as in "{reference}:make_job", or ask of the script as it is: '
            f"`trimaran observe {reference}`."
        )
    return (
        f'unknown job "{reference}"{hint} A job is one of {", ".join(BUILT_IN)}, a network such as vgg16 '
        '(`trimaran catalog jobs` lists them), "file.py:factory", where factory() returns a trimaran.Job, or a Hugging '
        "Face config.json"
    )


def _call(factory: Callable[..., object], reference: str) -> Job:
    with asked(reference, factory, code="job.factory-fails"):
        job = factory()
    if not isinstance(job, Job):
        raise InputError(
            f"{reference} must return a trimaran.Job, it returned {type(job).__name__}", code="job.not-a-job"
        )
    return job


def is_published(job: Job) -> bool:
    """Whether making the model of a job leaves nothing behind: a network of `trimaran.networks`, or a configuration."""
    made_by = job.model.func if isinstance(job.model, functools.partial) else job.model
    module = str(getattr(made_by, "__module__", ""))
    return module.startswith("trimaran.networks.") or module == configured_job.__module__


def check_room(job: Job, reference: str) -> None:
    """Refuse to make a published network, or one of a configuration, whose weights have no room in the free memory.

    Its size is that of the network without content. A user's own model is made without this look: that may take long,
    or write something. What is free is known on Linux only, which all that trains needs. Gradients and the optimizer's
    state are not counted: a network too large to run is looked at without them, and others may be trained in parts.

    Args:
        job: the job
        reference: its reference, for the message

    Raises:
        InputError: with what it takes, what there is, and what answers without the weights; or it cannot be made
    """
    if not is_published(job) or not sys.platform.startswith("linux"):
        return
    import torch

    from trimaran.machine.detect import free_memory_bytes

    with users("Job.model"):
        try:
            with torch.device("meta"):
                model = job.model()
        except RuntimeError:  # what reads a value while it is made, as some models of transformers 4 do
            return
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    free = free_memory_bytes()
    if needed > free:
        raise InputError(
            f"{job.name} does not fit this machine: its weights take {format_bytes(needed)}, {format_bytes(free)} of "
            f"memory are free. `{shlex.join(['trimaran', 'plan', reference, '--cluster', 'dgx-h100'])}` plans it "
            "without them, for those or other machines (see `trimaran catalog machines`)",
            code="job.no-room",
            needed_bytes=needed,
            free_bytes=free,
        )
