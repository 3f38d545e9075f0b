"""The input pipeline of a node of a machine of the catalog: what its devices share, and what bounds their step."""

import pytest

from trimaran.machine.find import find_machine
from trimaran.pricing.input_pipeline import InputPipeline, given_samples
from trimaran_studies.facts.loaders import photograph_feed, rate_of_host

NODE = find_machine("dgx1-v100").node


def _pipeline(workers: int | None, *, cores: int = 40, copies_ahead: int = 1, **costs: float) -> InputPipeline:
    samples = given_samples(**costs, source="example")  # type: ignore[arg-type]
    return InputPipeline(samples=samples, workers=workers, copies_ahead=copies_ahead, cores=cores, source="example")


def test_devices_share_the_cores_of_their_node() -> None:
    """32 samples of 10 ms of a core: 320 ms of work a device. 20 cores: 16 ms for one device, 128 ms for eight."""
    feed = _pipeline(40, cores=20, decode_s=10e-3)
    one, eight = (feed.fed(0.05, batch=32, devices=devices) for devices in (1, 8))
    assert (one.seconds, one.limit) == (0.05, None)
    assert eight.seconds == pytest.approx(0.128)
    assert eight.limit == "cores"


def test_workers_take_turns() -> None:
    """320 ms of reading by 4 workers: 80 ms, whatever other devices read."""
    feed = _pipeline(4, read_s=10e-3)
    for devices in (1, 8):
        fed = feed.fed(0.05, batch=32, devices=devices)
        assert fed.seconds == pytest.approx(0.08)
        assert fed.limit == "workers"


def test_a_disk_is_used_in_turn_however_many_workers_there_are() -> None:
    """2 devices of 32 samples of 1 ms of the disk."""
    for workers in (2, 16):
        fed = _pipeline(workers, shared_s=1e-3).fed(0.05, batch=32, devices=2)
        assert fed.seconds == pytest.approx(0.064)
        assert fed.limit == "shared"


def test_in_line_loading_adds_to_the_step_and_ranks_read_at_the_same_time() -> None:
    """32 samples of 10 ms come on top; of a disk, those of both devices do; 8 devices have 4 cores: twice as long."""
    assert _pipeline(0, read_s=10e-3).fed(0.05, batch=32, devices=2).seconds == pytest.approx(0.37)
    disk = _pipeline(0, shared_s=1e-3).fed(0.05, batch=32, devices=2)
    assert (disk.seconds, disk.limit) == (pytest.approx(0.114), "thread")
    assert _pipeline(0, cores=4, decode_s=1e-3).fed(0.05, batch=32, devices=8).seconds == pytest.approx(0.114)


def test_as_many_workers_as_the_step_needs() -> None:
    """320 ms of reading in 85 % of 50 ms: 8 workers; with cores for 100 ms of decoding 4 are enough."""
    assert _pipeline(None, read_s=10e-3).fed(0.05, batch=32, devices=1).workers == 8
    assert _pipeline(None, cores=4, decode_s=10e-3).fed(0.01, batch=32, devices=1).workers == 5


def test_copies_share_the_links_of_a_node_and_come_on_top_unless_they_go_ahead() -> None:
    """64 samples of 1 MB: 12.4 GB/s to one device, 6.2 to each of eight."""
    samples = given_samples(sample_bytes=1_000_000, source="example")
    ahead, behind = (
        InputPipeline(samples=samples, workers=1, copies_ahead=count, cores=1, node=NODE, source="example")
        for count in (1, 0)
    )
    eight_s = 64e6 / 6.2e9
    assert ahead.fed(0.05, batch=64, devices=8).wait_s == 0.0
    assert ahead.fed(0.005, batch=64, devices=8).seconds == pytest.approx(eight_s)
    assert ahead.fed(0.005, batch=64, devices=8).limit == "copies"
    assert behind.fed(0.05, batch=64, devices=8).seconds == pytest.approx(0.05 + eight_s)
    assert behind.fed(0.05, batch=64, devices=1).wait_s < behind.fed(0.05, batch=64, devices=8).wait_s


def test_a_rate_of_a_node_and_that_of_its_cores_are_the_same_model() -> None:
    cores = photograph_feed(NODE, loader="torchvision", cores=10)
    rate = rate_of_host(10 * 110.0, source="example")
    for devices in (1, 4, 8):
        assert cores.fed(0.05, batch=64, devices=devices).wait_s == pytest.approx(
            rate.fed(0.05, batch=64, devices=devices).wait_s
        )


def test_cores_that_train_decode_less() -> None:
    """Two processes compute 50 ms each on 2 cores; their 2 x 16 samples of 5 ms need 160 ms more: 130 ms a step."""
    feed = _pipeline(4, cores=2, decode_s=5e-3)
    assert feed.fed(0.05, batch=16, devices=2, busy_s=0.1).seconds == pytest.approx(0.13)
