"""Plans as JSON: the same keys for this machine and for target clusters, for plans and for explanations."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from trimaran.graph.types import Graph
from trimaran.measure.costs import name_link
from trimaran.planner.analytical.candidates import (
    AnalyticalCandidate,
    AnalyticalModel,
    AnalyticalProblem,
    host_memory,
)
from trimaran.planner.choice import GOALS, Option
from trimaran.planner.problem import lack_of_memory, room_bytes
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.space import Rejection
from trimaran.planner.target_estimates import Stop, TargetEstimate, why_estimate
from trimaran.planning.answer.evidence import Modelled, Outlook, Simulated
from trimaran.planning.input_pipeline import feeding_document
from trimaran.pricing.analytical.fits_device import with_buffers
from trimaran.pricing.analytical.memory import rank_memory
from trimaran.pricing.analytical.shapes import stage_chunks
from trimaran.pricing.failures import DAY_S, LongRun, assumed, daly_period, longest_period, young_period
from trimaran.program.json_files import finite, to_plain
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.plan_file import Plan
from trimaran.program.strategy import Strategy

if TYPE_CHECKING:
    from trimaran.planning.answer.results import Planned


def search_document(
    found: Search[Any],
    *,
    one_device_s: float | None = None,
    prices: Iterable[PinPrice] = (),
    goal: str = "",
) -> dict[str, Any]:
    """Counts of a search, without the candidates themselves.

    Args:
        found: the search
        one_device_s: time on one device, where the search does not know it [s]
        prices: of the pins
        goal: objective over all batches; empty: the step

    Returns:
        `rule` (that chose, where something listed is faster), `front` (what nothing beats in time, memory and devices),
        `runners_up`, `baselines` (names), `references` (by role, with reasons), `rejected_counts`, `pins`, `search`.
    """
    base_s = one_device(found) if one_device_s is None else one_device_s
    return {
        "rule": found.rule(goal=goal),
        "pins": [price_document(entry) for entry in prices],
        "search": {
            "seconds": found.seconds,
            "gap": found.gap,
            "bound_s": found.bound_s,
            "is_complete": found.is_complete,
        },
        "front": [_brief(one, base_s) for one in found.pareto],
        "runners_up": [_brief(one, base_s) for one in found.candidates if one is not found.chosen],
        "baselines": [candidate.name for candidate in found.references],
        "references": [_reference(one.role, one.candidate, one.reason, base_s) for one in found.baselines],
        "rejected_counts": found.rejected_counts,
    }


def price_document(entry: PinPrice) -> dict[str, Any]:
    """Cost of a pin."""
    return {
        "pin": entry.pin,
        "without": None if entry.without is None else entry.without.name,
        "without_step_time_s": None if entry.without is None else entry.without.step_time_s,
        "price": entry.price,
        "to_target": entry.to_target,
    }


def one_device(found: Search[Any]) -> float | None:
    """Time of a step on one device [s]; None where it fits in no way."""
    plain = [one for one in (*found.candidates, *found.references) if one.strategy.devices == 1]
    return min((one.step_time_s for one in plain), default=None)


def one_device_of(planned: "Planned") -> tuple[float | None, bool]:
    """Time of a step on one device [s], None where it is not known; and whether it fits there.

    Args:
        planned: its backend may have simulated the whole batch on one device; else it is one of the candidates
    """
    evidence, found = planned.evidence, planned.evidence.search
    if isinstance(evidence, Simulated) and evidence.alone is not None:
        return evidence.alone.step_time_s, not lack_of_memory(evidence.alone.peak_bytes, evidence.problem)
    alone_s = None if found is None else one_device(found)
    return alone_s, alone_s is not None


def degrees(option: Option) -> dict[str, Any]:
    """The figures of a strategy: common ones, then those of a program or of the analytical model."""
    strategy = option.strategy
    common = {
        "dp": strategy.dp,
        "pp": strategy.pp,
        "tp": strategy.tp,
        "zero": strategy.zero,
        "microbatches": strategy.microbatches,
        "chunks": strategy.chunks,
        "schedule": strategy.schedule,
    }
    if isinstance(option, AnalyticalCandidate):
        return common | {
            "cp": strategy.cp,
            "ep": strategy.ep,
            "etp": strategy.expert_tp,
            "microbatch_size": strategy.microbatch,
            "recompute": sorted(strategy.recomputed),
            "recompute_layers": strategy.recompute_layers,
            "sequence_parallel": strategy.splits_sequences,
            "gradients": option.fits_as.gradients,
            "optimizer_state": option.fits_as.optimizer_state,
            "shard_ranks": strategy.shard_ranks,
            "ulysses": strategy.ulysses,
            "tensor_overlap": strategy.tensor_overlap,
            "offload": strategy.offload,
        }
    return common | {
        "sync": strategy.sync,
        "execution": strategy.execution,
        "bucket_bytes": strategy.bucket_bytes,
        "compression": None if strategy.compression is None else strategy.compression.name,
        "codec": None if strategy.codec is None else strategy.codec.text,
    }


def placement_document(graph: Graph, strategy: Strategy) -> dict[str, int]:
    """The row of a replica that runs each part of the network.

    Args:
        graph: the job's
        strategy: with boundaries or parts

    Returns:
        For each module all of whose operations run on one row, the row; where a module is spread, for each of its
        modules or operations.
    """
    row = {op.id: row for ops, row in zip(segment_ops(graph, strategy), strategy.rows, strict=True) for op in ops}
    paths = {op.id: _path(op.id, op.module) for op in graph.ops}
    return dict(_collapsed(paths, row, depth=1))


def _path(name: str, module: str) -> tuple[str, ...]:
    """The modules around an operation, outermost first, and the operation itself."""
    owner = name.partition("@")[0] if "." in name else module
    return (*(part for part in owner.split(".") if part), f"\0{name}")


def _collapsed(paths: Mapping[str, tuple[str, ...]], row: Mapping[str, int], depth: int) -> Iterable[tuple[str, int]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, path in paths.items():
        groups.setdefault(path[:depth], []).append(name)
    for prefix, names in groups.items():
        rows = {row[name] for name in names}
        if len(rows) == 1:
            yield (names[0] if prefix[-1].startswith("\0") else ".".join(prefix)), rows.pop()
        else:
            yield from _collapsed({name: paths[name] for name in names}, row, depth + 1)


def _reference(role: str, option: Option | None, reason: str, base_s: float | None) -> dict[str, Any]:
    found = {"role": role, "reason": reason}
    if option is None:
        return found | {"strategy": None, "devices": None, "step_time_s": None, "speedup": None}
    return found | _brief(option, base_s)


def _brief(option: Option, base_s: float | None) -> dict[str, Any]:
    return {
        "strategy": option.name,
        "devices": option.strategy.devices,
        "step_time_s": option.step_time_s,
        "speedup": None if base_s is None else base_s / option.step_time_s,
        "peak_bytes": max(option.peak_bytes, default=0),
    }


# ---------------------------------------------------------------------------------------------------------------------
# A training to a target as JSON: the choice, the best hybrid and the best data parallelism, the front


def goal_of_plan(outlook: Outlook | None) -> str:
    """Objective of a plan over all batches, in words; empty where it is the step."""
    return "" if outlook is None else GOALS.get(outlook.goal, "")


def outlook_document(outlook: Outlook, costs: Callable[[Option, int], dict[str, Any]] | None = None) -> dict[str, Any]:
    """A choice of strategy, batch and devices.

    Args:
        outlook: the choice
        costs: a strategy at a batch as a row of a plan has it; None: as of `option_document`

    Returns:
        The figures of the chosen one at the top and in `chosen`; `candidates` by batch and number of devices, the best
        data parallelism and the best hybrid of each; `front` of time and cost; `hybrid_comparison`; `choice`, the rule
        that chose where another one is predicted to be better; `stop`; `curve`;
        of a training of tokens `run`, and `limits` where a time or an amount was given.
        Times in seconds, intervals of 90 % as `[low, high]`, null where there is no curve.
    """
    chosen, compared, front = outlook.chosen, outlook.hybrid_comparison, {id(one) for one in outlook.front}

    def row(one: TargetEstimate) -> dict[str, Any]:
        option = one.contender.origin
        costed = option_document(option) if costs is None else costs(option, one.global_batch)
        return costed | {"pareto": id(one) in front} | _training(one)

    of_tokens = {} if chosen.run is None else {"run": run_document(outlook, chosen.run)}
    limits = {}
    if outlook.met is not None:
        within = None if outlook.within_s is None else outlook.within_s / DAY_S
        limits = {"limits": {"days": within, "budget": outlook.budget, "met": outlook.met}}
    return {
        "objective": outlook.goal,
        "asked": outlook.asked,
        **_training(chosen),
        "chosen": row(chosen),
        "devices": outlook.chosen.devices,
        "batches": list(outlook.batches),
        "left_out": [{"global_batch_size": batch, "reason": reason} for batch, reason in outlook.left_out],
        "curve": _curve(outlook),
        "learning_rate_rule": _rule(outlook),
        "price": None if outlook.price is None else str(outlook.price),
        "candidates": [row(one) for one in best_of_each(outlook.estimates)],
        "front": [row(one) for one in outlook.front],
        "hybrid_comparison": {
            "data_parallel": None if compared.data_parallel is None else row(compared.data_parallel),
            "hybrid": None if compared.hybrid is None else row(compared.hybrid),
            "reason": compared.reason,
        },
        "choice": why_estimate(chosen, outlook.estimates, outlook.goal) if outlook.met is None else "",
        "stop": None if outlook.stop is None else _stop(outlook.stop),
        "uncertainty": "90 %; the step's and the curve's distances from the median in quadrature, in logarithms",
        **of_tokens,
        **limits,
    }


def run_document(outlook: Outlook, run: LongRun) -> dict[str, Any]:
    """A training of a number of tokens with its failures.

    Args:
        outlook: the choice
        run: of the chosen one

    Returns:
        Times in seconds but for `days`, intervals of 90 % as `[low, high]`; what is assumed has its source. Money and
        hours are without spare nodes, which have their own, and are paid where they were asked for.
    """
    chosen, said, known = outlook.chosen, run.reliability, assumed()
    recovery = run.recovery
    low, high = chosen.time_interval_s or (math.nan, math.nan)
    rate = recovery.rate
    held = chosen.spares_cost if said.holds_spares else 0.0
    priced = outlook.price is not None and chosen.cost is not None
    # Both grow with the time alone.
    alone = 1.0 - held / chosen.cost if chosen.cost else 1.0
    return {
        "tokens": outlook.tokens,
        "compares_devices": outlook.met is not None or outlook.compares,
        "updates": None if chosen.training is None else chosen.training.updates.amount,
        "days": run.wall_s / DAY_S,
        "days_interval": _ends(low / DAY_S, high / DAY_S),
        "goodput": run.goodput,
        "goodput_interval": [1.0 / run.overhead[2], 1.0 / run.overhead[0]],
        "parts_s": {
            "training": run.work_s,
            "checkpoints": run.checkpoint_s,
            "lost to failures": run.lost_s,
            "restarts": run.restart_s,
        },
        "failures": run.failures,
        "mean_time_between_failures_s": 1.0 / rate,
        "mean_time_between_failures_interval_s": [1.0 / run.rates[1], 1.0 / run.rates[0]],
        "checkpoint_bytes": run.checkpoint_bytes,
        "checkpoints": run.checkpoints,
        "checkpoint_every_s": run.period_s,
        "checkpoint_within_1_percent_s": longest_period(run.work_s, recovery, checkpoints=run.checkpoints),
        "checkpoint_stall_s": recovery.stall_s,
        "checkpoint_write_s": recovery.write_s or recovery.stall_s,
        "young_every_s": young_period(recovery.stall_s, rate),
        "daly_every_s": daly_period(recovery.stall_s, rate),
        "restart_s": recovery.restart_s,
        "repair_s": run.repair_s,
        "spare_nodes": run.spares,
        "spares_paid": said.holds_spares,
        "spare_probability": run.enough,
        "sources": {
            "failures": known.sources["failures"] if said.mtbf_s is None else "given",
            "storage": known.sources["storage"] if said.checkpoint_bytes_per_s is None else "given",
            "restart": known.sources["restart"] if said.restart_s is None else "given",
            "repair": known.sources["repair"] if said.repair_s is None else "given",
        },
        "money": chosen.cost * alone if priced and chosen.cost else None,
        "money_interval": _ends(*(end * alone for end in chosen.cost_interval))
        if priced and chosen.cost_interval
        else None,
        "spares_money": chosen.spares_cost if priced else None,
        "currency": None if outlook.price is None else outlook.price.currency,
        "device_hours": chosen.devices * run.wall_s / 3600.0,
        "spares_device_hours": run.spare_devices * run.wall_s / 3600.0,
    }


def with_outlook(
    document: dict[str, Any], outlook: Outlook, costs: Callable[[Option, int], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The document of a plan with its training to the target.

    Args:
        document: of the strategy at the chosen batch; its candidates and front go under `at_batch`
        outlook: the choice
        costs: as of `outlook_document`
    """
    moved = {name: document[name] for name in ("candidates", "front", "devices") if name in document}
    whole = outlook_document(outlook, costs)
    asked = {name: whole[name] for name in ("objective", "asked")}
    return document | whole | {"chosen": asked | whole["chosen"] | document["chosen"], "at_batch": moved}


