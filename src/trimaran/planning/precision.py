"""Precision of a job on a catalog machine: the requested one, the job's, or a rule.

One rule for every command and both backends of `plan`:

    1  the requested one
    2  the job's: `Job.precision`, or the dtype of a Hugging Face configuration; for the analytical model a dtype of 16
       bits only: fp32 there says how weights are kept, and rule 3 holds
    3  of networks by name and of configurations without a dtype, which say nothing: decoders in bf16, as they are
       usually trained (fp16 on devices without it, fp32 on devices without either), every other network in fp32,
       PyTorch's own default

A job in fp32 whose file sets torch to round all products (`torch.set_float32_matmul_precision("high")`) is in tf32, one
that sets it to round none (`torch.backends.fp32_precision = "ieee"`) in ieee.

An assumed precision is printed with the answer. The analytical model prices products in 32, 16 and 8 bits, the kernel
model those in 16 and 32; others are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.precision import AS_ASKED, ASKED_PRECISIONS, Precision, parse_precision
from trimaran.graph.kernels.workload import KERNEL_PRECISIONS
from trimaran.jobs.huggingface import dtype_of, is_configuration, read_configuration
from trimaran.jobs.resolve import resolve
from trimaran.machine.types import Device
from trimaran.networks.names import parse_network
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.analytical.huggingface_config import is_known

DECODERS = frozenset({"gpt2", "gpt3", "gpt", "opt", "mpt", "llama", "llama1", "llama2", "llama3"})
"""Families of decoders: a shape says everything about them."""

ANALYTICAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "tf32", "fp32")
"""Those that the analytical model of transformers prices. Its constants are of steps in 16 and 8 bits; in tf32 and fp32
products are taken to reach the same share of the peak there."""

_CHANGE = "--precision changes it"

_IN_8_BITS = (
    "; fp8 is known of decoders by their shape, as `trimaran plan` takes them without --software pytorch and options "
    "of loading such as --loader"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPrecision:
    """A precision, and who chose it.

    Attributes:
        name: of the precision
        source: "as asked for", "as the job says", or the assumption and how to change it
    """

    name: Precision
    source: str = AS_ASKED


def choose_precision(
    reference: str,
    asked: str | None,
    device: Device,
    known: Sequence[Precision] = KERNEL_PRECISIONS,
    *,
    job: Job | None = None,
    by_shape: bool = False,
) -> ChosenPrecision:
    """The precision in which a job is priced on a device.

    Args:
        reference: of the job
        asked: as it was typed; None: nothing was
        device: on which it computes
        known: those that the model prices: `KERNEL_PRECISIONS` or `ANALYTICAL_PRECISIONS`
        job: of the reference; None: it is made where it decides
        by_shape: it is for the analytical model of decoders

    Raises:
        InputError: no such precision, or one that the device or the model does not have

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> [choose_precision("gpt2", None, find_device(name)).name for name in ("h100", "v100", "titan-x")]
        ['bf16', 'fp16', 'fp32']
        >>> choose_precision("vgg16", "bfloat16", find_device("h100"))
        ChosenPrecision(name='bf16', source='as asked for')
    """
    if asked is not None:
        chosen = ChosenPrecision(name=parse_precision(asked, known=ASKED_PRECISIONS))
    elif by_shape and parse_network(reference) is None:
        chosen = _of_shape(reference, device)
    else:
        chosen = _of_job(reference, device, job)
    if chosen.name not in known:
        raise InputError(_unpriced(reference, chosen, known), code="precision.not-priced", precision=chosen.name)
    device.check_computes(chosen.name)
    return chosen


def settle_precision(request: PlanRequest, chosen: ChosenPrecision) -> PlanRequest:
    """A request that says the precision that was chosen, and who chose it; one that says it already stays.

    Args:
        request: as it was asked
        chosen: for its job and its machine
    """
    if request.precision == chosen.name:
        return request
    return replace(request, precision=chosen.name, precision_source=chosen.source)


def _of_job(reference: str, device: Device, job: Job | None) -> ChosenPrecision:
    network = parse_network(reference)
    configured = network is None and is_configuration(reference)
    if configured and is_known(read_configuration(reference).values.get("model_type")):
        return _of_shape(reference, device)  # as the analytical model takes it
    if network is None:
        name = (job or resolve(reference)).precision
        return ChosenPrecision(name=_as_set(name, device), source=f"as the job says; {_CHANGE}")
    if network.name not in DECODERS:
        default = "PyTorch's default"
        if "tf32" in device.compute:
            default = "the framework's default, with tf32 where it rounds to that"
        return ChosenPrecision(name="fp32", source=f"assumed: {default}; {_CHANGE}")
    return _usual(device)


def _as_set(precision: Precision, device: Device) -> Precision:
    """The precision of a job whose file was read: in fp32 with torch's settings, where the device has tf32."""
    if precision != "fp32" or "tf32" not in device.compute:
        return precision
    import torch  # imported late: this module is read without it

    backends: Any = torch.backends
    if backends.cuda.matmul.fp32_precision == "tf32":
        return "tf32"
    return "fp32" if backends.cudnn.conv.fp32_precision == "tf32" else "ieee"


def _of_shape(reference: str, device: Device) -> ChosenPrecision:
    """Of a job whose shape is known: the dtype of 16 bits that its configuration names, or the usual one."""
    if not is_configuration(reference):
        own = resolve(reference).precision
        return (
            _usual(device, "transformers")
            if own == "fp32"
            else ChosenPrecision(name=own, source=f"as the job says; {_CHANGE}")
        )
    named: Mapping[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
    values = read_configuration(reference).values
    said = named.get(dtype_of(values))
    if said is not None and said in device.compute:
        return ChosenPrecision(name=said, source=f"as the configuration says; {_CHANGE}")
    return _usual(device, _called(values))


def _called(values: Mapping[str, Any]) -> str:
    """What networks of a configuration are called."""
    return "encoders" if values.get("model_type") == "bert" else "decoders"


def _usual(device: Device, networks: str = "decoders") -> ChosenPrecision:
    usual: tuple[Precision, ...] = ("bf16", "fp16")
    named = next((each for each in usual if each in device.compute), None)
    return ChosenPrecision(name=named or "fp32", source=f"assumed: usual for {networks}; {_CHANGE}")


def _unpriced(reference: str, chosen: ChosenPrecision, known: Sequence[Precision]) -> str:
    if known == ANALYTICAL_PRECISIONS:
        return (
            f"{reference} is planned by the analytical model here, whose constants are fitted to steps in "
            f"{', '.join(known)}, not in {chosen.name}: ask for one of these, or for up to 64 devices and 5 billion "
            f"parameters, where every operation is priced, in {', '.join(KERNEL_PRECISIONS)}"
        )
    told = "as asked for" if chosen.source == AS_ASKED else "as the job computes"
    return (
        f"{chosen.name}, {told}, is not known of {reference}, whose operations are priced one by one in "
        f"{', '.join(known)}: ask for one of these (--precision){_IN_8_BITS if chosen.name == 'fp8' else ''}"
    )
