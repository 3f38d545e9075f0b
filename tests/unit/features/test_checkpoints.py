"""Checkpoints of one process: what is in them, what is refused, and what is said where something is wrong."""

import collections
import enum
import functools
import json
import math
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import trimaran
from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, ExecutionError, InputError
from trimaran.base.job import Job
from trimaran.base.progress import ignore_progress
from trimaran.checkpoint_files.plain import encode
from trimaran.features.training.rank import Cadence, _train_epochs, parse_saving
from trimaran.features.training.run_record import RunDirectory, RunRecord, create_run_directory
from trimaran.features.training.train import _listener, _Stopping, check_resumable
from trimaran.jobs.resolve import JobSource
from trimaran.launch.stop_requests import REQUESTS
from trimaran.runtime.data.reading import digest_of


def make_data(scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(scale * torch.randn(20, 3, generator=generator), torch.randn(20, 1, generator=generator))


def make_job(**fields: Any) -> Job:
    return Job(
        **{  # type: ignore[arg-type]
            "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)),
            "loss": nn.functional.mse_loss,
            "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
            "lr_schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "dataset": make_data,
            "global_batch_size": 5,
            "epochs": 2,
            **fields,
        }
    )


@contextmanager
def session_of(job: Job) -> Iterator[trimaran.Session]:
    session = trimaran.init(job, record=False)
    try:
        yield session
    finally:
        session.close()


def take_steps(session: trimaran.Session, steps: int) -> list[float]:
    losses = []
    for batch in session.batches():
        losses.append(session.step(batch))
        if len(losses) == steps:
            break
    return losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], bytes]:
    """A folder with the states after steps 3 and 6 of 8; the losses; the last state, pickled."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with session_of(make_job()) as session:
        losses = take_steps(session, 1)
        assert session.save_checkpoint(folder) == folder / "step-00000001"
        losses += take_steps(session, 2)
        assert session.save_checkpoint(folder, wait=False) is None
        losses += take_steps(session, 3)
        session.carried["best"] = {"loss": 0.5}
        session.save_checkpoint(folder)
        state = pickle.dumps(session.state_dict())
        losses += take_steps(session, 2)
        assert session.saved == folder / "step-00000006"
        assert session.notes == ()
    assert sorted(one.name for one in folder.iterdir()) == ["step-00000003", "step-00000006"]
    return folder, losses, state


class Average:
    """Of the weights, by a callback: more elements than a plain value may have, and a count of another type."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.steps = (0, "steps")

    def on_step(self, session: Any, step: int, metrics: dict[str, float]) -> None:
        for name, one in session.model.named_parameters():
            self.weights.setdefault(name, one.detach().clone()).lerp_(one.detach(), 0.5)
        self.steps = (step + 1, "steps")

    def state_dict(self) -> dict[str, Any]:
        named = {("a", 1): (torch.ones(2), torch.Size([3]), None)}
        return {"weights": self.weights, "steps": self.steps, "of": [nn.Linear(2, 1).state_dict()], "named": named}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.steps = state["weights"], state["steps"]
        assert type(state["of"][0]) is collections.OrderedDict
        one, size, none = state["named"]["a", 1]
        assert (one.tolist(), type(size), none) == ([1.0, 1.0], torch.Size, None)


def averaging(**fields: Any) -> tuple[Job, Average]:
    average = Average()
    model = functools.partial(nn.Sequential, nn.Linear(3, 9000), nn.Linear(9000, 1))
    return make_job(**{"model": model, "on_step": average.on_step, "state": [average], **fields}), average


def test_objects_with_a_state_go_on_where_they_were(tmp_path: Path) -> None:
    job, average = averaging()
    with session_of(job) as session:
        take_steps(session, 3)
        session.save_checkpoint(tmp_path)
        state = session.state_dict()
        expected = {name: one.clone() for name, one in average.weights.items()}
        take_steps(session, 2)
    for load in (lambda session: session.load_checkpoint(tmp_path), lambda session: session.load_state_dict(state)):
        job, then = averaging()
        with session_of(job) as session:
            load(session)
            assert then.steps == (3, "steps")
            assert session.notes == ()
            assert all(torch.equal(then.weights[name], one) for name, one in expected.items())
            take_steps(session, 2)
        assert all(torch.equal(then.weights[name], one) for name, one in average.weights.items())
    job, _ = averaging(state=[Average(), Average()])
    with session_of(job) as session, raises("checkpoint.other-state", match="1 objects of Job.state"):
        session.load_checkpoint(tmp_path)


def test_what_has_no_state_is_no_state_of_a_job() -> None:
    for wrong in (Average(), [Average(), 3]):
        with raises("job.state", match="state_dict"):
            make_job(state=wrong)


def test_it_goes_on_from_files_and_from_memory(saved: tuple[Path, list[float], bytes]) -> None:
    folder, losses, state = saved
    for load in (
        lambda session: session.load_checkpoint(folder),
        lambda session: session.load_checkpoint(folder / "step-00000006"),
        lambda session: session.load_state_dict(pickle.loads(state)),  # noqa: S301 made above
    ):
        with session_of(make_job()) as session:
            take_steps(session, 1)
            load(session)
            assert (session.steps, session.epoch, session.carried) == (6, 1, {"best": {"loss": 0.5}})
            assert [row["epoch"] for row in session.history] == [1]
            assert take_steps(session, 2) == losses[6:]
            assert session.notes == ()


