"""What a trial says of strangers' jobs where nothing else judges them: no right one is flagged, wrong ones are.

The others are refused by what stays: the runtime, the trial of the optimizer, and the session while callbacks run.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.distributed.training import full_batch
from tests.field.cells import COMBINED, KINDS, OPTIMIZERS, Answer, _on_ranks, _world, cells_apart
from tests.field.test_strangers import ENTRIES, ONCE_WRONG

from trimaran.base.job import Job
from trimaran.features.training.session import Session
from trimaran.graph.behaviour import weighed
from trimaran.graph.capture.capture import capture, capture_and_look
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import needs_graph, splits_batches
from trimaran.trial.trial import try_plan

LIMIT_S = 200.0

# Told by a difference, where the runtime does not refuse them: one of each kind of cause.
FLAGGED = (
    "noise_generator",
    "staged_by_calls",
    "tied_by_data",
    "labels_masked_in_forward",
    "labels_replaced",
    "kept_in_default",
    "read_together",
    "counted_over_ranks",
    "private",
    "by_activations",
    "rate_by_model",
)
RIGHT = tuple(name for name, (_, verdict) in ONCE_WRONG.items() if verdict == "equal")


def tried(name: str) -> Iterator[str]:
    """What the trial of a job under its kind of plan says."""
    entry = ENTRIES[name]

    def made() -> Job:
        job = entry.job()
        return job if entry.own_optimizer else replace(job, optimizer=OPTIMIZERS["sgd"])

    captured = capture_and_look(made())
    seen, strategy = captured.graph.behaviour, {**KINDS, **COMBINED}[ONCE_WRONG[name][0]].fit(captured.graph)

    def make() -> Job:
        return weighed(made(), seen, splits=splits_batches(strategy))

    def open_session(world: World, job: Job) -> Session:
        batch = full_batch(job.global_batch_size, strategy)
        program = lower(captured.graph, strategy, batch=batch, clip=job.clip_norm is not None)
        own = capture(job) if needs_graph(strategy) else None
        evaluation = lower_evaluation(captured.graph, strategy, batch=batch)
        return Session(job, strategy, program, own, world, owns_world=False, evaluation=evaluation)

    def work(rank: int) -> Answer:
        join = partial(_world, rank, strategy.devices, folder)
        try:
            draws = seen is None or seen.draws
            return Answer(raised=("equal", str(try_plan(rank, join, make, open_session, strategy, draws=draws))))
        except Exception as error:  # noqa: BLE001
            return Answer(raised=("different", str(error)))

    with TemporaryDirectory(prefix="tried-") as folder:
        answers = _on_ranks(strategy.devices, work, Path(folder))
    said = [answers] if isinstance(answers, str) else [one.raised[1] for one in answers if one.raised is not None]
    # Rank 0 alone knows how many steps were compared.
    yield next((one for one in said if not one.startswith("verified: 0 steps")), said[0])


@pytest.mark.sweep
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", [*RIGHT, *FLAGGED])
def test_what_a_trial_flags_is_wrong(name: str, tmp_path: Path) -> None:
    (said,) = cells_apart(tried, name, folder=tmp_path, limit_s=LIMIT_S)
    wanted = ("step ", "rank 0 found") if name in FLAGGED else ("verified: 6 steps", "not verified: ")
    assert said.startswith(wanted), said
