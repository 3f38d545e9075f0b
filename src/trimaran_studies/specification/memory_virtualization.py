"""What is asked of Trimaran by the study of virtual memory for GPUs."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from trimaran.base.units import format_bytes
from trimaran_studies.specification.requirements import (
    Check,
    Recorded,
    Requirement,
    Study,
    judged,
    needs_gpu,
    not_judged,
    percent,
    reproduced,
)

if TYPE_CHECKING:
    from trimaran.report.memory import PolicyFigures
    from trimaran_studies.reproduce.vdnn import ReproducedPolicy

_SAVED_BY_PYTORCH = {("googlenet", 128): 0.94, ("vgg16", 256): 0.87}
"""Share of the mean, weights left out, that offloading everything saves in a step of PyTorch."""

_SAVED_BY_BUFFERS = {("alexnet", 128): (0.82, 0.89), ("overfeat", 128): (0.81, 0.91)}
"""Least share in the study's accounting, and the published one."""

_DEEP_GB = {"vgg116": 20.4, "vgg216": 37.0, "vgg316": 53.5, "vgg416": 70.1}
"""By hand, from the layers: batch 32, with weights and their gradients, without workspaces."""


def _bit_identical(recorded: Recorded) -> list[Check]:
    return [
        recorded.tests("D1", "gradients equal plain autograd's, bit for bit, on the built-in networks"),
        _identical_on_gpu(recorded),
    ]


def _identical_on_gpu(recorded: Recorded) -> Check:
    if not recorded.has("memory"):
        return needs_gpu("on a GPU, under AMP", "the same", "benchmarks/memory has not been run")
    ours = _arms(recorded, "ours")
    equal = [case for case, row in ours.items() if row["likeness"]["equal"]]
    others = [case for case in ours if case not in equal]
    return judged(
        f"on a GPU, {len(equal)} of {len(ours)} cases: {', '.join(equal) or 'none'}",
        "the same",
        holds=not others,
        reason=f"{', '.join(others)}: near the least memory cuDNN finds no room for a workspace and takes another "
        "algorithm",
        measured=recorded.origin("memory"),
    )


def _arms(recorded: Recorded, arm: str) -> dict[str, Any]:
    """Rows of an arm of benchmarks/memory that ran, by case."""
    rows = recorded.result("memory")["rows"]
    return {row["case"]: row for row in rows if row["arm"] == arm and row["status"] == "ok"}


def _policies(recorded: Recorded) -> list[Check]:
    checks = [recorded.tests("D2", "the dynamic policy tries its steps in the study's order")]
    for network, share, lines in _squeezed():
        dynamic, ours = lines["dyn"], lines["ours"]
        said = percent(dynamic.slowdown, sign=True) if dynamic.fits else "does not fit"
        checks.append(
            judged(
                f"{network}, {share} of its memory: dyn {said}, ours {percent(ours.slowdown, sign=True)}",
                "ours fits, and is not slower",
                holds=ours.fits and (not dynamic.fits or ours.slowdown <= dynamic.slowdown + 1e-9),
                reason="dyn is faster",
            )
        )
    return checks


def _prefetched(recorded: Recorded) -> list[Check]:
    checks = [recorded.tests("D3", "no fetch begins where it exceeds the budget; the study's window, layer by layer")]
    for network, share, lines in _squeezed():
        ours, theirs = lines["ours"], lines["all"]
        checks.append(
            judged(
                f"{network}, {share} of its memory: operations wait {1e3 * ours.stall_s:.1f} ms for copies, with "
                f"everything offloaded by the study's rule {1e3 * theirs.stall_s:.1f} ms",
                "no longer than by the study's rule",
                holds=ours.stall_s <= theirs.stall_s + 1e-9,
                reason="they wait longer",
            )
        )
    return checks


def _metrics(_: Recorded) -> list[Check]:
    reproduced = _reproduced()
    checks = []
    for (network, batch), expected in _SAVED_BY_PYTORCH.items():
        saved = reproduced[network, batch]["trace", "all"].saved
        checks.append(
            judged(
                f"{network}, batch {batch}, a step of PyTorch: mean −{percent(saved)}",
                f"−{percent(expected, 0)} ± 2 points",
                holds=abs(saved - expected) <= 0.02,
                reason="another saving",
            )
        )
    for (network, batch), (least, published) in _SAVED_BY_BUFFERS.items():
        saved = reproduced[network, batch]["paper", "all (m)"].saved
        checks.append(
            judged(
                f"{network}, batch {batch}, the study's buffers: mean −{percent(saved)}",
                f"at least −{percent(least, 0)} (the study: −{percent(published, 0)})",
                holds=saved >= least,
                reason="less is saved",
            )
        )
    for network, gigabytes in _DEEP_GB.items():
        found = _without_workspaces(network) / 1e9
        checks.append(
            judged(
                f"{network}, batch 32: {found:.1f} GB",
                f"{gigabytes} GB",
                holds=abs(found / gigabytes - 1) <= 0.005,
                reason="another sum",
            )
        )
    return checks


