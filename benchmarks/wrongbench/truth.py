"""What is wrong in each program of this folder: exact gradients of one process next to a run of all ranks.

The world of each program runs on gloo in 64-bit floats, wrong and right, and writes its weights after each optimizer
step. One process that knows of no other rank repeats the steps on whole batches (local SGD and DiLoCo: the algorithm
for four workers in turn). A difference is relative to what the steps changed. A wrong program must differ by more
than 1 % in a parameter, a right one by at most 1e-6 in all. Prints one line a pair and writes `truth.json`.
"""

import argparse
import ast
import contextlib
import copy
import json
import math
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("WRONGBENCH_RECORD", "unused")  # the programs compute in 64 bits here too

import torch

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
STEPS_WITHIN = 1e-6
WRONG_FROM = 0.01
GITHUB = "https://github.com/"

Weights = dict[str, torch.Tensor]


# ---------------------------------------------------------------------------------------------------------------------
# One process


def order_of(program: SimpleNamespace) -> torch.Tensor:
    """Indices of the samples: those of the data set, or as a sampler draws them from the program's seed."""
    samples = len(program.make_data())
    if not hasattr(program, "SEED"):
        return torch.arange(samples)
    return torch.randperm(samples, generator=torch.Generator().manual_seed(program.SEED))


def batches(program: SimpleNamespace) -> Iterator[tuple[torch.Tensor, ...]]:
    """Whole batches."""
    data = program.make_data()
    for chosen in order_of(program).split(program.BATCH):
        yield tuple(values[chosen] for values in data.tensors)


