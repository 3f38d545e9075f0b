"""The page of a plan file.

A plan for a target cluster is simulated by that machine's costs, as `trimaran plan` does: nothing is measured, and
no code of the user runs. A plan for the machine at hand is simulated on request only, as that measures and may run the
code of the job.
"""

import shlex
from pathlib import Path

from trimaran.base import VERSION
from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import given
from trimaran.base.progress import Progress
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.jobs.resolve import JobSource
from trimaran.machine.find import find_machine
from trimaran.planning.answer.documents import assumptions_document, placement_document
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.estimated import on_its_machine
from trimaran.planning.loaded_plans import use_of_plan
from trimaran.planning.plan import obtain_plan
from trimaran.planning.requests import PlanRequest
from trimaran.program.json_files import to_plain
from trimaran.program.plan_file import Plan, plan_verdict, read_plan
from trimaran.report.breakdown import PARTS, utilization
from trimaran.report.page.layout import Contents, Page, Section, Words
from trimaran.report.page.steps import (
    RankParts,
    assumption_section,
    candidates_section,
    commands_section,
    compared_devices,
    considered,
    memory_section,
    parts_section,
    placement_section,
    prediction_section,
    rate,
    scaling_section,
)
from trimaran.report.page.timeline import step_timelines
from trimaran.report.plans import training_line


def page_of_plan(path: Path, *, simulate: bool, progress: Progress) -> Page:
    """The page of a plan file.

    Args:
        path: of the file
        simulate: simulate it also where that measures or runs the job's code
        progress: called with the current work

    Raises:
        InputError: the plan is wrong
        CorruptDataError: it was damaged or edited
    """
    plan = read_plan(given(path))
    simulated, why_not = _simulated(path, plan, simulate, progress)
    job = shlex.quote(plan.job)
    use, there = use_of_plan(plan, str(path))
    contents = Contents()

    prediction = plan.prediction
    contents.sections.append(prediction_section(prediction.step_time_s, prediction.interval_s, None))
    assumed = assumption_section(assumptions_document(plan) | {"devices": len(plan.premises.devices)})
    contents.sections += [assumed] if assumed else []
    asked_again = _asked_again(plan)
    timeline = None if simulated is None else simulated.chosen.timeline
    program = None if simulated is None else simulated.chosen.program
    contents.add(
        None
        if timeline is None or program is None
        else parts_section(
            _parts(simulated),
            note=_note_on_parts(simulated, prediction.step_time_s),
        ),
        "Where a step goes, by rank" if plan.has_program else "Where a step goes",
        why_not if plan.has_program else f"the plan file does not hold it, its JSON does: {asked_again}",
    )
    timelines = step_timelines(timeline, program=program)
    contents.add(
        None
        if timelines is None
        else Section(id="timelines", title="Timeline of every rank", content=[timelines], is_wide=True),
        "Timeline of every rank",
        why_not,
    )
    contents.add(
        memory_section(timeline, None, plan.premises.memory_bytes, step_s=prediction.step_time_s),
        "Memory over time" if plan.has_program else "Memory by purpose",
        why_not if plan.has_program else f"the plan file does not hold it, its JSON does: {asked_again}",
    )
    contents.add(
        scaling_section(plan),
        "Scaling",
        f"the plan file holds one number of devices: {_scaled(plan)}",
    )
    modules = None
    if simulated is not None and plan.strategy.pp > 1:
        modules = placement_document(simulated.graph, simulated.chosen.strategy)
    contents.sections.append(placement_section(plan.strategy, modules=modules, layers=plan.premises.layers))
    contents.add(
        candidates_section(considered(plan.candidates)),
        "Candidates and the Pareto front",
        f"the plan has none: trimaran plan {job} --output plan.json",
    )
    if plan.training is not None:
        said = training_line(to_plain(plan.training))
        contents.sections.append(Section(id="training", title="Time to accuracy", content=[Words(lines=[said])]))
    else:
        machine = f" --cluster {plan.premises.cluster}" if plan.premises.cluster else ""
        how = f"the plan has no target: trimaran plan {job}{machine} --curve NAME -o plan.json"
        if not plan.has_program:
            asked = f"trimaran plan {job}{machine} --tokens NUMBER --json > answer.json; trimaran report answer.json"
            how = f"a plan file holds no target in tokens, its JSON does: {asked}"
        contents.add(None, "Time to accuracy", how)
    contents.add(
        None,
        "Predicted against measured",
        f"a run{f' {there}' if there else ''} has it: {shlex.join(use)}"
        if plan.has_program
        else f"a run has it, and another runtime runs this plan: {shlex.join(use)}",
    )
    contents.add(
        None,
        "Crossover with model parallelism",
        f"a study{'' if plan.has_program else ' of at most 5 billion parameters'}: trimaran crossover {job} "
        f"--cluster {(plan.premises.cluster or 'NAME').partition(':')[0]} --json",
    )
    contents.sections.append(commands_section(_environment(plan), _commands(plan, str(path))))
    return Page(
        title=f"{plan.job} on {format_count(plan.strategy.devices, 'device')}",
        kind="Plan",
        verdict=plan_verdict(plan),
        facts=_facts(plan),
        sections=contents.sections,
        absent=contents.absent,
        sources=[path.name],
        version=VERSION,
    )


