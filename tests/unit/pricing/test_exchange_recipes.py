"""Who exchanges gradients how, and what follows for calls."""

import pytest
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.pricing.exchange.costs import call_price, handling_s, straggling
from trimaran.pricing.exchange.frameworks import (
    BYTEPS,
    DDP,
    FLAT,
    HOROVOD,
    KVSTORE_NCCL,
    RECIPES,
    SERVER,
    STAR,
    ExchangeRecipe,
    recipe_of,
)
from trimaran.pricing.input_pipeline import LOADERS
from trimaran.pricing.kernels.software import Software
from trimaran_studies.facts.loaders import loader_of, most_samples_per_s, photograph_feed, rate_of_host


@pytest.mark.parametrize(
    ("framework", "year", "name"),
    [
        ("pytorch", 2024.0, "ddp"),
        ("tensorflow", 2017.3, "tf-replicated"),
        ("tensorflow", 2020.0, "horovod"),
        ("tensorflow", 2021.5, "horovod-0.21"),
        ("mxnet", 2018.0, "kvstore-nccl"),
        ("mindspore", 2020.7, "flat"),
        ("oneflow", 2020.7, "fused"),
        ("of a friend", 2024.0, "ddp"),
    ],
)
def test_a_framework_of_a_year_has_its_recipe(framework: str, year: float, name: str) -> None:
    assert recipe_of(Software(framework=framework, year=year)).name == name


def test_libraries_may_name_one() -> None:
    assert recipe_of(Software(framework="pytorch", year=2019.0, libraries="apex")).name == "apex"
    assert recipe_of(Software(framework="mxnet", year=2020.0, libraries="horovod-tuned")).name == "horovod-tuned"


def test_other_methods_do_not_depend_on_the_framework() -> None:
    assert recipe_of(Software(), "kvstore").name == "kvstore-device"
    with raises("exchange.unknown-sync"):
        recipe_of(Software(), "carrier pigeon")  # type: ignore[arg-type]


def test_every_recipe_has_a_source() -> None:
    assert all(recipe.source and recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("recipe", [*RECIPES.values(), STAR, SERVER, BYTEPS], ids=lambda recipe: recipe.name)
def test_times_of_calls_are_between_ends_with_a_source(recipe: ExchangeRecipe) -> None:
    """What source code does not say has two ends; a time of a call without ends would be somebody's guess."""
    known = dict(recipe.unknowns)
    for name in ("call_s", "device_s", "copy_s"):
        if getattr(recipe, name):
            assert name in known, name
    for name, unknown in known.items():
        fast, usual, slow = (getattr(recipe.at(end), name) for end in ("fast", "typical", "slow"))
        assert min(fast, slow) <= usual <= max(fast, slow)
        assert unknown.source


def test_one_process_calls_for_all_devices_of_its_node() -> None:
    one, eight = (KVSTORE_NCCL.on(devices).call_s for devices in (1, 8))
    assert eight == pytest.approx(8 * one)
    assert DDP.on(8) == DDP


def test_whether_calls_overlap_is_an_end_where_nobody_measured_it() -> None:
    assert [KVSTORE_NCCL.at(end).overlaps for end in ("fast", "typical", "slow")] == [True, True, False]
    assert all(DDP.at(end).overlaps for end in ("fast", "typical", "slow"))
    assert not FLAT.at("fast").overlaps


def test_reduce_and_broadcast_take_longer_than_either() -> None:
    machine = find_machine("dgx1-v100")
    price = call_price(KVSTORE_NCCL, machine, devices=8, nodes=1, sync="nccl", year=2018.5)
    both = call_price(DDP, machine, devices=8, nodes=1, sync="nccl", year=2018.5)
    assert 0.5 * both(10_000_000) < price(10_000_000) < 3 * both(10_000_000)


def test_servers_over_nodes_need_a_network() -> None:
    price = call_price(DDP, find_machine("dgx1-v100:2"), devices=16, nodes=2, sync="byteps", year=2020.0)
    # 2 (n - 1) / n of 100 MB over the cards of a DGX-1 takes milliseconds, and the nodes' own part comes on top.
    assert 1e-3 < price(100_000_000) < 0.1
    with raises("exchange.no-network-cards"):
        call_price(DDP, find_machine("dgx1-v100"), devices=16, nodes=2, sync="byteps", year=2020.0)(1_000_000)


def test_handling_grows_with_tensors_and_bytes() -> None:
    machine = find_machine("dgx1-v100")
    few, many = (handling_s(HOROVOD, machine, tensors=count, nbytes=1_000_000) for count in (10, 300))
    assert many - few == pytest.approx(290 * HOROVOD.tensor_s)


def test_waits_for_the_slowest_grow_with_the_group() -> None:
    assert 0.0 == straggling(1) < straggling(2) <= straggling(8) < straggling(16, 2)


def test_devices_share_what_cores_decode() -> None:
    """800 images a device, 8 devices, 3,200 images/s: 2 s, of which 1.5 s are not hidden by a step of 0.5 s."""
    assert rate_of_host(3200.0, source="example").fed(0.5, batch=800, devices=8).wait_s == pytest.approx(1.5)


def test_a_loader_is_as_fast_as_its_cores() -> None:
    node = find_machine("dgx1-v100").node
    feed = photograph_feed(node, loader="dali-cpu")
    rate = most_samples_per_s(feed, devices=8)
    assert rate == pytest.approx(node.cpu_cores * LOADERS["dali-cpu"].images_per_core_s)
    assert most_samples_per_s(photograph_feed(node, loader="torchvision", cores=4), devices=8) < rate
    assert loader_of(Software(framework="pytorch", libraries="dali")) == "dali"
