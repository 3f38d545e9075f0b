"""Remedies for ranks that wait for each other: exchanges, metrics, uneven work."""

from collections.abc import Iterator
from functools import partial

from trimaran.measure.observe import Findings, Parts
from trimaran.report.remedies import Remedy
from trimaran.session.advice.gains import LEAST_GAIN, gain
from trimaran.units import format_seconds

_ACCUMULATE = 4
_EVERY = 10
_NAMED = 2


def accumulate(findings: Findings) -> Iterator[Remedy]:
    """An exchange and an update once in several backwards."""
    if len(findings.ranks) < 2:
        return
    share = 1 - 1 / _ACCUMULATE
    mean = findings.mean
    now = max(1, round(findings.counts["backwards"]))
    yield Remedy(
        limiter="exchange",
        name=f"accumulate {_ACCUMULATE} steps",
        action=(
            f"Exchange and update once in {_ACCUMULATE * now} backwards{_of_now(now)} (DDP's no_sync for the others); "
            f"the global batch grows by {_ACCUMULATE}, or shrink the local one."
        ),
        basis=(
            f"Of a step, {format_seconds(mean.exchange)} are exchange that nothing hides and "
            f"{format_seconds(mean.update)} update; three quarters of both go."
        ),
        assumption="adding to gradients costs what writing them does.",
        setting={"accumulate": _ACCUMULATE},
        **gain(findings, lambda parts: share * (parts.exchange + parts.update) if _exchanges(mean) else 0.0),
    )


def _of_now(backwards: int) -> str:
    return f", not in {backwards}" if backwards > 1 else ""


def _exchanges(mean: Parts) -> bool:
    """Whether accumulation is a remedy for the exchange at all, and not for the update."""
    return mean.exchange > LEAST_GAIN * mean.step_s


def halve(findings: Findings) -> Iterator[Remedy]:
    """Gradients of 16 bits on the wire."""
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
        **gain(findings, saved),
    )


def seldom(findings: Findings) -> Iterator[Remedy]:
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


def _lines_that_wait(findings: Findings) -> tuple[str, str]:
    """Where most of the waiting of the first rank is, and what that says of its remedy."""
    places = findings.facts.get("places") or []
    total = sum(place["ns"] for place in places)
    if not total:
        return "", ""
    named = [f"{place['line']} in {place['function']} ({place['ns'] / total:.0%})" for place in places[:_NAMED]]
    library = sum(place["ns"] for place in places if place["library"]) > total / 2
    settings = "; most of them are a library's, whose settings say how often, if any do" if library else ""
    return f" Where it waits: {'; '.join(named)}.", settings


def _trains_by_collectives(findings: Findings) -> bool:
    """Whether the collectives of the script are its exchange of parameters or gradients, and not of metrics."""
    model = findings.facts["model"] or {}
    gradients = model.get("gradient_nbytes", 0)
    return bool(model.get("fsdp")) or 0 < gradients <= 2 * findings.counts["collective_nbytes"]


def even(findings: Findings) -> Iterator[Remedy]:
    """The same number of samples on every rank."""
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
        **gain(findings, lambda parts: saved * parts.step_s),
    )


def weighted(findings: Findings) -> Iterator[Remedy]:
    """Fewer samples on the rank that is slower."""
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
        **gain(findings, lambda parts: saved * parts.step_s),
    )
