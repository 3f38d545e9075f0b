"""A Hugging Face configuration as a job: the model that it describes, with random weights, on synthetic data.

A reference is the path of the file or of a folder with a `config.json`, with options behind a colon: `config.json`,
`config.json:sequence=2048`; or `hf:` and such a path, which a command that takes plan files too needs; or the name of a
published decoder (`networks/published_decoders.py`). Only the file is read; nothing is downloaded. The analytical model
takes the dimensions straight from the file, without a model (`pricing/analytical/huggingface_config.py`).

What the model is for follows from `architectures` in the file, otherwise from what transformers has for its
`model_type`. Weights are fp32; where the file says bfloat16, the job computes under bf16 autocast. The cache of keys
and values, which serves generation only, is off.
"""

import copy
import functools
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.decoding import decode_object
from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.files import given, is_file, read_bytes
from trimaran.base.job import Job
from trimaran.base.precision import dtype_name
from trimaran.base.units import MOST_SEQUENCE, whole_number
from trimaran.networks.published_decoders import assumed_sequence_words, find_published, usual_sequence

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

PREFIX = "hf:"
POSITIONS = 512  # of a model that names none, where the reference does not say how long a window is
PIXELS = 224  # of a model that says none
GLOBAL_BATCH_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Something that models are made for.

    Attributes:
        finder: class of transformers that finds the model of a configuration
        mapping: of transformers, which configurations have such a model
        endings: how the names of its architectures end
        default: whether a configuration that names no architecture may mean it
    """

    finder: str
    mapping: str
    endings: tuple[str, ...]
    default: bool = True


_TASKS: Mapping[str, _Task] = {
    # The order decides where a file names no architecture.
    "sequence to sequence": _Task(
        finder="AutoModelForSeq2SeqLM",
        mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
        endings=("ForConditionalGeneration",),
    ),
    "image classification": _Task(
        finder="AutoModelForImageClassification",
        mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
        endings=("ForImageClassification",),
    ),
    "masked language": _Task(
        finder="AutoModelForMaskedLM", mapping="MODEL_FOR_MASKED_LM_MAPPING", endings=("ForMaskedLM", "ForPreTraining")
    ),
    "causal language": _Task(
        finder="AutoModelForCausalLM", mapping="MODEL_FOR_CAUSAL_LM_MAPPING", endings=("ForCausalLM", "LMHeadModel")
    ),
    "sequence classification": _Task(
        finder="AutoModelForSequenceClassification",
        mapping="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
        endings=("ForSequenceClassification",),
        default=False,
    ),
    "token classification": _Task(
        finder="AutoModelForTokenClassification",
        mapping="MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
        endings=("ForTokenClassification",),
        default=False,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A configuration as it was read, before transformers sees it.

    Attributes:
        values: its figures by name
        source: where it is from, for errors
        sequence: tokens of a sequence that the reference asks for, or that the model was trained with; None: not said
    """

    values: Mapping[str, Any]
    source: str
    sequence: int | None = None


def is_configuration(reference: str) -> bool:
    """Whether a job reference names a configuration.

    Example:
        >>> [is_configuration(text) for text in ("hf:models/llama", "config.json:sequence=64", "job.py:make", "vgg16")]
        [True, True, False, False]
        >>> is_configuration("mixtral:8x7b")
        True
    """
    location = _split(reference)[0]
    if reference.startswith(PREFIX) or location.endswith(".json") or find_published(reference) is not None:
        return True
    try:
        return not location.endswith(".py") and is_file(given(Path(location) / "config.json"))
    except OSError:  # no path
        return False


def read_configuration(reference: str) -> Configuration:
    """The figures of a configuration; transformers and torch are not needed.

    Args:
        reference: as for `configured_job`

    Raises:
        InputError: no such file, it is no configuration, or an option that it has not

    Example:
        >>> read_configuration("mixtral:8x7b:sequence=8192").sequence
        8192
    """
    published = find_published(reference)
    if published is not None:
        asked = _asked_sequence(published.options, reference)
        return Configuration(values=published.values, source=published.name, sequence=asked or published.sequence)
    location, options = _split(reference.removeprefix(PREFIX))
    path = _path(location)
    return Configuration(values=_read(path), source=str(path), sequence=_asked_sequence(options, reference))


def configuration_of_job(job: Job) -> Mapping[str, Any] | None:
    """The configuration by which a job makes its model, where the model is made of one and nothing else.

    Args:
        job: whose `model` is `functools.partial` of `from_config`, or of a class of transformers, with a configuration

    Returns:
        Its figures; None: the model is made in another way.
    """
    if not isinstance(job.model, functools.partial):
        return None
    given_to = (*job.model.args, *job.model.keywords.values())
    found = [each for each in given_to if hasattr(each, "to_dict") and isinstance(_model_type(each), str)]
    made_by = job.model.func
    maker = getattr(made_by, "__self__", made_by)
    known = made_by is _make_model or str(getattr(maker, "__module__", "")).startswith("transformers.")
    values = found[0].to_dict() if known and len(found) == 1 else None
    return values if isinstance(values, dict) else None


