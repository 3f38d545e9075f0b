"""Step times of scripts that are rehearsed for this: the same answer as a plan's, and published steps."""

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran
from tests.raising import raises
from tests.rehearsal.rehearsing import rehearse_rank
from tests.rehearsal.side_by_side import Job, rehearse

from trimaran.features.rehearse.ask import ask
from trimaran.features.rehearse.ask import rehearse as rehearse_script
from trimaran.machine.find import find_machine
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.rehearsal.time import StepTime, step_time

pytestmark = pytest.mark.usefixtures("_forked_rehearsals")

ALONE = Path(__file__).parent / "scripts_time/alone.py"
MPT = Path(__file__).parents[2] / "benchmarks/rehearsal/mpt.py"
H100 = find_machine("dgx-h100")


def both(network: str, batch: int, folder: Path) -> tuple[StepTime, dict[str, float], StepEstimate, dict[str, float]]:
    """A network as a script and as a job of `scale`, each with the seconds of its kernels by name."""
    rehearsed = step_time([rehearse_rank(ALONE, network, batch, folder=folder)], H100)
    work = workload(network, batch=batch, precision="bf16")
    planned = estimate_step(work, H100.node.device, Software())
    seconds: Counter[str] = Counter()
    for each, share in zip(work.works, planned.work_s, strict=True):
        seconds[each.name] += share  # type: ignore[assignment]
    return rehearsed, {share.name: share.seconds for share in rehearsed.kernels}, planned, dict(seconds)


@pytest.mark.sweep
def test_a_network_on_one_gpu_takes_as_long_as_it_is_planned_to(tmp_path: Path) -> None:
    rehearsed, kernels, planned, works = both("resnet50", 64, tmp_path)
    assert rehearsed.step.seconds == pytest.approx(planned.seconds, rel=0.03)
    assert rehearsed.ranks[0].host_s == pytest.approx(planned.host_s, rel=0.05)
    assert rehearsed.ranks[0].samples == 64
    for name in ("convolution", "convolution_backward", "native_batch_norm", "threshold_backward", "relu_"):
        assert kernels[f"aten.{name}"] == pytest.approx(works[f"aten.{name}"], rel=0.01), name


@pytest.mark.sweep
def test_what_a_transformer_takes_differently_is_products_attention_and_the_loss(tmp_path: Path) -> None:
    rehearsed, kernels, planned, works = both("gpt2", 8, tmp_path)
    assert rehearsed.ranks[0].tokens == 8 * 1024
    for name in ("add", "native_layer_norm_backward", "nll_loss_backward"):
        assert kernels[f"aten.{name}"] == pytest.approx(works[f"aten.{name}"], rel=0.02), name
    # Large products have the rate of plans of transformers; the curves of whole steps are up to a quarter slower.
    for name in ("mm", "addmm"):
        assert 0.75 * works[f"aten.{name}"] < kernels[f"aten.{name}"] < works[f"aten.{name}"], name
    # Fused attention is priced whole and as plain products there; the loss of a plan's trace is in 32 bits from its
    # logits on, where torch on a GPU keeps their logarithm in 16; optimizers move their lists as the script's do.
    apart = ("_scaled_dot_product", "log_softmax", "AdamW", "_foreach")
    others = [
        sum(seconds for name, seconds in each.items() if not any(part in name for part in apart))
        for each in (kernels, works)
    ]
    assert others[0] < 1.02 * others[1]
    assert 0.75 * planned.seconds < rehearsed.step.seconds < planned.seconds


@pytest.mark.published
@pytest.mark.parametrize(
    ("width", "layers", "sequence", "microbatch", "cluster", "published"),
    [
        (768, 12, 1024, 52, "dgx-a100-40gb", 148_289),
        pytest.param(1536, 24, 4096, 12, "dgx-a100", 27_351, marks=pytest.mark.sweep),
    ],
    ids=["125m", "760m"],
)
def test_published_steps_of_fsdp(
    width: int, layers: int, sequence: int, microbatch: int, cluster: str, published: float, tmp_path: Path
) -> None:
    """Tokens a second of each of eight A100; mosaicml/llm-foundry@8c8dd48, scripts/train/benchmarking/README.md."""
    sizes = {"width": width, "layers": layers, "heads": 12, "sequence": sequence, "microbatch": microbatch}
    given = [f"--{name}={size}" for name, size in sizes.items()]
    record = rehearse_rank(MPT, *given, "--accumulation=2", folder=tmp_path, cluster=cluster, world=8)
    kinds = dict.fromkeys(range(8), 0)
    found = step_time([record], find_machine(cluster), kinds=kinds, software=Software(year=2023.0))
    assert found.ranks[0].tokens == 2 * microbatch * sequence
    assert found.tokens_per_s == pytest.approx(published, rel=0.2)
    assert found.step.low < found.ranks[0].tokens / published < found.step.high
    assert found.parts.seconds == pytest.approx(found.step.seconds)
    counts = {share.name: share.count for share in found.collectives}
    # Blocks and what is around them, each microbatch: gathered for the forward and all but the root for the backward.
    assert counts["reduce_scatter of 8 ranks"] == 2 * (layers + 1)
    assert 4 * layers <= counts["all_gather of 8 ranks"] <= 4 * (layers + 1)


