"""What a compiler fuses: laws of time and memory over random chains, and small cases by hand."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rehearsal.writing import record

from trimaran.machine.find import find_machine
from trimaran.rehearsal.fusion import FUSED, compiles, fused
from trimaran.rehearsal.memory import read_memory
from trimaran.rehearsal.record import Event, Give, Kernel, Moves, Part, Record, Run, Take, TensorForm
from trimaran.rehearsal.time import step_time

MIB = 2**20
WHOLE = TensorForm((4096, 4096), "bfloat16")
NBYTES = 32 * MIB
KERNELS = [
    Kernel("aten.relu.default", (WHOLE,), (WHOLE,), {}, 0),
    Kernel("aten.add.Tensor", (WHOLE, WHOLE), (WHOLE,), {}, 0),
    Kernel("aten.mm.default", (WHOLE, WHOLE), (WHOLE,), {}, 2 * 4096**3),
]
RELU, ADD, MM = range(3)
Call = tuple[int, Sequence[int], int, Part]


def step(calls: Sequence[Call], *, compiled: bool = True) -> list[Event]:
    """Kernels with the blocks that each reads and the one that it makes; all are given back in the end."""
    events: list[Event] = [Take(0, NBYTES, 0, "parameter", 0, 0, "setup")]
    for kernel, reads, made, part in calls:
        events.append(Run(kernel, 0, 0, 0, part))
        events.append(Take(made, NBYTES, 0, "activation" if part == "forward" else "temporary", 0, 0, part))
        events.append(Moves(tuple(reads), (made,), compiled))
    return [*events, *(Give(made) for _, _, made, _ in calls), Give(0)]


def told(calls: Sequence[Call], *, compiled: bool = True) -> Record:
    return record(step(calls, compiled=compiled), KERNELS, steps=1)


def moved(found: Record) -> list[tuple[int, int]]:
    """MiB that each fused kernel of a step reads and writes."""
    runs = [found.kernels[event.kernel] for event in found.events if isinstance(event, Run)]
    chains = [kernel for kernel in runs if kernel.name == FUSED]
    return [(kernel.inputs[0].shape[0] // MIB, kernel.outputs[0].shape[0] // MIB) for kernel in chains]


CASES: dict[str, tuple[list[Call], list[tuple[int, int]]]] = {
    "one kernel": ([(RELU, (0,), 1, "forward"), (MM, (1, 0), 2, "forward")], [(32, 32)]),
    # 1 is read by the product alone through 2: it needs no memory.
    "a chain reads and writes once": (
        [(RELU, (0,), 1, "forward"), (ADD, (1, 0), 2, "forward"), (MM, (2, 0), 3, "forward")], [(32, 32)]
    ),
    "a product parts chains": (
        [(RELU, (0,), 1, "forward"), (MM, (1, 0), 2, "forward"), (ADD, (2, 1), 3, "forward"),
         (MM, (3, 0), 4, "forward")], [(32, 32), (64, 32)]
    ),
    # 2 is read in the backward, and recomputed there from 1, which the product has kept.
    "recomputed in the backward": (
        [(MM, (0, 0), 1, "forward"), (RELU, (1,), 2, "forward"), (ADD, (2, 2), 3, "forward"),
         (MM, (3, 0), 4, "forward"), (ADD, (2, 1), 5, "backward"), (MM, (5, 3), 6, "backward")], [(32, 32), (32, 32)]
    ),
    "parts of the step part chains": (
        [(RELU, (0,), 1, "forward"), (RELU, (1,), 2, "backward"), (MM, (2, 0), 3, "backward")], [(32, 0), (32, 32)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_chain_moves_what_others_made_and_read(case: str) -> None:
    calls, expected = CASES[case]
    assert moved(fused(told(calls))) == expected


def test_what_is_not_compiled_is_not_fused() -> None:
    calls, _ = CASES["a chain reads and writes once"]
    found = told(calls, compiled=False)
    assert not compiles(found)
    assert fused(found) is found


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Kernels that read any of what was made before, first those of the forward."""
    count = draw(st.integers(1, 14))
    turns = draw(st.integers(0, count))
    found: list[Call] = []
    for made in range(1, count + 1):
        kernel = draw(st.sampled_from([RELU, ADD, ADD, MM]))
        reads = [draw(st.integers(max(0, made - 6), made - 1)) for _ in KERNELS[kernel].inputs]
        found.append((kernel, reads, made, "forward" if made <= turns else "backward"))
    return found


@given(calls())
@settings(max_examples=60, deadline=None)
def test_fused_is_never_slower_nor_larger_and_never_faster_than_its_products(
    asked: list[Call],
) -> None:
    machine, whole, eager = find_machine("dgx-h100"), told(asked), told(asked, compiled=False)
    products = [call for call in asked if call[0] == MM]
    seconds, unfused_s = (step_time([each], machine).step.seconds for each in (whole, eager))
    assert seconds <= unfused_s * (1 + 1e-9)
    if products:
        assert seconds >= step_time([told(products)], machine).step.seconds * (1 - 1e-9)
    peaks = [read_memory(each).reserved for each in (fused(whole), whole)]
    assert NBYTES * len({0, *(made for kernel, _, made, _ in products)}) <= peaks[0] + 1 <= peaks[1] + 1