def _model_type(config: object) -> object:
    return getattr(config, "model_type", None)


def configured_job(reference: str) -> Job:
    """The job of a configuration.

    Args:
        reference: path of the file, of a folder with a `config.json`, or name of a published decoder; then options,
            `:sequence=2048`

    Returns:
        A job of synthetic batches of 8 samples; it makes nothing until it is used.

    Raises:
        InputError: no such file, it is no configuration, or the options do not fit it
        EnvironmentProblem: transformers is not installed
    """
    read = read_configuration(reference)
    path = Path(read.source)
    transformers = _transformers()
    values = dict(read.values)
    # Without a dtype the model is made in torch's default, fp32.
    dtype = dtype_of(values)
    for name in _DTYPES:
        values.pop(name, None)
    config = _config(values, path, transformers)
    task = _task(config, path, transformers)
    sequence = _sequence(config, read.sequence, reference)
    return Job(
        name=str(config.model_type) if find_published(reference) is None else read.source.replace(":", "-"),
        model=functools.partial(_make_model, transformers, _TASKS[task].finder, config),
        loss=None,
        optimizer=_adamw,
        dataset=functools.partial(_make_data, config, task, sequence),
        global_batch_size=GLOBAL_BATCH_SIZE,
        precision="bf16" if dtype == "bfloat16" else "fp32",
        drop_last=True,
    )


_DTYPES = ("dtype", "torch_dtype")


def dtype_of(values: Mapping[str, Any]) -> str:
    """The type of weights that a configuration names, such as "bfloat16"; empty: none.

    Example:
        >>> dtype_of({"torch_dtype": "torch.bfloat16"})
        'bfloat16'
    """
    found = next((values[name] for name in _DTYPES if values.get(name)), "")
    return dtype_name(found)


def _split(reference: str) -> tuple[str, str]:
    location, colon, options = reference.rpartition(":")
    return (location, options) if colon and (location.endswith(".json") or "=" in options) else (reference, "")


def _path(location: str) -> Path:
    path = Path(location)
    if is_file(given(path / "config.json")):
        path = path / "config.json"
    if not is_file(given(path)):
        raise InputError(
            f"no configuration {path}: give the path of a config.json on this machine; nothing is downloaded",
            code="configuration.missing-file",
            path=str(path),
        )
    return path


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise EnvironmentProblem(
            "a Hugging Face configuration needs the package transformers, which is not installed: install it, or take "
            "another job",
            code="configuration.needs-transformers",
        ) from error


def _read(path: Path) -> dict[str, Any]:
    # Some published configurations have an infinite figure, such as the largest time step of a state-space model.
    values = decode_object(read_bytes(path), source=str(path), finite=False)
    if not isinstance(values.get("model_type"), str):
        raise InputError(
            f'{path} has no "model_type", so it is no configuration of a Hugging Face model',
            code="configuration.no-model-type",
            path=str(path),
        )
    return values


def _config(values: dict[str, Any], path: Path, transformers: Any) -> Any:
    kind = values["model_type"]
    try:
        config_class = transformers.CONFIG_MAPPING[kind]
    except KeyError:
        raise InputError(
            f'{path}: transformers {transformers.__version__} has no model type "{kind}"; a model whose code comes '
            "with its weights needs a job file: file.py:factory",
            code="configuration.unknown-model-type",
            model_type=kind,
        ) from None
    try:
        config = config_class.from_dict(values)
    # Each kind of model checks its figures and raises other errors.
    except Exception as error:
        raise InputError(
            f"{path}: {' '.join(str(error).split())}", code="configuration.rejected", path=str(path)
        ) from error
    config.use_cache = False
    _check_figures(config, path)
    return config


def _check_figures(config: Any, path: Path) -> None:
    """Refuse values that data are made by and no model has; transformers takes any.

    Raises:
        InputError: one of them
    """
    names = config.architectures
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _bad_figure(path, "architectures", names, "a list of names")
    text = config.get_text_config()
    for holder, name, least, most in (
        (config, "num_labels", 1, 10**7),
        (config, "num_channels", 1, 10**4),
        (text, "vocab_size", 1, 10**9),
        # -1 where any number of positions will do.
        (text, "max_position_embeddings", -1, 10**9),
    ):
        value = getattr(holder, name, None)
        if value is not None and not _is_whole(value, least, most):
            raise _bad_figure(path, name, value, f"a whole number from {least} to {most:,}")
    size = getattr(config, "image_size", None)
    sizes = size if isinstance(size, list | tuple) else [size]
    if size is not None and not (len(sizes) <= 3 and all(_is_whole(one, 1, _MOST_PIXELS) for one in sizes)):
        raise _bad_figure(path, "image_size", size, f"at most {_MOST_PIXELS:,} pixels in each direction")


_MOST_PIXELS = 8192


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _bad_figure(path: Path, name: str, value: object, expected: str) -> InputError:
    return InputError(
        f"{path}: {name}: expected {expected}, got {str(value)[:_SHOWN]}",
        code="configuration.bad-figure",
        path=str(path),
        key=name,
    )


