"""Short spellings of hand-made programs and costs, so that a test shows only what it is about."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimaran.base.timeline import COMMUNICATION, HOST, Span, Timeline
from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.types import Instruction, Kind, Program


def load(rank: int, microbatch: int = 0) -> Instruction:
    return Instruction(kind=Kind.LOAD, rank=rank, microbatch=microbatch, stream=HOST)


def forward(rank: int, microbatch: int = 0, **fields: Any) -> Instruction:
    return Instruction(kind=Kind.FORWARD, rank=rank, segment=rank, microbatch=microbatch, **fields)


def backward(rank: int, microbatch: int = 0, **fields: Any) -> Instruction:
    return Instruction(kind=Kind.BACKWARD, rank=rank, segment=rank, microbatch=microbatch, **fields)


def send(rank: int, peer: int, microbatch: int = 0, **fields: Any) -> Instruction:
    return _message(Kind.SEND_FORWARD, rank, peer, microbatch, fields)


def receive(rank: int, peer: int, microbatch: int = 0, **fields: Any) -> Instruction:
    return _message(Kind.RECEIVE_FORWARD, rank, peer, microbatch, fields)


def _message(kind: Kind, rank: int, peer: int, microbatch: int, fields: dict[str, Any]) -> Instruction:
    return Instruction(
        kind=kind,
        rank=rank,
        segment=rank,
        microbatch=microbatch,
        peer=peer,
        peer_segment=peer,
        stream=COMMUNICATION,
        **fields,
    )


def all_reduce(rank: int, group: tuple[int, ...], label: str = "b0", **fields: Any) -> Instruction:
    return Instruction(kind=Kind.ALL_REDUCE, rank=rank, group=group, label=label, stream=COMMUNICATION, **fields)


def program(*ranks: tuple[Instruction, ...]) -> Program:
    return Program(ranks=ranks, segments=len(ranks), microbatches=1)


def seconds(value: float) -> Cost:
    return Cost(value, value, value, "example")


def transfer(flow_s: float, *links: str, latency_s: float = 0.0) -> Transfer:
    total = latency_s + flow_s
    return Transfer(latency_s=latency_s, flow_s=flow_s, links=links, low=total, high=total, source="example")


def costs(entries: Mapping[Instruction, float | Transfer], **fields: Any) -> ProgramCosts:
    """Costs from `{instruction: seconds or transfer}`; the other end of a message gets the entry of this one."""
    transfers: dict[str, Transfer] = {}
    compute: dict[str, Cost] = {}
    for instruction, entry in entries.items():
        if not isinstance(entry, Transfer):
            compute[instruction.id] = seconds(entry)
            continue
        transfers[instruction.id] = entry
        if instruction.kind is Kind.SEND_FORWARD:
            transfers[receive(instruction.peer or 0, instruction.rank, instruction.microbatch or 0).id] = entry
        for rank in instruction.group:
            transfers[replace(instruction, rank=rank).id] = entry
    return ProgramCosts(compute=compute, transfers=transfers, **fields)


def span_of(timeline: Timeline, instruction: Instruction) -> tuple[float, float]:
    """Start and end of the one span of an instruction [s]."""
    (span,) = (span for span in timeline if span.instruction == instruction.id)
    return span.start_s, span.end_s


def make_span(instruction: Instruction, start_s: float, end_s: float, step: int = 0, stream: str | None = None) -> Span:
    return Span(
        rank=instruction.rank,
        stream=stream or instruction.stream,
        start_s=start_s,
        end_s=end_s,
        instruction=instruction.id,
        nbytes=instruction.nbytes,
        step=step,
    )
