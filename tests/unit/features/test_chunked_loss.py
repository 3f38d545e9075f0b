"""The loss in chunks: what is said of it, beside steps that compute it so themselves."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trimaran.base.errors import InfeasibleError
from trimaran.base.remedies import LOSS_PARTS
from trimaran.features.memory_fit.chunked_loss import chunked_step, loss_in_chunks
from trimaran.features.memory_fit.estimate import estimate_memory
from trimaran.graph.trace.logits import find_logits
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import find_device
from trimaran.planning.tracing.meta_trace import PricedStep
from trimaran.pricing.offload_costs import modelled_costs
from trimaran.program.json_files import to_plain
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory import print_estimate
from trimaran.report.tables import page_text
from trimaran.simulator.memory import live_bytes

WIDTH, WORDS, LENGTH, SAMPLES = 64, 32000, 256, 16
H100 = find_device("h100")
_SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(tokens))  # type: ignore[no-any-return]


def whole(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net.head(rows), targets)


def widened(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net.head(rows).half().float(), targets)


def shifted(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of a language model that predicts the next token, with a copy without the last one."""
    scores = net.head(rows.view(SAMPLES, -1, WIDTH))[:, :-1].contiguous()
    return functional.cross_entropy(scores.flatten(0, 1), targets.view(SAMPLES, -1)[:, 1:].flatten())


def classes_second(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores = net.head(rows.view(SAMPLES, -1, WIDTH)).transpose(1, 2)
    return functional.cross_entropy(scores, targets.view(SAMPLES, -1))


Head = Callable[[Net, torch.Tensor, torch.Tensor], torch.Tensor]


def step(head: Head, *, parts: int = 1) -> PricedStep:
    def loss(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert isinstance(net, Net)
        rows, targets = net(batch[0]).flatten(0, 1), batch[1].flatten()
        if parts == 1:
            return head(net, rows, targets)
        pairs = zip(rows.chunk(parts), targets.chunk(parts), strict=True)
        return torch.stack([checkpoint(head, net, *pair, use_reentrant=False) for pair in pairs]).mean()

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.zeros(SAMPLES, LENGTH, dtype=torch.int64),) * 2

    trace = trace_on_meta(Net, batch, loss, make_optimizer=_SGD)
    return PricedStep(trace=trace, costs=modelled_costs(trace, H100), kept=live_bytes(trace, KEEP_ALL))


@pytest.mark.parametrize("head", [whole, widened])
def test_peak_and_step_are_those_of_a_step_that_does_so(head: Head) -> None:
    then, real = chunked_step(step(head), H100), step(head, parts=LOSS_PARTS)
    assert then is not None
    assert then.kept.peak == pytest.approx(real.kept.peak, rel=0.05)
    assert then.kept.peak < 0.5 * step(head).kept.peak
    assert then.costs.compute_s == pytest.approx(real.costs.compute_s, rel=0.1)


@pytest.mark.parametrize("head", [whole, widened, shifted, classes_second])
def test_scores_are_found_in_whatever_form_they_have(head: Head) -> None:
    plain = step(head)
    logits = find_logits((op.name, [shape for _, shape in op.operands]) for op in plain.trace.ops)
    assert logits is not None
    assert logits.classes == WORDS
    found = loss_in_chunks(plain, H100, budget_bytes=plain.kept.peak)
    assert found is not None
    # At least two tensors of them, of numbers of four bytes.
    assert found.saves_bytes > 0.7 * 2 * 4 * SAMPLES * (LENGTH - 1) * WORDS
    assert found.fits
    assert found.step_time_s is not None
    assert 1.0 < found.step_time_s / plain.costs.compute_s < 1.7


def test_a_loss_of_few_classes_or_of_none_is_left_as_it_is() -> None:
    def few(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(rows[:, :4], targets)

    def none(net: Net, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return rows.square().mean()

    for head in (few, none):
        assert loss_in_chunks(step(head), H100, budget_bytes=1) is None


JOB = """
import torch, trimaran

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(32000, 64), torch.nn.Linear(64, 32000)

    def forward(self, tokens):
        return self.head(self.words(tokens)).flatten(0, 1)

def make_job():
    return trimaran.Job(
        model=Net,
        loss=lambda scores, targets: torch.nn.functional.cross_entropy(scores, targets.flatten()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: torch.utils.data.TensorDataset(*(torch.zeros(64, 256, dtype=torch.int64),) * 2),
        global_batch_size=16,
    )
"""


def test_a_budget_that_only_the_scores_exceed_is_refused_with_the_loss_in_chunks(tmp_path: Path) -> None:
    """Two tensors of 4,096 x 32,000 numbers, 1,000 MiB, are there at once; of an eighth of the tokens 125."""
    (tmp_path / "job.py").write_text(JOB)
    source = JobSource(reference=f"{tmp_path}/job.py:make_job")
    with raises("memory.nothing-fits", InfeasibleError, match="the loss in 8 chunks"):
        estimate_memory(source, device="h100", budget="1200MiB", split="none", largest_batch=False)
    found = estimate_memory(source, device="h100", split="none", largest_batch=False).estimate
    (named,) = found.remedies
    assert (named.id, named.fits) == ("chunked-loss", True)
    assert named.reserved_bytes < found.keep.peak_bytes / 3
    assert "loss in chunks" in page_text(lambda out: print_estimate(out, found))
    assert to_plain(found)["remedies"][0]["reserved_bytes"] == named.reserved_bytes
