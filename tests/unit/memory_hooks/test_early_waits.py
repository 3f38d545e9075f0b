"""A plan may say at which tick the operations wait for a copy back, before its first use: at the end of a layer."""

import dataclasses
import time

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, gradients, record, same_bits
from tests.unit.memory_hooks.plans import OFFLOAD, plan_by_rule
from torch import nn

from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import MemoryPlan
from trimaran.program.types import Kind

COPY_S = 0.02


def fetched_early(trace: StepTrace) -> tuple[MemoryPlan, int]:
    """The storage that is used last is offloaded, and comes back at the first unpack; no other one moves."""
    plan = plan_by_rule(trace, OFFLOAD)
    last = max(plan.moved, key=lambda number: trace.storages[number].unpacks[0])
    first = trace.unpacks[0].moment
    steps = [
        dataclasses.replace(step, moment=first) if step.kind == Kind.PREFETCH else step
        for step in plan.steps
        if step.storage == last
    ]
    return dataclasses.replace(plan, steps=tuple(steps), decisions={last: plan.of(last)}), last


@pytest.mark.parametrize("early", [False, True])
def test_the_step_waits_where_the_plan_says(early: bool) -> None:
    """A copy takes 20 ms and more, the operations of the backward much less."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh()))), torch.ones(4, 16)
    model(x).sum().backward()
    expected = gradients(model)
    recording = record(lambda: model(x).sum().backward(), model)
    plan, number = fetched_early(recording.trace)
    at, use = recording.trace.unpacks[2].moment, recording.trace.storages[number].unpacks[0]
    assert at < use
    if early:
        plan = dataclasses.replace(plan, waits={number: at})
    with executing(recording, plan, delay=lambda _: time.sleep(COPY_S)) as executor:
        model.zero_grad()
        executor.begin_forward()
        with executor.hooks():
            model(x).sum().backward()
        stalls_s = executor.finish_step().stalls_s
        assert same_bits(gradients(model), expected)
    waited = {moment for moment, seconds in stalls_s.items() if moment >= recording.trace.unpacks[0].moment}
    assert waited == {at if early else use}
