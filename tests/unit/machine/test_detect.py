import os
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.machine.detect import Processor, cpu_devices, detect_machine, detect_processor, lacks_gpus


def _machine(root: Path, *, quota: str = "max 100000", limit: str = "max") -> Path:
    (root / "proc").mkdir()
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Example 9000\nprocessor\t: 1\nmodel name\t: x\n")
    (root / "proc/meminfo").write_text("MemTotal:        2000 kB\nMemFree:         1000 kB\n")
    (root / "sys/fs/cgroup/cpu.max").write_text(quota)
    (root / "sys/fs/cgroup/memory.max").write_text(limit)
    return root


def test_a_processor_is_read_from_the_system(tmp_path: Path) -> None:
    """2000 kB of memory are 2 048 000 B."""
    processor = detect_processor(_machine(tmp_path))
    assert (processor.name, processor.memory_bytes) == ("Example 9000", 2_048_000)
    assert processor.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("file", "lacks"), [("null", True), ("nvidiactl", False), ("nvhost-gpu", False), ("kfd", False)]
)
def test_a_machine_without_a_file_of_a_driver_has_no_gpu(file: str, lacks: bool, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / file).touch()
    assert lacks_gpus(tmp_path) is lacks


def test_a_container_has_what_it_was_given(tmp_path: Path) -> None:
    """100 ms of processor time every 100 ms is one core; 1 MB of memory."""
    processor = detect_processor(_machine(tmp_path, quota="100000 100000\n", limit="1000000\n"))
    assert (processor.cores, processor.memory_bytes) == (1, 1_000_000)


def test_less_than_a_core_is_still_one(tmp_path: Path) -> None:
    assert detect_processor(_machine(tmp_path, quota="50000 100000")).cores == 1


def test_a_job_of_a_scheduler_has_what_its_own_group_was_given(tmp_path: Path) -> None:
    """The machine gives all; the slice around the job 1.5 MB, the job one core."""
    root = _machine(tmp_path)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/slice/job\n")
    (root / "sys/fs/cgroup/slice/job").mkdir(parents=True)
    (root / "sys/fs/cgroup/slice/memory.max").write_text("1500000\n")
    (root / "sys/fs/cgroup/slice/job/cpu.max").write_text("100000 100000\n")
    processor = detect_processor(root)
    assert (processor.cores, processor.memory_bytes) == (1, 1_500_000)


def test_groups_of_version_1_limit_a_job_too(tmp_path: Path) -> None:
    root = _machine(tmp_path)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("5:cpu,cpuacct:/job\n4:memory:/job\n1:pids:/job\n")
    for folder in ("memory/job", "cpu,cpuacct/job"):
        (root / "sys/fs/cgroup" / folder).mkdir(parents=True)
    (root / "sys/fs/cgroup/memory/job/memory.limit_in_bytes").write_text("1200000\n")
    (root / "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us").write_text("100000\n")
    (root / "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us").write_text("100000\n")
    processor = detect_processor(root)
    assert (processor.cores, processor.memory_bytes) == (1, 1_200_000)


def test_a_system_without_these_files_is_described_all_the_same(tmp_path: Path) -> None:
    processor = detect_processor(tmp_path)
    assert processor.name
    assert processor.memory_bytes > 0


def test_devices_share_the_memory() -> None:
    devices = cpu_devices(Processor(name="x", cores=2, memory_bytes=10_000), 4)
    assert [device.usable_bytes for device in devices] == [2_500] * 4
    assert devices[0].kind == "cpu"
    assert devices[0].source.startswith("measured")


def test_this_machine_is_one_host() -> None:
    cluster = detect_machine().allocate()
    assert cluster.size >= 1
    assert cluster.hosts == (0,) * cluster.size


def test_a_cluster_of_nothing_is_refused() -> None:
    with raises("cluster.no-device", devices=0):
        detect_machine(0)
