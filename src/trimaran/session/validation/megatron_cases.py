"""What the training tests of Megatron-LM are asked to run, as published in its repository.

A published figure names its test and not the arguments. Those are public facts of a script; they are kept here by name,
as far as memory depends on them, and read into our words. A test that is not listed is read by its name, which says
degrees and main switches in the repository's own manner.
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

Arguments = Mapping[str, str]
"""Arguments by name, without dashes; one without a value has "true"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronCase:
    """A test.

    Attributes:
        family: "gpt", "bert", "moe", "mixtral" or "t5"
        name: of the test
        arguments: as given to the program
        listed: whether the arguments are the published ones, not read from the name
    """

    family: str
    name: str
    arguments: Arguments
    listed: bool


@functools.cache
def _document() -> dict[str, Any]:
    text = resources.files("trimaran.session.validation").joinpath("megatron_cases.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def _bases() -> dict[str, Arguments]:
    """What all tests of a family are given."""
    return {family: _arguments(line) for family, line in _document()["base"].items()}


@functools.cache
def _cases() -> dict[tuple[str, str], Arguments]:
    return {
        (family, name): {**base, **_arguments(group["arguments"])}
        for family, base in _bases().items()
        for group in _document()[family]
        for name in group["cases"]
    }


def _arguments(line: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in line.split())
    return {name: value if sign else "true" for name, sign, value in pairs}


def megatron_case(path: str) -> MegatronCase | None:
    """The test whose figures a file of the repository holds.

    Args:
        path: of the file, such as "tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2/golden_values_lts.json"

    Returns:
        The test; None where the path names none.

    Example:
        >>> megatron_case("tests/functional_tests/test_cases/gpt/gpt3_mcore_tp4_pp1/x.json").arguments["hidden-size"]
        '512'
    """
    match = re.search(r"test_cases/([^/]+)/([^/]+)", path)
    if match is None:
        return None
    family, name = match.groups()
    known = _cases().get((family, name))
    if known is not None:
        return MegatronCase(family=family, name=name, arguments=known, listed=True)
    return MegatronCase(family=family, name=name, arguments=_from_name(family, name), listed=False)


_SWITCHES = {
    "dist_optimizer": "use-distributed-optimizer",
    "sequence_parallel": "sequence-parallel",
    "swiglu": "swiglu",
    "untie": "untie-embeddings-and-output-weights",
    "disable_bias": "disable-bias-linear",
    "qk_layernorm": "qk-layernorm",
    "cross_entropy_loss_fusion": "cross-entropy-loss-fusion",
    "fsdp": "use-megatron-fsdp",
}


def _from_name(family: str, name: str) -> dict[str, str]:
    base = {
        "num-layers": "24" if family == "bert" else "12",
        "hidden-size": "1024" if family == "bert" else "512",
        "num-attention-heads": "16" if family == "bert" else "8",
        "micro-batch-size": "4",
        "global-batch-size": "128" if family == "bert" else "32",
        "seq-length": "512" if family == "bert" else "1024",
        "transformer-impl": "transformer_engine" if "_te_" in name else "local",
        "fixed-workspace": "true",
    }
    if family == "t5":  # two stacks, with names of their own
        base = {**_bases()[family], "transformer-impl": base["transformer-impl"], "fixed-workspace": "true"}
    degrees = {
        "tensor-model-parallel-size": r"(?:^|_)tp(\d+)",
        "pipeline-model-parallel-size": r"(?:^|_)pp(\d+)",
        "context-parallel-size": r"(?:^|_)cp(\d+)",
        "expert-model-parallel-size": r"(?:^|_)ep(\d+)",
        "expert-tensor-parallel-size": r"(?:^|_)etp(\d+)",
        "num-virtual-stages-per-pipeline-rank": r"(?:^|_)vp(\d+)",
        "num-experts": r"(\d+)experts",
    }
    found = {key: re.search(pattern, name) for key, pattern in degrees.items()}
    base |= {key: match.group(1) for key, match in found.items() if match is not None}
    base |= {argument: "true" for word, argument in _SWITCHES.items() if word in name}
    if "rope" in name:
        base["position-embedding-type"] = "rope"
    if "full_recompute" in name:
        base["recompute-granularity"] = "full"
    if "resume" not in name and "nondeterministic" not in name:
        base["attention-backend"] = "unfused"
    return base