def test_a_script_that_starts_for_the_first_time_begins_anew(tmp_path: Path) -> None:
    """Without a folder, and with one in which a save was killed before it was committed; not where all are damaged."""
    with session_of(make_job()) as session:
        assert not session.load_checkpoint(tmp_path / "none", missing_ok=True)
        with raises("checkpoint.no-folder", InputError):
            session.load_checkpoint(tmp_path / "none")
        take_steps(session, 1)
        committed = session.save_checkpoint(tmp_path / "saved")
        assert committed is not None
    with session_of(make_job()) as session:
        assert session.load_checkpoint(tmp_path / "saved", missing_ok=True)
        assert session.steps == 1
    state = committed / "state.json"
    state.write_text("{}")
    with session_of(make_job()) as session, raises("checkpoint.all-damaged", CorruptDataError):
        session.load_checkpoint(tmp_path / "saved", missing_ok=True)
    (committed / "COMMITTED").unlink()
    with session_of(make_job()) as session:
        with raises("checkpoint.none", InputError):
            session.load_checkpoint(tmp_path / "saved")
        assert not session.load_checkpoint(tmp_path / "saved", missing_ok=True)
        assert session.steps == 0


def test_what_comes_between_a_batch_and_its_step_is_refused(tmp_path: Path) -> None:
    with session_of(make_job()) as session:
        batch = next(iter(session.batches()))
        with raises("session.saved-before-step", InputError, match="after session.step"):
            session.save_checkpoint(tmp_path)
        session.step(batch)
        session.save_checkpoint(tmp_path)


def test_a_callback_may_save_and_not_load(tmp_path: Path) -> None:
    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        session.save_checkpoint(tmp_path)
        with raises("session.load-in-callback", InputError):
            session.load_checkpoint(tmp_path)

    with session_of(make_job(on_step=on_step)) as session:
        losses = take_steps(session, 2)
    with session_of(make_job()) as session:
        session.load_checkpoint(tmp_path / "step-00000001")
        assert take_steps(session, 1) == losses[1:]


def frozen_first() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


def free_or_freeze(session: Any, epoch: int, metrics: dict[str, float]) -> None:
    """The first layer is trained in the second epoch, the last one is not."""
    if epoch == 0:
        session.model[0].requires_grad_(True)
        session.model[1].requires_grad_(False)


def test_what_callbacks_have_freed_and_frozen_stays_so(tmp_path: Path) -> None:
    thawing = make_job(model=frozen_first, on_epoch=free_or_freeze)
    with session_of(thawing) as session:
        losses = take_steps(session, 6)
        session.save_checkpoint(tmp_path)
        losses += take_steps(session, 2)
        weights = session.weights()
    with session_of(thawing) as session:
        session.load_checkpoint(tmp_path)
        assert [one.requires_grad for one in session.model.parameters()] == [True, True, False, False]
        assert take_steps(session, 2) == losses[6:]
        assert all(torch.equal(one, weights[name]) for name, one in session.weights().items())
    with session_of(make_job(model=frozen_first)) as session:
        with raises("checkpoint.other-trained", InputError, match="required gradients"):
            session.load_checkpoint(tmp_path)
        assert (session.steps, session.feed.index) == (0, 0)


def test_an_evaluation_that_is_broken_off_at_once_leaves_the_place_in_the_data(tmp_path: Path) -> None:
    """A signal comes in the evaluation of a run that went on from the last step of an epoch."""
    data = AskedToStop()
    asking = make_job(metric=lambda output, target: 0.0, evaluation_dataset=lambda: data, target=2.0)
    with session_of(make_job()) as session:
        take_steps(session, 4)
        session.save_checkpoint(tmp_path)
    with session_of(asking) as session:
        session.load_checkpoint(tmp_path)
        data.asked = True  # not where they are looked at before the training
        assert take_steps(session, 1) == []
        assert session.stop_signal == signal.SIGTERM
        assert (session.epoch, session.feed.index) == (0, 4)
        session._ends_script = False


@pytest.mark.parametrize("at", [2, 6])
def test_a_loop_may_go_back_to_a_state(at: int, tmp_path: Path) -> None:
    """To another epoch and within its own; an epoch that was left has not ended."""
    ended: list[int] = []
    job = make_job(on_epoch=lambda session, epoch, metrics: ended.append(epoch))
    losses, went_back = [], False
    with session_of(job) as session:
        for batch in session.batches():
            losses.append(session.step(batch))
            if session.steps == at and not went_back:
                session.save_checkpoint(tmp_path)
            if session.steps == 7 and not went_back:
                session.load_checkpoint(tmp_path)
                went_back = True
        assert ended == ([0, 0, 1] if at == 2 else [0, 1])
        assert losses[7:] == [*losses[at:7], losses[-1]]
        assert session.steps == 8
        means = [row["loss"] for row in session.history]
        steps = [*losses[:at], *losses[7:]]
        assert means == pytest.approx([sum(steps[:4]) / 4, sum(steps[4:]) / 4])


def test_a_step_after_a_state_is_verified(saved: tuple[Path, list[float], bytes]) -> None:
    with trimaran.init(make_job(), verify=2) as session:
        session.load_checkpoint(saved[0])
        assert take_steps(session, 2) == saved[1][6:]
        assert session.verified is not None
        assert (session.verified.steps, session.verified.reason) == (1, "")


