"""Evaluation by the same program, and weights that move between plans."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.test_equal_losses import BUCKET
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from torch.utils.data import TensorDataset, default_collate

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.user_code.model import make_model

REPLICAS = builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET)
PIPELINE = builders.strategy(pp=2, schedule="gpipe", microbatches=4)
BOTH = builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=2, bucket_bytes=BUCKET)
# Batches of 16: the last one has a single sample, so that one of two replicas has nothing to evaluate.
SAMPLES = 81


def evaluation_data(job: str) -> TensorDataset:
    return TensorDataset(*(tensor[:SAMPLES] for tensor in make_job(job).evaluation_dataset().tensors))


def train_evaluate_save(world: World, runs: list[Run], folder: str) -> list[dict[str, Any]]:
    """Train, evaluate, train on, save; then load what the first run saved, and evaluate that."""
    found = []
    for number, run in enumerate(runs):
        executor = open_executor(world, run, captured(run.job))
        losses = take_steps(executor, run.steps)
        data = evaluation_data(run.job)
        score = executor.evaluate(data)
        losses += take_steps(executor, 2)
        path = Path(folder) / f"{number}.safetensors"
        executor.save(path)
        exists = path.exists()
        executor.load(Path(folder) / f"{[other.job for other in runs].index(run.job)}.safetensors")
        found.append({"losses": losses, "score": score, "exists": exists, "loaded": executor.evaluate(data)})
        executor.close()
    return found


def evaluate_plainly(job: str, weights: dict[str, torch.Tensor]) -> float:
    """The metric over all samples, by the user's model with the weights of a file."""
    own = make_job(job)
    model = make_model(own)
    model.load_state_dict(weights)
    model.eval()
    data = evaluation_data(job)
    inputs, target = default_collate([data[index] for index in range(SAMPLES)])
    with torch.no_grad():
        return own.metric(model(inputs.double() if inputs.is_floating_point() else inputs), target)  # type: ignore[misc]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategies", [(REPLICAS, PIPELINE), (BOTH,)], ids=["2 ranks", "4 ranks"])
def test_weights_and_metrics_are_those_of_the_plain_model(strategies: tuple[Strategy, ...], tmp_path: Path) -> None:
    """A CNN, whose running statistics decide its evaluation, and a GPT, whose tied weight is in two stages.

    Metrics are the square of a share of samples, which is no mean over them, and a share of tokens, in fp32: 1e-6.
    """
    runs = [Run(job=job, strategy=strategy, steps=5) for job in ("cnn_squared", "gpt_fp64") for strategy in strategies]
    folder = tmp_path / "weights"
    ranks = launch(
        train_evaluate_save, (runs, str(folder)), ranks=strategies[0].devices, log_dir=tmp_path, device="cpu"
    )
    for number, run in enumerate(runs):
        first, *others = (rank[number] for rank in ranks)
        assert all(other == first for other in others), run.name
        assert first["exists"]
        stored = load_file(folder / f"{number}.safetensors")
        assert stored.keys() == make_job(run.job).model().state_dict().keys()
        saved_first = next(k for k, other in enumerate(runs) if other.job == run.job)
        expected = evaluate_plainly(run.job, load_file(folder / f"{saved_first}.safetensors"))
        assert first["loaded"] == pytest.approx(expected, abs=1e-6), run.name
    assert sorted(path.name for path in folder.iterdir()) == [f"{number}.safetensors" for number in range(len(runs))]


def score_before_and_after(world: World, run: Run) -> dict[str, Any]:
    """Whether an evaluation in the middle of training changes anything."""
    executor = open_executor(world, run, captured(run.job))
    losses = take_steps(executor, 2)
    executor.evaluate(evaluation_data(run.job))
    losses += take_steps(executor, 2)
    steps = executor.timeline().steps
    executor.close()
    undisturbed = open_executor(world, run, captured(run.job))
    expected = take_steps(undisturbed, 2) + take_steps(undisturbed, 2)
    undisturbed.close()
    return {"losses": losses, "expected": expected, "steps": steps}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [REPLICAS, PIPELINE], ids=["replicas", "pipeline"])
def test_an_evaluation_does_not_disturb_training(strategy: Strategy, tmp_path: Path) -> None:
    run = Run(job="cnn_fp64", strategy=strategy, steps=0)
    found = launch(score_before_and_after, (run,), ranks=2, log_dir=tmp_path, device="cpu")
    assert found[0]["losses"] == found[0]["expected"] == found[1]["losses"]
    assert found[0]["steps"] == (0, 1, 2, 3)


def load_bad_files(world: World, run: Run, folder: str) -> list[str]:
    executor = open_executor(world, run, captured(run.job))
    path = Path(folder) / "model.safetensors"
    executor.save(path)
    told = []
    if world.rank == 0:
        path.write_bytes(path.read_bytes()[:-50])
    take_steps(executor, 1)
    for name, kind in (("model.safetensors", CorruptDataError), ("missing.safetensors", InputError)):
        try:
            executor.load(Path(folder) / name)
        except kind as error:
            told.append(str(error))
    try:
        executor.evaluate(evaluation_data("gpt"))
    except InputError as error:
        told.append(str(error))
    executor.close()
    return told


@pytest.mark.timeout(120)
def test_bad_files_are_told_on_every_rank(tmp_path: Path) -> None:
    run = Run(job="gpt_without_metric", strategy=PIPELINE, steps=0)
    for told in launch(load_bad_files, (run, str(tmp_path)), ranks=2, log_dir=tmp_path, device="cpu"):
        assert [part in text for part, text in zip(("damaged", "there is no", "no metric"), told, strict=True)] == [
            True
        ] * 3
