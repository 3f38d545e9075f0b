"""Runs the paper's networks and policies on this machine: predicted and accounted peaks.

On a GPU networks have their published size; elsewhere they are narrow and images are small, so that steps are short.
The test is whether memory is as planned. A step is recorded, planned under each policy, and run from the same state.
The live bytes are counted independently of trace and plan: by the allocator of a GPU, by an accountant on a CPU.
Afterwards parameters, buffers and optimizer state must be those of the plain step, bit for bit.

    record ─▶ plan ─▶ restore, run (recipes are compared with the real bytes) ─▶ restore, run (accounted) ─▶ compare

The mean is over the ticks of autograd, where both the prediction and the accountant have a figure. Waits at ends of
layers, which the paper's policies have in simulation, are left out: they change times only.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.record import Recorder
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import plan_memory
from trimaran.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.memory_hooks.accountant import Accountant
from trimaran.memory_hooks.arena import PAGE_BYTES, HostArena
from trimaran.memory_hooks.copies import CopyEngine, CudaEngine, HostEngine
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.networks.alexnet_overfeat_vgg import VGG_GROUPS, AlexNet, OverFeat, Vgg
from trimaran.networks.googlenet_inception import GoogLeNet
from trimaran.pricing.offload_costs import measured_costs
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.report.tables import add_figures, add_words, frame_table
from trimaran.simulator.memory import live_bytes

# ---------------------------------------------------------------------------------------------------------------------
# Networks under the vDNN paper's policies and ours, run on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPolicy:
    """A step under a policy.

    Attributes:
        policy: name
        predicted_peak_bytes: of the plan, before the run [bytes]
        accounted_peak_bytes: of the run, counted over every storage [bytes]
        predicted_mean_bytes: over the ticks of autograd [bytes]
        accounted_mean_bytes: over the same ticks [bytes]
        to_host_bytes: copied to the host [bytes]
        equal: whether parameters, buffers and optimizer state after the step are the plain step's, bit for bit
    """

    policy: str
    predicted_peak_bytes: int
    accounted_peak_bytes: int
    predicted_mean_bytes: int
    accounted_mean_bytes: int
    to_host_bytes: int
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A network under each policy.

    Attributes:
        network: name
        batch: samples
        pixels: height and width of an image
        device: "cpu" or "cuda"
        policies: in order
    """

    network: str
    batch: int
    pixels: int
    device: str
    policies: tuple[RealPolicy, ...]


def real_document(runs: Sequence[RealRun]) -> dict[str, object]:
    """All figures as plain data."""
    return {"runs": [asdict(run) for run in runs]}


def real_table(run: RealRun) -> Table:
    """Policies, one line each, sizes in MB of 1e6 bytes."""
    form = "" if run.device == "cuda" else ", narrow"
    table = frame_table(f"{run.network}{form}, batch {run.batch}, {run.pixels} × {run.pixels} pixels")
    add_words(table, "policy", no_wrap=True)
    add_figures(table, "peak", "accounted", "differs", "mean", "accounted", "to host")
    add_words(table, "result", no_wrap=True)
    for line in run.policies:
        differs = line.accounted_peak_bytes / line.predicted_peak_bytes - 1
        sizes = (
            line.predicted_peak_bytes,
            line.accounted_peak_bytes,
            line.predicted_mean_bytes,
            line.accounted_mean_bytes,
            line.to_host_bytes,
        )
        peak, accounted, *rest = (f"{nbytes / 1e6:.2f}" for nbytes in sizes)
        table.add_row(
            line.policy, peak, accounted, f"{100 * differs:+.2f} %", *rest, "equal" if line.equal else "DIFFERS"
        )
    return table


def real_lines() -> list[str]:
    """How to read the figures."""
    return [
        "peak, mean: predicted from the plan, in MB of 1e6 bytes; accounted: counted over every storage during the "
        "step. Means are over the ticks at which autograd packs and unpacks.",
        "trimaran: at 70 % of the peak of none, or at the minimum memory. equal: parameters, buffers and optimizer "
        "state after the step are those of a plain step, bit for bit.",
    ]


_CLASSES = 10
_SHARE = 0.7
_COPIES_BYTES_PER_S = 5e9
_SMALLEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """A reduced network.

    Attributes:
        model: makes the network of a width
        width: without a GPU
        pixels: height and width of an image, without a GPU and with one
        batch: samples, without a GPU and with one
    """

    model: Callable[[float], nn.Module]
    width: float
    pixels: tuple[int, int]
    batch: tuple[int, int]


_NETWORKS = {
    "alexnet": _Network(
        model=lambda width: AlexNet(_CLASSES, width=width), width=0.25, pixels=(127, 224), batch=(16, 128)
    ),
    "overfeat": _Network(
        model=lambda width: OverFeat(_CLASSES, width=width), width=0.25, pixels=(135, 231), batch=(16, 128)
    ),
    "googlenet": _Network(
        model=lambda width: GoogLeNet(classes=_CLASSES, width=width), width=0.25, pixels=(96, 224), batch=(8, 128)
    ),
    "vgg16": _Network(
        model=lambda width: Vgg(VGG_GROUPS[16], classes=_CLASSES, width=width),
        width=0.125,
        pixels=(96, 224),
        batch=(8, 256),
    ),
    "vgg116": _Network(
        model=lambda width: Vgg(VGG_GROUPS[116], classes=_CLASSES, width=width),
        width=0.125,
        pixels=(32, 224),
        batch=(4, 32),
    ),
}


