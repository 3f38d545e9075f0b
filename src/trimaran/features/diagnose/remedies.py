"""Remedies for a script or a job that was observed, each with the time that it would save.

A step is split into parts that sum to it (`measure.observe.records.Parts`). A remedy says what the step would be
without some share of a part, so its gain is arithmetic on the parts; for larger batches and other forms of the update,
on a copy of the model that was timed again. The limiter of the script is what the best remedy acts on. What is to be
done is said in the words of who can do it: a script has torch's options, a job those of Trimaran.

    loader            T' = max(T − load + arrival, load / workers, processor time / cores)
    samples           T' = T − load + getting them out of the host's memory
    exchange          T' = T − (exchange + update) (1 − 1/k)            accumulated over k steps
                      T' = T − min(exchange, whole exchange / 2)        half the bytes, and no more than they save alone
    synchronisation   T' = T − (collective + chance waits + sync) (1 − 1/n)       every n steps
    uneven batches    T' = T − (work of most samples − work of mean samples)
    small kernels     T' = load + (forward + backward) × t(kB) / (k t(B)) + (update + other) / k, per B samples
                      T' = T − update (1 − fused / now)
                      T' = T − pointwise operators × time of an empty one
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypedDict, TypeVar

from trimaran.base.remedies import Remedy, rank_remedies
from trimaran.base.units import format_bytes, format_seconds, format_span
from trimaran.measure.observe.analysis import TimeFindings
from trimaran.measure.observe.records import (
    Parts,
    ProcessRecord,
    figure_interval,
    fixed_share,
    growth,
    growth_interval,
    interval,
    ratio_interval,
)

# ---------------------------------------------------------------------------------------------------------------------
# What a remedy saves of a step, as arguments of `Remedy`


LEAST_GAIN = 0.01
"""Smaller predicted gains are not worth a line."""

# Of a step that is nearly all saved, something is left.
MOST_GAIN = 0.99

_Step = TypeVar("_Step")


class Gain(TypedDict):
    """A gain as a share of the step [0..1], as arguments of `Remedy`.

    Attributes:
        predicted_gain: what is expected
        gain_interval: that contains it
    """

    predicted_gain: float
    gain_interval: tuple[float, float]


def gain_between(
    share: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step], *ends: Callable[[_Step], float]
) -> Gain:
    """The share of the step that a remedy saves, with its 90 % interval.

    One block says nothing of how far blocks are apart: a gain may then as well be none, or all, and a loss may be
    larger by as much.

    Args:
        share: that it saves of a step, or of what else sums up steps
        mean: of all blocks
        blocks: of consecutive steps
        ends: the share at the ends of the interval of something that was measured besides
    """
    intervals = [figure_interval(of, mean, blocks) for of in (share, *ends)]
    found = min(intervals[0][0], MOST_GAIN)
    low, high = min(low for _, low, _ in intervals), max(high for _, _, high in intervals)
    if found and len(blocks) < 2:
        low, high = 0.0 if found > 0 else found - MOST_GAIN, MOST_GAIN
    return {"predicted_gain": found, "gain_interval": (min(low, found), min(max(high, found), MOST_GAIN))}


def _said(findings: TimeFindings, *, script: str, job: str) -> str:
    """What to do, for who can do it."""
    return job if findings.facts.get("samples") else script


def gain(findings: TimeFindings, saved: Callable[[Parts], float], *ends: Callable[[Parts], float]) -> Gain:
    """The gain from what is saved of a step, with its interval.

    Args:
        findings: of an observed script
        saved: of the parts of a step [s]
        ends: the same with the ends of the interval of something that was measured besides
    """
    shares = [lambda parts, of=of: of(parts) / parts.step_s for of in (saved, *ends)]
    return gain_between(shares[0], findings.mean, findings.blocks, *shares[1:])


# ---------------------------------------------------------------------------------------------------------------------
# Remedies for ranks that wait for each other: exchanges, metrics, uneven work


_ACCUMULATE = 4
_EVERY = 10
_NAMED = 2


def accumulate(findings: TimeFindings) -> Iterator[Remedy]:
    """An exchange and an update once in several backwards."""
    if len(findings.ranks) < 2:
        return
    share = 1 - 1 / _ACCUMULATE
    mean = findings.mean
    now = _accumulated(findings)
    yield Remedy(
        id="accumulate",
        method="estimated",
        limiter="exchange",
        name=f"accumulate {_ACCUMULATE} steps",
        action=_said(
            findings,
            script=f"Exchange and update once in {_ACCUMULATE * now} backwards{_of_now(now)} (DDP's no_sync for the "
            f"others); the global batch grows by {_ACCUMULATE}, or shrink the local one.",
            job=f"Exchange and update once in {_ACCUMULATE} batches; the global batch grows by {_ACCUMULATE}.",
        ),
        basis=(
            f"Of a step, {format_seconds(mean.exchange)} are exposed exchange and "
            f"{format_seconds(mean.update)} update; three quarters of both go."
        ),
        assumption="adding to gradients costs what writing them does.",
        setting={"accumulate": _ACCUMULATE},
        **gain(findings, lambda parts: share * (parts.exchange + parts.update) if _exchanges(mean) else 0.0),
    )


def _accumulated(findings: TimeFindings) -> int:
    """Backwards of an update. With several optimizers, as those of a GAN, each has one."""
    return 1 if findings.facts["other_optimizers"] else max(1, round(findings.counts["backwards"]))


def _of_now(backwards: int) -> str:
    return f", not in {backwards}" if backwards > 1 else ""


def _exchanges(mean: Parts) -> bool:
    """Whether accumulation is a remedy for the exchange at all, and not for the update."""
    return mean.exchange > LEAST_GAIN * mean.step_s


def halve(findings: TimeFindings) -> Iterator[Remedy]:
    """Gradients sent in 16 bits."""
    model = findings.facts["model"] or {}
    ddp = model.get("ddp")
    if len(findings.ranks) < 2 or ddp is None or "float32" not in model["gradient_dtypes"]:
        return
    if ddp["comm_hook"]:
        return
    whole = min((rank.record.facts["model"]["ddp"]["exchange_ns"] for rank in findings.ranks), default=0) * 1e-9
    alone = ddp.get("spared_s", math.inf)  # what is exposed beyond that is contention, which stays

    def saved(parts: Parts) -> float:
        return float(min(parts.exchange, max(whole, parts.exchange) / 2, alone))

    yield Remedy(
        id="compress-gradients",
        method="estimated",
        limiter="exchange",
        name="send bf16 gradients",
        action=_said(
            findings,
            script="Register DDP's bf16_compress_hook: half the bytes of float32 are sent.",
            job='Send gradients as bf16 (lossy, so opt-in: "--allow compress").',
        ),
        basis=(
            f"An exchange takes {format_seconds(max(whole, findings.mean.exchange))}, of which "
            f"{format_seconds(findings.mean.exchange)} are exposed; it becomes half as long."
        ),
        assumption="the exchange is bound by bytes, converting is free, and the training bears 8 bits of mantissa.",
        setting={"bits": 16},
        **gain(findings, saved),
    )


def seldom(findings: TimeFindings) -> Iterator[Remedy]:
    """Collectives and reads that serve metrics, once in several steps."""
    share = 1 - 1 / _EVERY
    mean = findings.mean
    on_gpu = (findings.facts["model"] or {}).get("device") == "cuda"
    # What a rank waits because it has less work, it would then wait elsewhere.
    lasting = findings.uneven_s + findings.slower_s

    def chance(parts: Parts) -> float:
        return max(0.0, parts.wait_in_collective - lasting)

    metrics = not _trains_by_collectives(findings)

    def saved(parts: Parts) -> float:
        return share * ((parts.collective + chance(parts) if metrics else 0.0) + parts.sync)

    blocked = f"{format_seconds(mean.collective + chance(mean))} are blocked in collectives of the script and "
    reads = f"{format_seconds(mean.sync)} in {findings.counts['syncs']:.0f} reads of values"
    about = partial(
        Remedy,
        id="seldom-metrics",
        method="estimated",
        limiter="synchronisation",
        name=f"log every {_EVERY} steps",
        action=(
            f"Reduce and read metrics once in {_EVERY} steps; keep running sums on the device and call .item() then."
        ),
        setting={"every": _EVERY},
    )
    where, settings = _lines_that_wait(findings)
    if not on_gpu:
        yield about(
            basis=f"Of a step, {blocked if metrics else ''}{reads}; all but one in {_EVERY} go.{where}",
            assumption=f"they serve metrics, which training does not wait for{settings}.",
            **gain(findings, saved),
        )
        return
    # A read waits for what the host has issued. Without it the device works through the host's next issuing.
    issuing = mean.step_s - mean.sync
    most = share * (1 - max(issuing, mean.sync) / mean.step_s)
    yield about(
        basis=(
            f"Of a step, {reads}, and the device idles while the host issues the next step "
            f"({format_seconds(issuing)}); at most the shorter of the two is saved, and half of it is expected."
            f"{where}"
        ),
        assumption=f"the device begins as soon as the host issues{settings}.",
        predicted_gain=most / 2,
        gain_interval=(0.0, most),
    )


def _lines_that_wait(findings: TimeFindings) -> tuple[str, str]:
    """Where most of the waiting of the first rank is, and what that says of its remedy."""
    places = findings.facts.get("places") or []
    total = sum(place["ns"] for place in places)
    if not total:
        return "", ""
    named = [f"{place['line']} in {place['function']} ({place['ns'] / total:.0%})" for place in places[:_NAMED]]
    library = sum(place["ns"] for place in places if place["library"]) > total / 2
    settings = "; most of them are a library's, whose settings say how often, if any do" if library else ""
    return f" Where it waits: {'; '.join(named)}.", settings


def _trains_by_collectives(findings: TimeFindings) -> bool:
    """Whether the collectives of the script are its exchange of parameters or gradients, and not of metrics."""
    model = findings.facts["model"] or {}
    gradients = model.get("gradient_nbytes", 0)
    return bool(model.get("fsdp")) or 0 < gradients <= 2 * findings.counts["collective_nbytes"]


def even(findings: TimeFindings) -> Iterator[Remedy]:
    """The same number of samples on every rank."""
    if findings.uneven_s <= 0:
        return
    saved = findings.uneven_s / findings.mean.step_s
    waits = findings.mean.wait + findings.mean.wait_in_collective
    yield Remedy(
        id="even-batches",
        method="estimated",
        limiter="uneven batches",
        name="even shares",
        action="Give every rank the same number of samples in each step (pad, bucket by length, or drop the rest).",
        basis=(
            f"The largest share of a step is {100 * findings.uneven_samples:.0f} % above the mean share, which is "
            f"{format_seconds(findings.uneven_s)} of work; {format_seconds(waits)} of the mean rank's "
            "step are waiting."
        ),
        assumption="work is a fixed part and a part in proportion to the samples.",
        **gain(findings, lambda parts: saved * parts.step_s),
    )


def weighted(findings: TimeFindings) -> Iterator[Remedy]:
    """Fewer samples on the rank that is slower."""
    if len(findings.ranks) < 2:
        return
    saved = findings.slower_s / findings.mean.step_s
    low, high = interval(saved, findings.slower) if saved else (0.0, 0.0)
    slowest = max(findings.ranks, key=lambda rank: rank.work_s)
    yield Remedy(
        id="even-ranks",
        method="estimated",
        limiter="slow rank",
        name="shares by speed",
        action=f"Give rank {slowest.rank} fewer samples than the others, or find what else uses its device.",
        basis=f"For equal samples it works {format_seconds(findings.slower_s)} longer than the mean rank.",
        assumption="it stays the slower one.",
        setting={"rank": slowest.rank},
        predicted_gain=min(saved, MOST_GAIN),
        gain_interval=(min(low, saved), min(high, MOST_GAIN)),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Remedies for kernels that are too small for what each costs by itself


def larger(findings: TimeFindings) -> Iterator[Remedy]:
    """A larger batch, for what does not depend on its size."""
    again = findings.first.record.again or {}
    factors: list[int] = again.get("factors", [])
    if len(factors) < 2:
        return
    records = [rank.record for rank in findings.ranks]
    fitting = [factor for factor in factors[1:] if all(_has_room(record, factor) for record in records)]
    if not fitting:
        return
    factor = fitting[-1]
    ratio = growth(records, factor) or 1.0

    def saved(parts: Parts, ratio: float = ratio) -> float:
        # The exchange is left as it is: other remedies are for it.
        compute = (parts.forward + parts.backward) * (1 - ratio)
        return compute + (parts.update + parts.other + parts.sync) * (1 - 1 / factor)

    fixed = fixed_share(records) or 0.0
    operators = again.get("operators")
    per_operator = again.get("operator_s", 0.0)
    yield Remedy(
        id="larger-batch",
        method="estimated",
        limiter="small kernels",
        name=f"batch ×{factor}",
        action=f"Train with {factor} times the batch, and adapt the learning rate.{_in_one_piece(findings)}",
        basis=(
            f"{100 * fixed:.0f} % of forward and backward do not depend on the batch ({operators} operators; an empty "
            f"one costs {format_seconds(per_operator)}). A copy of the model, timed after the script, takes "
            f"{factor * ratio:.2f} times as long for {factor} times the samples. Time per sample."
        ),
        assumption="the first dimension of an input is the batch, and accuracy bears the batch.",
        setting={"batch": factor},
        **gain(findings, saved, *(partial(saved, ratio=end) for end in growth_interval(records, factor))),
    )


def _has_room(record: ProcessRecord, factor: int) -> bool:
    """Whether a batch that is `factor` times as large fits the process's memory, where that is known."""
    memory, model = record.facts["memory"], record.facts["model"] or {}
    total = memory.get("total_nbytes")
    if total is None:
        return True
    state = model.get("parameter_nbytes", 0) + model.get("gradient_nbytes", 0)
    state += (record.facts["optimizer"] or {}).get("state_nbytes", 0)
    peak = memory["device_peak_nbytes"]
    if peak is None:
        # Of a process on the host much is libraries; the batch's part of it is at most what is no state.
        peak = memory["peak_nbytes"]
    return bool(peak + (factor - 1) * max(0, peak - state) <= total)