def test_steps_that_were_skipped_stay_known(tmp_path: Path) -> None:
    """Ten in a row end a training, whether there is a break between them or not."""
    job = make_job(loss=lambda output, target: (output - target).sum() * torch.nan, epochs=4)
    with trimaran.init(job, on_nan="skip") as session:
        take_steps(session, 6)
        session.save_checkpoint(tmp_path)
    with trimaran.init(job, on_nan="skip") as session:
        session.load_checkpoint(tmp_path)
        assert session.skipped == (0, 1, 2, 3, 4, 5)
        take_steps(session, 3)
        with raises("loss.not-finite", ExecutionError, match="9 steps before"):
            take_steps(session, 1)
        assert session.skipped == tuple(range(9))


class AskedToStop(torch.utils.data.Dataset[Any]):
    """Evaluation data while whose first read a signal comes."""

    def __init__(self) -> None:
        self.data, self.asked = make_data(), False

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if self.asked:
            self.asked = False
            os.kill(os.getpid(), signal.SIGTERM)
            # A thread hears it, a moment later.
            deadline = time.monotonic() + 20
            while not REQUESTS.pending and time.monotonic() < deadline:
                time.sleep(0.001)
        return self.data[index]


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 5}, "feed-state.other-job"),
    "batch": ({"global_batch_size": 4}, "feed-state.other-job"),
    "optimizer": ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}, "checkpoint.other-job"),
    "precision": ({"precision": "fp64"}, "checkpoint.other-job"),
    "clip": ({"clip_norm": 0.5}, "checkpoint.other-job"),
    "schedule": ({"lr_schedule": None}, "checkpoint.other-schedule"),
    "model": ({"model": lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))}, "checkpoint.other-model"),
    "layers": ({"model": lambda: nn.Sequential(nn.Linear(3, 1))}, "checkpoint.other-model"),
}  # fmt: skip


def groups(parameters: Any) -> torch.optim.Optimizer:
    """The first parameter in a group of its own, with other options."""
    one, *others = parameters
    return torch.optim.Adam([{"params": [one], "eps": 1e-3}, {"params": others}], lr=1e-2)


@pytest.mark.parametrize("what", OTHERS)
def test_another_job_is_refused_before_anything_is_changed(what: str, saved: tuple[Path, list[float], bytes]) -> None:
    fields, code = OTHERS[what]
    with session_of(make_job(**fields)) as session:
        before = {name: one.clone() for name, one in session.model.state_dict().items()}
        with raises(code, InputError):
            session.load_checkpoint(saved[0])
        assert all(torch.equal(one, before[name]) for name, one in session.model.state_dict().items())
        assert (session.steps, session.feed.index) == (0, 0)


def doubled(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * nn.functional.mse_loss(output, target)


FITTING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "name": ({"name": "other"}, ("name of the job", "job", "other")),
    "module": (
        {"model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.25), nn.Linear(4, 1))},
        ("modules of the model", "1 is Dropout(p=0.5, inplace=False)", "1 is Dropout(p=0.25, inplace=False)"),
    ),
    "loss": ({"loss": doubled}, ("graph of the model, its loss and its data",)),
}


@pytest.mark.parametrize("what", FITTING)
def test_a_state_that_fits_another_job_is_put_back_and_said(what: str, saved: tuple[Path, list[float], bytes]) -> None:
    """It may have been changed on purpose, and what comes then is not what would have come."""
    fields, (name, *values) = FITTING[what]
    with session_of(make_job(**fields)) as session:
        session.load_checkpoint(saved[0])
        assert session.steps == 6
        assert session.recovered is not None
        (changed,) = session.recovered.changed
        assert (changed.what, changed.counts, session.notes) == (name, "job", (str(changed),))
        assert values in ([], [changed.saved, changed.now])
        assert (take_steps(session, 2) == saved[1][6:]) == (what == "name")


def test_a_state_of_another_torch_or_device_is_said(saved: tuple[Path, list[float], bytes]) -> None:
    state = pickle.loads(saved[2])  # noqa: S301 made above
    state["state"]["on"] = {"device": "cuda", "torch": "1.0"}
    with session_of(make_job()) as session:
        session.load_state_dict(state)
        assert session.recovered is not None
        assert [(one.what, one.saved) for one in session.recovered.changed] == [("torch", "1.0"), ("device", "cuda")]
        assert take_steps(session, 2) == saved[1][6:]


def test_the_state_of_a_gpus_generator_is_left_out_on_a_cpu(saved: tuple[Path, list[float], bytes]) -> None:
    """What is drawn here comes from the host's generator, whose state is there too."""
    state = pickle.loads(saved[2])  # noqa: S301 made above
    name = "random/rank0"
    random = json.loads(state["tensors"][name].numpy().tobytes())
    random["device"] = encode(torch.arange(16, dtype=torch.uint8), "the state of a GPU's generator")
    state["tensors"][name] = torch.frombuffer(bytearray(json.dumps(random).encode()), dtype=torch.uint8)
    with session_of(make_job()) as session:
        session.load_state_dict(state)
        assert ["the state of the GPU's generator is left out" in note for note in session.notes] == [True]
        assert take_steps(session, 2) == saved[1][6:]


def test_an_epoch_whose_steps_were_all_skipped_has_no_loss(tmp_path: Path) -> None:
    """In no file is there a number that JSON has not."""
    told: list[float] = []
    job = make_job(
        loss=lambda output, target: (output - target).sum() * torch.nan,
        epochs=2,
        on_epoch=lambda session, epoch, metrics: told.append(metrics["loss"]),
    )
    with trimaran.init(job, on_nan="skip") as session:
        run = create_run_directory("skipped", parent=tmp_path)
        cadence = Cadence(parse_saving("100"), session.executor.agreement, 0)
        events: list[Any] = []
        world = SimpleNamespace(report=events.append, rank=0)
        epochs = _train_epochs(session, world, cadence, tmp_path)  # type: ignore[arg-type]
        assert [(one.epoch, one.loss, one.samples) for one in epochs] == [(1, None, 20), (2, None, 20)]
        assert session.history[0]["loss"] is None
        assert all(math.isnan(loss) for loss in told)
        assert len(told) == 2
        record = RunRecord(run)
        for event in events:
            if "finished" in event:
                record.add_metrics(event["finished"])
        rows = [decode_object(line, source="metrics") for line in run.metrics.read_text().splitlines()]
        assert [row["loss"] for row in rows] == [None, None]
        session.save_checkpoint(tmp_path / "checkpoints")
    with trimaran.init(job, on_nan="skip") as session:
        session.load_checkpoint(tmp_path / "checkpoints")
        assert [row["loss"] for row in session.history] == [None, None]


def test_options_are_those_that_were_saved(saved: tuple[Path, list[float], bytes]) -> None:
    """Groups are known by the names of their parameters."""
    with session_of(make_job(optimizer=groups)) as session:
        session.load_checkpoint(saved[0])
        assert session.optimizer is not None
        assert [group["eps"] for group in session.optimizer.param_groups] == [1e-8, 1e-8]
        assert take_steps(session, 2) == saved[1][6:]


def steps_of(rate: float = 1e-2, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate, **options)


def in_turn(first: float) -> Callable[[Any], Any]:
    def make(optimizer: Any) -> Any:
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=first)
        return torch.optim.lr_scheduler.SequentialLR(
            optimizer, [constant, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)], milestones=[3]
        )

    return make


