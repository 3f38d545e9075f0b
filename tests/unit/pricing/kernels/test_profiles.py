import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, TrimaranError
from trimaran.graph.kernels.workload import WorkKind
from trimaran.pricing.kernels.corrections import read_kineto


def _event(category: str, name: str, start_us: float, length_us: float, external: int | None = None) -> dict[str, Any]:
    arguments = {} if external is None else {"External id": external}
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": length_us, "args": arguments}


EVENTS = [
    _event("user_annotation", "ProfilerStep#3", 0, 1000),
    _event("user_annotation", "ProfilerStep#4", 1000, 1000),
    _event("cpu_op", "aten::cudnn_convolution", 10, 5, 1),
    _event("kernel", "volta_sgemm_128x64_nn", 20, 300, 1),
    _event("cpu_op", "aten::addmm", 320, 5, 2),
    _event("kernel", "volta_sgemm_128x64_nn", 330, 100, 2),
    _event("kernel", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 1100, 200),
    _event("kernel", "void at::native::vectorized_elementwise_kernel<4>", 1400, 40),
    _event("gpu_memcpy", "Memcpy HtoD", 1500, 900),
]


def _write(folder: Path, document: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_kernels_are_told_apart_by_the_operators_that_asked_for_them(tmp_path: Path) -> None:
    """Two steps: the same kernel of 300 us is a convolution's, of 100 us a product's; halves of each a step."""
    found = read_kineto(_write(tmp_path, {"traceEvents": EVENTS}))
    assert found.kinds_s == {
        WorkKind.CONVOLUTION: pytest.approx(150e-6),
        WorkKind.PRODUCT: pytest.approx(50e-6),
        WorkKind.NORMALIZATION: pytest.approx(100e-6),
        WorkKind.ELEMENTWISE: pytest.approx(20e-6),
    }
    assert (found.steps, found.step_s, found.device_s) == (2, pytest.approx(1e-3), pytest.approx(320e-6))


def test_a_packed_profile_reads_as_a_plain_one(tmp_path: Path) -> None:
    plain = _write(tmp_path, {"traceEvents": EVENTS})
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_kineto(packed).kinds_s == read_kineto(plain).kinds_s


@pytest.mark.parametrize(
    ("document", "code", "figures"),
    [
        ([], "profile.no-trace", {"match": "torch.profiler"}),
        ({"traceEvents": [EVENTS[0]]}, "profile.no-kernels", {"match": '"kernel"'}),
        ({"traceEvents": EVENTS[2:]}, "profile.no-steps", {"match": "ProfilerStep"}),
    ],
)
def test_what_is_no_profile_of_a_gpu_is_refused(
    tmp_path: Path, document: object, code: str, figures: dict[str, Any]
) -> None:
    with raises(code, **figures):
        read_kineto(_write(tmp_path, document))


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with raises("file.unreadable", match=r"none\.json"):
        read_kineto(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with raises("file.malformed", CorruptDataError, match=r"broken\.json"):
        read_kineto(broken)


def test_steps_may_be_given(tmp_path: Path) -> None:
    assert read_kineto(_write(tmp_path, {"traceEvents": EVENTS[2:]}), steps=4).steps == 4


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ('"dur": 300', '"dur": NaN', "file.malformed"),
        ('"dur": 300', '"dur": 1e999', "profile.no-trace"),
        ('"dur": 300', '"dur": "long"', "profile.no-trace"),
        ('"dur": 300', '"dur": 1e300', "profile.no-trace"),
        ('"args": {"External id": 1}', '"args": {"External id": []}', "profile.no-trace"),
        ('"name": "volta_sgemm_128x64_nn"', '"name": ' + "[" * 5000, "file.too-deep"),
    ],
)
def test_a_figure_that_no_profiler_writes_is_refused(tmp_path: Path, before: str, after: str, code: str) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    assert before in text
    path = tmp_path / "trace.json"
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with raises(code, TrimaranError, match=r"trace\.json"):
        read_kineto(path)


def test_events_without_times_are_no_step(tmp_path: Path) -> None:
    events = [{name: value for name, value in event.items() if name != "ts"} for event in EVENTS]
    with raises("profile.no-duration"):
        read_kineto(_write(tmp_path, {"traceEvents": events}))


@pytest.mark.sweep
def test_a_profile_of_a_million_events_is_read(tmp_path: Path) -> None:
    """Each event has some 25 values, as those of kernels do."""
    more = ", ".join(f'"figure {number}": {number}' for number in range(20))
    event = '{"cat": "kernel", "name": "gemm", "ts": 5, "dur": 2, "args": {"External id": 1, ' + more + "}}"
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ",\n".join([event] * 1_200_000) + "]}")
    assert read_kineto(path, steps=1).device_s == pytest.approx(2.4)
