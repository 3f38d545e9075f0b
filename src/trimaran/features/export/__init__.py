"""`trimaran export`: read a plan, and write it for another runtime."""

from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.files import write_whole
from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.fitting import TARGETS, check_fits, request_for
from trimaran.features.export.launching import ExportLaunch, check_network, check_target, launch_of
from trimaran.features.export.megatron import to_megatron
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import Exported, ExportRecipe, recipe_of_degrees, recipe_of_plan
from trimaran.features.export.torchtitan import to_torchtitan
from trimaran.jobs.resolve import JobSource
from trimaran.program.plan_file import Plan, check_plan, read_plan

__all__ = [
    "ExportLaunch",
    "Exported",
    "check_network",
    "check_target_name",
    "export_plan",
    "launch_plan",
    "recipe_of",
    "request_for",
    "write_export",
]

_CALLED = {
    "torchtitan": ("titan",),
    "megatron": ("megatron-lm", "megatron-core", "mcore", "nemo"),
    "accelerate": ("huggingface", "hf", "transformers", "trainer", "deepspeed"),
    "pytorch": ("torch", "fsdp", "fsdp2", "ddp", "torchrun", "script", "lightning"),
}
"""What people type for a target: what it is for, or another program that starts by the same settings or script."""


def _meant(target: str) -> str:
    typed = target.lower().replace("_", "-")
    return next((f": that is --to {name}" for name, called in _CALLED.items() if typed in (name, *called)), "")


_WRITERS = {"torchtitan": to_torchtitan, "megatron": to_megatron, "accelerate": to_accelerate, "pytorch": to_pytorch}


def export_plan(path: Path, target: str) -> Exported:
    """A plan for another runtime.

    Args:
        path: of the plan; one without a program names no modules, and its job is not captured
        target: name of the runtime

    Raises:
        InputError: no such target; the plan is wrong, was made for another model than its job has now, or has what
            the target cannot do
        InfeasibleError: what would be written does not fit the devices
        CorruptDataError: the plan was damaged or edited
    """
    check_target_name(target)
    if not path.exists() and not path.suffix:
        raise InputError(
            f'"{path}" is no plan file: make one, such as trimaran plan {path} --cluster dgx-h100 --output plan.json, '
            "and export that",
            code="export.no-plan-file",
        )
    plan = read_plan(path)
    return check_fits(plan, _WRITERS[target](recipe_of(plan)))


def check_target_name(target: str) -> None:
    """Refuse a name of no target.

    Args:
        target: name of a runtime

    Raises:
        InputError: with the names
    """
    if target not in TARGETS:
        raise InputError(
            f'cannot export to "{target}"{_meant(target)}; the targets are {", ".join(TARGETS)}',
            code="export.unknown-target",
            target=target,
        )


def recipe_of(plan: Plan) -> ExportRecipe:
    """A plan in the words of runtimes.

    Args:
        plan: one without a program names no modules, and its job is not captured

    Raises:
        InputError: it is wrong, or was made for another model than its job has now
    """
    if not plan.has_program:
        return recipe_of_degrees(plan)
    from trimaran.graph.capture.capture import capture
    from trimaran.graph.optimizers import make_schedule, optimizer_without_values, takes_metric

    job = JobSource(reference=plan.job, global_batch_size=plan.premises.global_batch_size).make()
    captured = capture(job)
    graph = captured.graph
    check_plan(plan, graph_digest=graph.digest)
    schedule = make_schedule(job, optimizer_without_values(job, captured.model))
    return recipe_of_plan(
        plan,
        graph,
        clip_norm=job.clip_norm,
        own_loss=job.loss is None,
        weighted_loss=job.loss_weight is not None,
        callbacks=tuple(name for name in ("on_step", "on_epoch") if getattr(job, name) is not None),
        drop_last=job.drop_last,
        follows_metric=schedule is not None and takes_metric(schedule),
    )


def launch_plan(plan: Plan, target: str, *, steps: int) -> ExportLaunch:
    """How the training of a plan is started by another runtime, for a rehearsal.

    Args:
        plan: of whatever backend
        target: name of the runtime
        steps: of training

    Raises:
        InputError: as for `export_plan`; or the target cannot be started with it
    """
    check_target(target)
    recipe = recipe_of(plan)
    return launch_of(recipe, _WRITERS[target](recipe), steps=steps)


def write_export(exported: Exported, path: Path) -> Exported:
    """Write the file of an export; it is there whole or not at all.

    Args:
        exported: what to write
        path: where; an existing file is replaced

    Returns:
        What was written: its commands name that file.

    Raises:
        InputError: it cannot be written there
    """
    written = exported.written_to(path)
    write_whole(path, written.text.encode())
    return written
