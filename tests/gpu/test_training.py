"""One device: losses, precision, compiled execution, faults and the record, on a GPU."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.reference import evaluate_plainly, train_plainly
from tests.distributed.training import Run, train_all
from tests.gpu.running import DEVICE, ON_GPU, open_executor, take_steps, train, zoo_job
from tests.raising import raises
from torch.nn import functional

from trimaran.base.errors import ExecutionError
from trimaran.launch.supervise import launch

STEPS = 12


@pytest.mark.parametrize("name", ["cnn_fp64", "unet_fp64", "lstm_fp64", "gpt_fp64", "gpt_clipped", "gpt_weighted"])
def test_losses_equal_a_plain_loop(name: str) -> None:
    """In fp64, against a loop on the CPU: other kernels, the same figures to 1e-7 after 12 steps."""
    losses, _ = train(zoo_job(name), STEPS)
    assert losses == pytest.approx(train_plainly(zoo_job(name), STEPS).losses, abs=1e-7)


def test_evaluation_equals_a_plain_loop() -> None:
    """To 1e-6: the plain loop counts in fp32."""
    job = zoo_job("cnn_fp64")
    executor, _ = open_executor(job)
    take_steps(executor, 3)
    score = executor.evaluate(job.evaluation_dataset())  # type: ignore[misc]
    executor.close()
    assert score == pytest.approx(evaluate_plainly(job, train_plainly(job, 3).model), abs=1e-6)


@pytest.mark.parametrize("name", ["cnn", "gpt"])
@pytest.mark.timeout(300)
def test_compiled_execution_has_the_losses_of_eager(name: str) -> None:
    """In fp32, before the trajectories part: 1e-3."""
    torch._dynamo.reset()
    eager, _ = train(zoo_job(name), 4)
    compiled, _ = train(zoo_job(name), 4, execution="compiled")
    assert compiled == pytest.approx(eager, rel=1e-3)


def test_bf16_is_autocast_over_weights_in_fp32() -> None:
    plain, _ = train(zoo_job("gpt"), 4)
    losses, weights = train(zoo_job("gpt", precision="bf16"), 4)
    assert losses == pytest.approx(plain, rel=0.03)
    assert losses != plain
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}


def test_a_loss_that_is_no_number_is_raised_before_the_update() -> None:
    """The loss of step 2 is NaN: the weights are those after steps 0 and 1."""
    calls = itertools.count()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = functional.cross_entropy(output, target)
        return value * math.nan if next(calls) == 2 else value

    # Capturing calls the loss too.
    executor, _ = open_executor(zoo_job("cnn", loss=loss))
    calls = itertools.count()
    take_steps(executor, 2)
    before = executor.weights()
    with raises("loss.not-finite", ExecutionError, step=2):
        take_steps(executor, 1)
    after = executor.weights()
    executor.close()
    parameters = [name for name in before if "running" not in name and "num_batches" not in name]
    assert parameters
    for name in parameters:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0)


def test_the_record_has_every_instruction_of_every_step_in_order() -> None:
    executor, _ = open_executor(zoo_job("cnn"))
    take_steps(executor, 6)
    timeline = executor.timeline()
    names = [instruction.id for instruction in executor.program.ranks[0]]
    executor.close()
    assert timeline.steps == tuple(range(6))
    for step in timeline.steps:
        spans = sorted(timeline.select(step=step), key=lambda span: span.start_s)
        assert [span.instruction for span in spans] == names
        assert all(span.seconds > 0 for span in spans)
        assert all(one.end_s <= two.start_s + 1e-6 for one, two in itertools.pairwise(spans))


@pytest.mark.cuda_only
def test_memory_at_the_peak_is_what_was_allocated() -> None:
    """Batch 512 of the small transformer, where saved tensors are most of it; to 35 %."""
    from trimaran.pricing.memory import memory_changes, rank_states, segment_memory

    dataset = zoo_job("gpt").dataset()
    repeated = torch.utils.data.ConcatDataset([dataset] * 8)
    job = zoo_job("gpt", dataset=lambda: repeated, global_batch_size=512)
    torch.ones(8, 8, device=DEVICE) @ torch.ones(8, 8, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    fresh = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    executor, made = open_executor(job)
    take_steps(executor, 2)
    measured = torch.cuda.max_memory_allocated() - fresh
    strategy = builders.strategy()
    changes = memory_changes(executor.program, segment_memory(made.graph, strategy, batch=512))
    (state,) = rank_states(executor.program, made.graph, strategy)
    live = peak = state.resident_bytes(state_bytes_per_byte=1.0)
    for instruction in executor.program.ranks[0]:
        born, died = changes.get(instruction.id, (0, 0))
        live += born
        peak = max(peak, live)
        live -= died
    executor.close()
    assert peak == pytest.approx(measured, rel=0.35)


@pytest.mark.skipif(ON_GPU and torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.timeout(300)
def test_two_devices_have_the_losses_of_one(tmp_path: Path) -> None:
    """Replicas and a pipeline, by NCCL."""
    strategies = [builders.strategy(dp=2, bucket_bytes=8192), builders.strategy(pp=2, schedule="1f1b", microbatches=4)]
    runs = [Run(job="cnn_fp64", strategy=strategy, steps=STEPS) for strategy in strategies]
    ranks = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cuda" if ON_GPU else "cpu")
    for number, run in enumerate(runs):
        plain = train_plainly(
            zoo_job("cnn_fp64"), STEPS, replicas=run.strategy.dp, microbatches=run.strategy.microbatches
        )
        for rank in ranks:
            assert rank[number].losses == pytest.approx(plain.losses, abs=1e-7)
