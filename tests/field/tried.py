"""What a trial says of field jobs, where nothing else has judged them: is it equal, or does it differ?"""

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.distributed.training import full_batch
from tests.field.catalog import CATALOG
from tests.field.cells import COMBINED, KINDS, OPTIMIZERS, _world
from tests.field.test_strangers import ENTRIES

from trimaran.base.job import Job
from trimaran.features.training.session import Session
from trimaran.graph.behaviour import weighed
from trimaran.graph.capture.capture import capture, capture_and_look
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.refusals import objection
from trimaran.program.strategy import needs_graph, splits_batches
from trimaran.trial.trial import nothing_to_try, try_plan

LIMIT_S = 120.0


def tried(name: str, kind: str) -> tuple[str, str]:
    """What the look and the trial say of a cell: for each nothing, or its reason."""
    entry = {**CATALOG, **ENTRIES}[name]

    def made() -> Job:
        job = entry.job()
        return job if entry.own_optimizer else replace(job, optimizer=OPTIMIZERS["sgd"])

    try:
        captured = capture_and_look(made())
        seen = captured.graph.behaviour
        strategy = {**KINDS, **COMBINED}[kind].fit(captured.graph)
    except Exception as error:  # noqa: BLE001
        return f"before: {error}", ""
    said = objection(seen, strategy) or ""
    if untried := nothing_to_try(strategy):
        return said, f"untried: {untried}"

    def make() -> Job:
        return weighed(made(), seen, splits=splits_batches(strategy))

    def open_session(world: World, job: Job) -> Session:
        batch = full_batch(job.global_batch_size, strategy)
        own = capture(job) if needs_graph(strategy) else None
        programs = (
            lower(captured.graph, strategy, batch=batch, clip=job.clip_norm is not None),
            lower_evaluation(captured.graph, strategy, batch=batch),
        )
        return Session(job, strategy, programs[0], own, world, owns_world=False, evaluation=programs[1])

    draws = seen is None or seen.draws or seen.collate_draws
    with tempfile.TemporaryDirectory(prefix="tried-") as folder:
        pipes = []
        for rank in range(strategy.devices):
            ours, theirs = multiprocessing.Pipe()
            process = os.fork()
            if process == 0:
                log = os.open(Path(folder) / f"rank{rank}", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.setsid()
                try:
                    found = str(
                        try_plan(
                            rank,
                            partial(_world, rank, strategy.devices, folder),
                            make,
                            open_session,
                            strategy,
                            draws=draws,
                        )
                    )
                except BaseException as error:  # noqa: BLE001
                    found = f"{type(error).__name__}: {error}"
                theirs.send_bytes(pickle.dumps(found))
                os._exit(0)
            theirs.close()
            pipes.append((ours, process))
        answers = []
        end = time.monotonic() + LIMIT_S
        for ours, _ in pipes:
            try:
                answers.append(
                    pickle.loads(ours.recv_bytes()) if ours.poll(max(0.0, end - time.monotonic())) else "hang"  # noqa: S301
                )
            except EOFError:
                answers.append("died")
        for _, process in pipes:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return said, answers[0] if not answers[0].startswith("not verified") else max(answers, key=len)
