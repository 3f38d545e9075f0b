"""Each choice of a strategy has its time and its memory, on a device and a link that one can reckon with by head."""

from dataclasses import replace
from typing import Any

import pytest
from tests import builders
from tests.unit.pricing.analytical.test_step_time import CONSTANTS, DEVICE, SHAPE, link

from trimaran.pricing.analytical.layers import backward, layer_forward, parameter_count
from trimaran.pricing.analytical.memory import host_bytes, overlap_bytes, rank_memory
from trimaran.pricing.analytical.step_time import TransformerProgram, TransformerStep, least_seconds, transformer_step
from trimaran.program.strategy import Degrees, Recomputed

EXPERTS = replace(SHAPE, experts=builders.experts(count=8, active=2, ffn=4096))
TOKENS = 1024


def step(
    degrees: Degrees, shape: Any = SHAPE, program: TransformerProgram | None = None, **changes: Any
) -> TransformerStep:
    return transformer_step(
        shape,
        degrees,
        program or TransformerProgram(overlaps=False),
        device=DEVICE,
        exchange=link,
        constants=CONSTANTS,
        **changes,
    )


def test_some_recomputed_layers_cost_and_save_their_share() -> None:
    """2 of the 4 layers of each of two stages: half of what all cost more, and half of what they keep less."""
    plain = Degrees(pp=2, schedule="1f1b")
    whole = replace(plain, recomputed=frozenset({"layers"}))
    some = replace(whole, recompute_layers=2)
    none_s, some_s, all_s = (step(each).compute_s for each in (plain, some, whole))
    assert some_s - none_s == pytest.approx((all_s - none_s) / 2, rel=1e-9)
    kept = [rank_memory(SHAPE, each).activations for each in (plain, some, whole)]
    assert kept[0] - kept[1] == pytest.approx((kept[0] - kept[2]) / 2, rel=1e-9)
    # Of chunks the first layers of each.
    chunked = replace(some, chunks=2, schedule="interleaved", microbatches=2, recompute_layers=1)
    assert step(chunked).compute_s == pytest.approx(2 * some_s, rel=1e-9)


@pytest.mark.parametrize("kind", ["attention", "norms", "activations", "feed_forward"])
def test_each_recomputed_part_takes_time_and_saves_memory(kind: Recomputed) -> None:
    plain, again = Degrees(), Degrees(recomputed=frozenset({kind}))
    moved = replace(CONSTANTS, traffic=1.0)
    seconds = [
        transformer_step(SHAPE, each, TransformerProgram(), device=DEVICE, exchange=link, constants=moved).compute_s
        for each in (plain, again)
    ]
    # 4 s h / 2 FLOP of fused attention; 8 h, 4 · 4 h bytes; 16 h² FLOP and those bytes.
    bandwidth, peak = DEVICE.sustained_bytes_per_s, 1e14
    wanted = {
        "attention": 8 * TOKENS * 2 * 1024 * 1024 / peak,
        "norms": 8 * TOKENS * 8 * 1024 / bandwidth,
        "activations": 8 * TOKENS * 16 * 1024 / bandwidth,
        "feed_forward": 8 * TOKENS * (16 * 1024**2 / peak + 16 * 1024 / bandwidth),
    }
    assert seconds[1] - seconds[0] == pytest.approx(wanted[kind], rel=1e-6)
    assert rank_memory(SHAPE, again).activations < rank_memory(SHAPE, plain).activations


