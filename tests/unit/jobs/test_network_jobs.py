"""Published networks as jobs: listed, cheap until they are used, and complete."""

import pytest
import torch
from tests.raising import raises
from torch.utils.data import default_collate

from trimaran.jobs.published_jobs import _NETWORKS
from trimaran.jobs.resolve import NETWORKS, resolve
from trimaran.jobs.synthetic import Field, SyntheticPairs, SyntheticText, image
from trimaran.networks.names import PUBLISHED
from trimaran.user_code.batches import call_model, compute_loss, move_batch

RECURRENT = frozenset({"lstm", "lstm-wikitext2", "big-lstm", "gnmt"})

DEEPER = frozenset(
    {
        *("vgg13", "vgg19", "vgg116", "vgg216", "vgg316", "vgg416", "vgg13-bn", "vgg16-bn", "vgg19-bn"),
        *("resnet34", "resnet101", "resnet152", "resnet200", "resnet101-v1", "resnet152-v1", "wide-resnet101"),
        *(
            "resnext101",
            "resnext101-32x8d",
            "resnext101-32x16d",
            "resnext101-64x4d",
            "se-resnext101-32x8d",
            "se-resnext101-64x4d",
            "se-resnet34",
            "se-resnet101",
            "se-resnet152",
        ),
        *("se-resnet101-v1", "se-resnet152-v1", "se-resnext101", "densenet161", "densenet169", "densenet201"),
        *(f"efficientnet-b{number}" for number in range(1, 8)),
        *("vit-l-16", "vit-l-32", "llama1", "llama2"),
    }
)
"""Networks that differ from another one only by how many layers there are, or how wide they are."""


def test_what_is_listed_is_what_there_is() -> None:
    assert list(PUBLISHED) == list(_NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_summary_says_that_the_data_are_synthetic(name: str) -> None:
    assert "synthetic" in NETWORKS[name].summary


@pytest.mark.parametrize("name", NETWORKS)
def test_a_summary_says_how_many_parameters_there_are(name: str) -> None:
    """In millions, as many digits as stand there."""
    with torch.device("meta"):
        millions = sum(parameter.numel() for parameter in resolve(name).model().parameters()) / 1e6
    said = f"{millions:.1f}" if millions < 10 else f"{millions:,.0f}"
    assert f", {said} M;" in NETWORKS[name].summary


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in DEEPER])
def test_a_job_gives_a_loss_on_tensors_without_data(name: str) -> None:
    """No weight is made: some of the networks would not fit the memory of a small machine."""
    job = resolve(name)
    with torch.device("meta"):
        model = job.model()
    data = job.dataset()
    batch = move_batch(default_collate([data[0], data[1]]), "meta")
    if name in RECURRENT:
        # Without data, a recurrent layer is taken apart step by step: a few steps show the same.
        (inputs, target) = batch
        batch = (tuple(part[:, :3] for part in inputs) if isinstance(inputs, list) else inputs[:, :3], target[:, :3])
    total, samples = compute_loss(job, call_model(job, model, batch), batch)
    total.backward()
    assert samples == 2
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_global_batch_divides_among_eight(name: str) -> None:
    assert resolve(name).global_batch_size % 8 == 0


def test_a_near_miss_of_a_network_is_recognised() -> None:
    with raises("job.unknown", match='"resnet50"'):
        resolve("resnet-50")


def test_a_sample_is_the_same_every_time_and_leaves_the_generator_alone() -> None:
    data = SyntheticPairs(image(4), target=Field(below=10))
    state = torch.get_rng_state()
    first, again, other = data[7][0], data[7][0], data[8][0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_samples_are_drawn_on_the_host_wherever_tensors_are_made() -> None:
    with torch.device("meta"):
        pixels, label = SyntheticPairs(image(4), target=Field(below=10))[0]
    assert pixels.device.type == label.device.type == "cpu"


def test_a_loop_over_synthetic_samples_ends() -> None:
    assert len(list(SyntheticText(vocabulary=5, length=2, samples=3))) == 3