SCRIPT = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
model = torch.nn.Linear(8192, 8192, bias=False).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8192, 8192, device="cuda")).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


DERIVED = """
import torch
from torch.nn import functional

activation, twice = getattr(functional, "{name}"), {twice}
states = torch.randn(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([states], lr=0.1)
for step in range(2):
    (gradient,) = torch.autograd.grad(activation(states).sum(), states, create_graph=twice)
    gradient.requires_grad_().square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("name", ["silu", "mish", "gelu", "hardswish"])
def test_the_derivative_of_an_activation_is_one_kernel_as_on_a_gpu(name: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DERIVED.format(name=name, twice=False))
    found = step_time([rehearse_rank(tmp_path / "script.py", folder=tmp_path)], H100)
    names = {share.name for share in found.kernels}
    assert f"aten.{name}_backward" in names
    assert not {"aten.sigmoid", "aten.tanh", "aten.sub_"} & names


def test_a_derivative_of_a_derivative_is_composed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DERIVED.format(name="silu", twice=True))
    found = step_time([rehearse_rank(tmp_path / "script.py", folder=tmp_path)], H100)
    assert "aten.sigmoid_backward" in {share.name for share in found.kernels}


ROUNDED = """
import sys, torch

if sys.argv[1] != "default":
    exec(sys.argv[1])
layer = torch.nn.Conv2d(3, 8, 3).cuda()
head = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
head(layer(torch.randn(16, 3, 8, 8, device="cuda")).mean((2, 3))).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("setting", "convolutions", "products"),
    [
        ("default", True, False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True, True),
        ("torch.set_float32_matmul_precision('high')", True, True),
        # In torch 2.11 the setting of all does not reach that of convolutions.
        ("torch.backends.fp32_precision = 'ieee'", version("torch").startswith("2.11."), False),
        ("torch.backends.cudnn.allow_tf32 = False", False, False),
        ("torch.backends.cudnn.conv.fp32_precision = 'ieee'", False, False),
    ],
)
def test_products_in_fp32_are_rounded_as_torch_is_set(
    setting: str, convolutions: bool, products: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ROUNDED)
    record = rehearse_rank(tmp_path / "train.py", setting, folder=tmp_path)
    rounded = {kernel.name: kernel.tf32 for kernel in record.kernels}
    assert rounded["aten.convolution.default"] == rounded["aten.convolution_backward.default"] == convolutions
    assert rounded["aten.addmm.default"] == rounded["aten.mm.default"] == products
    assert not rounded["aten.mean.dim"]


