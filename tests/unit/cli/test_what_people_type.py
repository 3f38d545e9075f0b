"""Names that people bring from elsewhere are answered with ours, and none becomes a second one."""

import pytest
import typer
from tests.raising import raises
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.cli.help import _CALLED_HERE
from trimaran.features.export import export_plan
from trimaran.jobs.resolve import resolve
from trimaran.machine.catalog import find_device
from trimaran.machine.find import find_machine

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("plan vgg16 --gpus 8", "--devices"),
        ("rehearse --gpus 8 -- train.py", "--world"),
        ("rehearse --nproc-per-node 8 -- train.py", "--world"),
        ("scale vgg16 --num_gpus 8", "--devices"),
        ("train digits --world-size 2", "--devices"),
        ("plan vgg16 --batch-size 8", "--batch"),
        ("memory vgg16 --bs 8", "--batch"),
        ("plan llama2:7b --strategies tp8 --global-batch-size 8", "--batch"),
        ("plan llama2:7b --micro-batch-size 2", "--micro-batch"),
        ("plan llama2:7b --gradient-accumulation-steps 2", "--microbatches"),
        ("plan llama2:7b --seq-len 2048", "--sequence"),
        ("memory gpt2 --max-length 2048", "--sequence"),
        ("plan llama2:7b --tensor-model-parallel-size 8", "--tp"),
        ("plan llama2:7b --strategies tp8 --tp-size 8", "--strategy"),
        ("plan llama2:7b --dtype bf16", "--precision"),
        ("plan llama2:7b --bf16", "--precision"),
        ("plan llama2:7b --activation-checkpointing", "--recompute"),
        ("plan llama2:7b --num-nodes 4", "--cluster dgx-h100:4"),
        ("plan llama2:7b --gpu h100", "--cluster"),
        ("memory vgg16 --cluster h100", "--device"),
        ("plan --model vgg16", "JOB"),
        ("train digits --num-epochs 2", "--epochs"),
        ("train digits --lr 0.1", "optimizer"),
        ("plan vgg16 --devcies 8", "--devices"),
        ("plan llama2:7b --batch 4Mtokens", "sequences"),
    ],
)
def test_an_option_by_another_name_is_answered_with_its_own(typed: str, answer: str) -> None:
    done = CliRunner().invoke(app, typed.split())
    assert done.exit_code == 2
    assert answer in done.stderr.splitlines()[0]


def test_a_name_that_is_like_no_option_is_not_guessed() -> None:
    done = CliRunner().invoke(app, ["plan", "vgg16", "--frobnicate"])
    assert done.exit_code == 2
    assert "did you mean" not in done.stderr


def test_the_table_names_options_that_commands_have() -> None:
    has = [{name for option in command.params for name in option.opts} for command in COMMANDS.values()]
    for spellings, here, instead in _CALLED_HERE:
        assert all(any(name in options for options in has) for name in here), here
        assert here or instead, spellings


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("llama-2-70b", '"llama2:70b"'),
        ("llama3-8b", '"llama3:8b"'),
        ("meta-llama/Llama-2-70b-hf", '"llama2:70b"'),
        ("meta-llama/Llama-3.1-8B-Instruct", '"llama3.1:8b"'),
        ("Qwen/Qwen3-32B", '"qwen3:32b"'),
        ("mistralai/Mixtral-8x7B-v0.1", '"mixtral:8x7b"'),
        ("deepseek-ai/DeepSeek-V3-Base", '"deepseek-v3"'),
        ("openai-community/gpt2-xl", '"gpt2'),
        ("llama3-9b", "sizes 1b"),
        ("Qwen3-31B", "sizes 0.6b"),
    ],
)
def test_a_network_by_another_name_is_answered_with_its_own(typed: str, answer: str) -> None:
    with raises("job.unknown", match=answer, reference=typed):
        resolve(typed)


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("tpu-v5e", "TPUs"),
        ("tpu-v4:16", "TPUs"),
        ("v5p", "TPUs"),
        ("trn1.32xlarge", "Trainium"),
        ("gaudi2", "Gaudi"),
        ("m2-ultra", "Apple"),
        ("apple m3", "Apple"),
        ("ascend-910b", "Ascend"),
        ("max1550", "Intel"),
    ],
)
def test_hardware_that_the_catalog_has_not_is_named_so(typed: str, kind: str) -> None:
    with raises("machine.unknown", match=rf"{kind}.*docs/clusters\.md"):
        find_machine(typed)
    with raises("device.unknown", match=rf"{kind}.*docs/clusters\.md"):
        find_device(typed)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("dgx-h10", "dgx-h100"),
        ("rtx4091", "rtx-4090"),
        ("a100x8", "8xa100"),
        ("h200x4", "4xh200"),
        ("dgx-h100O", "dgx-h100"),
    ],
)
def test_a_machine_with_a_slip_is_guessed(typed: str, answer: str) -> None:
    with raises("machine.unknown", match=f'did you mean "{answer}'):
        find_machine(typed)


@pytest.mark.parametrize("typed", ["p9x", "quadro", "mi", "superpod", "k20x"])
def test_a_machine_that_is_like_no_other_is_not_guessed(typed: str) -> None:
    with raises("machine.unknown", match="trimaran catalog machines") as caught:
        find_machine(typed)
    assert "did you mean" not in caught.value.message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fsdp2", "pytorch"),
        ("FSDP", "pytorch"),
        ("megatron-lm", "megatron"),
        ("nemo", "megatron"),
        ("hf", "accelerate"),
    ],
)
def test_a_target_by_another_name_is_answered_with_its_own(typed: str, meant: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with raises("export.unknown-target", match=f"--to {meant}", target=typed):
        export_plan(tmp_path / "plan.json", typed)
