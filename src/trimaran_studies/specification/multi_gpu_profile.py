"""What is asked of Trimaran by the study of training on a machine with eight GPUs."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from trimaran_studies.specification.requirements import (
    Check,
    Recorded,
    Requirement,
    Study,
    bounded,
    judged,
    not_judged,
    percent,
)

if TYPE_CHECKING:
    from trimaran_studies.validation.scores import Scored

_PUBLISHED_PARAMETERS = {"resnet50": 25_557_032, "vgg16": 138_357_544, "alexnet": 61_100_840}
"""Source: torchvision's tables of weights."""

_INCEPTION_GRADIENTS_MB = 95.2
"""Source: 23.8 million parameters in float32, as descriptions of Inception-v3 round them."""

_NETWORKS = (
    "lenet alexnet googlenet inception-v3 resnet18 resnet34 resnet50 resnet101 resnet152 vgg16 vgg116 vgg216 vgg316 "
    "vgg416 overfeat gnmt biglstm gpt2 llama2:7b"
)

_STUDIED = ("lenet", "alexnet", "googlenet", "inception_v3", "resnet50")
_NO_NVLINK = 12


def _split_step(recorded: Recorded) -> list[Check]:
    measured = recorded.result("local")["phases"]
    cases = measured["cases"]
    origin = recorded.origin("local", "phases")
    unknown = [abs(case["unattributed"]) for case in cases]
    hosts_s = [sum(case["host_s"].values()) for case in cases]
    shares = [host_s / case["measured_s"] for host_s, case in zip(hosts_s, cases, strict=True)]
    work = [case["recording_work"]["share"] for case in cases]
    worst = max(cases, key=lambda case: abs(case["unattributed"]))
    dearest = max(cases, key=lambda case: case["recording_work"]["share"])
    return [
        judged(
            f"load, forward, backward, update and communication sum to the step but for {percent(max(unknown))} (the "
            f"most of {len(cases)} runs); what the host takes before each of them is in it: "
            f"{percent(median(shares))} of a step (median), {1e3 * min(hosts_s):.2f} to {1e3 * max(hosts_s):.2f} ms",
            "sums to the step ± 1 %",
            holds=max(unknown) <= 0.01,
            reason=f"some spans are of no phase, most of them in {worst['network']} by {worst['strategy']}",
            measured=origin,
        ),
        judged(
            f"recording takes {percent(median(work))} of the processor time of a step (median), at most "
            f"{percent(max(work))}",
            "less than 2 %",
            holds=max(work) < 0.02,
            reason=f"{sum(share >= 0.02 for share in work)} of {len(cases)} pay more, most {dearest['network']} by "
            f"{dearest['strategy']} (90 %: {percent(dearest['recording_work']['low'])} to "
            f"{percent(dearest['recording_work']['high'])}); the machine had a load of {measured['load']:.0f}",
            measured=origin,
        ),
    ]


def _networks(_: Recorded) -> list[Check]:
    from trimaran.jobs.published_jobs import network_job
    from trimaran.planning.tracing.workloads import workload

    def parameters(name: str) -> int:
        return sum(gradient.elements for gradient in workload(name, batch=1).gradients)

    checks = [
        judged(
            f"{name}: {(found := parameters(name)):,} parameters",
            f"{exact:,}",
            holds=found == exact,
            reason="another form",
        )
        for name, exact in _PUBLISHED_PARAMETERS.items()
    ]
    megabytes = 4 * parameters("inception_v3") / 1e6
    built = [name for name in _NETWORKS.split() if network_job(name).name]
    return [
        *checks,
        judged(
            f"Inception-v3: {megabytes:.1f} MB of gradients",
            f"{_INCEPTION_GRADIENTS_MB} MB, rounded",
            holds=abs(megabytes / _INCEPTION_GRADIENTS_MB - 1) < 0.002,
            reason="another form",
        ),
        judged(
            f"{len(built)} networks are built: {', '.join(built)}",
            "the study's networks, very deep VGGs, recurrent and transformer networks",
            holds=len(built) == len(_NETWORKS.split()),
            reason="some are not",
        ),
    ]