def falling(factor: float) -> Callable[[Any], Any]:
    return lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=factor)


def by_layer(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    """The last group has a rate of its own."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        *others, last = parameters
        return torch.optim.SGD([{"params": others}, {"params": [last], "lr": rate}], lr=0.1)

    return make


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, tuple[str, str]]]] = {
    "same": ({}, {}, {}),
    "moved by a callback": (
        {"on_step": lambda session, *_: session.optimizer.param_groups[0].update(lr=1e-4), "lr_schedule": None},
        {"on_step": lambda session, *_: session.optimizer.param_groups[0].update(lr=1e-4), "lr_schedule": None},
        {},
    ),
    "rate under a schedule": ({"optimizer": steps_of()}, {"optimizer": steps_of(0.5)},
                              {"initial_lr": ("0.01", "0.5")}),
    "rate, betas, weight decay": (
        {"optimizer": steps_of(), "lr_schedule": None},
        {"optimizer": steps_of(0.5, betas=(0.8, 0.9), weight_decay=0.0), "lr_schedule": None},
        {"lr": ("0.01", "0.5"), "betas": ("(0.9, 0.999)", "(0.8, 0.9)"), "weight_decay": ("0.01", "0.0")},
    ),
    "group": (
        {"optimizer": by_layer(0.2), "lr_schedule": None}, {"optimizer": by_layer(0.3), "lr_schedule": None},
        {"lr of group 1": ("0.2", "0.3")},
    ),
    "schedule": (
        {}, {"lr_schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)},
        {"step_size of StepLR": ("2", "3"), "gamma of StepLR": ("0.1", "0.5")},
    ),
    "schedule of schedules": (
        {"lr_schedule": in_turn(0.5)}, {"lr_schedule": in_turn(0.25)},
        {"_schedulers.0.factor of SequentialLR": ("0.5", "0.25")},
    ),
    "schedule by a metric": (
        {"lr_schedule": falling(0.5)}, {"lr_schedule": falling(0.1)}, {"factor of ReduceLROnPlateau": ("0.5", "0.1")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_the_job_has_made_otherwise_since_are_said(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They had no effect, without a word. What a schedule or a callback has moved is no change of the job."""
    before, after, expected = OPTIONS[case]
    with session_of(make_job(**before)) as session:
        take_steps(session, 5)
        session.save_checkpoint(tmp_path)
    # Those that count are those of the first job, however often the training goes on with others.
    for steps in (5, 6):
        with session_of(make_job(**after)) as session:
            session.load_checkpoint(tmp_path)
            found = session.recovered
            assert found is not None
            assert {one.what: (one.saved, one.now) for one in found.changed} == expected
            assert {one.counts for one in found.changed} <= {"checkpoint"}
            said = capfd.readouterr().err
            assert f"goes on from step {steps}" in said
            assert all(str(one) in said for one in found.changed)
            take_steps(session, 1)
            session.save_checkpoint(tmp_path)


def test_other_data_are_refused_or_noted(saved: tuple[Path, list[float], bytes]) -> None:
    with session_of(make_job(dataset=lambda: TensorDataset(torch.zeros(21, 3), torch.zeros(21, 1)))) as session:
        before = session.weights()
        with raises("feed-state.other-job", InputError, match="20"):
            session.load_checkpoint(saved[0])
        assert all(torch.equal(one, before[name]) for name, one in session.weights().items())
    with session_of(make_job(dataset=lambda: make_data(2.0))) as session:
        session.load_checkpoint(saved[0])
        (note,) = session.notes
        assert "gives other samples" in note
    assert digest_of(make_data()[:2]) != digest_of(make_data(2.0)[:2])


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return 3

    def set_extra_state(self, state: Any) -> None:
        pass


class Hidden(torch.optim.SGD):
    """It keeps an object for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["secret"] = object()
        return super().step(closure)


def odd_schedule(optimizer: torch.optim.Optimizer) -> Any:
    made = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    made.source = object()  # type: ignore[attr-defined]
    return made


def with_another(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([*parameters, OUTSIDE], lr=0.1)


class Counting(torch.optim.SGD):
    """Every third step is larger, by a count that no state has."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= 3.0 if self.count % 3 == 0 else 1.0
        found = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return found


class Telling(Counting):
    """It says its count besides what optimizers of torch say."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        super().load_state_dict(state)


class Wanting(Telling):
    """It wants its count back."""

    def state_dict(self) -> dict[str, Any]:
        return {key: one for key, one in super().state_dict().items() if self.state or key != "count"}


class Wrapping(torch.optim.SGD):
    """It says its state as that of the optimizers in it."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["inner"])


class Forgetting(torch.optim.lr_scheduler.StepLR):
    """Its state does not say how far it is."""

    def state_dict(self) -> dict[str, Any]:
        return {}


class Counted(nn.Linear):
    """It divides by the number of its forwards, which is no buffer."""

    calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(inputs) / self.calls


class Centered(nn.Module):
    """A loss with a mean that follows the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.center.mul_(0.9).add_(target.mean(), alpha=0.1)
        return nn.functional.mse_loss(output, target - self.center)


class Noisy(nn.Linear):
    """It draws from a generator that no state has."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + torch.rand((), generator=self.generator)


def drawing_collate() -> Callable[[list[Any]], Any]:
    source = random.Random(1)

    def collate(samples: list[Any]) -> Any:
        inputs, targets = torch.utils.data.default_collate(samples)
        return inputs + source.random(), targets

    return collate


def add_group(session: Any, epoch: int, metrics: dict[str, float]) -> None:
    session.optimizer.add_param_group({"params": [OUTSIDE]})


OUTSIDE = nn.Parameter(torch.zeros(2))


class Stream(IterableDataset[Any]):
    """A shuffle buffer, which its state has, or not.

    Args:
        forgets: it has not
    """

    def __init__(self, forgets: bool) -> None:
        self.kept: list[int] = []
        self.at, self.forgets, self.drawn = 0, forgets, torch.Generator().manual_seed(2)

    def __iter__(self) -> Iterator[Any]:
        data = make_data()
        while self.at < len(data) or self.kept:
            if self.at < len(data):
                self.kept.append(self.at)
                self.at += 1
            if len(self.kept) == 4 or self.at == len(data):
                yield data[self.kept.pop(int(torch.randint(len(self.kept), (), generator=self.drawn)))]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at} | ({} if self.forgets else {"kept": self.kept, "drawn": self.drawn.get_state()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.kept = state["at"], list(state.get("kept", ()))
        if not self.forgets:
            self.drawn.set_state(state["drawn"])


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(2, dtype=torch.complex128)), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.fft.irfft(torch.fft.rfft(x.double()) * self.weight, 3))