def best_of_each(estimates: Iterable[TargetEstimate]) -> list[TargetEstimate]:
    """Of each batch and number of devices the fastest data parallelism and the fastest of the others."""
    best: dict[tuple[int, int, bool], TargetEstimate] = {}
    for one in estimates:
        key = (one.global_batch, one.devices, one.contender.is_hybrid)
        kept = best.get(key)
        rank = (one.contender.step_time_s, one.contender.simplicity)
        if kept is None or rank < (kept.contender.step_time_s, kept.contender.simplicity):
            best[key] = one
    return [best[key] for key in sorted(best)]


def _training(one: TargetEstimate) -> dict[str, Any]:
    """Of a row its batch, and the training to the target; the costs of its step are those of any plan."""
    contender, training = one.contender, one.training
    epochs = None if training is None else training.epochs
    updates = None if training is None else training.updates
    run: dict[str, Any] = {}
    if one.run is not None:
        run = {"goodput": one.run.goodput, "spare_nodes": one.run.spares, "spares_cost": one.spares_cost}
    return run | {
        "devices": contender.devices,
        "global_batch_size": contender.global_batch,
        "local_batch_size": contender.local_batch,
        "microbatch_size": contender.microbatch,
        "hybrid": contender.is_hybrid,
        "samples_per_s": contender.samples_per_s,
        "epochs_to_converge": None if epochs is None else epochs.amount,
        "epochs_to_converge_interval": None if epochs is None else _ends(epochs.low, epochs.high),
        "steps_per_epoch": None if training is None else training.steps_per_epoch,
        "steps_per_epoch_interval": None
        if training is None or training.steps_per_epoch is None
        else [training.steps_per_epoch, training.steps_per_epoch],
        "updates_to_converge": None if updates is None else updates.amount,
        "updates_to_converge_interval": None if updates is None else _ends(updates.low, updates.high),
        "convergence_source": None if updates is None else updates.source,
        "time_to_accuracy_s": one.time_s,
        "time_to_accuracy_interval_s": None if one.time_interval_s is None else _ends(*one.time_interval_s),
        "cost": one.cost,
        "cost_interval": None if one.cost_interval is None else _ends(*one.cost_interval),
        "cost_unit": one.cost_unit,
    }


