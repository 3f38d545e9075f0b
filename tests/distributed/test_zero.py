"""Replicas that share state, zero=1, 2 and 3: in fp64 the losses of one process, and the program's own collectives.

Losses to 1e-10 over 8 steps, weights to 1e-9 after them, as in `test_equal_losses`.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.live_tensors import watch_memory
from tests.distributed.test_equal_losses import compare
from tests.distributed.test_recording import record
from tests.distributed.training import Run, captured, open_executor, train_all
from tests.forks.client import launch
from tests.representative import some_and_rest

from trimaran.base.timeline import WAIT
from trimaran.graph.capture.capture import capture
from trimaran.launch.world import World
from trimaran.pricing.memory import gathered_bytes, held_state
from trimaran.program.types import Kind
from trimaran.runtime.checkpoint.take import _config

STEPS = 8
CNN = ("stem", "left", "right.0", "right.1", "mix", "residual")
UNET = ("down1", "down2", "bottom", "up2", "merge2", "up1", "merge1")
GPT = ("blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm")
LSTM = ("embedding", "lstm1", "lstm2", "head")
UNITS = {"cnn": CNN, "unet": UNET, "gpt": GPT, "lstm": LSTM, "half": LSTM, "dictionary": ("first", "third")}


def _run(job: str, zero: int, replicas: int, microbatches: int = 1) -> Run:
    units = UNITS[job.split("_")[0]] if zero > 1 else ()
    strategy = builders.strategy(dp=replicas, zero=zero, units=units, microbatches=microbatches, bucket_bytes=8192)  # type: ignore[arg-type]
    return Run(job=job, strategy=strategy, steps=STEPS)


LAYERS = tuple(str(number) for number in range(0, 12, 2))
WATCHED = [
    builders.strategy(dp=2, zero=3, units=LAYERS),
    builders.strategy(dp=2, zero=2, units=LAYERS),
    builders.strategy(dp=2, zero=3, units=LAYERS, microbatches=2),
]
TWO_RANKS = [
    *(_run(job, zero, 2) for job in ("cnn_fp64", "lstm_fp64", "gpt_fp64") for zero in (1, 2, 3)),
    *(_run("gpt_weighted", zero, 2, 2) for zero in (1, 2, 3)),  # a loss that is (sum, weight), clipped, accumulated
    *(_run("gpt_adamw", zero, 2) for zero in (1, 3)),
    *(_run("half_frozen", zero, 2, 2) for zero in (1, 3)),
    *(_run("lstm_unused", zero, 2) for zero in (1, 3)),
    _run("unet_fp64", 3, 2, 2),  # long skips
    _run("cnn_ragged", 3, 2, 3),
    _run("lstm_scheduled", 3, 2),
    _run("dictionary_ragged", 3, 2),
]
FOUR_RANKS = [
    *(_run("cnn_fp64", zero, 4) for zero in (1, 3)),
    *(_run("gpt_clipped", zero, 4) for zero in (1, 2, 3)),
    _run("cnn_ragged", 2, 4, 2),
    Run(
        job="gpt_clipped", strategy=builders.strategy(dp=2, pp=2, zero=1, microbatches=2, schedule="1f1b"), steps=STEPS
    ),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "runs",
    [
        # Each level, each network and each feature; with the rest, every level of each.
        *some_and_rest(
            "2 ranks", [TWO_RANKS[number] for number in (0, 4, 8, 10, 13, 15, 16, 18, 19, 20, 21)], TWO_RANKS
        ),
        *some_and_rest("4 ranks", [FOUR_RANKS[number] for number in (1, 3, 5, 6)], FOUR_RANKS),
    ],
)
def test_losses_with_sharded_state_equal_one_process(runs: Sequence[Run], tmp_path: Path) -> None:
    ranks = launch(train_all, (list(runs),), ranks=runs[0].strategy.devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@pytest.mark.timeout(120)
def test_the_library_gathers_and_scatters_what_the_program_says(tmp_path: Path) -> None:
    """In every step each gather and each scatter of the program happens once, with its bytes, and no other does."""
    runs = [_run("cnn_fp64", 3, 2), _run("gpt_fp64", 3, 2, 2), _run("gpt_fp64", 2, 2, 2), _run("half_frozen", 3, 2)]
    found = launch(record, ([replace(run, steps=3) for run in runs],), ranks=2, log_dir=tmp_path, device="cpu")[0]
    for run, (timeline, instructions, _) in zip(runs, found, strict=True):
        expected = Counter({(name, i.nbytes): 1 for name, i in instructions.items() if i.kind in _SHARING})
        assert expected, run.name
        for step in timeline.steps:
            spans = [span for span in timeline.select(step=step) if span.stream != WAIT]
            moved = Counter((span.instruction, span.nbytes) for span in spans if _is_sharing(span.instruction))
            assert moved == expected, f"{run.name}, step {step}"


@pytest.mark.timeout(120)
@pytest.mark.alone
def test_a_rank_holds_what_was_predicted(tmp_path: Path) -> None:
    """Parameters and state within 1 % between steps (biases are not counted), the most in a step within 6 %.

    Six wide layers and four samples, so that activations are small; momentum, so one state. Alone, because a rank whose
    core is taken lets a layer go later than the next one is gathered.
    """
    found = launch(watch_memory, (WATCHED,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    graph = capture(make_job("wide_layers")).graph
    for strategy, (resident, most) in zip(WATCHED, found, strict=True):
        held = held_state(graph, graph.ops, strategy)
        gathered = gathered_bytes(graph, graph.ops, strategy)
        assert resident == pytest.approx(held.parameters + held.updated, rel=0.01), strategy.name
        assert most == pytest.approx(resident + held.trained + gathered, rel=0.06), strategy.name


_SHARING = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)


def named(world: World) -> str | None:
    """The configuration that is saved with the weights of a model of Hugging Face."""
    executor = open_executor(world, _run("gpt_fp64", 3, 2), captured("gpt_fp64"))
    executor.model.config = SimpleNamespace(to_dict=dict)  # type: ignore[assignment]
    found = _config(executor.model)
    executor.close()
    return found


def test_models_have_their_own_names_where_parameters_are_sharded(tmp_path: Path) -> None:
    """FSDP2 makes a class of its own, which no library knows."""
    found = launch(named, ranks=2, log_dir=tmp_path, device="cpu", captured=["gpt_fp64"])
    assert [json.loads(one)["architectures"] for one in found] == [["Gpt"], ["Gpt"]]


def _is_sharing(instruction: str) -> bool:
    return any(str(kind) in instruction for kind in _SHARING)
