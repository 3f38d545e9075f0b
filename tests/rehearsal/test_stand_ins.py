"""FlashAttention's package where it is not installed, where a script expects that, and where it is."""

import textwrap
from pathlib import Path

import pytest
from tests.rehearsal.rehearsing import rehearse_rank

from trimaran.rehearsal.memory import read_memory
from trimaran.rehearsal.record import Record

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


def kernels(record: Record) -> set[str]:
    return {kernel.name for kernel in record.kernels}


def test_a_package_that_is_not_installed_stands_in_where_a_script_ends_without_it(tmp_path: Path) -> None:
    record = rehearse_rank(written(tmp_path, "print('imports')\nimport flash_attn"), folder=tmp_path)
    assert (tmp_path / "output").read_text().splitlines() == ["imports"]  # of the run that counts
    assert "aten._scaled_dot_product_flash_attention.default" in kernels(record)
    assert "aten._scaled_dot_product_flash_attention_backward.default" in kernels(record)


def test_a_package_that_a_script_can_do_without_is_absent(tmp_path: Path) -> None:
    imports = """
        import contextlib, types

        flash_attn = types.SimpleNamespace(flash_attn_func=lambda query, key, value, causal: query * key * value)
        with contextlib.suppress(ImportError):
            import flash_attn
    """
    record = rehearse_rank(written(tmp_path, imports), folder=tmp_path)
    assert not any("attention" in name for name in kernels(record))


def test_transformers_finds_it_installed(tmp_path: Path) -> None:
    script = """
        import torch, transformers

        config = transformers.LlamaConfig(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=256
        )
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
            )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tokens = torch.randint(0, 256, (2, 64), device="cuda")
        model(input_ids=tokens, labels=tokens, attention_mask=torch.ones_like(tokens)).loss.backward()
        optimizer.step()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    record = rehearse_rank(tmp_path / "train.py", folder=tmp_path)
    assert record.end.how == "finished", record.end
    assert "aten._scaled_dot_product_flash_attention_backward.default" in kernels(record)


def test_memory_that_runs_out_is_told_where_a_script_goes_on_and_else_what_it_would_need(tmp_path: Path) -> None:
    script = """
        import pathlib, torch

        pathlib.Path("made").mkdir()
        weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
        rows = 2**28
        while rows >= LEAST:
            try:
                kept = torch.empty(rows, 1024, device="cuda")
                break
            except Exception as error:
                print(type(error).__name__)
                rows //= 4
        else:
            raise ValueError("no batch fits")
        optimizer = torch.optim.SGD([weight], 0.1)
        (weight * weight).sum().backward()
        optimizer.step()
    """
    told = {}
    for least in (1, 2**28):
        folder = tmp_path / f"{least}"
        folder.mkdir()
        script_path = folder / "train.py"
        text = textwrap.dedent(script).replace("LEAST", str(least)).replace('"made"', f"{str(folder / 'made')!r}")
        script_path.write_text(text)
        record = rehearse_rank(script_path, folder=folder)
        told[least] = read_memory(record).peak.allocated >> 40, (folder / "output").read_text().split()
    assert told == {1: (0, ["OutOfMemoryError"]), 2**28: (1, [])}


@pytest.mark.sweep
def test_a_package_that_is_installed_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "flash_attn").mkdir()
    own = "def flash_attn_func(query, key, value, causal):\n    print('own')\n    return query * key * value\n"
    (tmp_path / "flash_attn" / "__init__.py").write_text(own)
    record = rehearse_rank(written(tmp_path, "import flash_attn"), folder=tmp_path)
    assert (tmp_path / "output").read_text().splitlines() == ["own"]
    assert not any("attention" in name for name in kernels(record))