_SHOWN = 80
"""Of a value in an error [characters]."""


def _task(config: Any, path: Path, transformers: Any) -> str:
    names: list[str] = config.architectures or []
    known = [name for name, task in _TASKS.items() if type(config) in getattr(transformers, task.mapping)]
    asked = [name for name in known if any(architecture.endswith(_TASKS[name].endings) for architecture in names)]
    if not any("For" in name or "LMHead" in name for name in names):
        asked += [name for name in known if _TASKS[name].default]
    if asked:
        return asked[0]
    said = f"architectures {', '.join(names)}" if names else f'model type "{config.model_type}"'
    raise InputError(
        f"{path}: {said}: synthetic data are made for {', '.join(_TASKS)} models only; write a job file instead, "
        "file.py:factory",
        code="configuration.unsupported-architecture",
        architectures=names,
    )


def _asked_sequence(options: str, reference: str) -> int | None:
    if not options:
        return None
    name, _, value = options.partition("=")
    window = whole_number(value, least=1, most=MOST_SEQUENCE)
    if name != "sequence" or window is None:
        raise InputError(
            f'"{reference}": the option is sequence=N, 1 to {MOST_SEQUENCE:,} tokens of a window, not "{options}"',
            code="configuration.bad-option",
        )
    return window


def traced_notes(reference: str) -> tuple[str, ...]:
    """Notes on the step of a configuration as it is traced.

    Args:
        reference: of any job

    Returns:
        On the tokens of a sequence, where neither the configuration nor who asks says how many; and on an activation
        that takes more kernels than it needs. None where the job is no configuration.
    """
    if not is_configuration(reference):
        return ()
    read = read_configuration(reference)
    values = {name: value for name, value in read.values.items() if name not in _DTYPES}
    config = _config(values, Path(read.source), _transformers())
    notes = [_separate_activation(config)]
    if read.sequence is None:
        notes.insert(0, assumed_sequence_words(_sequence(config, None, reference), _positions(config)[1]))
    return tuple(filter(None, notes))


_SEPARATE = ("gelu_new", "gelu_fast", "gelu_accurate")
"""GELU by tanh, which transformers computes by several operations (`activations.py`); gelu_pytorch_tanh by one."""


def _separate_activation(config: Any) -> str:
    text = config.get_text_config()
    for key in ("hidden_act", "activation_function", "hidden_activation"):
        if (name := getattr(text, key, None)) in _SEPARATE:
            key = text.attribute_map.get(key, key)
            return (
                f"transformers computes {name} by separate operations, which take time and keep activations: "
                f'"{key}": "gelu_pytorch_tanh" in a config.json is the same function in one kernel'
            )
    return ""


def _positions(config: Any) -> tuple[str, int]:
    """The key of a model's positions, and how many it has: 0 stands for any."""
    text = config.get_text_config()
    key = text.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    key = key if hasattr(text, key) else "max_seq_len"
    return key, max(0, getattr(text, key, None) or 0)


def _sequence(config: Any, window: int | None, reference: str) -> int:
    text, (key, positions) = config.get_text_config(), _positions(config)
    if window is None:
        return usual_sequence(positions or POSITIONS)
    is_rotary = bool(getattr(text, "rope_parameters", None)) or hasattr(text, "rope_theta")
    if window > positions > 0 and not is_rotary:
        raise InputError(
            f'"{reference}": the model has positions for {positions} tokens, not for {window}: take fewer, or raise '
            f"{key} in the file",
            code="configuration.window-too-long",
            sequence=window,
            positions=positions,
        )
    return window


def _make_model(transformers: Any, finder: str, config: Any) -> "nn.Module":
    # Making a model writes into its configuration.
    made: nn.Module = getattr(transformers, finder).from_config(copy.deepcopy(config))
    return made.train()


def _make_data(config: Any, task: str, sequence: int) -> "Dataset[Any]":
    from trimaran.jobs.synthetic import Field, SyntheticRows

    label = Field(below=config.num_labels)
    if task == "image classification":
        size = getattr(config, "image_size", None) or PIXELS
        shape = tuple(size) if isinstance(size, list | tuple) else (size, size)
        pixels = Field(shape=(getattr(config, "num_channels", 3), *shape))
        return SyntheticRows({"pixel_values": pixels, "labels": label})
    tokens = Field(shape=(sequence,), below=config.get_text_config().vocab_size)
    if task == "sequence classification":
        return SyntheticRows({"input_ids": tokens, "labels": label})
    if task == "token classification":
        return SyntheticRows({"input_ids": tokens, "labels": Field(shape=(sequence,), below=config.num_labels)})
    # A masked model is asked for every token here; what a step costs is the same.
    return SyntheticRows({"input_ids": tokens}, same={"labels": "input_ids"})


def _adamw(parameters: "Iterable[nn.Parameter]") -> "Optimizer":
    from torch.optim import AdamW

    return AdamW(parameters, lr=5e-5)
