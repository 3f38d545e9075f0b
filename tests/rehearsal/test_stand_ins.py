"""FlashAttention's package where it is not installed, where a script expects that, and where it is."""

import textwrap
from pathlib import Path

import pytest
from tests.rehearsal.rehearsing import rehearse_rank

STEP = """
    import torch

    query, key, value = (torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    weight = torch.nn.Parameter(torch.ones(64, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], 0.1)
    flash_attn.flash_attn_func(query * weight, key, value, causal=True).sum().backward()
    optimizer.step()
"""


def written(folder: Path, imports: str) -> Path:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(imports) + textwrap.dedent(STEP))
    return script


def test_a_package_that_is_not_installed_stands_in_where_its_absence_is_not_expected(tmp_path: Path) -> None:
    imports = """
        try:
            import flash_attn
        except ImportError:
            print("expected")
        import flash_attn
    """
    record = rehearse_rank(written(tmp_path, imports), folder=tmp_path)
    assert (tmp_path / "output").read_text().splitlines() == ["expected"]
    kernels = [kernel.name for kernel in record.kernels]
    assert "aten._scaled_dot_product_flash_attention.default" in kernels
    assert "aten._scaled_dot_product_flash_attention_backward.default" in kernels


@pytest.mark.sweep
def test_a_package_that_is_installed_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "flash_attn").mkdir()
    own = "def flash_attn_func(query, key, value, causal):\n    print('own')\n    return query * key * value\n"
    (tmp_path / "flash_attn" / "__init__.py").write_text(own)
    record = rehearse_rank(written(tmp_path, "import flash_attn"), folder=tmp_path)
    assert (tmp_path / "output").read_text().splitlines() == ["own"]
    assert not any("attention" in kernel.name for kernel in record.kernels)