UNSAVABLE: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"lr_schedule": odd_schedule}, "checkpoint.not-plain"),
    "optimizer": ({"optimizer": lambda parameters: Hidden(parameters, lr=0.1)}, "checkpoint.not-plain"),
    "foreign": ({"optimizer": with_another}, "checkpoint.foreign-parameters"),
    "extra": ({"model": lambda: Extra(3, 1)}, "checkpoint.extra-state"),
    "optimizer that counts": ({"optimizer": lambda parameters: Counting(parameters, lr=0.1)}, "checkpoint.forgets"),
    "optimizer that tells its count": (
        {"optimizer": lambda parameters: Telling(parameters, lr=0.1, momentum=0.9)}, "checkpoint.forgets"),
    "optimizer that wants its count": (
        {"optimizer": lambda parameters: Wanting(parameters, lr=0.1, momentum=0.9)}, "checkpoint.forgets"),
    "optimizer in another": ({"optimizer": lambda parameters: Wrapping(parameters, lr=0.1)},
                             "checkpoint.forgets"),
    "schedule that forgets": ({"lr_schedule": lambda optimizer: Forgetting(optimizer, 3)}, "checkpoint.forgets"),
    "generator": ({"model": Noisy}, "checkpoint.outside-the-model"),
    "buffer of the loss": ({"loss": Centered()}, "checkpoint.outside-the-model"),
    "generator of the collate": ({"collate": drawing_collate()}, "checkpoint.outside-the-model"),
    "stream that forgets its buffer": ({"dataset": lambda: Stream(forgets=True)}, "stream.forgets"),
    "complex of 128 bits": ({"model": Waves, "precision": "fp64"}, "tensors.cannot-be-written"),
}  # fmt: skip


def test_a_stream_that_knows_its_place_is_saved(tmp_path: Path) -> None:
    """The state of a generator of torch's is one of its plain values."""
    made = make_job(dataset=lambda: Stream(forgets=False))
    with session_of(made) as session:
        session.check_saving(tmp_path)
        losses = take_steps(session, 1)
        session.save_checkpoint(tmp_path)
        losses = take_steps(session, 2)
    with session_of(made) as session:
        session.load_checkpoint(tmp_path)
        assert take_steps(session, 2) == losses


@pytest.mark.parametrize("what", UNSAVABLE)
def test_what_cannot_be_kept_is_refused_before_training(what: str, tmp_path: Path) -> None:
    fields, code = UNSAVABLE[what]
    with session_of(make_job(**fields)) as session, raises(code, InputError):
        session.check_saving(tmp_path)


def test_a_group_that_was_added_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    """A training that goes on has the groups of Job.optimizer."""
    with session_of(make_job(on_epoch=add_group)) as session:
        session.check_saving(tmp_path)
        session.save_checkpoint(tmp_path)
        session.end_epoch(0)
        with raises("checkpoint.added-groups", InputError):
            session.save_checkpoint(tmp_path)