def _sweep(_: Recorded) -> list[Check]:
    from trimaran.features.scaling import predict_scaling
    from trimaran.program.json_files import to_plain

    def sweep() -> tuple[dict[str, object], dict[str, object]]:
        devices, methods = (1, 2, 4, 8), "kvstore,nccl"
        weak = predict_scaling(
            "googlenet", cluster="dgx1-v100", devices=devices, local_batch=(16, 32, 64), sync=methods
        )
        strong = predict_scaling("googlenet", cluster="dgx1-v100", devices=devices, batch=(256,), sync=methods)
        return to_plain(weak), to_plain(strong)

    first, second = sweep(), sweep()
    rows = sum(len(document["rows"]) for document in first if isinstance(document["rows"], list))
    return [
        judged(
            f"{rows} set-ups of batch × devices × method, weak and strong scaling; twice the same: "
            f"{'yes' if first == second else 'no'}",
            "one command, the same answer each time",
            holds=first == second,
            reason="answers differ",
        )
    ]


def _topology(recorded: Recorded) -> list[Check]:
    from trimaran.machine.catalog import find_node
    from trimaran.machine.topology import pair, pairs, relays

    node = find_node("dgx1-v100")
    without = sum(not one.links for one in pairs(node))
    staged = pair(node, 0, 5)
    ways = [" → ".join(route.vertices) for route in relays(node, 0, 5)]
    return [
        judged(
            f"{without} of {len(pairs(node))} pairs of a DGX-1 with V100 have no NVLink",
            f"{_NO_NVLINK} of 28",
            holds=without == _NO_NVLINK and len(pairs(node)) == 28,
            reason="another mesh",
        ),
        judged(
            f"GPU 0 → 5: {' → '.join(staged.route.vertices)} at {staged.bytes_per_s / 1e9:.1f} GB/s; over NVLink "
            f"{' or '.join(ways)}",
            "routes of two links, and through the host",
            holds=len(ways) > 0 and staged.links == 0,
            reason="no route",
        ),
        recorded.tests("B4", "matrices of nvidia-smi and topology files of NCCL are read"),
    ]


def _winners(_: Recorded) -> list[Check]:
    from trimaran.planning.requests import default_software
    from trimaran_studies.reproduce.dgx1 import (
        FITTED_RATIOS,
        PUBLISHED_RATIOS,
        RATIO_BATCH,
        judged_ratios,
        predicted_ratio,
    )

    software = default_software(("kvstore", "nccl"))
    checks: list[Check] = []
    for network in sorted(PUBLISHED_RATIOS):
        ours, published = predicted_ratio(network, software), PUBLISHED_RATIOS[network].nccl_over_copies
        winner = {True: "NCCL faster", False: "copies faster", None: "not sure"}[ours.faster]
        checks.append(
            judged(
                f"{network}, {RATIO_BATCH} images a GPU: NCCL over peer-to-peer {ours.value:.2f} ({ours.low:.2f} to "
                f"{ours.high:.2f}), {winner}; constants of the package, fitted on {', '.join(FITTED_RATIOS)}",
                f"{published:.2f}: the same winner or not sure, and inside the interval",
                holds=ours.faster in (None, published > 1.0) and ours.covers(published),
                reason="outside the interval, or another winner",
            )
        )
    checks += [
        judged(
            f"{one.network} {one.value:.2f}, {one.error:+.0%} from the published ratio, by constants fitted on "
            f"{', '.join(one.fitted)}: copies at {one.copies:g}, calls at {one.calls:g} of the way from their fast to "
            "their slow end (docs/decisions/0054)",
            "25 %",
            holds=abs(one.error) <= 0.25,
            reason="what the others say of copies and calls does not hold for it",
        )
        for one in judged_ratios(software)
    ]
    return checks


