"""What is asked of Trimaran by the study of the challenges of parallel training and their remedies."""

from statistics import median

from trimaran.base.units import format_span
from trimaran.pricing.collectives.formulas import ring_time
from trimaran.pricing.collectives.parameter_servers import (
    byteps_time,
    colocated_server_time,
    separate_server_time,
)
from trimaran_studies.specification.requirements import (
    Check,
    Recorded,
    Requirement,
    Study,
    judged,
    needs_gpu,
    not_judged,
    percent,
)

# A loader limits where data that are always there would be faster by this share.
_LIMITS = 0.05


def _stalls(recorded: Recorded) -> list[Check]:
    bound = "a delay of 40 ms is found in its class within 10 %; no other class moves by more"
    found = recorded.result("specification")["stalls"]
    shares = [abs(each["unattributed_share"]) for each in found]
    worst = max(found, key=lambda each: abs(each["unattributed_share"]))
    steps = ", ".join(each["job"] for each in found)
    largest = (
        f"unattributed, largest of {steps}: {percent(abs(worst['unattributed_share']))} of a step of "
        f"{1e3 * worst['step_s']:.1f} ms"
    )
    return [
        recorded.tests("A1", bound),
        judged(
            largest,
            "the classes sum to the step ± 2 %",
            holds=max(shares) <= 0.02,
            reason=f"{worst['job']}: the interpreter between two instructions belongs to no class, and other programs "
            "had the cores at times",
            measured=recorded.origin("specification"),
        ),
    ]


def _fed_rows(_: Recorded) -> list[Check]:
    from trimaran_studies.published.rows import published_rows
    from trimaran_studies.validation.loader_rates import answer_feeding

    answers = [each for each in answer_feeding(published_rows("feeding"), anchor="single") if each.error is not None]
    errors = [abs(each.error) for each in answers if each.error is not None]
    limited = [
        each
        for each in answers
        if each.predicted is not None
        and each.baselines is not None
        and each.predicted < (1 - _LIMITS) * each.baselines["data always there"]
    ]
    within = sum(error <= 0.10 for error in errors)
    far = [abs(each.error) for each in limited if each.error is not None]
    return [
        judged(
            f"{within} of {len(errors)} published rows within 10 %, median {percent(median(errors))}",
            "rows within 10 % after one rate of each loader",
            holds=within >= 0.95 * len(errors),
            reason="more than one row in twenty is farther off",
        ),
        not_judged(
            f"in {len(limited)} of them the loader limits; their errors are at most {percent(max(far, default=0.0))}",
            "",
            "too few published rows are limited by their loader to judge by them alone",
        ),
    ]


def _split(recorded: Recorded) -> list[Check]:
    bound = "rank 0 reads B / N samples; the same global batches, bit for bit, for any N"
    return [recorded.tests("A3", bound)]


def _preloading(recorded: Recorded) -> list[Check]:
    every = recorded.result("feed")["cases"]
    # In the others loading is most of a step, or samples are kept: compute is too short to overlap with it.
    cases = [case for case in every if case["wanted"] is not None]
    least = min(every, key=lambda case: case["reached"])
    worst = min(cases, key=lambda case: case["reached"] - case["wanted"])
    chosen = ", ".join(f"{case['strategy']} for {case['job']}" for case in cases)
    return [
        judged(
            f"planned feeding reaches {percent(worst['reached'])} of what compute and reads allow in the worst of "
            f"{len(cases)} cases ({worst['job']}, {percent(worst['wanted'], 0)} wanted; without a bound "
            f"{least['job']} {percent(least['reached'])}); depths by the plan: {chosen}",
            "what compute and reads allow, less 5 % (decoding 10 %)",
            holds=all(case["reached"] >= case["wanted"] for case in cases),
            reason=f"{worst['job']} stays below",
            measured=recorded.origin("feed"),
        ),
        needs_gpu(
            "copies to the device",
            "at least 95 % of the copy overlapped where it is shorter than compute",
            "nothing has measured it yet",
        ),
    ]


def _compression(recorded: Recorded) -> list[Check]:
    from trimaran_studies.reproduce.compression_ratio import least_ratio

    networks = ("resnet50", "resnet101")
    fast, slow = ({name: least_ratio(name, f"ethernet-{rate}g") for name in networks} for rate in (100, 10))
    factors = recorded.result("wire_accuracy")["jobs"]["digits"]["methods"]
    cells = recorded.result("wire")["cells"]
    not_worth = sum("not worth it" in cell["said"] for cell in cells)
    return [
        judged(
            f"100 Gb/s: {_ratios(fast)}", "no compression needed", holds=set(fast.values()) == {1.0}, reason="it is"
        ),
        judged(
            f"10 Gb/s: {_ratios(slow)}",
            "2 to 5 times smaller gradients",
            holds=all(2.0 <= ratio <= 5.0 for ratio in slow.values()),
            reason="another ratio is needed",
        ),
        not_judged(
            f"samples to the target of digits: bf16 {factors['bf16']['samples_factor']['median']:.2f} ×, PowerSGD of "
            f"rank 4 {factors['powersgd:4']['samples_factor']['median']:.2f} ×; {not_worth} of {len(cells)} plans with "
            'compression allowed say "not worth it"',
            "",
            "plans count PowerSGD's samples by this; there is no published bound",
            measured=recorded.origin("wire_accuracy"),
        ),
    ]


