"""The input pipeline as users write it."""

import pytest

from trimaran.base.errors import InputError
from trimaran.jobs.resolve import JobSource
from trimaran.machine.find import find_machine
from trimaran.planner.pins import Pins
from trimaran.planning.input_pipeline import pipeline_of
from trimaran.planning.requests import Loading, check_loading, parse_request
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran_studies.facts.loaders import most_samples_per_s

MACHINE = find_machine("dgx1-v100")


def _pipeline(workers: int | None = None, **said: object) -> InputPipeline:
    loading = Loading(**said)  # type: ignore[arg-type]
    check_loading(loading, workers=workers)
    found = pipeline_of(
        loading, JobSource(reference="resnet50"), MACHINE, workers=workers, sample_bytes=lambda: 600_000
    )
    assert found is not None
    return found


def test_a_published_row_gives_the_rate_of_a_worker() -> None:
    feed = _pipeline(loader="1070 images/s with 8 workers")
    assert feed.samples.prepare.seconds == pytest.approx(8 / 1070)
    assert feed.cores == MACHINE.node.cpu_cores - MACHINE.node.devices


def test_a_rate_of_a_node_is_shared() -> None:
    feed = _pipeline(loader="2,000 images/s")
    assert most_samples_per_s(feed, devices=8) == pytest.approx(2000.0)
    slow_disk = _pipeline(loader="2,000 images/s", disk="100 MB/s", sample_size="110 kB")
    assert most_samples_per_s(slow_disk, devices=8) == pytest.approx(100e6 / 110e3)


def test_a_library_decodes_on_all_cores() -> None:
    feed = _pipeline(loader="dali-cpu")
    assert most_samples_per_s(feed, devices=8) == pytest.approx(205.0 * MACHINE.node.cpu_cores, rel=0.01)
    assert most_samples_per_s(_pipeline(loader="dali-cpu", host_cores=10), devices=8) == pytest.approx(2050.0, rel=0.01)


@pytest.mark.parametrize(
    ("said", "workers", "code"),
    [
        ({}, 4, "loading.no-cost"),
        ({"host_cores": 4}, None, "loading.no-cost"),
        ({"copies_ahead": 0}, 4, "loading.no-cost"),
        ({"disk": "1GB/s"}, None, "loading.disk-and-size"),
        ({"decode": "1ms", "sample_size": "1kB"}, None, "loading.disk-and-size"),
        ({"disk": "1GB/s", "sample_size": "0kB"}, None, "loading.no-sample-size"),
        ({"loader": "9 images/s", "decode": "1ms"}, None, "loading.loader-and-decode"),
        ({"loader": "9 images/s"}, 4, "loading.rate-of-node"),
        ({"loader": "9 images/s", "host_cores": 4}, None, "loading.rate-of-node"),
        ({"disk": "1GB/s", "sample_size": "100kB", "host_cores": 4}, None, "loading.cores-unused"),
        ({"loader": "fast"}, None, "loading.unknown-loader"),
        ({"loader": "0 images/s"}, None, "loading.unknown-loader"),
        ({"loader": "9 images/s with 0 workers"}, None, "loading.unknown-loader"),
        ({"loader": "measured"}, None, "loading.synthetic-data"),
    ],
)
def test_what_contradicts_itself_or_changes_nothing_is_refused(
    said: dict[str, object], workers: int | None, code: str
) -> None:
    with pytest.raises(InputError) as caught:
        _pipeline(workers, **said)
    assert caught.value.code == code


def test_here_loading_is_measured() -> None:
    with pytest.raises(InputError, match="--decode is for plans with --cluster"):
        parse_request(loading=Loading(decode="1ms"))


def test_workers_on_a_target_cluster_need_the_cost_of_loading() -> None:
    with pytest.raises(InputError, match="give --loader or --decode"):
        parse_request(cluster="dgx1-v100", pins=Pins(workers=4))
    asked = parse_request(cluster="dgx1-v100", pins=Pins(workers=4), loading=Loading(decode="1ms"))
    assert asked.pins.workers == 4