def _batches(_: Recorded) -> list[Check]:
    from trimaran_studies.reproduce.batch_sweep import IMAGES_PER_S, SOURCE, sweep_errors

    known = (2, 16, 128)
    checks = []
    for network in IMAGES_PER_S:
        errors = sweep_errors(network, known=known)
        worst = max(errors, key=lambda batch: abs(errors[batch]))
        checks.append(
            judged(
                f"{network}, fitted at batches {', '.join(map(str, known))}: at most "
                f"{percent(abs(errors[worst]))} off at the {len(errors)} others (batch {worst})",
                f"10 % ({SOURCE})",
                holds=abs(errors[worst]) <= 0.10,
                reason="it is farther off there",
            )
        )
    return checks


def _scaling(_: Recorded) -> list[Check]:
    from trimaran.base.progress import ignore_progress
    from trimaran_studies.published.rows import published_rows
    from trimaran_studies.validation.validate import answer_rows, scored

    rows = [
        row for row in published_rows("dp_throughput") if row.fields["use"] == "dev" and row.anchor and not row.flag
    ]
    answers = [scored(found) for found in answer_rows(rows, "single", progress=ignore_progress)]
    known = [row for row in answers if row.error is not None]
    checks = []
    for title, several in (("one node", False), ("several nodes", True)):
        found = [row for row in known if row.several_nodes is several]
        within, worst = _within(found, 0.10), _farthest(found)
        checks.append(
            judged(
                f"{title}: {percent(within, 0)} of {len(found)} rows within 10 %, worst "
                f"{percent(abs(worst.error or 0.0), 0)} ({worst.groups['network']} on {worst.groups['machine']})",
                "80 % of rows within 10 %, worst 20 %",
                holds=within >= 0.8 and abs(worst.error or 0.0) <= 0.2,
                reason="the worst rows are of jobs that their loader feeds, and of machines whose links and cores the "
                "source does not say; by source below",
            )
        )
    of_source = Counter((row.groups["source"], row.several_nodes) for row in known)
    for (source, several), count in of_source.most_common():
        found = [row for row in known if (row.groups["source"], row.several_nodes) == (source, several)]
        worst = _farthest(found)
        checks.append(
            not_judged(
                f"{source}, {'several nodes' if several else 'one node'}: {percent(_within(found, 0.10), 0)} of "
                f"{count} rows within 10 %, worst {percent(abs(worst.error or 0.0), 0)} ({worst.groups['network']} on "
                f"{worst.groups['machine']}); {percent(_inside(found), 0)} inside their 90 % interval",
                "",
                _UNSTATED.get(source, "a part of the rows above"),
            )
        )
    return checks


_UNSTATED = {
    "stanford-futuredata/gavel": "a part of the rows above; cloud machines whose links between cards, cores a job and "
    "disks the source does not say"
}
"""Of a source whose rows are a line apart: what it does not say."""


def _within(rows: "Sequence[Scored]", bound: float) -> float:
    return sum(abs(row.error or 0.0) <= bound for row in rows) / len(rows)


def _farthest(rows: "Sequence[Scored]") -> "Scored":
    return max(rows, key=lambda row: abs(row.error or 0.0))


def _inside(rows: "Sequence[Scored]") -> float:
    """Share of rows inside their interval."""
    from trimaran_studies.validation.scores import score

    found = score(rows)
    return 0.0 if found is None or found.coverage is None else found.coverage


