"""What ranks do in the tests of checkpoints: train, save, and go on in a new session, several runs in one world."""

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.jobs import make_job
from tests.distributed.training import Run, captured, full_batch

from trimaran.base.errors import InputError, TrimaranError
from trimaran.features.training.session import Session
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.runtime.step.on_nan import OnNan
from trimaran.runtime.whole_state import WholeState

KINDS = ("parameter", "buffer", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A training that is cut in two.

    Attributes:
        run: of which `steps` are all
        at: steps after which it is saved
        waits: the save is waited for; False: it is written while three more steps are done
    """

    run: Run
    at: int
    waits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A training without a break, and its second half in another session, on one rank.

    Attributes:
        losses: without a break, in bits
        resumed: of the second half
        weights: at the end, whole, on rank 0
        resumed_weights: the same of the second half
        history: of the epochs
        resumed_history: the same
        notes: of the second half
        moved: bytes that the second half's memory plan moves in a step and has of the optimizer on the host; None:
            there is no memory plan
    """

    losses: list[str]
    resumed: list[str]
    weights: dict[str, torch.Tensor]
    resumed_weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    resumed_history: list[dict[str, Any]]
    notes: tuple[str, ...]
    moved: int | None


class Kept:
    """An object of `Job.state`."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"large": torch.zeros(10_000), "steps": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def open_session(world: World, run: Run, on_nan: OnNan = "stop") -> Session:
    """The session of a run."""
    job, made = replace(make_job(run.job), state=[Kept()]), captured(run.job)
    strategy = fitted(run, made.graph).fit(made.graph)
    batch = full_batch(job.global_batch_size, strategy)
    return Session(
        job,
        strategy,
        lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
        made,
        world,
        owns_world=False,
        evaluation=lower_evaluation(made.graph, strategy, batch=batch),
        on_nan=on_nan,
    )


def open_in_turn(world: World, run: Run, times: int) -> list[int]:
    """The threads of this rank after each of some sessions that were trained, saved and closed."""
    found = []
    for _ in range(times):
        session = open_session(world, run)
        session.step(next(session.shares()))
        session.weights()
        session.close()
        gc.collect()
        found.append(len(list(Path("/proc/self/task").iterdir())))
    return found


def fitted(run: Run, graph: Graph) -> Run:
    """The run with the shards of its graph, where tensors are shared."""
    shards = find_shards(graph, run.strategy.tp) if run.strategy.tp > 1 else ()
    return replace(run, strategy=replace(run.strategy, shards=shards))


def take_steps(session: Session, until: int) -> Iterator[str]:
    """Train until so many steps are done in all, epoch after epoch; the loss of each, in bits."""
    if session.steps >= until:
        return
    while session.epoch < session.job.epochs:
        number = session.epoch
        for share in session.shares():
            yield session.step(share).hex()
            if session.steps == until:
                return
        session.end_epoch(number)


def cut_all(world: World, cuts: list[Cut], folder: str) -> list[Halves]:
    """Each training without a break, then in two halves."""
    return [_cut(world, cut, Path(folder) / str(number)) for number, cut in enumerate(cuts)]


def _cut(world: World, cut: Cut, folder: Path) -> Halves:
    whole = open_session(world, cut.run)
    losses, weights, history = [*take_steps(whole, cut.run.steps)], whole.weights(), whole.history
    whole.close()
    first = open_session(world, cut.run)
    first.check_saving(folder)
    before = [*take_steps(first, cut.at)]
    assert before == losses[: cut.at]
    first.carried["best"] = (0.5, "of rank 0")
    first.job.state[0].state = {"large": torch.arange(10_000), "steps": cut.at}
    made = first.save_checkpoint(folder, wait=cut.waits)
    assert (made is not None) == cut.waits
    # What is saved is that of the moment, whatever comes then.
    more = [*itertools.islice(take_steps(first, cut.run.steps), 3)]
    assert cut.waits or more == losses[cut.at : cut.at + 3]
    first.close()
    second = open_session(world, cut.run)
    second.load_checkpoint(folder)
    assert second.steps == cut.at
    assert second.carried == {"best": (0.5, "of rank 0")}
    kept = second.job.state[0].state
    assert kept["steps"] == cut.at
    assert torch.equal(kept["large"], torch.arange(10_000))
    resumed = [*take_steps(second, cut.run.steps)]
    found = Halves(
        losses=losses,
        resumed=resumed,
        weights=weights,
        resumed_weights=second.weights(),
        history=history,
        resumed_history=second.history,
        notes=second.notes,
        moved=moved(second),
    )
    second.close()
    return found


def moved(session: Session) -> int | None:
    """What the memory plan of a session has moved in its last step, and has of the optimizer's state on the host."""
    report = session.memory
    return None if report is None else (report.to_host_bytes or 0) + report.state_host_bytes


# ---------------------------------------------------------------------------------------------------------------------
# From one plan to another


def save_all(world: World, runs: list[Run], folder: str) -> list[tuple[WholeState, dict[str, Any]]]:
    """Some steps of each run, a checkpoint of it, and the whole state of that moment; whole tensors in memory too."""
    found = []
    for number, run in enumerate(runs):
        session = open_session(world, run)
        session.check_saving(Path(folder) / str(number))
        assert len([*take_steps(session, run.steps)]) == run.steps
        session.save_checkpoint(Path(folder) / str(number))
        found.append((session.executor.full_state(kinds=KINDS), session.state_dict()))
        session.close()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A checkpoint, and the run that goes on from it.

    Attributes:
        source: folder of the checkpoint, or a state that `Session.state_dict` gave
        run: whose first step is taken
        back: folder in which the state is saved again before that step
    """

    source: str | dict[str, Any]
    run: Run
    back: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What a rank has after it went on.

    Attributes:
        state: the whole one, on rank 0, before a step is taken
        tensors: of `Session.state_dict` then, on rank 0
        random: of the rank's generator of torch
        loss: of the next step
        notes: of the session
    """

    state: WholeState
    tensors: dict[str, torch.Tensor]
    random: bytes
    loss: float
    notes: tuple[str, ...]


def change_all(world: World, changes: list[Change]) -> list[Changed]:
    """Go on from each checkpoint under another plan."""
    found = []
    for change in changes:
        session = open_session(world, change.run)
        if isinstance(change.source, str):
            session.load_checkpoint(change.source)
        else:
            session.load_state_dict(change.source if world.rank == 0 else {})
        state = session.executor.full_state(kinds=KINDS, compare=True)
        assert not state.differing
        tensors = session.state_dict().get("tensors", {})
        session.save_checkpoint(change.back)
        random = torch.get_rng_state().numpy().tobytes()
        share = next(session.shares())
        loss = session.step(share)
        found.append(Changed(state=state, tensors=tensors, random=random, loss=loss, notes=session.notes))
        session.close()
        if world.size > 1:
            dist.barrier()
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Which samples are trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a rank trained on.

    Attributes:
        inputs: its share of each global batch
        epochs: that have ended then
        refused: what was said to a checkpoint between a batch and its step
    """

    inputs: list[torch.Tensor]
    epochs: int
    refused: str


def train_on(world: World, run: Run, source: str | None, folder: str) -> Read:
    """Go on for some steps in a loop of the user's kind, and save."""
    session = open_session(world, run)
    if source is not None:
        session.load_checkpoint(source)
    inputs: list[torch.Tensor] = []
    refused, until = "", session.steps + run.steps
    for batch in session.batches():
        if not inputs:
            try:
                session.save_checkpoint(folder)
            except InputError as error:
                refused = error.code
        inputs.append(batch[0].clone() if batch else torch.empty(0))
        session.step(batch)
        if session.steps == until:
            break
    session.save_checkpoint(folder)
    found = Read(inputs=inputs, epochs=len(session.history), refused=refused)
    session.close()
    return found


# ---------------------------------------------------------------------------------------------------------------------
# What only one rank cannot save


def refuse_all(world: World, run: Run, folder: str) -> list[str]:
    """The codes that this rank is told where one of them cannot save; then the state is saved after all."""
    session = open_session(world, run)
    assert len([*take_steps(session, run.steps)]) == run.steps
    optimizer, training = session.optimizer, session.executor.training
    assert optimizer is not None
    codes: list[str] = []

    def refused(save: Callable[[Path], Any]) -> None:
        try:
            save(Path(folder))
        except TrimaranError as error:
            codes.append(error.code)

    if world.rank == 0:
        training.expected_bytes = lambda: 2**62  # type: ignore[method-assign]
    refused(session.check_saving)
    if world.rank == 1:
        session.carried["odd"] = object()
    refused(session.save_checkpoint)
    session.carried.clear()
    if world.rank == 1:
        optimizer.state["odd"] = object()
    refused(session.save_checkpoint)
    optimizer.state["odd"] = world.rank
    refused(session.save_checkpoint)
    del optimizer.state["odd"]
    session.save_checkpoint(folder)
    session.close()
    return codes