def _ends(low: float, high: float) -> list[float | None]:
    """An interval; an end that is not finite is null."""
    return [finite(low), finite(high)]


def _curve(outlook: Outlook) -> dict[str, Any] | None:
    curve = outlook.curve
    if curve is None:
        return None
    return {
        "name": outlook.curve_name,
        "task": curve.table.task,
        "source": curve.table.source,
        "target": curve.table.target,
        "projection": curve.table.projection,
        "known_batches": list(curve.range),
        "e0": curve.fit.e0,
        "b_crit": finite(curve.fit.b_crit),
        "unit": curve.table.unit,
    }


def _rule(outlook: Outlook) -> dict[str, Any] | None:
    recipe = None if outlook.curve is None else outlook.curve.table.recipe
    return None if recipe is None else to_plain(recipe)


def _stop(stop: Stop) -> dict[str, Any]:
    return {
        "devices": stop.devices,
        "interval": list(stop.interval),
        "least_saved_per_doubling": stop.share,
        "saved_per_doubling": {str(count): saved for count, saved in stop.saved.items()},
        "counts": list(stop.counts),
    }


# ---------------------------------------------------------------------------------------------------------------------
# A plan as a document


SHOWN_REJECTIONS = 40
"""Rejected strategies of a machine of the catalog that are listed one by one; the others are counted."""