def test_it_is_refused_where_nobody_has_asked_before(tmp_path: Path) -> None:
    with session_of(make_job(model=Noisy)) as session:
        take_steps(session, 1)
        with raises("checkpoint.outside-the-model", InputError, match="a generator that the job holds"):
            session.save_checkpoint(tmp_path)


CALLS: list[int] = []


def counting_loss(kept: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    counted = {"calls": 0}

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        counted["calls"] += 1
        if kept == "the file":
            CALLS.append(1)
        calls = len(CALLS) if kept == "the file" else counted["calls"]
        return nn.functional.mse_loss(output, target) / calls

    return loss


@pytest.mark.parametrize("counts", ["the model", "the loss", "the file"])
def test_a_count_of_the_model_or_the_loss_goes_on(counts: str, tmp_path: Path) -> None:
    """A plain number that each step changes is in the checkpoint; of a global it is said that it is not."""

    def make() -> Job:
        CALLS.clear()
        job = make_job(loss=counting_loss(counts))
        return make_job(model=lambda: Counted(3, 1)) if counts == "the model" else job

    with session_of(make()) as session:
        session.check_saving(tmp_path)
        take_steps(session, 2)
        session.save_checkpoint(tmp_path)
        expected = take_steps(session, 2)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        assert (take_steps(session, 2) == expected) == (counts != "the file")
        assert any("CALLS" in note and "Job.state" in note for note in session.notes) == (counts == "the file")


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "metric": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "ends": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8),
    "chain": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        ],
        milestones=[4],
    ),
}


def test_state_of_another_dtype_than_its_parameter_is_kept(tmp_path: Path) -> None:
    """NAdam has a product in fp32 to which `load_state_dict` gives the dtype of the parameter."""
    made = make_job(optimizer=lambda parameters: torch.optim.NAdam(parameters, lr=0.01))
    with session_of(made) as session:
        session.check_saving(tmp_path)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_that_go_on_are_saved(name: str, tmp_path: Path) -> None:
    with session_of(make_job(lr_schedule=SCHEDULES[name])) as session:
        session.check_saving(tmp_path)


def test_what_callbacks_keep_is_said(tmp_path: Path) -> None:
    """An average that begins anew where the training goes on is not that of the training without a break."""

    def make() -> Job:
        averages: dict[str, torch.Tensor] = {}

        def follow(session: Any, step: int, metrics: dict[str, float]) -> None:
            # More elements than plain values have.
            averages["bias"] = session.model[2].bias.detach() * torch.ones(9000) + averages.get("bias", 0.0)

        def set_rate(session: Any, step: int, metrics: dict[str, float]) -> None:
            session.model[1].p = 0.25

        return make_job(on_step=follow, on_epoch=set_rate)

    with session_of(make()) as session:
        take_steps(session, 5)
        session.save_checkpoint(tmp_path)
        # As it is: nothing is lost in this process.
        session.load_checkpoint(tmp_path)
        assert session.notes == ()
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        (note,) = session.notes
        assert "averages['bias'] of Job.on_step" in note
        assert "p of 1" not in note
        assert session.model[1].p == 0.25


class Way(enum.IntEnum):
    """A value that a checkpoint does not know."""

    FIRST = 1
    SECOND = 2


def test_numbers_that_callbacks_set_in_modules_are_put_back(tmp_path: Path) -> None:
    """They were noted, and the first step after a break was one with those at the start."""

    def make() -> Job:
        def model() -> Any:
            made = make_job().model()
            made[1].way, made[1].settings = Way.FIRST, SimpleNamespace(share=1.0)
            return made

        def set_some(session: Any, step: int, metrics: dict[str, float]) -> None:
            session.model[1].p, session.model[1].way = 0.25, Way.SECOND
            session.model[1].settings.share = 0.5
            session.model[2].eval()

        return make_job(model=model, on_step=set_some)

    with session_of(make()) as session:
        take_steps(session, 2)
        session.save_checkpoint(tmp_path)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        assert (session.model[1].p, session.model[1].training, session.model[2].training) == (0.25, True, False)
        assert session.model[1].settings.share == 0.5
        (note,) = session.notes
        assert "way of 1" in note
        assert "p of 1" not in note


class Best:
    """Halves the rate when the loss has not fallen, and weighs by what it has seen."""

    bad = 0

    def __init__(self) -> None:
        self.best, self.seen, self.average = math.inf, [0.0], None

    def __call__(self, session: Any, step: int, metrics: dict[str, float]) -> None:
        weight = session.model[0].weight.detach()
        self.average = weight.clone() if self.average is None else self.average.lerp(weight, 0.5)
        self.seen.append(metrics["loss"])
        self.best, self.bad = (metrics["loss"], 0) if metrics["loss"] < self.best else (self.best, self.bad + 1)


def test_plain_values_that_a_callback_keeps_are_put_back(tmp_path: Path) -> None:
    """They began anew, and were noted."""
    best, again = Best(), Best()
    seen = again.seen
    with session_of(make_job(on_step=best)) as session:
        take_steps(session, 3)
        session.save_checkpoint(tmp_path)
    with session_of(make_job(on_step=again)) as session:
        session.load_checkpoint(tmp_path)
        assert session.notes == ()
    assert (again.best, again.bad, again.seen) == (best.best, best.bad, best.seen)
    assert again.seen is seen
    assert again.average is not None
    assert torch.equal(again.average, best.average)  # type: ignore[arg-type]


