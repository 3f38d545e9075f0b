"""Sizes of the networks of language against published ones; all are made as meta tensors, so nothing is allocated."""

from dataclasses import dataclass

import pytest
import torch

from trimaran.jobs.published_jobs import network_job

pytestmark = pytest.mark.published

HUGGING_FACE = "transformers, the model of the published configuration, tied weights once"
MEGATRON = "Narayanan et al., SC 2021, table 1"
GPT3 = "Brown et al., arXiv:2005.14165, table D.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published size.

    Attributes:
        parameters: number of them
        source: where it stands
        tolerance: relative; 0: it must be exact
    """

    parameters: float
    source: str
    tolerance: float = 0.0


def rounded(billions: float, source: str, tolerance: float) -> Published:
    return Published(parameters=billions * 1e9, source=source, tolerance=tolerance)


def exact(parameters: int, source: str = HUGGING_FACE) -> Published:
    return Published(parameters=parameters, source=source)


SIZES = {
    "gpt2": exact(124_439_808),
    "gpt2:medium": exact(354_823_168),
    "gpt2:large": exact(774_030_080),
    "gpt2:xl": exact(1_557_611_200),
    "opt:125m": exact(125_239_296),
    "opt:1.3b": exact(1_315_758_080),
    "opt:2.7b": exact(2_651_596_800),
    "opt:6.7b": exact(6_658_473_984),
    "bert:base": exact(110_106_428),
    "bert:large": exact(336_226_108),
    "bert:base:head=squad": exact(108_893_186),
    "bert:large:head=squad": exact(334_094_338),
    "llama1:7b": exact(6_738_415_616),
    "llama1:33b": exact(32_528_943_616),
    "llama1:65b": exact(65_285_660_672),
    "llama2:7b": exact(6_738_415_616),
    "llama2:13b": exact(13_015_864_320),
    "llama:70b": exact(68_976_648_192),
    "llama3:1b": exact(1_235_814_400),
    "llama3:3b": exact(3_212_749_824),
    "llama3:8b": exact(8_030_261_248),
    "llama3:70b": exact(70_553_706_496),
    "llama:405b": exact(405_853_388_800),
    "mpt:7b": exact(
        6_649_286_656 - 64 * 4096, "mosaicml/mpt-7b, less the 64 words that its published vocabulary is padded by"
    ),
    # The table counts the XL one with 24 heads of 128, which this one has not.
    "gpt3:125m": rounded(0.125, GPT3, 0.005),
    "gpt3:350m": rounded(0.356, GPT3, 0.005),
    "gpt3:760m": rounded(0.760, GPT3, 0.005),
    "gpt3:1.3b": rounded(1.320, GPT3, 0.005),
    "gpt3:2.7b": rounded(2.650, GPT3, 0.005),
    "gpt3:6.7b": rounded(6.660, GPT3, 0.005),
    "gpt3:13b": rounded(12.850, GPT3, 0.005),
    "gpt3:175b": rounded(174.600, GPT3, 0.005),
    "gpt:1.7b": rounded(1.7, MEGATRON, 0.03),
    "gpt:3.6b": rounded(3.6, MEGATRON, 0.015),
    "gpt:7.5b": rounded(7.5, MEGATRON, 0.007),
    "gpt:18.4b": rounded(18.4, MEGATRON, 0.003),
    "gpt:39.1b": rounded(39.1, MEGATRON, 0.002),
    "gpt:76.1b": rounded(76.1, MEGATRON, 0.001),
    "gpt:145.6b": rounded(145.6, MEGATRON, 0.001),
    "gpt:310.1b": rounded(310.1, MEGATRON, 0.001),
    "gpt:530b": rounded(529.6, MEGATRON, 0.001),
    "gpt:1t": rounded(1008.0, MEGATRON, 0.001),
    # 37,000 pieces are "about" so many: 0.1 % of them is 0.03 % of the network; the table rounds to millions.
    "transformer:base": rounded(0.065, "Vaswani et al., NeurIPS 2017, table 3", 0.03),
    "transformer:big": rounded(0.213, "Vaswani et al., NeurIPS 2017, table 3", 0.01),
    "transformer-xl:base": rounded(0.192, "NVIDIA/DeepLearningExamples, Transformer-XL's README", 0.003),
    "gnmt": rounded(0.278, "Shazeer et al., ICLR 2017, table 2", 0.005),
    "big-lstm": rounded(1.8, "Jozefowicz et al., arXiv:1602.02410, table 1", 0.03),
}


@pytest.mark.parametrize("reference", SIZES)
def test_the_number_of_parameters_is_the_published_one(reference: str) -> None:
    published = SIZES[reference]
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in network_job(reference).model().parameters())
    assert counted == pytest.approx(published.parameters, rel=published.tolerance, abs=0), published.source
