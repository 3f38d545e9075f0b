"""Logs of nccl-tests in the forms that its versions print, and what a log does to a prediction."""

from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.collectives.corrections import corrected_by, read_logs

# Columns of 2.0 to 2.10: no root for all-reduce, "error" behind.
OLD = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 0
#
# Using devices
#   Rank  0 Pid 1124 on localhost device  0 [0x00] A100-SXM4-40GB
#   Rank  1 Pid 1124 on localhost device  1 [0x00] A100-SXM4-40GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
host:34:34 [0] NCCL INFO Launch mode Parallel
           0             0   float     sum    35.20    0.00    0.00    N/A    34.05    0.00    0.00    N/A
     1048576        262144   float     sum    74.78   14.02   24.54    N/A    76.17   13.77   24.09    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 12.27
"""

# 2.13 and later: root and "#wrong"; a process a device, by MPI with its own words before each line.
NEW = """\
[1,0]<stdout>:# nccl-tests version 2.17.6 nccl-headers=22808 nccl-library=22808
[1,0]<stdout>:# Collective test starting: all_gather_perf
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
[1,0]<stdout>:#  Rank  0 Group  0 Pid   4934 on node-a device  0 [0000:c4:00] NVIDIA H200
[1,0]<stdout>:#  Rank  1 Group  0 Pid   4937 on node-b device  0 [0000:c5:00] NVIDIA H200
[1,0]<stdout>:#                                         out-of-place                    in-place
[1,0]<stdout>:#     size    count     type   redop   root    time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:#      (B)    (elements)                          (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:      1024       16    float    none     -1   28.39    0.04    0.03      0    28.07    0.04    0.03      0
[1,0]<stdout>:      2048       32    float    none     -1   28.29    0.07    0.07      0    28.24    0.07    0.07      0
[1,0]<stdout>:# Out of bounds values : 0 OK
"""


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_an_old_log_from_one_process(tmp_path: Path) -> None:
    (log,) = read_logs(_write(tmp_path / "nccl_allreduce.log", OLD))
    assert (log.op, log.devices, log.nodes, log.timing, log.device) == ("all_reduce", 2, 1, "single", "A100-SXM4-40GB")
    assert log.points == ((1048576.0, pytest.approx(74.78e-6)),)


def test_a_new_log_under_a_launcher(tmp_path: Path) -> None:
    (log,) = read_logs(_write(tmp_path / "run.log", NEW))
    assert (log.op, log.devices, log.nodes, log.timing) == ("all_gather", 2, 2, "processes")
    assert log.points == ((1024.0, pytest.approx(28.39e-6)), (2048.0, pytest.approx(28.29e-6)))


def test_a_log_of_several_runs(tmp_path: Path) -> None:
    second = NEW.replace("all_gather_perf", "alltoall_perf")
    assert [log.op for log in read_logs(_write(tmp_path / "run.log", NEW + second))] == ["all_gather", "all_to_all"]


@pytest.mark.parametrize(
    ("before", "after", "code", "figures"),
    [
        (
            "   74.78   14.02",
            "   fast   14.02",
            "nccl-log.not-a-number",
            {"match": 'allreduce.log:12.*"fast"', "line": 12},
        ),
        (
            "   74.78   14.02",
            "   -1.0   14.02",
            "nccl-log.not-positive",
            {"match": r"allreduce.log:12.*\b0\b.*-1.0", "line": 12},
        ),
        (
            "   76.17   13.77   24.09    N/A",
            "",
            "nccl-log.too-few-columns",
            {"match": r'allreduce.log:12.*\b8\b.*"time"', "line": 12},
        ),
        ("nGpus 2", "nGpus 1", "nccl-log.one-device", {}),
    ],
)
def test_a_wrong_log_is_named_by_line_and_value(
    tmp_path: Path, before: str, after: str, code: str, figures: dict[str, Any]
) -> None:
    text = OLD.replace(before, after)
    if "nGpus" in before:
        text = text.replace("#   Rank  1 Pid 1124 on localhost device  1 [0x00] A100-SXM4-40GB\n", "")
    with raises(code, **figures):
        read_logs(_write(tmp_path / "allreduce.log", text))


def test_what_is_no_log_is_said_so(tmp_path: Path) -> None:
    with raises("nccl-log.no-table"):
        read_logs(_write(tmp_path / "notes.txt", "hello\n"))
    with raises("file.unreadable"):
        read_logs(tmp_path / "missing.log")
    with raises("nccl-log.unknown-collective"):
        read_logs(_write(tmp_path / "run.log", OLD))


def test_a_log_overrules_the_prediction(tmp_path: Path) -> None:
    """The run took 74.78 us at 1 MiB. What was run is believed to 5 %; another operation strays by the same factor."""
    machine = find_machine("dgx-a100-40gb")
    correction = corrected_by(read_logs(_write(tmp_path / "allreduce.log", OLD)), machine=machine)
    told = collective_cost("all_reduce", 2**20, machine=machine, devices=2, library="nccl-tests", correction=correction)
    assert told.seconds == pytest.approx(74.78e-6, rel=1e-6)
    assert told.high / told.seconds == pytest.approx(1.0513, rel=1e-3)
    assert told.source.startswith("measured: nccl-tests log")
    before = collective_cost("all_reduce", 2**20, machine=machine, devices=2, library="nccl-tests")
    other = collective_cost("all_gather", 2**20, machine=machine, devices=2, library="nccl-tests")
    lent = collective_cost("all_gather", 2**20, machine=machine, devices=2, library="nccl-tests", correction=correction)
    assert lent.seconds / other.seconds == pytest.approx(told.seconds / before.seconds)
    assert lent.source.startswith("calibrated: nccl-tests log")


def test_a_log_of_another_machine_is_refused(tmp_path: Path) -> None:
    text = OLD.replace("nGpus 2", "nGpus 16")
    with raises("nccl-log.other-machine", match="allreduce.log", devices=16):
        corrected_by(read_logs(_write(tmp_path / "allreduce.log", text)), machine=find_machine("dgx-a100-40gb"))