def _titan_x(_: Recorded) -> list[Check]:
    from trimaran_studies.reproduce.vdnn import PAPER_FIGURES

    lines = _reproduced()["vgg16", 256]
    published = {
        figure.quantity: figure.value
        for figure in PAPER_FIGURES
        if figure.network == "vgg16" and figure.batch == 256 and figure.grade == "published"
    }
    baseline, dynamic, ours = lines["paper", "none (p)"], lines["paper", "dyn"], lines["trace", "trimaran"]
    return [
        judged(
            f"VGG-16, batch 256, the study's buffers: {baseline.peak_bytes / 1e9:.1f} GB (one constant of "
            "workspaces was settled on the published figure)",
            f"{published['total'] / 1e9:.0f} GB ± 10 %",
            holds=abs(baseline.peak_bytes / published["total"] - 1) <= 0.10,
            reason="another sum",
        ),
        reproduced(
            f"the dynamic policy: {dynamic.peak_bytes / 1e9:.1f} GB, loses {percent(dynamic.slowdown)}",
            f"fits 12 GiB, loses 10 to 25 % (the study: {percent(published['slower'], 0)})",
            holds=dynamic.fits and 0.10 <= dynamic.slowdown <= 0.25,
            experiment="only one convolution has to give its workspace up here, so copies decide: alone they cost "
            f"{percent(lines['paper', 'conv (p)'].slowdown)}, with the slowest algorithm everywhere "
            f"{percent(lines['paper', 'conv (m)'].slowdown)}; copies at 9.6 in place of 12.8 GB/s would give 17.4 %, "
            "and bandwidth tests of such a slot give 12.2 to 12.9 from its own socket, 2.5 to 3.8 from the other one; "
            "none is of a Titan X while it computes (benchmarks/vdnn/README.md)",
        ),
        judged(
            f"our plan: {format_bytes(ours.peak_bytes)}, loses {percent(ours.slowdown)}",
            "fits, loses at most 2 %",
            holds=ours.fits and ours.slowdown <= 0.02,
            reason="it loses more",
        ),
    ]


def _capped(recorded: Recorded) -> list[Check]:
    return [
        recorded.tests("D6", "the budget holds at every step on a CPU, every storage counted"),
        _held_on_gpu(recorded),
    ]


def _held_on_gpu(recorded: Recorded) -> Check:
    bound = "the budget holds at every step"
    if not recorded.has("memory"):
        return needs_gpu("on a GPU, by the allocator", bound, "benchmarks/memory has not been run")
    ours = _arms(recorded, "ours")
    over = [case for case, row in ours.items() if not row["held"]]
    return judged(
        f"on a GPU, by the allocator: {len(ours) - len(over)} of {len(ours)} cases",
        bound,
        holds=not over,
        reason=f"over it: {', '.join(over)}",
        measured=recorded.origin("memory"),
    )


def _floor(_: Recorded) -> list[Check]:
    from trimaran.base.errors import InfeasibleError
    from trimaran.features.memory_fit.estimate import estimate_memory

    found = estimate_memory("vgg16", device="titan-x", batch=256, budget="12GiB", largest_batch=False).estimate
    try:
        estimate_memory("vgg16", device="titan-x", batch=256, budget="2GiB", largest_batch=False)
        refusal = ""
    except InfeasibleError as error:
        refusal = error.code
    return [
        judged(
            f"VGG-16, batch 256, in 12 GiB: minimum memory {format_bytes(found.minimum_memory_bytes)}, lower bound "
            f"{found.lower_bound_s:.2f} s, the plan {found.ratio_to_lower_bound:.3f} times the bound",
            "printed before any run",
            holds=found.minimum_memory_bytes > 0 and found.lower_bound_s > 0.0,
            reason="they are missing",
        ),
        judged(
            f"the same in 2 GiB: {f'refused ({refusal})' if refusal else 'planned'}",
            "refused",
            holds=bool(refusal),
            reason="a plan was made",
        ),
    ]


