"""Callbacks see and change what those of a plain loop would, on every rank; what cannot be followed is refused."""

import copy
import dataclasses
import functools
import itertools
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed import called
from tests.distributed.called import Diary, make_job, train_plainly
from tests.distributed.training import even_boundaries, full_batch
from tests.forks.client import launch, server
from tests.forks.server import may_capture
from tests.raising import raises
from torch.utils.data import Subset, TensorDataset

from trimaran.base.errors import TrimaranError
from trimaran.base.job import Job
from trimaran.features.training.rank import TrainOptions, train_rank
from trimaran.features.training.session import Session
from trimaran.graph.capture.capture import Capture, capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.plan_file import Plan, program_lines
from trimaran.program.strategy import Strategy
from trimaran.program.text import format_program

REPLICAS = builders.strategy(dp=2, microbatches=2)
HOMES = builders.strategy(dp=2, sync="p2p")
ZERO1 = builders.strategy(dp=2, zero=1, bucket_bytes=512)
ZERO2 = builders.strategy(dp=2, zero=2, units=("first", "third"))
ZERO3 = builders.strategy(dp=2, zero=3, units=("first", "third"))
PIPELINE = builders.strategy(pp=2, schedule="1f1b", microbatches=4)
TENSORS = builders.strategy(tp=2, microbatches=2)
IN_PARTS = (ZERO2, ZERO3, PIPELINE, TENSORS)


@functools.cache
def captured() -> Capture:
    """The network of all jobs here, captured once in a process; each session has a copy of it."""
    return capture(make_job())


def capture_before() -> None:
    """Called in the process that ranks are forked from."""
    if may_capture():
        captured()


@pytest.fixture(scope="module", autouse=True)
def _captured() -> None:
    server().call(capture_before)


def open_session(world: World, job: Job, strategy: Strategy) -> Session:
    made = copy.deepcopy(captured())
    boundaries = even_boundaries(made.graph.split_points, strategy.pp)
    shards = find_shards(made.graph, strategy.tp, layers=True) if strategy.tp > 1 else ()
    strategy = dataclasses.replace(strategy, boundaries=boundaries, shards=shards)
    program = lower(made.graph, strategy, batch=full_batch(job.global_batch_size, strategy), clip=True)
    return Session(job, strategy, program, made, world, owns_world=False)


def diary_under(strategy: Strategy) -> Diary:
    """What callbacks may do under a strategy."""
    return Diary(freezes=strategy in (REPLICAS, builders.strategy()), whole=strategy not in IN_PARTS)


def keep_diaries(world: World, strategies: list[Strategy]) -> list[tuple[list[Any], dict[str, torch.Tensor]]]:
    """Train in a loop of one's own under each; what the callbacks saw, and the weights at the end."""
    found = []
    for strategy in strategies:
        diary = diary_under(strategy)
        session = open_session(world, make_job(diary.on_step, diary.on_epoch), strategy)
        for batch in session.batches():
            session.step(batch)
        found.append((diary.told, session.weights()))
        session.close()
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategies", [[builders.strategy()], [REPLICAS, HOMES, ZERO1, ZERO3, PIPELINE]], ids=["1 rank", "2 ranks"]
)
def test_callbacks_do_as_in_a_plain_loop(strategies: list[Strategy], tmp_path: Path) -> None:
    """Averaged weights are put in for an evaluation and taken out; a buffer, learning rates and frozen layers change;
    the last rank alone stops the run in its fourth epoch. To 1e-10 over 14 steps."""
    ranks = launch(keep_diaries, (strategies,), ranks=strategies[0].devices, log_dir=tmp_path, device="cpu")
    for number, strategy in enumerate(strategies):
        plain = diary_under(strategy)
        model = train_plainly(make_job(plain.on_step, plain.on_epoch))
        for rank in ranks:
            assert len(rank[number][0]) == len(plain.told) == called.STOPS_AT + 1 + called.EPOCHS
            for seen, expected in zip(rank[number][0], plain.told, strict=True):
                assert seen == (expected[0], *(pytest.approx(one, abs=1e-10) for one in expected[1:])), strategy.name
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(ranks[0][number][1][name], weight, rtol=0, atol=1e-10)