def _memory(_: Recorded) -> list[Check]:
    from trimaran.base.progress import ignore_progress
    from trimaran_studies.published.rows import published_rows
    from trimaran_studies.validation.scores import quantile
    from trimaran_studies.validation.validate import answer_rows, scored

    rows = [row for row in published_rows("memory") if row.fields["use"] == "dev" and not row.flag]
    answers = [scored(found) for found in answer_rows(rows, "single", progress=ignore_progress)]
    known = [row for row in answers if row.error is not None]
    of_allocator = [row for row in known if row.groups["source"] not in _OF_TOOL]
    errors = sorted(abs(row.error or 0.0) for row in of_allocator)
    far = [row for row in of_allocator if abs(row.error or 0.0) > 0.05]
    outside = [row for row in far if not (row.low or 0.0) <= row.measured <= (row.high or 0.0)]
    checks = [
        bounded(
            f"{len(errors) - len(far)} of {len(errors)} published peaks of an allocator within 5 %, median "
            f"{percent(median(errors))}, 80 % below {percent(quantile(errors, 0.8))}, worst {percent(errors[-1])}",
            "5 % of the allocator's figure",
            holds=not outside,
            reason=f"{_by_network(far)}: figures of one label differ by more, and lie in the interval of what is "
            "priced for it",
            missed=f"outside their interval too: {_by_network(outside)}; in it, as figures of one label differ by "
            f"more: {_by_network([row for row in far if row not in outside])}",
        )
    ]
    for source, count in Counter(row.groups["source"] for row in known).most_common():
        found = [row for row in known if row.groups["source"] == source]
        checks.append(
            not_judged(
                f"{source}: {percent(_within(found, 0.05), 0)} of {count} within 5 %, worst "
                f"{percent(abs(_farthest(found).error or 0.0))}; {percent(_inside(found), 0)} inside their 90 % "
                "interval",
                "",
                _UNLABELLED.get(source, "a part of the rows above"),
            )
        )
    return checks


_OF_TOOL = {"bigscience-workshop/bigscience"}
"""Sources whose figures are those of nvidia-smi, with what other libraries hold, and not the allocator's."""

_UNLABELLED = {
    "NVIDIA/Megatron-LM": "a part of the rows above; two tests with a compiled loss have 1.77, 2.25 and 2.66 GB by "
    "container (LTS, development, an older LTS): their arguments say nothing of recomputation, nor how many 32-bit "
    "forms of the logits the container's compiler keeps, so one to three are priced; of two other tests the file of a "
    "resumed run has 4 bytes a parameter more than all others of the same arguments",
    "bigscience-workshop/bigscience": "as nvidia-smi shows it, with what other libraries hold: not the allocator's "
    "figure",
}
"""Of a source: what its labels do not say."""


def _by_network(rows: "Sequence[Scored]") -> str:
    """Rows by network, with their errors, each once, as they are printed."""
    said = []
    for network, count in Counter(row.groups["network"] for row in rows).most_common():
        errors = (percent(row.error or 0.0, sign=True) for row in rows if row.groups["network"] == network)
        said.append(f"{count} of {network} ({', '.join(dict.fromkeys(errors))})")
    return "; ".join(said) or "none"


def _launches(_: Recorded) -> list[Check]:
    from trimaran.machine.catalog import find_device
    from trimaran.planning.tracing.workloads import workload
    from trimaran.pricing.kernels.estimate import estimate_step
    from trimaran.pricing.kernels.software import Software

    device, software = find_device("v100"), Software(year=2020.0)
    small, large = (estimate_step(workload(name, batch=64), device, software) for name in ("lenet", "vgg16"))
    return [
        judged(
            f"64 samples on a V100: LeNet {'launch-bound' if small.launch_bound else 'not launch-bound'} (host "
            f"{1e3 * small.host_s:.2f} ms, device {1e3 * small.device_s:.2f} ms), VGG-16 "
            f"{'launch-bound' if large.launch_bound else 'not launch-bound'}",
            "LeNet is launch-bound, VGG-16 is not",
            holds=small.launch_bound and not large.launch_bound,
            reason="it is the other way round",
        )
    ]


def _kept(recorded: Recorded) -> list[Check]:
    cases = recorded.result("local")["cases"]
    kinds = Counter(kind for case in cases for kind in case["kinds"])
    errors = sorted(abs(case["error"]) for case in cases)
    terms = "; ".join(
        f"{kind} {percent(median([abs(case['kinds'][kind]['error']) for case in cases if kind in case['kinds']]), 0)}"
        for kind in kinds
    )
    return [
        recorded.tests("B10", "predicted and measured are compared instruction by instruction, and kept with the run"),
        not_judged(
            f"steps of {len(cases)} small runs: error {percent(median(errors), 0)} (median); by kind of "
            f"instruction: {terms}",
            "",
            "no bound is asked for",
            measured=recorded.origin("local"),
        ),
    ]