def _note_on_parts(simulated: Simulated | None, planned_s: float) -> str:
    """What follows the last instruction, and by which costs the step is another one than the plan's."""
    if simulated is None:
        return ""
    parts = [f"After the last instruction: {simulated.after_words}."] if simulated.chosen.timeline.after_s else []
    now, then = format_seconds(simulated.chosen.step_time_s), format_seconds(planned_s)
    if now != then:
        parts.append(f"By the costs known now a step takes {now}, by those that the plan was made with {then}.")
    return " ".join(parts)


def _simulated(path: Path, plan: Plan, asked: bool, progress: Progress) -> tuple[Simulated | None, str]:
    """The plan, simulated; or why it is not."""
    again = f"trimaran report {shlex.quote(str(path))} --simulate"
    if not plan.has_program:
        return None, "the analytical model chose degrees and has no program to simulate"
    if not asked and not plan.premises.cluster:
        return None, f"the plan is for a machine at hand, which would be measured: {again}"
    if not asked and ".py:" in plan.job:
        return None, f"the job is a file, whose code would run: {again}"
    request = on_its_machine(plan, PlanRequest())
    source = JobSource(reference=plan.job)
    try:
        return obtain_plan(source, request, path=given(path), progress=progress).simulated, ""
    except TrimaranError as error:
        if asked:
            raise
        reason = error.message.splitlines()[0]
        return None, f"the plan cannot be simulated here ({reason})"


def _scaled(plan: Plan) -> str:
    """The command that compares numbers of devices: large decoders do not fit one device, which `scale` begins with."""
    job, cluster = shlex.quote(plan.job), plan.premises.cluster or "NAME"
    if plan.has_program:
        return f"trimaran scale {job} --cluster {cluster} --json > scale.json"
    counts = compared_devices(len(plan.premises.devices))
    asked = f"trimaran plan {job} --cluster {cluster} --devices {counts} --batch {plan.premises.global_batch_size}"
    return f"{asked} --json > answer.json; trimaran report answer.json"


def _asked_again(plan: Plan) -> str:
    """The command whose document says what a plan of degrees does not, as far as the plan knows the question."""
    premises = plan.premises
    words = ["trimaran", "plan", plan.job, "--cluster", premises.cluster or "NAME"]
    words += ["--devices", str(len(premises.devices)), "--batch", str(premises.global_batch_size)]
    if premises.sequence_length:
        words += ["--sequence", str(premises.sequence_length)]
    if premises.precision:
        words += ["--precision", premises.precision]
    for option in premises.options:
        words += [] if option.startswith("--sequence ") else option.split(" ", 1)
    least = min(premises.memory_bytes, default=None)
    if least is not None and least != _memory_there(premises.cluster):
        words += ["--memory", str(least)]
    words += ["--strategy", plan.strategy.name]
    return f"{shlex.join([*words, '--json'])} > answer.json; trimaran report answer.json"


def _memory_there(cluster: str) -> int | None:
    """What a device of a cluster leaves to the job [bytes]; None: no cluster of the catalog."""
    try:
        return find_machine(cluster).node.device.usable_bytes if cluster else None
    except InputError:
        return None


def _parts(simulated: Simulated | None) -> list[RankParts]:
    if simulated is None:
        return []
    chosen = simulated.chosen
    return [
        RankParts(
            rank=one.rank,
            source="predicted",
            parts_s=tuple(max(0.0, getattr(one, f"{name}_s")) for name in PARTS),
            overlapped_s=one.overlapped_s,
        )
        for one in utilization(chosen.program, chosen.timeline, devices=chosen.strategy.devices)
    ]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    premises, prediction = plan.premises, plan.prediction
    facts = [("strategy", plan.strategy.name), ("devices", f"{plan.strategy.devices:,} of {len(premises.devices):,}")]
    if prediction.step_time_s > 0:
        facts.append(("predicted step", format_seconds(prediction.step_time_s)))
        facts.append(("throughput", f"{rate(premises.global_batch_size / prediction.step_time_s)} samples/s"))
    if prediction.peak_bytes:
        facts.append(("peak memory", format_bytes(max(prediction.peak_bytes))))
    return [*facts, ("global batch", f"{premises.global_batch_size:,}")]


def _environment(plan: Plan) -> dict[str, str]:
    premises = plan.premises
    counts: dict[str, int] = {}
    for name in premises.devices:
        counts[name] = counts.get(name, 0) + 1
    found = {"devices": ", ".join(f"{count:,} × {name}" for name, count in counts.items())}
    found["cluster"] = premises.cluster or "the machine at hand, or the file does not say"
    if premises.memory_bytes:
        found["memory of a device for the job"] = format_bytes(min(premises.memory_bytes))
    if premises.precision:
        found["precision"] = premises.precision
    if premises.link is not None:
        found["links limited to"] = f"{8 * premises.link.bytes_per_s / 1e9:.3g} Gb/s"
    found["global batch"] = f"{premises.global_batch_size:,} samples"
    if premises.sequence_length:
        found["sequence"] = f"{premises.sequence_length:,} tokens"
    found |= {name.removeprefix("--"): value for name, _, value in (one.partition(" ") for one in premises.options)}
    found["objective"] = plan.objective
    return found


def _commands(plan: Plan, shown: str) -> list[tuple[str, str]]:
    found = [("Why this plan, and what would help", shlex.join(["trimaran", "explain", shown]))]
    if plan.has_program:
        found.append(("One step of it, simulated", shlex.join(["trimaran", "simulate", shown])))
    use, there = use_of_plan(plan, shown)
    title = f"Train by it{f' {there}' if there else ''}" if plan.has_program else "For another runtime"
    found.append((title, shlex.join(use)))
    found.append(("This report", shlex.join(["trimaran", "report", shown])))
    return found
