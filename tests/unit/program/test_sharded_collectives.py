"""Collectives of shared tensors, by hand: a GPT of one block, 4 samples of 8 tokens, width 16, fp32.

A state is 4 x 8 x 16 x 4 bytes = 2,048. Forward: the embedding, the attention and the dense layers each end in a sum,
the head in a gather of 4 x 8 x 32 x 4 = 4,096. Backward: a sum where the head, the dense layers, the attention start.
"""

import dataclasses

import pytest
import torch
from tests import builders
from tests.raising import raises
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.graph.types import Graph
from trimaran.networks.alexnet_overfeat_vgg import AlexNet
from trimaran.networks.gpt import Gpt2
from trimaran.planner.pins import Pins, pins_of_strategy, program_pins
from trimaran.planner.space import enumerate_strategies, offers_of
from trimaran.pricing.memory import Shares, held_state
from trimaran.program.lowering.lower import lower
from trimaran.program.lowering.tensor_parallel import (
    check_shards,
    find_classifier_shards,
    find_shards,
    gradient_sums,
    own_parameters,
    sharded_bytes,
    why_not,
)
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind

STATE = 4 * 8 * 16 * 4
LOGITS = 4 * 8 * 32 * 4


def job(model: object, data: TensorDataset) -> Job:
    return Job(
        name="small",
        model=model,  # type: ignore[arg-type]
        loss=lambda output, target: functional.cross_entropy(output.flatten(0, -2), target.flatten()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: data,
        global_batch_size=4,
    )


@pytest.fixture(scope="module")
def gpt() -> Graph:
    tokens = torch.zeros(8, 8, dtype=torch.long)
    model = lambda: Gpt2(width=16, heads=4, blocks=1, vocabulary=32, length=8)  # noqa: E731
    return capture(job(model, TensorDataset(tokens, tokens))).graph


@pytest.fixture(scope="module")
def alexnet() -> Graph:
    data = TensorDataset(torch.zeros(8, 3, 64, 64), torch.zeros(8, dtype=torch.long))
    return capture(job(lambda: AlexNet(classes=4, width=0.03125), data)).graph


def exchanged(graph: Graph, strategy: Strategy) -> list[tuple[str, str, int]]:
    """Label, kind and bytes of what rank 0 exchanges."""
    program = lower(graph, strategy, batch=4)
    return [(i.label, str(i.kind), i.nbytes) for i in program.ranks[0] if i.group]


def test_every_region_ends_in_a_sum_and_starts_with_one_in_the_backward(gpt: Graph) -> None:
    assert exchanged(gpt, builders.strategy(tp=2, shards=find_shards(gpt, 2))) == [
        ("f0", "AR", STATE),
        ("f1", "AR", STATE),
        ("f2", "AR", STATE),
        ("f3", "AG", LOGITS),
        ("g0", "AR", STATE),
        ("g1", "AR", STATE),
        ("g2", "AR", STATE),
    ]


def test_split_sequences_are_gathered_and_scattered_in_place_of_summed(gpt: Graph) -> None:
    strategy = builders.strategy(tp=2, shards=find_shards(gpt, 2, sequence=True))
    forward = [("RS", STATE), *[("AG", STATE), ("RS", STATE)] * 2, ("AG", STATE), ("AG", LOGITS)]
    backward = [("RS", STATE), *[("AG", STATE), ("RS", STATE)] * 2]
    found = exchanged(gpt, strategy)
    assert [entry[1:] for entry in found if entry[0].startswith("f")] == forward
    inner = [entry[1:] for entry in found if entry[0].startswith("g")]
    # At the end, the sum of the gradient of the positions (8 x 16 x 4 bytes) and the gather of the embedding's.
    assert inner[: len(backward)] == backward
    assert sorted(inner[len(backward) :]) == [("AG", STATE), ("AR", 8 * 16 * 4)]
    ((label, names, nbytes),) = gradient_sums(gpt, gpt.ops, strategy)
    # Three norms of two vectors, and the biases behind the two rows: eight vectors of 16.
    assert (label, len(names), nbytes) == ("q0", 8, 8 * 16 * 4)
    assert (label, "AR", nbytes) in found


def test_sequences_are_split_in_some_candidates_and_a_name_says_in_which(gpt: Graph) -> None:
    def names(pins: Pins) -> set[str]:
        kept, _ = enumerate_strategies(gpt, devices=2, batch=4, pins=pins)
        return {strategy.name for strategy in kept}

    assert {"tp2", "tp2 no-sp", "tp2 m2", "tp2 no-sp m2"} <= names(Pins())
    for asked, found in (("tp2", "tp2"), ("tp2 sp", "tp2"), ("tp2 no-sp", "tp2 no-sp")):
        assert names(program_pins(pins_of_strategy(asked), batch=4)) == {found}


def test_with_split_sequences_a_rank_keeps_less(gpt: Graph) -> None:
    """Each norm and sum that both ranks would keep whole."""
    whole, split = (
        Shares(gpt, builders.strategy(tp=2, shards=find_shards(gpt, 2, sequence=sequence)))
        for sequence in (False, True)
    )
    norm = next(op for op in gpt.ops if op.id == "h.0.ln_1")
    assert (whole.saved(norm), split.saved(norm)) == (1.0, 0.5)


def test_a_rank_holds_its_share_and_does_its_share(gpt: Graph) -> None:
    strategy = builders.strategy(tp=4, shards=find_shards(gpt, 4))
    held = sharded_bytes(gpt, strategy)
    assert held["h.0.mlp.0.weight"] == 64 * 16 * 4 // 4
    assert held["wte.weight"] == 32 * 16 * 4 // 4
    assert "h.0.mlp.2.bias" not in held
    shares = Shares(gpt, strategy)
    by_name = {op.id: op for op in gpt.ops}
    assert shares.compute(by_name["h.0.mlp.0"]) == shares.compute(by_name["h.0.mlp.1"]) == 0.25
    assert shares.compute(by_name["h.0.ln_1"]) == 1.0


def test_replicas_share_a_classifier_by_exchanging_samples(alexnet: Graph) -> None:
    strategy = builders.strategy(dp=2, shards=find_classifier_shards(alexnet, 2))
    assert [(shard.op, shard.style) for shard in strategy.shards] == [
        ("classifier.1", "column"),
        ("classifier.4", "row"),
    ]
    own = own_parameters(alexnet, strategy)
    assert own == {"classifier.1.weight", "classifier.1.bias", "classifier.4.weight"}
    found = exchanged(alexnet, strategy)
    # 4 samples of 8 x 36 features go in, 4 of 128 come out, of masks between them too; the buckets have all but shares.
    into, out = 4 * 288 * 4, 4 * 128 * 4
    assert [entry for entry in found if entry[0][0] in "xy"] == [
        ("x0", "AG", into),
        ("x1", "AG", 4 * 128),
        ("x2", "RS", out),
        ("y0", "AG", out),
        ("y1", "RS", into),
    ]
    whole = sum(parameter.nbytes for parameter in alexnet.parameters if parameter.name not in own)
    assert sum(nbytes for label, _, nbytes in found if label.startswith("b")) == whole


def test_marks_stand_still_for_each_sum(gpt: Graph) -> None:
    program = lower(gpt, builders.strategy(tp=2, shards=find_shards(gpt, 2)), batch=4)
    (forward,) = (i for i in program.ranks[1] if i.kind is Kind.FORWARD)
    assert [(mark.op, mark.waits_for) for mark in forward.marks][:2] == [
        ("wte", "0AR0#f0"),
        ("h.0.attn.outer", "0AR0#f1"),
    ]


@pytest.fixture(scope="module")
def channels() -> Graph:
    """A convolution of 8 channels over 4 x 4 pixels and a layer of 5 outputs, with a norm of all channels between."""
    data = TensorDataset(torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.long))
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 5)]
    return capture(job(lambda: nn.Sequential(*layers), data)).graph