def test_hybrid_sharding_gathers_within_groups_and_sums_their_copies_once() -> None:
    """16 replicas in groups of 4: gather and scatter of 3/4 of the bytes for each microbatch; a sum of a quarter."""
    parameters = parameter_count(SHAPE)
    degrees = Degrees(dp=16, zero=3, shard_ranks=4, microbatches=2)
    inner = 2 * (2 * 2 + 4) * parameters * 3 / 4 / 1e11
    outer = 4 * parameters / 4 * 2 * 3 / 4 / 1e11
    assert step(degrees).data_s == pytest.approx(inner + outer, rel=1e-9)
    whole = replace(degrees, shard_ranks=None)
    assert step(replace(degrees, shard_ranks=16)).data_s == pytest.approx(step(whole).data_s, rel=1e-9)
    assert rank_memory(SHAPE, degrees).optimizer == -(-12 * parameters // 4)
    assert rank_memory(SHAPE, whole).optimizer == -(-12 * parameters // 16)


def test_copies_of_sharded_optimizers_are_summed_too() -> None:
    """8 replicas in pairs: scatter and gather of half, and a sum of half over 4."""
    parameters = parameter_count(SHAPE)
    degrees = Degrees(dp=8, zero=1, shard_ranks=2)
    wanted = ((4 + 2) * parameters / 2 + 4 * parameters / 2 * 2 * 3 / 4) / 1e11
    assert step(degrees).data_s == pytest.approx(wanted, rel=1e-9)


def test_heads_are_exchanged_there_and_back() -> None:
    """Queries, keys, values and the output, 4 h of each token of a rank, 3/4 of it; each way, forward and backward."""
    gathered, heads = Degrees(cp=4), Degrees(cp=4, ulysses=True)
    one = TOKENS // 4 * 2 * 4 * 1024 * 3 / 4 / 1e11
    assert step(heads).tensor_s == pytest.approx(8 * 2 * one, rel=1e-9)
    again = replace(heads, recomputed=frozenset({"layers"}))
    assert step(again).tensor_s == pytest.approx(8 * 3 * one, rel=1e-9)
    keys = TOKENS * 2 * 2 * 1024 * 3 / 4 / 1e11
    assert step(gathered).tensor_s == pytest.approx(8 * 3 * keys * CONSTANTS.tensor_exposed, rel=1e-9)
    # What is received of one layer is as large as what its backward takes here: never less memory than by gathering.
    assert rank_memory(SHAPE, heads).peak >= rank_memory(SHAPE, gathered).peak


def test_overlap_of_tensor_ranks_takes_buffers_and_leaves_a_share() -> None:
    asked, refused = Degrees(tp=4, tensor_overlap=True), Degrees(tp=4, tensor_overlap=False)
    assert step(asked).tensor_s == pytest.approx(step(refused).tensor_s * CONSTANTS.tensor_exposed, rel=1e-9)
    unsaid = step(Degrees(tp=4), program=TransformerProgram(tensor_overlaps=True)).tensor_s
    assert step(asked).tensor_s == unsaid
    assert rank_memory(SHAPE, asked).peak - rank_memory(SHAPE, refused).peak == overlap_bytes(SHAPE, asked)
    assert overlap_bytes(SHAPE, asked) == 10 * TOKENS * 1024 * 2


def test_schedules_fill_their_pipelines_as_published() -> None:
    """A stage of equal layers: a backward is two forwards, half of it gradients of weights, attention aside."""
    shape = replace(SHAPE, vocabulary=0)
    plain = Degrees(pp=4, microbatches=16, schedule="1f1b")
    sends = 2 * TOKENS * 1024 * 2 / 1e11
    found = {
        name: step(replace(plain, schedule=name), shape)  # type: ignore[arg-type]
        for name in ("1f1b", "zero-bubble", "dualpipe", "dualpipev")
    }
    one = found["1f1b"].compute_s / 16
    forward = layer_forward(shape, plain, attention="flash2", layer=0)
    back = backward(forward, attention="flash2")
    weights = 2 * forward.products / 1e14
    share = 2 * (back.products + back.attention) / 1e14
    assert one == pytest.approx(2 * (forward.products + forward.attention) / 1e14 + share, rel=1e-9)
    waits = {"1f1b": 8.0, "zero-bubble": 8.0, "dualpipe": 16 * CONSTANTS.send_exposed, "dualpipev": 32 * 0.3}
    wanted = {
        "1f1b": 3 * one,
        "zero-bubble": 3 * (one - 2 * weights),
        "dualpipe": 1 * (one + share - 3 * weights),
        "dualpipev": 3 * (one + share - 3 * weights) / 2,
    }
    for name, idle in wanted.items():
        assert found[name].compute_s == pytest.approx(16 * one, rel=1e-9)
        assert found[name].bubble_s == pytest.approx(idle, rel=1e-6), name
        assert found[name].send_s == pytest.approx((3 + waits[name]) * sends, rel=1e-6), name


def test_schedules_hold_what_is_published_of_them() -> None:
    shape, plain = replace(SHAPE, tied=False), Degrees(pp=4, microbatches=16, schedule="1f1b")
    at = {
        name: [rank_memory(shape, replace(plain, schedule=name), stage=stage) for stage in range(4)]  # type: ignore[arg-type]
        for name in ("1f1b", "zero-bubble", "dualpipe", "dualpipev")
    }
    of_pass = rank_memory(SHAPE, Degrees(pp=4, schedule="1f1b"), stage=1).activations
    assert [memory.activations // of_pass for memory in at["1f1b"][1:3]] == [3, 2]
    assert [memory.activations // of_pass for memory in at["zero-bubble"][1:3]] == [4, 4]
    assert [memory.activations // of_pass for memory in at["dualpipe"][1:3]] == [5, 5]
    # DualPipe holds every stage twice, DualPipeV none.
    assert sum(memory.weights for memory in at["dualpipe"]) == 2 * sum(memory.weights for memory in at["1f1b"])
    assert sum(memory.weights for memory in at["dualpipev"]) == sum(memory.weights for memory in at["1f1b"])


def test_an_optimizer_on_the_host_leaves_the_device_and_waits_for_copies() -> None:
    degrees = Degrees(dp=8, zero=1)
    away = replace(degrees, offload=True)
    parameters = parameter_count(SHAPE)
    assert rank_memory(SHAPE, away).optimizer == 0
    assert rank_memory(SHAPE, degrees).optimizer == -(-12 * parameters // 8)
    assert host_bytes(SHAPE, away) == pytest.approx(16 * parameters / 8, rel=1e-6)
    assert step(away, host_update_s=3e-9).update_s == pytest.approx(parameters / 8 * 3e-9, rel=1e-9)


def test_experts_that_are_not_shared_leave_the_sums_of_attention_alone() -> None:
    """2 of 4 sums; tokens sent there and back, twice; where ranks share an expert they gather what all of them need."""
    alone, shared = (Degrees(tp=2, dp=2, ep=2, expert_tp=share, sequence_parallel=True) for share in (1, 2))
    summed = TOKENS * 1024 * 2 / 1e11
    sent = TOKENS * 2 * 1024 * 2 / 2
    assert step(alone, EXPERTS).tensor_s == pytest.approx(8 * (2 * summed + 4 * sent / 2 / 1e11), rel=1e-9)
    gathered = 4 * 2 * sent / 2 / 1e11
    assert step(shared, EXPERTS).tensor_s == pytest.approx(8 * (2 * summed + 4 * sent / 2 / 1e11 + gathered), rel=1e-9)
    # Four experts of each rank, whole; or the halves of four.
    state = [rank_memory(EXPERTS, each).weights for each in (alone, shared)]
    assert state[0] - state[1] == 8 * 4 * 2 * (2 * 1024 * 4096 + 4096 + 1024 - (2 * 1024 * 2048 + 2048 + 1024))


def test_no_choice_is_faster_than_the_bound_of_its_degrees() -> None:
    base = Degrees(pp=4, tp=2, cp=2, dp=2, microbatches=16, schedule="1f1b")
    choices: list[dict[str, Any]] = [
        {"schedule": "zero-bubble"},
        {"schedule": "dualpipe"},
        {"schedule": "dualpipev"},
        {"recomputed": frozenset({"layers"}), "recompute_layers": 1},
        {"zero": 3, "shard_ranks": 2},
        {"chunks": 2, "schedule": "interleaved"},
    ]
    for choice in choices:
        bound = least_seconds(
            SHAPE, base, TransformerProgram(), device=DEVICE, exchange=link, constants=CONSTANTS, filling=0.0
        )
        assert step(replace(base, **choice)).seconds >= bound
