"""What a target can run, the plans that are made for it, and whether what was written for it fits.

An export is priced as `trimaran plan` prices its strategy: by the software that runs it, as the file says it.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes, format_span
from trimaran.features.export.recipe import Exported, special_parts
from trimaran.jobs.resolve import JobSource
from trimaran.machine.find import find_machine
from trimaran.planning.analytical import Analytical, decoder_shape, shape_of
from trimaran.planning.explanation import as_modelled
from trimaran.planning.requests import ExportBinding, PlanRequest, parse_software
from trimaran.planning.target import Cell
from trimaran.pricing.analytical.fits_device import MemoryRange, need_of, with_buffers
from trimaran.pricing.analytical.memory import largest_rank
from trimaran.pricing.analytical.programs import find_framework
from trimaran.program.plan_file import Plan
from trimaran.program.strategy import Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """A runtime that plans are exported to.

    Attributes:
        software: as `--software` says what runs its exports, with the year of the release that they are for; "": the
            software that a plan assumes
        lacks: kinds of parallelism that decoders do not have there
        lacks_with: likewise of decoders that have some of `special_parts`
        lacks_for_jobs: likewise of jobs whose model is their own
        pins: what else of decoders is not free, by the name of the pin
        shards_by_expert: no more ranks share a copy of the state than there are experts
    """

    software: str = ""
    lacks: tuple[str, ...] = ()
    lacks_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacks_for_jobs: tuple[str, ...] = ()
    pins: Mapping[str, Any] = field(default_factory=dict)
    shards_by_expert: bool = False


TARGETS: Mapping[str, ExportTarget] = {
    "torchtitan": ExportTarget(
        software="torchtitan:2026",
        lacks_with={"layers that predict further tokens": ("pp", "cp"), "tied embeddings": ("pp",)},
        lacks_for_jobs=("placement",),
        pins={"ulysses": False, "etp": 1},
    ),
    "megatron": ExportTarget(lacks_for_jobs=("placement",)),
    "accelerate": ExportTarget(
        software="accelerate:2026",
        lacks=("cp", "ep", "pp", "tp"),
        lacks_for_jobs=("placement", "pp", "tp"),
        shards_by_expert=True,
    ),
    "pytorch": ExportTarget(
        software="fsdp:2026",
        lacks=("cp", "ep"),
        lacks_with={"experts": ("tp",), "tied embeddings": ("pp",)},
        lacks_for_jobs=("memory", "placement", "sharded", "tp"),
    ),
}


def request_for(reference: str, request: PlanRequest, target: str) -> PlanRequest:
    """A request for plans that a target can run, with memory and time of its software unless other software is asked.

    Args:
        reference: of a job
        request: of the user
        target: name of the runtime

    Raises:
        InputError: the user asks for what the target lacks
    """
    to, pins = TARGETS[target], request.pins
    bound = ExportBinding(target=target, asked=request, bind=lambda other: request_for(reference, other, target))
    shape = None if request.is_here else shape_of(reference, request)
    lacks, asked = to.lacks_for_jobs, dict[str, Any]()
    if shape is not None:
        lacks = (*to.lacks, *(kind for part in special_parts(shape) for kind in to.lacks_with.get(part, ())))
        asked = {name: value for name, value in to.pins.items() if name != "etp" or shape.experts is not None}
        if to.shards_by_expert and shape.experts is not None:
            devices = request.devices or find_machine(request.cluster).devices
            asked |= {"shard_ranks": shape.experts.count} if devices > shape.experts.count else {}
        if to.software and request.software is None:
            software = replace(parse_software(to.software), source=f"what runs an export to {target}")
            request = replace(request, software=software)
    for kind in lacks:
        given = getattr(pins, kind, None)
        if kind in pins.allow or (given is not None and given > 1):
            said = f"--allow {kind}" if kind in pins.allow else f"--{kind} {given}"
            raise InputError(
                f"{said}: {target} has none for {reference}; leave it out, or choose another target (--to)",
                code="plan.target-lacks",
                target=target,
                kind=kind,
            )
    asked = {name: value for name, value in asked.items() if getattr(pins, name) is None and not pins.strategy}
    forbid = tuple(sorted({*pins.forbid, *lacks}))
    return replace(request, pins=replace(pins, forbid=forbid, **asked), bound=bound)


def check_fits(plan: Plan, exported: Exported) -> Exported:
    """Refuse an export that the memory of the plan's devices cannot hold, as the file says it.

    Args:
        plan: that was exported; one with a program is of a job's own model, which no shape prices
        exported: to a target

    Returns:
        The export, which names what is not sure.

    Raises:
        InfeasibleError: it does not fit
    """
    degrees, premises = exported.degrees, plan.premises
    if plan.has_program or degrees is None:
        return exported
    if not premises.cluster:
        return exported.with_lost("memory: the plan does not say its cluster, so it is not known whether this fits")
    request = as_modelled(plan, PlanRequest(cluster=premises.cluster))
    to = TARGETS[exported.target]
    own = find_framework(to.software)
    if own is not None and (request.software is None or find_framework(request.software.framework) != own):
        request = replace(request, software=parse_software(to.software))
    shape = decoder_shape(plan.job, request)
    if shape is None:
        return exported
    strategy = replace(plan.strategy, **{one.name: getattr(degrees, one.name) for one in fields(Degrees)})
    backend = Analytical(JobSource(reference=plan.job), request, shape)
    problem = backend.problem(Cell(batch=premises.global_batch_size, devices=strategy.devices), None)
    rank = largest_rank(problem.shape, strategy, bookkeeping=problem.bookkeeping)
    need = need_of(with_buffers(rank, strategy, reserve=problem.reserve), strategy)
    room = problem.memory_limit
    if need.usual > room:
        raise InfeasibleError(
            f"the export to {exported.target} of the plan for {plan.job} does not fit: {strategy.name} needs "
            f"{_words(need)} of {format_bytes(int(room))} by the software of {exported.target}; plan for it: "
            f"{command_for(plan, exported.target)}",
            code="export.does-not-fit",
            target=exported.target,
            strategy=strategy.name,
            need_bytes=need.usual,
            room_bytes=int(room),
        )
    if need.most > room:
        return exported.with_lost(f"memory: it may not fit, {_words(need)} of {format_bytes(int(room))}")
    return exported


def command_for(plan: Plan, target: str) -> str:
    """The command that plans for a target what a plan is for."""
    premises = plan.premises
    words = ["trimaran", "plan", plan.job, "--cluster", premises.cluster, "--devices", str(len(premises.devices))]
    words += ["--batch", str(premises.global_batch_size)]
    words += [word for one in premises.options if not one.startswith("--software ") for word in one.split(" ", 1)]
    return shlex.join([*words, "--to", target, "-o", "plan.json"])


def _words(need: MemoryRange) -> str:
    return f"{format_bytes(need.usual)} ({format_span(*map(format_bytes, (need.least, need.most)))})"
