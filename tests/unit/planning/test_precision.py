from collections.abc import Callable, Iterator

import pytest
import torch

import trimaran
from trimaran.graph.kernels.workload import WorkKind
from trimaran.machine.catalog import find_device
from trimaran.planning.precision import choose_precision
from trimaran.pricing.kernels.durations import rounded_kinds
from trimaran.pricing.kernels.software import Software

A100, V100, MI250 = (find_device(name) for name in ("a100-80gb", "v100", "mi250"))


def _products_high() -> None:
    torch.set_float32_matmul_precision("high")


def _products_tf32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def _layers_exact() -> None:
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def backends() -> Iterator[None]:
    """Torch's settings, which are afterwards as they were, by the same of its two ways to set them."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cudnn.rnn.fp32_precision == "tf32"


@pytest.mark.parametrize(
    ("setting", "named"),
    [(lambda: None, "fp32"), (_products_high, "tf32"), (_products_tf32, "tf32"), (_layers_exact, "ieee")],
)
@pytest.mark.usefixtures("backends")
def test_a_job_in_fp32_is_as_its_file_sets_torch(setting: Callable[[], None], named: str) -> None:
    setting()
    assert choose_precision("digits", None, A100).name == named
    assert choose_precision("digits", None, V100).name == "fp32"
    assert choose_precision("resnet50", None, A100).name == "fp32"
    assert choose_precision("digits", "fp32", A100).name == "fp32"


@pytest.mark.parametrize(
    ("software", "layers", "products"),
    [
        (Software(), True, False),
        (Software(year=2022.0), True, True),
        (Software(year=2019.5), False, False),
        (Software(framework="tensorflow", year=2023.0), True, True),
        (Software(framework="mxnet", year=2021.0), True, False),
        (Software(framework="mxnet", year=2021.0, libraries="cudnn-7.6"), False, False),
    ],
)
def test_frameworks_round_by_default_what_their_releases_do(software: Software, layers: bool, products: bool) -> None:
    kinds = rounded_kinds(A100, software, "fp32")
    assert (WorkKind.CONVOLUTION in kinds, WorkKind.PRODUCT in kinds) == (layers, products)
    assert rounded_kinds(A100, software, "ieee") == rounded_kinds(MI250, software, "fp32") == frozenset()


def test_a_step_in_fp32_lies_between_one_that_rounds_all_and_one_that_rounds_none() -> None:
    """A network of convolutions and one product: nearly as in tf32; one without convolutions: as in ieee."""

    def step_s(job: str, precision: str, cluster: str = "dgx-a100") -> float:
        found = trimaran.predict_scaling(job, cluster=cluster, devices=[1], local_batch=[32], precision=precision)
        return 32 / found.rows[0].samples_per_s

    exact, default, rounded = (step_s("resnet50", each) for each in ("ieee", "fp32", "tf32"))
    assert rounded < default < 1.01 * rounded
    assert default < 0.8 * exact
    assert step_s("bert:base", "fp32") == step_s("bert:base", "ieee") > 1.5 * step_s("bert:base", "tf32")
    # Its tensor cores are no faster in tf32, and a library need not take them.
    assert step_s("resnet50", "fp32", "8xrtx-3090") <= step_s("resnet50", "ieee", "8xrtx-3090")
    assert step_s("resnet50", "fp32", "dgx1-v100") == step_s("resnet50", "ieee", "dgx1-v100")
