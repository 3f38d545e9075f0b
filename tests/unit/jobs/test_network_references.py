"""References of published networks: name, size and options."""

import pytest
import torch
from tests.raising import raises
from torch.utils.data import default_collate

from trimaran.jobs.resolve import resolve
from trimaran.networks.names import PUBLISHED, option_names, parse_network, sizes_of, with_options
from trimaran.networks.sizes import FAMILIES


def parameters(reference: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in resolve(reference).model().parameters())


@pytest.mark.parametrize(
    ("reference", "same"),
    [
        ("inception_v3", "inception-v3"),
        ("Inception-V3", "inception-v3"),
        ("biglstm", "big-lstm"),
        ("gpt2-medium", "gpt2:355m"),
        ("GPT2:XL", "gpt2:1.5b"),
        ("gpt2:124m", "gpt2"),
        ("bert:large,sequence=512", "bert:large:sequence=512"),
        ("llama:70B", "llama:70b"),
        ("llama:30b", "llama:33b"),
    ],
)
def test_a_network_has_several_spellings(reference: str, same: str) -> None:
    assert str(parse_network(reference)) == str(parse_network(same)) == same


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_listed_name_is_its_own_shortest_spelling(name: str) -> None:
    assert str(parse_network(name)) == name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_of_a_size_is_found(family: str) -> None:
    for size in (*FAMILIES[family].sizes, *FAMILIES[family].aliases):
        parsed = parse_network(f"{family}:{size}")
        assert parsed is not None
        assert parsed.size in sizes_of(family)


def test_what_is_no_network_is_left_to_others() -> None:
    assert [parse_network(text) for text in ("digits", "job.py:make", "hf:model", "resnet-50")] == [None] * 4


@pytest.mark.parametrize(
    ("reference", "code", "match"),
    [
        ("gpt2:2b", "transformer.unknown", '"gpt2:2b".*"2b".*124m, 355m, 774m, 1.5b'),
        ("llama:71b", "transformer.unknown", '"7b"|"70b"'),
        ("gnmt:9", "network.unknown-size", "8, 16"),
        ("vgg16:large", "network.unknown-size", "one size"),
        ("gpt2:xl:774m", "network.two-sizes", "xl.*774m"),
        ("bert:sequnce=512", "network.unknown-option", '"sequence"'),
        ("lenet:image=64", "network.unknown-option", "lenet has none"),
        ("vit-b-16:image=225", "network.image-not-divisible", r"\b16\b"),
        ("vgg16:image=big", "network.not-a-count", "image"),
        ("bert:head=glue", "network.unknown-value", "pretraining or squad"),
    ],
)
def test_a_wrong_reference_says_what_there_is(reference: str, code: str, match: str) -> None:
    with raises(code, match=match):
        resolve(reference)


def test_options_are_added_to_a_reference_and_replace_its_own() -> None:
    assert with_options("gpt2:1.5b", {"sequence": "512"}) == "gpt2:1.5b:sequence=512"
    assert with_options("bert:head=squad,sequence=128", {"sequence": "384"}) == "bert:head=squad,sequence=384"
    with raises("network.unknown-option"):
        with_options("vgg16", {"sequence": "1"})


def test_every_network_but_those_of_a_fixed_size_has_its_usual_option() -> None:
    without = [name for name in PUBLISHED if not {"sequence", "image"} & set(option_names(name))]
    assert without == ["lenet"]


def test_a_window_is_as_long_as_asked_and_positions_follow() -> None:
    """Twice the 1,024 positions of GPT-2, of 768 each, are 786,432 parameters more."""
    job = resolve("gpt2:sequence=2048")
    assert job.dataset()[0][0].shape == (2048,)
    assert parameters("gpt2:sequence=2048") - parameters("gpt2") == 1024 * 768


def test_an_image_is_as_large_as_asked() -> None:
    assert resolve("resnet50:image=160").dataset()[0][0].shape == (3, 160, 160)


def test_the_auxiliary_head_of_inception_v3_is_trained_with_the_main_one() -> None:
    job = resolve("inception_v3:auxiliary=yes")
    with torch.device("meta"):
        model = job.model()
    inputs, target = default_collate([job.dataset()[0], job.dataset()[1]])
    job.loss(model(inputs.to("meta")), target.to("meta")).backward()
    assert parameters("inception_v3:auxiliary=yes") == 27_161_264
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_heads_of_bert_have_their_own_data() -> None:
    (tokens, segments), answers = resolve("bert:head=squad,sequence=384").dataset()[0]
    assert (tokens.shape, segments.shape, answers.shape) == ((384,), (384,), (2,))
    (tokens, _, places), (words, follows) = resolve("bert:sequence=128").dataset()[0]
    assert (tokens.shape, places.shape, words.shape, follows.shape) == ((128,), (20,), (20,), ())


def test_a_network_of_a_size_makes_a_job_with_a_name_that_a_file_can_have() -> None:
    assert resolve("gpt3:1.3b:sequence=1024").name == "gpt3-1.3b-sequence-1024"