def weights_of(model: torch.nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def scale_to(parameters: list[torch.nn.Parameter], limit: float) -> None:
    """Scales gradients such that their common norm is at most a limit."""
    norm = math.sqrt(sum(parameter.grad.square().sum().item() for parameter in parameters))
    for parameter in parameters:
        parameter.grad *= min(1.0, limit / norm)


def whole(
    program: SimpleNamespace,
    before_step: Callable[[torch.nn.Module, torch.optim.Optimizer], None] = lambda model, optimizer: None,
) -> Iterator[list[Weights]]:
    """Weights at the start and after each step; the same on all ranks."""
    torch.manual_seed(0)
    model = program.make_model()
    optimizer = program.make_optimizer(model.parameters())
    yield [weights_of(model)]
    for batch in batches(program):
        optimizer.zero_grad()
        program.loss_of(model, batch).backward()
        if hasattr(program, "CLIP"):
            scale_to(list(model.parameters()), program.CLIP)
        before_step(model, optimizer)
        if all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()
        yield [weights_of(model)]


def orthogonal(program: SimpleNamespace) -> Iterator[list[Weights]]:
    """Updates of matrices are orthogonal as a whole."""

    def replace(model: torch.nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.grad = program.orthogonal(parameter.grad)

    return whole(program, before_step=replace)


def decayed(program: SimpleNamespace) -> Iterator[list[Weights]]:
    """Matrices alone decay."""

    def decay(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data *= 1 - optimizer.param_groups[0]["lr"] * program.DECAY

    return whole(program, before_step=decay)


def unfrozen(program: SimpleNamespace) -> Iterator[list[Weights]]:
    """The first layer trains from a step on."""
    steps = iter(range(1000))

    def forget(model: torch.nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        if next(steps) < program.FROZEN:
            for parameter in model.fc1.parameters():
                parameter.grad = None

    return whole(program, before_step=forget)


def followed(program: SimpleNamespace) -> Iterator[list[Weights]]:
    """A student and the moving average of its weights."""
    torch.manual_seed(0)
    model = program.make_model()
    teacher = copy.deepcopy(model)
    optimizer = program.make_optimizer(model.parameters())
    yield [weights_of(model)]
    for batch in batches(program):
        optimizer.zero_grad()
        program.loss_of(model, batch, teacher).backward()
        optimizer.step()
        for kept, new in zip(teacher.parameters(), model.parameters(), strict=True):
            kept.data = program.DECAY * kept.data + (1 - program.DECAY) * new.data
        yield [weights_of(model)]


def workers(program: SimpleNamespace, outer: bool) -> Iterator[list[Weights]]:
    """Four workers with local steps; every few steps their mean, or an outer step along it."""
    torch.manual_seed(0)
    anchor = program.make_model()
    models = [copy.deepcopy(anchor) for _ in range(4)]
    optimizers = [program.make_optimizer(model.parameters()) for model in models]
    schedulers = [] if outer else [program.make_scheduler(optimizer) for optimizer in optimizers]
    outer_optimizer = program.make_outer(anchor.parameters()) if outer else None
    yield [weights_of(model) for model in models]
    for step, batch in enumerate(batches(program), 1):
        losses = []
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = program.loss_of(model, [values[rank::4] for values in batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        for scheduler in schedulers:
            scheduler.step(sum(losses) / 4)
        if step % program.LOCAL == 0:
            for kept, *parameters in zip(anchor.parameters(), *(m.parameters() for m in models), strict=True):
                mean = sum(parameter.data for parameter in parameters) / 4
                kept.grad = kept.data - mean
                kept.data = kept.data if outer else mean
            if outer_optimizer is not None:
                outer_optimizer.step()
            for model in models:
                model.load_state_dict(anchor.state_dict())
        yield [weights_of(model) for model in models]


def averaged(program: SimpleNamespace) -> Iterator[list[Weights]]:
    return workers(program, outer=False)


def outer_stepped(program: SimpleNamespace) -> Iterator[list[Weights]]:
    return workers(program, outer=True)


# ---------------------------------------------------------------------------------------------------------------------
# The pairs


@dataclass(frozen=True, slots=True)
class Pair:
    """A program with a fault and its right twin.

    Attributes:
        name: of the program
        kind: of the fault
        module: what is wrong: a module or parameter of the network, or what the loop hands it
        thread: public threads of such a fault
        world: ranks
        truth: the right weights
    """

    name: str
    kind: str
    module: str
    thread: tuple[str, ...] = ()
    world: int = 4
    truth: Callable[[SimpleNamespace], Iterator[list[Weights]]] = whole


PAIRS: tuple[Pair, ...] = (
    Pair(
        "ddp_module_call",
        "forward past the DDP wrapper",
        "all",
        ("jingyaogong/minimind/pull/854", "huggingface/trl/issues/7245"),
    ),
    Pair("token_mean", "mean over the tokens of this rank", "loss", ("huggingface/transformers/issues/34242",)),
    Pair(
        "norm_replicated",
        "gradient norm counts replicated parameters once a rank",
        "gradient norm",
        ("NVIDIA-NeMo/RL/pull/3788", "NVIDIA/Megatron-LM/issues/7452"),
    ),
    Pair(
        "norm_shard",
        "gradient norm of one shard",
        "gradient norm",
        ("hiyouga/LlamaFactory/pull/10640", "deepspeedai/DeepSpeed/issues/8475"),
    ),
    Pair(
        "expert_divisor",
        "gradients of experts not divided",
        "experts",
        ("NVIDIA/Megatron-LM/pull/5956", "pytorch/pytorch/issues/160285"),
    ),
    Pair(
        "sequence_norm",
        "norm weights under sequence parallelism not summed",
        "norm",
        ("NVIDIA/Megatron-LM/issues/1446", "NVIDIA-NeMo/RL/issues/3716"),
    ),
    Pair(
        "pipeline_last_microbatch",
        "a pipeline keeps the gradient of its last microbatch",
        "all",
        ("NVIDIA-NeMo/Automodel/pull/3530", "ServiceNow/Fast-LLM/issues/550"),
        world=2,
    ),
    Pair("pipeline_tied", "tied ends of a pipeline not summed", "embed", ("uw-syfi/piper/issues/13",), world=2),
    Pair(
        "rank_seed",
        "ranks make different weights",
        "all",
        ("antoyang/TubeDETR/issues/15", "horovod/horovod/issues/672"),
    ),
    Pair(
        "fsdp_ignored",
        "gradients of ignored parameters not reduced",
        "fc2",
        ("pytorch/pytorch/issues/98281", "BrotherHappy/OSTQuant/issues/15"),
    ),
    Pair(
        "dp_sp_divisor",
        "divisor of data and sequence parallelism",
        "loss",
        ("ByteDance-Seed/VeOmni/pull/1086", "deepspeedai/DeepSpeed/issues/5248"),
    ),
    Pair(
        "loss_all_reduced",
        "loss all-reduced with autograd and gradients summed",
        "loss",
        ("pytorch/pytorch/pull/190419",),
    ),
    Pair(
        "muon_shard",
        "orthogonal update of a shard",
        "matrices",
        ("deepspeedai/DeepSpeed/issues/7807",),
        truth=orthogonal,
    ),
    Pair("sampler_local_rank", "samples by local rank", "samples", ("vllm-project/speculators/pull/427",)),
    Pair("sampler_seed", "ranks shuffle with different seeds", "samples", ("NVlabs/LongLive/issues/71",)),
    Pair("hook_copy", "hooks reduce a copy of the gradient", "all", ("deepspeedai/DeepSpeed/pull/316",)),
    Pair(
        "hsdp_mesh",
        "mesh without its replica axis",
        "all",
        ("verl-project/verl/issues/7493", "NVIDIA-NeMo/Automodel/pull/3135"),
    ),
    Pair(
        "scaler_one_rank",
        "scaler skips on some ranks alone",
        "actor",
        ("pytorch/pytorch/pull/115710", "facebookresearch/fairseq2/pull/1374"),
    ),
    Pair("no_sync_last", "last microbatch without synchronization", "all", ("modelscope/FunASR/pull/3472",)),
    Pair(
        "branch_by_rank",
        "teacher follows on rank 0 alone",
        "teacher",
        ("lucidrains/ema-pytorch/issues/9",),
        truth=followed,
    ),
    Pair(
        "reduce_early",
        "gradients reduced before the last is added",
        "all",
        ("InfiniTensor/InfiniTrain/pull/213", "deepspeedai/DeepSpeed/issues/8224"),
    ),
    Pair(
        "clip_before_reduce",
        "gradients clipped before they are reduced",
        "gradient norm",
        ("tenstorrent/tt-metal/pull/17672",),
    ),
    Pair(
        "weight_decay_shard",
        "decay mask of the first shard on all shards",
        "norm and biases",
        ("mlfoundations/open_clip/pull/358",),
        truth=decayed,
    ),
    Pair("late_parameter", "parameter made after the DDP wrapper", "adapter", ("pytorch/pytorch/issues/12603",)),
    Pair(
        "unfrozen",
        "parameter unfrozen after the DDP wrapper",
        "fc1",
        ("facebookresearch/fairscale/issues/368",),
        truth=unfrozen,
    ),
    Pair(
        "contrastive_gather",
        "features of other ranks gathered without autograd",
        "all",
        ("mlfoundations/open_clip/issues/616", "NVIDIA-NeMo/Automodel/pull/2995"),
    ),
    Pair(
        "row_bias",
        "bias of a row-parallel layer added on each rank",
        "2.bias",
        ("Wenyueh/MinivLLM/issues/80", "awslabs/slapo/issues/10"),
    ),
    Pair(
        "local_sgd",
        "learning rate by the loss of this rank",
        "learning rate",
        ("lucidrains/DALLE-pytorch/issues/268",),
        truth=averaged,
    ),
    Pair(
        "diloco",
        "some parameters not broadcast",
        "norm and biases",
        ("PrimeIntellect-ai/prime-diloco/pull/13",),
        truth=outer_stepped,
    ),
    Pair(
        "sum_divided",
        "a sum over all tokens divided by ranks again",
        "loss",
        ("facebookresearch/fairseq/issues/494", "pytorch/torchtitan/issues/2972"),
    ),
)


# ---------------------------------------------------------------------------------------------------------------------
# All ranks


def run_rank(name: str, right: bool, rank: int, world: int, port: int, folder: str) -> None:
    """One rank of a program, as torchrun would start it: a world of four is two hosts of two."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WRONGBENCH_RECORD": f"{folder}/weights",
    }
    sys.argv = [f"{name}.py", *(["--right"] if right else [])]
    sys.path.insert(0, str(PROGRAMS))
    warnings.simplefilter("ignore")
    with (
        Path(f"{folder}/log.{rank}").open("w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")


def start_world(name: str, right: bool, world: int, folder: str) -> list[int | None]:
    """Runs a program once.

    Returns:
        Exit codes of its ranks; None for one that did not end within two minutes
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.pipelining"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [context.Process(target=run_rank, args=(name, right, rank, world, port, folder)) for rank in range(world)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + 120
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return codes


def run_world(name: str, right: bool, world: int) -> list[list[Weights]]:
    """Weights after each step, by rank.

    Raises:
        RuntimeError: a rank failed
    """
    with tempfile.TemporaryDirectory() as folder:
        codes = start_world(name, right, world, folder)
        if any(code != 0 for code in codes):
            raise RuntimeError(f"{name}: exit codes {codes}")
        return [torch.load(f"{folder}/weights.{rank}") for rank in range(world)]


# ---------------------------------------------------------------------------------------------------------------------
# Compare


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one parameter on one rank after one step.

    Attributes:
        value: norm of the difference over the norm of what the steps changed
        factor: what the run changed over what is right, where the one is a multiple of the other
    """

    value: float
    step: int
    rank: int
    parameter: str
    factor: float | None


def share_of(tensor: torch.Tensor, shape: torch.Size, rank: int) -> torch.Tensor:
    """What a rank holds of a tensor: all, or its part along the axis that is shorter there."""
    for axis, (size, here) in enumerate(zip(tensor.shape, shape, strict=True)):
        if size != here:
            return tensor.chunk(size // here, axis)[rank % (size // here)]
    return tensor


def differences(run: list[list[Weights]], truth: list[list[Weights]]) -> list[Difference]:
    """Of every parameter on every rank after every step."""
    found = []
    for rank, steps in enumerate(run):
        for step, weights in enumerate(steps, 1):
            for name, value in weights.items():
                if name == "samples":
                    continue
                first, true = (share_of(w[rank % len(w)][name], value.shape, rank) for w in (truth[0], truth[step]))
                changed, due = value - first, true - first
                scale = due.norm().item() or first.norm().item()
                factor = ((changed * due).sum() / due.square().sum()).item() if due.any() else math.nan
                multiple = (changed - factor * due).norm().item() < STEPS_WITHIN * scale
                error = (value - true).norm().item() / scale
                found.append(Difference(error, step, rank, name, factor if multiple else None))
    return found


def samples_of(program: SimpleNamespace, run: list[list[Weights]]) -> list[int]:
    """Indices of the samples of the first global batch."""
    inputs = program.make_data().tensors[0]
    rows = torch.cat([steps[0]["samples"] for steps in run])
    return sorted((inputs[None] == rows[:, None]).all(dim=2).nonzero()[:, 1].tolist())


def fault_of(name: str) -> dict[str, object]:
    """Where a program is wrong.

    Returns:
        `line`: of the fault, or of the branch that the right twin alone takes; `lines`: first and last line of each
        statement that differs between the twins; `step_line`: of the optimizer's step
    """
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    branches = sorted(
        (
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.If | ast.IfExp)
            and any(isinstance(part, ast.Name) and part.id == "right" for part in ast.walk(node.test))
        ),
        key=lambda branch: branch.lineno,
    )
    without = [branch for branch in branches if any(isinstance(part, ast.Not) for part in ast.walk(branch.test))]
    branch = (without or branches)[0]
    wrong = branch.body if branch in without else branch.orelse
    first = wrong[0] if isinstance(wrong, list) and wrong else wrong or branch
    (step_line,) = (
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() in ("optimizer.step()", "scaler.step(optimizer)")
    )
    return {
        "line": first.lineno,
        "lines": [[branch.lineno, branch.end_lineno] for branch in branches],
        "step_line": step_line,
    }


def examine(pair: Pair) -> dict[str, object]:
    """What the table says of a pair."""
    program = SimpleNamespace(**runpy.run_path(str(PROGRAMS / f"{pair.name}.py")))
    truth = list(pair.truth(program))
    wrong_run, right_run = (run_world(pair.name, right, pair.world) for right in (False, True))
    assert all(len(steps) == len(truth) - 1 for steps in wrong_run + right_run), pair.name
    wrong, right = differences(wrong_run, truth), differences(right_run, truth)
    worst, rest = max(wrong, key=lambda d: d.value), max(right, key=lambda d: d.value)
    entry: dict[str, object] = {
        "name": pair.name,
        "kind": pair.kind,
        "links": [GITHUB + thread for thread in pair.thread],
        "world": pair.world,
        "module": pair.module,
        **fault_of(pair.name),
    }
    if far := [d for d in wrong if d.value > WRONG_FROM]:
        step = min(d.step for d in far)
        at_first = [d for d in far if d.step == step]
        factors = [d.factor for d in at_first]
        alike = None not in factors and max(factors) - min(factors) < STEPS_WITHIN * abs(max(factors))
        entry["step"] = step
        entry["parameters"] = sorted({d.parameter for d in at_first})
        entry["factor"] = round(factors[0], 6) if alike else None
    entry["ranks_differ"] = any(
        not torch.equal(value, wrong_run[0][-1][name])
        for steps in wrong_run[1:]
        for name, value in steps[-1].items()
        if name in wrong_run[0][-1] and name != "samples" and value.shape == truth[0][0][name].shape
    )
    if "samples" in wrong_run[0][0]:
        entry["samples"] = {
            "wrong": samples_of(program, wrong_run),
            "right": samples_of(program, right_run),
            "one process": sorted(order_of(program)[: program.BATCH].tolist()),
        }
        assert entry["samples"]["right"] == entry["samples"]["one process"] != entry["samples"]["wrong"]
    entry["wrong"] = {"difference": float(f"{worst.value:.4g}"), "parameter": worst.parameter}
    entry["right"] = {"difference": float(f"{rest.value:.1g}"), "parameter": rest.parameter}
    entry["confirmed"] = worst.value > WRONG_FROM and rest.value <= STEPS_WITHIN
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these pairs; truth.json is not written")
    chosen = parser.parse_args().names
    sys.path.insert(0, str(PROGRAMS))
    entries = []
    for pair in PAIRS:
        if chosen and pair.name not in chosen:
            continue
        entry = examine(pair)
        entries.append(entry)
        wrong, right = entry["wrong"], entry["right"]
        factor = f", factor {entry['factor']:g}" if entry.get("factor") else ""
        print(
            f"{pair.name}: wrong {wrong['difference']:.4g} ({wrong['parameter']}{factor}), "
            f"right {right['difference']:.1g}{'' if entry['confirmed'] else '  NOT CONFIRMED'}",
            flush=True,
        )
    if not chosen:
        document = {"schema_version": 1, "torch": torch.__version__, "pairs": entries}
        (FOLDER / "truth.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{sum(bool(entry['confirmed']) for entry in entries)} of {len(entries)} confirmed")


if __name__ == "__main__":
    main()