def _advice(_: Recorded) -> list[Check]:
    from trimaran.base.remedies import rank_remedies
    from trimaran.features.scaling import predict_scaling

    checks = []
    for network in _STUDIED:
        study = predict_scaling(network, cluster="dgx1-v100", devices=(1, 8), local_batch=(16, 64))
        ranked = rank_remedies(study.advice)
        best = next((one for one in ranked if one.actor == "network"), ranked[0] if ranked else None)
        said = "nothing" if best is None else f"{best.name}: {percent(best.predicted_gain, 0)} of a step"
        checks.append(
            judged(
                f"{network} on a DGX-1: {len(ranked)} remedies; {said}",
                "layers whose gradients cannot be overlapped, kernels that are too small, and what would help",
                holds=bool(ranked),
                reason="there is no advice",
            )
        )
    return checks


MULTI_GPU_PROFILE = Study(
    letter="B",
    title="Training on a machine with eight GPUs, taken apart",
    citation="Mojumder, Louis, Sun, Ziabari, Abellán, Kim, Kaeli, Joshi: Profiling DNN Workloads on a "
    "Volta-based DGX-1 System. IISWC 2018",
    requirements=(
        Requirement(
            id="B1",
            must="split a step into forward, backward and update, the update into communication (overlapped, exposed) "
            "and arithmetic",
            command="scripts/bench local",
            find=_split_step,
        ),
        Requirement(
            id="B2",
            must="know the study's networks, and deeper, recurrent and transformer ones, parameter by parameter",
            command="trimaran catalog jobs",
            find=_networks,
        ),
        Requirement(
            id="B3",
            must="sweep batch, devices and method of exchange, at a fixed local or global batch",
            command="trimaran scale googlenet --cluster dgx1-v100 --devices 1,2,4,8 --local-batch 16,32,64 "
            "--sync kvstore,nccl",
            find=_sweep,
        ),
        Requirement(
            id="B4",
            must="know how devices are joined: from the catalog, from a file, from what tools print",
            command="trimaran catalog machines dgx1-v100",
            find=_topology,
            tests=("tests/unit/machine/test_imports.py", "tests/unit/machine/test_topology.py"),
        ),
        Requirement(
            id="B5",
            must="price exchanges by tensor and call, so that the faster method is predicted and not assumed",
            command="python -m trimaran_studies reproduce dgx1",
            find=_winners,
        ),
        Requirement(
            id="B6",
            must="correct the model of one device by few measured steps",
            command="scripts/pytest tests/published/test_batch_sweep.py",
            find=_batches,
        ),
        Requirement(
            id="B7",
            must="predict scaling from the figure of one device and the machine",
            command="python -m trimaran_studies validate --family dp_throughput",
            find=_scaling,
        ),
        Requirement(
            id="B8",
            must="predict the peak memory of each rank before a run",
            command="python -m trimaran_studies validate --family memory",
            find=_memory,
        ),
        Requirement(
            id="B9",
            must="say where launches, synchronization and idle time limit a step",
            command="trimaran scale lenet --cluster dgx1-v100 --devices 1,8",
            find=_launches,
        ),
        Requirement(
            id="B10",
            must="keep predicted and measured figures with each run, term by term",
            command="trimaran train digits --devices 2",
            find=_kept,
            tests=("tests/unit/report/test_compare.py",),
        ),
        Requirement(
            id="B11",
            must="advise who designs a network",
            command="trimaran scale alexnet --cluster dgx1-v100 --devices 1,8 --local-batch 16,64",
            find=_advice,
        ),
    ),
)
"""The study's requirements."""