def _span(figures: list[float], form: str) -> str:
    """The least and the most of some figures, once where they are printed alike."""
    return " to ".join(dict.fromkeys(format(one, form) for one in (min(figures), max(figures))))


def _coded(recorded: Recorded) -> list[Check]:
    document = recorded.result("compression")
    networks, least = document["networks"], document["published_ratio"]
    said = ", ".join(f"{one['network']} {one['trained']:.2f}" for one in networks)
    limits, names = document["limits"], [one["network"] for one in networks]
    # A bit for each word of 32, and the words that are not zero.
    shares = [limits[name]["ratio_of_sparse"] * (1 / 32 + 1 - limits[name]["zeros"]) for name in names]
    return [
        recorded.tests("D8", "lossless to the bit"),
        judged(
            f"at least {percent(min(shares))} of what the zeros of these words allow",
            "95 % of 1 / (1/32 + share of words that are not zero)",
            holds=min(shares) >= 0.95,
            reason="the code has other words besides",
            measured=recorded.origin("compression"),
        ),
        reproduced(
            f"trained on digits, after ReLUs: {said} times fewer bytes",
            f"{least} times (published for trained networks on ImageNet)",
            holds=min(one["trained"] for one in networks) >= least,
            experiment="the code leaves zeros out, and "
            f"{_span([100 * limits[name]['zeros'] for name in names], '.0f')} % of these words are zero; no exact code "
            "of single words does better than "
            f"{_span([limits[name]['ratio_by_entropy'] for name in names], '.2f')} times, by their entropy: 2.6 needs "
            f"{_span([100 * limits[name]['zeros_needed'] for name in names], '.0f')} % zeros "
            "(benchmarks/compression). None was trained on ImageNet here; of networks that were, Albericio et al. "
            "(Cnvlutin, ISCA 2016, as arXiv:1704.07724 has it) give 44 % zeros on average, which is 1.7 times",
            measured=recorded.origin("compression"),
        ),
    ]


def _shared(_: Recorded) -> list[Check]:
    from trimaran.machine.find import find_machine
    from trimaran.machine.topology import host_bandwidth, shared_uplinks

    checks = []
    for name in ("dgx1-v100", "dgx-a100", "8xrtx-3090"):
        node = find_machine(name).node
        alone, together = (host_bandwidth(node, range(count))[0] / 1e9 for count in (1, node.devices))
        sharing = max((len(devices) for edge, devices in shared_uplinks(node) if 0 in devices), default=1)
        checks.append(
            judged(
                f"{name}: {alone:.1f} GB/s to one GPU, {together:.1f} GB/s to each of {node.devices} at once",
                f"{sharing} on one link to the host: {alone / sharing:.1f} GB/s",
                holds=abs(together * sharing / alone - 1) < 1e-9,
                reason="another link is narrower",
            )
        )
    return checks


def _peers(recorded: Recorded) -> list[Check]:
    bound = "side by side, one run"
    what = "save_on_cpu, torchtune's OffloadActivations, checkpointing and activation_memory_budget in the same budget"
    if not recorded.has("memory"):
        return [needs_gpu(what, bound, "benchmarks/memory compares them on a GPU; it has not been run")]
    peers = {name: _arms(recorded, name) for name in ("checkpoint", "vdnn_all", "save_on_cpu", "torchtune", "compile")}
    checks, alone = [], []
    for case, row in _arms(recorded, "ours").items():
        others = {name: rows[case]["slowdown"] for name, rows in peers.items() if case in rows}
        if not others:
            alone.append(f"any in {case}")
            continue
        all_arms = {"ours": row["slowdown"], **others}
        figures = ", ".join(f"{name} {percent(slowdown, 0, sign=True)}" for name, slowdown in all_arms.items())
        checks.append(
            judged(
                f"{case}, longer than without a limit: {figures}",
                "none of them is faster in the same budget",
                holds=row["slowdown"] <= min(others.values()),
                reason="another one is",
                measured=recorded.origin("memory"),
            )
        )
    missing = [*(name for name, rows in peers.items() if not rows), *alone]
    if missing:
        checks.append(not_judged(what, bound, f"{', '.join(missing)} not measured yet"))
    return checks


