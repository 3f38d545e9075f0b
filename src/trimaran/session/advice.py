"""What would help a script that was observed: known remedies, each with what it would save.

A step is cut into parts that sum to it (`measure.observe.Parts`). A remedy says what the step would be without a part
of a part, so its gain is arithmetic on the parts; for larger batches and other forms of the update, on a copy of the
model that was timed again. The limiter of the script is what the best remedy acts on.

    loader            T' = max(T − load + arrival, load / workers, processor time / cores)
    exchange          T' = T − (exchange + update) (1 − 1/k)            accumulated over k steps
                      T' = T − min(exchange, whole exchange / 2)        half the bytes
    synchronisation   T' = T − (collective + chance waits + sync) (1 − 1/n)       every n steps
    uneven batches    T' = T − (work of most samples − work of mean samples)
    small kernels     T' = load + (forward + backward) × t(kB) / (k t(B)) + (update + other) / k, per B samples
                      T' = T − update (1 − fused / now)
                      T' = T − pointwise operators × time of an empty one
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import TypedDict

from trimaran.measure.observe import Findings, Parts
from trimaran.measure.observe.growth import fixed_share, growth
from trimaran.measure.observe.parts import figure_interval
from trimaran.report.remedies import Remedy, rank_remedies
from trimaran.units import format_seconds

LEAST_GAIN = 0.01
"""Smaller predicted gains are not worth a line."""

LIMIT_GAIN = 0.05
"""Below this, the best remedy does not make a limiter: the script computes."""

COMPUTE = "compute"

_ACCUMULATE = 4
_EVERY = 10
_MOST_WORKERS = 8
_ENOUGH = 0.8
# A smaller share of the step is not worth measuring the handing over for.
_WORTH = 0.02


def advise(findings: Findings, *, handover: Callable[[int], float | None]) -> list[Remedy]:
    """Remedies worth naming, the best first.

    Args:
        findings: of an observed script
        handover: time that a batch of so many bytes takes to arrive from a worker [s]; None where it is not known
    """
    workers = partial(_workers, handover=handover)
    makers = (workers, _persistent, _accumulate, _halve, _seldom, _even, _weighted, _larger, _fused, _compiled)
    remedies = [remedy for make in makers for remedy in make(findings)]
    return rank_remedies(remedy for remedy in remedies if remedy.predicted_gain >= LEAST_GAIN)


def name_limiter(remedies: Sequence[Remedy]) -> str:
    """What limits the script: what the best remedy acts on, or "compute" where none would save much.

    Args:
        remedies: ranked
    """
    if not remedies or remedies[0].predicted_gain < LIMIT_GAIN:
        return COMPUTE
    return remedies[0].limiter


# Of a step that is nearly all saved, something is left.
_MOST = 0.999


class _Gain(TypedDict):
    predicted_gain: float
    gain_interval: tuple[float, float]


def _gain(findings: Findings, saved: Callable[[Parts], float]) -> _Gain:
    """The gain from what is saved of a step [s], with its interval, as arguments of `Remedy`."""
    gain, low, high = figure_interval(lambda parts: saved(parts) / parts.step_s, findings.mean, findings.blocks)
    gain = min(gain, _MOST)
    return {"predicted_gain": gain, "gain_interval": (min(low, gain), min(max(high, gain), _MOST))}


def _workers(findings: Findings, *, handover: Callable[[int], float | None]) -> Iterator[Remedy]:
    loader = findings.facts["loader"]
    mean = findings.mean
    if loader is None or mean.load < _WORTH * mean.step_s:
        return
    first, cores = findings.first, findings.facts["cores"]
    now = loader["workers"]
    handed_over = 0.0 if now else handover(findings.facts["batch_nbytes"])
    # A step may load several batches, to accumulate over them.
    arrives = (handed_over or 0.0) * max(1.0, findings.counts["batches_loaded"])
    # With workers that are waited for, all of them are busy all the time.
    one_batch = mean.load if not now else now * mean.step_s
    rest = mean.step_s - mean.load
    here = [rank for rank in findings.ranks if rank.record.facts["host"] == findings.facts["host"]]
    busy = sum(rank.busy_cores for rank in here)
    computes = first.load_cpu > 0.5 or now > 0
    # The processor time of workers that exist already is not seen: they are taken to compute.
    demand = (busy + (now * len(here) if now else 0)) if computes else 0.0

    def after(parts: Parts, workers: int) -> float:
        batch = parts.load if not now else now * parts.step_s
        bounds = (parts.step_s - parts.load + arrives, batch / workers, demand * parts.step_s / cores)
        return float(max(bounds))

    most = _MOST_WORKERS if not computes else max(1, cores - len(here))
    wanted = next((n for n in range(1, most) if one_batch / n <= _ENOUGH * rest), most)
    if wanted <= now:
        return
    text = "worker" if wanted == 1 else "workers"
    yield Remedy(
        limiter="loader",
        name=f"load in {wanted} {text}",
        action=f"Give the DataLoader num_workers={wanted} (now {now}) and persistent_workers=True.",
        basis=(
            f"A step's data takes {format_seconds(one_batch)} to load and {format_seconds(arrives)} to arrive from "
            f"workers, the rest of a step {format_seconds(rest)}; the step becomes the longer of the rest with the "
            f"arrival and {format_seconds(one_batch)}/{wanted}, and no less than its processor time on {cores} cores."
        ),
        assumption=_of_workers(iterable=loader.get("iterable", False), known=handed_over is not None),
        setting={"workers": wanted},
        **_gain(findings, lambda parts: parts.step_s - after(parts, wanted)),
    )


def _of_workers(*, iterable: bool, known: bool) -> str:
    text = "loading spreads over workers and does not slow the training process down"
    if iterable:
        text += "; an IterableDataset must give each worker its own share (get_worker_info)"
    if not known:
        text += "; handing a batch over is free, because it could not be measured"
    return text + "."


def _persistent(findings: Findings) -> Iterator[Remedy]:
    loader = findings.facts["loader"]
    if loader is None or not loader["workers"] or loader["persistent_workers"]:
        return
    yield Remedy(
        limiter="loader",
        name="keep the workers",
        action="Give the DataLoader persistent_workers=True.",
        basis=f"Starting workers anew each epoch takes {format_seconds(findings.mean.start)} of the mean step.",
        setting={},
        **_gain(findings, lambda parts: parts.start),
    )


def _accumulate(findings: Findings) -> Iterator[Remedy]:
    if len(findings.ranks) < 2:
        return
    share = 1 - 1 / _ACCUMULATE
    mean = findings.mean
    yield Remedy(
        limiter="exchange",
        name=f"accumulate {_ACCUMULATE} steps",
        action=(
            f"Exchange and update once in {_ACCUMULATE} backwards (DDP's no_sync for the others); the global batch "
            f"grows by {_ACCUMULATE}, or shrink the local one."
        ),
        basis=(
            f"Of a step, {format_seconds(mean.exchange)} are exchange that nothing hides and "
            f"{format_seconds(mean.update)} update; three quarters of both go."
        ),
        assumption="adding to gradients costs what writing them does.",
        setting={"accumulate": _ACCUMULATE},
        **_gain(findings, lambda parts: share * (parts.exchange + parts.update) if _exchanges(mean) else 0.0),
    )


def _exchanges(mean: Parts) -> bool:
    """Whether accumulation is a remedy for the exchange at all, and not for the update."""
    return mean.exchange > LEAST_GAIN * mean.step_s


def _halve(findings: Findings) -> Iterator[Remedy]:
    model = findings.facts["model"] or {}
    ddp = model.get("ddp")
    if len(findings.ranks) < 2 or ddp is None or "float32" not in model["gradient_dtypes"]:
        return
    if ddp["comm_hook"]:
        return
    whole = min((rank.record.facts["model"]["ddp"]["exchange_ns"] for rank in findings.ranks), default=0) * 1e-9

    def saved(parts: Parts) -> float:
        return min(parts.exchange, max(whole, parts.exchange) / 2)

    yield Remedy(
        limiter="exchange",
        name="send bf16 gradients",
        action="Register DDP's bf16_compress_hook: half the bytes of float32 go over the wire.",
        basis=(
            f"An exchange takes {format_seconds(max(whole, findings.mean.exchange))}, of which "
            f"{format_seconds(findings.mean.exchange)} are not hidden; it becomes half as long."
        ),
        assumption="the exchange is bound by bytes, converting is free, and the training bears 8 bits of mantissa.",
        setting={"bits": 16},
        **_gain(findings, saved),
    )


def _seldom(findings: Findings) -> Iterator[Remedy]:
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
        limiter="synchronisation",
        name=f"log every {_EVERY} steps",
        action=(
            f"Reduce and read metrics once in {_EVERY} steps; keep running sums on the device and call .item() then."
        ),
        setting={"every": _EVERY},
    )
    if not on_gpu:
        yield about(
            basis=f"Of a step, {blocked if metrics else ''}{reads}; all but one in {_EVERY} go.",
            assumption="they serve metrics, which training does not wait for.",
            **_gain(findings, saved),
        )
        return
    # A read waits for what the host has issued. Without it the device works through the host's next issuing.
    issuing = mean.step_s - mean.sync
    most = share * (1 - max(issuing, mean.sync) / mean.step_s)
    yield about(
        basis=(
            f"Of a step, {reads}, and the device idles while the host issues the next step "
            f"({format_seconds(issuing)}); at most the shorter of the two is saved, and half of it is expected."
        ),
        assumption="the device begins as soon as the host issues.",
        predicted_gain=most / 2,
        gain_interval=(0.0, most),
    )


def _trains_by_collectives(findings: Findings) -> bool:
    """Whether the collectives of the script are its exchange of parameters or gradients, and not of metrics."""
    model = findings.facts["model"] or {}
    gradients = model.get("gradient_nbytes", 0)
    return bool(model.get("fsdp")) or 0 < gradients <= 2 * findings.counts["collective_nbytes"]


def _even(findings: Findings) -> Iterator[Remedy]:
    if findings.uneven_s <= 0:
        return
    saved = findings.uneven_s / findings.mean.step_s
    waits = findings.mean.wait + findings.mean.wait_in_collective
    yield Remedy(
        limiter="uneven batches",
        name="even shares",
        action="Give every rank the same number of samples in each step (pad, bucket by length, or drop the rest).",
        basis=(
            f"The largest share of a step is {100 * findings.uneven_samples:.0f} % above the mean share, which is "
            f"{format_seconds(findings.uneven_s)} of work; {format_seconds(waits)} of the mean rank's "
            "step are waiting."
        ),
        assumption="work is a fixed part and a part in proportion to the samples.",
        **_gain(findings, lambda parts: saved * parts.step_s),
    )


def _weighted(findings: Findings) -> Iterator[Remedy]:
    if len(findings.ranks) < 2:
        return
    saved = findings.slower_s / findings.mean.step_s
    slowest = max(findings.ranks, key=lambda rank: rank.work_s)
    yield Remedy(
        limiter="slow rank",
        name="shares by speed",
        action=f"Give rank {slowest.rank} fewer samples than the others, or find what else uses its device.",
        basis=f"For equal samples it works {format_seconds(findings.slower_s)} longer than the mean rank.",
        assumption="it stays the slower one.",
        **_gain(findings, lambda parts: saved * parts.step_s),
    )


def _larger(findings: Findings) -> Iterator[Remedy]:
    again = findings.first.record.again or {}
    factors: list[int] = again.get("factors", [])
    if len(factors) < 2:
        return
    factor = factors[-1]
    records = [rank.record for rank in findings.ranks]
    ratio = growth(records, factor) or 1.0

    def saved(parts: Parts) -> float:
        # The exchange is left as it is: it has remedies of its own.
        compute = (parts.forward + parts.backward) * (1 - ratio)
        return compute + (parts.update + parts.other + parts.sync) * (1 - 1 / factor)

    fixed = fixed_share(records) or 0.0
    operators = again.get("operators")
    per_operator = again.get("operator_s", 0.0)
    yield Remedy(
        limiter="small kernels",
        name=f"batch ×{factor}",
        action=f"Train with {factor} times the batch, and adapt the learning rate.",
        basis=(
            f"{100 * fixed:.0f} % of forward and backward do not depend on the batch ({operators} operators; an empty "
            f"one costs {format_seconds(per_operator)}). A copy of the model, timed after the script, takes "
            f"{factor * ratio:.2f} times as long for {factor} times the samples. Time per sample."
        ),
        assumption="the first dimension of an input is the batch, memory suffices, and accuracy bears the batch.",
        setting={"batch": factor},
        **_gain(findings, saved),
    )


def _fused(findings: Findings) -> Iterator[Remedy]:
    updates = (findings.first.record.again or {}).get("updates") or {}
    if not updates:
        return
    now, fused = median(updates["now"]), median(updates["fused"])
    optimizer = findings.facts["optimizer"]["name"]
    yield Remedy(
        limiter="small kernels",
        name="fused optimizer",
        action=f"Give {optimizer} fused=True.",
        basis=(
            f"The update takes {format_seconds(findings.mean.update)} of a step; on a copy of the parameters the fused "
            f"form takes {100 * fused / now:.0f} % of the form in use."
        ),
        setting={"fused": 1},
        **_gain(findings, lambda parts: max(0.0, 1 - fused / now) * parts.update),
    )


def _compiled(findings: Findings) -> Iterator[Remedy]:
    again = findings.first.record.again or {}
    if findings.facts["compiled"] or not again.get("pointwise"):
        return
    forwards = max(1.0, findings.counts["forwards"])
    saved = again["pointwise"] * again["operator_s"] * forwards
    mean = findings.mean
    most = min(0.99, (again["operators"] * again["operator_s"] * forwards) / mean.step_s)
    gain = min(saved / mean.step_s, most)
    yield Remedy(
        limiter="small kernels",
        name="compile the model",
        action="Wrap the model in torch.compile.",
        basis=(
            f"{again['pointwise']} of {again['operators']} operators work element by element and can be fused into "
            f"others, each sparing an empty operator's {format_seconds(again['operator_s'])}; at best all are spared."
        ),
        assumption="shapes do not change from step to step; what compiling itself takes is not counted.",
        predicted_gain=gain,
        gain_interval=(0.0, most),
    )