def plan_document(planned: "Planned") -> dict[str, Any]:
    """A plan, the alternatives and the rejected strategies.

    Args:
        planned: as it was made, by whichever backend

    Returns:
        Times in seconds, sizes in bytes, intervals as `[low, high]`, a figure for each rank as a list; null where a
        backend does not say it. `front` has the rows that no other one beats in time, memory and devices at once. Plans
        with an input pipeline also say how ranks are fed (`feeding`), those of the analytical model `sequence`,
        `host_bytes`, `idle_devices`, `nearby_batches`, and of each strategy `parts_s`, `mfu` and
        `tokens_per_s`.
    """
    evidence, found = planned.evidence, planned.evidence.search
    chosen = evidence.chosen
    document = head_document(planned)
    if isinstance(evidence, Simulated) and (planned.request.is_here or planned.request.loading.is_given):
        document["feeding"] = feeding_document(evidence.chosen.strategy, evidence.search)
    if found is None:
        return document | {"chosen": option_document(chosen)}
    alone_s, fits_alone = one_device_of(planned)
    front = {id(one) for one in found.pareto}

    def costs(one: Option, batch: int) -> dict[str, Any]:
        base_s = alone_s if batch == planned.global_batch_size else None
        return option_document(one) | {
            "speedup": None if base_s is None else base_s / one.step_time_s,
            **rates_document(planned, one, batch),
        }

    def entry(one: Option) -> dict[str, Any]:
        return costs(one, planned.global_batch_size) | {"pareto": id(one) in front}

    listed: Iterable[Option] = found.candidates
    rejected = found.rejected if planned.request.is_here else found.rejected[:SHOWN_REJECTIONS]
    if isinstance(evidence, Modelled):
        problem = evidence.problem
        listed = list(dict.fromkeys((found.chosen, *found.candidates, *found.references)))
        layout: dict[str, Any] = {"layout": _layout(problem, evidence.search.chosen)}
        document |= {
            "sequence": problem.shape.sequence,
            **room_document(problem, evidence.chosen.strategy),
            **_likes(evidence),
            "idle_devices": problem.devices - evidence.chosen.devices,
            "nearby_batches": [
                {
                    "global_batch_size": near.batch,
                    "strategy": near.strategy,
                    "step_time_s": near.step_time_s,
                    "faster_per_sample": near.faster,
                }
                for near in evidence.nearby
            ],
        }
    else:
        strategy = evidence.chosen.strategy
        document["memory_limit_bytes"] = min(room_bytes(evidence.problem, strategy.devices))
        layout = {
            "placement": placement_document(evidence.graph, strategy),
            "device_order": list(strategy.device_order),
        }
    document |= {
        "one_device_s": alone_s,
        "one_device_fits": fits_alone,
        "candidates": [entry(one) for one in listed],
        "chosen": entry(found.chosen) | {"gap": found.gap, "bound_s": found.bound_s} | layout,
        "baseline": entry(found.baseline),
        "rejected": rejections_document(rejected),
        **search_document(found, one_device_s=alone_s, prices=evidence.prices, goal=goal_of_plan(planned.outlook)),
        "front": [entry(one) for one in found.pareto],
    }
    return document if planned.outlook is None else with_outlook(document, planned.outlook, costs)


