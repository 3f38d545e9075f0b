"""Names of precisions, one list for every command, the API, plan files and JSON.

    fp64    every tensor in 64 bits
    fp32    every tensor in 32 bits, products as the framework computes them by default: PyTorch rounds those of
            convolutions and recurrent layers as tf32 does on devices that have it
    tf32    as fp32, with all products on tensor cores that round their inputs to 10 bits of mantissa
    ieee    as fp32, with no product rounded, as `torch.backends.fp32_precision = "ieee"` has it
    bf16    autocast to bfloat16 over fp32 weights
    fp16    autocast to float16 over fp32 weights, losses scaled
    fp8     products of layers in 8 bits, everything else as bf16

Long names ("bfloat16", "float32", "half") are accepted wherever a precision is read. A dtype of one tensor is
something else and keeps torch's name: "float32" is the dtype of a tensor, "fp32" says how a whole step computes.
"""

from collections.abc import Collection
from types import MappingProxyType
from typing import Literal, cast, get_args

from trimaran.base.errors import InputError

Precision = Literal["fp64", "ieee", "fp32", "tf32", "bf16", "fp16", "fp8"]
"""How a step computes."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

ASKED_PRECISIONS: tuple[Precision, ...] = tuple(name for name in PRECISIONS if name != "fp64")
"""Those that commands take; in 64 bits jobs train here (`Job.precision`), and no machine of the catalog is priced."""

_LONG: MappingProxyType[str, Precision] = MappingProxyType(
    {
        "float64": "fp64",
        "double": "fp64",
        "float32": "fp32",
        "float": "fp32",
        "single": "fp32",
        "tensorfloat32": "tf32",
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float8": "fp8",
    }
)
"""Other spellings, in lower case."""

_DTYPES: MappingProxyType[Precision, str] = MappingProxyType(
    {
        "fp64": "float64",
        "ieee": "float32",
        "fp32": "float32",
        "tf32": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp8": "float8",
    }
)


def parse_precision(text: str, *, known: Collection[Precision] = PRECISIONS, what: str = "precision") -> Precision:
    """A precision as people write it.

    Args:
        text: one of `known`, or a long name of it; upper case, hyphens and "torch." do not count
        known: those that may be asked for
        what: is read, for the message

    Raises:
        InputError: it names none of `known`

    Example:
        >>> parse_precision("bfloat16"), parse_precision("torch.float32"), parse_precision("TF32")
        ('bf16', 'fp32', 'tf32')
    """
    named = _short(text)
    if named not in known:
        raise InputError(f'{what} is one of {", ".join(known)}, not "{text}"', code="precision.unknown", precision=text)
    return cast(Precision, named)


def short_spelling(text: str) -> Precision | None:
    """The short name of a precision that is written in another way; None where it is short, or names none.

    Example:
        >>> short_spelling("float16"), short_spelling("fp16"), short_spelling("fast")
        ('fp16', None, None)
    """
    named = _short(text)
    return None if named == text or named not in PRECISIONS else named


def _short(text: str) -> str:
    """The short name that a text means, or the text in plain letters where it means none."""
    plain = str(text).strip().lower().removeprefix("torch.").replace("-", "").replace("_", "")
    return _LONG.get(plain, plain)


def dtype_name(dtype: object) -> str:
    """Torch's name of a dtype, or of its text, without "torch."."""
    return str(dtype).removeprefix("torch.")


def product_dtype(precision: Precision) -> str:
    """Torch's name of the dtype that products of a precision take.

    Example:
        >>> product_dtype("tf32"), product_dtype("bf16")
        ('float32', 'bfloat16')
    """
    return _DTYPES[precision]


def element_bytes(precision: Precision) -> int:
    """Bytes of an element of an activation, and of a parameter as it is sent between ranks.

    Example:
        >>> element_bytes("bf16"), element_bytes("tf32"), element_bytes("fp8")
        (2, 4, 2)
    """
    return {"fp64": 8, "ieee": 4, "fp32": 4, "tf32": 4}.get(precision, 2)


AS_ASKED = "as asked for"
"""Source of a precision that was asked for."""


def precision_words(precision: str, source: str) -> str:
    """A precision for people, with who chose it where nobody asked for it.

    Example:
        >>> precision_words("bf16", AS_ASKED), precision_words("fp32", "as the job says")
        ('bf16', 'fp32 (as the job says)')
    """
    return precision if source == AS_ASKED else f"{precision} ({source})"
