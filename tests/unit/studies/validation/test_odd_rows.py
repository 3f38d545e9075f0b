"""Rows as nobody thought of them: each is answered or skipped with a reason, and none ends a run. Our own faults do."""

from typing import NoReturn

import pytest

from trimaran.base.errors import EnvironmentProblem, InfeasibleError, TrimaranError
from trimaran_studies.time_to_train import from_tables
from trimaran_studies.validation import collectives, memory, model_parallel
from trimaran_studies.validation import validate as validation
from trimaran_studies.validation.measurement import Answer, Row
from trimaran_studies.validation.validate import answer

_MEGATRON = "tests/functional_tests/test_cases"


def _memory(path: str, unit: str = "bytes") -> Row:
    fields = {"source_repo": "NVIDIA/Megatron-LM", "source_path": f"{_MEGATRON}/{path}", "gpu": "H100 80GB"}
    return Row(row_id="odd", family="peak_memory", fields=fields, measured=4e9, unit=unit, anchor=None)


def test_a_t5_test_that_is_not_listed_is_told_by_its_name() -> None:
    """Two stacks of twelve layers, divided as the name says: less than undivided."""
    whole = answer(_memory("t5/t5_220m_te_tp1_pp1_new/golden_values.json"), anchor="none")
    divided = answer(_memory("t5/t5_220m_te_tp4_pp1_new/golden_values.json"), anchor="none")
    assert whole.predicted is not None
    assert divided.predicted is not None
    assert divided.predicted < whole.predicted
    assert whole.low is not None
    assert whole.high is not None
    assert whole.low < whole.predicted < whole.high


@pytest.mark.parametrize("unit", ["", "B", "GiB per GPU (A100 80GB)"])
def test_units_of_memory(unit: str) -> None:
    """Bytes where none is given; further words do not matter."""
    found = answer(_memory("gpt/gpt3_mcore_te_tp2_pp2/golden_values.json", unit), anchor="none")
    in_bytes = answer(_memory("gpt/gpt3_mcore_te_tp2_pp2/golden_values.json"), anchor="none")
    assert found.predicted is not None
    assert in_bytes.predicted is not None
    assert found.predicted * (2**30 if "GiB" in unit else 1) == pytest.approx(in_bytes.predicted)


def test_a_program_that_is_not_modelled_is_skipped() -> None:
    """A network of state spaces is no GPT, whatever degrees its test's name has."""
    found = answer(_memory("hybrid/hybrid_mr_mcore_te_tp1_pp1/golden_values.json"), anchor="none")
    assert found.predicted is None
    assert found.skipped


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "resnet50"},
        {"model": "resnet50", "gpu": "V100", "n_gpus": "many"},
        {"model": "resnet50", "gpu": "V100", "n_gpus": "8", "batch_per_gpu": "0"},
        {"model": "bert", "gpu": "V100", "seq_len": "long", "source_repo": "NVIDIA/DeepLearningExamples"},
        {"op": "hypercube", "bytes": "8", "n_gpus": "8", "gpu": "V100"},
    ],
)
@pytest.mark.parametrize("family", ["dp_throughput", "single_gpu_time", "peak_memory", "mp_step_time", "collectives"])
def test_nothing_ends_a_run(fields: dict[str, str], family: str) -> None:
    """Every answer has a figure with an interval around it, or a reason why there is none."""
    row = Row(row_id="odd", family=family, fields=fields, measured=1.0, unit="images/s", anchor=None)
    found = answer(row, anchor="single")
    if found.predicted is None:
        assert found.skipped
    else:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.predicted <= found.high


_STEP = {"model": "resnet50", "gpu": "V100", "machine": "DGX-1", "n_gpus": "8", "batch_per_gpu": "64"}
_PLANTED = {
    "dp_throughput": (validation, "row_step"),
    "single_gpu_time": (validation, "recipe_of"),
    "peak_memory": (memory, "_predict"),
    "mp_step_time": (model_parallel, "transformer_run"),
    "collectives": (collectives, "_meaning"),
    "time_to_train": (from_tables, "understand"),
}


def _ask(family: str) -> Answer:
    fields = {**_STEP, "op": "all_reduce", "bytes": "8", "source_repo": "NVIDIA/DeepLearningExamples"}
    unit = "bytes" if family == "peak_memory" else "s"
    row = Row(row_id="r7", family=family, fields=fields, measured=1.0, unit=unit, anchor=None)
    return answer(row, anchor="none")


@pytest.mark.parametrize("fault", [TypeError("planted"), KeyError("planted"), ZeroDivisionError("planted")])
@pytest.mark.parametrize("family", _PLANTED)
def test_a_fault_of_ours_is_not_a_skipped_row(family: str, fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run with exit code 1, the row and what was raised."""
    _plant(family, fault, monkeypatch)
    with pytest.raises(TrimaranError) as told:
        _ask(family)
    assert (told.value.code, told.value.exit_code) == ("validate.predictor-failed", 1)
    assert told.value.figures == {"row": "r7"}
    assert type(fault).__name__ in told.value.message
    assert told.value.__cause__ is fault


@pytest.mark.parametrize("family", _PLANTED)
def test_what_this_machine_lacks_is_not_a_skipped_row(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is skipped where it cannot be predicted, not where the predictor cannot run."""
    _plant(family, EnvironmentProblem("planted"), monkeypatch)
    with pytest.raises(EnvironmentProblem):
        _ask(family)


@pytest.mark.parametrize("family", _PLANTED)
def test_what_cannot_be_run_is_skipped(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(family, InfeasibleError("planted"), monkeypatch)
    found = _ask(family)
    assert (found.predicted, found.skipped) == (None, "planted")


def _plant(family: str, fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> NoReturn:
        raise fault

    monkeypatch.setattr(*_PLANTED[family], failing)
