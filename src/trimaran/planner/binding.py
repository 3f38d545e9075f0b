"""What binds a step, in one sentence: the classes of its critical path in four groups, largest first.

Shortening what is not on the critical path changes nothing, so the groups are what there is to win.
"""

from collections.abc import Mapping, Sequence

from trimaran.planner.contrast import Anatomy
from trimaran.planner.critical import Part, binding_segments
from trimaran.units import format_seconds

GROUPS: Mapping[str, Sequence[Part]] = {
    "compute": (Part.FORWARD, Part.BACKWARD, Part.UPDATE),
    "communication": (Part.EXCHANGE, Part.MESSAGES, Part.SLOWED),
    "idle stages": (Part.BUBBLE, Part.WAIT),
    "loading": (Part.LOAD,),
}
"""The classes of each group."""

# A group below this share of the step is not named.
_WORTH_NAMING = 0.02


def groups(anatomy: Anatomy) -> dict[str, float]:
    """Time of each group on the critical path [s]; they sum to the step."""
    return {name: sum(anatomy.parts[part] for part in parts) for name, parts in GROUPS.items()}


def binding(anatomy: Anatomy) -> str:
    """What binds a step, in one sentence.

    Args:
        anatomy: of the plan
    """
    step_s = anatomy.candidate.step_time_s
    spent = sorted(groups(anatomy).items(), key=lambda entry: -entry[1])
    name, seconds = spent[0]
    share = seconds / step_s if step_s else 0.0
    others = [
        f"{other} {100 * part_s / step_s:.0f} %" for other, part_s in spent[1:] if part_s > _WORTH_NAMING * step_s
    ]
    sentence = f"{_subject(name, anatomy)} binds: {format_seconds(seconds)}, {100 * share:.0f} % of the step"
    return f"{sentence}; beside it {', '.join(others)}." if others else f"{sentence}."


def _subject(group: str, anatomy: Anatomy) -> str:
    strategy = anatomy.candidate.strategy
    if group != "compute" or strategy.pp == 1:
        return group
    segments = binding_segments(anatomy.candidate.program, anatomy.legs)
    rows = sorted({strategy.rows[segment] for segment in segments})
    what = "row" if strategy.parts else "stage"
    return f"compute of {what} {', '.join(map(str, rows))}"