class _Steps:
    """Training steps of one network, each from the same state."""

    def __init__(self, network: _Network, device: str) -> None:
        self.device = device
        full = device == "cuda"
        self.pixels, self.batch = network.pixels[full], network.batch[full]
        torch.manual_seed(0)
        with torch.device(device):
            self.model = network.model(1.0 if full else network.width).train()
            self.images = torch.randn(self.batch, 3, self.pixels, self.pixels)
            self.target = torch.randint(_CLASSES, (self.batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.run()
        self._start = [tensor.clone() for tensor in self._state()]

    def run(self) -> None:
        """A step: forward, backward, update, gradients dropped."""
        torch.manual_seed(1)
        functional.cross_entropy(self.model(self.images), self.target).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def restore(self) -> None:
        """Back to the state before."""
        with torch.no_grad():
            for tensor, start in zip(self._state(), self._start, strict=True):
                tensor.copy_(start)

    def result(self) -> list[Tensor]:
        """Parameters, buffers and optimizer state as they are."""
        return [tensor.clone() for tensor in self._state()]

    def _state(self) -> list[Tensor]:
        momenta = [value for state in self.optimizer.state.values() for value in state.values()]
        state = [tensor.detach() for tensor in (*self.model.parameters(), *self.model.buffers(), *momenta)]
        return [tensor for tensor in state if isinstance(tensor, Tensor)]


def run_vdnn(networks: str | None = None, *, progress: Progress = ignore_progress) -> tuple[RealRun, ...]:
    """Run the paper's networks, reduced, under its policies and ours.

    Args:
        networks: some of them, such as "alexnet,vgg16"; None: all
        progress: called with the current item

    Returns:
        For each network, each policy with its predicted and accounted memory.

    Raises:
        InputError: an unknown network
    """
    names = list(_NETWORKS) if networks is None else [part.partition(":")[0].strip() for part in networks.split(",")]
    for name in names:
        if name not in _NETWORKS:
            raise InputError(f'"{name}" cannot be run; there are {", ".join(_NETWORKS)}', network=name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runs = []
    for place, name in enumerate(dict.fromkeys(names)):
        progress(name, place, len(names))
        # Kernels of a GPU that add in any order would make results differ without any plan.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            runs.append(_run(name, _Steps(_NETWORKS[name], device)))
    return tuple(runs)


def _run(name: str, steps: _Steps) -> RealRun:
    steps.restore()
    with Recorder(steps.model) as recorder:
        steps.run()
    recording = recorder.recording
    plain = steps.result()
    return RealRun(
        network=name,
        batch=steps.batch,
        pixels=steps.pixels,
        device=steps.device,
        policies=tuple(_executed(steps, recording, plan, policy, plain) for policy, plan in _plans(recording).items()),
    )


def _plans(recording: Recording) -> dict[str, MemoryPlan]:
    trace = recording.trace
    kept = live_bytes(trace, KEEP_ALL).peak
    # Between the minimum memory and the peak: a plan is needed, and there is one.
    budget_bytes = max(int(_SHARE * kept), int(1.02 * minimum_memory(trace).nbytes))
    costs = measured_costs(
        trace,
        to_host_bytes_per_s=_COPIES_BYTES_PER_S,
        to_device_bytes_per_s=_COPIES_BYTES_PER_S,
        source="operations measured while recording; copies assumed",
    )
    ours = plan_memory(trace, costs, budget_bytes=budget_bytes, smallest_bytes=_SMALLEST_BYTES)
    return {"none": KEEP_ALL, "all": vdnn_all(trace), "conv": vdnn_conv(trace), "trimaran": ours.plan}


def _executed(steps: _Steps, recording: Recording, plan: MemoryPlan, policy: str, plain: list[Tensor]) -> RealPolicy:
    predicted = live_bytes(recording.trace, plan)
    accountant = Accountant(steps.device)
    seen: list[tuple[int, int]] = []

    def look(moment: int) -> None:
        # On a CPU, storages made before are known only when an operation reads them: they are added afterwards.
        seen.append((moment, accountant.live_bytes if steps.device == "cuda" else accountant.made_bytes))

    engine: CopyEngine = CudaEngine() if steps.device == "cuda" else HostEngine()
    try:
        with HostArena(_host_bytes(recording)) as arena:
            executor = MemoryExecutor(recording, plan, engine, arena, observe=look)
            _run_once(steps, executor, verify=True)
            seen.clear()
            _run_once(steps, executor, verify=False, accountant=accountant)
            done = executor.finish_step(accountant.peak_bytes)
    finally:
        engine.close()
    moments = [moment for moment, _ in seen]
    return RealPolicy(
        policy=policy,
        predicted_peak_bytes=predicted.peak,
        accounted_peak_bytes=accountant.peak_bytes,
        predicted_mean_bytes=round(float(predicted.at[moments].mean())) if moments else 0,
        accounted_mean_bytes=accountant.base_bytes + round(sum(nbytes for _, nbytes in seen) / max(1, len(seen))),
        to_host_bytes=done.to_host_bytes,
        equal=all(torch.equal(one, other) for one, other in zip(steps.result(), plain, strict=True)),
    )


def _run_once(steps: _Steps, executor: MemoryExecutor, *, verify: bool, accountant: Accountant | None = None) -> None:
    steps.restore()
    executor.finish_step()
    executor.begin_forward(verify=verify)
    with executor.hooks(), accountant or contextlib.nullcontext():
        steps.run()


def _host_bytes(recording: Recording) -> int:
    """Space for every storage that may be offloaded, each at the beginning of a page [bytes]."""
    movable = recording.trace.movable
    return sum(storage.nbytes for storage in movable) + PAGE_BYTES * (len(movable) + 1)