class Weighed:
    """A loss with a term whose weight is that of all objects until one has its own."""

    weight = 0.0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target) + self.weight * output.square().mean()


class Scaled(nn.Module):
    """Divides by temperatures that its classes have."""

    temperature = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.settings = Weighed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (self.temperature + self.settings.weight)


def test_attributes_that_callbacks_give_objects_are_put_back(tmp_path: Path) -> None:
    """They were lost without a word where only the class of an object had a value."""

    def make() -> Job:
        loss = Weighed()

        def anneal(session: Any, step: int, metrics: dict[str, float]) -> None:
            loss.weight += 0.1
            session.model[1].temperature, session.model[1].settings.weight = 2.0, loss.weight

        return make_job(model=lambda: nn.Sequential(nn.Linear(3, 1), Scaled()), loss=loss, on_step=anneal)

    with session_of(make()) as session:
        take_steps(session, 2)
        session.save_checkpoint(tmp_path)
        wanted = take_steps(session, 2)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        assert session.notes == ()
        assert take_steps(session, 2) == wanted


@pytest.mark.parametrize(
    "make_generator",
    [lambda: random.Random(1), lambda: numpy.random.default_rng(1), lambda: torch.Generator().manual_seed(1)],
    ids=["random", "numpy", "torch"],
)
def test_generators_of_callbacks_are_said(make_generator: Callable[[], Any], tmp_path: Path) -> None:
    """They began anew without a word."""

    def make() -> Job:
        drawn = make_generator()

        def draw(session: Any, step: int, metrics: dict[str, float]) -> None:
            if isinstance(drawn, torch.Generator):
                torch.rand((), generator=drawn)
            else:
                drawn.random()

        return make_job(on_step=draw)

    with session_of(make()) as session:
        take_steps(session, 2)
        session.save_checkpoint(tmp_path)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        (note,) = session.notes
        assert "drawn of Job.on_step" in note


def test_samples_that_follow_what_callbacks_keep_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """They were read before that was put back, and said to be others."""

    def make() -> Job:
        settings = {"scale": 1.0}

        class Data(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                x, y = super().__getitem__(index)
                return x * settings["scale"], y

        def grow(session: Any, epoch: int, metrics: dict[str, float]) -> None:
            settings["scale"] = 2.0

        return make_job(dataset=lambda: Data(*make_data().tensors), on_epoch=grow)

    with session_of(make()) as session:
        take_steps(session, 6)
        session.save_checkpoint(tmp_path)
        wanted = take_steps(session, 2)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        assert session.notes == ()
        assert take_steps(session, 2) == wanted


def test_numbers_that_a_loop_sets_in_modules_are_put_back(tmp_path: Path) -> None:
    """A rate of dropout that a loop lowers was that of the start after a break, without a word."""
    with session_of(make_job()) as session:
        take_steps(session, 1)
        session.model[1].p = 0.25
        session.model.eval()
        session.save_checkpoint(tmp_path)
    with session_of(make_job()) as session:
        session.load_checkpoint(tmp_path)
        assert (session.model[1].p, session.model[1].training, session.notes) == (0.25, True, ())


@pytest.mark.parametrize(
    ("register", "said"),
    [
        (lambda session: session.optimizer.register_step_pre_hook(lambda *_: None), "hooks on the step"),
        (lambda session: session.model[0].weight.register_hook(lambda one: 2 * one), "gradient of 0.weight"),
        (lambda session: session.model[0].register_forward_hook(lambda *_: None), "hooks of 0"),
        (lambda session: session.model.__setitem__(1, torch.nn.Dropout(0.3)), "another module 1"),
        (lambda session: setattr(session.model[1], "forward", lambda one: one), "forward of 1"),
    ],
)
def test_what_callbacks_register_or_replace_once_is_said(register: Any, said: str, tmp_path: Path) -> None:
    """After a break nobody registers them again, and the training went on without."""

    def make() -> Job:
        return make_job(on_step=lambda session, step, _: register(session) if not step else None)

    with session_of(make()) as session:
        take_steps(session, 2)
        session.save_checkpoint(tmp_path)
    with session_of(make()) as session:
        session.load_checkpoint(tmp_path)
        take_steps(session, 1)
        (note,) = session.notes
        assert said in note


@pytest.mark.parametrize("again", [False, True])
def test_what_a_loop_registers_at_the_first_step_only_is_said(
    again: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loop went on without, and nobody was told; what it registers again after it has loaded is not missing."""

    def register(session: Any) -> None:
        session.model[0].weight.register_hook(lambda one: 2 * one)
        session.model[2].register_full_backward_hook(lambda *_: None)

    with session_of(make_job()) as session:
        register(session)
        take_steps(session, 1)
        session.save_checkpoint(tmp_path)
    with session_of(make_job()) as session:
        session.load_checkpoint(tmp_path)
        if again:
            register(session)
        take_steps(session, 2)
        assert [("gradient of 0.weight" in one, "hooks of 2" in one) for one in session.notes] == [(True, True)] * (
            not again
        )
    assert ("hooks of 2" in capfd.readouterr().err) is not again


class Lazy(torch.nn.Module):
    """Takes an activation, and hooks itself, when it is first called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "activation"):
            self.register_forward_hook(lambda *_: None)
        self.activation = functools.partial(torch.nn.functional.elu, alpha=0.5)
        return self.activation(x)


def test_what_forwards_hook_and_replace_themselves_is_not_missing(tmp_path: Path) -> None:
    """They do so again, and a note said that the training goes on without."""
    lazy = make_job(model=lambda: torch.nn.Sequential(torch.nn.Linear(3, 1), Lazy()))
    for number in range(2):
        with session_of(lazy) as session:
            assert session.load_checkpoint(tmp_path, missing_ok=True) is bool(number)
            take_steps(session, 1)
            session.save_checkpoint(tmp_path)
            assert not session.notes


@pytest.mark.parametrize("kept", [False, True])
def test_a_schedule_that_a_loop_makes_is_said_to_begin_anew(tmp_path: Path, kept: bool) -> None:
    """The rates of the training that went on were others, without a word."""
    for number in range(2):
        with session_of(make_job(lr_schedule=None)) as session:
            assert session.optimizer is not None
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(session.optimizer, T_max=8)
            assert session.load_checkpoint(tmp_path, missing_ok=True) is bool(number)
            if number and kept:
                schedule.load_state_dict(session.carried["schedule"])
            take_steps(session, 1)
            schedule.step()
            if kept:
                session.carried["schedule"] = schedule.state_dict()
            session.save_checkpoint(tmp_path)
            assert any("Job.lr_schedule" in note for note in session.notes) is (number == 1 and not kept)
    scheduled = make_job(lr_schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8))
    for _ in range(2):
        with session_of(scheduled) as session:
            session.load_checkpoint(tmp_path / "scheduled", missing_ok=True)
            take_steps(session, 1)
            session.save_checkpoint(tmp_path / "scheduled")
            assert not session.notes