def train_by_plan(world: World, plan: Plan, evaluation: str, folder: Path) -> tuple[list[Any], Any]:
    source = JobSource(reference=f"{called.__file__}:diary")
    result = train_rank(world, source, plan, None, evaluation, folder, TrainOptions())
    import trimaran_user_called  # type: ignore[import-not-found]

    return trimaran_user_called.DIARY.told, result.epochs


@pytest.mark.timeout(120)
def test_a_run_of_the_command_calls_them_as_a_loop_of_ones_own(tmp_path: Path) -> None:
    """The run ends with the stopped epoch, which is evaluated as any other."""
    graph = capture(make_job()).graph
    lowered = lower(graph, REPLICAS, batch=called.BATCH, clip=True)
    plan = builders.plan(
        job="called",
        strategy=REPLICAS,
        premises=builders.premises(
            graph_digest=graph.digest,
            global_batch_size=called.BATCH,
            devices=("one core", "one core"),
            memory_bytes=(10**9, 10**9),
            costs_digest="",
        ),
        prediction=builders.prediction(step_time_s=0.1, interval_s=(0.1, 0.1), peak_bytes=(1, 1)),
        candidates=(),
        program=program_lines(lowered),
    )
    evaluation = format_program(lower_evaluation(graph, REPLICAS, batch=called.BATCH))
    plain = Diary(freezes=True)
    train_plainly(make_job(plain.on_step, plain.on_epoch))
    (told, epochs), _ = launch(train_by_plan, (plan, evaluation, tmp_path), ranks=2, log_dir=tmp_path, device="cpu")
    for seen, expected in zip(told, plain.told, strict=True):
        assert seen == (expected[0], *(pytest.approx(one, abs=1e-10) for one in expected[1:]))
    assert [one.epoch for one in epochs] == [1, 2, 3, 4]
    assert epochs[-1].samples == (called.STOPS_AT + 1 - 3 * called.BATCHES) * called.BATCH
    assert epochs[-1].accuracy == pytest.approx(plain.told[-1][3], abs=1e-10)


def save_alone(session: Session) -> None:
    if session.rank == 0:
        session.save("never.safetensors")


def free_alone(session: Session) -> None:
    session.model.second.requires_grad_(session.rank == 0)


def change_weights_alone(session: Session) -> None:
    if session.rank == 0:
        session.model.first.weight.data.mul_(2.0)


def change_buffers_alone(session: Session) -> None:
    if session.rank == 1:
        session.model.scale.mul_(2.0)


def tune_alone(session: Session) -> None:
    if session.rank == 1 and session.optimizer is not None:
        session.optimizer.param_groups[0]["lr"] = 1.0


def free(session: Session) -> None:
    session.model.second.requires_grad_(True)


def replace_layer(session: Session) -> None:
    session.model.last = torch.nn.Linear(8, 3).double()


def change_weights(session: Session) -> None:
    for weight in session.model.parameters():
        weight.data.mul_(0.5)


def replace_step(session: Session) -> None:
    if session.optimizer is not None:
        plain = session.optimizer.step
        session.optimizer.step = lambda *_: plain()  # type: ignore[method-assign]


def draw_rate(session: Session) -> None:
    if session.optimizer is not None:
        session.optimizer.param_groups[0]["lr"] = random.random()


def take_step(session: Session) -> None:
    session.step(None)