def test_layers_by_themselves_end_in_gathers_and_are_for_those_who_ask(channels: Graph) -> None:
    """Channels: 4 x 8 x 16 x 4 bytes. Outputs: two shares of 3 of the 5, 4 x 6 x 4. What the layer reads is as large
    as the channels; what the convolution reads has no gradient."""
    assert find_shards(channels, 2) == ()
    assert not offers_of(channels, devices=2).tensor
    shards = find_shards(channels, 2, layers=True)
    assert offers_of(channels, devices=2, pins=builders.pins(tp=2)).tensor == {2: shards}
    assert [(shard.op, shard.style) for shard in shards] == [("0", "column"), ("3", "column")]
    strategy = builders.strategy(tp=2, shards=shards)
    assert exchanged(channels, strategy) == [("f0", "AG", 2048), ("f1", "AG", 96), ("g0", "AR", 2048)]
    assert sharded_bytes(channels, strategy) == {"0.weight": 432, "0.bias": 16, "3.weight": 1536, "3.bias": 12}
    # Of 5 outputs over 4 ranks the last would have none.
    assert [shard.op for shard in find_shards(channels, 4, layers=True)] == ["0"]


def test_wrong_shards_are_refused(gpt: Graph) -> None:
    shards = find_shards(gpt, 2)
    for wrong, code in (
        (builders.strategy(tp=2), "shards.not-offered"),
        (builders.strategy(tp=2, shards=shards[1:]), "shards.not-offered"),
        (builders.strategy(tp=2, shards=tuple(s for s in shards if s.op != "h.0.mlp.2")), "shards.not-offered"),
        (builders.strategy(tp=3, shards=shards), "shards.not-offered"),
        (builders.strategy(tp=2, shards=shards, execution="compiled"), "shards.compiled"),
        (builders.strategy(dp=2, shards=shards), "shards.not-offered"),
        (builders.strategy(pp=2, tp=2, shards=shards, boundaries=("h.0.mlp.1",)), "shards.split-across-segments"),
    ):
        with raises(code):
            check_shards(gpt, wrong)


def test_a_missing_operation_of_a_stream_is_refused(gpt: Graph) -> None:
    shards = find_shards(gpt, 2, sequence=True)
    without = tuple(shard for shard in shards if shard.op != "h.0.ln_1")
    with raises("shards.not-offered", match=r"differs in h\.0\.ln_1 \(sequence\)"):
        check_shards(gpt, builders.strategy(tp=2, shards=without))


def test_a_number_that_divides_nothing_has_a_reason(gpt: Graph, alexnet: Graph) -> None:
    assert find_shards(gpt, 3) == ()
    assert "do not divide" in why_not(gpt, 3)
    assert find_classifier_shards(dataclasses.replace(alexnet, regions=()), 2) == ()


def test_owners_of_the_update_hand_out_what_a_rank_holds(gpt: Graph) -> None:
    """Two replicas of two ranks that share tensors: the broadcasts of a rank are as large as its trained parameters."""
    strategy = builders.strategy(dp=2, tp=2, shards=find_shards(gpt, 2), zero=1)
    handed = [item.nbytes for item in lower(gpt, strategy, batch=4).ranks[0] if item.label.startswith("w")]
    assert len(handed) == 2
    assert sum(handed) == held_state(gpt, gpt.ops, strategy).trained < sum(one.nbytes for one in gpt.parameters)
