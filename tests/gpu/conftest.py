"""Everything here needs a GPU, and is skipped with that reason where torch sees none.

`TRIMARAN_TEST_DEVICE=cpu` runs on the CPU what can run there, to try the tests themselves.
"""

import pytest
import torch
from tests.gpu.running import ON_GPU


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.nodeid.startswith("tests/gpu/"):
            continue
        item.add_marker("gpu")
        if ON_GPU and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device here"))
        elif not ON_GPU and item.get_closest_marker("cuda_only"):
            item.add_marker(pytest.mark.skip(reason="about CUDA itself"))