def shown_document(planned: "Planned") -> dict[str, Any]:
    """What pages print of the document of a plan: of a training all, else what says no other strategy.

    Args:
        planned: as it was made, by whichever backend
    """
    if planned.outlook is not None:
        return plan_document(planned)
    return head_document(planned) | (_likes(planned.evidence) if isinstance(planned.evidence, Modelled) else {})


def _likes(evidence: Modelled) -> dict[str, Any]:
    pins = evidence.problem.pins
    # Types that nobody said are for memory alone, at each load anew.
    strategy = replace(evidence.chosen.strategy, gradients=pins.gradients, optimizer_state=pins.optimizer_state)
    return like_document(evidence.problem, strategy)


LOADS = (1.0, 2.0, 4.0)
"""Loads of the busiest rank of experts that every plan of a network with experts is priced at."""


def room_document(problem: AnalyticalProblem, strategy: Strategy) -> dict[str, Any]:
    """Memory of a device for a rank, and of each host what a strategy takes and may take [bytes]; null: not known."""
    host = host_memory(problem, strategy)
    return {
        "memory_limit_bytes": problem.memory_limit,
        "host_bytes": host.needed,
        "host_limit_bytes": host.room,
    }


def like_document(problem: AnalyticalProblem, strategy: Strategy) -> dict[str, Any]:
    """Documents and experts of a strategy, which is priced at several loads of its busiest rank of experts.

    Args:
        problem: of it
        strategy: priced

    Returns:
        `documents` and `expert_loads`, each where there are any.
    """
    found: dict[str, Any] = {}
    documents, experts = problem.program.documents, problem.shape.experts
    if documents is not None:
        sequence, microbatch = problem.shape.sequence, strategy.microbatch
        useful = documents.useful(sequence)
        found["documents"] = {
            "packing": documents.packing,
            "source": documents.source,
            "mean_tokens": documents.mean(),
            "useful_tokens_of_a_sequence": useful,
            "left_out_share": 1.0 - useful / documents.mean() if documents.packing == "padded" else 0.0,
            "computed_tokens_of_a_sequence": documents.length(sequence, microbatch),
            "attention_by_that_of_full_sequences": documents.attention(sequence, microbatch)
            * (documents.length(sequence, microbatch) / sequence) ** 2,
        }
    if experts is None:
        return found
    loads = []
    for load in sorted({*LOADS, experts.imbalance}):
        shape = replace(problem.shape, experts=replace(experts, imbalance=load))
        priced = AnalyticalModel(problem=replace(problem, shape=shape)).price(strategy)
        loads.append(
            {
                "imbalance": load,
                "reached": shape.experts.load(strategy.ep) if shape.experts is not None else 1.0,
                "step_time_s": priced.step_time_s,
                "interval_s": list(priced.interval_s),
                "peak_bytes": priced.memory.peak,
                "fits": priced.memory.peak <= problem.memory_limit,
                "planned": load == experts.imbalance,
            }
        )
    return found | {"expert_loads": loads}