@cache
def _squeezed() -> "tuple[tuple[str, str, Mapping[str, PolicyFigures]], ...]":
    """Policies of some networks on a Titan X in parts of the memory that a step takes without them."""
    from trimaran.features.memory_fit.estimate import estimate_memory

    found = []
    for network, batch in (("googlenet", 128), ("resnet50", 64), ("vgg16", 64)):
        for share in ("80%", "60%"):
            policies = estimate_memory(
                network, device="titan-x", batch=batch, budget=share, largest_batch=False
            ).estimate.policies
            found.append((f"{network}, batch {batch}", share.replace("%", " %"), policies))
    return tuple(found)


@cache
def _reproduced() -> "Mapping[tuple[str, int], Mapping[tuple[str, str], ReproducedPolicy]]":
    from trimaran_studies.reproduce.vdnn import reproduce_vdnn

    networks = reproduce_vdnn(networks="alexnet,overfeat,googlenet,vgg16").networks
    return {
        (network.network, network.batch): {(line.accounting, line.policy): line for line in network.policies}
        for network in networks
    }


def _without_workspaces(network: str) -> int:
    """The study's buffers of a very deep VGG at batch 32 [bytes]."""
    import numpy

    from trimaran.jobs.published_jobs import network_job
    from trimaran.planning.tracing.meta_trace import JobTracer
    from trimaran_studies.reproduce.vdnn_accounting import baseline, network_of
    from trimaran_studies.reproduce.vdnn_dynamic import Algorithm

    trace = JobTracer(network_job(network)).trace(32)
    paper = network_of(trace, numpy.zeros(trace.length))
    frugal = {number: Algorithm.MEMORY for number, layer in enumerate(paper.layers) if layer.convolution}
    return baseline(paper, frugal).peak_bytes


MEMORY_VIRTUALIZATION = Study(
    letter="D",
    title="Virtual memory for training",
    citation="Rhu, Gimelshein, Clemons, Zulfiqar, Keckler: vDNN: Virtualized Deep Neural Networks for Scalable, "
    "Memory-Efficient Neural Network Design. MICRO 2016, arXiv:1602.08124",
    requirements=(
        Requirement(
            id="D1",
            must="offload and fetch storages without a change of the gradients",
            command="scripts/pytest tests/unit/memory_hooks/test_gradients.py",
            find=_bit_identical,
            tests=("tests/unit/memory_hooks/test_gradients.py",),
        ),
        Requirement(
            id="D2",
            must="have the study's policies, and one that keeps, offloads or recomputes each storage",
            command="trimaran memory googlenet --device titan-x --batch 128 --budget 60%",
            find=_policies,
            tests=("tests/unit/studies/test_vdnn_dynamic.py", "tests/unit/memory/test_vdnn.py"),
        ),
        Requirement(
            id="D3",
            must="fetch by deadline, or within the study's window",
            command="trimaran memory vgg16 --device titan-x --batch 64 --budget 80%",
            find=_prefetched,
            tests=("tests/unit/memory/test_vdnn_window.py", "tests/property/test_memory_laws.py"),
        ),
        Requirement(
            id="D4",
            must="say peak and mean, with weights and without, by the study's accounting and by PyTorch's",
            command="python -m trimaran_studies reproduce vdnn --networks alexnet,overfeat,googlenet,vgg16",
            find=_metrics,
        ),
        Requirement(
            id="D5",
            must="repeat the study's Titan X in simulation",
            command="python -m trimaran_studies reproduce vdnn --networks vgg16:256",
            find=_titan_x,
        ),
        Requirement(
            id="D6",
            must="run under a cap",
            command="python -m trimaran_studies reproduce vdnn --real",
            find=_capped,
            tests=("tests/unit/memory_budget/test_virtual_memory_peaks.py", "tests/unit/memory_hooks/test_peaks.py"),
        ),
        Requirement(
            id="D7",
            must="say minimum memory and lower bound before a run; refuse what cannot fit",
            command="trimaran memory vgg16 --device titan-x --batch 256 --budget 12GiB",
            find=_floor,
        ),
        Requirement(
            id="D8",
            must="compress what is copied to the host",
            command="scripts/bench compression",
            find=_coded,
            tests=("tests/unit/memory_hooks/test_codecs.py",),
        ),
        Requirement(
            id="D9",
            must="divide links to the host among the devices that share them",
            command="trimaran memory vgg16 --device titan-x --batch 256 --budget 12GiB --sharing 4",
            find=_shared,
        ),
        Requirement(
            id="D10",
            must="compare with what people use today",
            command="scripts/bench memory",
            find=_peers,
        ),
    ),
)
"""The study's requirements."""