def _in_one_piece(findings: TimeFindings) -> str:
    """An option of a script that accumulates, which leaves its training as it is."""
    pieces = _accumulated(findings)
    if pieces < 2:
        return ""
    return f" It accumulates over {pieces} batches: {pieces} times the batch in one piece leaves the training as it is."


def fused(findings: TimeFindings) -> Iterator[Remedy]:
    """A fused optimizer."""
    updates = (findings.first.record.again or {}).get("updates") or {}
    if not updates:
        return
    now_s, fused_s = median(updates["now"]), median(updates["fused"])
    optimizer = findings.facts["optimizer"]["name"]
    yield Remedy(
        id="fused-optimizer",
        method="estimated",
        limiter="small kernels",
        name="fused optimizer",
        action=f"Give {optimizer} fused=True.",
        basis=(
            f"The update takes {format_seconds(findings.mean.update)} of a step; on a copy of the parameters the fused "
            f"form takes {100 * fused_s / now_s:.0f} % of the form in use."
        ),
        setting={"fused": 1},
        **gain(
            findings,
            partial(_of_update, share=fused_s / now_s),
            *(partial(_of_update, share=end) for end in ratio_interval(updates["fused"], updates["now"])),
        ),
    )


def _of_update(parts: Parts, *, share: float) -> float:
    return max(0.0, 1 - share) * parts.update


