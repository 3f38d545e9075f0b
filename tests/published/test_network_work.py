"""Multiplications and additions of a forward against published counts, for one sample."""

import math

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from trimaran.jobs.published_jobs import network_job
from trimaran.networks.sizes import find_size

pytestmark = pytest.mark.published

TORCHVISION = "torchvision's table of classification models, GFLOPS (multiplications), to two decimals"
TIMM = (
    "huggingface/pytorch-image-models@aa4b5850c1543fa488abf260f18390eda46cf85d:results/"
    "benchmark-infer-amp-nchw-pt210-cu121-rtx3090.csv, infer_gmacs, which counts norms and poolings too"
)
HE = "He et al., CVPR 2016, table 1, to two digits"
SZE = "Sze et al., Proc. IEEE 105(12), 2017, table 2, to two or three digits"

MULTIPLICATIONS = {
    # Billions, relative tolerance, source.
    "alexnet": (0.71, 0.007, TORCHVISION),
    "alexnet-2012": (0.724, 0.001, SZE),
    "overfeat": (2.8, 0.02, SZE),
    "vgg11": (7.61, 0.001, TORCHVISION),
    "vgg13": (11.31, 0.001, TORCHVISION),
    "vgg16": (15.47, 0.001, TORCHVISION),
    "vgg19": (19.63, 0.001, TORCHVISION),
    "googlenet": (1.50, 0.004, TORCHVISION),
    "inception-v3": (5.71, 0.001, TORCHVISION),
    "inception-v4": (12.28, 0.01, TIMM),
    "resnet18": (1.81, 0.003, TORCHVISION),
    "resnet26": (2.36, 0.01, TIMM),
    "resnet34": (3.66, 0.002, TORCHVISION),
    "resnet50": (4.09, 0.002, TORCHVISION),
    "resnet101": (7.80, 0.001, TORCHVISION),
    "resnet152": (11.51, 0.001, TORCHVISION),
    "resnet200": (15.07, 0.01, TIMM),
    "resnet50-v1": (3.8, 0.02, HE),
    "resnet101-v1": (7.6, 0.01, HE),
    "resnet152-v1": (11.3, 0.01, HE),
    "wide-resnet50": (11.40, 0.001, TORCHVISION),
    "wide-resnet101": (22.75, 0.001, TORCHVISION),
    "resnext50": (4.23, 0.001, TORCHVISION),
    "resnext101": (8.01, 0.01, TIMM),
    "resnext101-32x8d": (16.41, 0.001, TORCHVISION),
    "resnext101-64x4d": (15.46, 0.001, TORCHVISION),
    "se-resnet50": (4.11, 0.01, TIMM),
    "se-resnet50-v1": (3.88, 0.01, TIMM),
    "se-resnext50": (4.26, 0.01, TIMM),
    "se-resnext101": (8.02, 0.01, TIMM),
    "densenet121": (2.83, 0.002, TORCHVISION),
    "densenet169": (3.36, 0.002, TORCHVISION),
    "densenet201": (4.29, 0.002, TORCHVISION),
    "densenet161": (7.79, 0.01, TIMM),
    "mobilenet-v2": (0.30, 0.02, TORCHVISION),
    "mobilenet-v3-large": (0.22, 0.02, TORCHVISION),
    "efficientnet-b0": (0.39, 0.02, TORCHVISION),
    "vit-b-16": (17.56, 0.001, TORCHVISION),
}


def operations(reference: str) -> float:
    """Floating-point operations of a forward of one sample [FLOP]."""
    job = network_job(reference)
    inputs = default_collate([job.dataset()[0]])[0]
    with torch.device("meta"):
        model = job.model().eval()
    tensors = [part.to("meta") for part in (inputs if isinstance(inputs, list) else [inputs])]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*tensors)
    return counter.get_total_flops()


@pytest.mark.parametrize("reference", MULTIPLICATIONS)
def test_a_forward_of_one_image_has_the_published_multiplications(reference: str) -> None:
    billions, tolerance, source = MULTIPLICATIONS[reference]
    assert operations(reference) / 2e9 == pytest.approx(billions, rel=tolerance), source


@pytest.mark.parametrize("size", ["1.7b", "18.4b"])
def test_a_forward_of_a_gpt_has_the_operations_of_megatrons_formula(size: str) -> None:
    """`24 B s l h² (1 + s / 6h) + 2 B s h V`: a quarter of the blocks' share of the formula, a third of the head's.

    Source: Narayanan et al., SC 2021, equation 3, which counts the blocks four times (forward, again, and twice for the
    backward) and the head three times. Tolerance: none but floats'.
    """
    figures = find_size("gpt", size)
    h, s, v = figures.width, figures.positions, figures.vocabulary
    expected = 24 * s * figures.layers * h**2 * (1 + s / (6 * h)) + 2 * s * h * v
    assert operations(f"gpt:{size}") == pytest.approx(expected, rel=1e-9)


def test_bert_large_scores_hidden_tokens_only() -> None:
    """24 blocks of `24 s h² + 4 s² h`, 77 of 512 tokens through the head of `2 h² + 2 h V`, and the pooler's.

    15 % of 512 are 76.8. Source: Devlin et al., NAACL 2019. Tolerance: none but floats'.
    """
    s, h, v = 512, 1024, 30_522
    hidden = math.ceil(0.15 * s)
    expected = 24 * (24 * s * h**2 + 4 * s**2 * h) + hidden * (2 * h**2 + 2 * h * v) + 2 * h**2 + 4 * h
    assert operations("bert:large:sequence=512") == pytest.approx(expected, rel=1e-9)