def head_document(planned: "Planned") -> dict[str, Any]:
    """The question of a plan: job, devices, batch, precision, software, objective; and notes on the answer."""
    node, link = planned.machine.node, planned.link
    return {
        "job": planned.reference,
        "cluster": planned.request.cluster or None,
        "machine": node.title,
        "device": node.device.title,
        "devices": planned.devices,
        "link": None if link is None else name_link(link),
        "global_batch_size": planned.global_batch_size,
        "precision": planned.precision,
        "precision_source": planned.precision_source,
        "software": planned.software,
        "objective": planned.chosen.objective if planned.outlook is None else planned.outlook.goal,
        **assumptions_document(planned.evidence.plan, planned.outlook),
        "notes": list(planned.notes),
    }


def assumptions_document(plan: Plan, outlook: Outlook | None = None) -> dict[str, Any]:
    """What a plan assumes and the simplest plan within the uncertainty, the same for every page and from a plan file.

    Args:
        plan: says them
        outlook: of a training, whose time and cost the simplest has too; None: there is none
    """
    simplest = plan.simplest
    if simplest is not None and outlook is not None:
        named = simplest.strategy, outlook.chosen.global_batch
        of = next((one for one in outlook.estimates if (one.contender.name, one.global_batch) == named), None)
        if of is not None:
            simplest = replace(simplest, time_s=of.time_s, cost=of.cost, cost_unit=of.cost_unit)
    found = {"assumed": plan.assumed, "in_fp32": plan.in_fp32, "simplest": simplest}
    return {name: to_plain(value) for name, value in found.items()}


