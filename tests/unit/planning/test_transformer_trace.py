"""The closed form of a transformer's memory and the trace of the same network on one device are one truth."""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.jobs.resolve import resolve
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.pricing.analytical.memory import Bookkeeping, rank_memory
from trimaran.pricing.analytical.shapes import decoder_of
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes

AUTOGRAD = Bookkeeping(
    weight_bytes=4,
    gradient_bytes=0,  # made by the backward, after the logits are gone
    optimizer_bytes=8,
    logit_bytes=12,  # logits, their logarithms, and the gradient of both
    element_bytes=4,
    product_input_bytes=4,
)


@pytest.mark.parametrize(
    ("name", "batch", "sequence", "tolerance"),
    [
        ("gpt2:124m", 4, 1024, 0.03),
        ("mpt:125m", 4, 1024, 0.03),
        # The gate's own output is kept as well where no kernel fuses it with the product behind it.
        ("llama3:1b", 2, 1024, 0.06),
    ],
)
def test_closed_form_stands_near_the_trace(name: str, batch: int, sequence: int, tolerance: float) -> None:
    traced = live_bytes(JobTracer(resolve(f"{name},sequence={sequence}")).trace(batch), KEEP_ALL).peak
    shape = decoder_of(name, sequence)
    assert shape is not None
    plain = replace(shape, hidden_dropout=False, attention_dropout=False)
    closed = rank_memory(plain, builders.degrees(microbatch=batch), bookkeeping=AUTOGRAD).peak
    assert closed == pytest.approx(traced, rel=tolerance)