CASES: list[tuple[Strategy, Callable[[Session], None], str]] = [
    (REPLICAS, save_alone, r"rank 0 calls session.save\(\), and rank 1 is done"),
    (REPLICAS, free_alone, "changed requires_grad of other parameters on some ranks only"),
    (REPLICAS, change_weights_alone, "changed weights on some ranks only"),
    (REPLICAS, change_buffers_alone, "changed the buffer scale on some ranks only"),
    (REPLICAS, tune_alone, "changed the options of the optimizer on some ranks only"),
    (REPLICAS, replace_layer, r"replaced last.bias, last.weight"),
    (REPLICAS, take_step, "cannot take a step"),
    (HOMES, free, "changed requires_grad of second.bias, second.weight, which cannot be followed under"),
    (ZERO1, free, "cannot be followed under"),
    (PIPELINE, draw_rate, "changed the options of the optimizer in another way on some ranks only"),
    (ZERO3, draw_rate, "changed the options of the optimizer in another way on some ranks only"),
    *((strategy, change_weights, "uses session.model, and under") for strategy in IN_PARTS),
    (ZERO1, replace_step, "put another function into the place of the optimizer's step, and under dp2 zero1"),
]


def provoke(world: World) -> list[str]:
    """What each case says, as a callback of one kind and of the other in turns."""
    told = []
    for number, (strategy, do, _) in enumerate(CASES):
        name = ("on_step", "on_epoch")[number % 2]
        job = make_job(**{name: lambda session, number, metrics, do=do: do(session)})
        session = open_session(world, job, strategy)
        try:
            session.step(next(session.batches())) if name == "on_step" else session.end_epoch(0, evaluate=False)
            told.append("nothing")
        except TrimaranError as error:
            told.append(f"{type(error).__name__}: {error}")
        session.close()
    return told


@pytest.mark.timeout(120)
def test_what_ranks_do_not_do_alike_or_cannot_follow_is_refused_on_all(tmp_path: Path) -> None:
    for rank in launch(provoke, ranks=2, log_dir=tmp_path, device="cpu"):
        for (_, _, message), told in zip(CASES, rank, strict=True):
            assert re.match(f"InputError: .*{message}", told), told


def read_in_loop(world: World) -> list[str]:
    """What a loop of one's own is told that uses the model."""
    told = []
    for strategy in (REPLICAS, HOMES, ZERO1, *IN_PARTS):
        with open_session(world, make_job(), strategy) as session:
            told.append(refusal_of(lambda session=session: session.model))
    return told


def add_penalty(session: Session) -> None:
    torch.stack([one.square().sum() for one in session.model.parameters()]).sum().backward()


def clip_in_step(session: Session) -> None:
    assert session.optimizer is not None
    session.optimizer.register_step_pre_hook(lambda optimizer, *_: None)


def draw_weights(session: Session) -> None:
    with torch.no_grad():
        for one in session.model.parameters():
            one.add_(0.1 * session.rank)


def give_up_parameters(session: Session) -> None:
    if session.optimizer is not None:
        session.optimizer.param_groups[0]["params"] = []


def evaluate_alone(session: Session) -> None:
    if session.rank == 0:
        session.model.eval()


def change_placed(session: Session) -> None:
    """What a rank has, as its optimizer knows it."""
    for one in session.optimizer.param_groups[0]["params"] if session.optimizer is not None else ():
        one.data.mul_(0.5)


def train_itself(session: Session) -> None:
    """As scripts have it that were made for one process."""
    backward_of_loop(session, session.batches())
    assert session.optimizer is not None
    session.optimizer.step()


def train_by_another(session: Session) -> None:
    optimizer, batches = torch.optim.SGD(session.model.parameters(), lr=0.1), session.batches()
    backward_of_loop(session, batches)
    optimizer.step()
    optimizer.zero_grad()
    next(batches)