def _ratios(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {ratio:g} ×" for name, ratio in found.items())


def _overlap(recorded: Recorded) -> list[Check]:
    return [
        recorded.tests("A6", "exposed communication of the simulation = replay of its events, ± 5 % (here: to 1e-9)")
    ]


def _ablation(_: Recorded) -> list[Check]:
    from trimaran_studies.reproduce.input_pipeline import reproduce_feeding
    from trimaran_studies.reproduce.input_pipeline_report import savings

    found = {(one.links, one.baseline, one.remedy): one for one in savings(reproduce_feeding().rows)}
    checks: list[Check] = []
    for links in ("PCIe", "NVLink"):
        star, ddp = found[links, "replicate-and-scatter", "all"], found[links, "ddp", "all"]
        low, high = star.interval
        mean = 0.0 if star.published is None else star.published.mean
        checks += [
            judged(
                f"{links}, against replicate-and-scatter: {percent(star.mean)} saved on average "
                f"({format_span(percent(low, 0), percent(high, 0))})",
                f"the study's mean, {percent(mean, 2)}, within our 90 %",
                holds=low <= mean <= high,
                reason="our networks and batches are not the study's, which its abstract does not name",
            ),
            not_judged(
                f"{links}, against DDP: {percent(ddp.mean)} "
                f"({format_span(percent(ddp.least, 0), percent(ddp.most, 0))})",
                "",
                "the study has no figure against DDP",
            ),
        ]
    return checks


def _bubbles(_: Recorded) -> list[Check]:
    from trimaran.program.lowering.schedules import (
        Order,
        gpipe,
        interleaved,
        one_forward_one_backward,
        start_times,
        zero_bubble,
    )

    def idle(order: Order, chunks: int = 1) -> float:
        """Share of the logical clock in which the rows do nothing; a step of any instruction is one unit."""
        stages = len(order)
        segments = range(stages * chunks - 1)
        links = [(number, number + 1) for number in segments]
        starts = start_times(order, forward=links, backward=links)
        length = 1 + max(starts.values())
        return sum(length - len(row) for row in order) / (stages * length)

    stages, count, chunks = 4, 8, 2
    plain = (stages - 1) / (count + stages - 1)
    split = (stages - 1) / (chunks * count + stages - 1)
    halves = (stages - 1) / (3 * count + stages - 1)
    cases = (
        ("GPipe", idle(gpipe(stages, count)), plain, "(K − 1) / (M + K − 1)"),
        ("1F1B", idle(one_forward_one_backward(stages, count)), plain, "(K − 1) / (M + K − 1)"),
        ("interleaved", idle(interleaved(stages, count, chunks), chunks), split, "(K − 1) / (v M + K − 1)"),
        ("zero-bubble", idle(zero_bubble(stages, count)), halves, "(K − 1) / (3 M + K − 1)"),
    )
    return [
        judged(
            f"{name}, K = {stages}, M = {count}{f', v = {chunks}' if name == 'interleaved' else ''}: "
            f"idle {percent(found, 2)}",
            f"{formula} = {percent(expected, 2)}",
            holds=abs(found - expected) < 1e-12,
            reason="it differs",
        )
        for name, found, expected, formula in cases
    ]


def _stale(recorded: Recorded) -> list[Check]:
    cells = recorded.result("matrix")["cells"]
    equal = sum(cell["verdict"] == "equal" for cell in cells)
    refused = sum(cell["verdict"] == "refused" for cell in cells)
    others = len(cells) - equal - refused
    stale = recorded.result("stale")["cells"]
    factors = ", ".join(
        f"{cell['job']} on {cell['stages']} stages {cell['schedules']['pipedream']['samples_factor']['median']:.2f} ×"
        for cell in stale
    )
    return [
        judged(
            f"{equal} trainings by all kinds of synchronous plans equal one process, {refused} are refused, "
            f"{others} differ",
            "losses, gradients, weights of one process, to 1e-10",
            holds=others == 0,
            reason="some differ",
            measured=recorded.origin("matrix"),
        ),
        recorded.tests("A9", "a stale schedule is considered only where it is named"),
        not_judged(
            f"PipeDream's samples to the target: {factors}",
            "",
            "small jobs; there is no published bound",
            measured=recorded.origin("stale"),
        ),
    ]


def _formulas(_: Recorded) -> list[Check]:
    from trimaran.machine.types import Link

    nbytes, workers, servers, rate = 1e9, 8, 2, 12.5e9
    link = Link(bytes_per_s=rate, latency_s=0.0, source="a link without latency")
    n, k = workers, servers
    cases = (
        (
            "ring",
            ring_time("all_reduce", nbytes, ranks=n, link=link),
            2 * (n - 1) * nbytes / (n * rate),
            "2 (n−1) M / (n B)",
        ),
        (
            "servers on the workers' machines",
            colocated_server_time(nbytes, workers=n, bytes_per_s=rate),
            2 * (n - 1) * nbytes / (n * rate),
            "2 (n−1) M / (n B)",
        ),
        (
            "BytePS",
            byteps_time(nbytes, workers=n, servers=k, bytes_per_s=rate),
            2 * n * (n - 1) * nbytes / ((n**2 + k * n - 2 * k) * rate),
            "2 n (n−1) M / ((n² + k n − 2 k) B)",
        ),
        (
            "servers on separate machines",
            separate_server_time(nbytes, workers=n, servers=k, bytes_per_s=rate),
            max(nbytes / rate, n * nbytes / (k * rate)),
            "max(M / B, n M / (k B))",
        ),
    )
    return [
        judged(
            f"{name}, M = 1 GB, n = {n}, k = {k}, B = 12.5 GB/s: {1e3 * found:.2f} ms",
            f"{formula} = {1e3 * expected:.2f} ms",
            holds=abs(found / expected - 1) < 1e-12,
            reason="it differs",
        )
        for name, found, expected, formula in cases
    ]


def _survey(recorded: Recorded) -> list[Check]:
    from trimaran.base.remedies import CATALOGUE
    from trimaran_studies.survey import WORKS

    asked = sum(work.question is not None for work in WORKS)
    return [
        judged(
            f"{len(WORKS)} published remedies, {asked} of them predicted on two jobs; {len(CATALOGUE)} in the "
            "catalogue of explain, observe, scale and profile --stalls",
            "each known remedy is named with its predicted gain, or as one that cannot be asked about",
            holds=bool(WORKS) and bool(CATALOGUE),
            reason="there are none",
        ),
        recorded.tests("A11", "explain and observe rank remedies by predicted gain"),
    ]


PARALLEL_TRAINING = Study(
    letter="A",
    title="Challenges of parallel training, and remedies",
    citation="Xu, Zhang, Tang: Parallelizing DNN Training on GPUs: Challenges and Opportunities. WWW '21 Companion; "
    "and Xu et al.: ScaleDNN: Data Movement Aware DNN Training on Multi-GPU. ICCAD 2021",
    requirements=(
        Requirement(
            id="A1",
            must="split a step by what it waits for: reads, preparation, copies, compute, communication, late ranks",
            command="trimaran observe digits-resnet --stalls --devices 2",
            find=_stalls,
            tests=("tests/distributed/test_stalls.py",),
        ),
        Requirement(
            id="A2",
            must="predict jobs that their input pipeline limits, from rates of loader, decoding, storage and copies",
            command="python -m trimaran_studies validate --family feeding",
            find=_fed_rows,
        ),
        Requirement(
            id="A3",
            must="let each rank read its own share of the batch; nothing goes through rank 0",
            command="scripts/pytest tests/distributed/test_feed.py tests/unit/runtime/test_feed.py",
            find=_split,
            tests=("tests/distributed/test_feed.py", "tests/unit/runtime/test_feed.py"),
        ),
        Requirement(
            id="A4",
            must="load ahead, as deep as the plan says",
            command="scripts/bench feed",
            find=_preloading,
        ),
        Requirement(
            id="A5",
            must="compress gradients where that is allowed, with error feedback; predict the gain; say where there "
            "is none",
            command="trimaran plan resnet50 --cluster dgx1-v100:8@ethernet-10g --devices 64 --batch 2048 "
            "--allow compress",
            find=_compression,
        ),
        Requirement(
            id="A6",
            must="overlap buckets of gradients with the backward, and plan their size",
            command="scripts/pytest tests/property/test_bucket_replay.py",
            find=_overlap,
            tests=("tests/property/test_bucket_replay.py",),
        ),
        Requirement(
            id="A7",
            must="switch the study's three remedies on one at a time, against replicate-and-scatter and against DDP",
            command="python -m trimaran_studies reproduce feeding",
            find=_ablation,
        ),
        Requirement(
            id="A8",
            must="say how busy each device of a pipeline is, under each schedule",
            command="scripts/pytest -k bubble tests/property",
            find=_bubbles,
        ),
        Requirement(
            id="A9",
            must="train synchronously; a stale schedule only by its name",
            command="trimaran plan digits --devices 2 --pp 2 --schedule pipedream",
            find=_stale,
            tests=("tests/unit/planner/test_stale.py",),
        ),
        Requirement(
            id="A10",
            must="price parameter servers, rings, trees, hierarchies and BytePS",
            command="trimaran scale vgg16 --cluster dgx1-v100:4 --devices 32 --sync nccl,server,byteps --servers 2",
            find=_formulas,
        ),
        Requirement(
            id="A11",
            must="name the known remedies for what limits a job, each with its predicted gain",
            command="python -m trimaran_studies reproduce survey",
            find=_survey,
            tests=(
                "tests/unit/report/test_remedies.py",
                "tests/unit/planner/test_explain.py",
                "tests/unit/features/test_advice.py",
            ),
        ),
    ),
)
"""The study's requirements."""