def rates_document(planned: "Planned", option: Option, batch: int) -> dict[str, float]:
    """What a strategy trains in a second at a batch: samples, and of the analytical model tokens."""
    samples_per_s = batch / option.step_time_s
    if isinstance(planned.evidence, Modelled):
        tokens_per_s = samples_per_s * planned.evidence.problem.sample_tokens
        return {"samples_per_s": samples_per_s, "tokens_per_s": tokens_per_s}
    return {"samples_per_s": samples_per_s}


def option_document(option: Option) -> dict[str, Any]:
    """A strategy with its costs; times in seconds, sizes in bytes, null where there is no epoch.

    `peak_bytes` is of the fullest rank, as in every answer. `groups_s` sum to the step, and the largest is what limits
    it: pages say its share.
    """
    figures = {
        "strategy": option.name,
        "devices": option.strategy.devices,
        "degrees": degrees(option),
        "step_time_s": option.step_time_s,
        "interval_s": list(option.interval_s),
        "epoch_s": option.epoch_s,
        "epoch_interval_s": None if option.epoch_interval_s is None else list(option.epoch_interval_s),
        "peak_bytes": max(option.peak_bytes, default=0),
        "peak_bytes_by_rank": list(option.peak_bytes),
        "limiter": option.limiter,
        "groups_s": dict(option.groups_s),
    }
    if isinstance(option, AnalyticalCandidate):
        return figures | {"parts_s": option.parts, "mfu": option.utilization, "need_bytes": asdict(option.need)}
    return figures


def rejections_document(rejected: Iterable[Rejection]) -> list[dict[str, Any]]:
    """Rejected strategies, each with its cause."""
    return [{"strategy": one.strategy.name, "cause": one.cause, "reason": one.reason} for one in rejected]


def _layout(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> dict[str, Any]:
    """Layers and memory of each stage, how ranks have the devices, and which of them exchange across nodes."""
    stages, strategy = [], chosen.fits_as
    usual = AnalyticalModel(problem=problem).taken(chosen.strategy).problem.lenient
    for stage in range(strategy.pp):
        memory = rank_memory(problem.shape, strategy, stage=stage, bookkeeping=problem.bookkeeping)
        memory = with_buffers(memory, strategy, reserve=problem.reserve, usual=usual)
        stages.append(
            {
                "stage": stage,
                "layers": [[chunk.start, chunk.stop] for chunk in stage_chunks(problem.shape, strategy, stage)],
                "peak_bytes": memory.peak,
                "state_bytes": memory.state,
                "activation_bytes": memory.activations + memory.transient,
                "buffer_bytes": memory.buffers + memory.fragments + memory.workspace,
            }
        )
    # Neighbours first.
    return {
        "stages": stages,
        "device_order": [{"axis": axis, "size": getattr(strategy, axis)} for axis in strategy.rank_order],
        "traffic": [asdict(each) for each in AnalyticalModel(problem=problem).traffic(strategy)],
    }
