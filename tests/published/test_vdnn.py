"""The vDNN paper's figures against ours, on Titan X in simulation.

Published figures are data of `report/reproduction`. What is compared, and how near it must be, stands here. Source
of all: Rhu et al., MICRO 2016, arXiv:1602.08124; totals of the deepest networks are by hand from their layers.
"""

from functools import cache
from pathlib import Path

import numpy
import pytest

from trimaran.jobs.published_jobs import network_job
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran_studies.reproduce.vdnn import PAPER_FIGURES, ReproducedPolicy, reproduce_vdnn
from trimaran_studies.reproduce.vdnn_accounting import baseline, network_of
from trimaran_studies.reproduce.vdnn_dynamic import Algorithm, Convolution

pytestmark = pytest.mark.published


@cache
def lines(network: str, batch: int) -> dict[tuple[str, str], ReproducedPolicy]:
    found = reproduce_vdnn(networks=f"{network}:{batch}").networks[0]
    return {(line.accounting, line.policy): line for line in found.policies}


def published(network: str, quantity: str) -> float:
    (found,) = {
        figure.value
        for figure in PAPER_FIGURES
        if (figure.network, figure.quantity, figure.grade) == (network, quantity, "published")
    }
    return found


def test_vgg16_at_256_needs_the_published_28_gb():
    """Within 10 %. The workspace of tiled FFT was settled on this figure; maps and weights alone are 23.3 GB."""
    assert lines("vgg16", 256)["paper", "none (p)"].peak_bytes == pytest.approx(published("vgg16", "total"), rel=0.10)
    assert lines("vgg16", 256)["paper", "none (m)"].peak_bytes == pytest.approx(23.3e9, rel=0.01)


@pytest.mark.parametrize(("network", "least"), [("alexnet", 0.82), ("overfeat", 0.81)])
def test_offloading_everything_saves_most_of_the_mean_in_the_papers_accounting(network: str, least: float):
    """The paper says 89 % and 91 %: we come out lower, by 6 and 7 points, and state both."""
    saved = lines(network, 128)["paper", "all (m)"].saved
    assert least <= saved <= published(network, "saved")


def test_offloading_everything_saves_what_the_paper_says_of_googlenet():
    """95 % published; PyTorch's step, mean over operations without weights: 94 % ± 2."""
    assert lines("googlenet", 128)["trace", "all"].saved == pytest.approx(0.94, abs=0.02)
    assert lines("googlenet", 128)["trace", "on demand"].saved == pytest.approx(
        published("googlenet", "saved"), abs=0.02
    )


def test_offloading_everything_on_vgg16_at_256():
    """PyTorch's step, mean over operations without weights: 87 % ± 2."""
    assert lines("vgg16", 256)["trace", "all"].saved == pytest.approx(0.87, abs=0.02)


def test_the_papers_policy_loses_no_more_than_it_says_on_vgg16_at_256():
    """18 % published, of the dynamic policy; here it loses half of that, and offloading everything loses more."""
    found = lines("vgg16", 256)
    assert 0.08 <= found["paper", "dyn"].slowdown <= published("vgg16", "slower")
    assert found["paper", "all (p)"].slowdown > published("vgg16", "slower")
    assert found["trace", "all"].slowdown > published("vgg16", "slower")


def test_the_dynamic_policy_fits_the_card_where_the_baseline_needs_more_than_twice_as_much():
    found = lines("vgg16", 256)
    assert found["paper", "dyn"].fits
    assert not found["paper", "none (m)"].fits
    assert found["paper", "none (p)"].peak_bytes > 2 * 12 * 2**30


def test_our_plan_loses_at_most_2_percent_in_the_same_card():
    ours = lines("vgg16", 256)["trace", "trimaran"]
    assert ours.fits
    assert ours.slowdown <= 0.02


@pytest.mark.parametrize(
    ("network", "gigabytes"),
    [
        ("vgg116", 20.4),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in [("vgg216", 37.0), ("vgg316", 53.5), ("vgg416", 70.1)]
        ),
    ],
)
def test_totals_of_the_deepest_networks(network: str, gigabytes: float):
    """Batch 32, without workspaces, weights and their gradients included; by hand, within 0.5 %.

    VGG-16 at 32: maps 1.949 GB, two gradient maps of 0.411, weights 0.553. Each 100 layers: maps 15.67, weights 0.439.
    VGG-116: 1.949 + 15.67 + 0.822 + 2 · 0.993 = 20.43.
    """
    trace = JobTracer(network_job(network)).trace(32)
    paper = network_of(trace, numpy.zeros(trace.length))
    frugal = {n: Algorithm.MEMORY for n, layer in enumerate(paper.layers) if layer.convolution}
    assert baseline(paper, frugal).peak_bytes / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_workspace_of_an_fft_of_one_tile():
    """conv2 of the two-part AlexNet at 256: 213 MiB (recalled, Oyama et al., µ-cuDNN, 2018); within 1 %."""
    conv2 = Convolution(batch=256, inputs=48, outputs=128, height=27, width=27, window=5)
    assert conv2.workspace_bytes / 2**20 == pytest.approx(213, rel=0.01)


def test_the_page_gives_no_loss_of_a_policy_that_does_not_fit_as_an_answer():
    """Each row of the page's table of losses is of the study, and in parentheses where the policy does not fit."""
    found = lines("vgg16", 256)
    page = (Path(__file__).parents[2] / "benchmarks" / "vdnn" / "README.md").read_text()
    table = page[page.index("| policy | the paper | loss here |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 8
    for row in table:
        name, _, loss, peak, fits = (cell.strip().replace("*", "") for cell in row.strip("|").split("|"))
        accounting = "trace" if "PyTorch" in name else "paper"
        policy = "trimaran" if name.startswith("our plan") else name.split(",")[0]
        line = found[accounting, policy]
        assert fits.startswith("yes" if line.fits else "no"), name
        assert (loss[0] == "(") == (not line.fits), name
        assert float(loss.strip("() %")) == pytest.approx(100 * line.slowdown, abs=0.06), name
        assert float(peak.removesuffix(" GB")) == pytest.approx(line.peak_bytes / 1e9, abs=0.006), name