def compiled(findings: TimeFindings) -> Iterator[Remedy]:
    """A compiled model, for operators that can be fused."""
    again = findings.first.record.again or {}
    if findings.facts["compiled"] or not again.get("pointwise"):
        return
    forwards = max(1.0, findings.counts["forwards"])
    saved = again["pointwise"] * again["operator_s"] * forwards
    mean = findings.mean
    most = min(MOST_GAIN, (again["operators"] * again["operator_s"] * forwards) / mean.step_s)
    expected = min(saved / mean.step_s, most)
    yield Remedy(
        id="compile",
        method="estimated",
        limiter="small kernels",
        name="compile the model",
        action="Wrap the model in torch.compile.",
        basis=(
            f"{again['pointwise']} of {again['operators']} operators work element by element and can be fused into "
            f"others, each sparing an empty operator's {format_seconds(again['operator_s'])}; at best all are spared."
        ),
        assumption="shapes do not change from step to step; what compiling itself takes is not counted.",
        predicted_gain=expected,
        gain_interval=(0.0, most),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Remedies for a step that waits for its data


_MOST_WORKERS = 8
_ENOUGH = 0.8
# A smaller share of the step is not worth measuring the handing over for.
_WORTH = 0.02


def workers(findings: TimeFindings, *, handover: Callable[[int], float | None]) -> Iterator[Remedy]:
    """More worker processes.

    Args:
        findings: of an observed script
        handover: time that a batch of this size [bytes] takes to arrive from a worker [s]; None where it is not known
    """
    loader = findings.facts["loader"]
    mean = findings.mean
    if loader is None or mean.load < _WORTH * mean.step_s:
        return
    cores, now = findings.facts["cores"], loader["workers"]
    handed_over = 0.0 if now else handover(findings.facts["batch_nbytes"])
    # A step may load several batches, to accumulate over them.
    arrives = (handed_over or 0.0) * max(1.0, findings.counts["batches_loaded"])
    one_batch = _one_batch(findings)
    rest = mean.step_s - mean.load
    most = _MOST_WORKERS if not _loading_computes(findings) else max(1, cores - _threads_here(findings)[1])
    most = min(most, loader.get("most", most))
    wanted = next((n for n in range(1, most) if one_batch / n <= _ENOUGH * rest), most)
    if wanted <= now:
        return
    after = step_with_workers(findings, wanted, arrives_s=arrives)
    text = "worker" if wanted == 1 else "workers"
    yield Remedy(
        id="load-ahead",
        method="estimated",
        limiter=LOADER,
        name=f"load in {wanted} {text}",
        action=_said(
            findings,
            script=f"Give the DataLoader num_workers={wanted} (now {now}) and persistent_workers=True.",
            job=f"Let {wanted} {text} of each rank load ahead of its steps (--workers {wanted}; now {now}).",
        ),
        basis=(
            f"A step's data takes {format_seconds(one_batch)} to load and {format_seconds(arrives)} to arrive from "
            f"workers, the rest of a step {format_seconds(rest)}; the step becomes the longer of the rest with the "
            f"arrival and {format_seconds(one_batch)}/{wanted}, and no less than its processor time on {cores} cores."
        ),
        assumption=_of_workers(iterable=loader.get("iterable", False), known=handed_over is not None),
        setting={"workers": wanted},
        **gain(findings, lambda parts: parts.step_s - after(parts)),
    )


def step_with_workers(findings: TimeFindings, workers: int, *, arrives_s: float) -> Callable[[Parts], float]:
    """What a step becomes with a number of worker processes, from its parts as they are [s].

    Args:
        findings: of an observed script
        workers: of each rank
        arrives_s: until the ready batches of a step have come from them [s]
    """
    mean, cores, now = findings.mean, findings.facts["cores"], findings.facts["loader"]["workers"]
    here = [rank for rank in findings.ranks if rank.record.facts["host"] == findings.facts["host"]]
    # The processor time of workers that exist already is not seen: they are taken to compute.
    demand = sum(rank.busy_cores for rank in here) + now * len(here) if _loading_computes(findings) else 0.0

    def after(parts: Parts) -> float:
        batch = _one_batch(findings) * (parts.step_s / mean.step_s if now else parts.load / mean.load)
        return float(max(parts.step_s - parts.load + arrives_s, batch / workers, demand * parts.step_s / cores))

    return after


def _one_batch(findings: TimeFindings) -> float:
    """Time that a step's data take to load [s]; workers that are waited for are busy all the time."""
    loader, mean = findings.facts["loader"], findings.mean
    now = loader["workers"]
    return float(loader.get("batch_s") or (now * mean.step_s if now else mean.load))


def _loading_computes(findings: TimeFindings) -> bool:
    """Whether loading takes a processor; what workers of a script do is not seen, and taken to."""
    loader = findings.facts["loader"]
    return findings.first.load_cpu > 0.5 or (loader["workers"] > 0 and not loader.get("batch_s"))


def _of_workers(*, iterable: bool, known: bool) -> str:
    text = "loading spreads over workers and does not slow the training process down"
    if iterable:
        text += "; an IterableDataset must give each worker its own share (get_worker_info)"
    if not known:
        text += "; handing a batch over is free, because it could not be measured"
    return text + "."


def persistent(findings: TimeFindings) -> Iterator[Remedy]:
    """Workers that are not started anew each epoch."""
    loader = findings.facts["loader"]
    if loader is None or not loader["workers"] or loader["persistent_workers"]:
        return
    yield Remedy(
        id="keep-workers",
        method="estimated",
        limiter=LOADER,
        name="keep the workers",
        action="Give the DataLoader persistent_workers=True.",
        basis=f"Starting workers anew each epoch takes {format_seconds(findings.mean.start)} of the mean step.",
        setting={},
        **gain(findings, lambda parts: parts.start),
    )


def kept(findings: TimeFindings) -> Iterator[Remedy]:
    """Samples of a job that stay in the host's memory after their first read."""
    samples, mean = findings.facts["samples"], findings.mean
    if samples["kept"]:
        return
    needed, free = samples["nbytes"], samples["free"]
    about = f"All {samples['count']} samples take {format_bytes(needed)}, of {format_bytes(free)} free"
    obstacle = ""
    if not samples["repeat"]:
        obstacle = "The same sample is another one each time (it draws random numbers), so that it cannot be kept."
    elif not needed:
        obstacle = "Samples are not alike, so that they cannot be kept."
    elif needed > free // 2:
        obstacle = f"{about}, which is too much."
    yield Remedy(
        id="keep-samples",
        method="estimated",
        limiter=LOADER,
        name="keep samples in memory",
        action="Keep each sample in the host's memory after its first read.",
        basis=obstacle
        or f"{about}. A step waits {format_seconds(mean.load)} for its data; getting them out of it takes "
        f"{format_seconds(samples['recall_s'])}.",
        assumption="the job goes through its data more than once.",
        **gain(findings, lambda parts: 0.0 if obstacle else parts.load - samples["recall_s"]),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Remedies for threads that take the cores from each other


def fewer_threads(findings: TimeFindings) -> Iterator[Remedy]:
    """As many threads as there are cores."""
    threads, processes = _threads_here(findings)
    cores = findings.facts["cores"]
    if threads <= cores or findings.queued < LEAST_GAIN:
        return
    each = max(1, cores // processes)
    most = min(MOST_GAIN, findings.queued)
    yield Remedy(
        id="fewer-threads",
        method="estimated",
        limiter="threads",
        name=f"OMP_NUM_THREADS={each}",
        action=f"Set OMP_NUM_THREADS={each} (now {threads // processes} in each process).",
        basis=(
            f"{processes} {'process has' if processes == 1 else 'processes have'} {threads} threads on {cores} cores, "
            f"and the one that trains waited {findings.queued:.0%} of the time for a processor; at most that is saved, "
            "and half of it is expected."
        ),
        assumption="what else runs on the machine takes the rest.",
        setting={"threads": each},
        predicted_gain=most / 2,
        gain_interval=(0.0, most),
    )


def _threads_here(findings: TimeFindings) -> tuple[int, int]:
    """Threads of the script on the host of its first rank, and its processes there."""
    here = [rank.record.facts for rank in findings.ranks if rank.record.facts["host"] == findings.facts["host"]]
    return sum(facts.get("threads", 1) for facts in here), len(here)


# ---------------------------------------------------------------------------------------------------------------------
# What limits the script, and how sure that is


LIMIT_GAIN = 0.05
"""Below this, the best remedy does not make a limiter: the script computes."""

COMPUTE, LOADER = "compute", "loader"

UNCLEAR = "not clear"
"""The limiter where the run contradicts itself."""

_LEAST_QUEUED = 0.1


def advise(findings: TimeFindings, *, handover: Callable[[int], float | None]) -> list[Remedy]:
    """Remedies worth naming, the best first.

    Args:
        findings: of an observed script
        handover: time that a batch of this size [bytes] takes to arrive from a worker [s]; None where it is not known
    """
    more_workers = partial(workers, handover=handover)
    makers = (
        more_workers,
        persistent,
        accumulate,
        halve,
        seldom,
        even,
        weighted,
        larger,
        fused,
        compiled,
        fewer_threads,
    )
    remedies = [remedy for make in makers for remedy in make(findings)]
    return rank_remedies(remedy for remedy in remedies if remedy.predicted_gain >= LEAST_GAIN)


def advise_job(
    findings: TimeFindings, *, handover: Callable[[int], float | None], whole: bool
) -> tuple[list[Remedy], list[Remedy]]:
    """Remedies for a job: those that are sure to be worth it, the surest gain first, and the others by predicted gain.

    Args:
        findings: of an observed job
        handover: as for `advise`
        whole: each rank has a whole replica, so that shares of a batch can be by the speed of ranks
    """
    makers = (partial(workers, handover=handover), kept, accumulate, halve, *((weighted,) if whole else ()))
    ranked = rank_remedies(remedy for make in makers for remedy in make(findings))
    worth = [remedy for remedy in ranked if remedy.gain_interval[0] >= LEAST_GAIN]
    worth.sort(key=lambda remedy: remedy.gain_interval[0], reverse=True)
    return worth, [remedy for remedy in ranked if remedy not in worth]


def name_limiter(remedies: Sequence[Remedy]) -> str:
    """The limiter of the script: that of the best remedy, or "compute" where none would save much.

    Args:
        remedies: ranked
    """
    if not remedies or remedies[0].predicted_gain < LIMIT_GAIN:
        return COMPUTE
    return remedies[0].limiter


def noise_of(findings: TimeFindings, others: float | None) -> float:
    """The share of the time that other programs may add to any part of a step [0..1]; 0 on a quiet machine.

    Args:
        findings: of an observed script
        others: share of the cores that other programs took meanwhile; None: not known
    """
    # What shares a core's caches and units with it slows a thread by half at most, as long as it need not wait.
    noise = max(findings.queued, _SHARED * (others or 0.0))
    return noise if noise > _LEAST_NOISE else 0.0


def widened(remedies: Sequence[Remedy], noise: float) -> list[Remedy]:
    """Remedies whose intervals have room for noise; that of fewer threads is made of it.

    Args:
        remedies: ranked
        noise: share of the time that other programs may add to any part of a step
    """
    return [
        one
        if one.id == "fewer-threads"
        else replace(
            one, gain_interval=(max(-1.0, one.gain_interval[0] - noise), min(MOST_GAIN, one.gain_interval[1] + noise))
        )
        for one in remedies
    ]


_SHARED, _LEAST_NOISE = 0.5, 0.05


def doubt(
    findings: TimeFindings,
    remedies: Sequence[Remedy],
    *,
    handover: Callable[[int], float | None],
    others: float | None = None,
) -> str | None:
    """Why the limiter is not to be trusted, one or two sentences; None where nothing speaks against it.

    A machine that does other things too makes any part of a step long. Another run would then name another limiter.
    That shows where the halves of this one do, and where the thread that trains has waited longer for a processor than
    the best remedy leads.

    Args:
        findings: of an observed script
        remedies: of the whole run, ranked
        handover: as for `advise`
        others: share of the cores that other programs took meanwhile; None: not known
    """
    named = name_limiter(remedies)
    for part in findings.halves:
        of_part = advise(part, handover=handover)
        other = name_limiter(of_part)
        if _best(of_part, other) - _best(of_part, named) > LIMIT_GAIN:
            names = [name_limiter(advise(half, handover=handover)) for half in findings.halves]
            return (
                f"the first half of the steps is limited by {names[0]}, the second by {names[1]}, and all together by "
                f"{named}: the machine is too busy with other things, or the script changes as it runs. Run it alone, "
                "or longer."
            )
    all_limiters = {remedy.limiter for remedy in remedies} | {COMPUTE}
    lead = _best(remedies, named) - max((_best(remedies, other) for other in all_limiters - {named}), default=0.0)
    noise = noise_of(findings, others)
    if noise > max(_LEAST_QUEUED, lead):  # at worst all of it is in the part that leads
        why = f"other programs took {others or 0.0:.0%} of the cores"
        if findings.queued > max(_LEAST_QUEUED, lead):
            why = f"the thread that trains waited {findings.queued:.0%} of the time for a processor"
        return (
            f"the machine is too busy: {why}, and {named} leads by {max(lead, 0.0):.0%}. "
            f"{_own_threads(findings) or 'Run it alone.'}"
        )
    return _unsure(widened(remedies, noise))


def _unsure(remedies: Sequence[Remedy]) -> str | None:
    """That the remedy which names the limiter may as well lengthen the step by what it should save to name it."""
    if name_limiter(remedies) == COMPUTE or remedies[0].gain_interval[0] > -LIMIT_GAIN:
        return None
    low, high = remedies[0].gain_interval
    return (
        f"steps differ too much: the best remedy would save {remedies[0].predicted_gain:.0%}, with a 90 % interval of "
        f"{format_span(f'{low:.0%}', f'{high:.0%}')}. Run it alone, or longer."
    )


def _best(remedies: Sequence[Remedy], limiter: str) -> float:
    """The best gain of the remedies for a limiter."""
    least = LIMIT_GAIN if limiter == COMPUTE else 0.0
    return max((remedy.predicted_gain for remedy in remedies if remedy.limiter == limiter), default=least)


def _own_threads(findings: TimeFindings) -> str:
    """Advice where the script itself has more threads than there are cores."""
    threads, processes = _threads_here(findings)
    cores = findings.facts["cores"]
    if threads <= cores:
        return ""
    return (
        f"Its own {processes} processes have {threads} threads on {cores} cores: set "
        f"OMP_NUM_THREADS={max(1, cores // processes)}."
    )


_BY_ITSELF = frozenset({LOADER, "small kernels", "slow rank", "uneven batches"})


def made_by_others(findings: TimeFindings, *, handover: Callable[[int], float | None]) -> float | None:
    """What others may have made of the best gain, where the limiter is the same whatever they do; None: not sure.

    What the threads that train do by themselves is known without what they waited for a processor; others slow the rest
    of it by half at most, through caches and units that they share. Exchanges, other ranks and a loader's workers are
    waited for, and how long those wait for a processor is not seen. So it is sure where work of the first kind leads
    by as much, in the whole run and in its halves.

    Args:
        findings: of an observed script
        handover: as for `advise`
    """
    names, shares = set(), []
    for part in (findings, *findings.halves):
        if part.quiet is None:
            return None
        remedies = advise(part.quiet, handover=handover)
        limiter = name_limiter(remedies)
        names.add(limiter)
        gain = _best(remedies, limiter)
        if limiter in ("slow rank", "uneven batches"):  # the longest work may be theirs, and no other
            left = (1 - gain - _SHARED / (1 + _SHARED) / len(part.ranks)) * (1 + _SHARED)
        else:
            left = (1 - gain) / (1 - gain + gain / (1 + _SHARED))
        shares.append(gain - (1 - left))
        second = {one.limiter for one in remedies} - {limiter} | {COMPUTE}
        if gain - shares[-1] - max(_best(remedies, other) for other in second) < LIMIT_GAIN:
            return None
    waits = bool((findings.facts["loader"] or {}).get("workers"))
    return shares[0] if len(names) == 1 and names <= _BY_ITSELF - ({LOADER} if waits else set()) else None
