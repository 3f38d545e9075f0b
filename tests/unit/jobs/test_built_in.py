"""What the built-in jobs train: their data, their graphs, and that a seed decides everything."""

import functools
import sys

import pytest
import torch
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.jobs import text
from trimaran.jobs.builtin import load_images
from trimaran.jobs.resolve import BUILT_IN, resolve

TEXT_JOBS = ("text-lstm", "text-gpt")


def test_digits_are_those_of_scikit_learn_with_and_without_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, classes = load_digits(return_X_y=True)
    sides = train_test_split(images, classes, test_size=0.2, stratify=classes, random_state=0)
    for read in range(2):
        for train, pixels, labels in ((True, sides[0], sides[2]), (False, sides[1], sides[3])):
            ours, of_class = load_images(train=train, size=8).tensors
            assert torch.equal(ours, torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16), read
            assert torch.equal(of_class, torch.from_numpy(labels)), read
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@functools.cache
def captured(name: str) -> Capture:
    return capture(resolve(name))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_job_is_captured_with_cuts_and_without_notes(name: str) -> None:
    found = captured(name)
    assert found.flow is not None
    assert found.graph.split_points
    assert found.graph.notes == ()


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("digits-resnet", "groups.1.relu2"),
        ("digits-branches", "blocks.0.join.2"),
        ("text-lstm", "layers.0"),
        ("text-gpt", "blocks.2.attention.outer"),
        ("wide", "cat"),
    ],
)
def test_a_pipeline_can_be_cut_near_the_middle(name: str, cut: str) -> None:
    assert cut in captured(name).graph.split_points


def test_both_ends_of_the_gpt_use_one_parameter() -> None:
    graph = captured("text-gpt").graph
    assert [op.id for op in graph.ops if "embedding.weight" in op.parameters] == ["embedding", "head"]


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("digits-resnet", 0.2e6, 1e6),
        ("digits-branches", 0.1e6, 0.2e6),
        ("text-lstm", 0.8e6, 1.2e6),
        ("text-gpt", 0.8e6, 1.2e6),
        ("wide", 3.8e6, 4.4e6),
    ],
)
def test_the_gradients_of_a_job_are_as_many_as_its_limit_asks(name: str, least: float, most: float) -> None:
    elements = sum(parameter.nbytes for parameter in captured(name).graph.parameters) / 4
    assert least <= elements <= most


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_global_batch_divides_among_eight(name: str) -> None:
    assert resolve(name).global_batch_size % 8 == 0


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_data_are_the_same_every_time_and_leave_the_generator_alone(name: str) -> None:
    job = resolve(name)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = job.dataset()
    torch.rand(1)
    second = resolve(name).dataset()
    assert all(map(torch.equal, first.tensors, second.tensors))
    torch.manual_seed(3)
    assert torch.equal(state, torch.get_rng_state())


def test_images_are_enlarged_to_the_size_that_is_asked() -> None:
    images, classes = load_images(train=False, size=16).tensors
    assert images.shape == (360, 1, 16, 16)
    assert classes.shape == (360,)


def test_targets_are_the_characters_one_later() -> None:
    inputs, targets = text.load_windows(train=True).tensors
    assert inputs.shape == targets.shape == (text.TRAINING_WINDOWS, text.LENGTH)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("train", [True, False])
def test_windows_come_from_one_part_of_the_text(train: bool) -> None:
    """Each window, with the character after it, stands in its own part; the first one starts that part, the last one
    ends it. The parts are the text, in order, and so share no character."""
    parts = text.split_text()
    assert "".join(parts) == text.read_text()
    part = parts[0 if train else 1]
    letters = text.vocabulary()
    inputs, targets = text.load_windows(train=train).tensors
    windows = [
        "".join(letters[index] for index in (*row, last))
        for row, last in zip(inputs.tolist(), targets[:, -1].tolist(), strict=True)
    ]
    assert all(window in part for window in windows)
    assert part.startswith(windows[0])
    assert part.endswith(windows[-1])


def test_windows_of_the_learned_part_do_not_overlap() -> None:
    """The text is long enough: its windows stand farther apart than they are long."""
    starts = text.spread(torch.arange(len(text.split_text()[0])), count=text.TRAINING_WINDOWS, length=text.LENGTH + 1)[
        :, 0
    ]
    assert int(starts.diff().min()) > text.LENGTH


def test_every_character_of_the_text_is_in_the_vocabulary_once() -> None:
    letters = text.vocabulary()
    assert len(letters) == len(set(letters))
    assert set(text.read_text()) == set(letters)


@pytest.mark.parametrize("name", TEXT_JOBS)
def test_before_training_a_language_model_knows_nothing(name: str) -> None:
    """Its loss is near that of equal chances, the logarithm of the vocabulary's size."""
    job = resolve(name)
    torch.manual_seed(job.seed)
    inputs, targets = job.dataset()[:16]
    expected = torch.tensor(float(len(text.vocabulary()))).log()
    torch.testing.assert_close(job.loss(job.model()(inputs), targets), expected, rtol=0.05, atol=0.0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_seed_decides_what_is_learned(name: str) -> None:
    assert three_losses(resolve(name)) == three_losses(resolve(name))


def three_losses(job: Job) -> list[float]:
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    schedule = job.lr_schedule(optimizer)
    inputs, targets = job.dataset()[:8]
    losses = []
    for _ in range(3):
        loss = job.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_a_python_without_the_text_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with raises("text.no-topics", EnvironmentProblem, match=r"pydoc_data\.topics"):
        text.read_text.__wrapped__()