def profiled(seconds: float) -> str:
    """A trace of one step, with all of its products in one kernel of a length [s]."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": seconds * 1e6},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5, "args": {"External id": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9, "dur": seconds * 1e6, "args": {"External id": 7}},
    ]
    return json.dumps({"traceEvents": events})


def test_a_profile_of_one_gpu_corrects_steps_of_many(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "trace.json").write_text(profiled(1.0))

    def rehearse(world: int, *options: str) -> tuple[int, str, dict[str, Any]]:
        command = ("rehearse", "--world", str(world), "--cluster", "dgx-h100", "--ranks", "0", *options, "--json")
        done = trimaran(*command, "--", "train.py", cwd=tmp_path)
        return done.returncode, done.stderr, json.loads(done.stdout)

    code, _, alone = rehearse(1, "--measured", "trace.json", "--output", "one.json")
    assert code == 0
    # What the trace lacks (sums, the optimizer) is corrected as its products are.
    assert alone["step"]["seconds"] == pytest.approx(1.0, rel=0.1)
    _, _, plain = rehearse(8)
    code, _, corrected = rehearse(8, "--measured", "one.json")
    assert code == 0
    assert plain["calibration"] is None
    assert corrected["calibration"] == alone["calibration"]
    assert any("trace.json" in note for note in corrected["notes"])
    # The products of a rank take as long as on the GPU that was profiled.
    assert corrected["step"]["parts_s"]["compute"] == pytest.approx(alone["step"]["parts_s"]["compute"], rel=0.02)
    assert corrected["step"]["seconds"] > 5 * plain["step"]["seconds"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"world": 8, "measured": "trace.json"}, "rehearse.profile-of-many"),
        ({"world": 1, "measured": "trace.json,one.json"}, "measured.several-files"),
        ({"world": 8, "measured": "one.json"}, "rehearse.other-device"),
        ({"world": 8, "measured": "none.json"}, "rehearse.no-calibration"),
    ],
)
def test_a_correction_that_says_nothing_of_the_step_is_refused(
    options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "trace.json").write_text(profiled(1.0))
    (tmp_path / "one.json").write_text('{"calibration": {"source": "a V100", "device": "v100"}}')
    (tmp_path / "none.json").write_text('{"verdict": "fits"}')
    with raises(code):
        ask("train.py", cluster="dgx-h100", **options)


PERIODS = Path(__file__).parent / "scripts_time/periods.py"

# Kind, every how many steps it exchanges, steps that are rehearsed: steps whose mean is told, whether that is a period.
STEPS_OF_A_PERIOD = {
    ("accumulated", 4, 3): (1, True),
    ("weights", 1, 3): (1, True),
    ("weights", 99, 3): (1, True),
    ("weights", 3, 7): (3, True),
    ("weights", 3, 9): (3, True),
    ("weights", 3, 3): (2, False),
    ("weights", 3, 6): (5, False),
    ("gradients", 2, 5): (2, True),
    ("gradients", 4, 9): (4, True),
    ("sent", 2, 5): (2, True),
    ("sent", 2, 3): (2, False),
    ("validated", 3, 8): (3, True),
    ("static", 1, 3): (1, True),  # in other buckets from the third step on
    ("static", 1, 5): (1, True),
    ("static halves", 1, 3): (1, True),
}


@pytest.fixture(scope="module")
def of_periods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepTime]:
    jobs = [
        Job(f"{kind} {every} {steps}", PERIODS, 8, (0, 7), (kind, str(every)), steps)
        for kind, every, steps in STEPS_OF_A_PERIOD
    ]
    return {name: step_time(found, H100) for name, found in rehearse(jobs, tmp_path_factory.mktemp("periods")).items()}


@pytest.mark.parametrize("case", STEPS_OF_A_PERIOD, ids=str)
def test_where_steps_exchange_other_things_their_mean_is_told(
    case: tuple[str, int, int], of_periods: dict[str, StepTime]
) -> None:
    timed, is_seen = STEPS_OF_A_PERIOD[case]
    kind, every, steps = case
    found = of_periods[f"{kind} {every} {steps}"]
    assert found.timed == timed
    assert found.parts.seconds == pytest.approx(found.step.seconds)
    assert [f"--steps {2 * steps + 1} " in f"{note} " for note in found.notes] == [not is_seen] * (timed > 1)
    assert len({span.step for span in found.timeline}) == timed


def test_the_mean_of_a_period_is_that_of_steps_with_and_without(of_periods: dict[str, StepTime]) -> None:
    without, each, third = (of_periods[f"weights {name}"] for name in ("99 3", "1 3", "3 7"))
    mean = (2 * without.step.seconds + each.step.seconds) / 3
    assert third.step.seconds == pytest.approx(mean, rel=0.01)
    assert third.ranks[0].flops == pytest.approx(without.ranks[0].flops)
    counts = {share.name: share.count for share in third.collectives}
    assert counts["all_reduce of 8 ranks"] == pytest.approx((16 + 1 + 0 + 1) / 3, abs=0.34)


def test_the_page_of_a_period_has_collectives_of_a_step_and_the_steps_to_ask_for() -> None:
    found = rehearse_script(PERIODS, ["sent", "2"], world=8, cluster="dgx-h100", steps=5)
    broadcast = next(one for one in found.collectives if one.operation == "broadcast")
    assert (broadcast.count, broadcast.nbytes) == (8, 4 * 8 * (1024 * 1024 + 1024) // 2)
    assert found.step is not None
    assert "every 2 steps" in found.step.notes[0]
