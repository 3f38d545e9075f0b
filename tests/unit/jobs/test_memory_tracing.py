import dataclasses
import json
import sys
from pathlib import Path

import torch
from torch import nn

from trimaran.graph.trace.types import Role
from trimaran.jobs.resolve import resolve
from trimaran.planning.tracing.meta_trace import JobTracer, meta_batch


def test_a_batch_may_be_larger_than_the_data() -> None:
    """There are 1,437 digits; only shapes are needed."""
    images, classes = meta_batch(resolve("digits"), 1_000_000)
    assert (images.shape, classes.shape) == ((1_000_000, 1, 32, 32), (1_000_000,))
    assert images.is_meta
    assert classes.dtype == torch.int64


def test_the_memory_format_of_images_stays() -> None:
    like = (torch.zeros(3, 4, 8, 8).to(memory_format=torch.channels_last), torch.zeros(3))
    images, _ = meta_batch(resolve("digits"), 5, like=like)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_state_of_the_optimizer_is_there_from_the_beginning() -> None:
    """AdamW keeps two numbers for each parameter, and a counter for each tensor."""
    job = resolve("digits")
    trace = JobTracer(job).trace(8)
    parameters = sum(one.nbytes for one in trace.storages if one.role == Role.PARAMETER)
    state = [one for one in trace.storages if one.role == Role.OPTIMIZER]
    assert all(one.birth == -1 for one in state)
    assert 2 * parameters <= sum(one.nbytes for one in state) < 2.01 * parameters


def test_the_model_is_made_once_and_each_batch_traced_once() -> None:
    made = []
    job = resolve("digits")

    def make() -> nn.Module:
        made.append(1)
        return job.model()

    tracer = JobTracer(dataclasses.replace(job, model=make))
    assert tracer.trace(4) is tracer.trace(4)
    tracer.trace(8)
    assert len(made) == 1


def test_what_autograd_keeps_grows_with_the_batch_and_weights_do_not() -> None:
    """Twice the samples, twice the bytes; the loss keeps 4 B of its own."""
    tracer = JobTracer(resolve("digits"))
    small, large = tracer.trace(4), tracer.trace(8)
    kept = [sum(one.nbytes for one in trace.movable) for trace in (small, large)]
    weights = [sum(one.nbytes for one in trace.storages if one.role == Role.PARAMETER) for trace in (small, large)]
    assert weights[0] == weights[1]
    assert kept[1] == 2 * kept[0] - 4


def test_a_configuration_of_hugging_face_is_traced_with_the_attention_of_a_gpu(tmp_path: Path) -> None:
    """Its model asks whether texts were packed into a window, which values alone would tell."""
    path = tmp_path / "config.json"
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
    path.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    trace = JobTracer(dataclasses.replace(resolve(f"hf:{path}"), precision="bf16")).trace(3)
    names = [op.name for op in trace.ops]
    assert sum("flash_attention" in name and "backward" not in name for name in names) == 2
    assert any(op.dtype == "bfloat16" and op.flops for op in trace.ops)
    masks = sys.modules["transformers.masking_utils"]
    assert masks.find_packed_sequence_indices.__module__ == "transformers.masking_utils"