def test_modes_that_a_loop_sets_are_put_back(tmp_path: Path) -> None:
    """A layer that a loop holds in evaluation drew again after a break; that the loop evaluates as it saves is none."""
    with session_of(make_job()) as session:
        session.model[1].eval()
        take_steps(session, 1)
        session.model.eval()
        session.save_checkpoint(tmp_path)
    for _ in range(2):
        with session_of(make_job()) as session:
            session.load_checkpoint(tmp_path)
            assert [one.training for one in session.model] == [True, False, True]
            assert session.model.training
            # It evaluates what it has loaded, and saves that without a step.
            session.model.eval()
            session.save_checkpoint(tmp_path)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def test_a_damaged_one_is_named_and_the_one_before_it_taken(tmp_path: Path) -> None:
    with session_of(make_job()) as session:
        losses = take_steps(session, 2)
        session.save_checkpoint(tmp_path)
        losses += take_steps(session, 2)
        newest = session.save_checkpoint(tmp_path)
        losses += take_steps(session, 1)
    assert newest is not None
    damage(newest / "rank0.safetensors")
    damage(newest / "state.json")
    source = JobSource(reference=f"{Path(__file__)}:make_job")
    assert check_resumable(tmp_path, source) is None
    with raises("checkpoint.damaged", CorruptDataError):
        check_resumable(newest, source)
    with session_of(make_job()) as session:
        with raises("checkpoint.named-is-damaged", CorruptDataError, match=r"rank0\.safetensors"):
            session.load_checkpoint(newest)
        session.load_checkpoint(tmp_path)
        assert session.recovered is not None
        assert (session.steps, session.recovered.step) == (2, 2)
        assert Path(session.recovered.path) == tmp_path / "step-00000002"
        (passed_over,) = session.recovered.passed_over
        assert (passed_over.path, session.notes) == (str(newest), (str(passed_over),))
        assert "rank0.safetensors" in passed_over.reason
        assert take_steps(session, 1) == losses[2:3]


def test_a_save_that_fails_leaves_the_checkpoint_before_it_the_newest(tmp_path: Path) -> None:
    where, aside = tmp_path / "checkpoints", tmp_path / "aside"
    with session_of(make_job()) as session:
        take_steps(session, 1)
        made = session.save_checkpoint(where)
        take_steps(session, 1)
        where.rename(aside)
        where.touch()
        with pytest.raises(trimaran.TrimaranError, match="checkpoints"):
            session.save_checkpoint(where)
        assert session.saved == made
        assert not session.is_saved(where)


def test_a_save_that_fails_leaves_the_training_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "checkpoints"
    with session_of(make_job()) as session:
        losses = take_steps(session, 1)
        session.save_checkpoint(where, wait=False)
        losses += take_steps(session, 2)
        with pytest.raises(trimaran.TrimaranError, match="file"):
            session.save_checkpoint(where)
        assert len(losses) == 3
        assert any("was not written" in note for note in session.notes)


def test_a_save_that_fails_is_said_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    checkpoints = tmp_path / "checkpoints"
    checkpoints.touch()
    # The thread that writes has the time to find out.
    with session_of(make_job(on_step=lambda *_: time.sleep(0.1))) as session:
        world = SimpleNamespace(report=told.append, rank=0)
        cadence = Cadence(parse_saving("2"), session.executor.agreement, 0)
        assert len(_train_epochs(session, world, cadence, checkpoints)) == 2  # type: ignore[arg-type]
    kinds = [next(iter(event)) for event in told]
    assert 0 < kinds.index("not_saved") < kinds.index("finished")
    listen = _listener(RunRecord(RunDirectory(path=tmp_path)), _Stopping(), ignore_progress)
    listen(0, told[kinds.index("not_saved")])
    assert "was not written" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change", [lambda state: {}, lambda state: {**state, "state": {"version": 9}}, lambda state: {"tensors": 3}]
)
def test_what_is_no_state_is_refused(change: Callable[[Any], Any], saved: tuple[Path, list[float], bytes]) -> None:
    state = pickle.loads(saved[2])  # noqa: S301 made above
    with session_of(make_job()) as session, pytest.raises((InputError, CorruptDataError)):
        session.load_state_dict(change(state))