def train_beside(session: Session) -> None:
    """A second loss, as of an auxiliary task, with another optimizer."""
    inputs, targets = batch = next(session.batches())
    session.step(batch)
    optimizer, loss = torch.optim.SGD(session.model.parameters(), lr=0.1), session.job.loss
    assert loss is not None
    loss(session.model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def backward_of_loop(session: Session, batches: Iterator[Any]) -> None:
    inputs, targets = next(batches)
    loss = session.job.loss
    assert loss is not None
    loss(session.model(inputs), targets).backward()


LOOPS: list[tuple[Strategy, Callable[[Session], None], str]] = [
    (REPLICAS, evaluate_alone, "session.unlike"),
    (ZERO1, give_up_parameters, "session.regrouped"),
    (PIPELINE, give_up_parameters, "session.regrouped"),
    (REPLICAS, add_penalty, "session.gradients-before-step"),
    (ZERO1, clip_in_step, "session.hook-on-step"),
    (REPLICAS, lambda session: session.model.first.requires_grad_(False), "session.requires-grad-changed"),
    (REPLICAS, train_itself, "session.unlike"),
    (REPLICAS, train_by_another, "session.unlike"),
    (REPLICAS, train_beside, "session.unlike"),
    (REPLICAS, draw_weights, "session.unlike"),
    (REPLICAS, tune_alone, "session.unlike"),
    (REPLICAS, change_weights, ""),
    (REPLICAS, lambda session: session.load(session.carried["saved"]), ""),
    (PIPELINE, lambda session: session.load(session.carried["saved"]), ""),
    (PIPELINE, change_placed, "session.changes-parts"),
    (ZERO3, change_placed, "session.changes-parts"),
]


def leave_behind(world: World, folder: Path) -> list[str]:
    """What a loop of one's own is told of what it did between two steps."""
    told = []
    for strategy, do, _ in LOOPS:
        session = open_session(world, make_job(), strategy)
        session._begin_loop()
        session.step(next(session.batches()))
        session.save(folder / "saved.safetensors")
        session.carried["saved"] = str(folder / "saved.safetensors")
        try:
            do(session)
            told.append(refusal_of_step(session))
        except TrimaranError as error:
            told.append(error.code)
        session.close()
    return told


@pytest.mark.timeout(120)
def test_a_loop_of_ones_own_leaves_ranks_alike_or_is_refused(tmp_path: Path) -> None:
    """Each rank would have trained something else, and nobody would have been told."""
    refused = [code for _, _, code in LOOPS]
    assert launch(leave_behind, (tmp_path,), ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def change_once(session: Session) -> None:
    if session.rank == 1:
        change_weights(session)


def refusal_of(do: Callable[[], object]) -> str:
    try:
        do()
    except TrimaranError as error:
        return error.code
    return ""


def diverge(world: World, folder: Path) -> list[str]:
    """What is told of a loop that changed weights on one rank after the third step, or before the first; or left."""
    told = []
    for strategy in (REPLICAS, ZERO1):
        for at, asked in ((0, "step"), (3, "save"), (3, "state_dict"), (3, "end_epoch"), (3, "steps")):
            session = open_session(world, make_job(), strategy)
            session._begin_loop()
            for _ in range(at):
                session.step(next(session.batches()))
            change_once(session)
            asks: dict[str, Callable[[], object]] = {
                "step": lambda session=session: session.step(next(session.batches())),
                "save": lambda session=session: session.save(folder / "saved.safetensors"),
                "state_dict": session.state_dict,
                "end_epoch": lambda session=session: session.end_epoch(0),
                "steps": lambda session=session: [session.step(next(session.batches())) for _ in range(2)],
            }
            told.append(refusal_of(asks[asked]))
            session.close()
    return told


@pytest.mark.timeout(120)
def test_what_a_loop_changed_once_on_one_rank_is_seen_before_it_is_kept(tmp_path: Path) -> None:
    """Also where no step is near after which ranks ask each other."""
    refused = ["session.unlike"] * 10
    assert launch(diverge, (tmp_path,), ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def leave_out(world: World) -> str:
    """A loop that leaves out a global batch by what a rank has of it."""
    session = open_session(world, make_job(), REPLICAS)
    session._begin_loop()
    batches = session.batches()
    session.step(next(batches))
    if session.rank == 1:
        next(batches)
    return refusal_of(lambda: session.step(next(batches)))


@pytest.mark.timeout(120)
def test_ranks_that_take_shares_of_other_global_batches_are_refused(tmp_path: Path) -> None:
    refused = "session.unlike-batches"
    assert launch(leave_out, ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def shuffle_apart(world: World) -> list[str]:
    """A loop of its own batches, which ranks of a pipeline have in the same order, or in one of their own."""
    told = []
    job = make_job()
    rows = [job.dataset()[number] for number in range(job.global_batch_size)]
    for order in (rows, rows if world.rank else rows[::-1]):
        session = open_session(world, job, PIPELINE)
        session._begin_loop()
        batch = torch.utils.data.default_collate(order)
        told.append(refusal_of(lambda session=session, batch=batch: [session.step(batch) for _ in "12"]))
        session.close()
    return told


@pytest.mark.timeout(120)
def test_ranks_of_a_pipeline_that_are_given_other_samples_are_refused(tmp_path: Path) -> None:
    """One has the inputs, another the targets."""
    refused = ["", "session.unlike-in-replica"]
    assert launch(shuffle_apart, ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def keep_state_itself(world: World, folder: Path) -> list[str]:
    """A loop that keeps the state of its optimizer itself, of replicas that update everything and of others."""
    told = []
    for strategy in (REPLICAS, HOMES, ZERO1, ZERO3, PIPELINE, TENSORS):
        session = open_session(world, make_job(), strategy)
        session._begin_loop()
        session.step(next(session.batches()))
        session.save_checkpoint(folder / strategy.name)
        session.load_checkpoint(folder / strategy.name)
        optimizer = session.optimizer
        if optimizer is None:
            # This rank updates nothing.
            session.close()
            continue
        groups = [{**one, "params": [*range(len(one["params"]))]} for one in optimizer.param_groups]
        state = {"state": {}, "param_groups": groups}
        told.append(refusal_of(optimizer.state_dict))
        told.append(refusal_of(lambda one=optimizer, state=state: one.load_state_dict(state)))
        session.close()
        optimizer.state_dict()
    return told


@pytest.mark.timeout(120)
def test_state_of_a_part_is_not_kept_for_that_of_all(tmp_path: Path) -> None:
    """A file of rank 0's was loaded by every rank: other parameters, of the same shapes, got its moments."""
    told, other = launch(keep_state_itself, (tmp_path,), ranks=2, log_dir=tmp_path, device="cpu")
    assert told == ["", "", *["optimizer.state-in-parts"] * 10]
    assert set(other[2:]) == {"optimizer.state-in-parts"}


def give_all_the_same(world: World) -> list[str]:
    """A loop of its own batches: replicas have the same samples, their shares, or samples that are all alike."""
    told, job, half = [], make_job(), make_job().global_batch_size // 2
    rows = [job.dataset()[number] for number in range(job.global_batch_size)]
    for share in (rows[:half], rows[half * world.rank :][:half], rows[:1] * half):
        session = open_session(world, job, REPLICAS)
        session._begin_loop()
        batch = torch.utils.data.default_collate(share)
        told.append(refusal_of(lambda session=session, batch=batch: [session.step(batch) for _ in range(6)]))
        session.close()
    return told


@pytest.mark.timeout(120)
def test_replicas_that_are_given_the_same_samples_are_refused(tmp_path: Path) -> None:
    """A loop over its own loader, without a sampler for its rank, trained on half of the data."""
    refused = ["session.alike-in-replicas", "", ""]
    assert launch(give_all_the_same, ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def give_the_model(world: World) -> list[list[str]]:
    """A loss, a schedule and an optimizer read a weight of the model that a loop, or a callback, gives them later."""
    told = []
    for strategy in (REPLICAS, HOMES):
        held: list[Any] = []

        def norm(held: list[Any] = held) -> float:
            return sum(float(one.first.weight.detach().norm()) for one in held)

        class Scaled(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure: Any = None, norm: Any = norm) -> Any:  # type: ignore[override]
                self.param_groups[0]["lr"] = 0.1 + norm()
                return super().step(closure)

        def on_step(session: Any, step: int, metrics: Any, held: list[Any] = held) -> None:
            held[:] = [session.model]

        def loss(output: torch.Tensor, target: torch.Tensor, norm: Any = norm) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(output * (1 + norm()), target)

        def schedule(optimizer: Any, norm: Any = norm) -> Any:
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + norm())

        fields: tuple[dict[str, Any], ...] = (
            {"loss": loss},
            {"lr_schedule": schedule},
            {"optimizer": lambda parameters, kind=Scaled: kind(parameters, lr=0.1)},
        )
        of_plan = []
        for field, by_callback in [(fields[0], False), *((field, True) for field in fields)]:
            held.clear()
            session = open_session(world, make_job(on_step if by_callback else None, **field), strategy)
            held += [] if by_callback else [session.model]
            batches = session.batches()
            of_plan.append(refusal_of(lambda session=session, take=batches: [session.step(next(take)) for _ in "12"]))
            session.close()
        told.append(of_plan)
    return told


@pytest.mark.timeout(120)
def test_what_is_given_the_model_later_is_refused_where_a_rank_has_a_part(tmp_path: Path) -> None:
    """Losses, rates and steps went by weights of another stage as they were at the start, or by shares."""
    wanted = [[""] * 4, ["", "", "strategy.not-exact", ""]]
    assert launch(give_the_model, ranks=2, log_dir=tmp_path, device="cpu") == [wanted, wanted]


TERMS = (lambda output: output.square().mean(), lambda output: output.var(0).mean())


class Dropping(torch.nn.Module):
    """Draws in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


def seed_alike(world: World) -> list[str]:
    told = []
    for seed in (lambda: None, lambda: torch.manual_seed(1)):
        job = dataclasses.replace(make_job(), model=lambda: Dropping().double())
        made = capture(job)
        strategy = builders.strategy(dp=2)
        program = lower(made.graph, strategy, batch=full_batch(job.global_batch_size, strategy), clip=True)
        session = Session(job, strategy, program, made, world, owns_world=False)
        session._begin_loop()
        seed()
        batches = session.batches()
        told.append(refusal_of(lambda batches=batches, session=session: [session.step(next(batches)) for _ in "12"]))
        session.close()
    return told


@pytest.mark.timeout(120)
def test_a_loop_that_seeds_what_replicas_draw_from_is_refused(tmp_path: Path) -> None:
    """They would draw the same for other samples."""
    refused = ["", "session.seeded-alike"]
    assert launch(seed_alike, ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


class Noisy(TensorDataset):
    """Rows with noise, which take their time; another thread may draw meanwhile."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        noise = 0.1 * torch.randn(x.shape).double()
        time.sleep(0.002)
        return x + noise, y


def fetched_in_a_thread(batches: Iterator[Any]) -> Iterator[Any]:
    """The same one by one, as another thread gives them."""
    ready: queue.Queue[Any] = queue.Queue(2)
    threading.Thread(target=lambda: [*map(ready.put, itertools.chain(batches, [None]))], daemon=True).start()
    return iter(ready.get, None)


def test_what_another_thread_fetches_draws_apart_from_a_step() -> None:
    """Dropout of a step drew what was seeded for a sample."""
    losses = []
    for fetched in (iter, fetched_in_a_thread):
        data = Noisy(*make_job().dataset().tensors)
        job = make_job(model=lambda: Dropping().double(), dataset=lambda data=data: data, epochs=1)
        made = capture(job)
        strategy = builders.strategy()
        program = lower(made.graph, strategy, batch=job.global_batch_size, clip=True)
        session = Session(job, strategy, program, made, World(), owns_world=False)
        session._begin_loop()
        losses.append([session.step(one) for one in fetched(session.batches())])
        session.close()
    assert losses[0] == losses[1]


def copied(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches that the loop has made from those that it was given."""
    for batch in batches:
        yield tuple(one.clone() for one in batch) if batch else batch


def list_batches(world: World, strategy: Strategy) -> list[list[float]]:
    """The losses of a loop over batches as they come, over a list of those of all epochs, and over copies."""
    losses = []
    for loop in (iter, list, copied, lambda batches: [*copied(batches)]):
        job = make_job(dataset=lambda: Subset(called.make_data(1), range(47)), epochs=2)
        session = open_session(world, job, strategy)
        session._begin_loop()
        losses.append([session.step(one) for one in loop(session.batches())])
        session.close()
    return losses


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [REPLICAS, dataclasses.replace(PIPELINE, pp=3)], ids=["dp2", "pp3"])
def test_a_loop_may_have_all_batches_in_a_list_and_change_them(strategy: Strategy, tmp_path: Path) -> None:
    """The last batch of each epoch has 15 samples of 16, so that one replica has as many of it as of a full one.

    It was refused where it was not among the last four, or where the loop made it from what it was given. The second of
    three stages has nothing of any batch, and was in another one than the others.
    """
    for losses in launch(list_batches, [strategy], ranks=strategy.devices, log_dir=tmp_path, device="cpu"):
        assert len(losses[0]) == 6
        assert all(one == losses[0] for one in losses)


def fetch_epochs_in_a_thread(world: World) -> str:
    session = open_session(world, make_job(), ZERO1)
    session._begin_loop()
    return refusal_of(lambda: [session.step(one) for one in fetched_in_a_thread(session.batches())])


@pytest.mark.timeout(120)
def test_epochs_that_another_thread_fetches_are_refused_before_the_first_step(tmp_path: Path) -> None:
    """What ranks agree on between epochs came in the middle of a step, and gloo aborted."""
    told = launch(fetch_epochs_in_a_thread, ranks=2, log_dir=tmp_path, device="cpu")
    assert told == ["session.another-thread"] * 2


@pytest.mark.timeout(60)
def test_what_one_rank_alone_asks_of_a_session_ends_with_its_name(tmp_path: Path) -> None:
    """The other one takes a step, and would wait for the first without an end."""
    with raises("session.called-alone", match="rank 0 after 1 steps"):
        launch(ask_alone, ranks=2, log_dir=tmp_path, device="cpu")


def ask_alone(world: World) -> None:
    session = open_session(world, make_job(), REPLICAS)
    session._begin_loop()
    batches = session.batches()
    session.step(next(batches))
    if session.rank == 0:
        session.weights()
    session.step(next(batches))


def refusal_of_step(session: Session) -> str:
    try:
        session.step(next(session.batches()))
    except TrimaranError as error:
        return error.code
    return ""


@pytest.mark.timeout(120)
def test_a_loop_of_ones_own_gets_no_part_of_a_model_for_the_whole(tmp_path: Path) -> None:
    refused = ["", "", "", *["session.model-in-parts"] * len(IN_PARTS)]
    assert launch(read_in_loop, ranks=2, log_dir=tmp_path, device="cpu") == [refused, refused]


def test_on_one_device_a_loop_may_freeze_layers() -> None:
    """It was refused, though no other rank has to hear of it."""
    session = open_session(World(), make_job(), builders.strategy())
    batches = session.batches()
    session.step(next(batches))
    session.model.first.requires_grad_(False)
    before = [one.detach().clone() for one in session.model.parameters()]
    session.step(next(batches))
    moved = {
        name.partition(".")[0]
        for (name, one), then in zip(session.model.named_parameters(), before, strict=True)
        if not torch.equal(one, then)
    }
    assert "first" not in moved
    assert "third" in moved
    session.close()


def test_between_steps_nothing_may_be_stopped() -> None:
    """Where no callback is under way, no other rank would hear of it."""
    session = open_session(World(), make_job(), builders.strategy())
    with raises("session.stop-outside-callback"):
        session.stop()
    session.close()


def test_a_loop_of_ones_own_ends_at_the_target() -> None:
    seen: list[float] = []
    job = make_job(on_epoch=lambda session, epoch, metrics: seen.append(metrics["metric"]), target=-10.0)
    session = open_session(World(), job, builders.strategy())
    steps = sum(1 for batch in session.batches() if session.step(batch))
    assert (steps, len(seen), session.stopped, session.epoch) == (called.BATCHES, 1, True, 1)
    session.close()


def test_several_optimizers_are_refused_with_the_way_that_works() -> None:
    job = make_job(optimizer=lambda parameters: [torch.optim.SGD(parameters, lr=0.1)] * 2)
    with raises("optimizer.not-an-optimizer", match=r"\b2\b.*examples/gan.py", type="list"):
        open_session(World(), job, builders.strategy())
