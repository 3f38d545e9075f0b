"""Memory of the constraint program of a placement (`model`): what lives on a device at once fits it, constraint (7)."""

import math
from collections.abc import Iterable

from ortools.sat.python import cp_model

from trimaran.planner.placement.model import Model
from trimaran.planner.placement.room import memory_of_all

_BYTES = 1 << 34
"""Bytes are counted in units of which all that there is makes no more than this."""


def fit(whole: Model) -> None:
    """(7): state always; what is saved from forward to backward; what arrives until it is of no more use.

    Args:
        whole: the program without memory; gets the constraints
    """
    total = memory_of_all(whole.flat)
    scale = max(1.0, total / _BYTES)
    for device, memory in enumerate(whole.flat.memory):
        _fit_device(whole, device, int(min(memory, total) / scale), scale)


def _fit_device(whole: Model, device: int, room: int, scale: float) -> None:
    flat, model, n, devices = whole.flat, whole.model, whole.flat.n, whole.flat.devices
    intervals: list[cp_model.IntervalVar] = []
    sizes: list[cp_model.LinearExprT] = []

    def hold(item: int, until: Iterable[int], nbytes: float, present: cp_model.LiteralT) -> None:
        size = math.ceil(nbytes / scale)  # rounded up, so that what fits here fits
        if size == 0:
            return
        length = model.new_int_var(0, whole.horizon, "")
        end = model.new_int_var(0, whole.horizon, "")
        for task in until:
            there = whole.on[task % n][device]
            model.add(end >= whole.start[task] + whole.length(task)).only_enforce_if(present, there)
        intervals.append(model.new_optional_interval_var(whole.start[item], length, end, present, ""))
        sizes.append(size)

    for node in range(n):
        hold(node, [n + node], flat.held[node], whole.on[node][device])
    for (node, a, b), crosses in whole.crosses.items():
        go, back = 2 * n + node * devices + b, 2 * n + n * devices + node * devices + b
        if b == device:
            hold(go, [n + reader for reader in flat.read_by[node]], flat.out_bytes[node], crosses)
        elif a == device:
            hold(back, [n + node], flat.grad_bytes[node], crosses)
    used = model.new_int_var(0, room, "")
    here = [whole.on[node][device] for node in range(n)]
    sizes_here = [math.ceil(nbytes / scale) for nbytes in flat.state]
    model.add(used == cp_model.LinearExpr.weighted_sum(here, sizes_here))
    intervals.append(model.new_fixed_size_interval_var(0, whole.horizon, ""))
    sizes.append(used)
    model.add_cumulative(intervals, sizes, room)
