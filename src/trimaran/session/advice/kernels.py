"""Remedies for kernels that are too small for what each costs by itself."""

from collections.abc import Iterator
from functools import partial
from statistics import median

from trimaran.measure.observe import Findings, Parts
from trimaran.measure.observe.growth import fixed_share, growth, growth_interval, ratio_interval
from trimaran.report.remedies import Remedy
from trimaran.session.advice.gains import gain
from trimaran.units import format_seconds


def larger(findings: Findings) -> Iterator[Remedy]:
    """A larger batch, for what does not depend on its size."""
    again = findings.first.record.again or {}
    factors: list[int] = again.get("factors", [])
    if len(factors) < 2:
        return
    factor = factors[-1]
    records = [rank.record for rank in findings.ranks]
    ratio = growth(records, factor) or 1.0

    def saved(parts: Parts, ratio: float = ratio) -> float:
        # The exchange is left as it is: it has remedies of its own.
        compute = (parts.forward + parts.backward) * (1 - ratio)
        return compute + (parts.update + parts.other + parts.sync) * (1 - 1 / factor)

    fixed = fixed_share(records) or 0.0
    operators = again.get("operators")
    per_operator = again.get("operator_s", 0.0)
    yield Remedy(
        limiter="small kernels",
        name=f"batch ×{factor}",
        action=f"Train with {factor} times the batch, and adapt the learning rate.{_in_one_piece(findings)}",
        basis=(
            f"{100 * fixed:.0f} % of forward and backward do not depend on the batch ({operators} operators; an empty "
            f"one costs {format_seconds(per_operator)}). A copy of the model, timed after the script, takes "
            f"{factor * ratio:.2f} times as long for {factor} times the samples. Time per sample."
        ),
        assumption="the first dimension of an input is the batch, memory suffices, and accuracy bears the batch.",
        setting={"batch": factor},
        **gain(findings, saved, *(partial(saved, ratio=end) for end in growth_interval(records, factor))),
    )


def _in_one_piece(findings: Findings) -> str:
    """What a script that accumulates may do at no price for its training."""
    pieces = round(findings.counts["backwards"])
    if pieces < 2:
        return ""
    return f" It accumulates over {pieces} batches: {pieces} times the batch in one piece leaves the training as it is."


def fused(findings: Findings) -> Iterator[Remedy]:
    """A fused optimizer."""
    updates = (findings.first.record.again or {}).get("updates") or {}
    if not updates:
        return
    now_s, fused_s = median(updates["now"]), median(updates["fused"])
    optimizer = findings.facts["optimizer"]["name"]
    yield Remedy(
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


def compiled(findings: Findings) -> Iterator[Remedy]:
    """A compiled model, for operators that can be fused."""
    again = findings.first.record.again or {}
    if findings.facts["compiled"] or not again.get("pointwise"):
        return
    forwards = max(1.0, findings.counts["forwards"])
    saved = again["pointwise"] * again["operator_s"] * forwards
    mean = findings.mean
    most = min(0.99, (again["operators"] * again["operator_s"] * forwards) / mean.step_s)
    expected = min(saved / mean.step_s, most)
    yield Remedy(
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
