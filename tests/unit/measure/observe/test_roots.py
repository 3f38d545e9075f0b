"""What the watch does inside a process, with its wrappers taken away again at the end of each test."""

import json
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import _utils
from trimaran_watch import hooks, roots
from trimaran_watch.after import is_batched
from trimaran_watch.ledger import BACKWARD, EVALUATION, FORWARDS, LEDGER, LOAD, OTHER, SAMPLES, SYNCS, UPDATE
from trimaran_watch.output import _plain
from trimaran_watch.roots import SEEN, count_samples, watch_roots
from trimaran_watch.waits import _read

PLAIN = torch.nn.Module.__call__


class Twice(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    LEDGER.reset()
    watch_roots(None)
    LEDGER.begin()
    yield
    roots._unwatch()
    LEDGER.reset()
    SEEN.renew(None)
    assert torch.nn.Module.__call__ is PLAIN
    assert "__call__" not in Twice.__dict__


def step(optimizer: torch.optim.Optimizer) -> None:
    hooks._before_update(optimizer, (optimizer,), {})
    hooks._after_update(optimizer, (optimizer,), {})


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


@pytest.mark.parametrize(
    ("args", "samples"),
    [
        ((torch.zeros(3, 2),), 3),
        ((None, torch.tensor(1.0), torch.zeros(4)), 4),
        (({"mask": None, "ids": torch.zeros(5, 2)},), 5),
        (([torch.zeros(3, 2)],), 0),
        (([torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64)], 0), 6),  # a batch of inputs and targets, its number
        (([torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)],), 0),  # two images of three channels
    ],
)
def test_samples_are_the_first_dimension_also_inside_of_mappings_and_of_inputs_with_targets(
    args: tuple[object, ...], samples: int
) -> None:
    assert count_samples(args, {}) == samples


def test_without_an_input_of_as_many_rows_there_is_no_batch_to_enlarge() -> None:
    inputs = ((torch.zeros(3, 2),), {})
    assert is_batched(inputs, 3)
    assert not is_batched(inputs, 4)
    assert not is_batched((([],), {}), 0)


def test_a_closure_is_no_update() -> None:
    during: list[list[int]] = []
    sgd = optimizer()
    changed = hooks._before_update(sgd, (sgd, lambda: during.append(list(LEDGER.stack))), {})
    assert changed is not None
    changed[0][1]()
    assert during == [[OTHER]]
    assert LEDGER.stack == [OTHER, UPDATE]


def test_another_optimizer_counts_after_fifty_of_its_steps_alone() -> None:
    first, second = optimizer(), optimizer()
    step(first)
    for _ in range(30):
        step(second)
    step(first)
    for _ in range(49):
        step(second)
    assert (LEDGER.steps, SEEN.optimizer) == (2, first)
    step(second)
    assert (LEDGER.steps, SEEN.optimizer) == (3, second)


def test_roots_are_learned_anew_when_watching_begins_anew() -> None:
    sgd = optimizer()
    Twice()(torch.ones(1))
    for _ in range(4):
        step(sgd)
        Twice()(torch.ones(1))
    model = Twice()
    watch_roots(model)
    model(torch.ones(6))
    assert SEEN.main is model
    assert LEDGER.counts[SAMPLES] == 6


def test_a_teacher_is_a_root_but_not_the_main_one() -> None:
    student, teacher, sgd = Twice(), torch.nn.Linear(1, 1), optimizer()
    for _ in range(5):
        with torch.no_grad():
            teacher(torch.ones(1))
        student(torch.ones(1))
        step(sgd)
    assert torch.nn.Module.__call__ is PLAIN
    with torch.no_grad():
        teacher(torch.ones(1))
    assert SEEN.main is student
    assert LEDGER.spent[EVALUATION] > 0


def test_the_evaluation_of_a_module_that_is_trained_inside_of_another_is_seen() -> None:
    """As where a trainer evaluates what it has wrapped for training; only until the step ends calls are looked at."""
    inner, sgd = torch.nn.Linear(1, 1), optimizer()
    wrapper = torch.nn.Sequential(inner)
    for _ in range(5):
        wrapper(torch.ones(1))
        step(sgd)
    hooks._set_mode(torch.nn.Module.train)(inner, False)
    with torch.no_grad():
        inner(torch.ones(1))
    assert LEDGER.spent[EVALUATION] > 0
    step(sgd)
    assert torch.nn.Module.__call__ is PLAIN
    assert SEEN.main is wrapper
    with torch.no_grad():
        inner(torch.ones(1))
    assert LEDGER.spent[EVALUATION] > 0


def test_lines_that_wait_are_kept_of_steps_without_an_evaluation() -> None:
    sgd = optimizer()
    for evaluated in (False, True):
        _read(torch.Tensor.item)(torch.ones(1))
        if evaluated:
            LEDGER.leave(LEDGER.enter(EVALUATION))
            LEDGER.spent[EVALUATION] += 1
        step(sgd)
    (place, (calls, _)) = next(iter(LEDGER.all_places.items()))
    assert place[1] == __file__
    assert (len(LEDGER.all_places), calls) == (1, 1)


def test_an_error_of_the_watch_is_said_and_the_step_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise TypeError("np.int64")

    SEEN.each_forward = SEEN.each_step = fail
    assert Twice()(torch.ones(1)) == 2
    assert LEDGER.thread == 0
    assert torch.nn.Module.__call__ is PLAIN
    LEDGER.begin()
    step(optimizer())
    assert capsys.readouterr().err.count("watched no longer: TypeError('np.int64')") == 2


def test_a_record_may_hold_what_json_does_not_know() -> None:
    assert json.dumps([np.int64(8), torch.float32], default=_plain) == '[8, "torch.float32"]'


def test_a_worker_of_a_loader_stands_aside_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.worker, "_worker_info", SimpleNamespace(id=0))
    assert Twice()(torch.ones(1)) == 2
    assert torch.nn.Module.__call__ is PLAIN
    assert LEDGER.thread == 0


def test_a_process_without_steps_is_not_learned_from_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_MOST_LEARNED", 2)
    for _ in range(2):
        Twice()(torch.ones(1))
    assert torch.nn.Module.__call__ is PLAIN
    assert LEDGER.counts[FORWARDS] == 1


@pytest.mark.parametrize(("kind", "reads"), [(LOAD, 0), (BACKWARD, 1)])
def test_reads_inside_of_loading_are_not_the_scripts(kind: int, reads: int) -> None:
    LEDGER.enter(kind)
    assert _read(torch.Tensor.item)(torch.ones(1)) == 1
    assert LEDGER.counts[SYNCS] == reads
